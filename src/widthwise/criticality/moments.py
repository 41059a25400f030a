"""Gaussian moments of one activation at any kernel, from one table of its values (theory §7).

σ, σ' and σ'' are tabulated once on Gauss–Legendre panels: the intervals on which the activation is resolved, and
panels that halve towards zero, so that every Gaussian from K = 1e-24 up sees a scale of its own. A moment is then a
weighted sum over the table, and a whole grid of kernels one matrix product.

Near K = 0 the flow is a series in √K (theory §7, K* = 0). With one-sided Taylor coefficients of σ at zero and
C_W = 1/A_2, A_2 = (σ_1₊² + σ_1₋²)/2,

    g(K) = K (1 + Σ_j a_j K^{j/2}),      χ_⊥(K) = 1 + Σ_j b_j K^{j/2},      j = 1, 2, …

For a smooth σ only even j occur: a_2 here is a_1 of theory §7 and b_2 its b_1. A kink of σ' or σ'' at zero brings in
odd j; the lowest is then K^{3/2}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from widthwise.activations import Activation, evaluate, intervals, jet, require_derivatives
from widthwise.activations.base import ONE_SIDED
from widthwise.activations.closed_forms import homogeneous
from widthwise.activations.resolution import PANEL_NODES
from widthwise.errors import DivergentMoment, InvalidInput, NotDifferentiable
from widthwise.gaussian.quadrature import REACH
from widthwise.network.validation import real_array

#: Panels end at this power of two around zero; kernels below its square count as zero.
_INNERMOST = -40
#: Bands of kernels 4^j that are tried, and the band within which an oscillating activation stays.
_BANDS = range(-2, 19)
_OSCILLATING_BAND, _MANY_INTERVALS = 5, 400
#: What σ² times the Gaussian may be at the end of the reach, beside its largest value.
_TAIL = 1e-14
_NODE_VALUES, _KERNELS_AT_ONCE = 1 << 22, 100
#: Beyond this many standard deviations a Gaussian is exactly zero in double precision.
_VANISHES = 38.7
#: Derivatives at zero that are always known.
ORIGIN_ORDERS = 3
#: A coefficient below this, beside the terms it is a sum of, is zero.
_CANCELS = 1e-9


class KernelMoments(NamedTuple):
    """Moments at kernels K, each of the shape of K.

    square ⟨σ²⟩, growth d⟨σ²⟩/dK = ⟨zσσ'⟩/K, growth_rate d²⟨σ²⟩/dK², slope ⟨σ'²⟩, and slope_rate d⟨σ'²⟩/dK. The
    rate of growth loses digits below K = 1e-6 and is NaN at zero.
    """

    K: np.ndarray
    square: np.ndarray
    growth: np.ndarray
    slope: np.ndarray
    slope_rate: np.ndarray
    growth_rate: np.ndarray

    @property
    def curvature(self) -> np.ndarray:
        """⟨σσ''⟩ = d⟨σ²⟩/dK − ⟨σ'²⟩ (theory §7)."""
        return self.growth - self.slope


