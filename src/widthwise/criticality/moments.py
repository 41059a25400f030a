"""Gaussian moments of one activation at any kernel, from one table of its values (theory §7).

σ, σ' and σ'' are tabulated once on Gauss–Legendre panels: the intervals on which the activation is resolved, and
panels that halve towards zero, so that every Gaussian from K = 1e-24 up sees a scale of its own. A moment is then a
weighted sum over the table, and a whole grid of kernels one matrix product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from widthwise.activations import Activation, evaluate, intervals, jet, require_derivatives
from widthwise.activations.closed_forms import homogeneous
from widthwise.errors import DivergentMoment, InvalidInput, NotDifferentiable

#: A Gaussian is followed to this many standard deviations.
REACH = 12.0
#: Panels end at this power of two around zero; kernels below its square count as zero.
_INNERMOST = -40
#: Bands of kernels 4^j that are tried, and the band within which an oscillating activation stays.
_BANDS = range(-2, 19)
_OSCILLATING_BAND, _MANY_INTERVALS = 5, 400
_NODES = 16
#: What σ² times the Gaussian may be at the end of the reach, beside its largest value.
_TAIL = 1e-14
_CHUNK, _ROWS = 1 << 22, 100
#: Beyond this many standard deviations a Gaussian is exactly zero in double precision.
_VANISHES = 38.7
#: Derivatives at zero that are always known.
ORIGIN_ORDERS = 3
_ONE_SIDED = 1e-12


class Moments(NamedTuple):
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

    @property
    def K_min(self) -> float:
        """Kernels below this one are treated as zero."""
        return 4.0**_INNERMOST

    @property
    def scale_invariant(self) -> bool:
        return self.slopes is not None

    @cached_property
    def _columns(self) -> np.ndarray:
        s0, s1, s2 = self.sigma
        rate = self.z * s1 * s2 if self.first_jump >= 2 else s1 * s1
        return np.stack([s0 * s0, self.z * s0 * s1, s1 * s1, rate, rate * self.z**2, self.z**3 * s0 * s1])

    def weights(self, K: np.ndarray, part: slice = slice(None)) -> np.ndarray:
        """Normal density of variance K times dz at the nodes, or some of them, (kernels, nodes)."""
        scale = 1.0 / np.sqrt(np.asarray(K, float)[:, None])
        return np.exp(-0.5 * (self.z[part] * scale) ** 2) * (self.weight[part] * (scale / math.sqrt(2.0 * math.pi)))

    def mean(self, values: np.ndarray, K: float) -> float:
        """⟨values⟩ at one kernel, for values at the nodes."""
        return float(self.weights(np.array([K]))[0] @ values)

    def moments(self, K: object) -> Moments:
        """Moments at kernels of any shape; K = 0 gives the limit."""
        K = np.asarray(K, float)
        flat = np.ravel(K)
        self._check(flat)
        if self.slopes is not None:
            A_2 = 0.5 * (self.slopes[0] ** 2 + self.slopes[1] ** 2)
            one = np.ones_like(K)
            return Moments(K, A_2 * K, A_2 * one, A_2 * one, 0.0 * one, 0.0 * one)
        result = np.empty((5, len(flat)))
        tiny = flat < self.K_min
        result[:, tiny] = self._at_zero(flat[tiny])
        rows = np.flatnonzero(~tiny)
        step = max(1, min(_ROWS, _CHUNK // len(self.z)))
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            result[:, block] = self._integrate(flat[block])
        return Moments(K, *(row.reshape(K.shape) for row in result))

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
        jumps = first[0] != first[1]
        bend = math.copysign(math.inf, value[0] * (first[0] - first[1])) if jumps and value[0] else 0.0
        growth = A_2 + float(np.mean(value * second)) + bend
        kinked = first[0] * second[0] != first[1] * second[1]
        rate = float(np.mean(second**2 + first * third))
        if kinked:
            rate = math.copysign(math.inf, first[0] * second[0] - first[1] * second[1])
        square = value[0] ** 2 + (K * growth if math.isfinite(growth) else 0.0 * K)
        return np.stack([square, *(np.full(len(K), x) for x in (growth, A_2, rate, math.nan))])

    def _check(self, K: np.ndarray) -> None:
        bad = ~np.isfinite(K) | (K < 0.0)
        if bad.any():
            raise InvalidInput("K", f"{K[bad][0]:g}", "finite kernels, zero or positive")
        if self.slopes is None and len(K) and K.max() > self.K_max * (1 + 1e-12):
            raise DivergentMoment(
                "K",
                f"{K.max():.4g} for {self.name}",
                f"kernels up to {self.K_max:.4g}, where this activation is tabulated",
                "Its moments diverge beyond, or it oscillates too fast there.",
            )

    @cached_property
    def scan(self) -> Moments:
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
            first, second = (a * b * s + d for s in self.slopes[:: 1 if b > 0 else -1])
            slopes = (first, second)
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
        _check_continuous(activation)
    edges = _edges(activation, band, slopes is not None)
    x, w = np.polynomial.legendre.leggauss(_NODES)
    half = 0.5 * np.diff(edges)[:, None]
    z = (0.5 * (edges[1:] + edges[:-1])[:, None] + half * x).ravel()
    kinked = 0.0 in activation.kinks or slopes is not None
    offset = _ONE_SIDED if kinked else 0.0
    points = np.concatenate([z, [offset, -offset]])
    table = jet(activation, tuple(range(ORIGIN_ORDERS + 1)), points)
    first_jump = 1 if slopes and slopes[0] != slopes[1] else activation.first_jump
    K_max = (float(edges[-1]) / REACH) ** 2
    return Profile(
        activation.spec, z, (half * w).ravel(), table[:3, :-2], _one_sided(table[:, -2:].T, offset), slopes,
        first_jump, K_max,
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
    offset = _ONE_SIDED if 0.0 in activation.kinks else 0.0
    points = np.array([offset, -offset])
    return _one_sided(jet(activation, tuple(range(orders + 1)), points).T, offset)


def two_slopes(activation: Activation) -> tuple[float, float] | None:
    """(a₊, a₋) if σ is a₊z for z > 0 and a₋z for z < 0, recognised in a user's own function too."""
    known = homogeneous(activation.closed)
    if known is not None:
        return known[:2] if known[2] == 1 else None
    points = np.array([1e-3, 0.01, 0.1, 0.37, 1.0, 2.3, 7.7, 31.0, 255.0])
    both = np.stack([points, -points])
    right, left = evaluate(activation, 0, both) / both
    if not (np.all(np.isfinite(right)) and np.all(np.isfinite(left))) or max(right.max(), -right.min()) > 1e100:
        return None
    spread = max(np.ptp(right), np.ptp(left))
    size = max(np.abs(right).max(), np.abs(left).max())
    return (float(right[4]), float(left[4])) if size > 0.0 and spread <= 1e-13 * size else None


