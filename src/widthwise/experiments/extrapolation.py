"""To infinite width: a tensor measured at several widths, y(n) = y + c/n + e/n² + …, and the order of what is left.

The estimates at different widths come from different networks and are independent; within one width they have
jackknife replicates (see `Tally.replicates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from widthwise.experiments.tally import Estimate, jackknife

#: Orders that are tried, and the pull a remainder must have somewhere before its order is worth fitting.
ORDERS_TRIED = np.linspace(0.1, 6.0, 1181)
SIGNIFICANT = 4.0


class Extrapolated(NamedTuple):
    """The value at infinite width, the coefficient c of the remainder c/n, and the order p of the remainder ∝ n^−p.

    `order` is NaN where it is not determined: with two widths, or if the remainder drowns in noise. The value is
    the sum of those at the widths times `coefficients`.
    """

    value: Estimate
    slope: Estimate
    order: Estimate
    coefficients: np.ndarray


def extrapolate(widths: Sequence[int], replicates: Sequence[np.ndarray]) -> Extrapolated:
    """From replicates (1 + blocks, …) at every width. Two widths: y + c/n. From three on: y + c/n + e/n².

    One fit of least squares for all entries of a tensor, each width weighted with its mean squared error.

    >>> def exact(n):
    ...     return np.full((3, 1), 5.0 + 2.0 / n)
    >>> found = extrapolate([16, 32], [exact(16), exact(32)])
    >>> [float(np.round(e.value.item(), 9)) for e in (found.value, found.slope)], bool(np.isnan(found.order.value))
    ([5.0, 2.0], True)
    """
    n = np.asarray(widths, float)
    measured = [jackknife(values) for values in replicates]
    weights = _weights(measured)
    powers = np.stack([n**-power for power in range(min(len(n), 3))], axis=1)
    fit = np.linalg.pinv(np.sqrt(weights)[:, None] * powers) * np.sqrt(weights)
    value, slope = (_combine(row, measured) for row in fit[:2])
    linear = np.linalg.pinv(np.sqrt(weights)[:, None] * powers[:, :2]) * np.sqrt(weights)
    trend = _combine(linear[1], measured)
    order = Estimate(np.array(np.nan), np.array(np.nan))
    if len(n) > 2 and np.any(np.abs(trend.value) > SIGNIFICANT * trend.error):
        order = _fitted_order(n, weights, replicates)
    return Extrapolated(value, slope, order, fit[0])


def _weights(measured: Sequence[Estimate]) -> np.ndarray:
    """1/mean squared error of each width, relative to the largest; equal where nothing scatters."""
    squares = np.array([np.mean(estimate.error**2) for estimate in measured])
    return squares.min() / squares if squares.min() > 0.0 else np.ones(len(squares))


def _combine(row: np.ndarray, measured: Sequence[Estimate]) -> Estimate:
    value = sum(c * estimate.value for c, estimate in zip(row, measured, strict=True))
    square = sum((c * estimate.error) ** 2 for c, estimate in zip(row, measured, strict=True))
    return Estimate(np.asarray(value), np.sqrt(square))


def _fitted_order(n: np.ndarray, weights: np.ndarray, replicates: Sequence[np.ndarray]) -> Estimate:
    """p of the least-squares fit y_e + c_e n^−p, one p for all entries e; its error from leaving out blocks.

    With y and c eliminated, the sum of squares is tr Q(p)C, where C = Σ_e y_e y_eᵀ over widths.
    """
    residual = np.stack([_residual(n, weights, p) for p in ORDERS_TRIED])
    whole = np.stack([values[0].ravel() for values in replicates])
    best = _minimum(residual, whole[None])[0]
    square = 0.0
    for width, values in enumerate(replicates):
        varied = np.repeat(whole[None], len(values), axis=0)
        varied[:, width] = values.reshape(len(values), -1)
        square += jackknife(_minimum(residual, varied)).error ** 2
    inside = ORDERS_TRIED[1] < best < ORDERS_TRIED[-2]
    known = inside and square < 0.25
    return Estimate(np.array(best if known else np.nan), np.array(np.sqrt(square) if known else np.nan))


def _residual(n: np.ndarray, weights: np.ndarray, p: float) -> np.ndarray:
    """Q with yᵀQy the weighted sum of squares that the best y + c n^−p leaves."""
    root = np.sqrt(weights)
    basis, _ = np.linalg.qr(root[:, None] * np.stack([np.ones_like(n), (n[0] / n) ** p], axis=1))
    return root[:, None] * (np.eye(len(n)) - basis @ basis.T) * root


def _minimum(residual: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where tr Q(p)C is least, between the tried orders by a parabola; y is (replicates, widths, entries)."""
    y = y - y.mean(axis=1, keepdims=True)  # constants are fitted exactly: less cancellation
    gram = np.einsum("rve,rwe->rvw", y, y)
    squares = np.einsum("pvw,rvw->rp", residual, gram)
    at = np.clip(np.argmin(squares, axis=1), 1, len(ORDERS_TRIED) - 2)
    low, mid, high = (np.take_along_axis(squares, (at + step)[:, None], 1)[:, 0] for step in (-1, 0, 1))
    bend = low - 2 * mid + high
    shift = np.divide(low - high, 2 * bend, out=np.zeros_like(bend), where=bend > 0)
    return ORDERS_TRIED[at] + np.clip(shift, -1, 1) * (ORDERS_TRIED[1] - ORDERS_TRIED[0])
