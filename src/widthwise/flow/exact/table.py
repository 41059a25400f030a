"""One layer: the law of m = (1/n) Σ_j σ(z_j)², z_j ~ N(0, g), as rows of lattice weights for any kernels g.

Rows are made at kernels spaced evenly in log g (`neurons`) and interpolated between them in the frame log(m/⟨σ²⟩_g),
where they change slowly. A scale-free activation needs one row. The Laplace transform ⟨e^(−rY)⟩^n, which needs no
lattice, measures the error of the rows at the kernels and halfway between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from widthwise.activations import Activation
from widthwise.flow.exact.lattice import FINE, HALF, ORDER, Resolution, prefilter, taps
from widthwise.flow.exact.neurons import LatticeRows, Neuron, known_sum, slopes_of, sum_of_neurons, sum_spacing

#: Kernels whose normalised laws differ less than this share one row.
SAME_LAW = 1e-13
LAPLACE_RATES = np.array([0.3, 1.0, 3.0, 10.0, 30.0])


@dataclass(frozen=True)
class SumTable:
    """`rows` of log S = log(n m/⟨σ²⟩) at the kernels `log_g`; the first `shared` kernels use the first row as well.

    `log_mean` is log⟨σ²⟩ at the kernels. A single kernel serves others by scaling. `deviation` is that of log m at
    a typical kernel, `error` the largest difference of Laplace transforms.
    """

    n: int
    log_g: np.ndarray
    log_mean: np.ndarray
    rows: LatticeRows
    shared: int
    scale_free: bool
    deviation: float
    error: float
    resolution: Resolution

    @classmethod
    def over(
        cls,
        activation: Activation,
        n: int,
        low: float,
        high: float,
        typical: float,
        before: SumTable | None = None,
        resolution: Resolution = FINE,
    ) -> SumTable:
        """A table for kernels between e^low and e^high, with the resolution that the typical one asks for.

        Rows of an earlier table `before` are used again where they have that resolution.
        """
        if slopes_of(activation) is not None or low == high:
            return cls._single(activation, n, low, resolution)
        step = resolution.kernel_step
        log_g = step * np.arange(math.floor(low / step) - HALF, math.ceil(high / step) + HALF + 1)
        every = Neuron.at(activation, np.exp(log_g), resolution=resolution)
        # kernels so small that σ vanishes wherever they reach have a row in common, and so have those with one law
        silent = min(int(np.count_nonzero(every.mean == 0.0)), len(log_g) - 1)
        shared = silent or _shared(every)
        deviation = float(Neuron.at(activation, np.exp([typical]), resolution=resolution).deviation[0])
        rows, error = _rows_at(activation, n, log_g[shared:], deviation, before, resolution)
        if silent:
            # one more row in front: all neurons silent for certain
            silence = LatticeRows(np.zeros_like(rows.weights[:1]), rows.first, rows.h, np.ones(1))
            rows, shared = silence.joined(rows), silent - 1
        log_mean = np.log(np.where(every.mean > 0.0, every.mean, every.scale[silent]))
        table = cls(n, log_g, log_mean, rows, shared, False, deviation / math.sqrt(n), error, resolution)
        middle = 0.5 * (log_g[HALF : -HALF - 1] + log_g[HALF + 1 : -HALF])
        across = table._collapsed(_interpolation(log_g, middle))
        between = LatticeRows(across @ rows.weights, rows.first, rows.h, across @ rows.silent)
        defect = _defect(between, Neuron.at(activation, np.exp(middle), resolution=resolution), n)
        return replace(table, error=max(error, defect))

    @classmethod
    def _single(cls, activation: Activation, n: int, log_g: float, resolution: Resolution) -> SumTable:
        scale_free = slopes_of(activation) is not None
        at = np.array([0.0 if scale_free else log_g])
        neuron = Neuron.at(activation, np.exp(at), resolution=resolution)
        deviation = float(neuron.deviation[0])
        rows = known_sum(activation, n)
        if rows is None:
            rows, neuron = sum_of_neurons(activation, np.exp(at), n, deviation, resolution)
        error = _defect(rows, neuron, n)
        scale = np.log(neuron.scale)
        return cls(n, at, scale, rows, 0, scale_free, deviation / math.sqrt(n), error, resolution)

    def reaches(self, log_g: np.ndarray) -> np.ndarray:
        """Which of the kernels e^log_g can be read."""
        if self.scale_free:
            return np.ones(len(log_g), bool)
        if len(self.log_g) == 1:
            return log_g == self.log_g[0]
        return (self.log_g[HALF - 1] <= log_g) & (log_g <= self.log_g[-HALF])

    @cached_property
    def _filtered(self) -> np.ndarray:
        return prefilter(self.rows.weights)

    def _collapsed(self, across: np.ndarray) -> np.ndarray:
        """Kernels that share the first row hand it their coefficients."""
        rest = across[:, self.shared :].copy()
        rest[:, 0] += across[:, : self.shared].sum(axis=1)
        return rest

    def band(self, log_g: np.ndarray, h: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows for kernels e^log_g at the common points k h; h is that of the table times a power of two.

        Weights of log m, entry k of row j at (first_j + k) h; `first`; and the mass at m = 0 of each row.
        """
        if len(self.log_g) == 1:
            across = np.ones((len(log_g), 1))
            log_mean = self.log_mean[0] + log_g - self.log_g[0]
        else:
            across = _interpolation(self.log_g, log_g)
            log_mean, across = across @ self.log_mean, self._collapsed(across)
        # log m = log S + log⟨σ²⟩ − log n; the first HALF points of a row are margin
        origin = (self.rows.first + HALF) * self.rows.h + log_mean - math.log(self.n)
        first = np.ceil(origin / h)
        start = (first * h - origin) / self.rows.h
        values = _spline_values(across @ self._filtered, start, h / self.rows.h) * (h / self.rows.h)
        return values, first.astype(np.int64), across @ self.rows.silent


