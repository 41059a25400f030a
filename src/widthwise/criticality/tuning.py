"""Shapes a·σ(bz) + c + d·z that make an activation critical (theory §7).

Scales change no class: with (C_b, C_W, K*) critical for σ, a σ(bz) is critical with (C_b/b², C_W/(ab)², K*/b²). What
helps is a shift c or a leak d. Both leave σ'' alone, so the one condition ⟨σσ''⟩ = 0 is linear in them. At a chosen K*,

    c = −⟨σσ''⟩/⟨σ''⟩,        d = −⟨σσ''⟩/⟨zσ''⟩,

and at K* = 0 the shift is −σ(0), the leak whatever makes a_1 = σ_3/(σ_1+d) + ¾(σ_2/(σ_1+d))² negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from widthwise.activations import Activation, ActivationLike, resolve
from widthwise.criticality.critical import K_ZERO, SCALE_INVARIANT, Critical, critical_profile
from widthwise.criticality.moments import Profile, profile
from widthwise.errors import InvalidInput, NotCritical, UnknownName
from widthwise.network.validation import LARGEST, LEAST, check_flag, check_real, is_one_of


@dataclass(frozen=True)
class Shape:
    """a·σ(bz) + c + d·z as an activation, with its critical point."""

    a: float
    b: float
    c: float
    d: float
    activation: Activation
    critical: Critical


def shaped(activation: ActivationLike, a: float = 1.0, b: float = 1.0, c: float = 0.0, d: float = 0.0) -> Activation:
    """The activation a·σ(bz) + c + d·z.

    >>> float(shaped("relu", a=0.9, d=0.1)(-2.0))                # leaky relu
    -0.2
    """
    sigma = resolve(activation)
    given = zip("abcd", (a, b, c, d), strict=True)
    a, b, c, d = (check_real(name, value, "a finite number", least=-LARGEST) for name, value in given)
    if b == 0.0:
        raise InvalidInput("b", "0", "a number that is not zero")
    kinks = tuple(sorted(k / b for k in sigma.kinks))
    name = f"{a:g}*{sigma.name}({b:g}z)" + (f"{c:+g}" if c else "") + (f"{d:+g}z" if d else "")
    return Activation(name, lambda z: a * sigma.function(b * z) + c + d * z, kinks=kinks)


def make_critical(
    activation: ActivationLike, vary: str = "shift", K_star: float | None = None, unit: bool = False
) -> Shape:
    """The shift c or the leak d that makes an activation critical; a and b so that its numbers are simple if `unit`.

    `vary` is "shift" or "leak". Without `K_star` the point K* = 0 is taken if it can be made to attract, else the
    smallest change that works at some K* from 0.1 to 100; with `K_star` the change that works there. `unit` chooses a
    so that C_W = 1 and b so that K* = 1 (or a_1 = −1 at K* = 0). The result may have other critical points as well:
    `critical(shape.activation, near=shape.critical.K_star)` finds this one again.

    >>> shape = make_critical("sigmoid")                          # sigmoid − ½ is a tanh
    >>> shape.c, shape.critical.universality, round(shape.critical.C_W, 9)
    (-0.5, 'K*=0', 16.0)
    >>> soft = make_critical("softplus", K_star=1.0)
    >>> soft.critical.universality, bool(soft.critical.C_b >= 0.0)
    ('half-stable K*>0', True)
    """
    if not is_one_of(vary, ("shift", "leak")):
        raise UnknownName.of("vary", vary, ("shift", "leak"))
    sigma = resolve(activation)
    base = profile(sigma)
    change, near = (_change_at_zero(base, vary), None) if K_star is None else (None, None)
    if change is None:
        change, near = _change_at_positive(base, vary, K_star)
    c, d = (change, 0.0) if vary == "shift" else (0.0, change)
    point = critical_profile(base.shaped(c=c, d=d), near=near)
    a = b = 1.0
    if check_flag("unit", unit):
        if point.universality == K_ZERO:
            b = (-point.details["a"]) ** (-1.0 / (2.0 * point.details["s"]))
        elif point.universality != SCALE_INVARIANT:
            b = math.sqrt(point.K_star)
        a = math.sqrt(point.C_W) / b
    c, d = a * c, a * d * b
    point = critical_profile(base.shaped(a, b, c, d), near=None if near is None else near / b**2)
    return Shape(a, b, c, d, shaped(sigma, a, b, c, d), point)


def _change_at_zero(base: Profile, vary: str) -> float | None:
    """The change that makes K* = 0 attract, or None."""
    value, first, second, third = base.origin[0, :4]
    if vary == "shift":
        change = -float(value)
    elif value != 0.0:
        return None
    elif (first * third < 0.0 and -first * third > 0.75 * second**2) or base.slopes is not None:
        change = 0.0
    elif third == 0.0:
        return None
    else:
        target = max(1.5 * second**2 / abs(third), abs(first))
        change = float(-math.copysign(target, third) - first)
    try:
        point = critical_profile(base.shaped(c=change) if vary == "shift" else base.shaped(d=change))
    except NotCritical:
        return None
    return change if point.universality in (K_ZERO, SCALE_INVARIANT) else None


def _change_at_positive(base: Profile, vary: str, K_star: float | None) -> tuple[float, float]:
    """The change with ⟨σσ''⟩ = 0 at K_star, or at the kernel where it is smallest, with C_b ≥ 0, and that kernel."""
    if K_star is not None:
        expected = f"a kernel between 0 and {base.K_max:.4g}"
        K_star = check_real("K_star", K_star, expected, least=LEAST, largest=base.K_max)
    K = np.array([K_star]) if K_star is not None else np.geomspace(0.1, min(100.0, base.K_max), 241)
    m = base.moments(K)
    weights, s2 = base.weights(K), base.sigma[2]
    bend = weights @ (s2 if vary == "shift" else base.z * s2)
    direction = np.ones_like(base.z) if vary == "shift" else base.z
    with np.errstate(divide="ignore", invalid="ignore"):
        change = -m.curvature / bend
    C_b = np.full(len(K), -np.inf)
    for row in np.flatnonzero(np.isfinite(change)):
        value = base.sigma[0] + change[row] * direction
        slope = base.sigma[1] + (change[row] if vary == "leak" else 0.0)
        C_b[row] = K[row] - (weights[row] @ value**2) / (weights[row] @ slope**2)
    allowed = np.flatnonzero((C_b >= 0.0) & (np.abs(bend) > 1e-12 * np.maximum(m.slope, 1e-300)))
    if base.first_jump < 2 or not len(allowed):
        at = f"at K* = {K_star:g}" if K_star is not None else f"at any K* from {K[0]:.3g} to {K[-1]:.3g}"
        raise NotCritical(
            "activation",
            f"{base.name}, which no {vary} makes critical {at} with C_b ≥ 0",
            "an activation that a shift or a leak makes critical",
            "Nearest: try the other of vary='shift' and vary='leak', or another K_star.",
        )
    best = allowed[np.argmin(np.abs(change[allowed]))]
    return float(change[best]), float(K[best])
