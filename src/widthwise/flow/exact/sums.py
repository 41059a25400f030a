"""The sum of n neurons: S = Σ_j Y_j, Y_j = σ(z_j)²/⟨σ²⟩, z_j ~ N(0, g) independent, by doubling on a lattice in log S.

S_{2k} = S_k + S_k and S_{2k+1} = S_k + S_{k+1}: two neighbouring sums at every level carry any n. A level is refined
when its standard deviation asks for it, so that a row stays a few hundred points long whatever the width. All kernels
g of a table go through together, one row each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from widthwise.activations import Activation
from widthwise.flow.exact.lattice import MARGIN, add, refine, spread, trim
from widthwise.flow.exact.neurons import Neuron
from widthwise.flow.exact.resolution import FINE, Resolution


@dataclass(frozen=True)
class Rows:
    """Weights (rows, size) of log S at (first + k) h, and the mass at S = 0 (rows,)."""

    weights: np.ndarray
    first: int
    h: float
    silent: np.ndarray

    def normalised(self) -> Rows:
        """Total mass one, up to rounding; what is divided out is the rounding of many doublings."""
        total = self.weights.sum(axis=1, keepdims=True)
        return replace(self, weights=self.weights * ((1.0 - self.silent[:, None]) / np.where(total == 0.0, 1.0, total)))

    def joined(self, other: Rows) -> Rows:
        """The rows of both, one after the other, on one lattice."""
        first = min(self.first, other.first)
        size = max(rows.first + rows.weights.shape[1] for rows in (self, other)) - first
        weights = np.concatenate([rows._placed(first, size) for rows in (self, other)])
        return Rows(weights, first, self.h, np.concatenate([self.silent, other.silent]))

    def taken(self, index: np.ndarray) -> Rows:
        """Some of the rows, in the order asked for."""
        return replace(self, weights=self.weights[index], silent=self.silent[index])

    def after_silence(self) -> Rows:
        """One more row in front: all neurons silent for certain."""
        weights = np.concatenate([np.zeros((1, self.weights.shape[1])), self.weights])
        return replace(self, weights=weights, silent=np.concatenate([[1.0], self.silent]))

    def refined(self, h: float) -> Rows:
        rows = self
        while rows.h > h:
            rows = Rows(refine(rows.weights), 2 * rows.first, rows.h / 2, rows.silent)
        return rows

    def plus(self, other: Rows, resolution: Resolution) -> Rows:
        """Law of the sum of two independent sums."""
        first = min(self.first, other.first)
        size = max(rows.first + rows.weights.shape[1] for rows in (self, other)) - first
        u, v = self._placed(first, size), other._placed(first, size)
        total = add(u, u if other is self else v, self.h)
        total[:, :size] += self.silent[:, None] * v + other.silent[:, None] * u
        return Rows(*trim(total, first, resolution), self.h, self.silent * other.silent)

    def _placed(self, first: int, size: int) -> np.ndarray:
        before = self.first - first
        return np.pad(self.weights, ((0, 0), (before, size - before - self.weights.shape[1])))


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
) -> tuple[Rows, Neuron]:
    """Law of log S for every kernel in g, and the quadrature of one neuron that it comes from.

    `deviation` of one log Y sets the spacing; laws that are narrower than it are resolved less, but integrate
    smooth functions as well.
    """
    neuron = Neuron.at(activation, g, n == 1, resolution)
    one = _one(neuron, deviation, n == 1, resolution)
    known = {1: one}

    def law(k: int) -> Rows:
        if k not in known:
            low, high = law(k // 2), law(k - k // 2)
            h = min(low.h, high.h)
            low, high = (rows.refined(h) for rows in (low, high)) if high is not low else [low.refined(h)] * 2
            known[k] = low.plus(high, resolution).refined(sum_spacing(deviation, k, resolution))
        return known[k]

    return law(n).normalised(), neuron


def _one(neuron: Neuron, deviation: float, alone: bool, resolution: Resolution) -> Rows:
    lowest = resolution.lowest_alone if alone else resolution.lowest
    weights = np.where(neuron.y == 0.0, 0.0, neuron.weights)
    with np.errstate(divide="ignore"):
        x = np.log(neuron.y / neuron.scale[:, None])
    seen = x[(weights > 0.0) & (x > lowest)]
    low, high = float(seen.min(initial=0.0)), float(seen.max(initial=0.0))
    h = sum_spacing(deviation, 1, resolution)
    first = math.floor(low / h) - MARGIN
    size = math.ceil(high / h) - first + MARGIN + 1
    lattice = spread(np.maximum(x, low), weights, h, first, size)
    return Rows(*trim(lattice, first, resolution), h, neuron.silent)
