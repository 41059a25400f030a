"""The kernel's flow K → C_b + C_W⟨σ²⟩: χ_∥, χ_⊥ and h, all fixed points, and where two inputs end (theory §7).

Once both kernels have reached K*, the correlation c of two inputs moves from layer to layer by

    c' = f(c) = (C_b + C_W⟨σ_aσ_b⟩)/K*,      f(1) = 1,      f'(c) = χ(c) = C_W⟨σ'_aσ'_b⟩,      f'(1) = χ_⊥.

In powers of c the coefficients of f are not negative, so f is convex on [0, 1]. In the ordered phase, χ_⊥ ≤ 1, every
pair of inputs ends at c = 1; in the chaotic phase, χ_⊥ > 1, there is exactly one other fixed point c* in [0, 1), and
it attracts. Near it c − c* falls like e^(−l/ξ), ξ = −1/ln χ(c*).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from widthwise.activations import ActivationLike, resolve
from widthwise.criticality.blocks import BlockForm
from widthwise.criticality.moments import Profile, origin_series, profile
from widthwise.errors import InvalidInput
from widthwise.gaussian import expectation
from widthwise.gaussian.kernel_rules import dense_kernel
from widthwise.network.validation import LARGEST, check_real
from widthwise.text import NumbersTable

#: g(K)/K − 1 below this at an extremum counts as touching zero.
_TOUCH = 1e-12
#: The derivative of χ_∥ is looked at above this kernel, where it has digits enough.
_SMOOTH_RATE = 1e-4
#: χ_∥ this close to one is decided by the next order.
_MARGINAL = 1e-9
#: χ_⊥ this close to one is critical.
CHI_IS_ONE = 1e-9
#: A chaotic c* is looked for below one minus this.
_NEXT_TO_ONE = 1e-13


class Susceptibilities(NamedTuple):
    """χ_∥, χ_⊥ and h at kernels K, each of the shape of K."""

    chi_parallel: np.ndarray
    chi_perp: np.ndarray
    h: np.ndarray


def susceptibilities(activation: ActivationLike, K: Any, C_W: float = 1.0) -> Susceptibilities:
    """χ_∥ = (C_W/K)⟨zσσ'⟩, χ_⊥ = C_W⟨σ'²⟩, h = ½ dχ_⊥/dK at kernels K ≥ 0 of any shape (theory §7).

    χ_∥ multiplies a change of an input's size, χ_⊥ a small change of its direction and, squared gradient by squared
    gradient, everything that is propagated back. At K = 0 they are limits.

    >>> chi = susceptibilities("relu", [0.1, 10.0], C_W=2.0)
    >>> chi.chi_parallel.tolist(), chi.chi_perp.tolist(), chi.h.tolist()
    ([1.0, 1.0], [1.0, 1.0], [0.0, 0.0])
    >>> bool(abs(susceptibilities("tanh", 0.0).h + 1.0) < 1e-12)        # χ_⊥ = 1 − 2K + …
    True
    """
    C_W = non_negative(C_W, "C_W")
    m = profile(resolve(activation)).moments(K)
    return Susceptibilities(C_W * m.growth, C_W * m.slope, 0.5 * C_W * m.slope_rate)


def kernel_map(activation: ActivationLike, K: Any, C_b: float = 0.0, C_W: float = 1.0) -> np.ndarray:
    """g(K) = C_b + C_W⟨σ²⟩: the kernel of the next layer (theory §2).

    >>> kernel_map("linear", [1.0, 2.0], C_b=0.5, C_W=3.0).tolist()
    [3.5, 6.5]
    """
    C_b, C_W = non_negative(C_b, "C_b"), non_negative(C_W, "C_W")
    return dense_kernel(C_b, C_W, profile(resolve(activation)).moments(K).square)


def correlation_length(chi: float) -> float:
    """ξ = −1/ln |χ|: the depth over which a perturbation falls by e; negative where it grows, infinite at χ = ±1.

    >>> correlation_length(1.0), round(correlation_length(0.9), 3), round(correlation_length(1.1), 3)
    (inf, 9.491, -10.492)
    """
    size = abs(check_real("chi", chi, "a finite number", least=-LARGEST))
    if abs(size - 1.0) < 1e-12:
        return math.inf
    return -1.0 / math.log(size) if size > 0.0 else 0.0


def non_negative(value: Any, name: str) -> float:
    """A finite non-negative number, or an error."""
    expected = "a finite non-negative number"
    if isinstance(value, (bool, str)):
        raise InvalidInput(name, repr(value), expected)
    return check_real(name, value, expected)


@dataclass(frozen=True)
class FixedPoint(NumbersTable):
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
class FixedPoints(Sequence[FixedPoint]):
    """All fixed points by rising K; whether every K is one, and whether large kernels grow without bound.

    `K_max` is the largest kernel that was looked at.
    """

    points: tuple[FixedPoint, ...]
    every_K: bool
    runaway: bool
    K_max: float

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
        at = next((p for p in self if math.isclose(p.K, K, rel_tol=1e-12)), None)
        above = next((p for p in self if p.K > K), None)
        below = next((p for p in reversed(self) if p.K < K), None)
        if at is None and above and above.stability in ("stable", "half-stable from below"):
            return above
        if at is None and below and below.stability in ("stable", "half-stable from above"):
            return below
        return at


def fixed_points(
    activation: ActivationLike, C_b: float, C_W: float, *, skip: float = 0.0, norm: Any = None
) -> FixedPoints:
    """Every K ≥ 0 with K = C_b + C_W⟨σ²⟩, up to the largest kernel at which the activation is tabulated (theory §7).

    g(K) − K has its extrema where χ_∥ = 1; between two of them there is at most one fixed point, and where it touches
    zero at one the fixed point is half-stable. `skip` and `norm` are those of `critical`: K = γ²K + C_b + C_W⟨s²⟩, and
    the χ's contain γ².

    >>> points = fixed_points("tanh", C_b=0.0, C_W=2.0)
    >>> {round(p.K, 6): p.stability for p in points}
    {0.0: 'unstable', 0.617965: 'stable'}
    >>> round(points[1].xi_parallel, 4), round(points[1].xi_perp, 4)
    (1.6856, -9.9677)
    >>> fixed_points("relu", 0.0, 2.0).every_K, fixed_points("relu", 0.0, 2.1).runaway
    (True, True)
    >>> round(fixed_points("gelu", C_b=0.0, C_W=0.5, skip=0.9, norm="ln")[1].chi_perp, 4)      # 0.81 + 0.19 · 1.072
    1.0137
    """
    C_b, C_W = non_negative(C_b, "C_b"), non_negative(C_W, "C_W")
    block = BlockForm.of(skip, norm, "fixed point")
    plain = _plain_fixed_points(block.profile(resolve(activation)), C_b / block.fresh, C_W / block.fresh)
    return replace(plain, points=tuple(_fixed_in_block(block, point) for point in plain))


def _fixed_in_block(block: BlockForm, point: FixedPoint) -> FixedPoint:
    """A fixed point of the plain layer as one of the layer with its skip."""
    parallel, perp = (block.skip**2 + block.fresh * chi for chi in (point.chi_parallel, point.chi_perp))
    return FixedPoint(point.K, parallel, perp, point.stability)


def _plain_fixed_points(shape: Profile, C_b: float, C_W: float) -> FixedPoints:
    if shape.slopes is not None:
        return _straight_fixed_points(shape, C_b, C_W)
    points = _zero_kernel(shape, C_b, C_W)
    grid = shape.scan

    def excess(K: float) -> float:
        return dense_kernel(C_b, C_W, float(shape.moments(K).square)) / K - 1.0

    # χ_∥ = 1; the scan is split at the extrema of χ_∥, so that two crossings side by side are seen
    K, growth = _split_scan(shape)
    turning = _roots(lambda K: C_W * float(shape.moments(K).growth) - 1.0, K, growth * C_W - 1.0)
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
            K = _bracketed_root(excess, ends[i], ends[i + 1])
            points.append(_point(shape, C_W, K, "stable" if low > 0.0 else "unstable"))
    points.sort(key=lambda p: p.K)
    return FixedPoints(tuple(points), False, values[-1] > 0.0, shape.K_max)


@lru_cache(maxsize=64)
def _split_scan(shape: Profile) -> tuple[np.ndarray, np.ndarray]:
    """Kernels of the scan and those at which d⟨σ²⟩/dK has an extremum, in order, and d⟨σ²⟩/dK there."""
    grid = shape.scan
    certain = np.abs(grid.growth_rate) * grid.K > 1e-11 * np.abs(grid.growth)
    known = np.flatnonzero(certain & (grid.K > _SMOOTH_RATE))
    bends = _roots(lambda K: float(shape.moments(K).growth_rate), grid.K[known], grid.growth_rate[known])
    K = np.concatenate([grid.K, bends])
    order = np.argsort(K, kind="stable")
    return K[order], np.concatenate([grid.growth, shape.moments(bends).growth])[order]


def _roots(function: Callable[[float], float], K: np.ndarray, values: np.ndarray) -> list[float]:
    """Roots between the kernels at which a function has other signs."""
    return [
        _bracketed_root(function, float(K[i]), float(K[i + 1])) for i in np.flatnonzero(np.diff(np.sign(values)) != 0)
    ]


def _bracketed_root(function: Callable[[float], float], low: float, high: float) -> float:
    """A root between low and high; the better end where rounding decides the sign of both."""
    ends = function(low), function(high)
    if ends[0] * ends[1] >= 0.0:
        return low if abs(ends[0]) <= abs(ends[1]) else high
    return float(brentq(function, low, high, xtol=1e-300, rtol=1e-14, maxiter=200))  # pyright: ignore[reportArgumentType]


def _point(shape: Profile, C_W: float, K: float, stability: str) -> FixedPoint:
    m = shape.moments(K)
    return FixedPoint(K, C_W * float(m.growth), C_W * float(m.slope), stability)


def _zero_kernel(shape: Profile, C_b: float, C_W: float) -> list[FixedPoint]:
    """K = 0 is a fixed point if C_b = 0 and σ(0) = 0; χ_∥ = 1 there is decided by the sign of the next order."""
    if C_b != 0.0 or C_W * shape.origin[0, 0] != 0.0:
        return []
    chi = C_W * float(shape.moments(0.0).growth)
    next_order = chi - 1.0
    if abs(next_order) < _MARGINAL:
        series = origin_series(shape.origin)
        next_order = series.a[series.leading - 1] if series.leading else -1.0
    return [_point(shape, C_W, 0.0, "stable" if next_order < 0.0 else "unstable")]


def _straight_fixed_points(shape: Profile, C_b: float, C_W: float) -> FixedPoints:
    """σ = a_± z: g(K) = C_b + χK with the same χ at every kernel."""
    chi = C_W * float(shape.moments(1.0).slope)
    neutral = abs(chi - 1.0) < 1e-12
    if neutral and C_b == 0.0:
        return FixedPoints((FixedPoint(0.0, chi, chi, "neutral"),), True, False, math.inf)
    if neutral or (chi > 1.0 and C_b > 0.0):
        return FixedPoints((), False, True, math.inf)
    stability = "stable" if chi < 1.0 else "unstable"
    return FixedPoints((FixedPoint(C_b / (1.0 - chi) + 0.0, chi, chi, stability),), False, chi > 1.0, math.inf)


@dataclass(frozen=True)
class PairFixedPoint(NumbersTable):
    """The kernel K* of each of two inputs, the correlation they reach, χ = C_W⟨σ'_aσ'_b⟩ there, and the phase."""

    K: float
    correlation: float
    chi: float
    phase: str

    @property
    def xi(self) -> float:
        """ξ = −1/ln χ: c − c* falls by e over so many layers; 0 if at once, infinite at criticality."""
        return correlation_length(self.chi)


def pair_fixed_point(activation: ActivationLike, C_b: float, C_W: float, x_square: float = 1.0) -> PairFixedPoint:
    """Where the correlation of two different inputs with x·x/n_0 = x_square goes, and its length ξ (theory §7).

    >>> ordered, chaotic = pair_fixed_point("erf", 0.3, 0.9), pair_fixed_point("erf", 0.05, 2.5)
    >>> ordered.phase, ordered.correlation, round(ordered.xi, 4)
    ('ordered', 1.0, 2.0006)
    >>> chaotic.phase, round(chaotic.correlation, 6), round(chaotic.xi, 4)
    ('chaotic', 0.273536, 7.6003)
    """
    sigma = resolve(activation)
    C_b, C_W, x_square = (non_negative(v, n) for v, n in ((C_b, "C_b"), (C_W, "C_W"), (x_square, "x_square")))
    reached = fixed_points(sigma, C_b, C_W).reached_from(dense_kernel(C_b, C_W, x_square))
    if reached is None or reached.K == 0.0:
        where = "grows without bound" if reached is None else "shrinks to zero"
        raise InvalidInput("C_b, C_W", f"{C_b:g}, {C_W:g}, for which the kernel of {sigma.name} {where}",
                           "values with a fixed point K* > 0: without one there is no correlation to reach",
                           "See widthwise.criticality.fixed_points.")  # fmt: skip
    K = reached.K
    if reached.chi_perp <= 1.0 + CHI_IS_ONE:
        phase = "critical" if reached.chi_perp > 1.0 - CHI_IS_ONE else "ordered"
        return PairFixedPoint(K, 1.0, reached.chi_perp, phase)

    def mean(c: float, order: int) -> float:
        return float(expectation(sigma, K, c * K, K, orders=(order, order)).value)

    def excess(c: float) -> float:
        return dense_kernel(C_b, C_W, mean(c, 0)) / K - c

    # the zero of the convex f(c) − c in [0, 1), to the left of where the slope χ_⊥ − 1 at c = 1 makes it negative
    c = 0.0
    if excess(0.0) > 1e-15:
        distance = np.geomspace(min(0.5, reached.chi_perp - 1.0), _NEXT_TO_ONE, 60)
        c = next((1.0 - d for d in distance if excess(1.0 - d) < 0.0), 1.0)
        if c < 1.0:
            c = float(brentq(excess, 0.0, c, xtol=1e-14, rtol=1e-14))  # pyright: ignore[reportArgumentType]
    return PairFixedPoint(K, c, C_W * mean(c, 1), "chaotic")
