"""Determinantal point processes: random subsets of points that a kernel finds different from each other.

P(S) = det L_S / det(1 + L). A subset contains given points with probability det M over them, M = L(1 + L)⁻¹.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from widthwise.errors import InvalidInput


def marginal_kernel(L: np.ndarray) -> np.ndarray:
    """M = L(1 + L)⁻¹: P(i ∈ S) = M_ii and P(i, j ∈ S) = M_ii M_jj − M_ij².

    >>> marginal_kernel(np.eye(2)).round(12).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    return linalg.solve(np.eye(len(L)) + L, L, assume_a="pos")


def sample_subsets(L: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Independent subsets, (count, points) of bool: which points are in.

    Chooses eigenvectors of L, symmetric and positive semi-definite, with probabilities λ/(1+λ), then points by the
    chain rule.

    >>> subsets = sample_subsets(np.diag([1e9, 1.0, 0.0]), 200, seed=0)
    >>> bool(subsets[:, 0].all()), bool(subsets[:, 2].any()), bool(60 < subsets[:, 1].sum() < 140)
    (True, False, True)
    """
    values, vectors = linalg.eigh(L)
    if values[0] < -1e-9 * max(values[-1], 1e-300):
        raise InvalidInput("L", f"a matrix with the eigenvalue {values[0]:.2g}", "a positive semi-definite matrix")
    rng = np.random.default_rng(seed)
    chosen = rng.random((count, len(L))) < np.maximum(values, 0.0) / (1.0 + np.maximum(values, 0.0))
    subsets = np.zeros((count, len(L)), bool)
    for subset, columns in zip(subsets, chosen, strict=True):
        subset[_chosen_points(vectors[:, columns], rng)] = True
    return subsets


def _chosen_points(V: np.ndarray, rng: np.random.Generator) -> list[int]:
    """One point per column of orthonormal V: with probability |row|², then the columns are made to vanish there."""
    found = []
    while V.shape[1]:
        weights = np.sum(V**2, axis=1)
        point = int(rng.choice(len(V), p=weights / weights.sum()))
        found.append(point)
        column = int(np.argmax(np.abs(V[point])))
        V = np.delete(V - np.outer(V[:, column], V[point] / V[point, column]), column, axis=1)
        V = np.linalg.qr(V)[0]
    return found
