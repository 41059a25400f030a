"""Bayesian inference without noise for deep linear networks, exact at every width and depth (theory §10).

Given the layers above the first, the output is θ·x with θ ~ N(0, S), S = (Π C_W/n_0) Π_l χ²_{n_l}/n_l over the hidden
layers. On P points the data fix the part of θ in their span, θ_*, the interpolant of least norm, and see S through
r = |θ_*|² alone:
    p(S | data) ∝ p(S) S^(−P/2) e^(−r/2S),     log evidence = −½ log det(2π XXᵀ) + log E_S[S^(−P/2) e^(−r/2S)].
Averages over S are Meijer G-functions. Off the span θ_⊥ is Gaussian given S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, wrightomega

from widthwise.errors import InvalidInput, SingularKernel
from widthwise.flow.exact.deep_linear import check_linear
from widthwise.network import MLP, check_inputs, check_real, check_targets, real_array
from widthwise.special.linear_products import ProductLaw, log_meijer, product_law

#: Inputs count as linearly dependent when one is that close to the span of the others.
_DEPENDENT = 1e-10


@dataclass(frozen=True)
class Interpolation:
    """Posterior of a deep linear network that fits P points exactly.

    `theta` is θ_*, the interpolant of least norm (features,); `basis` an orthonormal basis of the span of the data
    (features, P); `prior_scale` the variance of an entry of θ before any data, Π C_W/n_0.
    """

    theta: np.ndarray
    basis: np.ndarray
    prior_scale: float
    law: ProductLaw
    log_determinant: float

    @property
    def points(self) -> int:
        """P, the number of data."""
        return self.basis.shape[1]

    @property
    def radius_squared(self) -> float:
        """r = |θ_*|²."""
        return float(self.theta @ self.theta)

    @property
    def effective_depth(self) -> float:
        """P Σ 1/n_l: how far the posterior is from that of the infinitely wide network."""
        return self.points * self.law.effective_depth

    @cached_property
    def log_evidence(self) -> float:
        """log p(y | X)."""
        return self._log_evidence(math.log(self.prior_scale))

    def _log_evidence(self, log_scale: float) -> float:
        constant = -0.5 * self.points * math.log(2.0 * math.pi) - 0.5 * self.log_determinant
        return constant + self._log_average(-0.5 * self.points, self.radius_squared, log_scale)

    def _log_average(self, k: float, r: float, log_scale: float | None = None) -> float:
        """log E_S[S^k e^(−r/2S)] over the prior: a Meijer G-function of z = (r/2)/(scale Π 2/n_l)."""
        log_scale = math.log(self.prior_scale) if log_scale is None else log_scale
        if r == 0.0:
            return k * log_scale + self.law.log_moment(k)
        half = 0.5 * np.asarray(self.law.widths, float)
        log_unit = log_scale - float(np.sum(np.log(half)))
        value = log_meijer(math.log(0.5 * r) - log_unit, [0.0, *(half + k)])
        return k * log_unit - float(np.sum(gammaln(half))) + value

    def scale_moment(self, k: float) -> float:
        """E[S^k | data] for real k; S is the variance of an entry of θ off the data."""
        k, at = check_real("k", k, "a number from -1e3 to 1e3", least=-1e3, largest=1e3), -0.5 * self.points
        return math.exp(self._log_average(k + at, self.radius_squared) - self._log_average(at, self.radius_squared))

    def log_scale_density(self, log_S: ArrayLike) -> np.ndarray:
        """Posterior density of log S."""
        t = real_array(log_S, "log_S")
        at = -0.5 * self.points
        prior = self.law.log_density(0.5 * (t - math.log(self.prior_scale))) - math.log(2.0)
        weight = at * t - 0.5 * self.radius_squared * np.exp(-t)
        return np.exp(prior + weight - self._log_average(at, self.radius_squared))

    def norm_density(self, rho: ArrayLike) -> np.ndarray:
        """Posterior density of |θ_⊥|, the length of θ off the span of the data, at rho > 0."""
        rho = real_array(rho, "rho")
        if (rho <= 0.0).any():
            raise InvalidInput("rho", f"{rho.min():g}", "positive lengths")
        m = len(self.theta) - self.points
        if m == 0:
            raise InvalidInput("rho", "data that span the input space", "fewer data than features")
        start = self._log_average(-0.5 * self.points, self.radius_squared)
        sphere = math.log(2.0) - 0.5 * m * math.log(2.0) - math.lgamma(0.5 * m)

        def one(value):
            inside = self._log_average(-0.5 * len(self.theta), self.radius_squared + value * value)
            return math.exp(sphere + (m - 1) * math.log(value) + inside - start)

        return np.array([one(value) for value in rho.ravel()]).reshape(rho.shape)

    def predict(self, X_test: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Mean (tests,) θ_*·x and covariance (tests, tests) E[S | data] x_⊥·x'_⊥ of the prediction.

        The law itself is a mixture of Gaussians over S; its fourth moment is 3 `scale_moment(2)` |x_⊥|⁴.
        """
        X = check_inputs(X_test, len(self.theta), "X_test")
        off = X - (X @ self.basis) @ self.basis.T
        return X @ self.theta, self.scale_moment(1.0) * (off @ off.T)

    def best_prior_scale(self) -> float:
        """The prior_scale of greatest evidence, which is log-concave in its logarithm; there E[1/S | data] = P/r."""
        if self.radius_squared == 0.0:
            raise InvalidInput("y", "zeros", "targets that are not all zero", "Any smaller scale fits them better.")
        guess = math.log(self.radius_squared / self.points)
        reach = 2.0 + 20.0 * math.sqrt(self.law.log_variance) + 4.0 * abs(self.law.log_mean)
        bounds, accuracy = (guess - reach, guess + reach), {"xatol": 1e-9}
        found: Any = minimize_scalar(lambda t: -self._log_evidence(t), bounds=bounds, options=accuracy)
        return math.exp(float(found.x))


