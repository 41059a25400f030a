"""Bayesian inference: a Gaussian process with the infinite-width kernel, and its corrections of order 1/n (theory §9).

Given the layers below, the outputs are Gaussian processes with one random kernel Ĝ = K + G1/n + ΔG, E[ΔG ΔG] = V/n,
which the data reweight by p(y|Ĝ). For any function X of the kernel
    E[X | y] = X + (1/n)[G1·∂X + ½ V:∂∂X + V:(∂X)(∂ℓ)],      ℓ = log p(y|G),
and the posterior covariance is E[C | y] + cov(m, m | y), the second part V:(∂m)(∂m)/n, which couples the outputs.
With S = (K + noise)⁻¹ on the training inputs and zero elsewhere, α = S y and R = (−K_xA S, 1), a change Δ of G makes
    m = m + RΔα − RΔSΔα,    C = C + RΔRᵀ − RΔSΔRᵀ,
    ℓ = ℓ + ΔL − ½ Σ αᵀΔSΔα + (n_L/4) tr SΔSΔ,    L = ½(ααᵀ − n_L S).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import linalg

from widthwise.inference.training_kernel import SINGULAR, coinciding_rows, refuse_singular


@dataclass(frozen=True)
class GaussianProcess:
    """A kernel on training inputs, factorised once: posterior mean, covariance and log evidence.

    `K` is (train, train), `noise` the variance of the observation noise, `X` the training inputs (for messages).
    """

    factor: np.ndarray

    @classmethod
    def condition(cls, K: np.ndarray, noise: float, X: np.ndarray) -> GaussianProcess:
        try:
            factor = linalg.cholesky(K + noise * np.eye(len(K)), lower=True)
        except linalg.LinAlgError:
            raise refuse_singular(K, X, "K", "set noise > 0") from None
        diagonal = np.diag(factor)
        if (diagonal.min() / diagonal.max()) ** 2 < SINGULAR or (noise == 0.0 and coinciding_rows(X)):
            raise refuse_singular(K, X, "K", "set noise > 0")
        return cls(factor)

    def solve(self, right: np.ndarray) -> np.ndarray:
        return linalg.cho_solve((self.factor, True), right)

    def mean(self, K_cross: np.ndarray, y: np.ndarray) -> np.ndarray:
        """K_xA (K_AA + noise)⁻¹ y, shape (test, outputs)."""
        return K_cross @ self.solve(y)

    def covariance(self, K_test: np.ndarray, K_cross: np.ndarray) -> np.ndarray:
        """K_xx − K_xA (K_AA + noise)⁻¹ K_Ax."""
        half = linalg.solve_triangular(self.factor, K_cross.T, lower=True)
        return K_test - half.T @ half

    def log_evidence(self, y: np.ndarray) -> float:
        """log p(y) summed over outputs, which are independent at infinite width."""
        points, outputs = y.shape
        half = linalg.solve_triangular(self.factor, y, lower=True)
        log_determinant = 2.0 * np.sum(np.log(np.diag(self.factor)))
        return float(-0.5 * np.sum(half**2) - 0.5 * outputs * (log_determinant + points * math.log(2 * math.pi)))


class PosteriorCorrections(NamedTuple):
    """Coefficients of 1/n: mean (outputs, tests), covariance (outputs, tests, outputs, tests), log evidence."""

    mean: np.ndarray
    covariance: np.ndarray
    log_evidence: float


def posterior_corrections(
    K: np.ndarray, G1: np.ndarray, V: np.ndarray, y: np.ndarray, noise: float
) -> PosteriorCorrections:
    """From K, G1, V over training inputs, then test inputs, and y (training inputs, outputs).

    >>> one = np.ones((1, 1))
    >>> V = np.full((1, 1, 1, 1), 2.0)
    >>> float(posterior_corrections(one, 0.0 * one, V, one, noise=0.0).log_evidence)    # V/8 (y⁴ − 6y² + 3)
    -0.5
    """
    train, outputs = y.shape
    S = np.zeros_like(K)
    factor = linalg.cho_factor(K[:train, :train] + noise * np.eye(train))
    S[:train, :train] = linalg.cho_solve(factor, np.eye(train))
    alpha = S[:, :train] @ y
    R = np.concatenate([-K[train:, :train] @ S[:train, :train], np.eye(len(K) - train)], axis=1)
    slope = 0.5 * (alpha @ alpha.T - outputs * S)

    # V_(ab)(cd) with one pair closed: by L, and by S across, V_(ab)(cd) S_bc, which stands for E[Δ S Δ]
    crossed = np.einsum("abcd,bc->ad", V, S)
    closed = np.einsum("abcd,cd->ab", V, slope)
    mean = (R @ (G1 + closed - crossed) @ alpha).T
    spread = R @ (G1 + closed - crossed) @ R.T
    halves = np.einsum("xa,abcd,bi->ixcd", R, V, alpha, optimize=True)
    mixing = np.einsum("ixcd,yc,dj->ixjy", halves, R, alpha, optimize=True)
    covariance = np.einsum("ij,xy->ixjy", np.eye(outputs), spread) + mixing
    evidence = np.sum((G1 + 0.5 * closed) * slope)
    evidence += np.sum(crossed * (0.25 * outputs * S - 0.5 * alpha @ alpha.T))
    return PosteriorCorrections(mean, covariance, float(evidence))
