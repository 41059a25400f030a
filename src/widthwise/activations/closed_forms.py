"""Gaussian expectations in closed form: one class a family, each rule written for one pair of inputs.

Every class gives ⟨σ^(p)(z_a) σ^(q)(z_b)⟩ for a centred Gaussian pair with covariance ((K_aa, K_ab), (K_ab, K_bb)).
Price's theorem, ∂⟨F⟩/∂K_ab = ⟨∂_a∂_b F⟩ and 2 ∂⟨F⟩/∂K_aa = ⟨∂_a² F⟩ (theory §1, Stein), turns one formula for
⟨σσ⟩ and one for ⟨σ'σ⟩ into all derivatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from widthwise.activations.angles import right_angle, upper_angle
from widthwise.activations.base import differentiate

#: Below this fraction of K_aa K_bb a determinant is rounding: the two inputs are parallel.
PARALLEL = 4 * np.finfo(np.float64).eps


def determinant(K_aa, K_ab, K_bb):
    """K_aa K_bb − K_ab², exactly zero for inputs that are parallel up to rounding."""
    square = K_aa * K_bb
    det = square - K_ab * K_ab
    return jnp.where(det > PARALLEL * square, det, 0.0)


class PriceFamily:
    """All orders from a few known ones, by differentiating with respect to the kernel.

    `known` maps (p, q), p ≥ q, to the method that states it; (0, 0) and (1, 0) suffice.
    """

    def known(self) -> dict:
        return {(0, 0): self.even, (1, 0): self.odd}

    def even(self, K_aa, K_ab, K_bb):
        """⟨σ_a σ_b⟩."""
        raise NotImplementedError

    def odd(self, K_aa, K_ab, K_bb):
        """⟨σ'_a σ_b⟩; zero when σ has a parity."""
        return jnp.zeros_like(K_aa + K_ab + K_bb)

    def pair(self, p: int, q: int, K_aa, K_ab, K_bb):
        if p < q:
            return self.pair(q, p, K_bb, K_ab, K_aa)
        K_aa, K_ab, K_bb = jnp.broadcast_arrays(K_aa, K_ab, K_bb)
        if (p, q) in self.known():
            return self.known()[p, q](K_aa, K_ab, K_bb)
        if q:
            return differentiate(lambda K: self.pair(p - 1, q - 1, K_aa, K, K_bb))(K_ab)
        return 2.0 * differentiate(lambda K: self.pair(p - 2, q, K, K_ab, K_bb))(K_aa)


@dataclass(frozen=True)
class ErfForm(PriceFamily):
    """σ = erf: ⟨σσ⟩ = (2/π) arcsin(2K_ab / √((1+2K_aa)(1+2K_bb)))."""

    def even(self, K_aa, K_ab, K_bb):
        rest = 1.0 + 2.0 * (K_aa + K_bb) + 4.0 * (K_aa * K_bb - K_ab * K_ab)
        return (2.0 / math.pi) * right_angle(2.0 * K_ab, jnp.sqrt(rest))


@dataclass(frozen=True)
class GeluForm(PriceFamily):
    """σ = zΦ(z). With A = 1+K_aa, B = 1+K_bb, D = AB − K_ab²:

    ⟨σσ⟩ = K_ab(¼ + arctan(K_ab/√D)/2π) + (K_aa K_bb − K_ab² + K_ab²(1/A + 1/B)) / (2π√D)
    ⟨σ'_aσ_b⟩ = (K_ab/√A + K_bb/√B + K_ab/A^{3/2}) / √(8π)
    """

    def even(self, K_aa, K_ab, K_bb):
        A, B = 1.0 + K_aa, 1.0 + K_bb
        det = K_aa * K_bb - K_ab * K_ab
        root = jnp.sqrt(1.0 + K_aa + K_bb + det)
        both_positive = upper_angle(root, -K_ab) / (2.0 * math.pi)
        return K_ab * both_positive + (det + K_ab * K_ab * (1.0 / A + 1.0 / B)) / (2.0 * math.pi * root)

    def odd(self, K_aa, K_ab, K_bb):
        A, B = 1.0 + K_aa, 1.0 + K_bb
        return (K_ab / jnp.sqrt(A) + K_bb / jnp.sqrt(B) + K_ab / (A * jnp.sqrt(A))) / math.sqrt(8.0 * math.pi)


