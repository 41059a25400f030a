"""Hermite coefficients of σ^(p)(z_a) σ^(q)(z_b) in the plane of two inputs, for all pairs and orders at once.

In the plane, z_a = √K_aa u_1 and z_b = √K_bb (ρu_1 + √(1−ρ²) u_2) with independent standard normal u_1, u_2, and
    σ^(p)(z_a) σ^(q)(z_b) = Σ_n Σ_i C_{n,i} he_i(u_1) he_{n−i}(u_2).
Coefficients of one degree are kept in the basis of angular harmonics, where turning the plane is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.gaussian.four_point.families import Orders, pair_types
from widthwise.gaussian.four_point.grids import smooth_grid
from widthwise.gaussian.four_point.harmonics import harmonics
from widthwise.gaussian.four_point.kinked_planes import kinked_moments
from widthwise.gaussian.four_point.smooth_planes import PlaneMoments, series_left, singles, smooth_moments

#: Degrees are handled in blocks of this many.
BLOCK = 8
#: Terms of the single-input series that are tried in turn.
TERMS = (96, 192, 384, 768)


@dataclass(frozen=True)
class Block:
    """Harmonic parts (degrees of the block, planes, types, half) of eight degrees, from `start` on."""

    start: int
    cosine: jax.Array
    sine: jax.Array


@dataclass(frozen=True)
class PlaneTables:
    """Everything that pairs of inputs say about quadruples.

    `plane[a, b]` numbers the planes a ≤ b. `norm[plane, type]` is √⟨(σ^(p)_a σ^(q)_b)²⟩, `left[plane]` the largest
    share of any type's norm that all degrees together leave out.
    `two[plane, k, assignment]` are the moments of the sorted quadruples (a,a,a,b), (a,a,b,b), (a,b,b,b) and
    `one[a, assignment]` those of (a,a,a,a).
    """

    types: tuple[tuple[int, int], ...]
    degrees: int
    plane: np.ndarray
    blocks: list[Block]
    norm: np.ndarray
    left: np.ndarray
    two: np.ndarray
    one: np.ndarray


def resolvable(activation: Activation, K: np.ndarray, accuracy: float) -> bool:
    """Whether the series of smooth activations is there for a kernel (inputs, inputs)."""
    return smooth_grid(activation, float(np.diag(K).max()), TERMS[0], accuracy) is not None


def plane_tables(
    activation: Activation,
    K: np.ndarray,
    placed: tuple[Orders, ...],
    degrees: int,
    accuracy: float | None,
    start: int = 0,
    only: np.ndarray | None = None,
) -> PlaneTables:
    """Tables from degree `start` to below `degrees`, multiples of the block.

    With an `accuracy` they come from single-input series, without one from quadrature in panels, plane by plane. `only`
    marks the planes (inputs, inputs) that are wanted; all of them by default.
    """
    inputs, types = len(K), pair_types(placed)
    scale = np.sqrt(np.diag(K))
    first, second = np.nonzero(np.triu(np.ones((inputs, inputs), bool) if only is None else only | only.T))
    plane = np.full((inputs, inputs), -1, np.int32)
    plane[first, second] = plane[second, first] = np.arange(len(first))
    rho = np.where(first == second, 1.0, K[first, second] / np.maximum(scale[first] * scale[second], 1e-300))
    if accuracy is None:
        found = _by_panels(activation, types, placed, degrees, scale, first, second, rho)
    else:
        found = _by_series(activation, types, placed, degrees, scale, first, second, rho, accuracy)
    return _assemble(found, types, start, degrees, plane, first == second)


def _by_panels(activation: Activation, types, placed, degrees: int, scale, first, second, rho) -> PlaneMoments:
    width = np.sqrt(np.maximum(1.0 - rho**2, 0.0))
    return kinked_moments(activation, types, placed, degrees, scale[first], scale[second] * rho, scale[second] * width)


def _by_series(activation, types, placed, degrees: int, scale, first, second, rho, accuracy: float) -> PlaneMoments:
    """As many terms as the planes need; the few that no number of terms reaches go through panels."""
    one, poor = None, np.ones(len(first), bool)
    for terms in (t for t in TERMS if t >= degrees):
        grid = smooth_grid(activation, float(scale.max()) ** 2, terms, accuracy)
        if grid is None:
            break
        one = singles(activation, scale, types, placed, terms, grid)
        poor = series_left(one, placed, rho, first, second) > accuracy
        if not poor.any():
            break
    if one is None or poor.all():
        return _by_panels(activation, types, placed, degrees, scale, first, second, rho)
    found = smooth_moments(one, types, placed, degrees, first, second, rho)
    if poor.any():
        better = _by_panels(activation, types, placed, degrees, scale, first[poor], second[poor], rho[poor])
        for whole, part in zip(found, better, strict=True):
            whole[poor] = part
    return found


def _assemble(found: PlaneMoments, types, start: int, degrees: int, plane, alone: np.ndarray) -> PlaneTables:
    norm = np.maximum(found.norm, 1e-300)
    inside = np.add.outer(np.arange(degrees), np.arange(degrees)) < degrees
    share = np.einsum("ptij,ptij,ij->pt", found.coefficients, found.coefficients, inside.astype(float)) / norm
    left = np.sqrt(np.maximum(1.0 - share.min(axis=1), 64 * np.finfo(float).eps))
    blocks = [_block(found.coefficients, degree) for degree in range(start, degrees, BLOCK)]
    return PlaneTables(types, degrees, plane, blocks, np.sqrt(norm), left, found.two, found.one[alone])


def half_size(start: int) -> int:
    """Harmonics of one parity that the block at degree `start` has room for; few sizes, so that few are compiled."""
    half = BLOCK
    while 2 * half < start + BLOCK:
        half *= 2
    return half


def _block(coefficients: np.ndarray, start: int) -> Block:
    planes, types = coefficients.shape[:2]
    half = half_size(start)
    parts = np.zeros((2, BLOCK, planes, types, half))
    for k in range(BLOCK):
        degree = start + k
        matrices = harmonics(degree, half)
        for part, matrix, top in ((0, matrices.cosine, degree), (1, matrices.sine, degree - 1)):
            i = np.arange(top, -1, -2)
            parts[part, k] = coefficients[:, :, i, degree - i] @ matrix[: len(i)]
    return Block(start, jnp.asarray(parts[0]), jnp.asarray(parts[1]))
