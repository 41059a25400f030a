"""The Hilbert space of a kernel on finitely many points: Mercer decomposition, norm, inner product."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg

from widthwise.errors import InvalidInput


class Mercer(NamedTuple):
    """k(x, x') = Σ_p μ_p φ_p(x) φ_p(x') on points with weights w: ∫φ_pφ_q = Σ_x w φ_pφ_q = δ_pq, largest μ first."""

    values: np.ndarray
    functions: np.ndarray
    weights: np.ndarray

    def coefficients(self, f: np.ndarray) -> np.ndarray:
        """∫ f φ_p."""
        return (self.weights * f) @ self.functions

    def inner(self, f: np.ndarray, g: np.ndarray) -> float:
        """⟨f, g⟩ of the reproducing-kernel Hilbert space: Σ_p f_p g_p/μ_p."""
        return float(np.sum(self.coefficients(f) * self.coefficients(g) / self.values))


def mercer(K: np.ndarray, weights: np.ndarray, floor: float = 1e-13) -> Mercer:
    """Eigenvalues and eigenfunctions of f ↦ ∫ k(·, x') f(x') on a discrete measure.

    Parameters
    ----------
    K : (points, points), symmetric.
    weights : (points,), positive; the measure.
    floor : eigenvalues below this fraction of the largest are left out.

    Returns
    -------
    A Mercer decomposition.

    >>> found = mercer(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([0.5, 0.5]))
    >>> found.values.round(12).tolist(), round(found.inner(np.array([2.0, 1.0]), np.array([5.0, 7.0])), 9)
    ([1.5, 0.5], 5.0)
    """
    K, weights = np.asarray(K, float), np.asarray(weights, float)
    if weights.shape != (len(K),) or not np.all(weights > 0.0):
        raise InvalidInput("weights", f"an array {weights.shape}", f"{len(K)} positive numbers")
    root = np.sqrt(weights)
    values, vectors = linalg.eigh(root[:, None] * K * root)
    kept = values > floor * values[-1]
    return Mercer(values[kept][::-1], (vectors[:, kept] / root[:, None])[:, ::-1], weights)
