"""Four-point expectations as overlaps of two planes.

Two plane functions overlap only within one degree n. In coordinates turned so that the planes' cross-correlation is
diag(s, t), degree n contributes Σ_i sⁱ tⁿ⁻ⁱ C_{n,i} D_{n,i}, and all degrees past M together at most
s^M √(Σ_{n>M} ‖C_n‖²) √(Σ_{n>M} ‖D_n‖²).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.gaussian.four_point.families import Orders
from widthwise.gaussian.four_point.geometry import PAIRINGS, Geometry
from widthwise.gaussian.four_point.harmonics import harmonics, turn
from widthwise.gaussian.four_point.tables import BLOCK, PlaneTables, half_size


def planes_of(plane: np.ndarray, quads: np.ndarray, pairing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two planes of each quadruple, by their numbers plane[a, b]."""
    places = np.array(PAIRINGS)[pairing]
    a, b, c, d = (np.take_along_axis(quads, places[:, [k]], axis=1)[:, 0] for k in range(4))
    return plane[a, b], plane[c, d]


def truncation(tables: PlaneTables, first: np.ndarray, second: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Bound on what all degrees of the tables leave out, relative to the norms."""
    return np.power(s, tables.degrees) * tables.left[first] * tables.left[second]


class Overlaps(NamedTuple):
    """For each quadruple and assignment: the value, an estimate of what is left out, and √⟨f²⟩√⟨g²⟩."""

    values: np.ndarray
    left: np.ndarray
    size: np.ndarray


def overlaps(
    tables: PlaneTables, placed: tuple[Orders, ...], first, second, place: Geometry, tolerance: float
) -> Overlaps:
    """What the degrees of the tables contribute to each quadruple.

    For smooth activations blocks of degrees fall off at least geometrically, so what is left is taken as twice the last
    one. For each quadruple they end once two in a row are below a tenth of the tolerance: its value does not depend on
    which others are computed with it.
    """
    ratio = np.divide(place.second, place.first, out=np.zeros_like(place.second), where=place.first > 0.0)
    where = [jnp.asarray(x) for x in (first, second, place.first, ratio, place.turn_first, place.turn_second)]
    chosen = jnp.asarray(_columns(tables.types, placed)[place.pairing])
    size = _sizes(jnp.asarray(tables.norm), where[0], where[1], chosen)
    total = jnp.zeros((len(first), len(tables.types), len(tables.types)))
    values, change, quiet = jnp.zeros(size.shape), size, jnp.zeros(len(first), int)
    for block in tables.blocks:
        given = (block.cosine, block.sine, _matrices(block.start), float(block.start))
        so_far = (total, values, change, quiet)
        total, values, change, quiet = _add_block(*so_far, size, 0.1 * tolerance, chosen, *given, *where)
        if int(quiet.min()) == 2:
            break
    return Overlaps(np.asarray(values), 2.0 * np.asarray(change), np.asarray(size))


@jax.jit
def _sizes(norm, first, second, chosen):
    return norm[first[:, None], chosen[:, 0]] * norm[second[:, None], chosen[:, 1]]


@lru_cache(maxsize=64)
def _matrices(start: int):
    """Harmonic matrices of a block, transposed: (degrees, half, half) for cosine and for sine parts."""
    half = half_size(start)
    made = [harmonics(start + k, half) for k in range(BLOCK)]
    return np.stack([h.cosine.T for h in made]), np.stack([h.sine.T for h in made])


@jax.jit
def _add_block(
    total, values, change, quiet, size, small, chosen, cosine, sine, matrices, start, first, second, s, ratio,
    turn_first, turn_second,
):  # fmt: skip
    """Add the degrees of a block to the sums over pairs of types (quadruples, types, types).

    Returns them, the wanted ones, how these have changed, and in how many blocks in a row, up to two, by no more than
    `small` relative to the sizes. After two they stay as they are.
    """
    half = cosine.shape[-1]
    even_powers = jnp.power(ratio[:, None], 2.0 * jnp.arange(half))
    m = 2.0 * jnp.arange(half)[None, None, :] + jnp.arange(2.0)[:, None, None]
    angles = [m * turn[None, :, None] for turn in (turn_first, turn_second)]  # (parities, quadruples, half)
    trig = [(jnp.cos(angle), jnp.sin(angle)) for angle in angles]

    def plane(parts, rows, trig, parity, to_even, to_odd):
        cos, sin = (jnp.where(parity, a[1], a[0])[:, None, :] for a in trig)
        c, d = turn(parts[0][rows], parts[1][rows], cos, sin)
        return c @ to_even, d @ to_odd

    def degree(total, inputs):
        k, c, d, to_even, to_odd = inputs
        parity = (k % 2).astype(bool)
        even_a, odd_a = plane((c, d), first, trig[0], parity, to_even, to_odd)
        even_b, odd_b = plane((c, d), second, trig[1], parity, to_even, to_odd)
        weight = (jnp.power(s, start + k)[:, None] * even_powers)[:, None, :]
        total = total + jnp.einsum("qsk,qtk->qst", even_a * weight, even_b)
        return total + jnp.einsum("qsk,qtk->qst", odd_a * (weight * ratio[:, None, None]), odd_b), None

    total = jax.lax.scan(degree, total, (jnp.arange(BLOCK), cosine, sine, *matrices))[0]
    now = total[jnp.arange(len(total))[:, None], chosen[:, 0], chosen[:, 1]]
    done = (quiet == 2)[:, None]
    now = jnp.where(done, values, now)
    change = jnp.where(done, change, jnp.abs(now - values))
    still = jnp.all(change <= small * size, axis=1)
    return total, now, change, jnp.where(still, jnp.minimum(quiet + 1, 2), 0)


@lru_cache(maxsize=64)
def _columns(types: tuple[tuple[int, int], ...], placed: tuple[Orders, ...]) -> np.ndarray:
    """For each pairing and assignment, the types on the two planes: (pairings, 2, assignments)."""
    where = {pair: number for number, pair in enumerate(types)}
    return np.array(
        [[[where[o[p[0]], o[p[1]]] for o in placed], [where[o[p[2]], o[p[3]]] for o in placed]] for p in PAIRINGS]
    )
