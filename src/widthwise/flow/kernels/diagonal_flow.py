"""The flow of every input with itself: a short recursion that all pairs need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.flow.kernels.equal_layers import EqualLayers, over_equal, runs_of
from widthwise.flow.kernels.layer_series import InputTables
from widthwise.gaussian.kernel_rules import Pair, kernel_rule
from widthwise.gaussian.pair import closed_pair
from widthwise.network import Network


@dataclass(frozen=True)
class Diagonal:
    """Every input with itself: K and Θ (layers, inputs).

    `entering` is K at the entrance of every kind of layer: run by run, place by place (blocks, inputs), on the closed
    route; layer by layer (inputs,) on the generic one, where `tables` holds what series need, by position.
    """

    K: np.ndarray
    Theta: np.ndarray
    entering: Any
    tables: dict[int, InputTables]
    error: float


def is_closed(net: Network) -> bool:
    """Whether every activation has a closed form."""
    return all(sigma.closed is not None for sigma in net.activations)


def diagonal_flow(net: Network, X: np.ndarray, with_theta: bool = True) -> Diagonal:
    """K_aa and Θ_aa at every layer, in float64."""
    gram = np.einsum("ai,ai->a", X, X) / net.widths[0]
    if is_closed(net):
        K, Theta, entering = _closed_diagonal(runs_of(net.layers), gram, with_theta)
        return Diagonal(np.asarray(K), np.asarray(Theta), jax.tree.map(np.asarray, entering), {}, 1e-15)
    K, Theta, kept, entering, tables = gram, np.zeros_like(gram), [], [], {}
    for position, layer in enumerate(net.layers):
        entering.append(K)
        norms = _Norms(K, with_theta)
        K, Theta = kernel_rule(layer, Pair(K, K, K, Theta, norms))
        tables |= {position: norms.tables} if norms.tables else {}
        if layer.numbered:
            kept.append((K, np.broadcast_to(Theta, K.shape)))
    Ks, Thetas = (np.stack(column) for column in zip(*kept, strict=True))
    error = max((made.error(with_theta) for made in tables.values()), default=0.0)
    return Diagonal(Ks, Thetas, entering, tables, error)


class _Norms:
    """⟨σ^(p)²⟩ of every input, from tables that are kept."""

    def __init__(self, K: np.ndarray, with_theta: bool):
        self.K, self.with_theta = K, with_theta
        self.tables: InputTables | None = None

    def __call__(self, activation: Activation, p: int) -> Any:
        if p and not self.with_theta:
            return 0.0
        if activation.closed is not None:
            return np.asarray(closed_pair(activation.closed, p, p, self.K, self.K, self.K))
        self.tables = self.tables or InputTables(activation, self.K)
        return self.tables.get(p).norm


@partial(jax.jit, static_argnames="with_theta")
def _closed_diagonal(runs: tuple[EqualLayers, ...], gram, with_theta: bool):
    def step(kernels, block):
        K, Theta = kernels
        entering = []
        for layer in block:
            entering.append(K)
            K, Theta = kernel_rule(layer, closed_pair_of(K, K, K, Theta, with_theta))
        return (K, Theta), ((K, Theta), entering)

    kernels, kept, entering = (gram, jnp.zeros_like(gram)), [], []
    for run in runs:
        kernels, (passed, entered) = over_equal(step, kernels, run)
        kept.append(passed)
        entering.append(entered)
    K, Theta = (jnp.concatenate(column) for column in zip(*kept, strict=True))
    return K, Theta, entering


def closed_pair_of(K_aa, K_ab, K_bb, Theta, with_theta: bool) -> Pair:
    """A pair whose expectations are closed forms; without Θ, none of σ'."""

    def mean(activation: Activation, p: int) -> Any:
        assert activation.closed is not None
        return activation.closed.pair(p, p, K_aa, K_ab, K_bb) if with_theta or not p else jnp.zeros_like(K_ab)

    return Pair(K_aa, K_ab, K_bb, Theta, mean)
