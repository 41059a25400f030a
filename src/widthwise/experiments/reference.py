"""Infinite width, as the point about which sampled networks scatter (theory §2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from widthwise.gaussian.matrices import pair_matrix
from widthwise.network import MLP


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


def reference(net: MLP, X: np.ndarray) -> Reference:
    """K and Θ of every layer (theory §2).

    >>> net = MLP([1, 8, 8, 1], "linear", lambda_W=0.5)
    >>> found = reference(net, np.array([[2.0]]))
    >>> found.K[:, 0].tolist(), found.Theta[:, 0].tolist()
    ([4.0, 4.0, 4.0], [3.0, 6.0, 9.0])
    """
    a, b = pairs(len(X))
    gram = (X @ X.T) / net.widths[0]
    kernels = [(net.C_b[0] + net.C_W[0] * gram, net.lambda_b[0] + net.lambda_W[0] * gram)]
    for C_b, C_W, lambda_b, lambda_W in zip(net.C_b[1:], net.C_W[1:], net.lambda_b[1:], net.lambda_W[1:], strict=True):
        K, Theta = kernels[-1]
        values, slopes = (pair_matrix(net.activation, p, p, K)[0] for p in (0, 1))
        kernels.append((C_b + C_W * values, lambda_b + lambda_W * values + C_W * Theta * slopes))
    return Reference(*(np.stack([kernel[a, b] for kernel in column]) for column in zip(*kernels, strict=True)))
