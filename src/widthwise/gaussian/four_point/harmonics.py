"""Rotations of bivariate Hermite polynomials of one degree.

The p+1 polynomials he_i(u_1) he_{p−i}(u_2) rotate among themselves when the plane is turned. In the basis of angular
harmonics m = p, p−2, … ≥ 0 a turn by θ only mixes cosine and sine parts through the angle mθ. `Harmonics` holds the
fixed orthogonal matrices between the two bases: cosine parts meet only i = p, p−2, …, sine parts only p−1, p−3, ….
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
from scipy.linalg import eigh_tridiagonal


@dataclass(frozen=True)
class Harmonics:
    """For degree p, with rows k ↔ i = p−2k (cosine) or i = p−1−2k (sine) and columns j ↔ m = 2j + (p mod 2).

    Both matrices are padded with zeros to (half, half).
    """

    cosine: np.ndarray
    sine: np.ndarray


@lru_cache(maxsize=1024)
def harmonics(degree: int, half: int) -> Harmonics:
    """The two matrices of a degree; `half` ≥ degree/2 + 1 is the padded size.

    The generator of turns, (JC)_i = √(i(p−i+1)) C_{i−1} − √((i+1)(p−i)) C_{i+1}, has eigenvectors (−i)^{p−i} w_i with w
    those of a real symmetric tridiagonal matrix and eigenvalues −im.
    """
    p, parity = degree, degree % 2
    cosine, sine = np.zeros((half, half)), np.zeros((half, half))
    if p == 0:
        cosine[0, 0] = 1.0
        return Harmonics(cosine, sine)
    i = np.arange(p)
    values, vectors = eigh_tridiagonal(np.zeros(p + 1), np.sqrt((i + 1.0) * (p - i)))
    for j, m in enumerate(range(parity, p + 1, 2)):
        w = vectors[:, int(np.argmin(np.abs(values - m)))]
        size = 1.0 if m == 0 else sqrt(2.0)
        even, odd = np.arange(p, -1, -2), np.arange(p - 1, -1, -2)
        cosine[: len(even), j] = size * w[even] * (-1.0) ** ((p - even) // 2)
        if m:
            sine[: len(odd), j] = -size * w[odd] * (-1.0) ** ((p - odd - 1) // 2)
    return Harmonics(cosine, sine)


def turn(cosine_part, sine_part, cos_angle, sin_angle):
    """Harmonic parts of a function in coordinates turned by θ (u = O(θ)v), given cos mθ and sin mθ."""
    return cosine_part * cos_angle - sine_part * sin_angle, cosine_part * sin_angle + sine_part * cos_angle
