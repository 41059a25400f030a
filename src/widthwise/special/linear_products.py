"""Products of Gaussian matrices: the exact law of their length, and its limits (theory §10).

A deep linear network without biases is z = C_W^(L/2) θ·x, with θ = W^L ⋯ W¹ over its scale. Multiplied out from the
output, each hidden layer stretches the row vector by an independent factor: |W^L ⋯ W²|² = Π_l χ²_{n_l}/n_l.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln, polygamma

from widthwise.errors import InvalidInput
from widthwise.network.inputs import real_array
from widthwise.network.validation import check_integer
from widthwise.special.mellin import log_meijer


@dataclass(frozen=True)
class ProductLaw:
    """The law of ρ² = Π_l χ²_{n_l}/n_l over the widths; ρ is the length of a unit vector after these layers."""

    widths: tuple[int, ...]

    @cached_property
    def _half(self) -> np.ndarray:
        return 0.5 * np.asarray(self.widths, float)

    @property
    def effective_depth(self) -> float:
        """Σ 1/n_l, the number that decides how far ρ is from one."""
        return float(np.sum(0.5 / self._half))

    def log_moment(self, k: float) -> float:
        """log E ρ^(2k) for real k > −n/2: Σ_l log Γ(n_l/2 + k) − log Γ(n_l/2) − k log(n_l/2)."""
        if k <= -float(self._half.min()):
            return math.inf
        return float(np.sum(gammaln(self._half + k) - gammaln(self._half) - k * np.log(self._half)))

    @property
    def log_mean(self) -> float:
        """E log ρ, exactly ½ Σ ψ(n_l/2) − log(n_l/2); −½ Σ 1/n_l for wide layers."""
        return 0.5 * float(np.sum(digamma(self._half) - np.log(self._half)))

    @property
    def log_variance(self) -> float:
        """Var log ρ, exactly ¼ Σ ψ'(n_l/2); ½ Σ 1/n_l for wide layers."""
        return 0.25 * float(np.sum(polygamma(1, self._half)))

    def log_density(self, log_rho: ArrayLike) -> np.ndarray:
        """Logarithm of the density of log ρ: 2 G(z | n_l/2)/Π Γ(n_l/2) at z = ρ² Π n_l/2, a Meijer G-function."""
        return math.log(2.0) + self._each(log_rho, tail=False)

    def density(self, log_rho: ArrayLike) -> np.ndarray:
        """Density of log ρ."""
        return np.exp(self.log_density(log_rho))

    def sf(self, log_rho: ArrayLike) -> np.ndarray:
        """P(log ρ > log_rho)."""
        return np.exp(self._each(log_rho, tail=True))

    def cdf(self, log_rho: ArrayLike) -> np.ndarray:
        """P(log ρ ≤ log_rho), with an absolute error of rounding size."""
        return -np.expm1(self._each(log_rho, tail=True))

    def _each(self, log_rho: ArrayLike, tail: bool) -> np.ndarray:
        points = real_array(log_rho, "log_rho")
        if not self.widths:
            raise InvalidInput("widths", "no layers", "at least one", "Without hidden layers ρ is one for certain.")
        shift, norm = float(np.sum(np.log(self._half))), float(np.sum(gammaln(self._half)))
        values = [log_meijer(2.0 * y + shift, self._half, tail=tail) - norm for y in points.ravel()]
        return np.array(values).reshape(points.shape)


def product_law(widths: Sequence[int]) -> ProductLaw:
    """The law of ρ, ρ² = Π_l χ²_{n_l}/n_l: how a product of Gaussian matrices stretches a vector (theory §10).

    Parameters
    ----------
    widths : the width of each layer, in any order; of one output of a linear network its hidden widths.

    Returns
    -------
    A ProductLaw with exact moments, the density and the distribution function of log ρ.

    >>> law = product_law([8, 8, 8, 8])
    >>> round(math.exp(law.log_moment(1)), 12), round(law.log_mean, 4), round(law.log_variance, 4)
    (1.0, -0.2604, 0.2838)
    >>> round(float(law.cdf(law.log_mean)), 3)
    0.483
    """
    return ProductLaw(tuple(check_integer("widths", n, 1) for n in widths))
