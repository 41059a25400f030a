"""Tiles of pairs flowing through all layers: K and, if wanted, Θ for inputs a along the rows, b along the columns."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.flow.kernels.diagonal_flow import Diagonal, closed_pair_of
from widthwise.flow.kernels.equal_layers import EqualLayers, over_equal, runs_of
from widthwise.flow.kernels.layer_series import LayerSeries
from widthwise.gaussian.kernel_rules import Pair, kernel_rule
from widthwise.gaussian.pair import closed_pair
from widthwise.network import Network


class ClosedTiles:
    """All layers of a tile in one compiled program, by closed forms."""

    route, error = "closed form", 1e-14

    def __init__(self, net: Network, rows: Diagonal, columns: Diagonal, with_theta: bool, last_only: bool, dtype):
        self.runs = runs_of(net.layers, dtype)
        self.rows, self.columns = rows.entering, columns.entering
        self.options = {"with_theta": with_theta, "last_only": last_only}
        self.dtype = dtype

    def flow(self, gram: np.ndarray, a: slice, b: slice) -> list[np.ndarray]:
        variances = (_inputs_of(self.rows, a, self.dtype), _inputs_of(self.columns, b, self.dtype))
        return [
            np.asarray(block) for block in _closed_tile(self.runs, gram.astype(self.dtype), *variances, **self.options)
        ]


def _inputs_of(entering: Any, some: slice, dtype) -> Any:
    return jax.tree.map(lambda K: K[:, some].astype(dtype, copy=False), entering)


@partial(jax.jit, static_argnames=("with_theta", "last_only"))
def _closed_tile(runs: tuple[EqualLayers, ...], gram, K_aa, K_bb, with_theta: bool, last_only: bool):
    def step(kernels, entrance):
        K, Theta = kernels
        for layer, a, b in zip(*entrance, strict=True):
            K, Theta = kernel_rule(layer, closed_pair_of(a[:, None], K, b[None, :], Theta, with_theta))
        return (K, Theta), () if last_only else (K, Theta)

    kernels, kept = (gram, jnp.zeros_like(gram)), []
    for run in zip(runs, K_aa, K_bb, strict=True):
        kernels, passed = over_equal(step, kernels, run)
        kept.append(passed)
    if last_only:
        return [kernel[None] for kernel in kernels][: 1 + with_theta]
    return [jnp.concatenate(column) for column in zip(*kept, strict=True)][: 1 + with_theta]


class SeriesTiles:
    """Layer by layer, by closed form or Hermite series; quadrature for the pairs that the series does not reach."""

    def __init__(self, net: Network, rows: Diagonal, columns: Diagonal, with_theta: bool, last_only: bool, dtype):
        self.net, self.dtype, self.rows, self.columns = net, dtype, rows, columns
        self.with_theta, self.last_only = with_theta, last_only
        self.series = {
            position: LayerSeries(rows.tables[position], columns.tables[position]) for position in rows.tables
        }

    @property
    def error(self) -> float:
        return max((step.error for step in self.series.values()), default=0.0)

    @property
    def route(self) -> str:
        used = {route for step in self.series.values() for route in step.routes}
        if any(sigma.closed is not None for sigma in self.net.activations):
            used.add("closed form")
        return " and ".join(sorted(used)) or "input layer only"

    def flow(self, gram: np.ndarray, a: slice, b: slice) -> list[np.ndarray]:
        K, Theta, kept = gram, np.zeros_like(gram), []
        for position, layer in enumerate(self.net.layers):
            K_aa, K_bb = self.rows.entering[position][a, None], self.columns.entering[position][None, b]
            mean = partial(self._mean, position, (K_aa, K, K_bb), a, b)
            K, Theta = kernel_rule(layer, Pair(K_aa, K, K_bb, Theta, mean))
            if layer.numbered:
                kept = [(K, Theta)] if self.last_only else [*kept, (K, Theta)]
        return [np.stack(column).astype(self.dtype, copy=False) for column in zip(*kept, strict=True)][
            : 1 + self.with_theta
        ]

    def _mean(self, position: int, kernels: tuple[Any, Any, Any], a: slice, b: slice, activation: Activation, p: int):
        """⟨σ^(p)_a σ^(p)_b⟩ of a tile at the entrance of a layer."""
        if p and not self.with_theta:
            return 0.0
        if activation.closed is not None:
            return np.asarray(closed_pair(activation.closed, p, p, *kernels))
        return self.series[position].expectation(p, kernels[1], a, b)
