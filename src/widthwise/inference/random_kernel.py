"""Kernels of networks of finite width, drawn: mean K + G1/n, covariance V/n, positive definite always (theory §9).

With K = R Rᵀ the random kernel is written as
    Ĝ = R exp(M + Δ) Rᵀ,    Δ symmetric and Gaussian with covariance R⁻¹R⁻¹ V R⁻ᵀR⁻ᵀ/n,
    M = R⁻¹ G1 R⁻ᵀ/n − ½ E[Δ²].
An exponential of a symmetric matrix is positive definite whatever is drawn. E[exp(M + Δ)] = 1 + M + ½E[Δ²] up to order
1/n² gives the mean, and to first order in Δ the covariance is that of Δ. Directions in which K vanishes stay without
variance, as they do in every network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import linalg

#: Directions of K below this share of the largest are rounding.
EMPTY = 1e-12


@dataclass(frozen=True)
class RandomKernel:
    """R (inputs, directions), M, and a root of the covariance of Δ, (coordinates, directions, directions)."""

    R: np.ndarray
    M: np.ndarray
    roots: np.ndarray

    @classmethod
    def of(cls, K: np.ndarray, G1: np.ndarray, V: np.ndarray, n: int) -> RandomKernel:
        """From K, G1 (inputs, inputs) and V (inputs, inputs, inputs, inputs).

        >>> one = np.ones((1, 1))
        >>> law = RandomKernel.of(one, 0.0 * one, np.full((1, 1, 1, 1), 2.0), 200)
        >>> kernels = law.draw(20_000, np.random.default_rng(0))
        >>> bool(abs(kernels.mean() - 1.0) < 0.004), bool(abs(200 * kernels.var() - 2.0) < 0.15)
        (True, True)
        """
        values, vectors = linalg.eigh(K)
        there = values > EMPTY * max(values[-1], 0.0)
        R, inverse = vectors[:, there] * np.sqrt(values[there]), vectors[:, there] / np.sqrt(values[there])
        white = np.einsum("abcd,ai,bj,ck,dl->ijkl", V, inverse, inverse, inverse, inverse, optimize=True) / n
        directions = R.shape[1]
        # symmetric matrices in an orthonormal basis: e_i e_iᵀ and (e_i e_jᵀ + e_j e_iᵀ)/√2
        rows, columns = np.triu_indices(directions)
        scale = np.where(rows == columns, 1.0, math.sqrt(2.0))
        variances, axes = linalg.eigh(white[rows, columns][:, rows, columns] * np.outer(scale, scale))
        roots = np.zeros((len(rows), directions, directions))
        roots[:, rows, columns] = roots[:, columns, rows] = (axes * np.sqrt(np.maximum(variances, 0.0))).T / scale
        shift = inverse.T @ G1 @ inverse / n - 0.5 * np.einsum("ijjk->ik", white)
        return cls(R, shift, roots)

    @property
    def spread(self) -> float:
        """The standard deviation of the trace of Δ over its number of directions: how much kernels vary in size."""
        return float(np.linalg.norm(np.einsum("cii->c", self.roots)) / max(len(self.M), 1))

    def draw(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Kernels (draws, inputs, inputs)."""
        factors = self.draw_factors(draws, rng)
        return factors @ factors.swapaxes(1, 2)

    def draw_factors(self, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Roots of kernels, (draws, inputs, directions): Ĝ = root rootᵀ."""
        delta = np.tensordot(rng.standard_normal((draws, len(self.roots))), self.roots, 1)
        values, vectors = np.linalg.eigh(self.M + delta)
        return self.R @ (vectors * np.exp(0.5 * values)[:, None, :])


def resampled(log_weights: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers of those that are kept, in proportion to their weights: evenly spaced steps through their sum.

    >>> resampled(np.log([1e-300, 0.5, 0.5]), 4, np.random.default_rng(0)).tolist()
    [1, 1, 2, 2]
    """
    weights = np.exp(log_weights - log_weights.max())
    edges = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(edges, (np.arange(draws) + rng.random()) / draws), len(edges) - 1)


def effective_number(log_weights: np.ndarray) -> float:
    """How many equally weighted draws they are worth: (Σw)²/Σw²."""
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / np.sum(weights**2))
