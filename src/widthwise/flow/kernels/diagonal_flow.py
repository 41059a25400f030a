"""The flow of every input with itself, a short recursion that all pairs need; and by closed forms that of all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.flow.kernels.hyper import EqualLayers, over_equal, runs_of
from widthwise.gaussian.hermite import SHORT_SERIES, HermiteTable, hermite_table
from widthwise.gaussian.kernel_rules import Pair, kernel_rule
from widthwise.gaussian.pair import closed_pair
from widthwise.network import Network


@dataclass
class InputTables:
    """Hermite tables of a list of inputs at one layer, by order and length, made when first asked for."""

    activation: Activation
    K: np.ndarray
    made: dict[tuple[int, int], HermiteTable] = field(default_factory=dict)

    def get(self, order: int, terms: int = SHORT_SERIES) -> HermiteTable:
        if (order, terms) not in self.made:
            self.made[order, terms] = hermite_table(self.activation, order, self.K, terms)
        return self.made[order, terms]

    def error(self, with_slopes: bool) -> float:
        """Of ⟨σ²⟩ and ⟨σ'²⟩, relative to them."""
        used = [self.get(order) for order in ((0, 1) if with_slopes else (0,))]
        return max(float(np.max(table.norm_error / np.maximum(table.norm, 1e-300))) for table in used)


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
        (K, *Theta), entering = jax.tree.map(np.asarray, closed_flow(runs_of(net.layers), gram, (), with_theta))
        return Diagonal(K, Theta[0] if with_theta else np.zeros_like(K), entering, {}, 1e-15)
    tables: dict[int, InputTables] = {}

    def norm(position: int, K: np.ndarray, activation: Activation, p: int) -> Any:
        """⟨σ^(p)²⟩ of every input, from tables that are kept."""
        if p and not with_theta:
            return 0.0
        if activation.closed is not None:
            return np.asarray(closed_pair(activation.closed, p, p, K, K, K))
        return tables.setdefault(position, InputTables(activation, K)).get(p).norm

    K, Theta, kept, entering = gram, np.zeros_like(gram), [], []
    for position, layer in enumerate(net.layers):
        entering.append(K)
        K, Theta = kernel_rule(layer, Pair(K, K, K, Theta, partial(norm, position, K)))
        if layer.numbered:
            kept.append((K, np.broadcast_to(Theta, K.shape)))
    Ks, Thetas = (np.stack(column) for column in zip(*kept, strict=True))
    error = max((made.error(with_theta) for made in tables.values()), default=0.0)
    return Diagonal(Ks, Thetas, entering, tables, error)


@partial(jax.jit, static_argnames=("with_theta", "last_only"))
def closed_flow(
    runs: tuple[EqualLayers, ...], gram, diagonals: Sequence[Any], with_theta: bool, last_only: bool = False
) -> tuple[list[Any], list[Any]]:
    """K and, if wanted, Θ (layers, …) of pairs by closed forms.

    `diagonals` are K of the inputs a and of the inputs b at the entrance of every layer, laid out like the pairs.
    Without them every input is paired with itself, and K at every entrance comes along.
    """

    def mean(K_aa, K_ab, K_bb, activation: Activation, p: int) -> Any:
        assert activation.closed is not None
        return activation.closed.pair(p, p, K_aa, K_ab, K_bb) if with_theta or not p else jnp.zeros_like(K_ab)

    def step(kernels, block):
        (K, Theta), entered = kernels, []
        for layer, *variances in zip(*block, strict=True):
            K_aa, K_bb = variances or (K, K)
            entered += [] if variances else [K]
            K, Theta = kernel_rule(layer, Pair(K_aa, K, K_bb, Theta, partial(mean, K_aa, K, K_bb)))
        return (K, Theta), ((() if last_only else (K, Theta)), entered)

    kernels, kept, entering = (gram, jnp.zeros_like(gram)), [], []
    for run in zip(runs, *diagonals, strict=True):
        kernels, (passed, entered) = over_equal(step, kernels, run)
        kept.append(passed)
        entering.append(entered)
    columns = [(kernel[None],) for kernel in kernels] if last_only else zip(*kept, strict=True)
    return [jnp.concatenate(column) for column in columns][: 1 + with_theta], entering
