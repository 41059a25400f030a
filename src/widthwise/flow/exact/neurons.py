"""One neuron: quadrature for the law of Y = σ(z)², z ~ N(0, g), dense enough to be spread on a lattice in log Y."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from widthwise.activations import Activation, evaluate, intervals
from widthwise.flow.exact.resolution import FINE, Resolution
from widthwise.gaussian.quadrature import GAUSSIAN_EDGES, REACH, Source, panel_nodes, row_edges

#: Octaves near a zero of σ that are seen on the lattice.
_OCTAVES = 8
#: Octaves towards any other zero of σ, at most.
_MOST_OCTAVES = 19.0


@dataclass(frozen=True)
class Neuron:
    """Quadrature of Y for every kernel g: y, weights (kernels, nodes), ⟨Y⟩ and the mass of Y = 0 (kernels,)."""

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
        offsets = _graded(octaves, resolution.per_octave)
        even = np.arange(-7.8, 7.81, resolution.panel)
        fixed = np.concatenate([GAUSSIAN_EDGES, even, offsets, -offsets])
        sources = [Source(intervals(activation, (0,), REACH * float(std.max())), np.zeros(len(g)), std)]
        near = 2.0 ** -np.arange(1.0, min(_MOST_OCTAVES, octaves) + 1.0)
        around = np.concatenate([-near, [0.0], near[::-1]])
        for zero in _zeros(activation, 2.0 ** np.ceil(np.log2(REACH * float(std.max())))):
            sources.append(Source(zero + around, np.zeros(len(g)), std))
        u, weights = panel_nodes(row_edges(sources, np.unique(fixed)), resolution.nodes)
        y = evaluate(activation, 0, std[:, None] * u) ** 2
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

    def laplace(self, rates: np.ndarray) -> np.ndarray:
        """⟨exp(−rate Y/⟨Y⟩)⟩ (kernels, rates)."""
        scaled = self.y / self.scale[:, None]
        return np.stack([(self.weights * np.exp(-rate * scaled)).sum(axis=1) for rate in rates], axis=1)


def _graded(octaves: int, per_octave: int) -> np.ndarray:
    """Edges from 1 down to 2^−octaves: many to the octave first, then one."""
    fine = 2.0 ** (-np.arange(per_octave * _OCTAVES + 1) / per_octave)
    return np.concatenate([fine, 2.0 ** -np.arange(_OCTAVES + 1.0, octaves + 1.0)])


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
