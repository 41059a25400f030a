"""Training at infinite width, and a clear word when its kernel is singular (theory §8, free part).

The dynamics is linear under a constant Θ:
    z_x(t) = z_x − Θ_xA G (z_A − y),    G = Θ_AA⁻¹ (1 − e^{−Θ_AA t})  or  Θ_AA⁻¹ (1 − (1 − ηΘ_AA)^steps)
With z ~ N(0, K) at initialisation the trained outputs are Gaussian, each output of the network on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import linalg

from widthwise.errors import SingularKernel, UnstableLearningRate
from widthwise.network.algorithms import GradientDescent, GradientFlow, NewtonStep

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
