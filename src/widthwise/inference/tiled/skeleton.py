"""A smooth function of a rate, known at all rates from a few of them.

The weights of training depend on each rate λ_r through chains of events, analytic functions of it. Seen as a matrix
over (everything else, r) such a function has a low numerical rank: its columns are combinations of a few of them,
    w(…, λ_r) = Σ_k w(…, λ_k) ℓ_kr,
found by a QR decomposition with column pivoting (an interpolative decomposition). With few rates all are taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg

#: What a further column must add, relative to the largest, to be taken.
NEGLIGIBLE_COLUMN = 1e-13
#: Rates from the whole spectrum at which the other indices are looked at. With 9 of 20 rates, networks trained to
#: convergence were 10⁻⁵ off; with 16, 10⁻¹⁰.
LOOKS = 24


class Skeleton(NamedTuple):
    """Numbers of the chosen columns, and ℓ (chosen, all)."""

    chosen: np.ndarray
    combine: np.ndarray


def skeleton(sample: np.ndarray) -> Skeleton:
    """Columns of a matrix (rows, all) that give all others.

    >>> found = skeleton(np.outer([1.0, 2.0, 3.0], [1.0, 4.0, 2.0]))      # of rank one
    >>> len(found.chosen), (found.combine * found.combine[0, 1] ** -1 * 4.0).round(12).tolist()
    (1, [[1.0, 4.0, 2.0]])
    """
    rows = np.max(np.abs(sample), axis=1, initial=0.0)
    if not rows.any():
        return Skeleton(np.zeros(1, int), np.zeros((1, sample.shape[1])))
    kept = sample[rows > 0.0] / rows[rows > 0.0, None]
    scale = np.sqrt(np.mean(kept**2, axis=0))
    scale = np.where(scale > 0.0, scale, 1.0)
    _, R, pivots = linalg.qr(kept / scale, mode="economic", pivoting=True)  # pyright: ignore[reportAssignmentType]
    diagonal = np.abs(np.diag(R))
    rank = int(np.count_nonzero(diagonal > NEGLIGIBLE_COLUMN * diagonal[0]))
    combine = np.zeros((rank, sample.shape[1]))
    combine[:, pivots] = linalg.solve_triangular(R[:rank, :rank], R[:rank])
    return Skeleton(pivots[:rank], combine * scale / scale[pivots[:rank]][:, None])


def evenly_spread(rates: np.ndarray, count: int = LOOKS) -> np.ndarray:
    """Some of the rates, evenly spread in their order, the extreme ones among them."""
    return rates[np.unique(np.linspace(0, len(rates) - 1, count).astype(int))]
