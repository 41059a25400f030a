"""Tiles of pairs flowing through all layers: K and, if wanted, Θ for inputs a along the rows, b along the columns."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.flow.kernels.diagonal_flow import Diagonal
from widthwise.flow.kernels.layer_series import LayerSeries
from widthwise.flow.kernels.layer_step import Hyper, first_layer, next_layer
from widthwise.network import MLP


class ClosedTiles:
    """All layers of a tile in one compiled loop, by the activation's closed form."""

    route, error = "closed form", 1e-14

    def __init__(self, net: MLP, rows: Diagonal, columns: Diagonal, with_theta: bool, last_only: bool, dtype):
        self.closed, self.hyper = net.activation.closed, Hyper.of(net)
        self.rows, self.columns = rows, columns
        self.options = {"with_theta": with_theta, "last_only": last_only}
        self.dtype = dtype

    def flow(self, gram: np.ndarray, a: slice, b: slice) -> list[np.ndarray]:
        arrays = (gram, self.rows.K[:, a], self.columns.K[:, b])
        arrays = [array.astype(self.dtype) for array in arrays]
        hyper = jax.tree.map(lambda value: value.astype(self.dtype), self.hyper)
        return [np.asarray(block) for block in _closed_tile(self.closed, hyper, *arrays, **self.options)]


@partial(jax.jit, static_argnames=("closed", "with_theta", "last_only"))
def _closed_tile(closed, hyper: Hyper, gram, K_aa, K_bb, with_theta: bool, last_only: bool):
    def step(kernels, layer):
        hyper, a, b = layer
        K, Theta = kernels
        values = closed.pair(0, 0, a[:, None], K, b[None, :])
        slopes = closed.pair(1, 1, a[:, None], K, b[None, :]) if with_theta else jnp.zeros_like(K)
        K, Theta = next_layer(hyper, values, slopes, Theta)
        return (K, Theta), () if last_only else (K, Theta)

    kernels = first_layer(hyper[0], gram)
    last, passed = jax.lax.scan(step, kernels, (hyper[1:], K_aa[:-1], K_bb[:-1]))
    if last_only:
        return [kernel[None] for kernel in last][: 1 + with_theta]
    return [jnp.concatenate([k[None], p]) for k, p in zip(kernels, passed, strict=True)][: 1 + with_theta]


class SeriesTiles:
    """Layer by layer, by Hermite series, with quadrature for the pairs that the series does not reach."""

    def __init__(self, net: MLP, rows: Diagonal, columns: Diagonal, with_theta: bool, last_only: bool, dtype):
        self.hyper, self.dtype = Hyper.of(net), dtype
        self.orders, self.last_only = (0, 1) if with_theta else (0,), last_only
        self.steps = [LayerSeries(a, b) for a, b in zip(rows.tables, columns.tables, strict=True)]

    @property
    def error(self) -> float:
        return max((step.error for step in self.steps), default=0.0)

    @property
    def route(self) -> str:
        used = {route for step in self.steps for route in step.routes}
        return " and ".join(sorted(used)) or "input layer only"

    def flow(self, gram: np.ndarray, a: slice, b: slice) -> list[np.ndarray]:
        K, Theta = first_layer(self.hyper[0], gram)
        kept = [(K, Theta)]
        for layer, step in enumerate(self.steps, start=1):
            values, *slopes = step.expectations(self.orders, K, a, b)
            K, Theta = next_layer(self.hyper[layer], values, slopes[0] if slopes else 0.0, Theta)
            kept = [(K, Theta)] if self.last_only else [*kept, (K, Theta)]
        return [np.stack(column).astype(self.dtype, copy=False) for column in zip(*kept, strict=True)][
            : len(self.orders)
        ]
