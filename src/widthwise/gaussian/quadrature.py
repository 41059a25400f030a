"""One-dimensional Gaussian integrals, many at a time: composite Gauss–Legendre rows with edges of their own.

A row is ∫ φ(v) integrand(v; parameters) dv. Its edges say where the integrand may vary: the fixed edges of the
Gaussian itself and, mapped into v, the intervals on which the activation is resolved and the kinks. Functions that are
smooth at the scale of the activation have the trapezoidal rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, evaluate, intervals, jet
from widthwise.activations.resolution import PANEL_NODES
from widthwise.errors import DivergentMoment
from widthwise.memory import require_memory

#: Integrals stop here: φ(12) is 2e-32, room for any activation that grows no faster than a power.
REACH = 12.0
#: What f² φ may still be at the end of the reach, relative to ⟨f²⟩, before a moment counts as divergent.
TAIL_SHARE = 1e-9
GAUSSIAN_EDGES = np.array([-12.0, -9.0, -6.5, -4.5, -3.0, -1.5, 0.0, 1.5, 3.0, 4.5, 6.5, 9.0, 12.0])
#: Fewer nodes, for the error estimate.
COARSE_NODES = 12
_EVALUATIONS = 1 << 21  # node evaluations per call
#: Most nodes of the trapezoidal rule; beyond it the activation is too sharp for the kernel.
MOST_NODES = 1200
_NORMAL = 1.0 / np.sqrt(2.0 * np.pi)


class Source(NamedTuple):
    """Edges in z, mapped into each row's v by z = mean + std · v."""

    edges: np.ndarray
    mean: np.ndarray
    std: np.ndarray


def basis(u: np.ndarray, terms: int) -> np.ndarray:
    """Hermite polynomials he_0 … he_{terms−1}, he_k = He_k / √k!, orthonormal under the normal distribution, at u.

    The degree is a new first axis.

    >>> basis(np.array([2.0]), 3).round(6).tolist()
    [[1.0], [2.0], [2.12132]]
    """
    result = np.empty((terms, *np.shape(u)))
    result[0] = 1.0
    if terms > 1:
        result[1] = u
    for k in range(1, terms - 1):
        result[k + 1] = (u * result[k] - math.sqrt(k) * result[k - 1]) / math.sqrt(k + 1)
    return result


def row_edges(sources: list[Source], fixed: np.ndarray = GAUSSIAN_EDGES) -> np.ndarray:
    """Sorted edges (rows, count): the fixed ones and those of every source that fall inside the reach."""
    rows = max(len(source.mean) for source in sources)
    columns = [np.broadcast_to(fixed, (rows, len(fixed)))]
    for source in sources:
        std = np.where(source.std == 0.0, np.inf, source.std)
        ends = source.mean[:, None] + np.abs(source.std)[:, None] * np.array([-REACH, REACH])
        first = np.searchsorted(source.edges, ends[:, 0], side="right")
        count = np.searchsorted(source.edges, ends[:, 1], side="left") - first
        most = int(count.max(initial=0))
        z = source.edges[np.minimum(first[:, None] + np.arange(most), len(source.edges) - 1)]
        inside = np.arange(most) < count[:, None]
        columns.append(np.where(inside, (z - source.mean[:, None]) / std[:, None], REACH))
    joined = np.concatenate([np.broadcast_to(c, (rows, c.shape[1])) for c in columns], axis=1)
    padding = -joined.shape[1] % 8 + 1  # one shape for many calls: empty panels at the far end
    joined = np.pad(joined, ((0, 0), (0, padding)), constant_values=REACH)
    return np.sort(np.clip(joined, -REACH, REACH), axis=1)


@lru_cache(maxsize=8)
def _gauss_legendre(nodes: int):
    return np.polynomial.legendre.leggauss(nodes)


def panel_nodes(edges: Any, nodes: int = PANEL_NODES, xp: Any = np) -> tuple[Any, Any]:
    """Gauss–Legendre points between the edges (last axis) and their weights times the normal density.

    `xp` is numpy or jax.numpy.
    """
    x, w = _gauss_legendre(nodes)
    require_memory(
        40 * math.prod(edges.shape) * nodes,
        lambda: f"an integral over {edges.shape[-1]} pieces of an activation that oscillates within the kernel",
        "Scale the inputs down, or take a smaller C_W.",
    )
    half = 0.5 * xp.diff(edges, axis=-1)[..., None]
    v = 0.5 * (edges[..., 1:] + edges[..., :-1])[..., None] + half * x
    weight = half * w * xp.exp(-0.5 * v * v) * _NORMAL
    flat = (*edges.shape[:-1], -1)
    return v.reshape(flat), weight.reshape(flat)


def product_edges(activation: Activation, factors: Sequence[tuple[int, np.ndarray]]) -> np.ndarray:
    """Edges in v for Π σ^(order)(scale v) over factors (order, scale), a row for each entry of the scales."""
    radius = REACH * max(float(np.abs(scale).max(initial=0.0)) for _, scale in factors)
    return row_edges([
        Source(intervals(activation, (order,), radius), np.zeros(len(scale)), scale) for order, scale in factors
    ])  # fmt: skip


@lru_cache(maxsize=512)
def _integrator(activation: Activation, order: int, nodes: int):
    """Jitted (edges, mean, std) ↦ ⟨σ^(order)(mean + std v)⟩."""
    f = activation.derivative(order)

    def integrate(edges, mean, std):
        v, weight = panel_nodes(edges, nodes, jnp)
        return (f(mean[:, None] + std[:, None] * v) * weight).sum(axis=1)

    return jax.jit(integrate)


