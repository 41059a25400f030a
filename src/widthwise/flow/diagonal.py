"""The flow of every input with itself: a short recursion that all pairs need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from widthwise.flow.layer_series import InputTables
from widthwise.flow.rules import Hyper, first_layer, next_layer
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
    hyper, closed = Hyper.of(net), net.activation.closed
    K, Theta = first_layer(hyper[0], np.einsum("ai,ai->a", X, X) / net.widths[0])
    Ks, Thetas, tables, error = [K], [Theta], [], 0.0
    for layer in range(1, net.depth):
        if closed is None:
            tables.append(InputTables(net.activation, K))
            made = [tables[-1].get(order) for order in ((0, 1) if with_theta else (0,))]
            values, *slopes = [table.norm for table in made]
            error = max([error, *(float(np.max(t.norm_error / np.maximum(t.norm, 1e-300))) for t in made)])
        else:
            values, *slopes = [np.asarray(_closed_diagonal(closed, order, K)) for order in range(1 + with_theta)]
        K, Theta = next_layer(hyper[layer], values, slopes[0] if slopes else 0.0, Theta)
        Ks.append(K)
        Thetas.append(Theta)
    return Diagonal(np.stack(Ks), np.stack(Thetas), tables, error)


@partial(jax.jit, static_argnames=("closed", "order"))
def _closed_diagonal(closed, order: int, K):
    return closed.pair(order, order, K, K, K)
