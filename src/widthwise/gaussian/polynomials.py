"""Hermite polynomials orthonormal under the standard normal distribution."""

from __future__ import annotations

from math import sqrt

import numpy as np


def basis(u: np.ndarray, terms: int) -> np.ndarray:
    """he_0 … he_{terms−1} at the points u, on a new first axis: he_k = He_k / √k!.

    >>> basis(np.array([2.0]), 3).round(6).tolist()
    [[1.0], [2.0], [2.12132]]
    """
    result = np.empty((terms, *np.shape(u)))
    result[0] = 1.0
    if terms > 1:
        result[1] = u
    for k in range(1, terms - 1):
        result[k + 1] = (u * result[k] - sqrt(k) * result[k - 1]) / sqrt(k + 1)
    return result
