"""What one layer does to small changes of the kernel: derivatives of two-point functions, leg by leg (theory §4, §5).

A sum Σ_ef ⟨∂_e∂_f F_ab⟩ X_ef over inputs touches only e, f ∈ {a, b}. For F = f_a f_b it is
    aa_ab X_aa + 2 ab_ab X_ab + aa_ba X_bb,      aa = ⟨f''_a f_b⟩,  ab = ⟨f'_a f'_b⟩.
Where a kinked activation meets one variable twice (the same input, or a parallel one) the legs do not exist apart, but
the sum does: half of the total derivative then stands in aa, and ab is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from widthwise.activations import Activation
from widthwise.gaussian.pair import is_parallel, line_derivative, pair_matrix


@dataclass(frozen=True)
class Legs:
    """⟨σ^(p)_a σ^(p)_b⟩ differentiated: twice as (aa, ab), four times as (aaaa, aaab, aabb); each (inputs, inputs)."""

    value: np.ndarray
    aa: np.ndarray
    ab: np.ndarray
    aaaa: np.ndarray | None
    aaab: np.ndarray | None
    aabb: np.ndarray | None
    error: float


Known = dict[tuple[int, int], tuple[np.ndarray, float]]


def legs(activation: Activation, p: int, K: np.ndarray, fourth: bool, known: Known | None = None) -> Legs:
    """Derivatives of ⟨σ^(p)_a σ^(p)_b⟩ with respect to preactivations, the fourth ones if asked for.

    `known` collects two-point matrices of this kernel by their orders: σσ and σ'σ' have three in common.
    """
    known = {} if known is None else known
    wanted = [(p, p), (p + 2, p), (p + 1, p + 1)]
    if fourth:
        wanted += [(p + 4, p), (p + 3, p + 1), (p + 2, p + 2)]
    for orders in wanted:
        if orders not in known:
            known[orders] = pair_matrix(activation, *orders, K)
    found = [known[orders] for orders in wanted]
    matrices = [matrix.copy() for matrix, _ in found]
    if activation.kinks:
        _join(activation, p, K, matrices)
    value, aa, ab = matrices[:3]
    aaaa, aaab, aabb = matrices[3:] if fourth else (None, None, None)
    return Legs(value, aa, ab, aaaa, aaab, aabb, max(error for _, error in found))


def _join(activation: Activation, p: int, K: np.ndarray, matrices: list[np.ndarray]) -> None:
    """Replace legs that do not exist apart by half of the total derivative."""
    scale = np.sqrt(np.diag(K))
    diagonal = np.diag(K)
    a, b = np.nonzero(is_parallel(diagonal[:, None], np.where(np.eye(len(K)) > 0, diagonal, K), diagonal[None, :]))
    for order, places in ((2, (1, 2)), (4, (3, 4, 5)))[: 1 + (len(matrices) > 3)]:
        if 2 * p + order <= 2 * activation.first_jump:
            continue  # every leg exists by itself
        for i, j in zip(a, b, strict=True):
            sign = -1.0 if K[i, j] < 0 else 1.0
            whole = line_derivative(activation, p, p, order, scale[i], sign * scale[j])
            for place in places:
                matrices[place][i, j] = 0.0
            matrices[places[0]][i, j] = 0.5 * whole
