"""Which two inputs of a quadruple to take together, how the two planes lie to each other, and how they are turned.

The p+1 Hermite polynomials he_i(u_1) he_{p−i}(u_2) of a degree rotate among themselves when the plane is turned. In the
basis of angular harmonics m = p, p−2, … ≥ 0 a turn by θ only mixes cosine and sine parts through the angle mθ. Fixed
orthogonal matrices lead from one basis to the other: cosine parts meet only i = p, p−2, …, sine parts only p−1, p−3, ….
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy

from widthwise.devices import library
from widthwise.gaussian.four_points.families import PAIRINGS, TypeRows


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

    def some(self, chosen: Any) -> Geometry:
        """Of some quadruples."""
        return Geometry(*(field[chosen] for field in self))


def geometry(rho: Any, quads: Any) -> Geometry:
    """For every quadruple the pairing whose planes are least correlated: the series then converges fastest."""
    xp, best = library(rho), paired(rho, quads, 0)
    for number in range(1, len(PAIRINGS)):
        entry = paired(rho, quads, number)
        # a small margin keeps the first pairing where it makes no difference
        better = entry.first < best.first - 1e-12
        best = Geometry(*(xp.where(better, new, old) for new, old in zip(entry, best, strict=True)))
    return best


def paired(rho: Any, quads: Any, number: int) -> Geometry:
    """How the two planes of every quadruple lie in one of `PAIRINGS`."""
    xp = library(rho)
    R11, R12, R21, R22 = _cross(rho, *(quads[:, k] for k in PAIRINGS[number]))
    # rotation angles and signed singular values of R = O(φ) diag(s, t) O(θ)ᵀ
    E, F, G, H = 0.5 * (R11 + R22), 0.5 * (R11 - R22), 0.5 * (R21 + R12), 0.5 * (R21 - R12)
    rotation, reflection, one, two = xp.hypot(E, H), xp.hypot(F, G), xp.arctan2(G, F), xp.arctan2(H, E)
    largest, least = xp.minimum(rotation + reflection, 1.0), xp.clip(rotation - reflection, -1.0, 1.0)
    return Geometry(xp.full(len(quads), number), 0.5 * (two + one), 0.5 * (one - two), largest, least)


def planes_of(plane: Any, quads: Any, pairing: Any) -> tuple[Any, Any]:
    """The two planes of each quadruple, by their numbers plane[a, b]."""
    xp = library(plane)
    places = xp.asarray(np.array(PAIRINGS))[pairing]
    a, b, c, d = (xp.take_along_axis(quads, places[:, [k]], axis=1)[:, 0] for k in range(4))
    return plane[a, b], plane[c, d]


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


#: Degrees are handled in blocks of this many, as many even as odd ones.
DEGREE_BLOCK = 8


def _harmonics(degree: int, half: int) -> np.ndarray:
    """The matrices (2, half, half) of cosine and sine parts of a degree, padded with zeros; `half` ≥ degree/2 + 1.

    Rows are k ↔ i = p−2k (cosine) or i = p−1−2k (sine), columns j ↔ m = 2j + (p mod 2).
    The generator of turns, (JC)_i = √(i(p−i+1)) C_{i−1} − √((i+1)(p−i)) C_{i+1}, has eigenvectors (−i)^{p−i} w_i with w
    those of a real symmetric tridiagonal matrix and eigenvalues −im.
    """
    p, i = degree, np.arange(degree)
    cosine, sine = matrices = np.zeros((2, half, half))
    if p == 0:
        cosine[0, 0] = 1.0
        return matrices
    values, vectors = scipy.linalg.eigh_tridiagonal(np.zeros(p + 1), np.sqrt((i + 1.0) * (p - i)))
    for j, m in enumerate(range(p % 2, p + 1, 2)):
        w = vectors[:, int(np.argmin(np.abs(values - m)))]
        size = 1.0 if m == 0 else sqrt(2.0)
        even, odd = np.arange(p, -1, -2), np.arange(p - 1, -1, -2)
        cosine[: len(even), j] = size * w[even] * (-1.0) ** ((p - even) // 2)
        if m:
            sine[: len(odd), j] = -size * w[odd] * (-1.0) ** ((p - odd - 1) // 2)
    return matrices


def half_size(start: int) -> int:
    """Harmonics of one parity that the block at degree `start` has room for; few sizes, so that few are compiled.

    >>> [half_size(start) for start in range(0, 72, 8)]
    [4, 8, 12, 16, 24, 24, 32, 32, 48]
    """
    half = DEGREE_BLOCK // 2
    while 2 * half < start + DEGREE_BLOCK:
        half += max(DEGREE_BLOCK // 2, 2 ** (half.bit_length() - 2))
    return half


def harmonic_parts(coefficients: Any, start: int, rows: TypeRows) -> Any:
    """Cosine and sine parts (2, steps, rows, planes, types, half) of the block at `start`, from plane coefficients."""
    compute = _parts if isinstance(coefficients, np.ndarray) else _compiled_parts
    made = [
        compute(coefficients, np.array(types), *(found[:, number :: len(rows)] for found in harmonic_matrices(start)))
        for number, types in enumerate(rows)
    ]
    return library(coefficients).stack(made, axis=2)


def _parts(coefficients, types, i, j, matrices):
    """Parts (2, degrees, planes, types, half) of some degrees and types."""
    chosen = coefficients[:, types[:, None, None, None], i, j].transpose(2, 3, 0, 1, 4)
    *many, planes, count, half = chosen.shape
    return (chosen.reshape(*many, planes * count, half) @ matrices).reshape(chosen.shape)


_compiled_parts = jax.jit(_parts)


@lru_cache(maxsize=64)
def harmonic_matrices(start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Degrees in u_1 and u_2 (2, degrees, half) that cosine and sine parts read, and matrices (2, degrees, half, half).

    Past the last one the matrices have rows of zeros.
    """
    half = half_size(start)
    degree = start + np.arange(DEGREE_BLOCK)[:, None]
    i = np.stack([degree, degree - 1]) - 2 * np.arange(half)
    matrices = np.stack([_harmonics(start + k, half) for k in range(DEGREE_BLOCK)], axis=1)
    return np.where(i >= 0, i, 0), np.where(i >= 0, degree - i, 0), matrices
