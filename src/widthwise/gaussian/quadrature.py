"""One-dimensional Gaussian integrals, many at a time: composite Gauss–Legendre rows with edges of their own.

A row is ∫ φ(v) integrand(v; parameters) dv. Its edges say where the integrand may vary: the fixed edges of the
Gaussian itself and, mapped into v, the intervals on which the activation is resolved and the kinks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, evaluate
from widthwise.activations.resolution import NODES
from widthwise.errors import DivergentMoment

#: Integrals stop here: φ(12) is 2e-32, room for any activation that grows no faster than a power.
REACH = 12.0
#: What f² φ may still be at the end of the reach, relative to ⟨f²⟩, before a moment counts as divergent.
TAIL_SHARE = 1e-9
GAUSSIAN_EDGES = np.array([-12.0, -9.0, -6.5, -4.5, -3.0, -1.5, 0.0, 1.5, 3.0, 4.5, 6.5, 9.0, 12.0])
#: Fewer nodes, for the error estimate.
COARSE_NODES = 12
_CHUNK = 1 << 21  # node evaluations per call
_NORMAL = 1.0 / np.sqrt(2.0 * np.pi)


class RowIntegrals(NamedTuple):
    value: np.ndarray
    error: np.ndarray


class Source(NamedTuple):
    """Edges in z, mapped into each row's v by z = mean + std · v."""

    edges: np.ndarray
    mean: np.ndarray
    std: np.ndarray


def row_edges(sources: list[Source], fixed: np.ndarray = GAUSSIAN_EDGES) -> np.ndarray:
    """Sorted edges (rows, count): the fixed ones and those of every source that fall inside the reach."""
    columns = []
    rows = max(len(source.mean) for source in sources)
    for source in sources:
        std = np.where(source.std == 0.0, np.inf, source.std)
        ends = source.mean[:, None] + np.abs(source.std)[:, None] * np.array([-REACH, REACH])
        first = np.searchsorted(source.edges, ends[:, 0], side="right")
        count = np.searchsorted(source.edges, ends[:, 1], side="left") - first
        most = int(count.max(initial=0))
        index = first[:, None] + np.arange(most)
        inside = np.arange(most) < count[:, None]
        z = source.edges[np.minimum(index, len(source.edges) - 1)]
        columns.append(np.where(inside, (z - source.mean[:, None]) / std[:, None], REACH))
    columns.append(np.broadcast_to(fixed, (rows, len(fixed))))
    joined = np.concatenate([np.broadcast_to(c, (rows, c.shape[1])) for c in columns], axis=1)
    padding = -joined.shape[1] % 8 + 1  # one shape for many calls: empty panels at the far end
    joined = np.pad(joined, ((0, 0), (0, padding)), constant_values=REACH)
    return np.sort(np.clip(joined, -REACH, REACH), axis=1)


@lru_cache(maxsize=8)
def _rule(nodes: int):
    return np.polynomial.legendre.leggauss(nodes)


def panel_nodes(edges: np.ndarray, nodes: int = NODES) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Legendre points between the edges (last axis) and their weights times the normal density."""
    x, w = _rule(nodes)
    half = 0.5 * np.diff(edges, axis=-1)[..., None]
    v = 0.5 * (edges[..., 1:] + edges[..., :-1])[..., None] + half * x
    weight = half * w * np.exp(-0.5 * v * v) * _NORMAL
    flat = (*edges.shape[:-1], -1)
    return v.reshape(flat), weight.reshape(flat)


@lru_cache(maxsize=512)
def _integrator(integrand, nodes: int):
    """Jitted (edges, parameters) ↦ (integral, integral of the absolute value)."""

    def integrate(edges, parameters):
        x, w = _rule(nodes)
        half = 0.5 * (edges[:, 1:] - edges[:, :-1])[..., None]
        v = 0.5 * (edges[:, 1:] + edges[:, :-1])[..., None] + half * x
        terms = integrand(v, *(p[:, None, None] for p in parameters)) * (half * w) * jnp.exp(-0.5 * v * v) * _NORMAL
        return terms.sum(axis=(1, 2)), jnp.abs(terms).sum(axis=(1, 2))

    return jax.jit(integrate)


def integrate_rows(
    integrand: Any, edges: np.ndarray, parameters: tuple[np.ndarray, ...], nodes: int = 0
) -> RowIntegrals:
    """Integrate every row. With `nodes` unset, 16 a panel and the difference from 12 as the error; else no estimate."""
    fine, size = _run(_integrator(integrand, nodes or NODES), edges, parameters)
    if nodes:
        return RowIntegrals(fine, np.zeros_like(fine))
    coarse = _run(_integrator(integrand, COARSE_NODES), edges, parameters)[0]
    return RowIntegrals(fine, np.abs(fine - coarse) + 4 * np.finfo(float).eps * size)


def check_tails(activation: Activation, order: int, scale: np.ndarray, norm: np.ndarray, power: int = 2) -> None:
    """Refuse moments that do not exist: near the end of the reach, f² φ must be negligible against ⟨f²⟩.

    `norm` is ⟨f²⟩ for each scale; with another `power`, ⟨f^power⟩.
    """
    largest = int(np.argmax(scale))
    ends = np.array([-REACH, -REACH + 2.0, REACH - 2.0, REACH])
    share = evaluate(activation, order, scale[largest] * ends) ** power * np.exp(-0.5 * ends**2)
    K = scale[largest] ** 2
    if not np.isfinite(norm[largest]) or np.any(share > TAIL_SHARE * norm[largest]):
        raise DivergentMoment(
            "activation",
            f"{activation.name}, whose ⟨(σ^({order}))^{power}⟩ does not converge at kernel K = {K:.4g}",
            "an activation whose Gaussian moments exist and are representable",
            "Choose one that grows more slowly, or smaller C_W, C_b or inputs.",
        )


def _run(function, edges, parameters):
    rows = len(edges)
    step = max(1, _CHUNK // (edges.shape[1] * NODES))
    step = min(step, 1 << max(0, (rows - 1).bit_length()))
    pieces = []
    for start in range(0, rows, step):
        block = slice(start, start + step)
        missing = step - len(edges[block])
        some = np.pad(edges[block], ((0, missing), (0, 0)), mode="edge")
        result = function(some, [np.pad(p[block], (0, missing), mode="edge") for p in parameters])
        pieces.append([np.asarray(r)[: step - missing] for r in result])
    return [np.concatenate(columns) for columns in zip(*pieces, strict=True)]
