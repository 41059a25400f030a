"""A nearly Gaussian number from its cumulants: density, distribution and quantiles to order 1/n (theory §8).

With ξ = (z − mean)/s, skewness γ₃ = κ₃/s³ and excess kurtosis γ₄ = κ₄/s⁴, both of order 1/n, and He the Hermite
polynomials,
    p(z) = φ(ξ)/s [1 + γ₃/6 He₃(ξ) + γ₄/24 He₄(ξ)],      P(z) = Φ(ξ) − φ(ξ) [γ₃/6 He₂(ξ) + γ₄/24 He₃(ξ)],
    z(P) = mean + s [ξ + γ₃/6 He₂(ξ) + γ₄/24 He₃(ξ)],    ξ = Φ⁻¹(P).
What is left out begins with γ₃²/72 He₆(ξ) in the bracket of p, and with −γ₃²/36 (2ξ³ − 5ξ) in that of z(P). Those parts
of the next order are known, and stand as the error.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri


class Edgeworth(NamedTuple):
    """Mean, variance, third and fourth cumulant: numbers, or arrays of one shape.

    >>> law = Edgeworth(1.0, 4.0, 0.8, 0.0)
    >>> bool(np.isclose(law.below(law.quantile(0.3)), 0.3, atol=0.01)), float(law._replace(third=0.0).quantile(0.5))
    (True, 1.0)
    """

    mean: Any
    variance: Any
    third: Any
    fourth: Any

    @property
    def skewness(self) -> Any:
        """γ₃ = κ₃/s³, zero where nothing is random."""
        return _ratio(self.third, self.variance, 1.5)

    @property
    def kurtosis(self) -> Any:
        """γ₄ = κ₄/s⁴, the excess over a Gaussian's."""
        return _ratio(self.fourth, self.variance, 2.0)

    def density(self, z: Any) -> Any:
        """p(z); below zero where the expansion fails, far out in a tail."""
        xi, height = self._standard(z)
        bracket = 1.0 + self.skewness / 6.0 * _hermite(3, xi) + self.kurtosis / 24.0 * _hermite(4, xi)
        return height * bracket / np.sqrt(self.variance)

    def density_error(self, z: Any) -> Any:
        """The part of the next order in p(z) that these cumulants determine."""
        xi, height = self._standard(z)
        return height * np.abs(self.skewness**2 / 72.0 * _hermite(6, xi)) / np.sqrt(self.variance)

    def below(self, z: Any) -> Any:
        """The probability of less than z."""
        xi, height = self._standard(z)
        return ndtr(xi) - height * (self.skewness / 6.0 * _hermite(2, xi) + self.kurtosis / 24.0 * _hermite(3, xi))

    def quantile(self, probability: Any) -> Any:
        """z below which a number lies with this probability."""
        xi = ndtri(probability)
        moved = xi + self.skewness / 6.0 * _hermite(2, xi) + self.kurtosis / 24.0 * _hermite(3, xi)
        return self.mean + np.sqrt(self.variance) * moved

    def quantile_error(self, probability: Any) -> Any:
        """The part of the next order in the quantile that these cumulants determine."""
        xi = ndtri(probability)
        return np.sqrt(self.variance) * self.skewness**2 / 36.0 * np.abs(2.0 * xi**3 - 5.0 * xi)

    def _standard(self, z: Any) -> tuple[Any, Any]:
        """ξ and φ(ξ)."""
        # beyond forty standard deviations a density is zero to rounding
        xi = np.clip((np.asarray(z) - self.mean) / np.sqrt(self.variance), -40.0, 40.0)
        return xi, np.exp(-0.5 * xi**2) / np.sqrt(2.0 * np.pi)


def _hermite(degree: int, xi: Any) -> Any:
    return np.polynomial.hermite_e.hermeval(xi, np.eye(degree + 1)[degree])


def _ratio(cumulant: Any, variance: Any, power: float) -> Any:
    scale = np.asarray(variance, dtype=float) ** power
    return np.divide(
        cumulant, scale, out=np.zeros(np.broadcast_shapes(np.shape(cumulant), scale.shape)), where=scale > 0
    )
