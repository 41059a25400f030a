"""Hermite coefficients of σ^(p)(z_a) σ^(q)(z_b) in the plane of two inputs, for all pairs and orders at once.

In the plane, z_a = √K_aa u_1 and z_b = √K_bb (ρu_1 + √(1−ρ²) u_2) with independent standard normal u_1, u_2, and
    σ^(p)(z_a) σ^(q)(z_b) = Σ_n Σ_i C_{n,i} he_i(u_1) he_{n−i}(u_2).
Coefficients of one degree are kept in the basis of angular harmonics, where turning the plane is cheap. The same
quadrature gives all moments of at most two inputs directly.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.gaussian.four_point.families import Orders, pair_types
from widthwise.gaussian.four_point.grids import Grid
from widthwise.gaussian.four_point.harmonics import harmonics
from widthwise.gaussian.four_point.kinked_planes import kinked_moments
from widthwise.gaussian.four_point.smooth_planes import PlaneMoments, smooth_moments

#: Degrees are handled in blocks of this many.
BLOCK = 8


@dataclass(frozen=True)
class Block:
    """Harmonic parts (degrees of the block, planes, types, half) of the degrees 8k … 8k+7."""

    cosine: jax.Array
    sine: jax.Array


@dataclass(frozen=True)
class PlaneTables:
    """Everything that pairs of inputs say about quadruples.

    `plane[a, b]` numbers the planes a ≤ b. `norm[plane, type]` is √⟨(σ^(p)_a σ^(q)_b)²⟩, `relative[plane, n]` the
    largest share of degree n in any type's norm, `left[plane]` what all degrees together leave out.
    `two[plane, k, assignment]` are the moments of the sorted quadruples (a,a,a,b), (a,a,b,b), (a,b,b,b) and
    `one[a, assignment]` those of (a,a,a,a).
    """

    types: tuple[tuple[int, int], ...]
    degrees: int
    plane: np.ndarray
    blocks: list[Block]
    norm: np.ndarray
    relative: np.ndarray
    left: np.ndarray
    two: np.ndarray
    one: np.ndarray


def plane_tables(
    activation: Activation, K: np.ndarray, placed: tuple[Orders, ...], degrees: int, grid: Grid | None
) -> PlaneTables:
    """Tables below degree `degrees`, a multiple of the block; without a grid, by the panels of kinked activations."""
    inputs, types = len(K), pair_types(placed)
    scale = np.sqrt(np.diag(K))
    first, second = np.triu_indices(inputs)
    plane = np.zeros((inputs, inputs), np.int32)
    plane[first, second] = plane[second, first] = np.arange(len(first))
    correlation = np.where(first == second, 1.0, K[first, second] / np.maximum(scale[first] * scale[second], 1e-300))
    width = np.sqrt(np.maximum(1.0 - correlation**2, 0.0))
    coordinates = (scale[first], scale[second] * correlation, scale[second] * width)
    if grid is None:
        found = kinked_moments(activation, types, placed, degrees, *coordinates)
    else:
        found = smooth_moments(activation, types, placed, degrees, grid, *coordinates)
    return _assemble(found, types, degrees, plane, first == second)


def _assemble(found: PlaneMoments, types, degrees: int, plane: np.ndarray, alone: np.ndarray) -> PlaneTables:
    blocks, shares = _to_blocks(found.coefficients, degrees)
    norm = np.maximum(found.norm, 1e-300)
    share = np.minimum(shares / norm[:, None, :], 1.0)
    left = np.maximum(1.0 - share.sum(axis=1), 64 * np.finfo(float).eps)
    return PlaneTables(
        types,
        degrees,
        plane,
        blocks,
        np.sqrt(norm),
        np.sqrt(share.max(axis=2)),
        np.sqrt(left.max(axis=1)),
        found.two,
        found.one[alone],
    )


def _to_blocks(coefficients: np.ndarray, degrees: int) -> tuple[list[Block], np.ndarray]:
    """Harmonic parts by blocks of degrees, and the squared norm of each degree (planes, degrees, types)."""
    planes, types = coefficients.shape[:2]
    shares = np.zeros((planes, degrees, types))
    blocks = []
    for start in range(0, degrees, BLOCK):
        half = (start + BLOCK) // 2
        parts = np.zeros((2, BLOCK, planes, types, half))
        for k in range(BLOCK):
            degree = start + k
            matrices = harmonics(degree, half)
            for part, matrix, top in ((0, matrices.cosine, degree), (1, matrices.sine, degree - 1)):
                i = np.arange(top, -1, -2)
                chosen = coefficients[:, :, i, degree - i]
                parts[part, k] = chosen @ matrix[: len(i)]
                shares[:, degree] += np.sum(chosen**2, axis=-1)
        blocks.append(Block(jnp.asarray(parts[0]), jnp.asarray(parts[1])))
    return blocks, shares
