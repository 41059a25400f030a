"""What `predict` and `posterior` share: moments under their names and dimensions, tensors behind a progress bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from widthwise.flow.tensors.tensor_flow import FiniteFlow
from widthwise.inference.corrections import joint_tensors, warn_if_large
from widthwise.network import Network
from widthwise.progress import DelayedProgress
from widthwise.results.labels import TEST_PAIRS

AT_TESTS = ("output", "test")


def joint_flow(net: Network, X: np.ndarray, X_test: np.ndarray, wanted: tuple[str, ...]) -> FiniteFlow:
    """Tensors of order 1/n on training inputs, then test inputs, behind a progress bar."""
    with DelayedProgress("tensors of order 1/n", None) as progress:
        return joint_tensors(net, np.concatenate([X, X_test]), wanted, progress)


def expansion(name: str, dims: tuple[str, ...], coefficients: Sequence[Any], n: int) -> dict[str, tuple]:
    """Coefficients of powers of 1/n as variables name0, name1, and their sum at this width.

    >>> expansion("error", (), [2.0, 6.0], 3)
    {'error0': ((), 2.0), 'error1': ((), 6.0), 'error': ((), 4.0)}
    """
    powers = {f"{name}{power}": (dims, value) for power, value in enumerate(coefficients)}
    return powers | {name: (dims, sum(value / n**power for power, value in enumerate(coefficients)))}


def moment_variables(net: Network, means: Sequence[np.ndarray], covariances: Sequence[np.ndarray], scale: Any):
    """Coefficients of mean and covariance as variables; a warning where those of 1/n are not small.

    `scale` is the size of the prior's covariance, against which leading terms may vanish.
    """
    (mean0, *mean1), (cov0, *cov1) = means, covariances
    if mean1:
        typical = math.sqrt(np.sum(mean0**2) + max(np.einsum("ixix->", cov0), 0.0))
        warn_if_large(net, "mean", typical, float(np.linalg.norm(mean1)), math.sqrt(scale))
        warn_if_large(net, "covariance", float(np.linalg.norm(cov0)), float(np.linalg.norm(cov1)), scale)
    return expansion("mean", AT_TESTS, means, net.n) | expansion("cov", TEST_PAIRS, covariances, net.n)


def per_output(covariance: np.ndarray, outputs: int) -> np.ndarray:
    """δ_ij times the covariance, on (output, input, output', input')."""
    return np.einsum("ij,xy->ixjy", np.eye(outputs), covariance)
