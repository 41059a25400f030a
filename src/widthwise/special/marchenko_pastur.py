"""The law of Marchenko and Pastur with what a finite size changes (theory §10).

For S = XXᵀ/n_0, X of size P × n_0 with independent entries of variance one and α = P/n_0, eigenvalues lie between
x_± = (1 ± √α)², and x = 1 + α + 2√α cos φ turns everything into elementary functions of the angle φ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.fft import dct

from widthwise.errors import InvalidInput
from widthwise.network.inputs import real_array
from widthwise.network.validation import check_integer

#: Mean and standard deviation of the law of Tracy and Widom for real matrices.
TRACY_WIDOM = (-1.2065335745820, 1.6077810345810**0.5)
_NODES = 512


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
        order = check_integer("order", order, 0)
        return np.array(
            [1.0]
            + [
                sum(self.alpha**r * math.comb(k, r) * math.comb(k - 1, r) / (r + 1) for r in range(k))
                for k in range(1, order + 1)
            ]
        )

    def fluctuation(self, function: Callable[[np.ndarray], np.ndarray]) -> float:
        """Standard deviation of Σ f(λ) over the eigenvalues of Gaussian data, which stays finite: √(½ Σ k f_k²).

        f_k are the coefficients of cos kφ in f(1 + α + 2√α cos φ).

        >>> round(MarchenkoPastur(0.5).fluctuation(lambda x: x) ** 2, 9)  # 2α
        1.0
        """
        phi = math.pi * (np.arange(_NODES) + 0.5) / _NODES
        values = np.asarray(function(1.0 + self.alpha + 2.0 * math.sqrt(self.alpha) * np.cos(phi)), float)
        coefficients = np.asarray(dct(values, type=2), float) / _NODES
        return math.sqrt(0.5 * float(np.sum(np.arange(1, _NODES) * coefficients[1:] ** 2)))

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

    Parameters
    ----------
    alpha : the aspect ratio P/n_0.

    Returns
    -------
    A MarchenkoPastur with edges, density, distribution function, moments and their corrections at finite size.

    >>> law = marchenko_pastur(0.25)
    >>> law.edges, float(law.cdf(2.25))
    ((0.25, 2.25), 1.0)
    """
    if not (isinstance(alpha, int | float | np.floating | np.integer) and math.isfinite(alpha) and alpha > 0.0):
        raise InvalidInput("alpha", repr(alpha), "a positive number, the points over the dimensions")
    return MarchenkoPastur(float(alpha))
