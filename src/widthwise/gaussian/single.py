"""Expectations of one input: ⟨σ^(p) σ^(q)⟩ over z ~ N(0, K), and one-input integrals that others are made of."""

from __future__ import annotations

import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, evaluate, intervals
from widthwise.activations.resolution import NODES
from widthwise.gaussian.polynomials import basis
from widthwise.gaussian.quadrature import (
    COARSE_NODES,
    REACH,
    RowIntegrals,
    Source,
    integrate_rows,
    panel_nodes,
    row_edges,
)

#: Rows integrated at once.
_ROWS = 2048


@lru_cache(maxsize=512)
def _shifted(activation: Activation, p: int):
    """v ↦ σ^(p)(mean + std v)."""
    f = activation.derivative(p)

    def integrand(v, mean, std):
        return f(mean + std * v)

    return integrand


def parallel_pair(activation: Activation, p: int, q: int, scale_a: np.ndarray, scale_b: np.ndarray) -> RowIntegrals:
    """⟨σ^(p)(scale_a v) σ^(q)(scale_b v)⟩ over one standard normal v; antiparallel when the signs differ.

    Point masses of kinked activations are included where they meet a continuous factor (theory §1, Kinks).
    """
    scale_a, scale_b = np.broadcast_arrays(np.atleast_1d(scale_a), np.atleast_1d(scale_b))
    value, error = np.empty(len(scale_a)), np.empty(len(scale_a))
    for start in range(0, len(scale_a), _ROWS):
        rows = slice(start, start + _ROWS)
        value[rows], error[rows] = _on_a_line(activation, p, q, scale_a[rows], scale_b[rows])
    value += _atoms_on_a_line(activation, p, q, scale_a, scale_b)
    value += _atoms_on_a_line(activation, q, p, scale_b, scale_a)
    return RowIntegrals(value, error)


def _on_a_line(activation: Activation, p: int, q: int, scale_a: np.ndarray, scale_b: np.ndarray):
    """Regular parts, with 16 nodes a panel, and the difference from 12 as the error."""
    radius = REACH * float(max(np.abs(scale_a).max(initial=0.0), np.abs(scale_b).max(initial=0.0)))
    zero = np.zeros(len(scale_a))
    sources = [
        Source(intervals(activation, (order,), radius), zero, scale) for order, scale in ((p, scale_a), (q, scale_b))
    ]
    edges = row_edges(sources)
    sums = []
    for nodes in (NODES, COARSE_NODES):
        v, weight = panel_nodes(edges, nodes)
        product = evaluate(activation, p, scale_a[:, None] * v) * evaluate(activation, q, scale_b[:, None] * v) * weight
        sums.append((product.sum(axis=1), np.abs(product).sum(axis=1)))
    (fine, size), (coarse, _) = sums
    return fine, np.abs(fine - coarse) + 4 * np.finfo(float).eps * size


def shifted_mean(activation: Activation, p: int, mean: np.ndarray, std: np.ndarray, nodes: int = 0) -> RowIntegrals:
    """⟨σ^(p)(mean + std v)⟩ over a standard normal v, one row an entry; std > 0 where σ^(p) has point masses."""
    radius = float((np.abs(mean) + REACH * std).max(initial=0.0))
    edges = row_edges([Source(intervals(activation, (p,), radius), mean, std)])
    regular = integrate_rows(_shifted(activation, p), edges, (mean, std), nodes)
    value = regular.value
    for atom in activation.atoms(p):
        x = (atom.position - mean) / std
        hermite = basis(x, atom.order + 1)[-1] * math.sqrt(math.factorial(atom.order))
        value = value + atom.weight * hermite * np.exp(-0.5 * x * x) / (
            math.sqrt(2 * math.pi) * std ** (atom.order + 1)
        )
    return RowIntegrals(value, regular.error)


def _atoms_on_a_line(activation: Activation, p: int, q: int, scale_a, scale_b):
    """∫ Σ weight δ^(s)(z_a − c) σ^(q)(z_b) over the line z_a = scale_a v, z_b = scale_b v."""
    total = np.zeros(len(scale_a))
    for atom in activation.atoms(p):
        total += atom.weight * (-1.0) ** atom.order * _density_times(activation, q, atom, scale_a, scale_b)
    return total


def _density_times(activation: Activation, q: int, atom, scale_a, scale_b):
    """d^s/dz_a^s of [density(z_a) σ^(q)(z_b)] at the atom, with z_b = z_a · scale_b/scale_a."""
    ratio = np.divide(scale_b, scale_a, out=np.zeros(len(scale_a)), where=scale_a != 0.0)
    spread = np.abs(scale_a)

    def function(z, *parameters):
        ratio, spread = parameters
        density = jnp.exp(-0.5 * (z / spread) ** 2) / (spread * jnp.sqrt(2.0 * jnp.pi))
        return density * activation.derivative(q)(ratio * z)

    for _ in range(atom.order):
        function = _differentiate_first(function)
    position = jnp.full(len(scale_a), atom.position)
    return np.asarray(function(position, jnp.asarray(ratio), jnp.asarray(spread)))


def _differentiate_first(function):
    def derivative(z, *rest):
        return jax.jvp(lambda z: function(z, *rest), (z,), (jnp.ones_like(z),))[1]

    return derivative
