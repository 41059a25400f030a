"""Four-point expectations as overlaps of two planes.

Two plane functions overlap only within one degree n. In coordinates turned so that the planes' cross-correlation is
diag(s, t), degree n contributes Σ_i sⁱ tⁿ⁻ⁱ C_{n,i} D_{n,i}, and all degrees past M together at most
Σ_{n>M} sⁿ ‖C_n‖ ‖D_n‖, which tells beforehand how many each quadruple can need.
"""

from __future__ import annotations

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.gaussian.four_point.families import Orders
from widthwise.gaussian.four_point.geometry import PAIRINGS, Geometry
from widthwise.gaussian.four_point.harmonics import harmonics, turn
from widthwise.gaussian.four_point.tables import BLOCK, PlaneTables


def planes_of(tables: PlaneTables, quads: np.ndarray, pairing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the two planes of each quadruple."""
    places = np.array(PAIRINGS)[pairing]
    a, b, c, d = (np.take_along_axis(quads, places[:, [k]], axis=1)[:, 0] for k in range(4))
    return tables.plane[a, b], tables.plane[c, d]


def truncation(tables: PlaneTables, first: np.ndarray, second: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Bound on what is left after 0, 1, 2, … blocks of degrees, relative to the norms (quadruples, blocks + 1)."""
    powers = np.power(s[:, None], np.arange(tables.degrees + 1))
    terms = tables.relative[first] * tables.relative[second] * powers[:, :-1]
    beyond = powers[:, -1] * tables.left[first] * tables.left[second]
    by_block = terms.reshape(len(s), -1, BLOCK).sum(axis=2)
    rest = np.concatenate([np.cumsum(by_block[:, ::-1], axis=1)[:, ::-1], np.zeros((len(s), 1))], axis=1)
    return rest + beyond[:, None]


def norms_of(tables: PlaneTables, placed: tuple[Orders, ...], first, second, pairing) -> np.ndarray:
    """√⟨f²⟩√⟨g²⟩ of the two plane functions of each quadruple and assignment."""
    chosen = _columns(tables.types, placed)[pairing]
    return tables.norm[first[:, None], chosen[:, 0]] * tables.norm[second[:, None], chosen[:, 1]]


def overlaps(
    tables: PlaneTables, placed: tuple[Orders, ...], first, second, place: Geometry, blocks: int, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Values (quadruples, assignments) from at most `blocks` blocks of degrees, and an estimate of what is left.

    For smooth activations blocks of degrees fall off at least geometrically, so what is left is taken as twice the last
    one. They end early once two in a row are below a tenth of the tolerance for all quadruples of the call.
    """
    trig = [_multiples(angle, blocks * BLOCK // 2) for angle in (place.turn_first, place.turn_second)]
    ratio = np.divide(place.second, place.first, out=np.zeros_like(place.second), where=place.first > 0.0)
    columns = _columns(tables.types, placed)
    size = norms_of(tables, placed, first, second, place.pairing)
    total = jnp.zeros((len(first), len(tables.types), len(tables.types)))
    values, change, quiet = np.zeros(size.shape), size, 0
    for number in range(blocks):
        block = tables.blocks[number]
        half = block.cosine.shape[-1]
        angles = [(cos[:, :, :half], sin[:, :, :half]) for cos, sin in trig]
        where = (first, second, place.first, ratio, float(number * BLOCK))
        total = _add_block(total, block.cosine, block.sine, _matrices(number), angles, *where)
        now = np.asarray(_pick(total, place.pairing, columns))
        change, values = np.abs(now - values), now
        quiet = quiet + 1 if np.all(change <= 0.1 * tolerance * size) else 0
        if quiet == 2:
            break
    return values, 2.0 * change


@partial(jax.jit, static_argnums=1)
def _multiples(angle, half: int):
    """cos mθ and sin mθ for even and for odd m: (2 parities, quadruples, half) each."""
    m = 2.0 * jnp.arange(half)[None, :] + jnp.arange(2.0)[:, None]
    argument = m[:, None, :] * angle[None, :, None]
    return jnp.cos(argument), jnp.sin(argument)


@lru_cache(maxsize=64)
def _matrices(number: int):
    """Harmonic matrices of a block, transposed: (degrees, half, half) for cosine and for sine parts."""
    half = (number + 1) * BLOCK // 2
    made = [harmonics(number * BLOCK + k, half) for k in range(BLOCK)]
    return np.stack([h.cosine.T for h in made]), np.stack([h.sine.T for h in made])


@jax.jit
def _add_block(total, cosine, sine, matrices, angles, first, second, s, ratio, start):
    even_powers = jnp.power(ratio[:, None], 2.0 * jnp.arange(cosine.shape[-1]))

    def plane(parts, rows, angles, parity, to_even, to_odd):
        cos, sin = (jnp.where(parity, a[1], a[0])[:, None, :] for a in angles)
        c, d = turn(parts[0][rows], parts[1][rows], cos, sin)
        return c @ to_even, d @ to_odd

    def degree(total, inputs):
        k, c, d, to_even, to_odd = inputs
        parity = (k % 2).astype(bool)
        even_a, odd_a = plane((c, d), first, angles[0], parity, to_even, to_odd)
        even_b, odd_b = plane((c, d), second, angles[1], parity, to_even, to_odd)
        size = jnp.power(s, start + k)[:, None]
        weight = (size * even_powers)[:, None, :]
        total = total + jnp.einsum("qsk,qtk->qst", even_a * weight, even_b)
        return total + jnp.einsum("qsk,qtk->qst", odd_a * (weight * ratio[:, None, None]), odd_b), None

    return jax.lax.scan(degree, total, (jnp.arange(BLOCK), cosine, sine, *matrices))[0]


@lru_cache(maxsize=64)
def _columns(types: tuple[tuple[int, int], ...], placed: tuple[Orders, ...]) -> np.ndarray:
    """For each pairing and assignment, the types on the two planes: (pairings, 2, assignments)."""
    where = {pair: number for number, pair in enumerate(types)}
    return np.array(
        [[[where[o[p[0]], o[p[1]]] for o in placed], [where[o[p[2]], o[p[3]]] for o in placed]] for p in PAIRINGS]
    )


@jax.jit
def _pick(total, pairing, columns):
    chosen = jnp.asarray(columns)[pairing]
    return total[jnp.arange(len(total))[:, None], chosen[:, 0], chosen[:, 1]]
