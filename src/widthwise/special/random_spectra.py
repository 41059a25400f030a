"""Eigenvalues of large random matrices: products of Gaussian ones, and the law of Marchenko and Pastur (theory §10).

With A = W^L ⋯ W¹, entries of variance 1/n_{l−1}, free probability gives the S-transform of AᵀA as the product of those
of the layers, S(ψ) = Π_l n_{l−1}/(n_l + n_0 ψ), so that ψ(x) = x g(x) − 1, g the Stieltjes transform, solves
    x = (1 + ψ)/ψ Π_l (n_l + n_0 ψ)/n_{l−1}.

For S = XXᵀ/n_0, X of size P × n_0 with independent entries of variance one and α = P/n_0, eigenvalues lie between
x_± = (1 ± √α)², and x = 1 + α + 2√α cos φ turns everything into elementary functions of the angle φ; at a finite size
they fluctuate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import ArrayLike
from scipy.fft import dct

from widthwise.network import check_integer, check_real, check_widths, real_array
from widthwise.network.validation import LEAST, check_function

#: The root is followed from far above the real axis to it in this many steps, with some Newton iterations at each.
_STEPS, _NEWTON = 160, 6
#: Moments grow as a power of their order: higher ones are not representable for all widths.
_HIGHEST_MOMENT = 200
_MOMENTS = f"an integer from 0 to {_HIGHEST_MOMENT}"


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
        order = check_integer("order", order, 0, _HIGHEST_MOMENT, _MOMENTS)
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
        psi = base[0] * (1.0 / (points + 1j * heights[0]))
        for height in [*heights, 0.0]:
            z = points + 1j * height
            for _ in range(_NEWTON):
                value = z * psi - polynomial.polyval(psi, base)
                psi = psi - value / (z - polynomial.polyval(psi, slope))
        return np.maximum(-np.imag(psi), 0.0) / (math.pi * points)


def product_spectrum(widths: Sequence[int]) -> ProductSpectrum:
    """Limiting spectrum of AᵀA for A = W^L ⋯ W¹, W^l of n_l × n_{l−1} independent entries of variance 1/n_{l−1}.

    Of the widths n_0, n_1 … n_L only the ratios matter. One layer is the law of Marchenko and Pastur.

    >>> round(product_spectrum([1, 1, 1]).upper_edge, 6)  # 27/4
    6.75
    """
    return ProductSpectrum(check_widths(widths))


#: Mean and standard deviation of the law of Tracy and Widom for real matrices.
TRACY_WIDOM = (-1.2065335745820, 1.6077810345810**0.5)
#: Angles at which `MarchenkoPastur.fluctuation` reads its function.
_ANGLES = 512


@dataclass(frozen=True)
class MarchenkoPastur:
    """Limiting law of the eigenvalues of XXᵀ/n_0 at the aspect ratio α = P/n_0."""

    alpha: float

    @property
    def edges(self) -> tuple[float, float]:
        """x_± = (1 ± √α)²."""
        root = math.sqrt(self.alpha)
        return (1.0 - root) ** 2, (1.0 + root) ** 2

    @property
    def zero_mass(self) -> float:
        """Share of eigenvalues that vanish: 1 − 1/α if α > 1."""
        return max(0.0, 1.0 - 1.0 / self.alpha)

    def density(self, x: ArrayLike) -> np.ndarray:
        """√((x₊ − x)(x − x₋))/(2πα x), zero outside the edges; the mass at zero is not part of it."""
        x = real_array(x, "x")
        low, high = self.edges
        inside = (x > low) & (x < high)
        product = np.where(inside, (high - x) * (x - low), 0.0)
        return np.sqrt(product) / (2.0 * math.pi * self.alpha * np.where(inside, x, 1.0))

    def cdf(self, x: ArrayLike) -> np.ndarray:
        """Share of eigenvalues at or below x, in closed form."""
        x, a, b = real_array(x, "x"), 1.0 + self.alpha, 2.0 * math.sqrt(self.alpha)
        phi = self._angle(x)
        at = np.sqrt((a - b) / (a + b)) * np.tan(np.minimum(0.5 * phi, 0.5 * math.pi * (1 - 1e-16)))
        below = a * (math.pi - phi) + b * np.sin(phi) - 2.0 * abs(1.0 - self.alpha) * (0.5 * math.pi - np.arctan(at))
        return np.where(x < 0.0, 0.0, self.zero_mass + 2.0 / (math.pi * b * b) * below)

    def _angle(self, x: np.ndarray) -> np.ndarray:
        return np.arccos(np.clip((x - 1.0 - self.alpha) / (2.0 * math.sqrt(self.alpha)), -1.0, 1.0))

    def expected_count(self, x: ArrayLike, P: int) -> np.ndarray:
        """Expected number of the P eigenvalues of Gaussian data at or below x: P F(x) + ¼ − (π − φ)/2π inside.

        The term of order one takes half an eigenvalue from the inside and gives a quarter to each edge.
        """
        P = check_integer("P", P, 1)
        x = real_array(x, "x")
        low, high = self.edges
        shift = 0.25 - (math.pi - self._angle(x)) / (2.0 * math.pi)
        return P * self.cdf(x) + np.where((x > low) & (x < high), shift, 0.0)

    def moments(self, order: int) -> np.ndarray:
        """lim (1/P) E tr S^k for k = 0 … order: Σ_r α^r (k choose r)(k−1 choose r)/(r + 1).

        >>> MarchenkoPastur(0.5).moments(3)
        array([1.  , 1.  , 1.5 , 2.75])
        """
        orders = range(1, check_integer("order", order, 0, _HIGHEST_MOMENT, _MOMENTS) + 1)
        terms = ([self.alpha**r * math.comb(k, r) * math.comb(k - 1, r) / (r + 1) for r in range(k)] for k in orders)
        return np.array([1.0, *map(sum, terms)])

    def fluctuation(self, function: Callable[[np.ndarray], np.ndarray]) -> float:
        """Standard deviation of Σ f(λ) over the eigenvalues of Gaussian data, which stays finite: √(½ Σ k f_k²).

        f_k are the coefficients of cos kφ in f(1 + α + 2√α cos φ).

        >>> round(MarchenkoPastur(0.5).fluctuation(lambda x: x) ** 2, 9)  # 2α
        1.0
        """
        phi = math.pi * (np.arange(_ANGLES) + 0.5) / _ANGLES
        values = check_function(function, 1.0 + self.alpha + 2.0 * math.sqrt(self.alpha) * np.cos(phi))
        coefficients = np.asarray(dct(values, type=2), float) / _ANGLES
        return math.sqrt(0.5 * float(np.sum(np.arange(1, _ANGLES) * coefficients[1:] ** 2)))

    def largest(self, P: int) -> tuple[float, float]:
        """Mean and standard deviation of the largest eigenvalue at finite size, by the law of Tracy and Widom.

        Centred at ((√(n_0 − ½) + √(P − ½))²)/n_0, with a width of order P^(−2/3).
        """
        P = check_integer("P", P, 2)
        n = P / self.alpha
        rows, columns = math.sqrt(P - 0.5), math.sqrt(n - 0.5)
        scale = (rows + columns) * (1.0 / rows + 1.0 / columns) ** (1.0 / 3.0) / n
        return (rows + columns) ** 2 / n + TRACY_WIDOM[0] * scale, TRACY_WIDOM[1] * scale


def marchenko_pastur(alpha: float) -> MarchenkoPastur:
    """The law of the eigenvalues of XXᵀ/n_0 for P points in n_0 dimensions, α = P/n_0 > 0 (theory §10).

    >>> law = marchenko_pastur(0.25)
    >>> law.edges, float(law.cdf(2.25))
    ((0.25, 2.25), 1.0)
    """
    return MarchenkoPastur(check_real("alpha", alpha, "a positive number, the points over the dimensions", least=LEAST))
