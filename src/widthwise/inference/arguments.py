"""Arguments of `predict`, `posterior` and their companions, checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.inference.training_kernel import Algorithm
from widthwise.network import GradientFlow, Network, check_inputs, check_network, plain
from widthwise.network.validation import check_targets


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
