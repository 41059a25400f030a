"""Leading growth with depth of every tensor over its natural scale, class by class (theory §4, §5, §7).

Let K ~ l^(−k), χ_⊥ ≈ 1 − p/l, χ_∥ ≈ 1 − q/l, Θ ~ l^t, and let m be l times the share that the weights of one layer add
to Θ. Over its natural scale x = X/scale each recursion of theory §4 at equal widths takes the form

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
from dataclasses import dataclass
from functools import partial

from widthwise.criticality.moments import Profile
from widthwise.errors import InvalidInput, UnknownName


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
    if rates not in ("uniform", "equal"):
        raise UnknownName.of("rates", rates, ("uniform", "equal"))
    if lambda_b < 0.0 or lambda_W < 0.0 or lambda_b + lambda_W <= 0.0 or K <= 0.0:
        raise InvalidInput("lambda_b, lambda_W, K", f"{lambda_b!r}, {lambda_W!r}, {K!r}", "rates of which one is "
                           "positive, and K > 0")  # fmt: skip
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
