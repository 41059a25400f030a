"""How many linear pieces a ReLU network can have, and how many a random one has (theory §10)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from widthwise.activations.closed_forms import homogeneous
from widthwise.errors import InvalidInput
from widthwise.gaussian.kernel_rules import dense_kernel
from widthwise.network import MLP
from widthwise.network.inputs import check_one_input
from widthwise.network.validation import check_integer, check_widths
from widthwise.special.segment_pieces import LayerWeights


def hyperplane_regions(hyperplanes: int, dimension: int) -> int:
    """Σ_{i ≤ d} (n choose i): regions of n hyperplanes in R^d, reached in general position, never exceeded.

    >>> hyperplane_regions(3, 2), hyperplane_regions(3, 5)
    (7, 8)
    """
    hyperplanes = check_integer("hyperplanes", hyperplanes, 0)
    dimension = check_integer("dimension", dimension, 0)
    return sum(math.comb(hyperplanes, i) for i in range(dimension + 1))


def region_bound(widths: Sequence[int], dimension: int | None = None) -> int:
    """Π_l Σ_{i ≤ d_l} (n_l choose i): no network has more pieces; d_l is the least of d and the widths below layer l.

    It is at most 2 to the number of neurons, and so below the 3^neurons of all sign patterns.

    Parameters
    ----------
    widths : n_0, hidden widths, outputs.
    dimension : of the set where pieces are counted, 1 for a segment and 2 for a polygon; that of the inputs if None.

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

    >>> expected_kinks(MLP([1, 50, 50, 1], "relu", C_b=1.0, C_W=2.0), [-0.5 ** 0.5], [0.5 ** 0.5]).round(3)
    array([25.   , 19.591])
    """
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

    >>> from widthwise.special import linear_pieces_on_segment
    >>> linear_pieces_on_segment(sawtooth_network(3), [0.0], [1.0])([0.0, 0.125, 0.25, 0.375]).ravel()
    array([0., 1., 0., 1.])
    """
    if depth < 1:
        raise InvalidInput("depth", repr(depth), "an integer of at least 1")
    shift = np.array([0.0, -0.5])
    first = (np.array([[1.0], [1.0]]), shift)
    between = (np.array([[2.0, -4.0], [2.0, -4.0]]), shift)
    return [first, *[between] * (depth - 1), (np.array([[2.0, -4.0]]), np.zeros(1))]
