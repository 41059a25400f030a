"""Gaussian expectations of one input at many kernels: ⟨He_j(u) Π σ̃^(o)(u)⟩ over a standard normal u.

The activation is seen on the scale of its own input and output: σ̃(u) = σ(√K u)/√⟨σ²⟩, differentiated in u, so that
every expectation is a pure number for K = 1e-300 as for K = 1e20. Smooth activations are integrated by the trapezoidal
rule, with more nodes the larger K is; kinked ones, and kernels too large for that, by Gauss–Legendre panels between the
places where the activation varies; piecewise linear ones in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, evaluate, intervals
from widthwise.activations.resolution import PANEL_NODES
from widthwise.errors import DivergentMoment
from widthwise.gaussian.quadrature import GAUSSIAN_EDGES, REACH, TAIL_SHARE, Grid, smooth_grid, trapezoidal

#: Kernels up to 4^j share the grid of j, from this j on.
LOWEST_BAND = -2
#: Kernels above 4^HIGHEST_BAND are past what is integrated.
HIGHEST_BAND = 40
#: Relative accuracy of the trapezoidal grids.
ACCURACY = 1e-13
#: Nodes are handled in segments, so many segments in one call.
_SEGMENT = 32
_ROWS = 1024
#: Kernels at which the error of a rule is estimated.
PROBES = 8
#: Nodes of a panel to estimate errors by.
_FINER_NODES = 24
#: Below this kernel an activation is its tangent, to a relative accuracy of √K.
SMALLEST = 2.0**-1000
#: The same for σ(0) ≠ 0, where the tangent is small beside the constant.
SMALLEST_SHIFTED = 2.0**-200


class Term(NamedTuple):
    """⟨He_hermite(u) Π σ̃^(o)(u)⟩ over the orders o."""

    hermite: int
    orders: tuple[int, ...]


def pair(p: int, q: int) -> Term:
    return Term(0, (p, q))


def total_derivative(activation: Activation, p: int, order: int) -> list[tuple[int, Term]]:
    """⟨dⁿ/duⁿ (σ̃^(p))²⟩ as a sum of coefficient times term.

    Differentiated as often as the result is a function, by parts for the rest: ⟨∂ⁿF⟩ = ⟨He_{n−k} ∂ᵏF⟩ (theory §1,
    Stein). Differentiating keeps the digits of small kernels, parts admit kinks.

    >>> from widthwise.activations import resolve
    >>> total_derivative(resolve("relu"), 0, 2)
    [(1, Term(hermite=1, orders=(0, 1))), (1, Term(hermite=1, orders=(1, 0)))]
    """
    k = int(min(order, activation.first_jump - p))
    return [(math.comb(k, j), Term(order - k, (p + j, p + k - j))) for j in range(k + 1)]


def homogeneous_term(slopes: tuple[float, float, int], term: Term) -> float:
    """A term for σ = a_± z^power, divided by powers of ⟨σ²⟩: (a₊^m + a₋^m)/2 times a moment of the normal.

    >>> homogeneous_term((1.0, 0.0, 1), Term(0, (0, 0, 0, 0)))       # ⟨σ⁴⟩/⟨σ²⟩² = (3/2)/(1/2)² for relu
    6.0
    """
    positive, negative, power = slopes
    if max(term.orders) > power:
        return 0.0
    factors, degree = len(term.orders), sum(power - order for order in term.orders)
    polynomial = {0: {0: 1}, 1: {1: 1}, 2: {2: 1, 0: -1}, 3: {3: 1, 1: -3}, 4: {4: 1, 2: -6, 0: 3}}[term.hermite]
    moment = sum(weight * _even_moment(degree + k) for k, weight in polynomial.items())
    mean, square = (0.5 * (positive**m + negative**m) for m in (factors, 2))
    return mean * moment / square ** (factors / 2)


def _even_moment(degree: int) -> int:
    assert degree % 2 == 0, "every expectation of the rules is even in u"
    return math.prod(range(degree - 1, 0, -2))


@dataclass(frozen=True, eq=False)
class Panels:
    """Gauss–Legendre panels between fixed edges in z and the Gaussian's own edges in u."""

    edges: np.ndarray
    count: int = PANEL_NODES

    @property
    def nodes(self) -> int:
        return (len(self.edges) + len(GAUSSIAN_EDGES) - 1) * self.count

    @cached_property
    def finer(self) -> Panels:
        return Panels(self.edges, _FINER_NODES)

    def at(self, root, xp=jnp):
        """Points u and weights on a new last axis, for z = root · u."""
        x, w = np.polynomial.legendre.leggauss(self.count)
        inner = self.edges / xp.asarray(root)[..., None]
        outer = xp.broadcast_to(GAUSSIAN_EDGES, (*inner.shape[:-1], len(GAUSSIAN_EDGES)))
        edges = xp.sort(xp.clip(xp.concatenate([inner, outer], axis=-1), -REACH, REACH), axis=-1)
        half = 0.5 * xp.diff(edges, axis=-1)[..., None]
        u = 0.5 * (edges[..., 1:] + edges[..., :-1])[..., None] + half * x
        weight = half * w * xp.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)
        return tuple(xp.reshape(array, (*edges.shape[:-1], -1)) for array in (u, weight))


@dataclass(frozen=True, eq=False)
class Trapezoid:
    """The trapezoidal rule, the same points for all kernels."""

    grid: Grid

    @property
    def nodes(self) -> int:
        return self.grid.nodes

    @cached_property
    def finer(self) -> Trapezoid:
        return Trapezoid(trapezoidal(self.grid.nodes - 1))

    def at(self, root, xp=jnp):
        return tuple(xp.broadcast_to(x, (*xp.shape(root), self.nodes)) for x in (self.grid.u, self.grid.weight))