def _spline_values(filtered: np.ndarray, start: np.ndarray, step: float) -> np.ndarray:
    """Spline values of every row at HALF + start + k step, 0 ≤ start ≤ step, step a power of two."""
    rows, size = filtered.shape
    stride, phases = max(1, round(step)), max(1, round(1.0 / step))
    length = (size - ORDER) // stride - 1
    result = np.empty((rows, length, phases))
    for phase in range(phases):
        position = start + phase / phases
        cell = np.minimum(position, stride - 1e-9).astype(np.int64)
        for offset in np.unique(cell):
            some = cell == offset
            coefficients = taps(position[some] - offset)
            total = np.zeros((np.count_nonzero(some), length))
            for tap, begin in zip(coefficients, range(offset + 1, offset + 1 + ORDER), strict=True):
                total += tap[:, None] * filtered[some, begin : begin + stride * length : stride]
            result[some, :, phase] = total
    return result.reshape(rows, -1)


def _rows_at(
    activation: Activation, n: int, log_g: np.ndarray, deviation: float, before: SumTable | None, resolution: Resolution
) -> tuple[LatticeRows, float]:
    """Rows at the kernels, made only where an earlier table does not have them, and their error."""
    index, error, old = {}, 0.0, None
    spacing = resolution.kernel_step
    if before is not None and len(before.log_g) > 1 and before.rows.h == sum_spacing(deviation, n, resolution):
        steps = np.round(before.log_g[before.shared :] / spacing).astype(int)
        index, error, old = {int(step): k for k, step in enumerate(steps)}, before.error, before.rows
    wanted = [int(step) for step in np.round(log_g / spacing)]
    missing = [step for step in wanted if step not in index]
    if missing:
        rows, neuron = sum_of_neurons(activation, np.exp(spacing * np.array(missing)), n, deviation, resolution)
        error = max(error, _defect(rows, neuron, n))
        index |= {step: len(index) + k for k, step in enumerate(missing)}
        old = rows if old is None else old.joined(rows)
    assert old is not None
    return old.taken(np.array([index[step] for step in wanted])), error


def _interpolation(nodes: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Lagrange coefficients (at, nodes) through the `ORDER` evenly spaced nodes around each point."""
    t = (at - nodes[0]) / (nodes[1] - nodes[0])
    start = np.clip(np.floor(t).astype(np.int64) - HALF + 1, 0, len(nodes) - ORDER)
    offset = t - start
    result = np.zeros((len(at), len(nodes)))
    index = np.arange(len(at))
    for k in range(ORDER):
        others = [j for j in range(ORDER) if j != k]
        result[index, start + k] = np.prod([(offset - j) / (k - j) for j in others], axis=0)
    return result


def _shared(neuron: Neuron) -> int:
    """How many of the leading kernels have the normalised law of the first one."""
    scaled = neuron.y / neuron.scale[:, None]
    difference = np.abs(scaled[1:] - scaled[:1]) * np.minimum(neuron.weights[1:], neuron.weights[:1])
    differing = np.nonzero(difference.sum(axis=1) > SAME_LAW)[0]
    return int(differing[0]) if len(differing) else len(scaled) - 1


def _defect(rows: LatticeRows, neuron: Neuron, n: int) -> float:
    """Largest difference between E e^(−rate m/⟨m⟩) from the rows and ⟨e^(−rate Y/(n⟨Y⟩))⟩^n."""
    s = np.exp(rows.h * (rows.first + np.arange(rows.weights.shape[1]))) / n
    read = np.stack([rows.weights @ np.exp(-rate * s) for rate in LAPLACE_RATES], axis=1) + rows.silent[:, None]
    scaled = neuron.y / neuron.scale[:, None]
    exact = np.stack([(neuron.weights * np.exp(-rate * scaled)).sum(axis=1) for rate in LAPLACE_RATES / n], axis=1)
    return float(np.abs(read - exact**n).max())
