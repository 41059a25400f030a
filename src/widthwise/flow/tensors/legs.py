"""What one layer does to small changes of the kernel: derivatives of two-point functions, leg by leg (theory §4, §5).

A sum Σ_ef ⟨∂_e∂_f F_ab⟩ X_ef over inputs touches only e, f ∈ {a, b}. For F = f_a f_b it is
    aa_ab X_aa + 2 ab_ab X_ab + aa_ba X_bb,      aa = ⟨f''_a f_b⟩,  ab = ⟨f'_a f'_b⟩.
Where a kinked activation meets one variable twice (the same input, or a parallel one) the legs do not exist apart, but
the sum does: half of the total derivative then stands in aa, and ab is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from widthwise.activations import Activation
from widthwise.gaussian.pair import is_parallel, line_derivative, pair_matrix


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Legs:
    """⟨σ^(p)_a σ^(p)_b⟩ differentiated: twice as (aa, ab), four times as (aaaa, aaab, aabb); each (inputs, inputs).

    Fourth derivatives are None where nothing reads them.
    """

    value: Any
    aa: Any
    ab: Any
    aaaa: Any
    aaab: Any
    aabb: Any
    error: float


def legs(activation: Activation, K: np.ndarray, fourth: bool, with_slopes: bool) -> list[Legs]:
    """Derivatives of ⟨σ_a σ_b⟩, and of ⟨σ'_a σ'_b⟩ if wanted, with respect to preactivations; fourth ones if asked."""
    # σσ and σ'σ' have three two-point matrices in common
    pair = cache(partial(pair_matrix, activation, K=K))
    found = []
    for p in range(1 + with_slopes):
        wanted = [(p, p), (p + 2, p), (p + 1, p + 1)]
        if fourth:
            wanted += [(p + 4, p), (p + 3, p + 1), (p + 2, p + 2)]
        matrices: list[Any] = [pair(*orders)[0].copy() for orders in wanted]
        if activation.kinks:
            _join(activation, p, K, matrices)
        matrices += [None] * (6 - len(matrices))
        found.append(Legs(*matrices, error=max(pair(*orders)[1] for orders in wanted)))
    return found


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
