"""Singular values of products of Gaussian matrices when all widths are large (theory §10).

With A = W^L ⋯ W¹, entries of variance 1/n_{l−1}, free probability gives the S-transform of AᵀA as the product of those
of the layers, S(ψ) = Π_l n_{l−1}/(n_l + n_0 ψ), so that ψ(x) = x g(x) − 1, g the Stieltjes transform, solves
    x = (1 + ψ)/ψ Π_l (n_l + n_0 ψ)/n_{l−1}.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import ArrayLike

from widthwise.network.inputs import real_array
from widthwise.network.validation import check_integer, check_widths

#: The root is followed from far above the real axis to it in this many steps, with some Newton iterations at each.
_STEPS, _NEWTON = 160, 6


@dataclass(frozen=True)
class ProductSpectrum:
    """Limiting law of the n_0 eigenvalues of AᵀA, A = W^L ⋯ W¹ with widths n_0 … n_L in fixed proportion."""

    widths: tuple[int, ...]

    @property
    def zero_mass(self) -> float:
        """Share of the eigenvalues that vanish: 1 − min n_l/n_0."""
        return 1.0 - min(self.widths) / self.widths[0]

    @property
    def upper_edge(self) -> float:
        """Largest eigenvalue in the limit: the least x(ψ) over ψ > 0."""
        u = np.linspace(-12.0, 12.0, 24_001)
        psi = np.exp(u)
        values = np.log1p(psi) - u + sum(np.log((n + self.widths[0] * psi) / m) for n, m in self._layers)
        k = int(np.argmin(values))
        left, middle, right = values[k - 1 : k + 2]
        return math.exp(middle - 0.125 * (left - right) ** 2 / (left - 2.0 * middle + right))

    @property
    def _layers(self) -> list[tuple[int, int]]:
        return list(zip(self.widths[1:], self.widths[:-1], strict=True))

    def moments(self, order: int) -> np.ndarray:
        """lim (1/n_0) E tr (AᵀA)^k for k = 0 … order, by Lagrange inversion of the S-transform.

        m_k = (1/k) [ψ^(k−1)] ((1 + ψ) Π_l (n_l + n_0 ψ)/n_{l−1})^k; for equal widths the Fuss–Catalan numbers.

        >>> product_spectrum([1, 1, 1]).moments(4)
        array([ 1.,  1.,  3., 12., 55.])
        """
        order = check_integer("order", order, 0)
        base = self._numerator()
        result, power = [1.0], np.ones(1)
        for k in range(1, order + 1):
            power = polynomial.polymul(power, base)[: order + 1]
            result.append(float(power[k - 1]) / k if k <= len(power) else 0.0)
        return np.array(result)

    def exact_second_moment(self) -> float:
        """(1/n_0) E tr (AᵀA)² for Gaussian matrices of exactly these widths, without a limit.

        With p = E tr M², q = E (tr M)², M = AᵀA, a layer makes (n_l² + n_l) p + n_l q and n_l² q + 2 n_l p of them,
        over n_{l−1}².

        >>> product_spectrum([2, 1]).exact_second_moment()  # |w|² is χ²_2/2
        1.0
        """
        p = float(self.widths[0])
        q = p * p
        for n, m in self._layers:
            p, q = ((n * n + n) * p + n * q) / m**2, (n * n * q + 2 * n * p) / m**2
        return p / self.widths[0]

    def _numerator(self) -> np.ndarray:
        """Coefficients of (1 + ψ) Π_l (n_l + n_0 ψ)/n_{l−1}, lowest first."""
        base = np.array([1.0, 1.0])
        for n, m in self._layers:
            base = polynomial.polymul(base, [n / m, self.widths[0] / m])
        return base

    def density(self, x: ArrayLike) -> np.ndarray:
        """Density of the eigenvalues at x > 0, without the mass at zero; it integrates to 1 − zero_mass.

        >>> float(product_spectrum([2, 1]).density(0.5).round(6)), float(product_spectrum([2, 1]).density(9.0).round(6))
        (0.31831, 0.0)
        """
        points = np.maximum(real_array(x, "x"), 1e-300)
        base = self._numerator()
        slope = polynomial.polyder(base)
        heights = np.geomspace(1e3, 1e-14, _STEPS) * self.upper_edge
        psi = None
        for height in [*heights, 0.0]:
            z = points + 1j * height
            psi = polynomial.polyval(1.0 / z, [0.0, base[0]]) if psi is None else psi
            for _ in range(_NEWTON):
                value = z * psi - polynomial.polyval(psi, base)
                psi = psi - value / (z - polynomial.polyval(psi, slope))
        assert psi is not None
        return np.maximum(-np.imag(psi), 0.0) / (math.pi * points)


def product_spectrum(widths: Sequence[int]) -> ProductSpectrum:
    """Limiting spectrum of AᵀA for A = W^L ⋯ W¹, W^l of n_l × n_{l−1} independent entries of variance 1/n_{l−1}.

    Parameters
    ----------
    widths : n_0, n_1 … n_L; only their ratios matter.

    Returns
    -------
    A ProductSpectrum with density, moments and edge. One layer is the law of Marchenko and Pastur.

    >>> round(product_spectrum([1, 1, 1]).upper_edge, 6)  # 27/4
    6.75
    """
    return ProductSpectrum(check_widths(widths))
