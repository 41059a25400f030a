"""Two-point expectations for all pairs of N inputs, and their total derivatives where a pair is one variable."""

from __future__ import annotations

import math
from functools import partial

import jax
import numpy as np

from widthwise.activations import Activation, evaluate, intervals
from widthwise.gaussian.pair import generic_pair, is_parallel
from widthwise.gaussian.polynomials import basis
from widthwise.gaussian.quadrature import REACH, Source, panel_nodes, row_edges


def pair_matrix(activation: Activation, p: int, q: int, K: np.ndarray) -> tuple[np.ndarray, float]:
    """⟨σ^(p)_a σ^(q)_b⟩ on (a, b), and the largest error relative to the largest entry.

    Entries of kinked activations that do not exist (coinciding or parallel inputs) are left at zero: whatever uses them
    there must use `total_derivative` instead.
    """
    a, b = np.triu_indices(len(K)) if p == q else (index.ravel() for index in np.indices(K.shape))
    K_aa, K_ab, K_bb = np.diag(K)[a], np.where(a == b, np.diag(K)[a], K[a, b]), np.diag(K)[b]
    exists = np.ones(len(a), bool)
    if not activation.exists_at_one_input(p, q):
        exists = ~is_parallel(K_aa, K_ab, K_bb)
    values, error = np.zeros(len(a)), 0.0
    kernel = (K_aa[exists], K_ab[exists], K_bb[exists])
    if activation.closed is not None:
        values[exists] = np.asarray(closed_pair(activation.closed, p, q, *kernel))
    elif exists.any():
        found = generic_pair(activation, p, q, *kernel)
        values[exists] = found.value
        error = float(found.error.max() / max(np.abs(found.value).max(), 1e-300))
    matrix = np.zeros(K.shape)
    matrix[a, b] = values
    if p == q:
        matrix[b, a] = values
    return matrix, error


@partial(jax.jit, static_argnums=(0, 1, 2))
def closed_pair(closed, p: int, q: int, K_aa, K_ab, K_bb):
    """A closed form, compiled."""
    return closed.pair(p, q, K_aa, K_ab, K_bb)


def total_derivative(activation: Activation, p: int, q: int, order: int, scale_a: float, scale_b: float) -> float:
    """⟨dⁿ/dz_aⁿ [σ^(p)(z_a) σ^(q)(z_b)]⟩ with z_a = scale_a u, z_b = scale_b u one variable (n = `order`).

    By parts it is ⟨√n! he_n(u) σ^(p) σ^(q)⟩ / scale_aⁿ, which exists for kinked activations too (theory §1, Stein).
    """
    radius = REACH * max(abs(scale_a), abs(scale_b))
    sources = [
        Source(intervals(activation, (o,), radius), np.zeros(1), np.array([scale]))
        for o, scale in ((p, scale_a), (q, scale_b))
    ]
    u, weight = (x[0] for x in panel_nodes(row_edges(sources)))
    product = evaluate(activation, p, scale_a * u) * evaluate(activation, q, scale_b * u)
    polynomial = basis(u, order + 1)[-1] * math.sqrt(math.factorial(order))
    return float(np.sum(weight * product * polynomial)) / scale_a**order
