"""Every input with itself, through all layers: K_aa and Θ_aa, and what pairs of inputs read of their two inputs.

A pair never needs a third input, only its own two variances at the entrance of every layer (theory §2). So those flow
first, for all inputs at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.errors import InvalidInput
from widthwise.gaussian.hermite import SHORT_SERIES, HermiteTable, hermite_table
from widthwise.gaussian.kernel_rules import Kept, Pair, kernel_rule
from widthwise.gaussian.pair import closed_pair
from widthwise.network import Network
from widthwise.network.layers.base import Layer
from widthwise.network.layers.normalisation import Normalisation

#: Kernels whose products with each other are representable.
LARGEST_KERNEL = 1e150
_PRODUCTS = "products of two kernels must be representable"


@dataclass
class InputTables:
    """Hermite tables of a list of inputs at one layer, by order and length, made when first asked for."""

    activation: Activation
    K: np.ndarray
    made: dict[tuple[int, int], HermiteTable] = field(default_factory=dict)
    placed: dict[tuple[int, int], Any] = field(default_factory=dict)
    lock: Any = field(default_factory=Lock)

    def get(self, order: int, terms: int = SHORT_SERIES) -> HermiteTable:
        with self.lock:
            if (order, terms) not in self.made:
                self.made[order, terms] = hermite_table(self.activation, order, self.K, terms)
            return self.made[order, terms]

    def on_device(self, order: int, terms: int) -> Any:
        """Coefficients where jax computes."""
        table = self.get(order, terms)
        with self.lock:
            if (order, terms) not in self.placed:
                self.placed[order, terms] = jnp.asarray(table.coefficients)
            return self.placed[order, terms]

    def error(self, with_slopes: bool) -> float:
        """Of ⟨σ²⟩ and ⟨σ'²⟩, relative to them."""
        used = [self.get(order) for order in ((0, 1) if with_slopes else (0,))]
        return max(float(np.max(table.norm_error / np.maximum(table.norm, 1e-300))) for table in used)


@dataclass(frozen=True)
class Diagonal:
    """Every input with itself: K and Θ (layers, inputs), and K at the entrance of every step (inputs,).

    `tables` holds what series of pairs need, by position of the step and activation.
    """

    K: np.ndarray
    Theta: np.ndarray
    entering: list[np.ndarray]
    tables: dict[tuple[int, Activation], InputTables]
    error: float


def diagonal_flow(net: Network, X: np.ndarray, with_theta: bool = True) -> Diagonal:
    """K_aa and Θ_aa at every layer, in float64."""
    with np.errstate(over="ignore"):
        K = np.einsum("ai,ai->a", X, X) / net.widths[0]
    check_representable("x·x/n_0", K, 1)
    tables: dict[tuple[int, Activation], InputTables] = {}

    def norm(position: int, K: np.ndarray, activation: Activation, p: int, independent: bool = False) -> Any:
        """⟨σ^(p)²⟩ of every input, or ⟨σ^(p)⟩², from tables that are kept."""
        if p and not with_theta:
            return 0.0
        if activation.closed is not None:
            return closed_pair(activation.closed, p, p, K, 0.0 * K if independent else K, K)
        table = tables.setdefault((position, activation), InputTables(activation, K)).get(p)
        return table.coefficients[:, 0] ** 2 if independent else table.norm

    Theta, found, entering, position = np.zeros_like(K), [], [], 0
    for layer, block in enumerate(net.blocks, 1):
        kept = Kept()
        for step in block:
            entering.append(K)
            check_normalisable(step, K)
            K, Theta = kernel_rule(step, Pair(K, K, K, Theta, partial(norm, position, K), kept))
            check_representable("a kernel K", K, layer)
            position += 1
        check_representable("a tangent kernel Theta", Theta, layer)
        found.append((K, np.broadcast_to(Theta, K.shape)))
    Ks, Thetas = (np.stack(column) for column in zip(*found, strict=True))
    error = max((made.error(with_theta) for made in tables.values()), default=1e-15)
    return Diagonal(Ks, Thetas, entering, tables, error)


def check_representable(
    name: str, kernel: Any, layer: int, largest: float = LARGEST_KERNEL, reason: str = _PRODUCTS
) -> None:
    """Refuse a kernel of a layer beyond what the arithmetic that follows can hold."""
    beyond = ~(np.abs(kernel) <= largest)
    if np.any(beyond):
        raise InvalidInput(
            "net", f"{name} of {np.asarray(kernel)[beyond].flat[0]:.3g} at layer {layer}",
            f"at most {largest:.0e}: {reason}",
            "Reduce C_W, C_b, lambda_W, lambda_b or the size of the inputs; single_input takes one input of any size.",
        )  # fmt: skip


def check_normalisable(step: Layer, variance: np.ndarray) -> None:
    """Refuse what divides zero by zero."""
    if isinstance(step, Normalisation) and step.epsilon == 0.0 and np.any(variance == 0.0):
        raise InvalidInput(
            "X", f"input {int(np.argmin(variance))}, for which all is zero where {step!r} divides by its size",
            "inputs that are not zero there", "Give the normalisation an epsilon above zero, or C_b above zero.",
        )  # fmt: skip
