"""`critical`: the initialisation at which signals neither die nor explode, and its universality class (theory §7).

A critical point has K* = C_b + C_W⟨σ²⟩ and χ_∥ = χ_⊥ = 1, so ⟨σσ''⟩ = 0 at K*, C_W = 1/⟨σ'²⟩ and C_b = K* − C_W⟨σ²⟩,
which must not be negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import brentq

from widthwise.activations import Activation, ActivationLike, resolve
from widthwise.criticality.exponents import Growth, growth_laws, half_stable_laws
from widthwise.criticality.moments import Profile, origin_derivatives, profile
from widthwise.criticality.origin import OriginSeries, origin_series
from widthwise.criticality.reasons import no_critical_point, not_differentiable
from widthwise.errors import InvalidInput, NotDifferentiable
from widthwise.tensors import CORRECTIONS, TENSORS

SCALE_INVARIANT = "scale-invariant"
K_ZERO = "K*=0"
HALF_STABLE = "half-stable K*>0"
MARGINAL = "marginal K*>0"
#: ⟨σσ''⟩ beside ⟨σ'²⟩: below this its sign is rounding.
_NOISE = 1e-11
#: Roots K* > 0 are looked for from here up.
_LOWEST_ROOT = 1e-6


@dataclass(frozen=True)
class Critical:
    """A critical initialisation.

    `C_b`, `C_W`, `K_star`; `universality`: "scale-invariant", "K*=0" or "half-stable K*>0". In the scale-invariant
    class every K is a fixed point (`every_K`), none is distinguished, and `K_star` is NaN. `exponents` by name, for
    the same positive λ_b and λ_W in every layer (`laws` has others): `p_perp` with Π χ_⊥ ~ l^(−p_⊥), infinite where
    that is no power (a_1 = 0 but b_1 ≠ 0); `p_parallel` likewise; `K` with K − K* ~ l^K; `Theta`; and `V`, `A`, `B`,
    … for each tensor over its natural scale (V/K², A/Θ², D/(KΘ), …). `stable_side` says from where the kernel flows
    to K*: "above", "below", or "neither" where it never moves.
    """

    activation: str
    C_b: float
    C_W: float
    K_star: float
    universality: str
    stable_side: str
    details: dict[str, float] = field(repr=False)
    _profile: Profile = field(repr=False, compare=False)

    @property
    def every_K(self) -> bool:
        """Whether every kernel is a fixed point: the scale-invariant class."""
        return self.universality == SCALE_INVARIANT

    @property
    def exponents(self) -> dict[str, float]:
        """Every exponent by name."""
        flat = self.universality in (HALF_STABLE, MARGINAL)
        p, q, k = (0.0, 0.0, 0.0) if flat else (self.details[name] for name in "pqk")
        return {"p_perp": p, "p_parallel": q, "K": 0.0 - k, **self.laws().exponent}

    def laws(self, rates: str = "uniform", lambda_b: float = 1.0, lambda_W: float = 1.0, K: float = 1.0) -> Growth:
        """Leading growth of every tensor over its natural scale, exponent and coefficient, at equal widths.

        `rates` is "uniform" (λ_b and λ_W the same in every layer) or "equal" (every layer contributes equally to Θ,
        theory §7, layer equivalence). In the scale-invariant class coefficients depend on λ_b, λ_W and K.

        >>> laws = critical("tanh").laws()
        >>> laws.exponent["V"], round(laws.coefficient["V"], 12)        # V/K² ≈ 2l/3
        (1.0, 0.666666666667)
        """
        if self.universality in (HALF_STABLE, MARGINAL):
            laws = half_stable_laws(self._profile, self.K_star, self.C_W)
        else:
            laws = growth_laws(self.details, rates, lambda_b, lambda_W, K)
        return laws.only(existing_tensors(self._profile.first_jump))


def critical(activation: ActivationLike, near: float | None = None) -> Critical:
    """The critical initialisation of an activation, by name or written in `jax.numpy` (theory §7).

    Looked for in this order: scale-invariant activations; K* = 0, if it attracts; K* > 0 with C_b ≥ 0, the smallest.
    With `near` given, the K* > 0 closest to it on a logarithmic scale. `NotCritical` says which condition fails and
    what comes nearest.

    >>> point = critical("gelu")
    >>> point.universality, round(point.C_b, 8), round(point.C_W, 8), round(point.K_star, 8)
    ('half-stable K*>0', 0.17292239, 1.98305826, 3.56155281)
    >>> critical("tanh")
    Critical(activation='tanh', C_b=0.0, C_W=1.0, K_star=0.0, universality='K*=0', stable_side='above')
    """
    sigma = resolve(activation)
    if near is not None and not (math.isfinite(near) and near > 0.0):
        raise InvalidInput("near", repr(near), "a positive kernel")
    try:
        shape = profile(sigma)
    except NotDifferentiable as error:
        if sigma.first_jump < 1:
            raise not_differentiable(sigma.name, sigma.kinks) from error
        raise
    return critical_profile(shape, sigma, near)


def critical_profile(shape: Profile, sigma: Activation | None = None, near: float | None = None) -> Critical:
    """The same from a profile; with the activation at hand, higher orders at K = 0 where the first ones vanish."""
    if shape.slopes is not None:
        return _scale_invariant(shape)
    series = near_zero(shape, sigma)
    attracts = series is not None and series.leading > 0 and series.a[series.leading - 1] < 0.0
    if attracts and series is not None and near is None:
        return _zero(shape, series)
    roots = curvature_roots(shape)
    good = [K for K in roots if _biases(shape, K) >= -1e-12 * K]
    if good:
        return _positive(shape, good[0] if near is None else min(good, key=lambda K: abs(math.log(K / near))))
    raise no_critical_point(shape, series, roots)


def near_zero(shape: Profile, sigma: Activation | None = None) -> OriginSeries | None:
    """The series around K = 0, or None where K = 0 is no fixed point or σ has no slope there."""
    if shape.origin[0, 0] != 0.0 or shape.origin[1, 0] != 0.0 or not np.any(shape.origin[:, 1]):
        return None
    series = origin_series(shape.origin)
    if not series.leading and sigma is not None:
        series = origin_series(origin_derivatives(sigma, 7))
    return series


def curvature_roots(shape: Profile) -> list[float]:
    """Every kernel with ⟨σσ''⟩ = 0, by rising K."""
    grid = shape.scan
    share = grid.curvature / np.maximum(grid.slope + np.abs(grid.growth), 1e-300)
    seen = np.flatnonzero((np.abs(share) > _NOISE) & (grid.K > _LOWEST_ROOT))
    changes = np.flatnonzero(np.diff(np.sign(share[seen])) != 0)
    return [
        float(brentq(lambda K: float(shape.moments(K).curvature), grid.K[seen[i]], grid.K[seen[i + 1]], rtol=1e-15))  # pyright: ignore[reportArgumentType]
        for i in changes
    ]


def _biases(shape: Profile, K: float) -> float:
    m = shape.moments(K)
    return K - float(m.square / m.slope)


def _scale_invariant(shape: Profile) -> Critical:
    positive, negative = shape.slopes or (0.0, 0.0)
    A_2, A_4 = (0.5 * (positive**k + negative**k) for k in (2, 4))
    details = {"A_2": A_2, "k": 0.0, "p": 0.0, "q": 0.0, "quartic": A_4 / A_2**2, "second": 0.0, "third": 0.0}
    return _made(shape, 0.0, 1.0 / A_2, math.nan, SCALE_INVARIANT, "neither", details)


def _zero(shape: Profile, series: OriginSeries) -> Critical:
    """K* = 0: K ≈ (−s a l)^(−1/s) with s = j/2, a = a_j the first coefficient that does not vanish."""
    j, first = series.leading, shape.origin[:, 1]
    s, a = j / 2, series.a[j - 1]
    perp = series.leading_perp
    p = series.b[j - 1] / (s * a) if perp in (0, j) else -math.inf if series.b[perp - 1] > 0.0 else math.inf
    second, third = shape.origin[0, 2] / first[0], shape.origin[0, 3] / first[0]
    details = {
        "A_2": series.A_2, "s": s, "a": a, "b": series.b[j - 1], "k": 1.0 / s, "p": p, "q": 1.0 + 1.0 / s,
        "quartic": float(np.mean(first**4)) / series.A_2**2,
        # K⟨σ''²⟩C_W and K⟨σ'σ'''⟩C_W times l; of order one only if K falls like 1/l
        "second": second**2 / -a if s == 1.0 else 0.0,
        "third": third / -a if s == 1.0 else 0.0,
    }  # fmt: skip
    return _made(shape, 0.0, 1.0 / series.A_2, 0.0, K_ZERO, "above", details)


def _positive(shape: Profile, K: float) -> Critical:
    m = shape.moments(K)
    C_W = 1.0 / float(m.slope)
    half, h = 0.5 * C_W * float(m.growth_rate), 0.5 * C_W * float(m.slope_rate)
    details = {"c_2": half, "h": h}
    C_b = max(0.0, K - C_W * float(m.square))
    if abs(half) * K < 1e-9:
        return _made(shape, C_b, C_W, K, MARGINAL, "neither", details)
    return _made(shape, C_b, C_W, K, HALF_STABLE, "above" if half < 0.0 else "below", details)


def _made(shape: Profile, C_b, C_W, K, universality, side, details) -> Critical:
    plain = {name: float(value) for name, value in details.items()}
    return Critical(shape.name, float(C_b), float(C_W), float(K), universality, side, plain, shape)


def existing_tensors(first_jump: float) -> tuple[str, ...]:
    """The tensors whose recursions exist at one input (theory §1, Kinks), by the first derivative that jumps."""
    return tuple(name for name in CORRECTIONS if TENSORS[name].derivatives <= max(first_jump, 1))
