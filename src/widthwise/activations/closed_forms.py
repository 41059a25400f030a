"""Gaussian expectations in closed form: one class a family, each rule written for one pair of inputs.

Every class gives ⟨σ^(p)(z_a) σ^(q)(z_b)⟩ for a centred Gaussian pair with covariance ((K_aa, K_ab), (K_ab, K_bb)).
Price's theorem, ∂⟨F⟩/∂K_ab = ⟨∂_a∂_b F⟩ and 2 ∂⟨F⟩/∂K_aa = ⟨∂_a² F⟩ (theory §1, Stein), turns one formula for
⟨σσ⟩ and one for ⟨σ'σ⟩ into all derivatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations.base import Activation, ClosedForm, differentiate
from widthwise.devices import library

#: Below this fraction of K_aa K_bb a determinant is rounding: the two inputs are parallel. Kernels of two equal inputs
#: and of either with itself were up to 4.5 ulps apart behind 30 compiled relu layers, which makes 9 of the determinant.
PARALLEL_SHARE = 16 * np.finfo(np.float64).eps
#: arctan(t)/t as a polynomial in t², interpolated at Chebyshev points of [0, tan²(π/8)]; relative error 4e-18.
_COEFFICIENTS = (
    1.0, -0.3333333333333312, 0.19999999999940893, -0.14285714279250245,
    0.11111110744919658, -0.09090896809064027, 0.07692045330902225, -0.06662951813629191,
    0.05846878297330872, -0.05035102456601552, 0.03796525745386593, -0.017805397205419446,
)  # fmt: skip


def _root(x):
    return library(x).sqrt(x)


def upper_angle(y, x):
    """arctan2(y, x) for y ≥ 0: the angle of (x, y) in [0, π]; zero at the origin.

    Compilers call a scalar library routine for `arctan2` in float64, which then dominates every closed form that holds
    an angle. This is plain arithmetic, so it vectorises; it is right to a few units in the last place.

    >>> round(float(upper_angle(1.0, -1.0)) / math.pi, 15)
    0.75
    """
    # −0 is no direction to the left
    return np.arctan2(y, x + 0.0) if library(y, x) is np else _traced_upper_angle(y, x)


def right_angle(y, x):
    """arctan(y/x) for x > 0, accurate also for tiny y."""
    return np.arctan2(y, x) if library(y, x) is np else _traced_right_angle(y, x)


@jax.custom_jvp
def _traced_upper_angle(y, x):
    y, x = jnp.broadcast_arrays(y, x)
    across = jnp.abs(x)
    short, long = jnp.minimum(y, across), jnp.maximum(y, across)
    # arctan(s/l) = π/4 + arctan((s−l)/(s+l)) keeps the argument of the polynomial below tan(π/8)
    turned = short > math.tan(math.pi / 8) * long
    below = jnp.where(turned, short + long, long)
    t = jnp.where(turned, short - long, short) / jnp.where(below > 0.0, below, 1.0)
    square = t * t
    polynomial = jnp.full_like(square, _COEFFICIENTS[-1])
    for coefficient in _COEFFICIENTS[-2::-1]:
        polynomial = polynomial * square + coefficient
    angle = t * polynomial + jnp.where(turned, math.pi / 4, 0.0)
    angle = jnp.where(y > across, math.pi / 2 - angle, angle)
    return jnp.where(x < 0.0, math.pi - angle, angle)


@jax.custom_jvp
def _traced_right_angle(y, x):
    return jnp.sign(y) * _traced_upper_angle(jnp.abs(y), x)


def _turning(y, x, dy, dx):
    return (x * dy - y * dx) / (x * x + y * y)


for _angle in (_traced_upper_angle, _traced_right_angle):
    _angle.defjvp(lambda at, moved, angle=_angle: (angle(*at), _turning(*at, *moved)))


def determinant(K_aa, K_ab, K_bb):
    """K_aa K_bb − K_ab², exactly zero for inputs that are parallel up to rounding."""
    square = K_aa * K_bb
    det = square - K_ab * K_ab
    return library(det).where(det > PARALLEL_SHARE * square, det, 0.0)


class PriceFamily(ClosedForm):
    """All orders from a few known ones, by differentiating with respect to the kernel.

    `KNOWN` maps (p, q), p ≥ q, to the method that states it; (0, 0) and (1, 0) suffice, (1, 1) is asked for most.
    """

    KNOWN: ClassVar[dict[tuple[int, int], str]] = {(0, 0): "even", (1, 0): "odd", (1, 1): "slopes"}

    def stated(self, p: int, q: int) -> bool:
        """Whether a formula stands here, which numpy can evaluate; the others are derivatives."""
        return (max(p, q), min(p, q)) in self.KNOWN

    def even(self, K_aa, K_ab, K_bb):
        """⟨σ_a σ_b⟩."""
        raise NotImplementedError

    def odd(self, K_aa, K_ab, K_bb):
        """⟨σ'_a σ_b⟩; zero when σ has a parity."""
        return library(K_aa, K_ab, K_bb).zeros_like(K_aa + K_ab + K_bb)

    def slopes(self, K_aa, K_ab, K_bb):
        """⟨σ'_a σ'_b⟩."""
        raise NotImplementedError

    def pair(self, p: int, q: int, K_aa, K_ab, K_bb):
        if p < q:
            return self.pair(q, p, K_bb, K_ab, K_aa)
        if (p, q) in self.KNOWN:
            return getattr(self, self.KNOWN[p, q])(K_aa, K_ab, K_bb)
        K_aa, K_ab, K_bb = jnp.broadcast_arrays(K_aa, K_ab, K_bb)
        if q:
            return differentiate(lambda K: self.pair(p - 1, q - 1, K_aa, K, K_bb))(K_ab)
        return 2.0 * differentiate(lambda K: self.pair(p - 2, q, K, K_ab, K_bb))(K_aa)


