"""Fixed points of the kernel's flow K → C_b + C_W⟨σ²⟩, all of them, with their stability (theory §7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from widthwise.activations import ActivationLike, resolve
from widthwise.criticality.moments import Profile, profile
from widthwise.criticality.origin import origin_series
from widthwise.criticality.perturbations import correlation_length, non_negative
from widthwise.gaussian.kernel_rules import dense_kernel

#: g(K)/K − 1 below this at an extremum counts as touching zero.
_TOUCH = 1e-12
#: The derivative of χ_∥ is looked at above this kernel, where it has digits enough.
_SMOOTH_RATE = 1e-4
#: χ_∥ this close to one is decided by the next order.
_MARGINAL = 1e-9


@dataclass(frozen=True)
class FixedPoint:
    """A kernel with g(K) = K, its susceptibilities, stability, and correlation lengths ξ = −1/ln χ.

    `stability` is "stable", "unstable", "half-stable from above" (kernels above K flow to it, kernels below leave),
    "half-stable from below", or "neutral" for one of a line of fixed points.
    """

    K: float
    chi_parallel: float
    chi_perp: float
    stability: str

    @property
    def xi_parallel(self) -> float:
        return correlation_length(self.chi_parallel)

    @property
    def xi_perp(self) -> float:
        return correlation_length(self.chi_perp)


@dataclass(frozen=True)
class FixedPoints:
    """All fixed points by rising K; whether every K is one, and whether large kernels grow without bound.

    `K_max` is the largest kernel that was looked at.
    """

    points: tuple[FixedPoint, ...]
    every_K: bool
    runaway: bool
    K_max: float

    def __iter__(self) -> Iterator[FixedPoint]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> FixedPoint:
        return self.points[index]

    def reached_from(self, K: float) -> FixedPoint | None:
        """Where a kernel K flows to; None where it grows without bound.

        >>> fixed_points("tanh", C_b=0.0, C_W=2.0).reached_from(1e-6).stability
        'stable'
        """
        if self.every_K:
            chi = self.points[0]
            return FixedPoint(K, chi.chi_parallel, chi.chi_perp, "neutral")
        here = [p for p in self.points if math.isclose(p.K, K, rel_tol=1e-12)]
        if here:
            return here[0]
        above = [p for p in self.points if p.K > K and p.stability in ("stable", "half-stable from below")]
        below = [p for p in self.points if p.K < K and p.stability in ("stable", "half-stable from above")]
        next_above = next((p for p in self.points if p.K > K), None)
        next_below = next((p for p in reversed(self.points) if p.K < K), None)
        if above and next_above is above[0]:
            return above[0]
        return below[-1] if below and next_below is below[-1] else None


def fixed_points(activation: ActivationLike, C_b: float, C_W: float) -> FixedPoints:
    """Every K ≥ 0 with K = C_b + C_W⟨σ²⟩, up to the largest kernel at which the activation is tabulated (theory §7).

    g(K) − K has its extrema where χ_∥ = 1; between two of them there is at most one fixed point, and where it touches
    zero at one the fixed point is half-stable.

    >>> points = fixed_points("tanh", C_b=0.0, C_W=2.0)
    >>> {round(p.K, 6): p.stability for p in points}
    {0.0: 'unstable', 0.617965: 'stable'}
    >>> round(points[1].xi_parallel, 4), round(points[1].xi_perp, 4)
    (1.6856, -9.9677)
    >>> fixed_points("relu", 0.0, 2.0).every_K, fixed_points("relu", 0.0, 2.1).runaway
    (True, True)
    """
    C_b, C_W = non_negative(C_b, "C_b"), non_negative(C_W, "C_W")
    return profile_fixed_points(profile(resolve(activation)), C_b, C_W)


def profile_fixed_points(shape: Profile, C_b: float, C_W: float) -> FixedPoints:
    """The same from a profile."""
    if shape.slopes is not None:
        return _straight(shape, C_b, C_W)
    points = _at_zero(shape, C_b, C_W)
    grid = shape.scan

    def excess(K: float) -> float:
        return dense_kernel(C_b, C_W, float(shape.moments(K).square)) / K - 1.0

    turning = _turning_points(shape, C_W)
    ends = [float(grid.K[0]), *turning, float(grid.K[-1])]
    values = [excess(K) for K in ends]
    for index, K in enumerate(ends[1:-1], start=1):
        if abs(values[index]) <= _TOUCH:
            side = values[index + 1] if abs(values[index + 1]) > abs(values[index - 1]) else values[index - 1]
            points.append(_point(shape, C_W, K, f"half-stable from {'below' if side > 0.0 else 'above'}"))
            values[index] = math.copysign(0.0, side)
    for i in range(len(ends) - 1):
        low, high = values[i], values[i + 1]
        if low * high < 0.0 and max(abs(low), abs(high)) > 1e-13:
            K = _root(excess, ends[i], ends[i + 1])
            points.append(_point(shape, C_W, K, "stable" if low > 0.0 else "unstable"))
    points.sort(key=lambda p: p.K)
    return FixedPoints(tuple(points), False, values[-1] > 0.0, shape.K_max)


def _turning_points(shape: Profile, C_W: float) -> list[float]:
    """Kernels with χ_∥ = 1. The scan is split at the extrema of χ_∥, so that two crossings side by side are seen."""
    K, growth = _split_scan(shape)
    rise = growth * C_W - 1.0
    return [
        _root(lambda K: C_W * float(shape.moments(K).growth) - 1.0, float(K[i]), float(K[i + 1]))
        for i in np.flatnonzero(np.diff(np.sign(rise)) != 0)
    ]


@lru_cache(maxsize=64)
def _split_scan(shape: Profile) -> tuple[np.ndarray, np.ndarray]:
    """Kernels of the scan and those at which d⟨σ²⟩/dK has an extremum, in order, and d⟨σ²⟩/dK there."""
    grid = shape.scan
    certain = np.abs(grid.growth_rate) * grid.K > 1e-11 * np.abs(grid.growth)
    known = np.flatnonzero(certain & (grid.K > _SMOOTH_RATE))
    bends = [
        _root(lambda K: float(shape.moments(K).growth_rate), float(grid.K[known[i]]), float(grid.K[known[i + 1]]))
        for i in np.flatnonzero(np.diff(np.sign(grid.growth_rate[known])) != 0)
    ]
    K = np.concatenate([grid.K, bends])
    order = np.argsort(K, kind="stable")
    return K[order], np.concatenate([grid.growth, shape.moments(bends).growth])[order]


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """A root between low and high; the better end where rounding decides the sign of both."""
    ends = function(low), function(high)
    if ends[0] * ends[1] >= 0.0:
        return low if abs(ends[0]) <= abs(ends[1]) else high
    return float(brentq(function, low, high, xtol=1e-300, rtol=1e-14, maxiter=200))  # pyright: ignore[reportArgumentType]


def _point(shape: Profile, C_W: float, K: float, stability: str) -> FixedPoint:
    m = shape.moments(K)
    return FixedPoint(K, C_W * float(m.growth), C_W * float(m.slope), stability)


def _at_zero(shape: Profile, C_b: float, C_W: float) -> list[FixedPoint]:
    """K = 0 is a fixed point if C_b = 0 and σ(0) = 0; χ_∥ = 1 there is decided by the sign of the next order."""
    if C_b != 0.0 or C_W * shape.origin[0, 0] != 0.0:
        return []
    chi = C_W * float(shape.moments(0.0).growth)
    next_order = chi - 1.0
    if abs(next_order) < _MARGINAL:
        series = origin_series(shape.origin)
        next_order = series.a[series.leading - 1] if series.leading else -1.0
    return [_point(shape, C_W, 0.0, "stable" if next_order < 0.0 else "unstable")]


def _straight(shape: Profile, C_b: float, C_W: float) -> FixedPoints:
    """σ = a_± z: g(K) = C_b + χK with the same χ at every kernel."""
    chi = C_W * float(shape.moments(1.0).slope)
    neutral = abs(chi - 1.0) < 1e-12
    if neutral and C_b == 0.0:
        return FixedPoints((FixedPoint(0.0, chi, chi, "neutral"),), True, False, math.inf)
    if neutral or (chi > 1.0 and C_b > 0.0):
        return FixedPoints((), False, True, math.inf)
    stability = "stable" if chi < 1.0 else "unstable"
    return FixedPoints((FixedPoint(C_b / (1.0 - chi) + 0.0, chi, chi, stability),), False, chi > 1.0, math.inf)
