"""Hermite coefficients of σ^(p)(z_a) σ^(q)(z_b) in the plane of two inputs, for all pairs and orders at once.

In the plane, z_a = √K_aa u_1 and z_b = √K_bb (ρu_1 + √(1−ρ²) u_2) with independent standard normal u_1, u_2, and
    σ^(p)(z_a) σ^(q)(z_b) = Σ_n Σ_i C_{n,i} he_i(u_1) he_{n−i}(u_2).
Coefficients of one degree are kept in the basis of angular harmonics, where turning the plane is cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, evaluate
from widthwise.devices import by_device, library
from widthwise.gaussian.four_points.families import Orders, pair_types, type_rows
from widthwise.gaussian.four_points.geometry import DEGREE_BLOCK, harmonic_matrices, harmonic_parts
from widthwise.gaussian.four_points.plane_moments import (
    PlaneMoments,
    PlaneSeriesData,
    kinked_moments,
    series_left,
    singles,
    smooth_moments,
)
from widthwise.gaussian.quadrature import smooth_grid

#: Coefficients of planes that are worked on at a time, on a processor and with an accelerator.
COEFFICIENTS_AT_ONCE = {"cpu": 1 << 22, "gpu": 1 << 26}
#: How much more room than needed tables get when they outgrow theirs: on an accelerator each room is compiled for.
ROOM_GROWTH = {"cpu": 1, "gpu": 2}
#: Terms of the single-input series that are tried in turn.
SINGLE_TERMS = (96, 192, 384, 768)
#: Moments of planes (first, second) with correlations rho.
MomentsOfPlanes = Callable[[np.ndarray, np.ndarray, np.ndarray], PlaneMoments]


@dataclass(frozen=True)
class Block:
    """Harmonic parts (steps, rows, planes, types, half) of eight degrees, from `start` on; rows as in `type_rows`.

    Each step takes the next degree, or with two rows the next two.
    """

    start: int
    cosine: jax.Array
    sine: jax.Array

    def given(self, array: Callable[[Any], Any]) -> tuple[Any, ...]:
        """The parts, and the matrices (steps, rows, half, half) that bring them back to Hermite polynomials."""
        steps, rows, *_ = self.cosine.shape
        matrices = harmonic_matrices(self.start)[2].swapaxes(-1, -2)
        return array(self.cosine), array(self.sine), *matrices.reshape(2, steps, rows, *matrices.shape[2:])


@dataclass(frozen=True)
class PlaneTables:
    """Everything that pairs of inputs say about quadruples.

    `plane[a, b]` numbers the planes a ≤ b; blocks and norms have room for some more. `norm[plane, type]` is
    √⟨(σ^(p)_a σ^(q)_b)²⟩, `left[plane, edge]` the largest share of any type's norm that is left out by the degrees
    below an edge: each block begins at one, and the last one is past all blocks.
    `two[plane, k, assignment]` are the moments of the sorted quadruples (a,a,a,b), (a,a,b,b), (a,b,b,b) and
    `one[a, assignment]` those of (a,a,a,a).
    """

    parity: bool
    degrees: int
    plane: np.ndarray
    blocks: list[Block]
    norm: np.ndarray
    left: np.ndarray
    two: np.ndarray
    one: np.ndarray

    @property
    def edges(self) -> np.ndarray:
        return np.array([*(block.start for block in self.blocks), self.degrees])


def resolved(activation: Activation, K: np.ndarray, accuracy: float) -> tuple[bool, bool]:
    """Whether the series of smooth activations is there for a kernel (inputs, inputs), and whether σ has a parity.

    It has if it is odd or even, up to rounding, wherever the inputs reach.
    """
    grid = smooth_grid(activation, float(np.diag(K).max()), SINGLE_TERMS[0], accuracy)
    if grid is None:
        return False, False
    z = np.sqrt(np.diag(K))[:, None] * grid.u
    values, mirrored = (evaluate(activation, 0, sign * z) for sign in (1.0, -1.0))
    least = 16 * np.finfo(float).eps * np.abs(values).max()
    return True, bool(min(np.abs(values + mirrored).max(), np.abs(values - mirrored).max()) <= least)


def plane_tables(
    activation: Activation,
    K: np.ndarray,
    placed: tuple[Orders, ...],
    degrees: int,
    accuracy: float | None,
    start: int = 0,
    only: np.ndarray | None = None,
    parity: bool = False,
) -> PlaneTables:
    """Tables from degree `start` to below `degrees`, multiples of the block; `parity` says that σ has one.

    With an `accuracy` they come from single-input series, without one from quadrature in panels, plane by plane. `only`
    marks the planes (inputs, inputs) that are wanted; all of them by default.
    """
    inputs, types = len(K), pair_types(placed)
    scale = np.sqrt(np.diag(K))
    first, second = np.nonzero(np.triu(np.ones((inputs, inputs), bool) if only is None else only | only.T))
    plane = np.full((inputs, inputs), -1, np.int32)
    plane[first, second] = plane[second, first] = np.arange(len(first))
    rho = np.where(first == second, 1.0, K[first, second] / np.maximum(scale[first] * scale[second], 1e-300))
    moments_of = _moments_of(activation, types, placed, degrees, scale, first, second, rho, accuracy)
    room, starts = _plane_room(len(first)), range(start, degrees, DEGREE_BLOCK)
    parts: list[list[Any]] = [[] for _ in starts]
    moments = []
    step = max(1, by_device(COEFFICIENTS_AT_ONCE) // (len(types) * degrees**2))
    for begin in range(0, len(first), step):
        piece = slice(begin, begin + step)
        found = moments_of(first[piece], second[piece], rho[piece])
        for made, degree in zip(parts, starts, strict=True):
            made.append(harmonic_parts(found.coefficients, degree, type_rows(placed, parity)))
        moments.append(_sizes(found, start, degrees))
    norm, left, two, one = (np.concatenate(column) for column in zip(*moments, strict=True))
    norm = np.pad(norm, ((0, room - len(norm)), (0, 0)), constant_values=1.0)
    blocks = [Block(degree, *_with_room(parts.pop(0), room)) for degree in starts]
    return PlaneTables(parity, degrees, plane, blocks, norm, left, two, one[first == second])


def _with_room(parts: list[Any], room: int) -> tuple[jax.Array, jax.Array]:
    """Parts (2, steps, rows, planes, types, half) of several pieces together, with zeros up to the room for planes."""
    used = sum(part.shape[3] for part in parts)
    xp = library(parts[0])
    empty = xp.zeros((*parts[0].shape[:3], room - used, *parts[0].shape[4:]))
    together = xp.concatenate([*parts, empty], axis=3)
    return jnp.asarray(together[0]), jnp.asarray(together[1])


def _plane_room(planes: int) -> int:
    """Planes that tables have room for; few sizes, so that few are compiled."""
    room = 32
    while room < min(planes, 512):
        room *= 2
    return room if planes <= room else 512 * -(-planes // 512)


def joined(one: PlaneTables, other: PlaneTables) -> PlaneTables:
    """Tables of the planes of both, which share none, for the same degrees."""
    used, more, room = len(one.left), len(other.left), len(one.norm)
    if used + len(other.norm) > room:
        room = _plane_room(by_device(ROOM_GROWTH) * (used + len(other.norm)))
    blocks = [
        Block(a.start, *(_placed(getattr(a, part), getattr(b, part), used, room) for part in ("cosine", "sine")))
        for a, b in zip(one.blocks, other.blocks, strict=True)
    ]
    plane = np.where(other.plane >= 0, other.plane + used, one.plane)
    left, two = (np.concatenate([getattr(x, part) for x in (one, other)]) for part in ("left", "two"))
    norm = np.concatenate([one.norm[:used], other.norm[:more], np.ones((room - used - more, one.norm.shape[1]))])
    return PlaneTables(one.parity, one.degrees, plane, blocks, norm, left, two, np.concatenate([one.one, other.one]))


@partial(jax.jit, static_argnums=3)
def _placed(one: Any, other: Any, used: Any, room: int) -> Any:
    """The second part (steps, rows, planes, types, half) put after the planes of the first that are used."""
    larger = jnp.pad(one, ((0, 0), (0, 0), (0, room - one.shape[2]), (0, 0), (0, 0)))
    return jax.lax.dynamic_update_slice_in_dim(larger, other, used, axis=2)


def _moments_of(
    activation, types, placed, degrees: int, scale, first, second, rho, accuracy: float | None
) -> MomentsOfPlanes:
    """As many terms as the planes need; the few that no number of terms reaches go through panels."""
    one, poor = None, np.ones(len(first), bool)
    by_panels = partial(kinked_moments, activation, types, placed, degrees, scale)
    if accuracy is None:
        return by_panels
    # terms past the last degree count too: with as many as degrees the highest ones were 10⁻⁶ off
    for terms in (t for t in SINGLE_TERMS if 2 * t >= 3 * degrees):
        grid = smooth_grid(activation, float(scale.max()) ** 2, terms, accuracy)
        if grid is None:
            break
        one = singles(activation, scale, types, placed, terms, grid)
        poor = series_left(one, placed, rho, first, second) > accuracy
        if not poor.any():
            break
    if one is None or poor.all():
        return by_panels
    by_terms = partial(smooth_moments, one, PlaneSeriesData.of(one, degrees), types, placed, degrees)

    def moments(first, second, rho) -> PlaneMoments:
        found, poor = by_terms(first, second, rho), series_left(one, placed, rho, first, second) > accuracy
        if poor.any():
            found = found._replace(coefficients=np.array(found.coefficients))
            for whole, part in zip(found, by_panels(first[poor], second[poor], rho[poor]), strict=True):
                whole[poor] = part
        return found

    return moments


def _sizes(found: PlaneMoments, start: int, degrees: int) -> tuple[np.ndarray, ...]:
    """√⟨f²⟩, the largest share of it that degrees below each edge leave out, and the moments of one and two inputs."""
    norm = np.maximum(found.norm, 1e-300)
    edges = np.arange(start, degrees + 1, DEGREE_BLOCK)
    degree = np.add.outer(np.arange(degrees), np.arange(degrees))
    number = np.searchsorted(edges, degree, side="right")
    inside = (number[..., None] <= np.arange(len(edges))).astype(float)
    squares = (found.coefficients**2).reshape(*norm.shape, -1) @ inside.reshape(degrees**2, -1)
    share = np.asarray(squares) / norm[..., None]  # (planes, types, edges)
    left = np.sqrt(np.maximum(1.0 - share.min(axis=1), 64 * np.finfo(float).eps))
    return np.sqrt(norm), left, found.two, found.one