@dataclass(frozen=True)
class ErfForm(PriceFamily):
    """σ = erf, R² = (1+2K_aa)(1+2K_bb) − 4K_ab²: ⟨σσ⟩ = (2/π) arctan(2K_ab/R), ⟨σ'σ'⟩ = (4/π)/R."""

    @staticmethod
    def _width(K_aa, K_ab, K_bb):
        return _root(1.0 + 2.0 * (K_aa + K_bb) + 4.0 * (K_aa * K_bb - K_ab * K_ab))

    def even(self, K_aa, K_ab, K_bb):
        return (2.0 / math.pi) * right_angle(2.0 * K_ab, self._width(K_aa, K_ab, K_bb))

    def slopes(self, K_aa, K_ab, K_bb):
        return (4.0 / math.pi) / self._width(K_aa, K_ab, K_bb)

    def value_and_slope(self, K_aa, K_ab, K_bb):
        width = self._width(K_aa, K_ab, K_bb)
        return (2.0 / math.pi) * right_angle(2.0 * K_ab, width), (4.0 / math.pi) / width


@dataclass(frozen=True)
class GeluForm(PriceFamily):
    """σ = zΦ(z). With A = 1+K_aa, B = 1+K_bb, D = AB − K_ab²:

    ⟨σσ⟩ = K_ab(¼ + arctan(K_ab/√D)/2π) + (K_aa K_bb − K_ab² + K_ab²(1/A + 1/B)) / (2π√D)
    ⟨σ'_aσ_b⟩ = (K_ab/√A + K_bb/√B + K_ab/A^{3/2}) / √(8π)
    ⟨σ'σ'⟩ = ∂⟨σσ⟩/∂K_ab, where ∂ arctan(K_ab/√D) = 1/√D and ∂√D = −K_ab/√D
    """

    @staticmethod
    def _parts(K_aa, K_ab, K_bb):
        """P(z_a, z_b smoothed > 0), the numerator of the second term, 1/A + 1/B, D and 1/2π√D."""
        product, square, more = K_aa * K_bb, K_ab * K_ab, 1.0 + (K_aa + K_bb)
        det, inverses = product - square, (1.0 + more) / (more + product)
        D = more + det
        root = _root(D)
        angle = upper_angle(root, -K_ab) * (0.5 / math.pi)
        return angle, det + square * inverses, inverses, D, (0.5 / math.pi) / root

    def even(self, K_aa, K_ab, K_bb):
        return self._value(K_ab, *self._parts(K_aa, K_ab, K_bb))

    def odd(self, K_aa, K_ab, K_bb):
        A, B = 1.0 + K_aa, 1.0 + K_bb
        return (K_ab / _root(A) + K_bb / _root(B) + K_ab / (A * _root(A))) / math.sqrt(8.0 * math.pi)

    def slopes(self, K_aa, K_ab, K_bb):
        return self._slope(K_ab, *self._parts(K_aa, K_ab, K_bb))

    def value_and_slope(self, K_aa, K_ab, K_bb):
        parts = self._parts(K_aa, K_ab, K_bb)
        return self._value(K_ab, *parts), self._slope(K_ab, *parts)

    @staticmethod
    def _value(K_ab, both_positive, rest, inverses, D, scale):
        return K_ab * both_positive + rest * scale

    @staticmethod
    def _slope(K_ab, both_positive, rest, inverses, D, scale):
        return both_positive + K_ab * (2.0 * inverses - 1.0 + rest / D) * scale


