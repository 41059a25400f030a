"""Slopes of measured laws, with error bars."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def slope_with_error(x: Any, y: Any) -> tuple[float, float]:
    """Slope of a line through points, and its error.

    The points of a deterministic law do not scatter but bend: the error is that of the least-squares fit and the
    range over which the slope between neighbouring points drifts, in quadrature, and never below 1e-12.

    Parameters
    ----------
    x, y : (points,), at least four, x increasing or decreasing.

    Returns
    -------
    Slope and error.

    >>> slope, error = slope_with_error([0, 1, 2, 3, 4, 5], [1, 3, 5, 7, 9, 11])
    >>> round(slope, 9), error < 1e-9
    (2.0, True)
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    drift = np.ptp(np.diff(y) / np.diff(x))
    return float(slope), math.hypot(math.sqrt(max(covariance[0, 0], 0.0)), float(drift), 1e-12)
