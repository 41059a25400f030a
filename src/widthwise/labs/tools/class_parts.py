"""A second moment over inputs and classes, divided into class, cross-class and within-class parts (theory §10)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class ClassParts(NamedTuple):
    """Vectors whose outer products add up to a second moment: Σ δδᵀ = Σ over the four parts of VᵀV.

    `between` (classes, size), `cross` (classes², size; zero where c' = c), `within` (inputs · classes, size; zero where
    c' is the label), `own` (inputs, size).
    """

    between: Any
    cross: Any
    within: Any
    own: Any

    @property
    def traces(self) -> jax.Array:
        """tr VᵀV of each part."""
        return jnp.stack([jnp.sum(part**2) for part in self])


def class_parts(vectors: Any, weights: Any, labels: Any) -> ClassParts:
    """Divide M = Σ_{i,c'} w_ic' v_ic' v_ic'ᵀ by the class c of i and by c'.

    Means are weighted by w. With v_cc' the mean over inputs of class c ≠ c' and v_c that of v_cc' over c',
    M = Σ w_c v_c v_cᵀ + Σ w_cc' (v_cc' − v_c)(…)ᵀ + Σ w_ic' (v_ic' − v_cc')(…)ᵀ + Σ_i w_ic v_ic v_icᵀ (c' = c).

    Parameters
    ----------
    vectors : (inputs, classes, size).
    weights : (inputs, classes), not negative.
    labels : (inputs,).

    Returns
    -------
    ClassParts, each row multiplied by the root of its weight.

    >>> v = jnp.arange(8.0).reshape(2, 2, 2)
    >>> parts = class_parts(v, jnp.ones((2, 2)), jnp.array([0, 1]))
    >>> float(parts.traces.sum()) == float((v**2).sum())
    True
    """
    inputs, classes, size = vectors.shape
    member = jax.nn.one_hot(labels, classes)  # (inputs, classes)
    other = weights * (1.0 - member)
    own = jnp.einsum("ic,icp->ip", jnp.sqrt(weights) * member, vectors)
    pair_weight = member.T @ other  # (c, c')
    pair_mean = _divide(jnp.einsum("ic,id,idp->cdp", member, other, vectors), pair_weight)
    class_weight = pair_weight.sum(axis=1)
    class_mean = _divide(jnp.einsum("cd,cdp->cp", pair_weight, pair_mean), class_weight)
    cross = jnp.sqrt(pair_weight)[..., None] * (pair_mean - class_mean[:, None])
    within = jnp.sqrt(other)[..., None] * (vectors - pair_mean[labels])
    between = jnp.sqrt(class_weight)[:, None] * class_mean
    return ClassParts(between, cross.reshape(-1, size), within.reshape(inputs * classes, size), own)


def _divide(sums: Any, weights: Any) -> jax.Array:
    """Sums over weights, zero where there is no weight."""
    return sums / jnp.where(weights > 0.0, weights, 1.0)[..., None]
