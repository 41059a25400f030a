"""Which two inputs of a quadruple to take together, and how the two planes lie to each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: The three ways to split four places into two planes.
PAIRINGS = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2))


class Geometry(NamedTuple):
    """For each quadruple: the pairing, and the singular value decomposition of the planes' cross-correlation.

    With u = O(turn_first) u', w = O(turn_second) w', E[u' w'ᵀ] = diag(first, second), |second| ≤ first ≤ 1.
    """

    pairing: np.ndarray
    turn_first: np.ndarray
    turn_second: np.ndarray
    first: np.ndarray
    second: np.ndarray


def geometry(rho: np.ndarray, quads: np.ndarray) -> Geometry:
    """For every quadruple the pairing whose planes are least correlated: the series then converges fastest."""
    best = None
    for number, places in enumerate(PAIRINGS):
        a, b, c, d = (quads[:, k] for k in places)
        turned = _decompose(_cross(rho, a, b, c, d))
        entry = Geometry(np.full(len(quads), number), *turned)
        if best is None:
            best = entry
        else:
            # a small margin keeps the first pairing where it makes no difference
            better = entry.first < best.first - 1e-12
            best = Geometry(*(np.where(better, new, old) for new, old in zip(entry, best, strict=True)))
    assert best is not None
    return best


def plane_coordinates(rho: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Correlation and √(1−ρ²) inside the planes (a, b); exactly 1 and 0 for an input with itself."""
    correlation = np.where(a == b, 1.0, rho[a, b])
    return correlation, np.sqrt(np.maximum(1.0 - correlation**2, 0.0))


def _cross(rho, a, b, c, d) -> tuple[np.ndarray, ...]:
    """R = L⁻¹ ρ L'⁻ᵀ between u = (ẑ_a, (ẑ_b − ρẑ_a)/width) and w likewise; a line has no second coordinate."""
    r1, w1 = plane_coordinates(rho, a, b)
    r2, w2 = plane_coordinates(rho, c, d)
    i1 = np.divide(1.0, w1, out=np.zeros_like(w1), where=w1 > 1e-8)
    i2 = np.divide(1.0, w2, out=np.zeros_like(w2), where=w2 > 1e-8)
    ac, ad, bc, bd = (np.where(x == y, 1.0, rho[x, y]) for x, y in ((a, c), (a, d), (b, c), (b, d)))
    R11 = ac
    R12 = (ad - r2 * ac) * i2
    R21 = (bc - r1 * ac) * i1
    R22 = ((bd - r2 * bc) * i2 - r1 * R12) * i1
    return R11, R12, R21, R22


def _decompose(R: tuple[np.ndarray, ...]):
    """Rotation angles and signed singular values of 2×2 matrices: R = O(φ) diag(s, t) O(θ)ᵀ."""
    R11, R12, R21, R22 = R
    E, F, G, H = 0.5 * (R11 + R22), 0.5 * (R11 - R22), 0.5 * (R21 + R12), 0.5 * (R21 - R12)
    rotation, reflection = np.hypot(E, H), np.hypot(F, G)
    one, two = np.arctan2(G, F), np.arctan2(H, E)
    largest = np.minimum(rotation + reflection, 1.0)
    return 0.5 * (two + one), 0.5 * (one - two), largest, np.clip(rotation - reflection, -1.0, 1.0)