@dataclass(frozen=True)
class SineForm(ClosedForm):
    """σ = sin: ⟨sin sin⟩ = e^{−(K_aa+K_bb)/2} sinh K_ab, ⟨cos cos⟩ the same with cosh, mixed parity zero."""

    def stated(self, p: int, q: int) -> bool:
        return True

    def pair(self, p: int, q: int, K_aa, K_ab, K_bb):
        xp = library(K_aa, K_ab, K_bb)
        if (p + q) % 2:
            return library(K_aa, K_ab, K_bb).zeros_like(K_aa + K_ab + K_bb)
        # differences before sums, so that nearly parallel inputs at huge kernels keep their digits
        magnitude = xp.abs(K_ab)
        largest = 0.5 * xp.exp(-0.5 * ((K_aa - magnitude) + (K_bb - magnitude)))
        sign = (-1.0) ** (p // 2 + q // 2)
        if p % 2:
            return sign * largest * (1.0 + xp.exp(-2.0 * magnitude))
        return -sign * xp.sign(K_ab) * largest * xp.expm1(-2.0 * magnitude)


@dataclass(frozen=True)
class MonomialForm(ClosedForm):
    """σ = z^m: ⟨z_a^i z_b^j⟩ by pairing t of the factors across and the rest among themselves (Isserlis)."""

    degree: int

    def stated(self, p: int, q: int) -> bool:
        return True

    def pair(self, p: int, q: int, K_aa, K_ab, K_bb):
        i, j = self.degree - p, self.degree - q
        total = library(K_aa, K_ab, K_bb).zeros_like(K_aa + K_ab + K_bb)
        if i < 0 or j < 0 or (i + j) % 2:
            return total
        for t in range(i % 2, min(i, j) + 1, 2):
            pairings = math.comb(i, t) * math.comb(j, t) * math.factorial(t)
            pairings *= math.prod(range(i - t - 1, 0, -2)) * math.prod(range(j - t - 1, 0, -2))
            total = total + pairings * K_aa ** ((i - t) // 2) * K_ab**t * K_bb ** ((j - t) // 2)
        return math.perm(self.degree, p) * math.perm(self.degree, q) * total


@dataclass(frozen=True)
class ReluFamilyForm(PriceFamily):
    """σ = a₊z for z > 0 and a₋z for z < 0. With J = a₊−a₋, Δ = K_aa K_bb − K_ab² and ψ = π/2 + arcsin ρ:

    ⟨σσ⟩ = a₊a₋K_ab + (J²/2π)(√Δ + K_ab ψ),    ⟨σ'σ'⟩ = a₊a₋ + (J²/2π) ψ,
    ⟨σ''_aσ_b⟩ = (J²/2π) √Δ / K_aa,            ⟨σ'_aσ_b⟩ = ((a₊²−a₋²)/√(8π)) (√K_bb + K_ab/√K_aa).

    The last two are stated because they stay right for parallel inputs, where differentiating the first does not.
    """

    positive: float = 1.0
    negative: float = 0.0

    KNOWN: ClassVar[dict[tuple[int, int], str]] = PriceFamily.KNOWN | {(2, 0): "curvature"}

    @property
    def strength(self):
        return (self.positive - self.negative) ** 2 / (2.0 * math.pi)

    def even(self, K_aa, K_ab, K_bb):
        return self._value(K_ab, *self._root_and_angle(K_aa, K_ab, K_bb))

    def odd(self, K_aa, K_ab, K_bb):
        factor = (self.positive**2 - self.negative**2) / math.sqrt(8.0 * math.pi)
        return factor * (_root(K_bb) + K_ab / _root(library(K_aa).where(K_aa > 0.0, K_aa, math.inf)))

    def slopes(self, K_aa, K_ab, K_bb):
        return self._slope(self._root_and_angle(K_aa, K_ab, K_bb)[1])

    def value_and_slope(self, K_aa, K_ab, K_bb):
        root, angle = self._root_and_angle(K_aa, K_ab, K_bb)
        return self._value(K_ab, root, angle), self._slope(angle)

    @staticmethod
    def _root_and_angle(K_aa, K_ab, K_bb):
        """√Δ and ψ."""
        root = _root(determinant(K_aa, K_ab, K_bb))
        return root, upper_angle(root, -K_ab)

    def _value(self, K_ab, root, angle):
        bent, product = self.strength * (root + K_ab * angle), self.positive * self.negative
        return product * K_ab + bent if product else bent

    def _slope(self, angle):
        bent, product = self.strength * angle, self.positive * self.negative
        return product + bent if product else bent

    def curvature(self, K_aa, K_ab, K_bb):
        return self.strength * _root(determinant(K_aa, K_ab, K_bb)) / K_aa


@dataclass(frozen=True)
class DerivativeForm(ClosedForm):
    """σ is the derivative of another activation: the step is the derivative of relu."""

    of: ReluFamilyForm

    def stated(self, p: int, q: int) -> bool:
        return self.of.stated(p + 1, q + 1)

    def pair(self, p: int, q: int, K_aa, K_ab, K_bb):
        return self.of.pair(p + 1, q + 1, K_aa, K_ab, K_bb)


@lru_cache(maxsize=256)
def by_gain(activation: Activation) -> Activation:
    """z σ'(z): how σ(g z) changes with a gain g at g = 1. The relu family and the linear activation are their own."""
    known, slope = homogeneous(activation.closed), activation.derivative(1)
    if known is not None and known[2] == 1:
        return activation
    return Activation(f"z·({activation.name})'", lambda z: z * slope(z), activation.kinks)


def homogeneous(closed: object) -> tuple[float, float, int] | None:
    """(a₊, a₋, power) of σ = a_± z^power: relu family and linear activation (power 1), step (power 0); else None.

    >>> homogeneous(ReluFamilyForm(1.0, 0.1)), homogeneous(MonomialForm(2))
    ((1.0, 0.1, 1), None)
    """
    if closed == MonomialForm(1):
        return 1.0, 1.0, 1
    if isinstance(closed, ReluFamilyForm):
        return closed.positive, closed.negative, 1
    if isinstance(closed, DerivativeForm):
        return closed.of.positive, closed.of.negative, 0
    return None
