"""Training and Bayesian inference at infinite width, and a clear word when a kernel is singular (theory §8, §9).

The dynamics of training is linear under a constant Θ:
    z_x(t) = z_x − Θ_xA G (z_A − y),    G = Θ_AA⁻¹ (1 − e^{−Θ_AA t})  or  Θ_AA⁻¹ (1 − (1 − ηΘ_AA)^steps),  and so on
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
from widthwise.errors import InvalidInput, SingularKernel
from widthwise.inference.linear_training import (
    BatchNoise,
    LinearAlgorithm,
    batch_of,
    check_rates,
    duration,
    mode_response,
)
from widthwise.network import GradientDescent, GradientFlow, NewtonStep
from widthwise.network.losses import SQUARED, Loss, require_an_end
from widthwise.network.stability import check_batch, decay_of

#: Eigenvalues and pivots below this share of the largest are error of the kernel, whose entries are known to 1e-12.
SINGULAR = 4e-12

#: Algorithms that are solved to order 1/n.
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

    def check(self, algorithm: LinearAlgorithm, Theta: np.ndarray, X: np.ndarray, loss: Loss = SQUARED) -> None:
        """Refuse steps past the bound, and training to convergence with a singular kernel, or a loss without an end."""
        check_rates(algorithm, float(self.values[-1]), loss)
        if duration(algorithm) is None:
            require_an_end(algorithm, loss)
            if decay_of(algorithm) > 0.0 and not loss.is_squared:
                got = f"{algorithm!r}, to convergence, with loss={loss.name!r}"
                raise InvalidInput("algorithm", got, "a number of steps, or a time", "Decay keeps it from z = y.")
        check_batch(algorithm, len(X))
        singular = self.values[0] + decay_of(algorithm) <= SINGULAR * self.values[-1]
        if duration(algorithm) is None and (singular or (coinciding_rows(X) and decay_of(algorithm) == 0.0)):
            limited = (
                "GradientFlow(time=…)" if isinstance(algorithm, GradientFlow | NewtonStep) else "a number of steps"
            )
            raise refuse_singular(Theta, X, "Theta", f"train for a finite time with {limited}")

    def response(self, algorithm: LinearAlgorithm) -> np.ndarray:
        """G = Σ u_p G(λ_p) u_pᵀ: the parameters move by −λJᵀ G ε₀, on average over batches (`linear_training`)."""
        return (self.vectors * mode_response(algorithm, self.values)) @ self.vectors.T


class TrainedMap(NamedTuple):
    """What training makes of the errors ε₀ at the start: a = G ε₀, G random where batches are drawn.

    `response` is E[G]. With batches `square` is E[G K Gᵀ], and `scatter` (outputs, outputs, train, train) is what they
    add to the covariance of G y_i and G y_j; both are None without.
    """

    response: np.ndarray
    square: np.ndarray | None
    scatter: np.ndarray | None

    @classmethod
    def of(cls, algorithm: LinearAlgorithm, spectrum: Spectrum, K: np.ndarray, Theta: np.ndarray, y: np.ndarray):
        G = spectrum.response(algorithm)
        size = batch_of(algorithm, len(y))
        if size is None:
            return cls(G, None, None)
        noise = BatchNoise(algorithm, Theta, size)
        if duration(algorithm) is None:
            noise.check_convergence()
            return cls(G, None, None)
        square = noise.second_moments(K)
        scatter = noise.second_moments(np.einsum("ai,bj->ijab", y, y))
        means = G @ y
        return cls(G, square, scatter - np.einsum("ai,bj->ijab", means, means))


class KernelBlocks(NamedTuple):
    """K and Θ on training inputs A and inputs x to predict: the blocks AA, xA and xx."""

    K_AA: np.ndarray
    K_xA: np.ndarray
    K_xx: np.ndarray
    Theta_AA: np.ndarray
    Theta_xA: np.ndarray

    @property
    def at_training(self) -> KernelBlocks:
        """The same with the training inputs as those to predict."""
        return self._replace(K_xA=self.K_AA, K_xx=self.K_AA, Theta_xA=self.Theta_AA)

    def trained(self, y: np.ndarray, by: TrainedMap) -> tuple[np.ndarray, np.ndarray]:
        """Mean (outputs, inputs) and covariance (outputs, inputs, outputs, inputs) of trained outputs at x."""
        transfer = self.Theta_xA @ by.response
        mixed = transfer @ self.K_xA.T
        # rounding is least where the transfer is formed first
        fitted = transfer @ self.K_AA @ transfer.T if by.square is None else self.Theta_xA @ by.square @ self.Theta_xA.T
        spread = self.K_xx - mixed - mixed.T + fitted
        covariance = np.einsum("ij,xy->ixjy", np.eye(y.shape[1]), spread)
        if by.scatter is not None:
            covariance += np.einsum("xa,ijab,yb->ixjy", self.Theta_xA, by.scatter, self.Theta_xA, optimize=True)
        return (self.Theta_xA @ by.response @ y).T, covariance


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
    if not all(np.isfinite(part).all() for part in (mean, covariance, evidence)):
        raise InvalidInput(
            "X_train", f"inputs whose kernel, {np.abs(K).max():.2g} at most, has inverses too large for order 1",
            "a kernel nearer to 1", "Rescale the inputs, choose C_W nearer to its critical value, or set noise > 0.",
        )  # fmt: skip
    return PosteriorCorrections(mean, covariance, float(evidence))
