"""What `predict` and `posterior` share: labelled_moments with named dimensions, and tensors behind a progress bar."""

from __future__ import annotations

import math

import numpy as np

from widthwise.flow.tensors.tensor_flow import FiniteFlow
from widthwise.inference.corrections import joint_tensors, warn_if_large
from widthwise.network import Network
from widthwise.progress import DelayedProgress
from widthwise.results.labels import TEST_PAIRS


def joint_flow(net: Network, X: np.ndarray, X_test: np.ndarray, wanted: tuple[str, ...]) -> FiniteFlow:
    """Tensors of order 1/n on training inputs, then test inputs, behind a progress bar."""
    with DelayedProgress("tensors of order 1/n", None) as progress:
        return joint_tensors(net, np.concatenate([X, X_test]), wanted, progress)


def labelled_moments(
    mean: np.ndarray, covariance: np.ndarray, outputs: int
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    full = per_output(covariance, outputs)
    return {
        "mean0": (("output", "test"), mean.T),
        "mean": (("output", "test"), mean.T.copy()),
        "cov0": (TEST_PAIRS, full),
        "cov": (TEST_PAIRS, full.copy()),
    }


def corrected(
    net: Network, variables: dict[str, tuple], mean1: np.ndarray, cov1: np.ndarray, scale
) -> dict[str, tuple]:
    """Moments with their coefficients of 1/n put in; a warning where these are not small. `scale`: of the prior."""
    mean0, cov0 = variables["mean0"][1], variables["cov0"][1]
    typical = math.sqrt(np.sum(mean0**2) + max(np.einsum("ixix->", cov0), 0.0))
    warn_if_large(net, "mean", typical, float(np.linalg.norm(mean1)), math.sqrt(scale))
    warn_if_large(net, "covariance", float(np.linalg.norm(cov0)), float(np.linalg.norm(cov1)), scale)
    pair = ("output", "test")
    labelled_moments = {
        "mean0": (pair, mean0),
        "mean1": (pair, mean1),
        "mean": (pair, mean0 + mean1 / net.n),
        "cov0": (TEST_PAIRS, cov0),
        "cov1": (TEST_PAIRS, cov1),
        "cov": (TEST_PAIRS, cov0 + cov1 / net.n),
    }
    return labelled_moments | {name: value for name, value in variables.items() if name not in labelled_moments}


def per_output(covariance: np.ndarray, outputs: int) -> np.ndarray:
    """δ_ij times the covariance, on (output, input, output', input')."""
    return np.einsum("ij,xy->ixjy", np.eye(outputs), covariance)
