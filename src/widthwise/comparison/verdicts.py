"""From pulls to a verdict: does the theory fail, or is the width too small for its leading order?

The theory's coefficients are exact at infinite width; networks of width n have them with a remainder of relative order
1/n. One width cannot tell that remainder from an error of the theory. Two can: the remainder falls as 1/n.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import fdtrc

from widthwise.comparison.readings import Measured, WidthReading, distinct

AGREES = "agrees"
TOO_NARROW = "agrees after the next order in 1/n"
DISAGREES = "disagrees"
ONE_WIDTH = "needs a second width to say"
TOO_NOISY = "too few networks to say"
#: A difference falls with the width if one that does not is less probable than this, and than one that falls as 1/n.
FALLS_BELOW = 0.05
#: From best to worst, each with the reason that follows it in a sentence.
VERDICTS = {
    AGREES: "",
    TOO_NARROW: ": the difference at finite width falls with the width, and vanishes at infinite width",
    TOO_NOISY: ": off at the largest width, by a difference that may or may not fall with the width",
    ONE_WIDTH: ": off at this width, which a wrong theory or the next order in 1/n would explain",
    DISAGREES: "",
}
#: Verdicts with which theory stands.
SOUND = (AGREES, TOO_NARROW)


def pulls(predicted: np.ndarray, reading: WidthReading) -> np.ndarray:
    """(measured − predicted)/error. An entry without scatter is exact: it agrees, to rounding, or it does not."""
    difference = reading.value - predicted
    size = max(float(np.abs(predicted).max(initial=0.0)), float(np.abs(reading.value).max(initial=0.0)))
    exact = np.where(np.abs(difference) <= 1e-9 * size, 0.0, np.copysign(math.inf, difference))
    scatters = reading.error > 0.0
    return np.where(scatters, difference / np.where(scatters, reading.error, 1.0), exact)


def chi_square(name: str, pull: np.ndarray, error: np.ndarray) -> tuple[float, int]:
    """Σ pull² over distinct entries, and how many of them scatter; infinite where an exact entry is missed."""
    squares = distinct(name, pull) ** 2
    return float(np.sum(squares)), int(np.sum(distinct(name, error) > 0.0))


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
        return float(fdtrc(1, freedom, chi2 / entries))
    ratio = 1.0 + (chi2 / entries * (1 - 2 / freedom) - 1.0) * math.sqrt(nu / nu3)
    return float(fdtrc(nu3, freedom * nu3, max(ratio / (1 - 2 / (freedom * nu3)), 0.0)))


def probability(name: str, predicted: np.ndarray, reading: WidthReading, measured: Measured) -> float:
    """Of the χ² of a reading, with the correlations of `measured`."""
    chi2, entries = chi_square(name, pulls(predicted, reading), reading.error)
    return chi_square_probability(chi2, entries, measured.traces, measured.freedom)


def verdict(name: str, at_infinity: np.ndarray, at_width: np.ndarray | None, measured: Measured, level: float) -> str:
    """One of `VERDICTS`.

    `at_infinity` is the prediction for `measured.reading`, `at_width` that for `measured.widest`.
    """
    likely = probability(name, at_infinity, measured.reading, measured)
    if measured.widest is None or measured.slope is None or at_width is None:
        if likely >= level:
            return AGREES
        return ONE_WIDTH if measured.reading.n not in (None, math.inf) else DISAGREES
    flat = probability(name, np.zeros_like(measured.slope.value), measured.slope, measured)
    if likely < level:
        near = flat < FALLS_BELOW and _within_remainder(name, at_infinity, measured, level)
        return TOO_NARROW if near else DISAGREES
    if probability(name, at_width, measured.widest, measured) >= level:
        return AGREES
    return TOO_NARROW if flat < min(likely, FALLS_BELOW) else TOO_NOISY


def _within_remainder(name: str, predicted: np.ndarray, measured: Measured, level: float) -> bool:
    """Whether the difference at infinite width could be what extrapolation leaves over, common to all entries.

    That is y (c/y)ᵏ/(n_1 … n_k) for y + c/n and a fit of k = 2 or 3 terms: a geometric series, with the root mean
    squares of y and of the slope c, less its noise; but no more than the remainder c/n itself at the largest width.
    """
    assert measured.slope is not None
    slope = float(np.mean(measured.slope.value**2 - measured.slope.error**2))
    c, y = math.sqrt(max(slope, 0.0)), math.sqrt(float(np.mean(measured.reading.value**2)))
    extra = c / measured.widths[-1]
    if y > 0.0:
        extra = min(extra, y * math.prod(c / y / n for n in measured.widths[:3]))
    if extra == 0.0:
        return False
    wider = measured.reading._replace(error=np.hypot(measured.reading.error, extra))
    return probability(name, predicted, wider, measured._replace(traces=None)) >= level
