"""What `predict` and `posterior` share: checked arguments, moments under their names, tensors behind a progress bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.flow.tensors.tensor_flow import FiniteFlow
from widthwise.inference.corrections import joint_tensors, warn_if_large
from widthwise.inference.infinite_width import Algorithm
from widthwise.network import GradientFlow, Network, check_inputs, check_network, plain
from widthwise.network.inputs import check_targets
from widthwise.progress import DelayedProgress
from widthwise.results.labels import TEST_PAIRS


def check_data(net: Network, X_train: Any, y_train: Any, X_test: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    features, outputs = check_network(net).widths[0], net.widths[-1]
    X = check_inputs(X_train, features, "X_train")
    return X, check_targets(y_train, len(X), outputs), check_inputs(X_test, features, "X_test")


def check_algorithm(algorithm: Any) -> Algorithm:
    if algorithm is None:
        return GradientFlow()
    if not isinstance(algorithm, Algorithm):
        raise InvalidInput("algorithm", repr(algorithm), "GradientFlow() or GradientDescent(learning_rate)")
    return algorithm


def check_loss(loss: Any) -> None:
    if loss != "squared":
        raise InvalidInput(
            "loss",
            repr(loss),
            "'squared', ½Σ(z−y)²",
            "Under another loss errors do not evolve linearly even at infinite width, and there is no closed form.",
        )


def check_order(order: int) -> None:
    if isinstance(order, bool) or order not in (0, 1):
        raise InvalidInput("order", repr(order), "0 or 1: the expansion in 1/width ends at its first order")


def network_for(order: int, net: Network) -> Network:
    """The network, which must be plain where order 1 is asked for."""
    check_order(order)
    return plain(net, "order=1") if order == 1 else check_network(net)


def check_noise(noise: float) -> float:
    try:
        value = float(noise)
    except (TypeError, ValueError):
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise InvalidInput("noise", repr(noise), "a finite non-negative variance")
    return value


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