@dataclass(frozen=True, eq=False)
class Ladder:
    """Quadrature rules for one activation, each good for kernels up to its limit."""

    activation: Activation
    rules: tuple[Panels | Trapezoid, ...]
    limits: tuple[float, ...]
    smallest: float

    @property
    def largest(self) -> float:
        return self.limits[-1]

    def which(self, K):
        return jnp.searchsorted(np.asarray(self.limits[:-1]), K)

    def square(self, K):
        """⟨σ²⟩/K at one kernel; goes through a scan, where only the rule of this kernel runs."""
        return jax.lax.switch(self.which(K), [partial(_square, self.activation, rule) for rule in self.rules], K)


def _square(activation: Activation, rule, K):
    root = jnp.sqrt(K)
    u, weight = rule.at(root)
    return jnp.sum(weight * (activation(root * u) / root) ** 2)


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
            rules.append(Panels(_edges(activation, top)))
            limits.append(4.0**top)
            break
        rules.append(Trapezoid(grid))
        limits.append(4.0**band)
    shifted = float(evaluate(activation, 0, np.zeros(1))[0]) != 0.0
    return Ladder(activation, tuple(rules), tuple(limits), SMALLEST_SHIFTED if shifted else SMALLEST)


@lru_cache(maxsize=256)
def _grid(activation: Activation, band: int) -> Grid | None:
    """A grid for kernels up to 4^band: the finest of three nearby kernels, as one alone may agree by chance."""
    found = [smooth_grid(activation, share * 4.0**band, 6, ACCURACY) for share in (1.0, 0.8, 0.6)]
    if any(grid is None for grid in found):
        return None
    finest = max((grid for grid in found if grid is not None), key=lambda grid: grid.nodes)
    below = _grid(activation, band - 1) if band > LOWEST_BAND else finest
    return None if below is None or finest.nodes < below.nodes else finest


def _edges(activation: Activation, band: int) -> np.ndarray:
    highest = 5 if activation.first_jump > 5 else int(activation.first_jump)
    return intervals(activation, tuple(range(highest + 1)), REACH * 2.0**band)


def moments(rungs: Ladder, terms: tuple[Term, ...], K: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, float]:
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


def _integrate(activation: Activation, rule, terms, K: np.ndarray, square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Terms (kernels, terms) and the integrals of their absolute values.

    Nodes are cut into segments of one length, so that one compiled program serves every rule.
    """
    pieces = -(-rule.nodes // _SEGMENT)
    step = max(1, _ROWS // pieces)
    missing = pieces * _SEGMENT - rule.nodes
    found = []
    for start in range(0, len(K), step):
        block = slice(start, start + step)
        u, weight = (np.pad(x, ((0, 0), (0, missing))).reshape(-1, _SEGMENT) for x in rule.at(np.sqrt(K[block]), np))
        root, scale = (np.repeat(np.sqrt(x[block]), pieces) for x in (K, square))
        for part in range(0, len(u), _ROWS):
            rows = slice(part, part + _ROWS)
            inputs = [_padded(x[rows]) for x in (u, weight, root, scale)]
            found.append(np.asarray(_segments(activation, terms, *inputs))[: len(u[rows])])
    sums = np.concatenate(found).reshape(len(K), pieces, 2, len(terms)).sum(axis=1)
    return sums[:, 0], sums[:, 1]


def _padded(rows: np.ndarray) -> np.ndarray:
    return np.pad(rows, [(0, _ROWS - len(rows)), *[(0, 0)] * (rows.ndim - 1)], mode="edge")


@partial(jax.jit, static_argnums=(0, 1))
def _segments(activation: Activation, terms: tuple[Term, ...], u, weight, root, scale):
    """Sums over the nodes of each row (rows, 2, terms): of every term, and of its absolute value."""
    root, scale = root[:, None], jnp.where(scale > 0.0, scale, 1.0)[:, None]
    orders = sorted({order for term in terms for order in term.orders})
    functions = {o: root**o * (activation.derivative(o)(root * u) / scale) for o in orders}
    hermite: dict[int, Any] = {0: 1.0, 1: u, 2: u**2 - 1.0, 3: u**3 - 3.0 * u, 4: u**4 - 6.0 * u**2 + 3.0}
    columns = []
    for term in terms:
        product = hermite[term.hermite] * weight
        for order in term.orders:
            product = product * functions[order]
        columns.append(jnp.stack([jnp.sum(product, axis=1), jnp.sum(jnp.abs(product), axis=1)], axis=1))
    return jnp.stack(columns, axis=2)


def _check_tails(activation: Activation, terms: tuple[Term, ...], K: float) -> None:
    """Refuse moments that do not exist or do not end within the reach of the quadrature."""
    factors = max(len(term.orders) for term in terms)
    u = np.linspace(-REACH, REACH, 49)
    for order in sorted({order for term in terms for order in term.orders if order < 4}):
        size = np.abs(evaluate(activation, order, math.sqrt(K) * u)) ** factors * np.exp(-0.5 * u**2)
        if not np.all(np.isfinite(size)) or max(size[[0, -1]]) > TAIL_SHARE * max(size):
            raise DivergentMoment(
                "activation",
                f"{activation.name}, whose ⟨(σ^({order}))^{factors}⟩ does not converge at kernel K = {K:.4g}",
                "an activation whose Gaussian moments exist and are representable",
                "Choose one that grows more slowly, or smaller C_W, C_b or inputs.",
            )
