"""Bounds on the largest eigenvalue of a kernel, which decides the largest stable learning rate (theory §10)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from widthwise.errors import InvalidInput
from widthwise.network.inputs import real_array
from widthwise.network.validation import check_integer


@dataclass(frozen=True)
class EigenvalueBounds:
    """λ_max is at most `row`, `frobenius` and `trace`, and at least `mean_row`."""

    row: float
    frobenius: float
    trace: float
    mean_row: float


def largest_eigenvalue_bounds(kernel: ArrayLike) -> EigenvalueBounds:
    """Bounds on the largest eigenvalue of a symmetric kernel (inputs, inputs) that need no eigenvalues.

    Parameters
    ----------
    kernel : symmetric and positive semi-definite.

    Returns
    -------
    EigenvalueBounds: the largest row sum of absolute values, √ΣK², the trace, and below λ_max ΣK/inputs.

    >>> largest_eigenvalue_bounds([[2.0, 1.0], [1.0, 2.0]])
    EigenvalueBounds(row=3.0, frobenius=3.1622776601683795, trace=4.0, mean_row=3.0)
    """
    K = real_array(kernel, "kernel")
    if K.ndim != 2 or K.shape[0] != K.shape[1] or not np.allclose(K, K.T, rtol=1e-8, atol=0.0):
        raise InvalidInput("kernel", f"shape {K.shape}", "a symmetric matrix (inputs, inputs)")
    return EigenvalueBounds(
        float(np.abs(K).sum(axis=1).max()), float(np.linalg.norm(K)), float(np.trace(K)), float(K.sum()) / len(K)
    )


def chernoff_bound(C_0: float, R: float, inputs: int, probability: float) -> float:
    """What λ_max of a sum of independent positive semi-definite matrices exceeds with at most the given probability.

    P(λ_max ≥ (1 + δ) C_0) ≤ inputs · (e^δ/(1 + δ)^(1+δ))^(C_0/R): the matrix Chernoff bound. A tangent kernel is such a
    sum over the neurons of a layer.

    Parameters
    ----------
    C_0 : largest eigenvalue of the expected sum.
    R : the largest eigenvalue that one summand can have.
    inputs : dimension of the matrices.
    probability : between 0 and 1.

    Returns
    -------
    (1 + δ) C_0 for the least δ that the bound allows.

    >>> round(chernoff_bound(1.0, 0.01, 10, 0.05), 4)
    1.3427
    """
    inputs = check_integer("inputs", inputs, 1)
    if not (C_0 > 0.0 and R > 0.0 and 0.0 < probability < 1.0):
        got = f"{C_0}, {R}, {probability}"
        raise InvalidInput("C_0, R, probability", got, "positive numbers, the last one below 1")
    target = R / C_0 * math.log(inputs / probability)

    def excess(delta: float) -> float:
        return (1.0 + delta) * math.log1p(delta) - delta - target

    high = 1.0
    while excess(high) < 0.0:
        high *= 2.0
    delta: Any = brentq(excess, 0.0, high, xtol=1e-14)
    return (1.0 + delta) * C_0
