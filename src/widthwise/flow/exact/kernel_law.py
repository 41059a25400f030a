"""The law of the random kernel Ĝ = C_b + C_W m of one layer (theory §1): lattice weights in log m and point masses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import BSpline

from widthwise.errors import DivergentMoment
from widthwise.flow.exact.lattice import HALF, LATTICE_MARGIN, ORDER, prefilter
from widthwise.gaussian.kernel_rules import dense_kernel
from widthwise.network.validation import LEAST, check_function, check_real, real_array

#: A moment is out of reach when its integrand has not fallen to this share of its largest value where the upper tail
#: falls below the smallest weights that the chain keeps with certainty.
_REACHED, _FAINT = np.log(1e-9), 1e-90
_LARGEST = 690.0
_WIDE = 1e3


@dataclass(frozen=True)
class KernelLaw:
    """Law of Ĝ = C_b + C_W m at one layer.

    Weights of log m at origin + k h (a density times h wherever the lattice resolves it), and masses of the values
    `atoms` of m: the first layer, where Ĝ is certain, silent layers (m = 0), and activations with two values.
    """

    C_b: float
    C_W: float
    origin: float
    h: float
    weights: np.ndarray
    atoms: np.ndarray
    masses: np.ndarray

    @classmethod
    def certain(cls, C_b: float, C_W: float, m: float) -> KernelLaw:
        """Ĝ is one number."""
        return cls(C_b, C_W, 0.0, 1.0, np.zeros(0), np.array([m]), np.array([1.0]))

    @property
    def log_m(self) -> np.ndarray:
        return self.origin + self.h * np.arange(len(self.weights))

    @property
    def log_g(self) -> np.ndarray:
        """log Ĝ at the lattice points."""
        return log_kernel(self.C_b, self.C_W, self.log_m)

    @property
    def atom_kernels(self) -> np.ndarray:
        """Values of Ĝ that have a mass."""
        return dense_kernel(self.C_b, self.C_W, self.atoms)

    @property
    def dead(self) -> float:
        """P(Ĝ = 0): every output is then zero."""
        return float(self.masses[self.atom_kernels == 0.0].sum())

    @property
    def mass(self) -> float:
        """Total probability; one up to the numerical error."""
        return float(self.weights.sum() + self.masses.sum())

    @cached_property
    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """log Ĝ and weights of everything with Ĝ > 0."""
        alive = self.atom_kernels > 0.0
        log_g = np.concatenate([self.log_g, np.log(self.atom_kernels[alive])])
        return log_g, np.concatenate([self.weights, self.masses[alive]])

    def expectation(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """E f(log Ĝ) over Ĝ > 0, for f that maps log-kernels (points,) to (…, points)."""
        log_g, weights = self.nodes
        return check_function(function, log_g) @ weights

    def moment(self, k: float) -> float:
        """E Ĝ^k, k > 0."""
        k = check_real("k", k, "a positive number up to 1e6", least=LEAST, largest=1e6)
        with np.errstate(divide="ignore"):
            parts = np.log(np.abs(self.weights)) + k * self.log_g
            points = np.log(self.masses) + k * np.log(self.atom_kernels)
        top = float(np.concatenate([parts, points]).max())
        if top == -np.inf:
            return 0.0
        peak = int(np.argmax(self.weights)) if len(parts) else 0
        faint = (np.abs(self.weights) < _FAINT) & (np.arange(len(parts)) > peak)
        if top > _LARGEST or np.any(parts[faint] > top + _REACHED):
            raise DivergentMoment(
                "k", f"{k:g}, a moment of the kernel that rests on probabilities below 1e-100 or is not representable",
                "a moment within reach", "Ask for a lower moment, or for a smaller ratio of depth to width.",
            )  # fmt: skip
        total = np.sign(self.weights) @ np.exp(parts - top) + np.exp(points - top).sum()
        return float(total * np.exp(top))

    @property
    def log_median(self) -> float:
        """A typical log Ĝ: the median of its lattice part, or the largest point mass's kernel."""
        if len(self.weights):
            return float(self.log_g[np.argmax(np.cumsum(self.weights) >= 0.5 * self.weights.sum())])
        positive = self.atom_kernels[self.atom_kernels > 0.0]
        return float(np.log(positive.max())) if len(positive) else 0.0

    @property
    def mean(self) -> float:
        return self.moment(1)

    @property
    def variance(self) -> float:
        """Var Ĝ, from the centred second moment unless the mean is negligible beside it."""
        mean, second = self.mean, self.moment(2)
        if second > _WIDE * mean**2:
            return second - mean**2
        parts = self.weights @ (np.exp(self.log_g) - mean) ** 2
        return float(parts + self.masses @ (self.atom_kernels - mean) ** 2)

    @property
    def relative_variance(self) -> float:
        """Var Ĝ/(E Ĝ)²."""
        mean = self.mean
        if mean**2 > np.finfo(float).tiny:
            return self.variance / mean**2
        if not mean > 0.0:
            return np.nan
        # squares of so small kernels are not representable, their ratios are
        parts = self.weights @ np.expm1(self.log_g - np.log(mean)) ** 2
        return float(parts + self.masses @ (self.atom_kernels / mean - 1.0) ** 2)

    def density(self, g: ArrayLike) -> np.ndarray:
        """Density of Ĝ at g, without its point masses."""
        g = real_array(g, "g")
        m = (g - self.C_b) / self.C_W if self.C_W else np.zeros_like(g)
        inside = m > 0.0
        spline = BSpline(*self._padded, ORDER - 1, extrapolate=False) if len(self.weights) else np.zeros_like
        values = np.nan_to_num(spline(np.log(np.where(inside, m, 1.0))))
        return np.where(inside, np.maximum(values, 0.0) / np.where(inside, g - self.C_b, 1.0), 0.0)

    def cdf(self, g: ArrayLike) -> np.ndarray:
        """P(Ĝ ≤ g)."""
        return self._tail(g, upper=False)

    def sf(self, g: ArrayLike) -> np.ndarray:
        """P(Ĝ > g), accurate in relative terms in the upper tail."""
        return self._tail(g, upper=True)

    def _tail(self, g, upper: bool) -> np.ndarray:
        g = real_array(g, "g")
        m = np.maximum((g - self.C_b) / self.C_W, 0.0) if self.C_W else np.where(g >= self.C_b, np.inf, 0.0)
        chosen = self.atom_kernels > g[..., None] if upper else self.atom_kernels <= g[..., None]
        return np.clip(self._integrals[int(upper)](_safe_log(m)) + chosen @ self.masses, 0.0, 1.0)

    @cached_property
    def _padded(self) -> tuple[np.ndarray, np.ndarray]:
        """Knots and coefficients of the density of log m as a spline."""
        coefficients = prefilter(np.pad(self.weights, LATTICE_MARGIN)) / self.h
        knots = self.origin + self.h * (np.arange(len(coefficients) + ORDER) - HALF - LATTICE_MARGIN)
        return knots, coefficients

    @cached_property
    def _integrals(self):
        """(below, above): probability of log m below or above a value, each summed from its own end."""
        if not len(self.weights):
            return np.zeros_like, np.zeros_like
        knots, coefficients = self._padded
        below = BSpline(knots, coefficients, ORDER - 1).antiderivative()
        above = BSpline(-knots[::-1], coefficients[::-1], ORDER - 1).antiderivative()
        low, high = knots[0], knots[-1]
        return (lambda y: below(np.clip(y, low, high))), (lambda y: above(np.clip(-y, -high, -low)))


def log_kernel(C_b: float, C_W: float, log_m: np.ndarray) -> np.ndarray:
    """log(C_b + C_W m)."""
    return np.logaddexp(_safe_log(C_b), _safe_log(C_W) + log_m)


def _safe_log(x):
    with np.errstate(divide="ignore"):
        return np.log(x)
