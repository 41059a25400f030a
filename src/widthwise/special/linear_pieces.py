"""The linear pieces of a ReLU network along a line segment, exactly (theory §10).

Between two breakpoints everything is affine in the position t, so the kinks that a layer adds are the zeros of affine
functions. Breakpoints are carried through the layers, all intervals and neurons at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widthwise.errors import InvalidInput
from widthwise.memory import require_memory
from widthwise.network.inputs import check_one_input, real_array

#: Breakpoints closer than this, in units of the segment, are one.
CLOSEST_KINKS = 1e-13
#: Numbers in the largest array of one block of intervals.
_INTERVAL_BLOCK = 1 << 22
#: The weights of a ReLU network, checked: (W, b) of each layer, W of shape (neurons, inputs) and b (neurons,).
LayerWeights = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class SegmentPieces:
    """Pieces of z(a + t(b − a)), 0 ≤ t ≤ 1: each has one activation pattern, so that z is affine in it.

    `t` (pieces + 1,) are the breakpoints, `values` (pieces, outputs) z at the left end of each piece, and `slopes`
    (pieces, outputs) dz/dt. Called with positions it evaluates the network.
    """

    t: np.ndarray
    values: np.ndarray
    slopes: np.ndarray

    @property
    def count(self) -> int:
        """The number of pieces."""
        return len(self.t) - 1

    def merged(self, tolerance: float = 1e-9) -> SegmentPieces:
        """The maximal intervals on which the output is affine.

        A kink of a neuron that the output does not read, or that others cancel, is no kink of the output. Slopes that
        differ by less than `tolerance` of the largest count as equal.

        >>> layers = [([[1.0], [1.0]], [0.0, 0.0]), ([[1.0, -1.0]], [0.0])]  # relu(x) − relu(x) = 0
        >>> pieces = linear_pieces_on_segment(layers, [-1.0], [1.0])
        >>> pieces.count, pieces.merged().count
        (2, 1)
        """
        size = np.abs(self.slopes).max(initial=0.0)
        keep = np.concatenate([[True], np.any(np.abs(np.diff(self.slopes, axis=0)) > tolerance * size, axis=1)])
        return SegmentPieces(np.append(self.t[:-1][keep], self.t[-1]), self.values[keep], self.slopes[keep])

    def __call__(self, t: ArrayLike) -> np.ndarray:
        """z at positions t in [0, 1], shape (…, outputs)."""
        t = np.asarray(t, float)
        k = np.clip(np.searchsorted(self.t, t, side="right") - 1, 0, self.count - 1)
        return self.values[k] + (t - self.t[k])[..., None] * self.slopes[k]


def linear_pieces_on_segment(layers: Sequence[Any], a: ArrayLike, b: ArrayLike) -> SegmentPieces:
    """The pieces of a ReLU network on the segment from a to b, exact up to rounding.

    Parameters
    ----------
    layers : pairs (W, b), W of shape (neurons, inputs); ReLU between the layers, none after the last.
    a, b : the two ends, (features,) each.

    >>> tent = [([[1.0], [1.0]], [0.0, -0.5]), ([[2.0, -4.0]], [0.0])]
    >>> pieces = linear_pieces_on_segment(tent, [0.0], [1.0])
    >>> pieces.t, pieces.slopes.ravel()
    (array([0. , 0.5, 1. ]), array([ 2., -2.]))
    """
    checked = check_layers(layers)
    features = checked[0][0].shape[1]
    start, end = check_one_input(a, features, "a"), check_one_input(b, features, "b")
    if np.array_equal(start, end):
        raise InvalidInput("b", "the same point as a", "another point")
    W, bias = checked[0]
    values, slopes = (W @ start + bias)[None], (W @ (end - start))[None]
    blocks = list(_segment_pieces(checked, 1, np.array([0.0, 1.0]), values, slopes))
    require_memory(16 * sum(block[1].size for block in blocks), "the pieces", "Take a shorter segment.")
    t, values, slopes = (np.concatenate([block[part] for block in blocks]) for part in range(3))
    return SegmentPieces(np.append(t, 1.0), values, slopes)


def _segment_pieces(layers: LayerWeights, depth: int, t: np.ndarray, values: np.ndarray, slopes: np.ndarray):
    """Left ends, values and slopes of the output, block by block in order.

    `values` and `slopes` (intervals, neurons) are the preactivations of layer `depth` at the left ends of the
    intervals of t, and their derivatives.
    """
    if depth == len(layers):
        yield t[:-1], values, slopes
        return
    t, values, slopes = _cut(t, values, slopes)
    W, b = layers[depth]
    most = max(1, _INTERVAL_BLOCK // max(W.shape))
    for first in range(0, len(values), most):
        part = slice(first, first + most)
        ends = t[first : first + most + 1]
        # the sign in the middle of an interval is that of all of it
        open_gate = values[part] + 0.5 * np.diff(ends)[:, None] * slopes[part] > 0.0
        maps = np.where(open_gate[..., None], np.stack([values[part], slopes[part]], axis=2), 0.0)
        following = affine_step(W, b, maps)
        yield from _segment_pieces(layers, depth + 1, ends, following[..., 0], following[..., 1])


def _cut(t: np.ndarray, values: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The intervals cut where a neuron crosses zero inside, with their values and slopes."""
    lengths = np.diff(t)
    ends = values + lengths[:, None] * slopes
    interval, neuron = np.nonzero(((values < 0.0) & (ends > 0.0)) | ((values > 0.0) & (ends < 0.0)))
    step = -values[interval, neuron] / slopes[interval, neuron]
    inside = (step > CLOSEST_KINKS) & (lengths[interval] - step > CLOSEST_KINKS)
    # the left end of every interval among its kinks: none of them is as close to it as kinks may be to each other
    owner = np.concatenate([np.arange(len(lengths)), interval[inside]])
    offset = np.concatenate([np.zeros(len(lengths)), step[inside]])
    order = np.lexsort((offset, owner))
    owner, offset = owner[order], offset[order]
    # a run of kinks each close to the one before collapses to its first
    distinct = np.append(True, (np.diff(owner) > 0) | (np.diff(offset) > CLOSEST_KINKS))
    owner, offset = owner[distinct], offset[distinct]
    cut_t = np.append(t[:-1][owner] + offset, t[-1])
    return cut_t, values[owner] + offset[:, None] * slopes[owner], slopes[owner]


