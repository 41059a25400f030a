"""Training and Bayesian inference at infinite width, and a clear word when a kernel is singular (theory §8, §9).

The dynamics of training is linear under a constant Θ:
    z_x(t) = z_x − Θ_xA G (z_A − y),    G = Θ_AA⁻¹ (1 − e^{−Θ_AA t})  or  Θ_AA⁻¹ (1 − (1 − ηΘ_AA)^steps)
With z ~ N(0, K) at initialisation the trained outputs are Gaussian, each output of the network on its own.

Bayesian inference is that of a Gaussian process with the kernel K, with corrections of order 1/n. Given the layers
below, the outputs are Gaussian processes with one random kernel Ĝ = K + G1/n + ΔG, E[ΔG ΔG] = V/n, which the data
reweight by p(y|Ĝ). For any function X of the kernel
    E[X | y] = X + (1/n)[G1·∂X + ½ V:∂∂X + V:(∂X)(∂ℓ)],      ℓ = log p(y|G),
and the posterior covariance is E[C | y] + cov(m, m | y), the second part V:(∂m)(∂m)/n, which couples the outputs.
With S = (K + noise)⁻¹ on the training inputs and zero elsewhere, α = S y and R = (−K_xA S, 1), a change Δ of G makes
    m = m + RΔα − RΔSΔα,    C = C + RΔRᵀ − RΔSΔRᵀ,
    ℓ = ℓ + ΔL − ½ Σ αᵀΔSΔα + (n_L/4) tr SΔSΔ,    L = ½(ααᵀ − n_L S).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg

from widthwise.devices import library
from widthwise.errors import SingularKernel, UnstableLearningRate
from widthwise.network import GradientDescent, GradientFlow, NewtonStep

#: Eigenvalues below this share of the largest are error of the kernel, which is known to about 1e-13.
SINGULAR = 1e-12

Algorithm = GradientFlow | GradientDescent | NewtonStep


def refuse_singular(kernel: np.ndarray, X: np.ndarray, symbol: str, remedy: str) -> SingularKernel:
    """An error that names coinciding training inputs, or else the two most alike in the kernel."""
    rows = coinciding_rows(X)
    if rows:
        named = "; ".join(" and ".join(map(str, group)) for group in rows[:5])
        got = f"rows {named} that coincide, so that {symbol} on the training inputs is singular"
        return SingularKernel("X_train", got, "distinct training inputs", f"Remove the repetitions, or {remedy}.")
    scale = np.sqrt(np.diag(kernel))
    correlation = np.abs(kernel) / np.maximum(np.outer(scale, scale), 1e-300)
    np.fill_diagonal(correlation, 0.0)
    a, b = np.unravel_index(np.argmax(correlation), correlation.shape)
    least = float(linalg.eigvalsh(kernel).min())
    got = (
        f"inputs on which {symbol} is singular to rounding: least eigenvalue {least:.1e} against trace "
        f"{np.trace(kernel):.1e}; rows {min(a, b)} and {max(a, b)} are most alike, correlation {correlation[a, b]:.12g}"
    )
    return SingularKernel("X_train", got, "inputs that the kernel tells apart", f"Drop some inputs, or {remedy}.")


def coinciding_rows(X: np.ndarray) -> list[list[int]]:
    """Groups of rows of X that are the same input.

    >>> coinciding_rows(np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0]]))
    [[0, 2]]
    """
    _, first = np.unique(X, axis=0, return_inverse=True)
    order = np.argsort(first.ravel(), kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(first.ravel()[order])) + 1)
    return sorted(sorted(map(int, group)) for group in groups if len(group) > 1)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues and eigenvectors of Θ on the training inputs."""

    values: np.ndarray
    vectors: np.ndarray

    @classmethod
    def of(cls, Theta: np.ndarray) -> Spectrum:
        return cls(*linalg.eigh(Theta))

    def check(self, algorithm: Algorithm, Theta: np.ndarray, X: np.ndarray) -> None:
        """Refuse steps past the bound, and training to convergence with a singular kernel."""
        # steps below it converge, steps above it diverge
        largest = 2.0 / float(self.values[-1]) if self.values[-1] > 0 else float("inf")
        if isinstance(algorithm, GradientDescent) and algorithm.learning_rate >= largest:
            raise UnstableLearningRate(
                "learning_rate",
                f"{algorithm.learning_rate:g}",
                f"less than 2/λ_max = {largest:.6g}, the stable bound on these training inputs",
            )
        singular = self.values[0] <= SINGULAR * self.values[-1]
        if duration(algorithm) is None and (singular or coinciding_rows(X)):
            limited = "a number of steps" if isinstance(algorithm, GradientDescent) else "GradientFlow(time=…)"
            raise refuse_singular(Theta, X, "Theta", f"train for a finite time with {limited}")

    def response(self, algorithm: Algorithm) -> np.ndarray:
        """G = Σ u_p (1 − decay_p)/λ_p u_pᵀ, where an error decays to e^{−λt}, or (1 − ηλ)^steps, or nothing."""
        small, time = self.values <= 1e-14 * self.values[-1], duration(algorithm)
        if time is None:
            reached, limit = np.ones(len(self.values)), 0.0
        elif isinstance(algorithm, GradientDescent):
            reached = 1.0 - (1.0 - algorithm.learning_rate * self.values) ** time
            limit = algorithm.learning_rate * time
        else:
            reached, limit = -np.expm1(-self.values * time), time
        weights = np.where(small, limit, reached / np.where(small, 1.0, self.values))
        return (self.vectors * weights) @ self.vectors.T


