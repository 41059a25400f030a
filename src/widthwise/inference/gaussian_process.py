"""Exact Gaussian-process inference with the infinite-width kernel (theory §9)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from widthwise.inference.training_kernel import SINGULAR, refuse_singular


@dataclass(frozen=True)
class GaussianProcess:
    """A kernel on training inputs, factorised once: posterior mean, covariance and log evidence.

    `K` is (train, train), `noise` the variance of the observation noise, `X` the training inputs (for messages).
    """

    factor: np.ndarray

    @classmethod
    def condition(cls, K: np.ndarray, noise: float, X: np.ndarray) -> GaussianProcess:
        noisy = K + noise * np.eye(len(K))
        try:
            factor = linalg.cholesky(noisy, lower=True)
        except linalg.LinAlgError:
            raise refuse_singular(K, X, "K", "set noise > 0") from None
        diagonal = np.diag(factor)
        if (diagonal.min() / diagonal.max()) ** 2 < SINGULAR:
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


def draw_functions(mean: np.ndarray, covariance: np.ndarray, samples: int, seed: int) -> np.ndarray:
    """Gaussian samples (samples, outputs, inputs), independent outputs with means (inputs, outputs)."""
    values, vectors = linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = np.random.default_rng(seed).standard_normal((samples, mean.shape[1], len(covariance)))
    return mean.T + normal @ root.T
