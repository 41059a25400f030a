"""Means, ratios, limits and slopes of what was measured, with error bars."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def mean_and_error(samples: Any) -> tuple[float, float]:
    """Mean of independent samples along the first axis and its standard error.

    >>> mean_and_error([1.0, 2.0, 3.0])
    (2.0, 0.5773502691896258)
    """
    samples = np.asarray(samples, float)
    return float(samples.mean()), float(samples.std(ddof=1) / math.sqrt(len(samples)))


def ratio_and_error(above: Any, below: Any) -> tuple[float, float]:
    """⟨above⟩/⟨below⟩ over independent pairs, (samples,) each, and its standard error to first order in the scatter.

    >>> ratio_and_error(np.array([2.0, 4.0]), np.array([1.0, 2.0]))
    (2.0, 0.0)
    """
    ratio = float(np.mean(above) / np.mean(below))
    return ratio, mean_and_error((above - ratio * below) / np.mean(below))[1]


def over_blocks(statistic: Callable[[np.ndarray], Any], samples: np.ndarray, blocks: int) -> tuple[float, float]:
    """A statistic of samples, averaged over blocks of them, and its standard error.

    >>> over_blocks(np.max, np.array([1.0, 3.0, 2.0, 5.0]), 2)
    (4.0, 1.0)
    """
    return mean_and_error([statistic(block) for block in np.array_split(samples, blocks)])


def block_variance(samples: np.ndarray, blocks: int) -> tuple[float, float]:
    """Variance of samples and its standard error from blocks of them."""
    return over_blocks(lambda block: np.var(block, ddof=1), samples, blocks)


def extrapolated(once: np.ndarray, twice: np.ndarray, blocks: int = 30) -> tuple[float, float]:
    """2f(2n) − f(n), in which O(1/n) drops, and its standard error from blocks of networks.

    Parameters
    ----------
    once, twice : f of networks of width n and 2n, each (networks,), equally many; networks of the same number may
        be correlated.
    blocks : a divisor of the number of networks.

    Examples
    --------
    >>> n = 10.0
    >>> value, _ = extrapolated(np.full(60, 3.0 + 1 / n), np.full(60, 3.0 + 1 / (2 * n)))
    >>> round(value, 12)
    3.0
    """
    means = [np.asarray(values, float).reshape(blocks, -1).mean(axis=1) for values in (once, twice)]
    return mean_and_error(2.0 * means[1] - means[0])


def slope_with_error(x: Any, y: Any) -> tuple[float, float]:
    """Slope of a line through at least four points, x increasing or decreasing, and its error.

    The points of a deterministic law do not scatter but bend: the error is that of the least-squares fit and the
    range over which the slope between neighbouring points drifts, in quadrature, and never below 1e-12.

    >>> slope, error = slope_with_error([0, 1, 2, 3, 4, 5], [1, 3, 5, 7, 9, 11])
    >>> round(slope, 9), error < 1e-9
    (2.0, True)
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    drift = np.ptp(np.diff(y) / np.diff(x))
    return float(slope), math.hypot(math.sqrt(max(covariance[0, 0], 0.0)), float(drift), 1e-12)
