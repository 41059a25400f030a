"""The Bayesian posterior and the evidence to order 1/n (theory §9).

Given the layers below, the outputs are Gaussian processes with one random kernel Ĝ = K + G1/n + ΔG, E[ΔG ΔG] = V/n,
which the data reweight by p(y|Ĝ). For any function X of the kernel
    E[X | y] = X + (1/n)[G1·∂X + ½ V:∂∂X + V:(∂X)(∂ℓ)],      ℓ = log p(y|G),
and the posterior covariance is E[C | y] + cov(m, m | y), the second part V:(∂m)(∂m)/n, which couples the outputs.
With S = (K + noise)⁻¹ on the training inputs and zero elsewhere, α = S y and R = (−K_xA S, 1), a change Δ of G makes
    m = m + RΔα − RΔSΔα,    C = C + RΔRᵀ − RΔSΔRᵀ,
    ℓ = ℓ + ΔL − ½ Σ αᵀΔSΔα + (n_L/4) tr SΔSΔ,    L = ½(ααᵀ − n_L S).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg


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
