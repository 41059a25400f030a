"""The weights of one ReLU network, checked: a list of (W, b), W of shape (neurons, inputs) and b (neurons,)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.network.inputs import real_array

Layers = list[tuple[np.ndarray, np.ndarray]]


def check_layers(layers: Sequence[Any]) -> Layers:
    """Weights and biases as float64, sizes matched from layer to layer; a bias of None is zero.

    >>> [W.shape for W, b in check_layers([([[1.0, 2.0]], [0.5]), ([[1.0], [3.0]], None)])]
    [(1, 2), (2, 1)]
    """
    expected = "a list of pairs (W, b), W of shape (neurons, inputs) and b of shape (neurons,)"
    if isinstance(layers, str) or not hasattr(layers, "__len__") or len(layers) == 0:
        raise InvalidInput("layers", repr(layers)[:60], expected)
    result: Layers = []
    for number, layer in enumerate(layers, start=1):
        if not isinstance(layer, tuple | list) or len(layer) != 2:
            raise InvalidInput("layers", f"{type(layer).__name__} as layer {number}", expected)
        W = real_array(layer[0], f"W of layer {number}")
        b = np.zeros(len(W)) if layer[1] is None else real_array(layer[1], f"b of layer {number}")
        if W.ndim != 2 or b.shape != W.shape[:1]:
            raise InvalidInput("layers", f"W {W.shape} and b {b.shape} in layer {number}", expected)
        if result and W.shape[1] != len(result[-1][1]):
            raise InvalidInput(
                "layers",
                f"{W.shape[1]} inputs of layer {number}",
                f"{len(result[-1][1])}, the neurons of the layer below",
            )
        result.append((W, b))
    return result


def relu_output(layers: Layers, X: np.ndarray) -> np.ndarray:
    """Outputs (inputs, outputs) of the network, ReLU between its layers."""
    values = X
    for number, (W, b) in enumerate(layers):
        values = (np.maximum(values, 0.0) if number else values) @ W.T + b
    return values


def affine_step(W: np.ndarray, b: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """W maps + b for affine functions (pieces, neurons, 1 + variables), the constant first.

    A slope no larger than the rounding error of its sum is zero: neurons that cancel must not leave kinks behind.

    >>> affine_step(np.array([[0.1, 0.2, -0.3]]), np.array([1.0]), np.array([[[0.0, 1.0]] * 3]))
    array([[[1., 0.]]])
    """
    result = np.tensordot(maps, W, axes=(1, 1)).swapaxes(1, 2)
    slopes, below, floor = result[..., 1:], maps[..., 1:], (W.shape[1] + 1) * np.finfo(float).eps
    # the sizes of the sums are needed only where Cauchy and Schwarz leave a doubt
    rough = floor * np.linalg.norm(W, axis=1)[None, :, None] * np.linalg.norm(below, axis=1)[:, None, :]
    piece, neuron, variable = np.nonzero((np.abs(slopes) <= rough) & (slopes != 0.0))
    if len(piece) > len(maps):
        size = np.tensordot(np.abs(below), np.abs(W), axes=(1, 1)).swapaxes(1, 2)
        slopes[np.abs(slopes) <= floor * size] = 0.0
    elif len(piece):
        size = np.sum(np.abs(below[piece, :, variable] * W[neuron]), axis=1)
        noise = np.abs(slopes[piece, neuron, variable]) <= floor * size
        slopes[piece[noise], neuron[noise], variable[noise]] = 0.0
    result[..., 0] += b
    return result


def sawtooth_network(depth: int) -> Layers:
    """A network of `depth` hidden layers of two neurons, one input and one output, with 2^depth pieces on [0, 1].

    Each layer is the tent 2 relu(x) − 4 relu(x − ½), and a tent of tents has twice as many teeth (theory §10).

    >>> relu_output(sawtooth_network(3), np.array([[0.0], [0.125], [0.25], [0.375]])).ravel()
    array([0., 1., 0., 1.])
    """
    if depth < 1:
        raise InvalidInput("depth", repr(depth), "an integer of at least 1")
    shift = np.array([0.0, -0.5])
    first = (np.array([[1.0], [1.0]]), shift)
    between = (np.array([[2.0, -4.0], [2.0, -4.0]]), shift)
    return [first, *[between] * (depth - 1), (np.array([[2.0, -4.0]]), np.zeros(1))]
