"""From sums over networks to the variables of a Dataset: values, standard errors, extrapolations, correlations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from widthwise.experiments.programme import Part
from widthwise.experiments.tally import Estimate, Tally, jackknife
from widthwise.tensors import MEANS, PRODUCTS, TENSORS, dimensions, distinct_entries

#: What is below this fraction of the numbers that it is the difference of is rounding.
CANCELLED = 1e-12
#: Orders that are tried, and the pull a remainder must have somewhere before its order is worth fitting.
ORDERS_TRIED = np.linspace(0.1, 6.0, 1181)
SIGNIFICANT = 4.0

Variables = dict[str, tuple[tuple[str, ...], np.ndarray]]
#: Of each layer: the size of the numbers whose differences a tensor is, by name.
Sizes = Sequence[Mapping[str, float]]


def cancelled_sizes(part: Part) -> dict[str, float]:
    """n K where G1 = n(Ĝ − K) is small or vanishes, and the like: what rounding is measured by, besides the result."""
    if part.reference is None:
        return {}
    K, Theta = (float(np.abs(kernel[-1]).max()) for kernel in part.reference[:2])
    powers = {name: TENSORS[name].scale for name in (*MEANS, *PRODUCTS)}
    return {name: part.net.n * math.prod([K] * int(i) + [Theta] * j) for name, (i, j) in powers.items()}


def measured_variables(
    names: Sequence[str], widths: Sequence[int], by_width: Sequence[Sequence[Tally]], inputs: int, sizes: Sizes
) -> Variables:
    """NAME, NAME_se and NAME_traces from the sums of every layer at one width.

    From several widths: NAME at infinite width, NAME_slope and NAME_order too, and what was measured as NAME_by_width.
    """
    found = [[part.replicates() for part in sums] for sums in by_width]
    variables: Variables = {}
    for name in names:
        dims, least = ("layer", *dimensions(name)), [size.get(name, 0.0) for size in sizes]
        # nothing fluctuates before the first hidden layer (theory §3): replicates of nothing
        nothing = np.zeros((3, *(inputs,) * TENSORS[name].slots))
        by_layer = [[part.get(name, nothing) for part in parts] for parts in zip(*found, strict=True)]
        measured = [
            [_rounded(jackknife(replicates), size) for replicates in layer]
            for layer, size in zip(by_layer, least, strict=True)
        ]
        if len(widths) == 1:
            values, coefficients, more = [one for (one,) in measured], [np.ones(1)] * len(measured), {}
        else:
            fits = [extrapolate(widths, replicates) for replicates in by_layer]
            values = [_rounded(fit.value, size) for fit, size in zip(fits, least, strict=True)]
            coefficients = [fit.coefficients for fit in fits]
            more = _pair(f"{name}_slope", [fit.slope for fit in fits], dims)
            more |= _pair(f"{name}_order", [fit.order for fit in fits], ("layer",))
            stacked = [Estimate(*map(np.stack, zip(*layers, strict=True))) for layers in zip(*measured, strict=True)]
            more |= _pair(f"{name}_by_width", stacked, ("width", *dims))
        variables |= _pair(name, values, dims) | more
        traces = [
            correlation_traces([c * _block_deviations(name, one, value) for c, one in zip(row, layer, strict=True)])
            for row, layer, value in zip(coefficients, by_layer, values, strict=True)
        ]
        variables[f"{name}_traces"] = (("layer", "power"), np.stack(traces))
    return variables


def _pair(name: str, estimates: Sequence[Estimate], dims: tuple[str, ...]) -> Variables:
    """A variable and its standard error, whose first dimension runs over the estimates."""
    values, errors = (np.stack(parts) for parts in zip(*estimates, strict=True))
    return {name: (dims, values), f"{name}_se": (dims, errors)}


def _rounded(estimate: Estimate, size: float) -> Estimate:
    """Values and scatter that are only rounding are none."""
    least = CANCELLED * max(size, float(np.abs(estimate.value).max()))
    value, error = (np.where(np.abs(part) > least, part, 0.0) for part in estimate)
    return Estimate(value, error)


def _block_deviations(name: str, replicates: np.ndarray, estimate: Estimate) -> np.ndarray:
    """Of the distinct entries, block by block (blocks, entries); their squares add up to the jackknife's."""
    kept = distinct_entries(name, replicates.shape[-1])
    left_out = replicates[1:].reshape(len(replicates) - 1, -1)[:, kept]
    scale = np.sqrt((len(left_out) - 1) / len(left_out)) * (np.ravel(estimate.error)[kept] > 0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # past the largest number, as in `jackknife`
        return scale * (left_out - left_out.mean(axis=0))


def correlation_traces(deviations: Sequence[np.ndarray]) -> np.ndarray:
    """tr R, tr R², tr R³ from deviations (blocks, entries) whose squares add up to the squared standard errors.

    R is the correlation matrix of the errors of some entries. The sum of their squared pulls has the cumulants tr R,
    2 tr R² and 8 tr R³: three traces are enough for its distribution to a good approximation.

    Several arrays belong to independent measurements, whose squares add up too. Correlations that are estimated from b
    blocks are too large: a squared one is 1/(b − 1) on average where there is none. That is taken off: from tr R² so
    that it is right for entries without correlation and for entries that are all alike, from tr R³ with the third
    moment of a Wishart matrix. Entries without scatter do not count, nor those whose scatter is not finite.

    >>> rng = np.random.default_rng(0)
    >>> apart, alike = rng.normal(size=(64, 20)), rng.normal(size=(64, 1)) * np.ones(20)
    >>> correlation_traces([apart])[:2].round().tolist(), correlation_traces([alike]).round().tolist()
    ([20.0, 20.0], [20.0, 400.0, 8000.0])
    """
    largest = np.max([np.abs(part).max(axis=0) for part in deviations], axis=0)
    used = (largest > 0.0) & np.isfinite(largest)
    count = int(used.sum())
    if not count:
        return np.zeros(3)
    units = [part[:, used] / largest[used] for part in deviations]  # squares of large numbers would overflow
    square = np.sum([np.sum(part**2, axis=0) for part in units], axis=0)
    scaled = [part / np.sqrt(square) for part in units]
    shares = [float(np.sum(part**2)) / count for part in scaled]
    noise = sum(share**2 / (len(part) - 1) for share, part in zip(shares, scaled, strict=True))
    if noise > 1.0 - 1e-9:  # two blocks say nothing about correlations
        return float(count) ** np.arange(1, 4)
    rows = np.concatenate(scaled)
    gram = rows @ rows.T
    second = np.sum(gram**2) - count
    second = np.clip(count + (second - noise * count * (count - 1)) / (1 - noise), count, count**2)
    third = np.sum(gram @ gram * gram) - 3 * count * second * noise * (1 + noise) - count**3 * noise**2
    third = np.clip(third / (1 + 3 * noise + 4 * noise**2), second**2 / count, second**1.5)
    return np.array([count, second, third])


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
    """To infinite width, from replicates (1 + blocks, …) at every width: y + c/n, from three widths on y + c/n + e/n².

    The estimates at different widths come from different networks and are independent; within one width they have
    jackknife replicates (see `mean_replicates`). One fit of least squares for all entries
    of a tensor, each width weighted with its mean squared error.

    >>> def exact(n):
    ...     return np.full((3, 1), 5.0 + 2.0 / n)
    >>> found = extrapolate([16, 32], [exact(16), exact(32)])
    >>> [float(np.round(e.value.item(), 9)) for e in (found.value, found.slope)], bool(np.isnan(found.order.value))
    ([5.0, 2.0], True)
    """
    n = np.asarray(widths, float)
    measured = [jackknife(values) for values in replicates]
    # 1/mean squared error of each width, relative to the largest; equal where nothing scatters
    squares = np.array([np.mean(estimate.error**2) for estimate in measured])
    weights = squares.min() / squares if squares.min() > 0.0 else np.ones(len(squares))
    powers = np.stack([n**-power for power in range(min(len(n), 3))], axis=1)
    fit = np.linalg.pinv(np.sqrt(weights)[:, None] * powers) * np.sqrt(weights)
    value, slope = (_combine(row, measured) for row in fit[:2])
    linear = np.linalg.pinv(np.sqrt(weights)[:, None] * powers[:, :2]) * np.sqrt(weights)
    trend = _combine(linear[1], measured)
    order = Estimate(np.array(np.nan), np.array(np.nan))
    if len(n) > 2 and np.any(np.abs(trend.value) > SIGNIFICANT * trend.error):
        order = _fitted_order(n, weights, replicates)
    return Extrapolated(value, slope, order, fit[0])


def _combine(row: np.ndarray, measured: Sequence[Estimate]) -> Estimate:
    value = sum(c * estimate.value for c, estimate in zip(row, measured, strict=True))
    square = sum((c * estimate.error) ** 2 for c, estimate in zip(row, measured, strict=True))
    return Estimate(np.asarray(value), np.sqrt(square))


def _fitted_order(n: np.ndarray, weights: np.ndarray, replicates: Sequence[np.ndarray]) -> Estimate:
    """p of the least-squares fit y_e + c_e n^−p, one p for all entries e; its error from leaving out blocks.

    With y and c eliminated, the sum of squares is tr Q(p)C, where C = Σ_e y_e y_eᵀ over widths.
    """
    root = np.sqrt(weights)
    columns = np.stack([np.stack([np.ones_like(n), (n[0] / n) ** p], axis=1) for p in ORDERS_TRIED])
    basis, _ = np.linalg.qr(root[:, None] * columns)
    residual = root[:, None] * (np.eye(len(n)) - basis @ basis.swapaxes(1, 2)) * root
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
