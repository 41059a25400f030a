"""What labs estimate from independent samples: means, ratios, limits and slopes, each with its error.

An estimate has a value, its standard error, and the degrees of freedom from which that error was itself estimated: with
few samples it is uncertain, and a claim then allows for it by Student's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from widthwise.errors import InvalidInput


class LabEstimate(NamedTuple):
    """A value, its standard error, and the degrees of freedom of that error."""

    value: float
    error: float
    freedom: float


def mean_and_error(samples: Any) -> LabEstimate:
    """Mean of independent samples along the first axis, all entries together, and its standard error.

    >>> mean_and_error([1.0, 2.0, 3.0])
    LabEstimate(value=2.0, error=0.5773502691896258, freedom=2)
    """
    samples = np.asarray(samples, float)
    if samples.ndim != 1 or len(samples) < 2:
        raise InvalidInput("samples", f"an array {samples.shape}", "at least two numbers in one row")
    return LabEstimate(float(samples.mean()), float(samples.std(ddof=1) / math.sqrt(len(samples))), len(samples) - 1)


def ratio_and_error(above: Any, below: Any) -> LabEstimate:
    """⟨above⟩/⟨below⟩ over independent pairs, (samples,) each, and its standard error to first order in the scatter.

    >>> ratio_and_error(np.array([2.0, 4.0]), np.array([1.0, 2.0]))[:2]
    (2.0, 0.0)
    """
    ratio = float(np.mean(above) / np.mean(below))
    return mean_and_error((above - ratio * below) / np.mean(below))._replace(value=ratio)


def difference_and_error(first: Any, second: Any) -> LabEstimate:
    """⟨second⟩ − ⟨first⟩ of two independent samples, and its standard error.

    >>> difference_and_error([1.0, 3.0], [4.0, 6.0])[:2]
    (3.0, 1.4142135623730951)
    """
    return combined([mean_and_error(first), mean_and_error(second)], [-1.0, 1.0])


def combined(estimates: list[LabEstimate], weights: Any) -> LabEstimate:
    """Σ weights × independent estimates; the degrees of freedom by Welch and Satterthwaite.

    >>> [round(number, 3) for number in combined([LabEstimate(1.0, 0.3, 10), LabEstimate(2.0, 0.4, 10)], [0.5, 0.5])]
    [1.5, 0.25, 18.546]
    """
    squares = [(weight * e.error) ** 2 for weight, e in zip(weights, estimates, strict=True)]
    uncertain = sum(square**2 / e.freedom for square, e in zip(squares, estimates, strict=True))
    value = sum(weight * e.value for weight, e in zip(weights, estimates, strict=True))
    return LabEstimate(value, math.sqrt(sum(squares)), sum(squares) ** 2 / uncertain if uncertain else math.inf)


def over_blocks(statistic: Callable[[np.ndarray], Any], samples: np.ndarray, blocks: int) -> LabEstimate:
    """A statistic of samples, averaged over blocks of them, and its standard error.

    >>> over_blocks(np.max, np.array([1.0, 3.0, 2.0, 5.0]), 2)
    LabEstimate(value=4.0, error=1.0, freedom=1)
    """
    return mean_and_error([statistic(block) for block in np.array_split(samples, blocks)])


def log_variance(samples: Any, mean: float | None = None) -> LabEstimate:
    """Logarithm of the variance of independent samples, about a mean if it is known, and its standard error.

    The variance itself and its estimated error rise and fall together, so that small values would seem too certain.

    >>> value, error, _ = log_variance(np.random.default_rng(0).normal(size=800))
    >>> round(value, 1), round(error, 3), round((2 / 800) ** 0.5, 3)
    (0.0, 0.052, 0.05)
    """
    samples = np.asarray(samples, float)
    squares = (samples - (samples.mean() if mean is None else mean)) ** 2
    found = mean_and_error(squares)
    unbiased = found.value * (len(samples) / (len(samples) - 1) if mean is None else 1.0)
    return LabEstimate(math.log(unbiased), found.error / found.value, found.freedom)


def extrapolated(once: np.ndarray, twice: np.ndarray, blocks: int = 30) -> LabEstimate:
    """2f(2n) − f(n), in which O(1/n) drops, and its standard error from blocks of networks.

    Parameters
    ----------
    once, twice : f of networks of width n and 2n, each (networks,), equally many; networks of the same number may
        be correlated.
    blocks : a divisor of the number of networks.

    Examples
    --------
    >>> n = 10.0
    >>> round(extrapolated(np.full(60, 3.0 + 1 / n), np.full(60, 3.0 + 1 / (2 * n))).value, 12)
    3.0
    """
    means = [np.asarray(values, float).reshape(blocks, -1).mean(axis=1) for values in (once, twice)]
    return mean_and_error(2.0 * means[1] - means[0])


def slope_and_drift(x: Any, y: Any) -> tuple[float, float]:
    """Slope towards the last of at least four points of a law without scatter, x monotone, and what it leaves open.

    Such points bend towards their limit. The slope is that of the last half of them. What is left of the bend is taken
    to be no more than four times the range over which the slopes between neighbours drift: enough if the bend shrinks
    by a fifth at least from one half of the points to the other.

    >>> slope, drift = slope_and_drift([0, 1, 2, 3, 4, 5], [1, 3, 5, 7, 9, 11])
    >>> round(slope, 9), drift < 1e-8
    (2.0, True)
    """
    x, y, half = np.asarray(x, float), np.asarray(y, float), len(x) // 2
    last = float(np.polyfit(x[half - 1 :], y[half - 1 :], 1)[0])
    return last, max(4.0 * float(np.ptp(np.diff(y) / np.diff(x))), 1e-9 * abs(last))