def shifted_mean(activation: Activation, p: int, mean: np.ndarray, std: np.ndarray, nodes: int) -> np.ndarray:
    """⟨σ^(p)(mean + std v)⟩ over a standard normal v, one row an entry; std > 0 where σ^(p) has point masses."""
    radius = float((np.abs(mean) + REACH * std).max(initial=0.0))
    edges = row_edges([Source(intervals(activation, (p,), radius), mean, std)])
    function, rows = _integrator(activation, p, nodes), len(edges)
    step = min(max(1, _EVALUATIONS // (edges.shape[1] * PANEL_NODES)), 1 << max(0, (rows - 1).bit_length()))
    pieces = []
    for start in range(0, rows, step):
        some = np.minimum(np.arange(start, start + step), rows - 1)  # one length for all calls
        pieces.append(np.asarray(function(edges[some], mean[some], std[some])))
    value = np.concatenate(pieces)[:rows]
    for atom in activation.atoms(p):
        x = (atom.position - mean) / std
        hermite = basis(x, atom.order + 1)[-1] * math.sqrt(math.factorial(atom.order))
        value += atom.weight * hermite * np.exp(-0.5 * x * x) / (math.sqrt(2 * math.pi) * std ** (atom.order + 1))
    return value


def check_tails(activation: Activation, order: int, scale: np.ndarray, norm: np.ndarray, power: int = 2) -> None:
    """Refuse moments that do not exist: near the end of the reach, f² φ must be negligible against ⟨f²⟩.

    `norm` is ⟨f²⟩ for each scale; with another `power`, ⟨f^power⟩.
    """
    largest = int(np.argmax(scale))
    ends = np.array([-REACH, -REACH + 2.0, REACH - 2.0, REACH])
    share = evaluate(activation, order, scale[largest] * ends) ** power * np.exp(-0.5 * ends**2)
    if not np.isfinite(norm[largest]) or np.any(share > TAIL_SHARE * norm[largest]):
        raise divergent_moment(activation, order, power, scale[largest] ** 2)


def divergent_moment(activation: Activation, order: int, power: int, K: float) -> DivergentMoment:
    """The error for ⟨(σ^(order))^power⟩ at a kernel."""
    return DivergentMoment(
        "activation",
        f"{activation.name}, whose ⟨(σ^({order}))^{power}⟩ does not converge at kernel K = {K:.4g}",
        "an activation whose Gaussian moments exist and are representable",
        "Choose one that grows more slowly, or smaller C_W, C_b or inputs.",
    )


@dataclass(frozen=True)
class Grid:
    """Points and weights of the trapezoidal rule times the normal density.

    For functions analytic in a strip of half-width d it converges like e^{−2πd/step}: far faster than any Gauss rule.
    """

    u: np.ndarray
    weight: np.ndarray

    @property
    def nodes(self) -> int:
        return len(self.u)

    @property
    def finer(self) -> Grid:
        """The rule by which errors are estimated."""
        return trapezoidal(self.nodes - 1)

    def at(self, root, xp=jnp):
        """Points and weights for z = root · u on a new last axis: the same for all roots."""
        return tuple(xp.broadcast_to(x, (*xp.shape(root), self.nodes)) for x in (self.u, self.weight))


@lru_cache(maxsize=256)
def smooth_grid(activation: Activation, K_max: float, degrees: int, accuracy: float = 1e-12) -> Grid | None:
    """The coarsest grid on which one-input integrals with Hermite polynomials below `degrees` are right to `accuracy`.

    A plane is no harder: along either axis its functions vary no faster than one input of the largest kernel does.
    None where the activation is kinked, or too sharp for the kernel: the trapezoidal rule does not reach there.
    """
    if activation.kinks:
        return None
    scale, count = float(np.sqrt(K_max)), 48
    grid = trapezoidal(count)
    before = _one_input_integrals(activation, scale, degrees, grid)
    while count < MOST_NODES // 2:
        count = 8 * round(1.35 * count / 8)
        finer = trapezoidal(count)
        now = _one_input_integrals(activation, scale, degrees, finer)
        if np.all(np.abs(now - before) <= accuracy * np.abs(now[:, :1])):
            return grid
        before, grid = now, finer
    return None


def trapezoidal(count: int) -> Grid:
    """2 count equal steps across the reach."""
    u = np.linspace(-REACH, REACH, 2 * count + 1)
    return Grid(u, (u[1] - u[0]) * np.exp(-0.5 * u * u) / np.sqrt(2.0 * np.pi))


def _one_input_integrals(activation: Activation, scale: float, degrees: int, grid: Grid) -> np.ndarray:
    """⟨f⁴ he_k⟩ for σ and three derivatives f, and some degrees k from 0 to the highest: four factors at one input.

    Kernels a little below the largest are looked at too: an oscillating function can be right at one by chance.
    """
    spread = np.linspace(0, degrees - 2, 5).astype(int)
    degree = np.unique(np.concatenate([spread, spread + 1]))  # both parities: odd and even activations have only one
    polynomials = basis(grid.u, degrees)[degree] * grid.weight
    scales = scale * np.array([1.0, 0.83, 0.67])[:, None]
    fourth = np.concatenate(jet(activation, (0, 1, 2, 3), scales * grid.u)) ** 4
    return fourth @ polynomials.T
