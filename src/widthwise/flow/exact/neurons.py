"""One neuron, Y = σ(z)² with z ~ N(0, g), and the sum of n of them, S = Σ_j Y_j/⟨Y⟩, on a lattice in log S.

S_{2k} = S_k + S_k and S_{2k+1} = S_k + S_{k+1}: two neighbouring sums at every level carry any n. A level is refined
when its standard deviation asks for it, so that a row stays a few hundred points long whatever the width. All kernels
g of a table go through together, one row each.

Scale-free activations have σ² = a₊² z² for z > 0 and a₋² z² for z < 0, so that m/g has one law for every kernel g. With
|a₊| = |a₋|, S = Σ_j z_j²/g is χ²_n. With one slope zero, S = 2 χ²_k with k of the n neurons active, a binomial number:
all are silent with probability 2^(−n).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from widthwise.activations import Activation, evaluate, intervals
from widthwise.activations.closed_forms import homogeneous
from widthwise.errors import InvalidInput
from widthwise.flow.exact.lattice import FINE, LATTICE_MARGIN, Resolution, add, refine, spread_masses, trim
from widthwise.gaussian.quadrature import GAUSSIAN_EDGES, REACH, Source, panel_nodes, row_edges
from widthwise.memory import require_memory

#: Analytic rows are resolved by fewer points than doubled ones.
COARSEST, PER_DEVIATION = 2.0**-4, 8.0
_DEVIATIONS = 15.0
_LOG_LEAST = -110.0
#: Octaves near a zero of σ that are seen on the lattice.
_OCTAVES = 8
#: Octaves towards any other zero of σ, at most.
_MOST_OCTAVES = 19.0


@dataclass(frozen=True)
class Neuron:
    """Quadrature of Y for every kernel g, dense enough to be spread on a lattice in log Y.

    y and weights (kernels, nodes), ⟨Y⟩ and the mass of Y = 0 (kernels,).
    """

    y: np.ndarray
    weights: np.ndarray
    mean: np.ndarray
    silent: np.ndarray

    @classmethod
    def at(cls, activation: Activation, g: np.ndarray, alone: bool = False, resolution: Resolution = FINE) -> Neuron:
        """Nodes for z ~ N(0, g), graded towards every zero of σ until Y/⟨Y⟩ is below what the lattice sees."""
        std = np.sqrt(g)
        lowest = resolution.lowest_alone if alone else resolution.lowest
        octaves = int(np.ceil(-lowest / np.log(4.0))) + 2
        # edges from 1 down to 2^−octaves: many to the octave first, then one
        fine = 2.0 ** (-np.arange(resolution.per_octave * _OCTAVES + 1) / resolution.per_octave)
        offsets = np.concatenate([fine, 2.0 ** -np.arange(_OCTAVES + 1.0, octaves + 1.0)])
        even = np.arange(-7.8, 7.81, resolution.panel)
        fixed = np.concatenate([GAUSSIAN_EDGES, even, offsets, -offsets])
        sources = [Source(intervals(activation, (0,), REACH * float(std.max())), np.zeros(len(g)), std)]
        near = 2.0 ** -np.arange(1.0, min(_MOST_OCTAVES, octaves) + 1.0)
        around = np.concatenate([-near, [0.0], near[::-1]])
        for zero in _zeros(activation, 2.0 ** np.ceil(np.log2(REACH * float(std.max())))):
            sources.append(Source(zero + around, np.zeros(len(g)), std))
        u, weights = panel_nodes(row_edges(sources, np.unique(fixed)), resolution.nodes)
        with np.errstate(over="ignore"):
            y = evaluate(activation, 0, std[:, None] * u) ** 2
        if not np.isfinite(y).all():
            raise InvalidInput(
                "net", f"{activation.name} of preactivations up to {REACH * std.max():.2g}, whose square overflows",
                "kernels that stay finite at every layer", "Take fewer layers, or C_W nearer to its critical value.",
            )  # fmt: skip
        weights = weights / weights.sum(axis=1, keepdims=True)
        return cls(y, weights, (weights * y).sum(axis=1), np.where(y == 0.0, weights, 0.0).sum(axis=1))

    @property
    def variance(self) -> np.ndarray:
        """⟨Y²⟩ − ⟨Y⟩²."""
        return (self.weights * (self.y - self.mean[:, None]) ** 2).sum(axis=1)

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviation of Y over its mean."""
        return np.sqrt(self.variance) / self.scale

    @property
    def scale(self) -> np.ndarray:
        """⟨Y⟩, or one where Y is zero for certain."""
        return np.where(self.mean > 0.0, self.mean, 1.0)


