"""The flow of every input with itself: a short recursion that all pairs need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.flow.kernels.layer_series import InputTables
from widthwise.flow.kernels.layer_step import Hyper, first_layer, next_layer
from widthwise.network import MLP


@dataclass(frozen=True)
class Diagonal:
    """Every input with itself: K and Θ (layers, inputs); for the generic route, the tables below each layer."""

    K: np.ndarray
    Theta: np.ndarray
    tables: list[InputTables]
    error: float


def diagonal_flow(net: MLP, X: np.ndarray, with_theta: bool = True) -> Diagonal:
    """K_aa and Θ_aa at every layer, in float64."""
    hyper, gram = Hyper.of(net), np.einsum("ai,ai->a", X, X) / net.widths[0]
    if net.activation.closed is not None:
        K, Theta = _closed_diagonal(net.activation.closed, with_theta, hyper, gram)
        return Diagonal(np.asarray(K), np.asarray(Theta), [], 1e-15)
    orders = (0, 1) if with_theta else (0,)
    K, Theta = first_layer(hyper[0], gram)
    flow, tables, error = [(K, Theta)], [], 0.0
    for layer in range(1, net.depth):
        tables.append(InputTables(net.activation, K))
        made = [tables[-1].get(order) for order in orders]
        error = max([error, *(float(np.max(t.norm_error / np.maximum(t.norm, 1e-300))) for t in made)])
        values, *slopes = [table.norm for table in made]
        K, Theta = next_layer(hyper[layer], values, slopes[0] if slopes else 0.0, Theta)
        flow.append((K, Theta))
    Ks, Thetas = (np.stack(column) for column in zip(*flow, strict=True))
    return Diagonal(Ks, Thetas, tables, error)


@partial(jax.jit, static_argnames=("closed", "with_theta"))
def _closed_diagonal(closed, with_theta: bool, hyper: Hyper, gram):
    def step(kernels, hyper):
        K, Theta = kernels
        slopes = closed.pair(1, 1, K, K, K) if with_theta else 0.0
        kernels = next_layer(hyper, closed.pair(0, 0, K, K, K), slopes, Theta)
        return kernels, kernels

    start = first_layer(hyper[0], gram)
    _, above = jax.lax.scan(step, start, hyper[1:])
    return [jnp.concatenate([first[None], rest]) for first, rest in zip(start, above, strict=True)]
