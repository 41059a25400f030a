"""Rotations of bivariate Hermite polynomials of one degree.

The p+1 polynomials he_i(u_1) he_{p−i}(u_2) rotate among themselves when the plane is turned. In the basis of angular
harmonics m = p, p−2, … ≥ 0 a turn by θ only mixes cosine and sine parts through the angle mθ. Fixed orthogonal matrices
lead from one basis to the other: cosine parts meet only i = p, p−2, …, sine parts only p−1, p−3, ….
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import Any

import jax
import numpy as np
from scipy.linalg import eigh_tridiagonal

from widthwise.gaussian.four_point.families import TypeRows
from widthwise.gaussian.four_point.geometry import library

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
    values, vectors = eigh_tridiagonal(np.zeros(p + 1), np.sqrt((i + 1.0) * (p - i)))
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
