"""Which two inputs of a quadruple to take together, and how the two planes lie to each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.gaussian.four_point.families import PAIRINGS


class Geometry(NamedTuple):
    """For each quadruple: the pairing, and the singular value decomposition of the planes' cross-correlation.

    With u = O(turn_first) u', w = O(turn_second) w', E[u' w'ᵀ] = diag(first, second), |second| ≤ first ≤ 1.
    """

    pairing: Any
    turn_first: Any
    turn_second: Any
    first: Any
    second: Any

    @property
    def ratio(self) -> Any:
        """t/s, zero where both vanish."""
        xp = library(self.first)
        return xp.where(self.first > 0.0, self.second / xp.where(self.first > 0.0, self.first, 1.0), 0.0)


def geometry(rho: Any, quads: Any) -> Geometry:
    """For every quadruple the pairing whose planes are least correlated: the series then converges fastest."""
    xp, best = library(rho), None
    for number, places in enumerate(PAIRINGS):
        a, b, c, d = (quads[:, k] for k in places)
        turned = _decompose(_cross(rho, a, b, c, d), xp)
        entry = Geometry(xp.full(len(quads), number), *turned)
        if best is None:
            best = entry
        else:
            # a small margin keeps the first pairing where it makes no difference
            better = entry.first < best.first - 1e-12
            best = Geometry(*(xp.where(better, new, old) for new, old in zip(entry, best, strict=True)))
    assert best is not None
    return best


def planes_of(plane: Any, quads: Any, pairing: Any) -> tuple[Any, Any]:
    """The two planes of each quadruple, by their numbers plane[a, b]."""
    xp = library(plane)
    places = xp.asarray(np.array(PAIRINGS))[pairing]
    a, b, c, d = (xp.take_along_axis(quads, places[:, [k]], axis=1)[:, 0] for k in range(4))
    return plane[a, b], plane[c, d]


def library(array: Any) -> Any:
    """jax for its own arrays, numpy for others."""
    return jnp if isinstance(array, jax.Array) else np


def plane_coordinates(rho: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Correlation and √(1−ρ²) inside the planes (a, b); exactly 1 and 0 for an input with itself."""
    xp = library(rho)
    correlation = xp.where(a == b, 1.0, rho[a, b])
    return correlation, xp.sqrt(xp.maximum(1.0 - correlation**2, 0.0))


def _cross(rho: Any, a: Any, b: Any, c: Any, d: Any) -> tuple[Any, ...]:
    """R = L⁻¹ ρ L'⁻ᵀ between u = (ẑ_a, (ẑ_b − ρẑ_a)/width) and w likewise; a line has no second coordinate."""
    xp = library(rho)
    r1, w1 = plane_coordinates(rho, a, b)
    r2, w2 = plane_coordinates(rho, c, d)
    i1, i2 = (xp.where(w > 1e-8, 1.0 / xp.where(w > 1e-8, w, 1.0), 0.0) for w in (w1, w2))
    ac, ad, bc, bd = (xp.where(x == y, 1.0, rho[x, y]) for x, y in ((a, c), (a, d), (b, c), (b, d)))
    R11 = ac
    R12 = (ad - r2 * ac) * i2
    R21 = (bc - r1 * ac) * i1
    R22 = ((bd - r2 * bc) * i2 - r1 * R12) * i1
    return R11, R12, R21, R22


def _decompose(R: tuple[Any, ...], xp: Any):
    """Rotation angles and signed singular values of 2×2 matrices: R = O(φ) diag(s, t) O(θ)ᵀ."""
    R11, R12, R21, R22 = R
    E, F, G, H = 0.5 * (R11 + R22), 0.5 * (R11 - R22), 0.5 * (R21 + R12), 0.5 * (R21 - R12)
    rotation, reflection = xp.hypot(E, H), xp.hypot(F, G)
    one, two = xp.arctan2(G, F), xp.arctan2(H, E)
    largest = xp.minimum(rotation + reflection, 1.0)
    return 0.5 * (two + one), 0.5 * (one - two), largest, xp.clip(rotation - reflection, -1.0, 1.0)
