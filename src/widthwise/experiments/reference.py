"""Infinite width, as the point about which sampled networks scatter (theory §2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from widthwise.activations import Activation
from widthwise.gaussian.kernel_rules import Pair, kernel_rule
from widthwise.gaussian.pair import pair_matrix
from widthwise.network import Network


class Reference(NamedTuple):
    """K and Θ of infinite width at layers 1..L, over pairs of inputs a ≤ b: each (layers, pairs)."""

    K: np.ndarray
    Theta: np.ndarray


def pairs(inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of inputs a ≤ b."""
    return np.triu_indices(inputs)


def pair_number(inputs: int) -> np.ndarray:
    """Where the pair of a and b, in either order, stands in `pairs`.

    >>> pair_number(2)
    array([[0, 1],
           [1, 2]])
    """
    number = np.zeros((inputs, inputs), int)
    a, b = pairs(inputs)
    number[a, b] = number[b, a] = np.arange(len(a))
    return number


def reference(net: Network, X: np.ndarray) -> Reference:
    """K and Θ of every layer (theory §2).

    >>> from widthwise.network import MLP
    >>> net = MLP([1, 8, 8, 1], "linear", lambda_W=0.5)
    >>> found = reference(net, np.array([[2.0]]))
    >>> found.K[:, 0].tolist(), found.Theta[:, 0].tolist()
    ([4.0, 4.0, 4.0], [3.0, 6.0, 9.0])
    """
    a, b = pairs(len(X))
    K, Theta, kernels = (X @ X.T) / net.widths[0], np.zeros((len(X), len(X))), []
    for layer in net.layers:
        variance = np.diag(K)

        def mean(activation: Activation, p: int, K: np.ndarray = K) -> np.ndarray:
            return pair_matrix(activation, p, p, K)[0]

        K, Theta = kernel_rule(layer, Pair(variance[:, None], K, variance[None, :], Theta, mean))
        if layer.numbered:
            kernels.append((K, Theta))
    return Reference(*(np.stack([kernel[a, b] for kernel in column]) for column in zip(*kernels, strict=True)))
