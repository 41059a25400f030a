"""Products of Gaussian matrices: the exact law of their length, and its limits (theory §10).

A deep linear network without biases is z = C_W^(L/2) θ·x, with θ = W^L ⋯ W¹ over its scale. Multiplied out from the
output, each hidden layer stretches the row vector by an independent factor: |W^L ⋯ W²|² = Π_l χ²_{n_l}/n_l. Its law is
a Meijer G-function, found without overflow at any order:
    G(z | b) = (1/2πi) ∫ z^(−s) Π_l Γ(b_l + s) ds                    (the G-function G^{q,0}_{0,q})
    Ḡ(z | b) = the same with 1/s under the integral                  (its integral from z to infinity over dz/z)
On the real axis the logarithm of the integrand is convex, so the contour goes upright through its minimum, where the
integrand falls fastest; there the trapezoidal rule converges exponentially.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import digamma, gammaln, loggamma, polygamma

from widthwise.errors import AccuracyWarning, InvalidInput
from widthwise.extras import need
from widthwise.network import check_real, check_widths, real_array


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
        k = check_real("k", k, "a number from -1e100 to 1e100", least=-1e100, largest=1e100)
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
        # beyond, where exp(−exp(2 log ρ/L)) is nothing, the place of the saddle is not representable
        most = 300.0 * len(self.widths)
        values = [
            log_meijer(2.0 * y + shift, self._half, tail=tail) - norm if y < most else -math.inf for y in points.ravel()
        ]
        return np.array(values).reshape(points.shape)


def product_law(widths: Sequence[int]) -> ProductLaw:
    """The law of ρ, ρ² = Π_l χ²_{n_l}/n_l: how a product of Gaussian matrices stretches a vector (theory §10).

    The widths of the layers come in any order; for one output of a linear network they are its hidden widths.

    >>> law = product_law([8, 8, 8, 8])
    >>> round(math.exp(law.log_moment(1)), 12), round(law.log_mean, 4), round(law.log_variance, 4)
    (1.0, -0.2604, 0.2838)
    >>> round(float(law.cdf(law.log_mean)), 3)
    0.483
    """
    return ProductLaw(check_widths(widths, least=0))


#: The rule is refined until it changes by less than this, and gives up after so many halvings.
_CONTOUR_TOLERANCE, _HALVINGS = 1e-13, 8
#: The integrand is followed until it is e^_FALLS of its largest value.
_FALLS = -45.0

#: From this argument of all gamma functions on, the method of steepest descent is better than rounding.
_LARGE = 1e8


def log_meijer(log_z: float, b: ArrayLike, *, tail: bool = False, method: str = "contour") -> float:
    """log G(z | b_1 … b_q), q ≥ 1, for z = exp(log_z); with `tail` log Ḡ(z | b), which needs all b > 0.

    Parameters
    ----------
    log_z : logarithm of the argument.
    b : shapes; a product of independent gamma variables of shapes b has density G(x | b)/(x Π Γ(b_l)).
    tail : with 1/s under the integral, so that Ḡ(x | b)/Π Γ(b_l) is the probability of exceeding x.
    method : "contour", for any order and size; "mpmath", an independent evaluation for small ones.

    Examples
    --------
    >>> round(log_meijer(0.0, [0.0]), 12)  # G(z | 0) = e^(−z)
    -1.0
    >>> round(log_meijer(math.log(3.0), [1.0, 2.5]) - log_meijer(math.log(3.0), [1.0, 2.5], method="mpmath"), 12)
    0.0
    """
    shapes = real_array(b, "b")
    if shapes.ndim != 1 or shapes.size == 0:
        raise InvalidInput("b", f"shape {shapes.shape}", "a sequence of at least one number")
    if not math.isfinite(log_z):
        raise InvalidInput("log_z", repr(log_z), "a finite number")
    if tail and shapes.min() <= 0.0:
        raise InvalidInput("b", f"{shapes.min():g}", "positive shapes when tail is asked for")
    if method == "mpmath":
        return _by_mpmath(log_z, shapes, tail)
    if method != "contour":
        raise InvalidInput("method", repr(method), "'contour' or 'mpmath'")
    return _by_contour(log_z, shapes, tail)


def _by_mpmath(log_z: float, shapes: np.ndarray, tail: bool) -> float:
    mpmath: Any = need("mpmath", "labs", "method='mpmath'")
    upper: Any = [[], [1]] if tail else [[], []]
    lower: Any = [[0, *shapes] if tail else list(shapes), []]
    with mpmath.workdps(40):
        return float(mpmath.log(mpmath.meijerg(upper, lower, mpmath.exp(mpmath.mpf(log_z)))))


def _by_contour(log_z: float, shapes: np.ndarray, tail: bool) -> float:
    centre = _saddle(log_z, shapes, tail)
    curvature = float(np.sum(polygamma(1, shapes + centre))) + (centre**-2 if tail else 0.0)
    top = float(np.sum(gammaln(shapes + centre))) - centre * log_z - (math.log(centre) if tail else 0.0)
    if centre + shapes.min() > _LARGE:
        return top - 0.5 * math.log(2.0 * math.pi * curvature)
    values, counts = np.unique(shapes, return_counts=True)
    real = gammaln(values + centre)

    def integrand(height):
        """Real part of the integrand over its value on the axis; even in the height."""
        s = centre + 1j * height
        exponent = counts @ (loggamma(values[:, None] + s) - real[:, None]) - 1j * height * log_z
        exponent = exponent - (np.log(s / centre) if tail else 0.0)
        return np.exp(exponent).real, exponent.real

    # logarithms of large gamma functions are themselves rounded
    tolerance = max(_CONTOUR_TOLERANCE, 4.0 * np.finfo(float).eps * float(counts @ np.abs(real)))
    step, change = 0.5 / math.sqrt(curvature), math.inf
    total = _trapezoid(integrand, step)
    for _ in range(_HALVINGS):
        step, before = 0.5 * step, total
        total = _trapezoid(integrand, step)
        change = abs(total - before)
        if change <= tolerance * abs(total):
            break
    else:
        left = f"log_meijer: the integral still changed by {change / abs(total):.1e} of itself"
        warnings.warn(left, AccuracyWarning, stacklevel=3)
    return top + math.log(total / math.pi)


def _trapezoid(integrand, step: float) -> float:
    """∫_0^∞ by the trapezoidal rule, in blocks until the integrand has vanished."""
    total, start, block = 0.0, 0, 64
    while True:
        values, size = integrand(step * np.arange(start, start + block))
        total += step * (float(values.sum()) - (0.5 * float(values[0]) if start == 0 else 0.0))
        if size[-1] < _FALLS:
            return total
        start += block
        block = min(2 * block, 1 << 14)


def _saddle(log_z: float, shapes: np.ndarray, tail: bool) -> float:
    """Where the integrand is least on the real axis, right of all poles: Σ ψ(b_l + s) − log z (− 1/s) = 0."""
    pole = max(-float(shapes.min()), 0.0) if tail else -float(shapes.min())

    def slope(log_distance):
        s = pole + math.exp(log_distance)
        return float(np.sum(digamma(shapes + s))) - log_z - (1.0 / s if tail else 0.0)

    low, high = -1.0, 1.0
    while slope(low) > 0.0:
        low -= 2.0
    while slope(high) < 0.0:
        high += 2.0
    found: Any = brentq(slope, low, high, xtol=1e-12)
    return pole + math.exp(found)
