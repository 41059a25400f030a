"""`critical`: the initialisation at which signals neither die nor explode, and its universality class (theory §7).

A critical point has K* = C_b + C_W⟨σ²⟩ and χ_∥ = χ_⊥ = 1, so ⟨σσ''⟩ = 0 at K*, C_W = 1/⟨σ'²⟩ and C_b = K* − C_W⟨σ²⟩,
which must not be negative.

There every tensor over its natural scale grows with depth, class by class (theory §4, §5). Let K ~ l^(−k),
χ_⊥ ≈ 1 − p/l, χ_∥ ≈ 1 − q/l, Θ ~ l^t, and let m be l times the share that the weights of one layer add to Θ. With
x = X/scale each recursion of theory §4 at equal widths takes the form

    x' = source + x (1 − e/l),     so     x ≈ source · l/(1 + e),

with e from the χ's in front of X and from the change of scale. Where dχ_⊥/dK enters, it is −(p/k)/(lK). At K* = 0
q = 1 + k; in the scale-invariant class k = p = q = 0 and dχ_⊥/dK = 0. Theory §7 has the sources, but for these:

    R: ρ B + y P      S: (τ + m) B      T: 2 y Q      H1: m G1 − (p/k)(G1 + ½(s−1)V + D + 2F)

with y = m − p/k and s = 1/k. U only has the source τ/l and tends to a constant. ρ and τ are l K C_W⟨σ'σ'''⟩ and
l K C_W⟨σ''²⟩, of order one if K ~ 1/l.

At a half-stable K* > 0, h = ½ dχ_⊥/dK and dχ_∥/dK do not vanish there: fluctuations of K, which grow like l, feed
D and G1 (like l²) and these feed A and H1 (like l³). So not every tensor stays of the order of its scale times l.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import brentq

from widthwise.activations import Activation, ActivationLike, resolve
from widthwise.criticality.blocks import PLAIN, BlockForm
from widthwise.criticality.deep_fluctuations import slope_growth, variance_growth
from widthwise.criticality.moments import OriginSeries, Profile, origin_derivatives, origin_series, profile
from widthwise.errors import InvalidInput, NotCritical, NotDifferentiable, UnknownName
from widthwise.network.validation import LEAST, check_real, is_one_of
from widthwise.tensors import CORRECTIONS, TENSORS
from widthwise.text import NumbersTable


@dataclass(frozen=True)
class Growth:
    """X/scale ≈ coefficient · l^exponent for each tensor X; `Theta` is the exponent of Θ itself.

    A tensor whose leading coefficient vanishes is left out: it vanishes, or grows more slowly than the others.
    """

    exponent: dict[str, float]
    coefficient: dict[str, float]

    def only(self, names: tuple[str, ...]) -> Growth:
        """The laws of some tensors; Θ stays."""
        exponent = {name: value for name, value in self.exponent.items() if name in (*names, "Theta")}
        return Growth(exponent, {name: value for name, value in self.coefficient.items() if name in names})


def growth_laws(details: Mapping[str, float], rates: str, lambda_b: float, lambda_W: float, K: float) -> Growth:
    """The table above for the scale-invariant class and for K* = 0, from a class's `details`.

    >>> scale_invariant = dict(A_2=1.0, k=0.0, p=0.0, q=0.0, quartic=1.0, second=0.0, third=0.0)
    >>> growth_laws(scale_invariant, "uniform", 0.0, 1.0, 1.0).coefficient["V"]          # linear: V = 2(l−1)K²
    2.0
    """
    k, p, q = details["k"], details["p"], details["q"]
    if not math.isfinite(p):
        return Growth({"V": 1.0, "G1": 1.0}, {"V": (3.0 * details["quartic"] - 1.0) / 3.0})
    t, m = _theta_growth(details, rates, lambda_b, lambda_W, K)
    beta, rho, tau = details["quartic"], details["third"], details["second"]
    bend = p / k if k else 0.0
    y, s = m - bend, 1.0 / k if k else 0.0
    V = (3.0 * beta - 1.0) / (1.0 + 2.0 * (q - k))
    B = beta / (1.0 + 2.0 * (p + t))
    F = beta / (1.0 + 2.0 * q + t - k)
    D = (beta - 1.0 + y * V) / (1.0 + p + q + t - k)
    A = (beta - 1.0 + 2.0 * y * D) / (1.0 + 2.0 * (p + t))
    P = -(q - p) * B / (1.0 + p + q + 2.0 * t)
    Q = y * F / (1.0 + p + q + 2.0 * t)
    third = 2.0 * p + 3.0 * t + k
    R, S, T = (rho * B + y * P) / (1.0 + third), (tau + m) * B / (1.0 + third), 2.0 * y * Q / (1.0 + third)
    G1 = -0.5 * (1.0 + s) * V / (1.0 + q - k) if k else 0.0
    H1 = (m * G1 - bend * (G1 + 0.5 * (s - 1.0) * V + D + 2.0 * F)) / (1.0 + p + t)
    linear = {"V": V, "D": D, "F": F, "A": A, "B": B, "P": P, "Q": Q, "R": R, "S": S, "T": T, "G1": G1, "H1": H1}
    coefficient = {name: float(value) for name, value in linear.items() if abs(value) > 1e-14}
    exponent = {"Theta": t, **dict.fromkeys(coefficient, 1.0)}
    if tau:
        exponent["U"], coefficient["U"] = 0.0, float(tau / third)
    return Growth(exponent, coefficient)


def _theta_growth(details, rates: str, lambda_b: float, lambda_W: float, K: float) -> tuple[float, float]:
    """t of Θ ~ l^t, and m = l λ_W⟨σ²⟩/Θ."""
    if not is_one_of(rates, ("uniform", "equal")):
        raise UnknownName.of("rates", rates, ("uniform", "equal"))
    expected = "a number from 0 to 1e100"
    lambda_b = check_real("lambda_b", lambda_b, expected, largest=1e100)
    lambda_W = check_real("lambda_W", lambda_W, expected, largest=1e100)
    K = check_real("K", K, "a positive number up to 1e100", least=LEAST, largest=1e100)
    if lambda_b + lambda_W <= 0.0:
        raise InvalidInput("lambda_b", "0, and lambda_W = 0", "rates of which one is positive")
    k, p = details["k"], details["p"]
    weights = lambda_W * details["A_2"] * K
    share = weights / (lambda_b + weights)
    if rates == "equal" or k == 0.0:
        return 1.0 - p, share
    if lambda_b > 0.0 and p > -1.0:
        return 1.0, 0.0
    # without biases the source of Θ falls like K; where the first layers outlive it, they are all there is
    return (1.0 - k, 1.0 - k + p) if lambda_W > 0.0 and p > k - 1.0 and lambda_b == 0.0 else (-p, 0.0)


def half_stable_laws(shape: Profile, K: float, C_W: float) -> Growth:
    """Growth at K = K* > 0, where χ_∥ = χ_⊥ = 1, Θ ~ l, and h = ½ dχ_⊥/dK need not vanish."""
    s0, s1, s2 = shape.sigma
    mean, m = partial(shape.mean, K), shape.moments(K)
    square, y = float(m.square), C_W * float(m.slope_rate) * K
    V = C_W**2 * (mean(s0**4) - square**2) / K**2
    B = C_W**2 * mean(s1**4) / 3.0
    F = C_W**2 * mean((s0 * s1) ** 2) / K / 2.0
    D, Q = y * V / 3.0, y * F / 4.0
    G1 = 0.5 * C_W * float(m.growth_rate) * K * V / 2.0
    # exponent and coefficient of each
    laws = {"V": (1.0, V), "F": (1.0, F), "B": (1.0, B), "D": (2.0, D), "A": (3.0, 2.0 * y * D / 5.0), "Q": (2.0, Q),
            "G1": (2.0, G1), "H1": (3.0, y * (G1 + D) / 4.0)}  # fmt: skip
    if shape.first_jump >= 2:
        tau, P = C_W * K * mean(s2 * s2), C_W**2 * mean(s2 * s1 * s1 * s0) / 3.0
        laws |= {"P": (1.0, P), "R": (2.0, ((y - tau) * B + y * P) / 5.0), "S": (2.0, tau * B / 5.0),
                 "T": (3.0, y * Q / 3.0), "U": (1.0, C_W**2 * K * mean((s2 * s1) ** 2) / 4.0)}  # fmt: skip
    growth = Growth(
        {"Theta": 1.0} | {name: power for name, (power, _) in laws.items()},
        {name: value for name, (_, value) in laws.items()},
    )
    # h = 0: only what grows through V, F and B alone is stated
    return growth.only(("V", "F", "B", "P", "S", "U", "G1")) if abs(y) < 1e-12 else growth


SCALE_INVARIANT = "scale-invariant"
K_ZERO = "K*=0"
HALF_STABLE = "half-stable K*>0"
MARGINAL = "marginal K*>0"
NORMALISED = "normalised"
_EXPECTED = "an activation with K* = C_b + C_W⟨σ²⟩, C_b ≥ 0, and χ_∥ = χ_⊥ = 1 at some kernel that attracts"
#: ⟨σσ''⟩ beside ⟨σ'²⟩: below this its sign is rounding.
_NOISE = 1e-11
#: Roots K* > 0 are looked for from here up.
_LOWEST_ROOT = 1e-6


@dataclass(frozen=True)
class Critical(NumbersTable):
    """A critical initialisation.

    `C_b`, `C_W`, `K_star`; `universality`: "scale-invariant", "K*=0" or "half-stable K*>0". In the scale-invariant
    class every K is a fixed point (`every_K`), none is distinguished, and `K_star` is NaN. `exponents` by name, for
    the same positive λ_b and λ_W in every layer (`laws` has others): `p_perp` with Π χ_⊥ ~ l^(−p_⊥), infinite where
    that is no power (a_1 = 0 but b_1 ≠ 0); `p_parallel` likewise; `K` with K − K* ~ l^K; `Theta`; and `V`, `A`, `B`,
    … for each tensor over its natural scale (V/K², A/Θ², D/(KΘ), …). `stable_side` says from where the kernel flows
    to K*: "above", "below", or "neither" where it never moves.

    With a skip γ < 1 the classes are those of plain layers, with the same exponents, C_b and C_W times 1 − γ², and
    γ² + χ_∥ = γ² + χ_⊥ = 1 (`block` has the skip and the normalisation). With a normalisation the class is
    "normalised": χ_⊥ = 1 on a whole line, C_b = C_W(⟨σ'²⟩ − ⟨σ²⟩) at unit variance if it stands before the activation,
    of which this is the point K* = 1; sizes are forgotten at once, and kernels flow to K* from "both" sides.
    """

    activation: str
    C_b: float
    C_W: float
    K_star: float
    universality: str
    stable_side: str
    details: dict[str, float] = field(repr=False)
    _profile: Profile = field(repr=False, compare=False)
    block: BlockForm = field(default=PLAIN, repr=False)
    _sigma: Activation | None = field(default=None, repr=False, compare=False)

    def numbers(self) -> dict[str, Any]:
        """The initialisation, and the exponents of depth.

        >>> "<th scope='row'>C_W</th><td>2</td>" in critical("relu")._repr_html_()
        True
        """
        return super().numbers() | {f"exponent of {name}": value for name, value in self.exponents.items()}

    @property
    def every_K(self) -> bool:
        """Whether every kernel is a fixed point: the scale-invariant class."""
        return self.universality == SCALE_INVARIANT

    @property
    def exponents(self) -> dict[str, float]:
        """Every exponent by name."""
        flat = self.universality in (HALF_STABLE, MARGINAL, NORMALISED)
        p, q, k = (0.0, 0.0, 0.0) if flat else (self.details[name] for name in "pqk")
        if self.universality == NORMALISED:
            q = math.inf  # sizes are forgotten exponentially fast
        return {"p_perp": p, "p_parallel": q, "K": 0.0 - k, **self.laws().exponent}

    def laws(self, rates: str = "uniform", lambda_b: float = 1.0, lambda_W: float = 1.0, K: float = 1.0) -> Growth:
        """Leading growth of every tensor over its natural scale, exponent and coefficient, at equal widths.

        `rates` is "uniform" (λ_b and λ_W the same in every layer) or "equal" (every layer contributes equally to Θ,
        theory §7, layer equivalence). In the scale-invariant class coefficients depend on λ_b, λ_W and K. With a skip
        or a normalisation only V, which may tend to a constant, and B have coefficients.

        >>> laws = critical("tanh").laws()
        >>> laws.exponent["V"], round(laws.coefficient["V"], 12)        # V/K² ≈ 2l/3
        (1.0, 0.666666666667)
        """
        if self.universality == NORMALISED:
            exponents: dict[str, float] = {"Theta": 1.0, "V": 0.0, "D": 0.0, "F": 0.0, "A": 1.0, "B": 1.0, "H1": 1.0}
            return self._with_memory(Growth(exponents, {}))
        if self.universality in (HALF_STABLE, MARGINAL):
            laws = half_stable_laws(self._profile, self.K_star, self.C_W)
        else:
            laws = growth_laws(self.details, rates, lambda_b, lambda_W, K)
        # those whose recursions exist at one input (theory §1, Kinks)
        reach = max(self._profile.first_jump, 1)
        laws = laws.only(tuple(name for name in CORRECTIONS if TENSORS[name].derivatives <= reach))
        return laws if self.block == PLAIN else self._with_memory(laws)

    def _with_memory(self, laws: Growth) -> Growth:
        """The same exponents; coefficients of V and B with what a skip makes neurons remember (theory §11)."""
        sigma, C_W, K = self._sigma, self.C_W, self.K_star
        assert sigma is not None
        k, p, q = (self.details.get(name, 0.0) for name in "kpq")
        if self.every_K:
            K = 1.0
        elif self.universality == K_ZERO:
            # small kernels see the slopes at zero alone; a mirrored activation has the same moments
            large, small = sorted(np.abs(self._profile.origin[:, 1]), reverse=True)
            same_sign = np.prod(self._profile.origin[:, 1]) >= 0.0
            ratio = float(small / large) if same_sign else -float(small / large)
            sigma = resolve("linear" if ratio == 1.0 else f"leaky_relu({ratio!r})")
            C_W, K = C_W * float(large) ** 2, 1.0
        chi = self.details.get("chi_parallel", 1.0)
        V = variance_growth(sigma, C_W, K, self.block, chi)
        B = slope_growth(sigma, C_W, K, self.block) / (1.0 + 2.0 * (p + laws.exponent["Theta"]))
        return Growth(laws.exponent, {"V": V / (1.0 - chi**2) if chi < 1.0 else V / (1.0 + 2.0 * (q - k)), "B": B})


def critical(activation: ActivationLike, near: float | None = None, *, skip: float = 0.0, norm: Any = None) -> Critical:
    """The critical initialisation of an activation, by name or written in `jax.numpy` (theory §7).

    Looked for in this order: scale-invariant activations; K* = 0, if it attracts; K* > 0 with C_b ≥ 0, the smallest.
    With `near` given, the K* > 0 closest to it on a logarithmic scale. `NotCritical` says which condition fails and
    what comes nearest.

    `skip` is γ < 1 of residual layers z' = γ z + b + W s, whose C_b and C_W it gives; with γ = 1 there is no critical
    point but a law of growth, `depth_growth`. `norm` is a normalisation before the activation, "rms" or "ln", or
    (kind, "pre" or "post", ε) as in `NormMLP`; K* = 1 then, or `near`.

    >>> point = critical("gelu")
    >>> point.universality, round(point.C_b, 8), round(point.C_W, 8), round(point.K_star, 8)
    ('half-stable K*>0', 0.17292239, 1.98305826, 3.56155281)
    >>> critical("tanh")
    Critical(activation='tanh', C_b=0.0, C_W=1.0, K_star=0.0, universality='K*=0', stable_side='above')
    >>> point = critical("relu", skip=0.9)
    >>> round(point.C_W, 12), round(point.laws().coefficient["V"], 2)
    (0.38, 2.54)
    >>> point = critical("gelu", norm="ln")                     # C_b = C_W(⟨σ'²⟩ − ⟨σ²⟩)
    >>> point.universality, round(point.C_b, 4), round(point.C_W, 4), round(point.laws().coefficient["V"], 2)
    ('normalised', 0.0672, 2.1937, 0.74)
    """
    sigma, block = resolve(activation), BlockForm.of(skip, norm, "critical point")
    if near is not None:
        near = check_real("near", near, "a positive kernel", least=LEAST)
    try:
        shape = profile(sigma)
    except NotDifferentiable as error:
        if sigma.first_jump >= 1:
            raise
        raise NotCritical(
            "activation",
            f"{sigma.name}, for which χ_⊥ = C_W⟨σ'²⟩ is infinite at every kernel: σ is not continuous, or has no "
            f"finite slope, at {f'z = {sigma.kinks[0]:g}' if sigma.kinks else 'some z'}",
            _EXPECTED,
            "Nearest: a steep erf(bz) or tanh(bz), critical at K* = 0 with C_W = 1/σ'(0)², or relu.",
        ) from error
    normalised = block.norm is not None
    point = _normalised(block.profile(sigma), near) if normalised else critical_profile(shape, sigma, near)
    return point if block == PLAIN else _critical_in_block(point, block, sigma)


def _critical_in_block(point: Critical, block: BlockForm, sigma: Activation) -> Critical:
    """A plain point as one of layers with a skip: C's, and with them how fast the flow is, times 1 − γ²."""
    details = {name: value * (block.fresh if name in ("a", "b", "c_2", "h") else 1.0) for name, value in
               point.details.items()}  # fmt: skip
    if block.norm is not None:
        details["chi_parallel"] = block.skip**2 + block.fresh * details["chi_parallel"]
    return replace(point, C_b=block.fresh * point.C_b, C_W=block.fresh * point.C_W, details=details, block=block,
                   _sigma=sigma)  # fmt: skip


def _normalised(shape: Profile, near: float | None) -> Critical:
    """The point K* of the line χ_⊥ = 1 of a normalised layer (theory §12)."""
    K = 1.0 if near is None else near
    m = shape.moments(K)
    C_W = float(1.0 / m.slope)
    C_b = K - C_W * float(m.square)
    if C_b < -1e-12 * K:
        raise NotCritical(
            "activation", f"{shape.name}, for which χ_⊥ = 1 needs C_b = {C_b:.4g} < 0", "one with ⟨s'²⟩ K ≥ ⟨s²⟩",
            f"Nearest: C_b = 0, where χ_⊥ = {K * float(m.slope / m.square):.4g} whatever C_W is.",
        )  # fmt: skip
    details = {"chi_parallel": C_W * float(m.growth)}
    return _made(shape, max(C_b, 0.0), C_W, K, NORMALISED, "both", details)


def critical_profile(shape: Profile, sigma: Activation | None = None, near: float | None = None) -> Critical:
    """The same from a profile; with the activation at hand, higher orders at K = 0 where the first ones vanish."""
    if shape.slopes is not None:
        A_2, A_4 = (0.5 * (shape.slopes[0] ** k + shape.slopes[1] ** k) for k in (2, 4))
        details = {"A_2": A_2, "k": 0.0, "p": 0.0, "q": 0.0, "quartic": A_4 / A_2**2, "second": 0.0, "third": 0.0}
        return _made(shape, 0.0, 1.0 / A_2, math.nan, SCALE_INVARIANT, "neither", details)
    # around K = 0, unless that is no fixed point or σ has no slope there
    series = None
    if not np.any(shape.origin[:, 0]) and np.any(shape.origin[:, 1]):
        series = origin_series(shape.origin)
        if not series.leading and sigma is not None:
            series = origin_series(origin_derivatives(sigma, 7))
    if near is None and series is not None and series.leading > 0 and series.a[series.leading - 1] < 0.0:
        return _zero(shape, series)
    roots = _curvature_roots(shape)
    good = [K for K in roots if _critical_biases(shape, K) >= -1e-12 * K]
    if not good:
        raise _no_critical_point(shape, series, roots)
    K = good[0] if near is None else min(good, key=lambda K: abs(math.log(K / near)))
    m = shape.moments(K)
    C_W = 1.0 / float(m.slope)
    half, h = 0.5 * C_W * float(m.growth_rate), 0.5 * C_W * float(m.slope_rate)
    marginal = abs(half) * K < 1e-9
    side = "neither" if marginal else "above" if half < 0.0 else "below"
    C_b = max(0.0, K - C_W * float(m.square))
    return _made(shape, C_b, C_W, K, MARGINAL if marginal else HALF_STABLE, side, {"c_2": half, "h": h})


def _curvature_roots(shape: Profile) -> list[float]:
    """Every kernel with ⟨σσ''⟩ = 0, by rising K."""
    grid = shape.scan
    share = grid.curvature / np.maximum(grid.slope + np.abs(grid.growth), 1e-300)
    seen = np.flatnonzero((np.abs(share) > _NOISE) & (grid.K > _LOWEST_ROOT))
    changes = np.flatnonzero(np.diff(np.sign(share[seen])) != 0)
    return [
        float(brentq(lambda K: float(shape.moments(K).curvature), grid.K[seen[i]], grid.K[seen[i + 1]], rtol=1e-15))  # pyright: ignore[reportArgumentType]
        for i in changes
    ]


def _zero(shape: Profile, series: OriginSeries) -> Critical:
    """K* = 0: K ≈ (−s a l)^(−1/s) with s = j/2, a = a_j the first coefficient that does not vanish."""
    j, first = series.leading, shape.origin[:, 1]
    s, a = j / 2, series.a[j - 1]
    perp = next((i for i, value in enumerate(series.b, start=1) if value), 0)
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


def _made(shape: Profile, C_b, C_W, K, universality, side, details) -> Critical:
    plain = {name: float(value) for name, value in details.items()}
    return Critical(shape.name, float(C_b), float(C_W), float(K), universality, side, plain, shape)


def _no_critical_point(shape: Profile, series: OriginSeries | None, roots: list[float]) -> NotCritical:
    """The condition that fails, in words and numbers."""
    slope = shape.scan.slope
    if slope.max() <= 1e-30 * max(1.0, float(shape.scan.square.max())):
        value = shape.origin[0, 0]
        what = "identically zero" if value == 0.0 else f"constant, {value:g}"
        problem = f"{shape.name}, which is {what}: σ' = 0, so χ_⊥ = 0 whatever C_W is"
        return NotCritical("activation", problem, _EXPECTED, "Nearest: nothing; give it a slope.")
    parts = [_why_not_zero(shape, series)]
    for K in roots:
        parts.append(f"K* = {K:.6g}, where ⟨σσ''⟩ = 0, needs C_b = {_critical_biases(shape, K):.6g} < 0")
    if not roots:
        sign = "positive" if shape.scan.curvature[len(slope) // 2] > 0.0 else "negative"
        parts.append(f"for K* > 0, ⟨σσ''⟩ is {sign} at every kernel up to {shape.K_max:.3g}, so χ_∥ ≠ χ_⊥")
    return NotCritical("activation", f"{shape.name}: " + "; ".join(parts), _EXPECTED, _nearest(shape, series))


def _critical_biases(shape: Profile, K: float) -> float:
    """C_b = K − ⟨σ²⟩/⟨σ'²⟩, with which K is a fixed point where χ_⊥ = 1."""
    m = shape.moments(K)
    return K - float(m.square / m.slope)


def _why_not_zero(shape: Profile, series: OriginSeries | None) -> str:
    value, first = shape.origin[0, :2]
    if value != 0.0 and first == 0.0:
        return "K* = 0 needs σ(0) = 0 and σ'(0) ≠ 0"
    if value != 0.0:
        return f"K* = 0 needs C_b = −(σ(0)/σ'(0))² = {-((value / first) ** 2):.6g} < 0, as σ(0) = {value:.6g} ≠ 0"
    if series is None:
        return "K* = 0 needs σ'(0) ≠ 0"
    start = f"K* = 0 (C_b = 0, C_W = {1.0 / series.A_2:.6g})"
    if not series.leading:
        return (
            f"{start} is marginal to all orders computed, so that K moves more slowly than any power of depth and has "
            "no exponents"
        )
    symbol = "a_1" if series.leading == 2 else "a"
    return (
        f"{start} repels: K grows like K + a K^{1 + series.leading / 2:g} with "
        f"{symbol} = {series.a[series.leading - 1]:.6g} > 0"
    )


def _nearest(shape: Profile, series: OriginSeries | None) -> str:
    """The kernel with C_b ≥ 0 at which χ_∥/χ_⊥ is closest to one, with C_W chosen so that χ_∥ χ_⊥ = 1."""
    if series is not None:
        start = f"Nearest: C_b = 0, C_W = {1.0 / series.A_2:.6g}, "
        if not series.leading:
            return start + "where χ_∥ = χ_⊥ = 1 for small kernels."
        a, s = series.a[series.leading - 1], series.leading / 2
        return start + f"good for about {1.0 / (a * s):.3g}/K^{s:g} layers when the inputs have kernel K."
    grid = shape.scan
    with np.errstate(divide="ignore", invalid="ignore"):
        C_W = 1.0 / np.sqrt(grid.growth * grid.slope)
        C_b = grid.K - C_W * grid.square
        distance = np.abs(np.log(grid.growth / grid.slope))
    allowed = np.isfinite(distance) & np.isfinite(C_b) & (C_b >= 0.0)
    if not allowed.any():
        return "Nearest: nothing with C_b ≥ 0; subtract σ(0), so that σ(0) = 0."
    best = int(np.flatnonzero(allowed)[np.argmin(distance[allowed])])
    chi = C_W[best] * np.array([grid.growth[best], grid.slope[best]])
    limit = " (only in the limit of large kernels)" if best == len(grid.K) - 1 else ""
    or_shift = " Or subtract σ(0), so that σ(0) = 0 (see make_critical)." if shape.origin[0, 0] != 0.0 else ""
    return (
        f"Nearest{limit}: K = {grid.K[best]:.4g}, C_b = {C_b[best]:.4g}, C_W = {C_W[best]:.4g}, with "
        f"χ_∥ = {chi[0]:.4g}, χ_⊥ = {chi[1]:.4g}.{or_shift}"
    )
