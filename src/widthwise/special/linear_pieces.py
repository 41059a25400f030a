"""The linear pieces of a ReLU network: along a line segment exactly, how many it can have, and a random one has.

Along a segment (theory §10) everything is affine in the position t between two breakpoints, so the kinks that a layer
adds are the zeros of affine functions. Breakpoints are carried through the layers, all intervals and neurons at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widthwise.activations.closed_forms import homogeneous
from widthwise.errors import InvalidInput
from widthwise.gaussian.kernel_rules import dense_kernel
from widthwise.memory import require_layers, require_memory
from widthwise.network import MLP, check_integer, check_one_input, check_real, check_widths, plain, real_array

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
        tolerance = check_real("tolerance", tolerance, "a number from 0 to 1", largest=1.0)
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

    Examples
    --------
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
    if not isinstance(layers, Sequence) or isinstance(layers, str) or len(layers) == 0:
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


#: In all terms of a sum of binomial coefficients: some seconds.
_MOST_BITS = 1e11


def hyperplane_regions(hyperplanes: int, dimension: int) -> int:
    """Σ_{i ≤ d} (n choose i): regions of n hyperplanes in R^d, reached in general position, never exceeded.

    >>> hyperplane_regions(3, 2), hyperplane_regions(3, 5)
    (7, 8)
    """
    hyperplanes = check_integer("hyperplanes", hyperplanes, 0)
    dimension = check_integer("dimension", dimension, 0)
    remedy = "Take fewer, or the logarithm: at most hyperplanes times log 2, and dimension times log hyperplanes."
    if dimension >= hyperplanes:
        require_memory(hyperplanes // 8, f"the count of regions of {hyperplanes:.3g} hyperplanes", remedy)
        return 2**hyperplanes
    if dimension**2 * math.log2(hyperplanes) > _MOST_BITS:  # of all terms of the sum
        raise InvalidInput("dimension", f"{dimension:.3g}", f"a count of {hyperplanes:.3g} hyperplanes in less", remedy)
    regions = term = 1
    for i in range(dimension):
        term = term * (hyperplanes - i) // (i + 1)
        regions += term
    return regions


def region_bound(widths: Sequence[int], dimension: int | None = None) -> int:
    """Π_l Σ_{i ≤ d_l} (n_l choose i): no network has more pieces; d_l is the least of d and the widths below layer l.

    It is at most 2 to the number of neurons, and so below the 3^neurons of all sign patterns.

    Parameters
    ----------
    widths : n_0, hidden widths, outputs.
    dimension : of the set where pieces are counted, 1 for a segment and 2 for a polygon; that of the inputs if None.

    Examples
    --------
    >>> region_bound([2, 3, 3, 1]), region_bound([2, 3, 3, 1], dimension=1)
    (49, 16)
    """
    sizes = check_widths(widths)
    narrowest = sizes[0] if dimension is None else min(sizes[0], check_integer("dimension", dimension, 1))
    bound = 1
    for below, width in itertools.pairwise(sizes[:-1]):
        narrowest = min(narrowest, below)
        bound *= hyperplane_regions(width, narrowest)
    return bound


def expected_kinks(net: MLP, a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """Expected kinks (hidden layers,) that each layer of a random ReLU network adds on the segment from a to b.

    On a straight line the preactivation of a neuron has E z² = K(t), quadratic in t, so that the formula of Kac and
    Rice integrates to an angle: a neuron of layer l has arccos(B_ab/√(B_aa B_bb))/π zeros on average, with
    B¹ = C_b + C_W a·b/n_0 and Bˡ⁺¹ = C_b + C_W (a₊² + a₋²)/2 Bˡ. Exact in the first layer, to leading order in 1/n
    above it. So the count is proportional to the number of neurons, at most one kink each on average, and the expected
    number of pieces is one more than its sum.

    Parameters
    ----------
    net : relu, or another activation with one kink at zero (leaky_relu).
    a, b : the two ends, (features,) each.

    Examples
    --------
    >>> expected_kinks(MLP([1, 50, 50, 1], "relu", C_b=1.0, C_W=2.0), [-0.5 ** 0.5], [0.5 ** 0.5]).round(3)
    array([25.   , 19.591])
    """
    net = plain(net, "expected kinks")
    slopes = homogeneous(net.activation.closed)
    if slopes is None or slopes[2] != 1 or slopes[0] == slopes[1]:
        raise InvalidInput("net", f"activation {net.activation.name}", "relu or leaky_relu")
    points = np.stack([check_one_input(a, net.widths[0], "a"), check_one_input(b, net.widths[0], "b")])
    share = 0.5 * (slopes[0] ** 2 + slopes[1] ** 2)
    B, result = dense_kernel(net.C_b[0], net.C_W[0], points @ points.T / net.widths[0]), []
    for layer in range(1, net.depth):
        size = math.sqrt(B[0, 0] * B[1, 1])
        angle = math.acos(min(1.0, max(-1.0, B[0, 1] / size))) if size > 0.0 else 0.0
        result.append(net.widths[layer] * angle / math.pi)
        B = dense_kernel(net.C_b[layer], net.C_W[layer], share * B)
    return np.array(result)


def sawtooth_network(depth: int) -> LayerWeights:
    """A network of `depth` hidden layers of two neurons, one input and one output, with 2^depth pieces on [0, 1].

    Each layer is the tent 2 relu(x) − 4 relu(x − ½), and a tent of tents has twice as many teeth (theory §10).

    >>> linear_pieces_on_segment(sawtooth_network(3), [0.0], [1.0])([0.0, 0.125, 0.25, 0.375]).ravel()
    array([0., 1., 0., 1.])
    """
    depth = check_integer("depth", depth, 1)
    require_layers(depth)
    shift = np.array([0.0, -0.5])
    first = (np.array([[1.0], [1.0]]), shift)
    between = (np.array([[2.0, -4.0], [2.0, -4.0]]), shift)
    return [first, *[between] * (depth - 1), (np.array([[2.0, -4.0]]), np.zeros(1))]