def duration(algorithm: Algorithm) -> float | None:
    """A time, a number of steps, or None where the training data are fitted."""
    if isinstance(algorithm, GradientFlow):
        return algorithm.time
    return algorithm.steps if isinstance(algorithm, GradientDescent) else None


class KernelBlocks(NamedTuple):
    """K and Θ on training inputs A and inputs x to predict: the blocks AA, xA and xx."""

    K_AA: np.ndarray
    K_xA: np.ndarray
    K_xx: np.ndarray
    Theta_AA: np.ndarray
    Theta_xA: np.ndarray

    def trained(self, y: np.ndarray, response: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean (inputs, outputs) and covariance (inputs, inputs) over initialisations of trained outputs at x."""
        transfer = self.Theta_xA @ response
        mixed = transfer @ self.K_xA.T
        return transfer @ y, self.K_xx - mixed - mixed.T + transfer @ self.K_AA @ transfer.T


@dataclass(frozen=True)
class GaussianProcess:
    """A kernel on training inputs, factorised once: posterior mean, covariance and log evidence.

    `K` is (train, train), `noise` the variance of the observation noise, `X` the training inputs (for messages).
    """

    factor: Any

    @classmethod
    def condition(cls, K: Any, noise: float, X: np.ndarray) -> GaussianProcess:
        """A kernel of numpy, or one of jax, which is factorised where it is."""
        diagonal = library(K).arange(len(K))
        try:
            if isinstance(K, np.ndarray):
                noisy = K.copy()
                noisy[diagonal, diagonal] += noise
                factor = linalg.cholesky(noisy, lower=True, overwrite_a=True)
            else:
                factor = jnp.linalg.cholesky(K.at[diagonal, diagonal].add(noise))
        except linalg.LinAlgError:
            raise refuse_singular(K, X, "K", "set noise > 0") from None
        size = np.asarray(factor.diagonal())
        # where jax finds no factor, it gives NaN
        if not (size.min() / size.max()) ** 2 >= SINGULAR or (noise == 0.0 and coinciding_rows(X)):
            raise refuse_singular(np.asarray(K), X, "K", "set noise > 0")
        return cls(factor)

    @property
    def _linalg(self) -> Any:
        return linalg if isinstance(self.factor, np.ndarray) else jax.scipy.linalg

    def solve(self, right: np.ndarray) -> np.ndarray:
        return np.asarray(self._linalg.cho_solve((self.factor, True), right))

    def mean(self, K_cross: np.ndarray, y: np.ndarray) -> np.ndarray:
        """K_xA (K_AA + noise)⁻¹ y, shape (test, outputs)."""
        return K_cross @ self.solve(y)

    def covariance(self, K_test: np.ndarray, K_cross: np.ndarray) -> np.ndarray:
        """K_xx − K_xA (K_AA + noise)⁻¹ K_Ax."""
        half = np.asarray(self._linalg.solve_triangular(self.factor, K_cross.T, lower=True))
        return K_test - half.T @ half

    def log_evidence(self, y: np.ndarray) -> float:
        """log p(y) summed over outputs, which are independent at infinite width."""
        points, outputs = y.shape
        half = np.asarray(self._linalg.solve_triangular(self.factor, y, lower=True))
        log_determinant = 2.0 * np.sum(np.log(np.asarray(self.factor.diagonal())))
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
