"""What labs estimate from independent samples: means, ratios, limits and slopes, each with its error.

An estimate has a value, its standard error, the degrees of freedom from which that error was itself estimated, and its
skewness. With few samples or long tails the error is uncertain, and a claim allows for it by Student's distribution;
of samples that lean to one side the error rises and falls with their mean: Hall's transformation allows for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from widthwise.errors import InvalidInput

#: Samples from which on their tails and skewness are estimated: with fewer, what is estimated is mostly noise.
ENOUGH_FOR_SHAPE = 30


class LabEstimate(NamedTuple):
    """A value, its standard error, the degrees of freedom of that error, and the skewness of the value."""

    value: float
    error: float
    freedom: float
    skewness: float = 0.0

    def logarithm(self) -> LabEstimate:
        """The logarithm of a positive estimate.

        Its error is the relative one, r. Of log x̄ − log μ over r, to second order, t + (r/2)t² is left of the mean's t,
        which counts as a skewness less by 3r/2.

        >>> LabEstimate(1.0, 0.1, 9, 0.2).logarithm()
        LabEstimate(value=0.0, error=0.1, freedom=9, skewness=0.04999999999999999)
        """
        relative = self.error / self.value
        return LabEstimate(math.log(self.value), relative, self.freedom, self.skewness - 1.5 * relative)


def mean_and_error(samples: Any) -> LabEstimate:
    """Mean of independent samples along the first axis, all entries together, and its standard error.

    The variance of N samples of kurtosis κ has the relative variance (κ − 1)/N, as with 2N/(κ − 1) degrees of freedom:
    N for Gaussian samples, fewer with longer tails.

    >>> mean_and_error([1.0, 2.0, 3.0])
    LabEstimate(value=2.0, error=0.5773502691896258, freedom=2, skewness=0.0)
    """
    samples = np.asarray(samples, float)
    count = len(samples) if samples.ndim == 1 else 0
    if count < 2:
        raise InvalidInput("samples", f"an array {samples.shape}", "at least two numbers in one row")
    mean, error = float(samples.mean()), float(samples.std(ddof=1) / math.sqrt(count))
    if count < ENOUGH_FOR_SHAPE or not 0.0 < error < math.inf:
        return LabEstimate(mean, error, count - 1)
    unit = (samples - mean) / samples.std()
    tails = max(float(np.mean(unit**4)) - 1.0, 1e-9)
    return LabEstimate(mean, error, min(count - 1, 2.0 * count / tails), float(np.mean(unit**3)) / math.sqrt(count))


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
    """Σ weights × independent estimates; the degrees of freedom by Welch and Satterthwaite, third cumulants add up.

    >>> [round(number, 3) for number in combined([LabEstimate(1.0, 0.3, 10), LabEstimate(2.0, 0.4, 10)], [0.5, 0.5])]
    [1.5, 0.25, 18.546, 0.0]
    """
    squares = [(weight * e.error) ** 2 for weight, e in zip(weights, estimates, strict=True)]
    uncertain = sum(square**2 / e.freedom for square, e in zip(squares, estimates, strict=True))
    value = sum(weight * e.value for weight, e in zip(weights, estimates, strict=True))
    error = math.sqrt(sum(squares))
    third = sum(e.skewness * (weight * e.error) ** 3 for weight, e in zip(weights, estimates, strict=True))
    return LabEstimate(
        value, error, error**4 / uncertain if uncertain else math.inf, third / error**3 if third else 0.0
    )


def over_blocks(statistic: Callable[[np.ndarray], Any], samples: np.ndarray, blocks: int) -> LabEstimate:
    """A statistic of samples, averaged over blocks of them, and its standard error.

    >>> over_blocks(np.max, np.array([1.0, 3.0, 2.0, 5.0]), 2)
    LabEstimate(value=4.0, error=1.0, freedom=1, skewness=0.0)
    """
    return mean_and_error([statistic(block) for block in np.array_split(samples, blocks)])


def log_variance(samples: Any, mean: float | None = None) -> LabEstimate:
    """Logarithm of the variance of independent samples, about a mean if it is known, and its standard error.

    The variance itself and its estimated error rise and fall together, so that small values would seem too certain.

    >>> value, error, *_ = log_variance(np.random.default_rng(0).normal(size=800))
    >>> round(value, 1), round(error, 3), round((2 / 800) ** 0.5, 3)
    (0.0, 0.052, 0.05)
    """
    samples = np.asarray(samples, float)
    squares = (samples - (samples.mean() if mean is None else mean)) ** 2
    found = mean_and_error(squares).logarithm()
    return found._replace(value=found.value - (math.log1p(-1.0 / len(samples)) if mean is None else 0.0))


def extrapolated(*doubling: np.ndarray, blocks: int = 30) -> LabEstimate:
    """f at infinite width from f at widths n, 2n, 4n, …, and its standard error from blocks of networks.

    The polynomial in 1/n through them, at 1/n = 0: 2f(2n) − f(n) from two widths, in which O(1/n) drops, and
    (8f(4n) − 6f(2n) + f(n))/3 from three, in which O(1/n²) drops too.

    Parameters
    ----------
    doubling : f of networks of each width, (networks,), equally many; networks of the same number may be correlated.
    blocks : a divisor of the number of networks.

    Examples
    --------
    >>> n = 10.0
    >>> round(extrapolated(np.full(60, 3.0 + 1 / n), np.full(60, 3.0 + 1 / (2 * n))).value, 12)
    3.0
    >>> round(extrapolated(*(np.full(60, 3.0 + 1 / m + 1 / m**2) for m in (n, 2 * n, 4 * n))).value, 12)
    3.0
    """
    at = 0.5 ** np.arange(len(doubling))
    weights = [np.prod([other / (other - x) for other in at if other != x]) for x in at]
    means = [np.asarray(values, float).reshape(blocks, -1).mean(axis=1) for values in doubling]
    return mean_and_error(np.tensordot(weights, means, 1))


def without(samples: np.ndarray, luck: np.ndarray) -> np.ndarray:
    """Samples (networks,) less their regression on a number of the same networks whose mean is zero: less scatter.

    >>> luck = np.random.default_rng(0).normal(size=100)
    >>> bool(np.allclose(without(3.0 + 2.0 * luck, luck), 3.0))
    True
    """
    return samples - np.cov(samples, luck)[0, 1] / np.var(luck, ddof=1) * luck


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
