"""Gaussian expectations of one input at many kernels: ⟨He_j(u) Π σ̃^(o)(u)⟩ over a standard normal u.

The activation is seen on the scale of its own input and output: σ̃(u) = σ(√K u)/√⟨σ²⟩, differentiated in u, so that
every expectation is a pure number for K = 1e-300 as for K = 1e20. Smooth activations are integrated by the trapezoidal
rule, with more nodes the larger K is; kinked ones, and kernels too large for that, by Gauss–Legendre panels between the
places where the activation varies; piecewise linear ones in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial.hermite_e import herme2poly

from widthwise.activations import Activation, evaluate, intervals, jet
from widthwise.activations.resolution import PANEL_NODES
from widthwise.flow.one_input.scaled_numbers import Scaled, scaled_number
from widthwise.gaussian import quadrature

#: Kernels up to 4^j share the grid of j, from this j on.
LOWEST_BAND = -2
#: Kernels above 4^HIGHEST_BAND are past what is integrated.
HIGHEST_BAND = 40
#: Relative accuracy of the trapezoidal grids.
ACCURACY = 1e-13
#: Points at which an activation is evaluated at once.
_POINTS_AT_ONCE = 1 << 16
#: Kernels at which the error of a rule is estimated.
PROBES = 8
#: Below this kernel an activation is its tangent, to a relative accuracy of √K.
SMALLEST_TANGENT = 2.0**-1000
#: The same for σ(0) ≠ 0, where the tangent is small beside the constant.
SMALLEST_SHIFTED = 2.0**-200
#: Below the smallest kernel that is integrated, ⟨σ²⟩/K must not vanish: σ has a slope at zero.
_NO_SLOPE = 1e-60
#: Why a kernel cannot be integrated: the ladder ends below it, or nothing can help.
TOO_LARGE, LOST = 1, 2


class Term(NamedTuple):
    """⟨He_hermite(u) Π σ̃^(o)(u)⟩ over the orders o."""

    hermite: int
    orders: tuple[int, ...]


def pair(p: int, q: int) -> Term:
    return Term(0, (p, q))


def square_derivative(activation: Activation, p: int, order: int) -> list[tuple[int, Term]]:
    """⟨dⁿ/duⁿ (σ̃^(p))²⟩ as a sum of coefficient times term.

    Differentiated as often as the result is a function, by parts for the rest: ⟨∂ⁿF⟩ = ⟨He_{n−k} ∂ᵏF⟩ (theory §1,
    Stein). Differentiating keeps the digits of small kernels, parts admit kinks.

    >>> from widthwise.activations import resolve
    >>> square_derivative(resolve("relu"), 0, 2)
    [(1, Term(hermite=1, orders=(0, 1))), (1, Term(hermite=1, orders=(1, 0)))]
    """
    k = int(min(order, activation.first_jump - p))
    return [(math.comb(k, j), Term(order - k, (p + j, p + k - j))) for j in range(k + 1)]


class Homogeneous(NamedTuple):
    """σ = a_± z^power, whose expectations have closed forms: (a₊^m + a₋^m)/2 times a moment of the normal."""

    positive: float
    negative: float
    power: int

    route = "closed form"
    shifted = False

    def mean(self, factors: int) -> float:
        return 0.5 * (self.positive**factors + self.negative**factors)

    def second(self, K: Scaled):
        """⟨σ²⟩ = (a₊² + a₋²)/2 · K^power, the K it was computed at, and no reason against it."""
        return (K * self.mean(2) if self.power else scaled_number(jnp.asarray(self.mean(2)))), K, False

    def mean_share(self, K: Scaled):
        """⟨σ⟩²/⟨σ²⟩: for power one (a₊ − a₋)²/π over a₊² + a₋²."""
        return (self.positive - self.negative) ** 2 / (2.0 * math.pi * self.mean(2))

    def term(self, term: Term) -> float:
        """A term, divided by powers of ⟨σ²⟩.

        >>> Homogeneous(1.0, 0.0, 1).term(Term(0, (0, 0, 0, 0)))       # ⟨σ⁴⟩/⟨σ²⟩² = (3/2)/(1/2)² for relu
        6.0
        """
        if max(term.orders) > self.power:
            return 0.0
        factors, degree = len(term.orders), sum(self.power - order for order in term.orders)
        assert (degree + term.hermite) % 2 == 0, "every expectation of the rules is even in u"
        polynomial = enumerate(herme2poly([0] * term.hermite + [1]), degree)
        moment = sum(weight * math.prod(range(power - 1, 0, -2)) for power, weight in polynomial if weight)
        return float(self.mean(factors) * moment / self.mean(2) ** (factors / 2))


@dataclass(frozen=True, eq=False)
class Panels:
    """Gauss–Legendre panels between fixed edges in z and the Gaussian's own edges in u, for z = root · u.

    `at` gives points u and weights on a new last axis, and `finer` the rule by which errors are estimated.
    """

    edges: np.ndarray
    count: int = PANEL_NODES

    @property
    def nodes(self) -> int:
        return (len(self.edges) + len(quadrature.GAUSSIAN_EDGES) - 1) * self.count

    @property
    def finer(self) -> Panels:
        return Panels(self.edges, 24)

    def at(self, root, xp=jnp):
        inner = self.edges / xp.asarray(root)[..., None]
        outer = xp.broadcast_to(quadrature.GAUSSIAN_EDGES, (*inner.shape[:-1], len(quadrature.GAUSSIAN_EDGES)))
        edges = xp.sort(xp.clip(xp.concatenate([inner, outer], axis=-1), -quadrature.REACH, quadrature.REACH), axis=-1)
        return quadrature.panel_nodes(edges, self.count, xp)


@dataclass(frozen=True, eq=False)
class Ladder:
    """Quadrature rules for one activation, each good for kernels up to its limit."""

    activation: Activation
    rules: tuple[Panels | quadrature.Grid, ...]
    limits: tuple[float, ...]
    shifted: bool

    route = "quadrature"

    @property
    def smallest(self) -> float:
        return SMALLEST_SHIFTED if self.shifted else SMALLEST_TANGENT

    @property
    def largest(self) -> float:
        return self.limits[-1]

    def second(self, K: Scaled):
        """⟨σ²⟩ at one kernel, the K it was computed at, and why it cannot be, or zero; goes through a scan."""
        size = jnp.ldexp(K.mantissa, jnp.clip(K.exponent, -1020, 1020))
        inside = jnp.clip(size, self.smallest, self.largest)
        share = self.square(inside)
        too_small = K.exponent < math.frexp(self.smallest)[1]
        too_large = (K.exponent > math.frexp(self.largest)[1]) | (inside >= self.largest)
        seen = jax.tree.map(partial(jnp.where, self.shifted & too_small), scaled_number(inside), K)
        lost = (too_small & (share < _NO_SLOPE) & (K.mantissa > 0.0)) | ~jnp.isfinite(share)
        return seen * share, seen, jnp.where(lost, LOST, jnp.where(too_large, TOO_LARGE, 0))

    def square(self, K):
        """⟨σ²⟩/K at one kernel; in a scan, only the rule of this kernel runs."""
        return self._moment(K, 2)

    def mean_share(self, K: Scaled):
        """⟨σ⟩²/⟨σ²⟩ at one kernel within the range of the ladder."""
        inside = jnp.clip(jnp.ldexp(K.mantissa, jnp.clip(K.exponent, -1020, 1020)), self.smallest, self.largest)
        return self._moment(inside, 1) ** 2 / self._moment(inside, 2)

    def _moment(self, K, power: int):
        """⟨(σ/√K)^power⟩ at one kernel."""
        root = jnp.sqrt(K)

        def by(rule):
            u, weight = rule.at(root)
            return jnp.sum(weight * (self.activation(root * u) / root) ** power)

        which = jnp.searchsorted(np.asarray(self.limits[:-1]), K)
        return jax.lax.switch(which, [partial(by, rule) for rule in self.rules])


def ladder(activation: Activation, K: float) -> Ladder:
    """Rules for kernels up to K, or a little more."""
    band = max(LOWEST_BAND, math.ceil(math.log(min(max(K, 1e-300), 4.0**HIGHEST_BAND), 4) - 1e-9))
    return _ladder(activation, min(band, HIGHEST_BAND))


@lru_cache(maxsize=64)
def _ladder(activation: Activation, top: int) -> Ladder:
    rules, limits = [], []
    for band in range(LOWEST_BAND, top + 1):
        grid = None if activation.kinks else _grid(activation, band)
        if grid is None:
            highest = int(min(activation.first_jump, 5))
            rules.append(Panels(intervals(activation, tuple(range(highest + 1)), quadrature.REACH * 2.0**top)))
            limits.append(4.0**top)
            break
        rules.append(grid)
        limits.append(4.0**band)
    shifted = float(evaluate(activation, 0, np.zeros(1))[0]) != 0.0
    return Ladder(activation, tuple(rules), tuple(limits), shifted)


@lru_cache(maxsize=256)
def _grid(activation: Activation, band: int) -> quadrature.Grid | None:
    """A grid for kernels up to 4^band: the finest of three nearby kernels, as one alone may agree by chance."""
    found = [quadrature.smooth_grid(activation, share * 4.0**band, 6, ACCURACY) for share in (1.0, 0.8, 0.6)]
    if any(grid is None for grid in found):
        return None
    finest = max((grid for grid in found if grid is not None), key=lambda grid: grid.nodes)
    below = _grid(activation, band - 1) if band > LOWEST_BAND else finest
    return None if below is None or finest.nodes < below.nodes else finest


def single_moments(
    rungs: Ladder, terms: tuple[Term, ...], K: np.ndarray, share: np.ndarray
) -> tuple[np.ndarray, float]:
    """Terms at every kernel of K (layers,), as (layers, terms), and an estimate of their error beside max(1, size).

    `share` is ⟨σ²⟩/K. K must lie within the range of the ladder; kernels that occur often are integrated once.
    """
    kernels, first, back = np.unique(K, return_index=True, return_inverse=True)
    which, squares = np.searchsorted(rungs.limits[:-1], kernels), share[first] * kernels
    result, error = np.empty((len(kernels), len(terms))), 0.0
    for level, rule in enumerate(rungs.rules):
        rows = np.flatnonzero(which == level)
        if not len(rows):
            continue
        result[rows] = _integrate(rungs.activation, rule, terms, kernels[rows], squares[rows])[0]
        probes = rows[np.unique(np.linspace(0, len(rows) - 1, PROBES).astype(int))]
        fine, size = _integrate(rungs.activation, rule.finer, terms, kernels[probes], squares[probes])
        error = max(error, float(np.max(np.abs(fine - result[probes]) / np.maximum(size, 1.0))))
    _check_tails(rungs.activation, terms, float(kernels[-1]))
    return result[back], max(error, 1e-15)


@np.errstate(over="ignore", invalid="ignore")  # what diverges is refused by `_check_tails`
def _integrate(activation: Activation, rule, terms, K: np.ndarray, square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Terms (kernels, terms) and the integrals of their absolute values, a block of kernels at a time."""
    orders = tuple(sorted({order for term in terms for order in term.orders}))
    step = max(1, _POINTS_AT_ONCE // rule.nodes)
    found = []
    for block in (slice(start, start + step) for start in range(0, len(K), step)):
        root, scale = (np.sqrt(x[block])[:, None] for x in (K, np.where(square > 0.0, square, 1.0)))
        u, weight = rule.at(root[:, 0], np)
        values = jet(activation, orders, root * u)
        functions = {order: root**order * (value / scale) for order, value in zip(orders, values, strict=True)}
        hermite = {0: 1.0, 1: u, 2: u**2 - 1.0, 3: u**3 - 3.0 * u, 4: u**4 - 6.0 * u**2 + 3.0}
        sums = []
        for term in terms:
            product = hermite[term.hermite] * weight
            for order in term.orders:
                product = product * functions[order]
            sums.append((product.sum(axis=1), np.abs(product).sum(axis=1)))
        found.append(sums)
    values, sizes = np.moveaxis(np.concatenate(found, axis=2), 1, 0)
    return values.T, sizes.T


def _check_tails(activation: Activation, terms: tuple[Term, ...], K: float) -> None:
    """Refuse moments that do not exist or do not end within the reach of the quadrature."""
    factors = max(len(term.orders) for term in terms)
    u = np.linspace(-quadrature.REACH, quadrature.REACH, 49)
    for order in sorted({order for term in terms for order in term.orders if order < 4}):
        size = np.abs(evaluate(activation, order, math.sqrt(K) * u)) ** factors * np.exp(-0.5 * u**2)
        if not np.all(np.isfinite(size)) or max(size[[0, -1]]) > quadrature.TAIL_SHARE * max(size):
            raise quadrature.divergent_moment(activation, order, factors, K)
