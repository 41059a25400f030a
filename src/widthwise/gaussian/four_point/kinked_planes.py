"""Plane coefficients and moments of kinked activations: panels that break at every kink and at its image.

Slow (one plane at a time) and exact up to the degree asked for; how fast the degrees converge is the kink's own affair.
"""

from __future__ import annotations

import numpy as np

from widthwise.activations import Activation, evaluate, intervals
from widthwise.gaussian.four_point.families import Orders
from widthwise.gaussian.four_point.smooth_planes import PlaneMoments
from widthwise.gaussian.polynomials import basis
from widthwise.gaussian.quadrature import REACH, Source, panel_nodes, row_edges


def kinked_moments(
    activation: Activation, types, placed: tuple[Orders, ...], degrees: int, scale_a, slope, spread
) -> PlaneMoments:
    """As `smooth_moments`; orders must be those for which σ^(order) is a function."""
    planes = [
        _one_plane(activation, types, placed, degrees, *(np.array([x]) for x in plane))
        for plane in zip(scale_a, slope, spread, strict=True)
    ]
    return PlaneMoments(*(np.stack(column) for column in zip(*planes, strict=True)))


def _one_plane(activation: Activation, types, placed, degrees: int, scale_a, slope, spread):
    needed = sorted({order for pair in types for order in pair})
    reach = REACH * float(max(scale_a[0], np.abs(slope[0]) + spread[0]))
    edges_z = intervals(activation, tuple(needed), reach)
    fixed = np.linspace(-REACH, REACH, 13)  # sixteen nodes on each resolve degrees up to about 64
    zero = np.zeros(1)
    u, weight = (x[0] for x in panel_nodes(_outer(activation, edges_z, zero, scale_a, slope, spread, fixed)))
    at_a = {order: evaluate(activation, order, scale_a[0] * u) for order in needed}
    rows = [Source(edges_z, slope[0] * u, np.full(len(u), spread[0]))]
    v, inner = panel_nodes(row_edges(rows, fixed))
    z = slope[0] * u[:, None] + spread[0] * v
    at_b = {order: evaluate(activation, order, z) for order in needed}
    polynomials = basis(v, degrees) * inner
    given = {order: np.einsum("juv,uv->ju", polynomials, g, optimize=True) for order, g in at_b.items()}
    weighted = basis(u, degrees) * weight
    coefficients = np.stack([(weighted * at_a[p]) @ given[q].T for p, q in types])
    norm = np.array([np.sum(weight * at_a[p] ** 2 * np.sum(inner * at_b[q] ** 2, axis=1)) for p, q in types])
    two = np.array([[_moment(orders, count, at_a, at_b, weight, inner) for orders in placed] for count in (3, 2, 1)])
    one = np.array([np.sum(weight * _product(at_a, orders)) for orders in placed])
    return coefficients, norm, two, one


def _outer(activation: Activation, edges_z, zero, scale_a, slope, spread, fixed) -> np.ndarray:
    """Edges in u_1: those of σ(z_a), the image of those of σ(z_b), and panels closing in on the image of its kinks."""
    steep = np.where(slope == 0.0, 1.0, slope)
    edges = row_edges([Source(edges_z, zero, scale_a), Source(edges_z, zero, steep)], fixed)
    blur = max(float(spread[0] / np.abs(steep[0])), 1e-12)
    steps = blur * 2.0 ** np.arange(0, max(1, int(np.ceil(np.log2(8.0 / min(blur, 4.0)))) + 1))
    near = [kink / steep[0] + np.concatenate([-steps, steps]) for kink in activation.kinks]
    return np.sort(np.clip(np.concatenate([edges[0], *near]), -REACH, REACH))[None]


def _product(values: dict[int, np.ndarray], orders: tuple[int, ...]) -> np.ndarray:
    result = values[orders[0]]
    for order in orders[1:]:
        result = result * values[order]
    return result


def _moment(orders, count: int, at_a, at_b, weight, inner) -> float:
    """The first `count` orders at a, the rest at b."""
    given = np.sum(inner * _product(at_b, orders[count:]), axis=1)
    return float(np.sum(weight * _product(at_a, orders[:count]) * given))