def bayesian_interpolation(net: MLP, X: ArrayLike, y: ArrayLike) -> Interpolation:
    """Posterior, evidence and predictions of a deep linear network that fits y exactly, at any width and depth.

    Parameters
    ----------
    net : linear, without biases, one output.
    X : inputs (P, features), linearly independent.
    y : targets (P,).

    Examples
    --------
    >>> net = MLP([3, 4, 4, 1], "linear")
    >>> fit = bayesian_interpolation(net, [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], [1.0, -1.0])
    >>> mean, covariance = fit.predict([[1.0, 1.0, 1.0]])
    >>> round(float(mean[0]), 6), round(float(covariance[0, 0]), 4), fit.effective_depth
    (0.5, 0.5365, 1.0)
    """
    net = check_linear(net)
    if any(net.C_b):
        raise InvalidInput("net", "a network with biases", "C_b = 0", "With biases, use posterior(order=1).")
    if net.widths[-1] != 1 or min(net.C_W) == 0.0:
        raise InvalidInput("net", f"{net.widths[-1]} outputs, C_W = {net.C_W}", "one output and positive C_W")
    inputs = check_inputs(X, net.widths[0])
    targets = check_targets(y, len(inputs), 1, "y")[:, 0]
    if len(inputs) > net.widths[0]:
        raise InvalidInput("X", f"{len(inputs)} inputs", f"at most {net.widths[0]}, one for each feature")
    basis, triangle = np.linalg.qr(inputs.T)
    sizes = np.abs(np.diag(triangle))
    if np.any(sizes <= _DEPENDENT * np.linalg.norm(inputs, axis=1)):
        row = int(np.argmin(sizes / np.maximum(np.linalg.norm(inputs, axis=1), 1e-300)))
        raise SingularKernel("X", f"input {row} in the span of those before it", "linearly independent inputs")
    theta = basis @ solve_triangular(triangle.T, targets, lower=True)
    scale = math.exp(float(np.sum(np.log(net.C_W)))) / net.widths[0]
    return Interpolation(theta, basis, scale, product_law(net.widths[1:-1]), 2.0 * float(np.sum(np.log(sizes))))


def interpolation_scale_limit(prior_scale: float, radius_squared_per_point: float, effective_depth: float) -> float:
    """Where S concentrates for many data, P → ∞ at fixed λ = P Σ 1/n_l and ν = |θ_*|²/P, in wide layers (P ≪ n_l).

    log S solves 1 + (log S − log prior_scale)/λ = ν/S: the prior's scale at λ = 0, and ν, which is the variance of
    greatest evidence, at λ → ∞ whatever the prior was.

    >>> tuple(round(interpolation_scale_limit(1.0, 3.0, depth), 3) for depth in (1e-9, 1.0, 1e9))
    (1.0, 1.855, 3.0)
    """
    given = {"prior_scale": prior_scale, "radius_squared_per_point": radius_squared_per_point}
    given["effective_depth"] = effective_depth
    prior_scale, radius_squared_per_point, effective_depth = (
        check_real(name, value, "a positive number up to 1e100", least=1e-100, largest=1e100)
        for name, value in given.items()
    )
    start = math.log(prior_scale)
    exponent = math.log(effective_depth * radius_squared_per_point) + effective_depth - start
    # log S = start − λ + ω, and λ ν/S = ω, which does not cancel
    return effective_depth * radius_squared_per_point / float(wrightomega(exponent))