def _edges(activation: Activation, band: int, straight: bool) -> np.ndarray:
    inner = 2.0 ** np.arange(_INNERMOST, 0)
    if straight:
        outer = 2.0 ** np.arange(0, 8)
        return np.concatenate([-outer[::-1], -inner[::-1], [0.0], inner, outer])
    edges = intervals(activation, (0, 1, 2), REACH * 2.0 ** min(band, _OSCILLATING_BAND))
    if band > _OSCILLATING_BAND and len(edges) < _MANY_INTERVALS:
        edges = intervals(activation, (0, 1, 2), REACH * 2.0**band)
    return np.unique(np.concatenate([edges, -inner, inner]))


def _check_continuous(activation: Activation) -> None:
    if activation.first_jump < 1:
        raise NotDifferentiable(
            "activation",
            f"{activation.name}, which jumps or has no finite slope at z = {activation.kinks[0]:g}",
            "a continuous activation: χ_⊥ = C_W⟨σ'²⟩ is infinite where σ jumps",
            "Use a steep erf or sigmoid, or relu.",
        )


def _largest_band(activation: Activation) -> int:
    """The largest j for which the moments at kernels up to 4^j exist and end within the reach."""
    u = np.linspace(-REACH, REACH, 49)
    bands = np.array(list(_BANDS))
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
