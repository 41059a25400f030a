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
from widthwise.network.inputs import check_one_input
from widthwise.special.relu_layers import Layers, affine_step, check_layers

#: Breakpoints closer than this, in units of the segment, are one.
CLOSEST = 1e-13
#: Numbers in the largest array of one block of intervals.
_BLOCK = 1 << 22


@dataclass(frozen=True)
class SegmentPieces:
    """Pieces of z(a + t(b − a)), 0 ≤ t ≤ 1: each has one activation pattern, so that z is affine in it.

    `t` (pieces + 1,) are the breakpoints, `values` (pieces, outputs) z at the left end of each piece, and `slopes`
    (pieces, outputs) dz/dt.
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

    Returns
    -------
    A SegmentPieces: `count`, breakpoints `t`, `slopes`; call it with positions to evaluate the network.

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
    blocks = list(_pieces(checked, 1, np.array([0.0, 1.0]), (W @ start + bias)[None], (W @ (end - start))[None]))
    require_memory(16 * sum(block[1].size for block in blocks), "the pieces", "Take a shorter segment.")
    t, values, slopes = (np.concatenate([block[part] for block in blocks]) for part in range(3))
    return SegmentPieces(np.append(t, 1.0), values, slopes)


def _pieces(layers: Layers, depth: int, t: np.ndarray, values: np.ndarray, slopes: np.ndarray):
    """Left ends, values and slopes of the output, block by block in order.

    `values` and `slopes` (intervals, neurons) are the preactivations of layer `depth` at the left ends of the
    intervals of t, and their derivatives.
    """
    if depth == len(layers):
        yield t[:-1], values, slopes
        return
    t, values, slopes = _cut(t, values, slopes)
    W, b = layers[depth]
    most = max(1, _BLOCK // max(W.shape))
    for first in range(0, len(values), most):
        part = slice(first, first + most)
        ends = t[first : first + most + 1]
        # the sign in the middle of an interval is that of all of it
        open_gate = values[part] + 0.5 * np.diff(ends)[:, None] * slopes[part] > 0.0
        maps = np.where(open_gate[..., None], np.stack([values[part], slopes[part]], axis=2), 0.0)
        following = affine_step(W, b, maps)
        yield from _pieces(layers, depth + 1, ends, following[..., 0], following[..., 1])


def _cut(t: np.ndarray, values: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The intervals cut where a neuron crosses zero inside, with their values and slopes."""
    lengths = np.diff(t)
    ends = values + lengths[:, None] * slopes
    interval, neuron = np.nonzero(((values < 0.0) & (ends > 0.0)) | ((values > 0.0) & (ends < 0.0)))
    step = -values[interval, neuron] / slopes[interval, neuron]
    inside = (step > CLOSEST) & (lengths[interval] - step > CLOSEST)
    interval, step = interval[inside], step[inside]
    order = np.lexsort((step, interval))
    interval, step = interval[order], step[order]
    distinct = np.ones(len(step), bool)
    if len(step):
        # a run of kinks each close to the one before collapses to its first
        distinct[1:] = (np.diff(interval) > 0) | (np.diff(step) > CLOSEST)
    interval, step = interval[distinct], step[distinct]
    owner = np.concatenate([np.arange(len(lengths)), interval])
    offset = np.concatenate([np.zeros(len(lengths)), step])
    order = np.lexsort((offset, owner))
    owner, offset = owner[order], offset[order]
    cut_t = np.append(t[:-1][owner] + offset, t[-1])
    return cut_t, values[owner] + offset[:, None] * slopes[owner], slopes[owner]
