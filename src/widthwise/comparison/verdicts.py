"""From probabilities to a verdict: does the theory fail, or is the width too small for its leading order?

The theory's coefficients are exact at infinite width; networks of width n have them with a remainder of relative order
1/n. One width cannot tell that remainder from an error of the theory. Two can: the remainder falls as 1/n.
"""

from __future__ import annotations

import math

import numpy as np

from widthwise.comparison.probability import chi_square_probability
from widthwise.comparison.readings import Measured, Reading, distinct

AGREES = "agrees"
TOO_NARROW = "n too small"
DISAGREES = "disagrees"
ONE_WIDTH = "disagrees or n too small: measure at a second width"
TOO_NOISY = "disagrees or n too small: take more networks"
#: A difference falls with the width if one that does not is less probable than this, and than one that falls as 1/n.
FLAT = 0.05
#: From best to worst.
VERDICTS = (AGREES, TOO_NARROW, TOO_NOISY, ONE_WIDTH, DISAGREES)


def pulls(predicted: np.ndarray, reading: Reading) -> np.ndarray:
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


def probability(name: str, predicted: np.ndarray, reading: Reading, measured: Measured) -> float:
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
        near = flat < FLAT and _within_remainder(name, at_infinity, measured, level)
        return TOO_NARROW if near else DISAGREES
    if probability(name, at_width, measured.widest, measured) >= level:
        return AGREES
    return TOO_NARROW if flat < min(likely, FLAT) else TOO_NOISY


def next_remainder(measured: Measured) -> float:
    """The size of what extrapolation leaves over: y (c/y)ᵏ/(n_1 … n_k) for y + c/n and a fit of k = 2 or 3 terms.

    Taken as a geometric series, with the root mean squares of y and of the slope c, less its noise. It is not taken
    to be more than the remainder c/n itself at the largest width.
    """
    assert measured.slope is not None
    n = measured.widths[:3]
    slope = float(np.mean(measured.slope.value**2 - measured.slope.error**2))
    c, y = math.sqrt(max(slope, 0.0)), math.sqrt(float(np.mean(measured.reading.value**2)))
    first = c / measured.widths[-1]
    return min(first, y * math.prod(c / y / width for width in n)) if y > 0.0 else first


def _within_remainder(name: str, predicted: np.ndarray, measured: Measured, level: float) -> bool:
    """Whether the difference at infinite width could be the next remainder, which is common to all entries."""
    extra = next_remainder(measured)
    if extra == 0.0:
        return False
    wider = measured.reading._replace(error=np.hypot(measured.reading.error, extra))
    return probability(name, predicted, wider, measured._replace(traces=None)) >= level