@dataclass(frozen=True, eq=False)
class Profile:
    """An activation as a table: nodes z, weights dz, σ, σ', σ'' there, and one-sided derivatives at zero.

    `origin` is (2, orders): derivatives from the right and from the left. `slopes` holds (a₊, a₋) if the activation is
    a₊z for z > 0 and a₋z for z < 0. `first_jump` is the lowest derivative that jumps somewhere.
    """

    name: str
    z: np.ndarray
    weight: np.ndarray
    sigma: np.ndarray
    origin: np.ndarray
    slopes: tuple[float, float] | None
    first_jump: float
    K_max: float

    @cached_property
    def _columns(self) -> np.ndarray:
        s0, s1, s2 = self.sigma
        rate = self.z * s1 * s2 if self.first_jump >= 2 else s1 * s1
        return np.stack([s0 * s0, self.z * s0 * s1, s1 * s1, rate, rate * self.z**2, self.z**3 * s0 * s1])

    def weights(self, K: np.ndarray, part: slice = slice(None)) -> np.ndarray:
        """Normal density of variance K times dz at the nodes, or some of them, (kernels, nodes)."""
        scale = 1.0 / np.sqrt(np.asarray(K, float)[:, None])
        return np.exp(-0.5 * (self.z[part] * scale) ** 2) * (self.weight[part] * (scale / math.sqrt(2.0 * math.pi)))

    def mean(self, K: float, values: np.ndarray) -> float:
        """⟨values⟩ at one kernel, for values at the nodes."""
        return float(self.weights(np.array([K]))[0] @ values)

    def means(self, K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """⟨σ⟩ and its first two derivatives by K, by Hermite polynomials of degree 0, 2, 4."""
        # a₊z, a₋z: one kernel tells of all
        scale = 1.0 if self.slopes is None else np.sqrt(K)
        at = np.maximum(np.ravel(K) if self.slopes is None else np.ones(np.size(K)), 4.0**_INNERMOST)
        u = self.z / np.sqrt(at)[:, None]
        weights = self.weights(at) * self.sigma[0]
        polynomials = (np.ones_like(u), u**2 - 1.0, u**4 - 6.0 * u**2 + 3.0)
        value, first, second = (scale * np.sum(weights * he, axis=1).reshape(np.shape(K)) for he in polynomials)
        size = np.maximum(K, 4.0**_INNERMOST)
        return value, 0.5 * first / size, 0.25 * second / size**2

    def moments(self, K: object) -> KernelMoments:
        """Moments at kernels of any shape; K = 0 gives the limit."""
        if not isinstance(K, float) and getattr(K, "dtype", None) != np.float64:
            K = real_array(K, "K")
        K = np.asarray(K, float)
        flat = np.ravel(K)
        bad = ~np.isfinite(flat) | (flat < 0.0)
        if bad.any():
            raise InvalidInput("K", f"{flat[bad][0]:g}", "finite kernels, zero or positive")
        if self.slopes is None and len(flat) and flat.max() > self.K_max * (1 + 1e-12):
            raise DivergentMoment(
                "K",
                f"{flat.max():.4g} for {self.name}",
                f"kernels up to {self.K_max:.4g}, where this activation is tabulated",
                "Its moments diverge beyond, or it oscillates too fast there.",
            )
        if self.slopes is not None:
            A_2 = 0.5 * (self.slopes[0] ** 2 + self.slopes[1] ** 2)
            one = np.ones_like(K)
            return KernelMoments(K, A_2 * K, A_2 * one, A_2 * one, 0.0 * one, 0.0 * one)
        result = np.empty((5, len(flat)))
        tiny = flat < 4.0**_INNERMOST
        result[:, tiny] = self._at_zero(flat[tiny])
        rows = np.flatnonzero(~tiny)
        step = max(1, min(_KERNELS_AT_ONCE, _NODE_VALUES // len(self.z)))
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            result[:, block] = self._integrate(flat[block])
        return KernelMoments(K, *(row.reshape(K.shape) for row in result))

    def _integrate(self, K: np.ndarray) -> np.ndarray:
        """Moments at some kernels; nodes where all their Gaussians vanish are left out."""
        seen = np.flatnonzero(np.abs(self.z) <= _VANISHES * math.sqrt(K.max()))
        part = slice(seen[0], seen[-1] + 1)
        square, growth, slope, rate, rate_z2, cubic = (self.weights(K, part) @ self._columns[:, part].T).T
        slope_rate = rate / K if self.first_jump >= 2 else 0.5 * (rate_z2 / K - rate) / K
        return np.stack([square, growth / K, slope, slope_rate, 0.5 * (cubic / K - 3.0 * growth) / K**2])

    def _at_zero(self, K: np.ndarray) -> np.ndarray:
        """Limits K → 0: ⟨σ²⟩ → σ_0² + (…)K, ⟨σ'²⟩ → mean of the one-sided σ_1², and their rates."""
        value, first, second, third = self.origin[:, : ORIGIN_ORDERS + 1].T
        A_2 = float(np.mean(first**2))
        # a kink of σ beside σ(0) ≠ 0, or of σ'², brings in √K, whose slope is infinite
        bend = value[0] * (first[0] - first[1])
        growth = A_2 + float(np.mean(value * second)) + (math.copysign(math.inf, bend) if bend else 0.0)
        bend = first[0] * second[0] - first[1] * second[1]
        rate = math.copysign(math.inf, bend) if bend else float(np.mean(second**2 + first * third))
        square = value[0] ** 2 + (K * growth if math.isfinite(growth) else 0.0 * K)
        return np.stack([square, *(np.full(len(K), x) for x in (growth, A_2, rate, math.nan))])

    @cached_property
    def scan(self) -> KernelMoments:
        """Moments on a logarithmic grid of kernels, from 1e-14 to the largest."""
        return self.moments(np.geomspace(1e-14, self.K_max, 2000))

    def shaped(self, a: float = 1.0, b: float = 1.0, c: float = 0.0, d: float = 0.0) -> Profile:
        """The profile of a σ(bz) + c + dz, from the same table."""
        s0, s1, s2 = self.sigma
        z = self.z / b
        order = np.arange(self.origin.shape[1])
        origin = a * self.origin[:: 1 if b > 0 else -1] * b**order
        origin[:, 0] += c
        origin[:, 1] += d
        slopes = None
        if self.slopes is not None and c == 0.0:
            right, left = self.slopes[:: 1 if b > 0 else -1]
            slopes = (a * b * right + d, a * b * left + d)
        sigma = np.stack([a * s0 + c + d * z, a * b * s1 + d, a * b * b * s2])
        weight, K_max = self.weight / abs(b), self.K_max / b**2
        name = f"{a:g}·{self.name}({b:g}z) + {c:g}" + (f" + {d:g}z" if d else "")
        return replace(self, name=name, z=z, weight=weight, sigma=sigma, origin=origin, slopes=slopes, K_max=K_max)


@lru_cache(maxsize=64)
def profile(activation: Activation) -> Profile:
    """The table of an activation.

    >>> from widthwise.activations import resolve
    >>> round(float(profile(resolve("sin")).moments(1.0).slope), 12)        # ⟨cos²⟩ = (1 + e^−2)/2
    0.567667641618
    """
    slopes, band = two_slopes(activation), _largest_band(activation)
    if slopes is None:
        require_derivatives(activation, 2, "susceptibilities")
        if activation.first_jump < 1:
            raise NotDifferentiable(
                "activation",
                f"{activation.name}, which jumps or has no finite slope at z = {activation.kinks[0]:g}",
                "a continuous activation: χ_⊥ = C_W⟨σ'²⟩ is infinite where σ jumps",
                "Use a steep erf or sigmoid, or relu.",
            )
    edges = _panel_edges(activation, band, slopes is not None)
    x, w = np.polynomial.legendre.leggauss(PANEL_NODES)
    half = 0.5 * np.diff(edges)[:, None]
    z = (0.5 * (edges[1:] + edges[:-1])[:, None] + half * x).ravel()
    offset = ONE_SIDED if 0.0 in activation.kinks or slopes is not None else 0.0
    table = jet(activation, tuple(range(ORIGIN_ORDERS + 1)), np.concatenate([z, [offset, -offset]]))
    return Profile(
        name=activation.spec, z=z, weight=(half * w).ravel(), sigma=table[:3, :-2],
        origin=_one_sided(table[:, -2:].T, offset), slopes=slopes, K_max=(float(edges[-1]) / REACH) ** 2,
        first_jump=1 if slopes and slopes[0] != slopes[1] else activation.first_jump,
    )  # fmt: skip


def _one_sided(values: np.ndarray, offset: float) -> np.ndarray:
    """Limits at zero from values a little to the right and left, by one Taylor step back."""
    values = np.array(values)
    if offset:
        step = np.array([[offset], [-offset]])
        values = np.concatenate([values[:, :-1] - step * values[:, 1:], values[:, -1:]], axis=1)
        values[np.abs(values) < 1e-3 * offset] = 0.0
    # σ(0) of the size of rounding is zero
    values[np.abs(values[:, 0]) <= 1e-15 * np.abs(values[:, 1]), 0] = 0.0
    return values


def origin_derivatives(activation: Activation, orders: int) -> np.ndarray:
    """Derivatives of σ at zero from the right and the left, (2, orders + 1)."""
    offset = ONE_SIDED if 0.0 in activation.kinks else 0.0
    return _one_sided(jet(activation, tuple(range(orders + 1)), np.array([offset, -offset])).T, offset)


def two_slopes(activation: Activation) -> tuple[float, float] | None:
    """(a₊, a₋) if σ is a₊z for z > 0 and a₋z for z < 0, recognised in a user's own function too."""
    known = homogeneous(activation.closed)
    if known is not None:
        return known[:2] if known[2] == 1 else None
    points = np.array([1e-3, 0.01, 0.1, 0.37, 1.0, 2.3, 7.7, 31.0, 255.0])
    both = np.stack([points, -points])
    right, left = evaluate(activation, 0, both) / both
    if not np.all(np.isfinite([right, left])) or np.abs(right).max() > 1e100:
        return None
    spread, size = max(np.ptp(right), np.ptp(left)), np.abs([right, left]).max()
    return (float(right[4]), float(left[4])) if size > 0.0 and spread <= 1e-13 * size else None


def _panel_edges(activation: Activation, band: int, straight: bool) -> np.ndarray:
    inner = 2.0 ** np.arange(_INNERMOST, 0)
    if straight:
        outer = 2.0 ** np.arange(0, 8)
        return np.concatenate([-outer[::-1], -inner[::-1], [0.0], inner, outer])
    edges = intervals(activation, (0, 1, 2), REACH * 2.0 ** min(band, _OSCILLATING_BAND))
    if band > _OSCILLATING_BAND and len(edges) < _MANY_INTERVALS:
        edges = intervals(activation, (0, 1, 2), REACH * 2.0**band)
    return np.unique(np.concatenate([edges, -inner, inner]))


def _largest_band(activation: Activation) -> int:
    """The largest j for which the moments at kernels up to 4^j exist and end within the reach."""
    u, bands = np.linspace(-REACH, REACH, 49), np.array(_BANDS)
    z = REACH * 2.0 ** bands[:, None] * np.linspace(-1.0, 1.0, 49)
    with np.errstate(over="ignore", invalid="ignore"):
        values = evaluate(activation, 0, np.concatenate([z.ravel(), [8.0, -8.0, 16.0, -16.0]]))
        size = values[:-4].reshape(z.shape) ** 2 * np.exp(-0.5 * u * u)
        good = np.isfinite(size).all(axis=1) & (size[:, [0, -1]].max(axis=1) <= _TAIL * size.max(axis=1))
        good |= np.all(size == 0.0, axis=1)
        growth = np.log1p(np.abs(values[-4:])) / [64, 64, 256, 256]
    too_fast = not np.all(np.isfinite(growth)) or growth[2:].max() > 1.2 * growth[:2].max() > 0.0
    count = len(good) if good.all() else int(np.argmin(good))
    if too_fast or count == 0:
        raise DivergentMoment(
            "activation",
            f"{activation.name}, which grows too fast: ⟨σ²⟩ does not exist, or not beyond a tiny kernel",
            "an activation whose Gaussian moments exist",
            "Choose one that grows no faster than an exponential.",
        )
    return int(bands[count - 1])


class OriginSeries(NamedTuple):
    """A_2 and the coefficients a_1, a_2, … and b_1, b_2, …; exact zeros where terms cancel."""

    A_2: float
    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def leading(self) -> int:
        """The first j with a_j ≠ 0; zero if none is."""
        return next((j for j, value in enumerate(self.a, start=1) if value), 0)


def origin_series(derivatives: np.ndarray) -> OriginSeries:
    """The series from derivatives at zero (2, orders + 1), right and left, of a σ with σ(0) = 0.

    >>> s = origin_series(np.array([[0.0, 1.0, 0.0, -2.0]] * 2))                         # tanh
    >>> s.a, s.b
    ((0.0, -2.0), (0.0, -2.0))
    """
    power = np.arange(1, derivatives.shape[1])
    values = derivatives[:, 1:] / [math.factorial(k) for k in power]  # σ/z
    first, second = _even_part(values, shift=2), _even_part(values * power, shift=0)
    A_2 = first[0, 0]
    if A_2 == 0.0:
        return OriginSeries(0.0, (), ())
    return OriginSeries(float(A_2), _cleaned(first / A_2), _cleaned(second / A_2))


def _even_part(series: np.ndarray, shift: int) -> np.ndarray:
    """Coefficients of K^{j/2} in ⟨z^shift f²⟩/K^{shift/2} for f = Σ f_k z^k on either side, and the sizes of terms."""
    power = np.arange(series.shape[1])
    moment = np.array([_absolute_moment(k + shift) for k in power])
    squares, sizes = ([np.convolve(side, side)[: len(power)] for side in s] for s in (series, np.abs(series)))
    return 0.5 * np.stack([squares[0] + (-1.0) ** power * squares[1], sizes[0] + sizes[1]]) * moment


def _absolute_moment(k: int) -> float:
    """E|u|^k of a standard normal."""
    if k % 2 == 0:
        return float(math.prod(range(k - 1, 0, -2)))
    return 2.0 ** (k / 2) * math.gamma((k + 1) / 2) / math.sqrt(math.pi)


def _cleaned(series: np.ndarray) -> tuple[float, ...]:
    """All coefficients but the first; zero where the terms of one, whose sizes stand below it, cancel."""
    return tuple(float(c) if abs(c) > _CANCELS * max(size, 1e-300) else 0.0 for c, size in series.T[1:])