def check_layers(layers: Sequence[Any]) -> LayerWeights:
    """Weights and biases as float64, sizes matched from layer to layer; a bias of None is zero.

    >>> [W.shape for W, b in check_layers([([[1.0, 2.0]], [0.5]), ([[1.0], [3.0]], None)])]
    [(1, 2), (2, 1)]
    """
    expected = "a list of pairs (W, b), W of shape (neurons, inputs) and b of shape (neurons,)"
    if isinstance(layers, str) or not hasattr(layers, "__len__") or len(layers) == 0:
        raise InvalidInput("layers", repr(layers)[:60], expected)
    result: LayerWeights = []
    for number, layer in enumerate(layers, start=1):
        if not isinstance(layer, tuple | list) or len(layer) != 2:
            raise InvalidInput("layers", f"{type(layer).__name__} as layer {number}", expected)
        W = real_array(layer[0], f"W of layer {number}")
        b = np.zeros(len(W)) if layer[1] is None else real_array(layer[1], f"b of layer {number}")
        if W.ndim != 2 or b.shape != W.shape[:1]:
            raise InvalidInput("layers", f"W {W.shape} and b {b.shape} in layer {number}", expected)
        if result and W.shape[1] != len(result[-1][1]):
            below = f"{len(result[-1][1])}, the neurons of the layer below"
            raise InvalidInput("layers", f"{W.shape[1]} inputs of layer {number}", below)
        result.append((W, b))
    return result


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
