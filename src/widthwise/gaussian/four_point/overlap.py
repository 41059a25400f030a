"""Four-point expectations as overlaps of two planes.

Two plane functions overlap only within one degree n. In coordinates turned so that the planes' cross-correlation is
diag(s, t), degree n contributes Σ_i sⁱ tⁿ⁻ⁱ C_{n,i} D_{n,i}, and all degrees past M together at most
s^M √(Σ_{n>M} ‖C_n‖²) √(Σ_{n>M} ‖D_n‖²).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.gaussian.four_point.families import Layout, Orders, layout
from widthwise.gaussian.four_point.geometry import Geometry, library
from widthwise.gaussian.four_point.tables import PlaneTables


def bounds(edges: Any, left: Any, first: Any, second: Any, s: Any) -> Any:
    """Bounds (quadruples, edges) on what all degrees from each edge on contribute, relative to norms.

    `left` is that of `PlaneTables`.
    """
    return s[:, None] ** edges * left[first] * left[second]


#: Degrees end where the bound on the others is below this share of the tolerance. Averages over trained networks divide
#: by small eigenvalues of Θ, and what is left out here is enlarged there.
TOLERANCE_SHARE = 0.1


def last_edge(left: Any, tolerance: float) -> tuple[Any, Any]:
    """The first edge at which `bounds` are small enough, the last one if none is; and the bound there, as a column."""
    xp = library(left)
    enough = left[:, 1:] <= TOLERANCE_SHARE * tolerance
    last = xp.where(enough.any(axis=1), xp.argmax(enough, axis=1) + 1, left.shape[1] - 1)
    return last, xp.take_along_axis(left, last[:, None], axis=1)


class Overlaps(NamedTuple):
    """For each quadruple and assignment: the value, what the last block changed, and √⟨f²⟩√⟨g²⟩."""

    values: np.ndarray
    change: np.ndarray
    size: np.ndarray


def overlaps(
    tables: PlaneTables, placed: tuple[Orders, ...], first: np.ndarray, second: np.ndarray, place: Geometry,
    until: np.ndarray, *, compiled: bool,
) -> Overlaps:  # fmt: skip
    """What the degrees of the tables below `until`, a multiple of the block, contribute to each quadruple.

    Up to rounding its value does not depend on which others are computed with it. `compiled` sums are for many lists of
    one length.
    """
    add, array = (_compiled_block, jnp.asarray) if compiled else (add_block, np.asarray)
    where = Where(*map(array, Where.of(first, second, place, until)))
    laid, column = layout(placed, tables.parity)
    size = tables.norm[first][:, list(laid.first)] * tables.norm[second][:, list(laid.second)]
    values = change = array(np.zeros(size.shape))
    for block in tables.blocks:
        if block.start >= until.max():
            break
        values, change = add(laid, values, change, block.given(array), float(block.start), where)
    own = column[place.pairing]
    return Overlaps(*(np.take_along_axis(np.asarray(x), own, axis=1) for x in (values, change, size)))


class Where(NamedTuple):
    """For each quadruple: its two planes, s, t/s, the turns of the planes, and the degree where it ends."""

    first: Any
    second: Any
    s: Any
    ratio: Any
    turn_first: Any
    turn_second: Any
    until: Any

    @classmethod
    def of(cls, first: Any, second: Any, place: Geometry, until: Any) -> Where:
        return cls(first, second, place.first, place.ratio, place.turn_first, place.turn_second, until)


def add_block(laid: Layout, values, change, block, start, where: Where):
    """Add the degrees of a block to the sums over pairs of types (quadruples, pairs); returns them and the change.

    A block is what `Block.given` says. Works on arrays of jax and of numpy.
    """
    xp, (cosine, sine, *matrices) = library(where.ratio), block
    (steps, rows, _, types, half), ratio = cosine.shape, where.ratio[:, None, None]
    even_powers = xp.power(ratio, 2.0 * np.arange(half))
    m = 2.0 * np.arange(half)[None, None, :] + np.arange(2.0)[:, None, None]
    angles = [m * turn[None, :, None] for turn in (where.turn_first, where.turn_second)]  # (parities, quadruples, half)
    trig = [(xp.cos(angle), xp.sin(angle)) for angle in angles]

    def plane(parts, numbers, trig, parity, to_even, to_odd):
        cosine, sine = (part[:, numbers] for part in parts)
        cos, sin = (a[parity][:, :, None] for a in trig)
        turned = cosine * cos - sine * sin, cosine * sin + sine * cos  # u = O(θ)v, given cos mθ and sin mθ
        return (
            (part.reshape(rows, -1, half) @ matrix).reshape(part.shape)
            for part, matrix in zip(turned, (to_even, to_odd), strict=True)
        )

    def degrees(total, inputs):
        step, c, d, to_even, to_odd = inputs
        # a row for each parity, or each degree by itself
        parity = np.arange(2) if rows == 2 else step[None] % 2
        even_a, odd_a = plane((c, d), where.first, trig[0], parity, to_even, to_odd)
        even_b, odd_b = plane((c, d), where.second, trig[1], parity, to_even, to_odd)
        degree = start + rows * step + np.arange(rows)
        weight = xp.power(where.s, degree[:, None])[:, :, None, None] * even_powers
        total = total + (even_a * weight) @ even_b.swapaxes(2, 3)
        return total + (odd_a * (weight * ratio)) @ odd_b.swapaxes(2, 3), None

    summed = xp.zeros((rows, len(values), types, types))
    summed = _scan(degrees, summed, (np.arange(steps), cosine, sine, *matrices))
    # all pairs of types in one product, of which some are read, are quicker than those alone
    more = xp.moveaxis(summed, 0, 1).reshape(len(values), -1)[:, laid.columns]
    wanted = (start < where.until)[:, None]
    return xp.where(wanted, values + more, values), xp.where(wanted, abs(more), change)


def _scan(step, state, inputs):
    """`jax.lax.scan` without results along the way; for arrays of numpy the same one after the other."""
    if isinstance(state, jax.Array):
        return jax.lax.scan(step, state, inputs)[0]
    for some in zip(*inputs, strict=True):
        state, _ = step(state, some)
    return state


_compiled_block = partial(jax.jit, static_argnums=0)(add_block)
