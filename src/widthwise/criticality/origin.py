"""The flow near K = 0 as a series in √K (theory §7, K* = 0).

With one-sided Taylor coefficients of σ at zero and C_W = 1/A_2, A_2 = (σ_1₊² + σ_1₋²)/2,

    g(K) = K (1 + Σ_j a_j K^{j/2}),      χ_⊥(K) = 1 + Σ_j b_j K^{j/2},      j = 1, 2, …

For a smooth σ only even j occur: a_2 here is a_1 of theory §7 and b_2 its b_1. A kink of σ' or σ'' at zero brings in
odd j; the lowest is then K^{3/2}.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

#: A coefficient below this, beside the terms it is a sum of, is zero.
_ZERO = 1e-9


class OriginSeries(NamedTuple):
    """A_2 and the coefficients a_1, a_2, … and b_1, b_2, …; exact zeros where terms cancel."""

    A_2: float
    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def leading(self) -> int:
        """The first j with a_j ≠ 0; zero if none is."""
        return next((j for j, value in enumerate(self.a, start=1) if value), 0)

    @property
    def leading_perp(self) -> int:
        """The first j with b_j ≠ 0; zero if none is."""
        return next((j for j, value in enumerate(self.b, start=1) if value), 0)


def origin_series(derivatives: np.ndarray) -> OriginSeries:
    """The series from derivatives at zero (2, orders + 1), right and left, of a σ with σ(0) = 0.

    >>> s = origin_series(np.array([[0.0, 1.0, 0.0, -2.0]] * 2))                         # tanh
    >>> s.a, s.b
    ((0.0, -2.0), (0.0, -2.0))
    """
    orders = derivatives.shape[1] - 1
    taylor = derivatives / [math.factorial(k) for k in range(orders + 1)]
    slopes = taylor[:, 1:] * np.arange(1, orders + 1)
    values = taylor[:, 1:]  # σ/z
    first, first_size = _even_part(values, shift=2)
    second, second_size = _even_part(slopes, shift=0)
    A_2 = first[0]
    if A_2 == 0.0:
        return OriginSeries(0.0, (), ())
    return OriginSeries(float(A_2), _cleaned(first / A_2, first_size / A_2), _cleaned(second / A_2, second_size / A_2))


def _even_part(series: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of K^{j/2} in ⟨z^shift f²⟩/K^{shift/2} for f = Σ f_k z^k on either side, and the sizes of terms."""
    count = series.shape[1]
    power = np.arange(count)
    moment = np.array([_absolute_moment(k + shift) for k in power])
    squares, sizes = (np.stack([np.convolve(side, side)[:count] for side in s]) for s in (series, np.abs(series)))
    sign = (-1.0) ** power
    return 0.5 * (squares[0] + sign * squares[1]) * moment, 0.5 * (sizes[0] + sizes[1]) * moment


def _absolute_moment(k: int) -> float:
    """E|u|^k of a standard normal."""
    if k % 2 == 0:
        return float(math.prod(range(k - 1, 0, -2)))
    return 2.0 ** (k / 2) * math.gamma((k + 1) / 2) / math.sqrt(math.pi)


def _cleaned(coefficients: np.ndarray, sizes: np.ndarray) -> tuple[float, ...]:
    return tuple(
        float(c) if abs(c) > _ZERO * max(s, 1e-300) else 0.0 for c, s in zip(coefficients[1:], sizes[1:], strict=True)
    )