@dataclass(frozen=True)
class SineForm:
    """σ = sin: ⟨sin sin⟩ = e^{−(K_aa+K_bb)/2} sinh K_ab, ⟨cos cos⟩ the same with cosh, mixed parity zero."""

    def pair(self, p: int, q: int, K_aa, K_ab, K_bb):
        if (p + q) % 2:
            return jnp.zeros_like(K_aa + K_ab + K_bb)
        # differences before sums, so that nearly parallel inputs at huge kernels keep their digits
        magnitude = jnp.abs(K_ab)
        largest = 0.5 * jnp.exp(-0.5 * ((K_aa - magnitude) + (K_bb - magnitude)))
        sign = (-1.0) ** (p // 2 + q // 2)
        if p % 2:
            return sign * largest * (1.0 + jnp.exp(-2.0 * magnitude))
        return -sign * jnp.sign(K_ab) * largest * jnp.expm1(-2.0 * magnitude)


@dataclass(frozen=True)
class MonomialForm:
    """σ = z^m: ⟨z_a^i z_b^j⟩ by pairing t of the factors across and the rest among themselves (Isserlis)."""

    degree: int

    def pair(self, p: int, q: int, K_aa, K_ab, K_bb):
        i, j = self.degree - p, self.degree - q
        total = jnp.zeros_like(K_aa + K_ab + K_bb)
        if i < 0 or j < 0 or (i + j) % 2:
            return total
        for t in range(i % 2, min(i, j) + 1, 2):
            pairings = math.comb(i, t) * math.comb(j, t) * math.factorial(t)
            pairings *= _double_factorial(i - t - 1) * _double_factorial(j - t - 1)
            total = total + pairings * K_aa ** ((i - t) // 2) * K_ab**t * K_bb ** ((j - t) // 2)
        return math.perm(self.degree, p) * math.perm(self.degree, q) * total


def _double_factorial(k: int) -> int:
    return math.prod(range(k, 0, -2))


@dataclass(frozen=True)
class ReluFamilyForm(PriceFamily):
    """σ = a₊z for z > 0 and a₋z for z < 0. With J = a₊−a₋, Δ = K_aa K_bb − K_ab² and ψ = π/2 + arcsin ρ:

    ⟨σσ⟩ = a₊a₋K_ab + (J²/2π)(√Δ + K_ab ψ),    ⟨σ'σ'⟩ = a₊a₋ + (J²/2π) ψ,
    ⟨σ''_aσ_b⟩ = (J²/2π) √Δ / K_aa,            ⟨σ'_aσ_b⟩ = ((a₊²−a₋²)/√(8π)) (√K_bb + K_ab/√K_aa).

    The last two are stated because they stay right for parallel inputs, where differentiating the first does not.
    """

    positive: float = 1.0
    negative: float = 0.0

    def known(self):
        return {(0, 0): self.even, (1, 0): self.odd, (1, 1): self.slopes, (2, 0): self.curvature}

    @property
    def strength(self):
        return (self.positive - self.negative) ** 2 / (2.0 * math.pi)

    def even(self, K_aa, K_ab, K_bb):
        root = jnp.sqrt(determinant(K_aa, K_ab, K_bb))
        product = self.positive * self.negative
        return product * K_ab + self.strength * (root + K_ab * upper_angle(root, -K_ab))

    def odd(self, K_aa, K_ab, K_bb):
        factor = (self.positive**2 - self.negative**2) / math.sqrt(8.0 * math.pi)
        return factor * (jnp.sqrt(K_bb) + K_ab / jnp.sqrt(jnp.where(K_aa > 0.0, K_aa, jnp.inf)))

    def slopes(self, K_aa, K_ab, K_bb):
        root = jnp.sqrt(determinant(K_aa, K_ab, K_bb))
        return self.positive * self.negative + self.strength * upper_angle(root, -K_ab)

    def curvature(self, K_aa, K_ab, K_bb):
        return self.strength * jnp.sqrt(determinant(K_aa, K_ab, K_bb)) / K_aa


@dataclass(frozen=True)
class DerivativeForm:
    """σ is the derivative of another activation: the step is the derivative of relu."""

    of: ReluFamilyForm

    def pair(self, p: int, q: int, K_aa, K_ab, K_bb):
        return self.of.pair(p + 1, q + 1, K_aa, K_ab, K_bb)


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