@lru_cache(maxsize=64)
def _zeros(activation: Activation, radius: float) -> list[float]:
    """Where σ changes sign, other than at z = 0."""
    edges = intervals(activation, (0,), radius)
    points = np.unique(np.concatenate([edges, 0.5 * (edges[1:] + edges[:-1])]))
    values = evaluate(activation, 0, points)
    crossing = np.nonzero(values[:-1] * values[1:] < 0.0)[0]
    low, high = points[crossing], points[crossing + 1]
    for _ in range(60 if len(crossing) else 0):
        middle = 0.5 * (low + high)
        left = evaluate(activation, 0, middle) * values[crossing] > 0.0
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return [float(zero) for zero in 0.5 * (low + high)]


@dataclass(frozen=True)
class LatticeRows:
    """Weights (rows, size) of log S at (first + k) h, and the mass at S = 0 (rows,)."""

    weights: np.ndarray
    first: int
    h: float
    silent: np.ndarray

    def normalised(self) -> LatticeRows:
        """Total mass one, up to rounding; what is divided out is the rounding of many doublings."""
        total = self.weights.sum(axis=1, keepdims=True)
        return replace(self, weights=self.weights * ((1.0 - self.silent[:, None]) / np.where(total == 0.0, 1.0, total)))

    def joined(self, other: LatticeRows) -> LatticeRows:
        """The rows of both, one after the other, on one lattice."""
        first, u, v = self._aligned(other)
        return LatticeRows(np.concatenate([u, v]), first, self.h, np.concatenate([self.silent, other.silent]))

    def taken(self, index: np.ndarray) -> LatticeRows:
        """Some of the rows, in the order asked for."""
        return replace(self, weights=self.weights[index], silent=self.silent[index])

    def refined(self, h: float) -> LatticeRows:
        rows = self
        while rows.h > h:
            rows = LatticeRows(refine(rows.weights), 2 * rows.first, rows.h / 2, rows.silent)
        return rows

    def plus(self, other: LatticeRows, resolution: Resolution) -> LatticeRows:
        """Law of the sum of two independent sums."""
        first, u, v = self._aligned(other)
        total = add(u, u if other is self else v, self.h)
        total[:, : u.shape[1]] += self.silent[:, None] * v + other.silent[:, None] * u
        return LatticeRows(*trim(total, first, resolution), self.h, self.silent * other.silent)

    def _aligned(self, other: LatticeRows) -> tuple[int, np.ndarray, np.ndarray]:
        """The lower of both first points, and the weights of both from there on, equally long."""
        first, ends = min(self.first, other.first), [rows.first + rows.weights.shape[1] for rows in (self, other)]
        u, v = (
            np.pad(rows.weights, ((0, 0), (rows.first - first, max(ends) - end)))
            for rows, end in zip((self, other), ends, strict=True)
        )
        return first, u, v


def spacing(deviation: float, coarsest: float, points: float) -> float:
    """The largest power of two that puts enough lattice points into one standard deviation."""
    if deviation <= 0.0:
        return coarsest
    return min(coarsest, 2.0 ** math.floor(math.log2(deviation / points)))


def sum_spacing(deviation: float, n: int, resolution: Resolution) -> float:
    """Lattice spacing of a sum of n neurons, from the deviation of one."""
    one = spacing(deviation, resolution.coarsest, resolution.per_deviation)
    return spacing(deviation / math.sqrt(n), one, resolution.per_deviation)


