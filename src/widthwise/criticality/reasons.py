"""Why an activation has no critical point, and what comes nearest to one."""

from __future__ import annotations

import math

import numpy as np

from widthwise.criticality.moments import Profile
from widthwise.criticality.origin import OriginSeries
from widthwise.errors import NotCritical

EXPECTED = "an activation with K* = C_b + C_W⟨σ²⟩, C_b ≥ 0, and χ_∥ = χ_⊥ = 1 at some kernel that attracts"


def not_differentiable(name: str, kinks: tuple[float, ...]) -> NotCritical:
    """σ jumps, or its slope is infinite: ⟨σ'²⟩ does not exist."""
    place = f"z = {kinks[0]:g}" if kinks else "some z"
    return NotCritical(
        "activation",
        f"{name}, for which χ_⊥ = C_W⟨σ'²⟩ is infinite at every kernel: σ is not continuous, or has no finite slope, "
        f"at {place}",
        EXPECTED,
        "Nearest: a steep erf(bz) or tanh(bz), critical at K* = 0 with C_W = 1/σ'(0)², or relu.",
    )


def no_critical_point(shape: Profile, series: OriginSeries | None, roots: list[float]) -> NotCritical:
    """The condition that fails, in words and numbers."""
    slope = shape.scan.slope
    if slope.max() <= 1e-30 * max(1.0, float(shape.scan.square.max())):
        value = shape.origin[0, 0]
        what = "identically zero" if value == 0.0 else f"constant, {value:g}"
        return NotCritical(
            "activation",
            f"{shape.name}, which is {what}: σ' = 0, so χ_⊥ = 0 whatever C_W is",
            EXPECTED,
            "Nearest: nothing; give it a slope.",
        )
    parts = [_at_zero(shape, series), *(_at_root(shape, K) for K in roots)]
    if not roots:
        sign = "positive" if shape.scan.curvature[len(slope) // 2] > 0.0 else "negative"
        parts.append(f"for K* > 0, ⟨σσ''⟩ is {sign} at every kernel up to {shape.K_max:.3g}, so χ_∥ ≠ χ_⊥")
    return NotCritical("activation", f"{shape.name}: " + "; ".join(parts), EXPECTED, nearest(shape, series))


def _at_zero(shape: Profile, series: OriginSeries | None) -> str:
    value, first = shape.origin[0, :2]
    if value != 0.0:
        if first == 0.0:
            return "K* = 0 needs σ(0) = 0 and σ'(0) ≠ 0"
        return f"K* = 0 needs C_b = −(σ(0)/σ'(0))² = {-((value / first) ** 2):.6g} < 0, as σ(0) = {value:.6g} ≠ 0"
    if series is None:
        return "K* = 0 needs σ'(0) ≠ 0"
    if not series.leading:
        return (
            f"K* = 0 (C_b = 0, C_W = {1.0 / series.A_2:.6g}) is marginal to all orders computed, so that K moves more "
            "slowly than any power of depth and has no exponents"
        )
    power = 1 + series.leading / 2
    symbol = "a_1" if series.leading == 2 else "a"
    return (
        f"K* = 0 (C_b = 0, C_W = {1.0 / series.A_2:.6g}) repels: K grows like K + a K^{power:g} with "
        f"{symbol} = {series.a[series.leading - 1]:.6g} > 0"
    )


def _at_root(shape: Profile, K: float) -> str:
    m = shape.moments(K)
    return f"K* = {K:.6g}, where ⟨σσ''⟩ = 0, needs C_b = {K - float(m.square / m.slope):.6g} < 0"


def nearest(shape: Profile, series: OriginSeries | None) -> str:
    """The kernel with C_b ≥ 0 at which χ_∥/χ_⊥ is closest to one, with C_W chosen so that χ_∥ χ_⊥ = 1."""
    if series is not None and series.leading:
        a, s = series.a[series.leading - 1], series.leading / 2
        return (
            f"Nearest: C_b = 0, C_W = {1.0 / series.A_2:.6g}, good for about {1.0 / (a * s):.3g}/K^{s:g} layers when "
            "the inputs have kernel K."
        )
    if series is not None:
        return f"Nearest: C_b = 0, C_W = {1.0 / series.A_2:.6g}, where χ_∥ = χ_⊥ = 1 for small kernels."
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
    end = " (only in the limit of large kernels)" if best == len(grid.K) - 1 else ""
    text = (
        f"Nearest{end}: K = {grid.K[best]:.4g}, C_b = {C_b[best]:.4g}, C_W = {C_W[best]:.4g}, with "
        f"χ_∥ = {chi[0]:.4g}, χ_⊥ = {chi[1]:.4g}."
    )
    if not math.isclose(shape.origin[0, 0], 0.0):
        text += " Or subtract σ(0), so that σ(0) = 0 (see make_critical)."
    return text
