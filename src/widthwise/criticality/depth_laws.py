"""Laws of growth: what many like layers z' = γ z + b + W s do to K and to gradients (theory §11, §12).

With γ < 1, or without a skip, K settles at a fixed point if there is one, and squared gradients change by χ_⊥ a layer.
With γ = 1 nothing settles. For large kernels let ⟨s²⟩ ~ K^p and ⟨s'²⟩ ~ K^(−r):

    p = 0 (bounded σ, or normalised before it)     K ~ l             p < 1     K ~ l^a, a = 1/(1 − p)
    p = 1 (relu, gelu, swish, …)                   K ~ (γ² + C_W A)^l,  A = lim ⟨s²⟩/K
    gradients Π(γ² + C_W⟨s'²⟩)    ~ exp(c l^(1 − a r)) for a r < 1 (tanh: √l), a power of l for a r = 1 (normalised)

A factor β on the branch is β² on C_b and C_W. With β² = 1/L the kernel of L layers changes by a finite factor in every
case, V/K² stays finite, and what p says sets in beyond L layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.activations import ActivationLike, resolve
from widthwise.criticality.blocks import BlockForm, check_scale
from widthwise.criticality.critical import K_ZERO, critical
from widthwise.criticality.kernel_fixed_points import (
    CHI_IS_ONE,
    FixedPoint,
    correlation_length,
    fixed_points,
    non_negative,
)
from widthwise.criticality.moments import Profile
from widthwise.errors import NotCritical
from widthwise.gaussian.kernel_rules import dense_kernel

TENDS, POWER, EXPONENTIAL = "constant", "power", "exponential"
STRETCHED, FASTER = "stretched exponential", "faster than exponential"
#: Local exponents at large kernels are read off here, or at the largest kernel that is tabulated.
_LARGE_KERNEL = 1e8
#: Exponents this close to a whole number are that number.
_WHOLE_EXPONENT = 0.02


@dataclass(frozen=True)
class DepthLaw:
    """How something changes with the depth l.

    `kind` is "constant" (tends to `value`), "power" (value · l^exponent), "exponential" (e^(l/length), so that it falls
    where `length` is negative), "stretched exponential" (e^(value · l^exponent)) or "faster than exponential".
    `value` is None where no factor is known.

    >>> print(DepthLaw("power", exponent=1.0, value=0.5)), print(DepthLaw("exponential", length=-4.0))
    grows like 0.5 l^1
    falls e-fold every 4 layers
    (None, None)
    """

    kind: str
    exponent: float = 0.0
    length: float = math.inf
    value: float | None = None

    def __str__(self) -> str:
        factor = "" if self.value is None else f"{self.value:.4g} "
        if self.kind == TENDS:
            return f"tends to {factor.strip()}" if factor else "stays of the same size"
        if self.kind == POWER:
            return f"{'grows' if self.exponent > 0 else 'falls'} like {factor}l^{self.exponent:.4g}"
        if self.kind == EXPONENTIAL:
            return f"{'grows' if self.length > 0 else 'falls'} e-fold every {abs(self.length):.3g} layers"
        if self.kind == STRETCHED:
            return f"grows like exp({factor}l^{self.exponent:.4g})"
        return "grows faster than any exponential"


@dataclass(frozen=True)
class DepthGrowth:
    """The laws of K and of squared gradients, from the last layer to the first, and the fixed point if there is one."""

    kernel: DepthLaw
    gradient: DepthLaw
    fixed_point: FixedPoint | None = None

    def __str__(self) -> str:
        return f"K {self.kernel}; the squared gradient {self.gradient}"


def depth_growth(
    activation: ActivationLike,
    C_b: float = 0.0,
    C_W: float = 1.0,
    *,
    skip: float = 1.0,
    norm: Any = None,
    branch: float = 1.0,
    x_square: float = 1.0,
) -> DepthGrowth:
    """What depth does to an input with x·x/n_0 = x_square in layers z' = γ z + β(b + W s): power law or exponential.

    `skip` is γ, `norm` as in `critical`, `branch` β. The first layer is a plain one with C_b and C_W.

    >>> print(depth_growth("tanh", C_W=0.5))
    K grows like 0.5 l^1; the squared gradient grows like exp(0.7523 l^0.5)
    >>> print(depth_growth("relu", C_W=2.0))
    K grows e-fold every 1.44 layers; the squared gradient grows e-fold every 1.44 layers
    >>> print(depth_growth("gelu", norm="ln"))
    K grows like 0.4252 l^1; the squared gradient grows like l^1.072
    >>> print(depth_growth("relu", C_W=0.38, skip=0.9))
    K tends to 0.38; the squared gradient stays of the same size
    """
    sigma, block = resolve(activation), BlockForm.of(skip, norm)
    scale = check_scale("branch", branch) ** 2
    C_b, C_W = non_negative(C_b, "C_b"), non_negative(C_W, "C_W")
    start = dense_kernel(C_b, C_W, non_negative(x_square, "x_square"))
    C_b, C_W = scale * C_b, scale * C_W
    if block.skip < 1.0:
        point = fixed_points(sigma, C_b, C_W, skip=skip, norm=norm).reached_from(start)
        if point is not None:
            return DepthGrowth(*_settled(sigma, block, point), point)
    return DepthGrowth(*_unbounded(block.profile(sigma), block, C_b, C_W, start))


def _settled(sigma: Any, block: BlockForm, point: FixedPoint) -> tuple[DepthLaw, DepthLaw]:
    """K reaches a fixed point: at K* = 0 by the exponents of its class if χ = 1, else by χ_∥."""
    flat = abs(point.chi_perp - 1.0) < CHI_IS_ONE
    gradient = DepthLaw(TENDS) if flat else DepthLaw(EXPONENTIAL, length=-correlation_length(point.chi_perp))
    if point.K > 0.0:
        return DepthLaw(TENDS, value=point.K), gradient
    if not flat:
        return DepthLaw(EXPONENTIAL, length=-correlation_length(point.chi_parallel)), gradient
    try:
        known = critical(sigma, skip=block.skip)
    except NotCritical:
        return DepthLaw(TENDS, value=0.0), gradient
    if known.universality != K_ZERO:
        return DepthLaw(TENDS, value=0.0), gradient
    s, a = known.details["s"], known.details["a"]
    p = known.details["p"]
    gradient = DepthLaw(POWER, exponent=-p) if math.isfinite(p) else DepthLaw(STRETCHED)
    return DepthLaw(POWER, exponent=-1.0 / s, value=(-s * a) ** (-1.0 / s)), gradient


def _unbounded(shape: Profile, block: BlockForm, C_b: float, C_W: float, start: float) -> tuple[DepthLaw, DepthLaw]:
    """K grows without bound: exponents of ⟨s²⟩ and ⟨s'²⟩ at large kernels."""
    large = shape.moments(min(_LARGE_KERNEL, shape.K_max))
    square, slope, kept = C_W * float(large.square), C_W * float(large.slope), block.skip**2
    with np.errstate(divide="ignore", invalid="ignore"):
        p = _exponent(large.K * large.growth / large.square)
        r = _exponent(-large.K * large.slope_rate / large.slope)
    here = shape.moments(start)
    if C_b + C_W * float(here.square) == 0.0:  # nothing is added
        kernel = DepthLaw(TENDS, value=start) if kept == 1.0 or start == 0.0 else _by(kept)
        return kernel, _by(kept + C_W * float(here.slope))
    if p > 1.0:
        return DepthLaw(FASTER), DepthLaw(FASTER)
    if p == 1.0 or kept > 1.0:
        more = C_W * float(large.growth) if p == 1.0 else 0.0
        return _by(kept + more), _by(kept + (slope if r == 0.0 else 0.0))
    a, source = 1.0 / (1.0 - p), C_b + square if p == 0.0 else square
    size = source if p == 0.0 else (source / float(large.K) ** p / a) ** a
    kernel = DepthLaw(POWER, exponent=a, value=size)
    if slope == 0.0:
        return kernel, DepthLaw(TENDS)
    rest, strength = 1.0 - a * r, slope * float(large.K) ** r * size**-r
    if r == 0.0:
        return kernel, _by(1.0 + slope)
    if abs(rest) < _WHOLE_EXPONENT:
        return kernel, DepthLaw(POWER, exponent=strength)
    return kernel, DepthLaw(STRETCHED, exponent=rest, value=strength / rest) if rest > 0.0 else DepthLaw(TENDS)


def _by(factor: float) -> DepthLaw:
    """A factor a layer."""
    return DepthLaw(TENDS) if factor == 1.0 else DepthLaw(EXPONENTIAL, length=-correlation_length(factor))


def _exponent(value: Any) -> float:
    """A local exponent, a whole one if it is within `_WHOLE_EXPONENT` of it; zero where there is nothing."""
    value = float(value)
    if not math.isfinite(value):
        return 0.0
    return float(round(value)) if abs(value - round(value)) < _WHOLE_EXPONENT else value
