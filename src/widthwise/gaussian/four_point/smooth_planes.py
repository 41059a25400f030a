"""Plane coefficients and moments of smooth activations, on a tensor grid of the trapezoidal rule."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.gaussian.four_point.families import Orders
from widthwise.gaussian.four_point.grids import Grid

_NUMBERS_AT_ONCE = 1 << 23


class PlaneMoments(NamedTuple):
    """For each plane: coefficients (types, degree in u_1, degree in u_2), ⟨f²⟩ (types), and the moments of

    (a,a,a,b), (a,a,b,b), (a,b,b,b) for each assignment (3, assignments) and of (a,a,a,a) (assignments).
    """

    coefficients: np.ndarray
    norm: np.ndarray
    two: np.ndarray
    one: np.ndarray


def smooth_moments(
    activation: Activation, types, placed: tuple[Orders, ...], degrees: int, grid: Grid, scale_a, slope, spread
) -> PlaneMoments:
    """z_a = scale_a u_1, z_b = slope u_1 + spread u_2, one plane an entry, a few planes at a time."""
    pieces = []
    step = max(1, _NUMBERS_AT_ONCE // (len(grid.u) ** 2 * 4 + len(types) * degrees**2))
    step = min(step, len(scale_a))
    for start in range(0, len(scale_a), step):
        some = [x[start : start + step] for x in (scale_a, slope, spread)]
        padded = [np.pad(x, (0, step - len(x)), mode="edge") for x in some]
        result = _chunk(_functions(activation), types, placed, degrees, grid.u, grid.weight, *padded)
        pieces.append([np.asarray(r)[: len(some[0])] for r in result])
    return PlaneMoments(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


@lru_cache(maxsize=64)
def _functions(activation: Activation):
    return tuple(activation.derivative(order) for order in range(4))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _chunk(functions, types, placed, degrees, u, weight, scale_a, slope, spread):
    needed = sorted({order for pair in types for order in pair})
    place = {order: k for k, order in enumerate(needed)}
    p, q = (np.array([place[pair[k]] for pair in types]) for k in (0, 1))
    weighted = _basis(u, degrees) * weight
    z = slope[:, None, None] * u[:, None] + spread[:, None, None] * u
    at_a = jnp.stack([functions[order](scale_a[:, None] * u) for order in needed])
    at_b = jnp.stack([functions[order](z) for order in needed])
    given = at_b @ weighted.T  # ⟨σ^(q)(z_b) he_j(u_2) | u_1⟩
    coefficients = (at_a[p][:, :, None, :] * weighted) @ given[q]
    norm = (at_a[p] ** 2 * ((at_b * at_b) @ weight)[q]) @ weight
    moved = np.array([[place[order] for order in orders] for orders in placed])
    two = jnp.stack([_two_inputs(moved, count, at_a, at_b, weight) for count in (3, 2, 1)])
    one = jnp.prod(at_a[moved], axis=1) @ weight
    return jnp.swapaxes(coefficients, 0, 1), norm.T, jnp.moveaxis(two, 2, 0), one.T


def _two_inputs(moved: np.ndarray, count: int, at_a, at_b, weight):
    """Moments (assignments, planes) with the first `count` orders at a and the rest at b."""
    rest, which = np.unique(np.sort(moved[:, count:], axis=1), axis=0, return_inverse=True)
    inner = jax.lax.map(lambda orders: jnp.prod(at_b[orders], axis=0) @ weight, jnp.asarray(rest))
    return (jnp.prod(at_a[moved[:, :count]], axis=1) * inner[which.ravel()]) @ weight


def _basis(u, terms: int):
    """he_0 … he_{terms−1} at the points u, on a new first axis."""

    def step(pair, k):
        below, here = pair
        above = (u * here - jnp.sqrt(k) * below) / jnp.sqrt(k + 1.0)
        return (here, above), here

    _, rows = jax.lax.scan(step, (jnp.zeros_like(u), jnp.ones_like(u)), jnp.arange(terms, dtype=u.dtype))
    return rows