def sum_of_neurons(
    activation: Activation, g: np.ndarray, n: int, deviation: float, resolution: Resolution = FINE
) -> tuple[LatticeRows, Neuron]:
    """Law of log S for every kernel in g, and the quadrature of one neuron that it comes from.

    `deviation` of one log Y sets the spacing; laws that are narrower than it are resolved less, but integrate
    smooth functions as well.
    """
    neuron = Neuron.at(activation, g, n == 1, resolution)
    known = {1: _rows_of_one(neuron, deviation, n == 1, resolution)}

    def law(k: int) -> LatticeRows:
        if k not in known:
            low, high = law(k // 2), law(k - k // 2)
            h = min(low.h, high.h)
            low, high = (rows.refined(h) for rows in (low, high)) if high is not low else [low.refined(h)] * 2
            known[k] = low.plus(high, resolution).refined(sum_spacing(deviation, k, resolution))
        return known[k]

    return law(n).normalised(), neuron


def _rows_of_one(neuron: Neuron, deviation: float, alone: bool, resolution: Resolution) -> LatticeRows:
    lowest = resolution.lowest_alone if alone else resolution.lowest
    weights = np.where(neuron.y == 0.0, 0.0, neuron.weights)
    with np.errstate(divide="ignore"):
        x = np.log(neuron.y / neuron.scale[:, None])
    seen = x[(weights > 0.0) & (x > lowest)]
    low, high = float(seen.min(initial=0.0)), float(seen.max(initial=0.0))
    h = sum_spacing(deviation, 1, resolution)
    first = math.floor(low / h) - LATTICE_MARGIN
    size = math.ceil(high / h) - first + LATTICE_MARGIN + 1
    lattice = spread_masses(np.maximum(x, low), weights, h, first, size)
    return LatticeRows(*trim(lattice, first, resolution), h, neuron.silent)


def slopes_of(activation: Activation) -> tuple[float, float] | None:
    """(|a₊|, |a₋|) of a scale-free activation, None for any other.

    >>> from widthwise.activations import resolve
    >>> slopes_of(resolve("leaky_relu(0.1)"))
    (1.0, 0.1)
    """
    slopes = homogeneous(activation.closed)
    return (abs(slopes[0]), abs(slopes[1])) if slopes is not None and slopes[2] == 1 else None


def known_sum(activation: Activation, n: int) -> LatticeRows | None:
    """Law of log S, S = Σ_j Y_j/⟨Y⟩ over n neurons, where it is a gamma law or a mixture of them; else None."""
    slopes = slopes_of(activation)
    if slopes is None or max(slopes) == 0.0 or not (slopes[0] == slopes[1] or min(slopes) == 0.0):
        return None
    half = min(slopes) == 0.0
    deviation = math.sqrt((5.0 if half else 2.0) / n)
    h = spacing(deviation, COARSEST, PER_DEVIATION)
    # the lower tail of χ²_k is a power k/2: all n neurons for linear, a single active one of them for relu
    below = _LOG_LEAST / n if not half else min(0.0, _LOG_LEAST + 2.0 * (n * math.log(2.0) - math.log(n)))
    low = -_DEVIATIONS * deviation + below
    high = min(_DEVIATIONS * deviation, 6.0)
    first = math.floor((math.log(n) + low) / h)
    log_s = h * np.arange(first, math.ceil((math.log(n) + high) / h) + 1)
    log_density = _active(log_s, n) if half else _log_gamma(log_s - math.log(2.0), 0.5 * n)
    weights = np.pad(h * np.exp(log_density)[None, :], ((0, 0), (LATTICE_MARGIN, LATTICE_MARGIN)))
    return LatticeRows(*trim(weights, first - LATTICE_MARGIN), h, np.array([0.5**n if half else 0.0])).normalised()


def _log_gamma(log_t: np.ndarray, shape) -> np.ndarray:
    """Log-density of log t for a gamma variable t."""
    return shape * log_t - np.exp(log_t) - gammaln(shape)


def _active(log_s: np.ndarray, n: int) -> np.ndarray:
    # all numbers of active neurons, and densities for those that are not negligible
    numbers = 5 * n + 2 * len(log_s) * min(n, 100 * math.isqrt(n) + 100)
    require_memory(8 * numbers, f"the exact law of {n} neurons", "Take narrower layers, or the expansion in 1/n.")
    k = np.arange(1, n + 1)
    log_mass = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0) - n * math.log(2.0)
    seen = log_mass > 2.2 * _LOG_LEAST
    terms = log_mass[seen, None] + _log_gamma(log_s[None, :] - math.log(4.0), 0.5 * k[seen, None])
    top = terms.max(axis=0)
    return top + np.log(np.exp(terms - top).sum(axis=0))
