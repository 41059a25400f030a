"""Two inputs through many layers: the correlation they end at, and how fast they get there (theory §7).

Once both kernels have reached K*, the correlation c of two inputs moves from layer to layer by

    c' = f(c) = (C_b + C_W⟨σ_aσ_b⟩)/K*,      f(1) = 1,      f'(c) = χ(c) = C_W⟨σ'_aσ'_b⟩,      f'(1) = χ_⊥.

In powers of c the coefficients of f are not negative, so f is convex on [0, 1]. In the ordered phase, χ_⊥ ≤ 1, every
pair of inputs ends at c = 1; in the chaotic phase, χ_⊥ > 1, there is exactly one other fixed point c* in [0, 1), and
it attracts. Near it c − c* falls like e^(−l/ξ), ξ = −1/ln χ(c*).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from widthwise.activations import ActivationLike, resolve
from widthwise.criticality.kernel_fixed_points import fixed_points
from widthwise.criticality.perturbations import correlation_length, non_negative
from widthwise.errors import InvalidInput
from widthwise.gaussian import expectation
from widthwise.gaussian.kernel_rules import dense_kernel

#: χ_⊥ above one by less than this is one.
_CRITICAL = 1e-9
#: A chaotic c* is looked for below one minus this.
_NEXT_TO_ONE = 1e-13


@dataclass(frozen=True)
class PairFixedPoint:
    """The kernel K* of each of two inputs, the correlation they reach, χ = C_W⟨σ'_aσ'_b⟩ there, and the phase."""

    K: float
    correlation: float
    chi: float
    phase: str

    @property
    def xi(self) -> float:
        """ξ = −1/ln χ: c − c* falls by e over so many layers; 0 if at once, infinite at criticality."""
        return correlation_length(self.chi)


def pair_fixed_point(activation: ActivationLike, C_b: float, C_W: float, x_square: float = 1.0) -> PairFixedPoint:
    """Where the correlation of two different inputs with x·x/n_0 = x_square goes, and its length ξ (theory §7).

    >>> ordered, chaotic = pair_fixed_point("erf", 0.3, 0.9), pair_fixed_point("erf", 0.05, 2.5)
    >>> ordered.phase, ordered.correlation, round(ordered.xi, 4)
    ('ordered', 1.0, 2.0006)
    >>> chaotic.phase, round(chaotic.correlation, 6), round(chaotic.xi, 4)
    ('chaotic', 0.273536, 7.6003)
    """
    sigma = resolve(activation)
    C_b, C_W, x_square = (non_negative(v, n) for v, n in ((C_b, "C_b"), (C_W, "C_W"), (x_square, "x_square")))
    reached = fixed_points(sigma, C_b, C_W).reached_from(dense_kernel(C_b, C_W, x_square))
    if reached is None or reached.K == 0.0:
        where = "grows without bound" if reached is None else "shrinks to zero"
        raise InvalidInput("C_b, C_W", f"{C_b:g}, {C_W:g}, for which the kernel of {sigma.name} {where}",
                           "values with a fixed point K* > 0: without one there is no correlation to reach",
                           "See widthwise.criticality.fixed_points.")  # fmt: skip
    K = reached.K
    if reached.chi_perp <= 1.0 + _CRITICAL:
        phase = "critical" if reached.chi_perp > 1.0 - _CRITICAL else "ordered"
        return PairFixedPoint(K, 1.0, reached.chi_perp, phase)

    def next_correlation(c: float, order: int = 0) -> float:
        return float(expectation(sigma, K, c * K, K, orders=(order, order)).value)

    def excess(c: float) -> float:
        return dense_kernel(C_b, C_W, next_correlation(c)) / K - c

    c = _root(excess, reached.chi_perp)
    return PairFixedPoint(K, c, C_W * next_correlation(c, 1), "chaotic")


def _root(excess: Callable[[float], float], chi_perp: float) -> float:
    """The zero of the convex f(c) − c in [0, 1), to the left of where the slope χ_⊥ − 1 at c = 1 makes it negative."""
    if excess(0.0) <= 1e-15:
        return 0.0
    distance = np.geomspace(min(0.5, chi_perp - 1.0), _NEXT_TO_ONE, 60)
    below = next((1.0 - d for d in distance if excess(1.0 - d) < 0.0), None)
    if below is None:
        return 1.0
    return float(brentq(excess, 0.0, below, xtol=1e-14, rtol=1e-14))  # pyright: ignore[reportArgumentType]
