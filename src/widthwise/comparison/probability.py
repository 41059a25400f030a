"""The probability of a sum of squared pulls whose entries are correlated."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import f as fisher


def effective_entries(traces: np.ndarray | None) -> tuple[float, float]:
    """ν and ν₃ from tr R, tr R², tr R³ (`measure`, NAME_traces): the numbers of independent entries for which a sum of
    squares has the relative variance 2/ν, and the skewness √(8/ν₃). Without traces entries count as all alike.

    >>> effective_entries(np.array([5.0, 5.0, 5.0])), effective_entries(np.array([5.0, 25.0, 125.0]))
    ((5.0, 5.0), (1.0, 1.0))
    """
    if traces is None or traces[0] == 0.0:
        return 1.0, 1.0
    first, second, third = map(float, traces)
    return first**2 / second, second**3 / third**2


def chi_square_probability(chi2: float, entries: int, traces: np.ndarray | None, freedom: int) -> float:
    """P(a sum of `entries` squared pulls exceeds `chi2`) if theory is right and errors are Gaussian.

    With χ² of mean m, variance 2 tr R² and third cumulant 8 tr R³ (Hall, Buckley and Eagleson), χ²/m is distributed as
    1 + √(ν₃/ν)(X − 1), X the mean square of ν₃ independent numbers. Standard errors that come from `freedom` + 1 blocks
    scatter too: X is Fisher's F with ν₃ and ν₃ × `freedom` degrees of freedom, at its mean. For one entry this is
    Student's t.

    >>> from scipy.stats import t
    >>> bool(np.isclose(chi_square_probability(9.0, 1, np.ones(3), 63), 2 * t.sf(3.0, 63)))
    True
    >>> round(chi_square_probability(30.0, 10, np.full(3, 10.0), 10**6), 5)  # ten independent entries
    0.00086
    """
    if not entries:
        return 1.0 if chi2 == 0.0 else 0.0
    if math.isnan(chi2):
        return math.nan
    nu, nu3 = effective_entries(traces)
    if freedom <= 2:
        return float(fisher.sf(chi2 / entries, 1, freedom))
    ratio = 1.0 + (chi2 / entries * (1 - 2 / freedom) - 1.0) * math.sqrt(nu / nu3)
    return float(fisher.sf(ratio / (1 - 2 / (freedom * nu3)), nu3, freedom * nu3))
