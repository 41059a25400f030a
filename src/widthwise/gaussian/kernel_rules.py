"""The infinite-width rule of each kind of layer, written once, for one pair of inputs (theory §2).

Between layers flows (K_ab, Θ_ab). A rule takes the `Pair` that comes into a layer and gives what leaves it. Whoever
runs the rules says how expectations are found: by closed form inside a compiled program, by series, all pairs at once.
A kind of your own is added with `kernel_rule.register`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

from widthwise.activations.closed_forms import by_gain
from widthwise.devices import library
from widthwise.errors import InvalidInput
from widthwise.network import Affine, Dense, Elementwise, Layer
from widthwise.network.layers.normalisation import Normalisation
from widthwise.network.layers.residual import Fork, Join


@dataclass
class Kept:
    """What rules keep for later ones, the latest last.

    `branches` are K_ab and Θ_ab where residual connections began that have not ended; `gains` the rates λ of learned
    gains whose part λ v_a v_b of Θ, which differs from neuron to neuron, has not met an average over neurons yet.
    """

    branches: list[tuple[Any, Any]] = field(default_factory=list)
    gains: list[Any] = field(default_factory=list)


#: ⟨σ^(p)_a σ^(p)_b⟩ of the pair, for an activation and p; with True after them ⟨σ^(p)_a⟩⟨σ^(p)_b⟩.
Expectations = Callable[..., Any]


@dataclass(frozen=True)
class Pair:
    """What comes into a layer: variances of both inputs, K_ab and Θ_ab, and expectations over N(0, K)."""

    K_aa: Any
    K_ab: Any
    K_bb: Any
    Theta: Any
    mean: Expectations
    kept: Kept = field(default_factory=Kept)


@singledispatch
def kernel_rule(layer: Layer, pair: Pair) -> tuple[Any, Any]:
    """(K, Θ) behind a layer.

    >>> kernel_rule(Dense(1, 8, C_b=0.5, C_W=2.0), Pair(1.0, 0.25, 1.0, 0.0, lambda sigma, p: None))
    (1.0, 1.25)
    """
    raise InvalidInput(
        "net",
        f"a layer {layer!r}, whose kind has no rule at infinite width",
        "kinds with a rule",
        f"Give it one with kernel_rule.register({type(layer).__name__}), or measure the network.",
    )


@kernel_rule.register
def _(layer: Dense, pair: Pair) -> tuple[Any, Any]:
    gained = pair.kept.gains.pop() * pair.K_ab if pair.kept.gains else 0.0
    return dense_step(layer, pair.K_ab, pair.Theta + gained)


def dense_step(layer: Any, Q, T) -> tuple[Any, Any]:
    """K = C_b + C_W Q and Θ = λ_b + λ_W Q + C_W T, with Q = ⟨σσ⟩ and T = ⟨σ'σ'⟩Θ, or Q = x·x'/n_0 and T = 0.

    `layer` has the four numbers: a `Dense` layer, or many stacked.
    """
    return dense_kernel(layer.C_b, layer.C_W, Q), dense_kernel(layer.lambda_b, layer.lambda_W, Q) + layer.C_W * T


def dense_kernel(C_b, C_W, Q) -> Any:
    """K = C_b + C_W Q behind a dense layer, Q = ⟨σσ⟩ of what comes in; with λ's, the layer's own part of Θ."""
    return C_b + C_W * Q


@kernel_rule.register
def _(layer: Elementwise, pair: Pair) -> tuple[Any, Any]:
    Q = pair.mean(layer.activation, 0)
    if layer.centred:
        Q = Q - pair.mean(layer.activation, 0, True)
    T = pair.mean(layer.activation, 1) * pair.Theta
    if pair.kept.gains:
        T = T + pair.kept.gains.pop() * pair.mean(by_gain(layer.activation), 0)
    return Q, T


@kernel_rule.register
def _(layer: Affine, pair: Pair) -> tuple[Any, Any]:
    before = pair.kept.gains.pop() if pair.kept.gains else 0.0
    pair.kept.gains.append(before + layer.lambda_gain)
    return pair.K_ab, pair.Theta + layer.lambda_shift


@kernel_rule.register
def _(layer: Normalisation, pair: Pair) -> tuple[Any, Any]:
    # what LayerNorm takes off is gone already: preactivations have no mean, and activations before it are marked
    square = (pair.K_aa + layer.epsilon) * (pair.K_bb + layer.epsilon)
    root = library(square).sqrt(square)
    return pair.K_ab / root, pair.Theta / root


@kernel_rule.register
def _(layer: Fork, pair: Pair) -> tuple[Any, Any]:
    pair.kept.branches.append((pair.K_ab, pair.Theta))
    return pair.K_ab, pair.Theta


@kernel_rule.register
def _(layer: Join, pair: Pair) -> tuple[Any, Any]:
    K, Theta = pair.kept.branches.pop()
    return layer.scale**2 * K + pair.K_ab, layer.scale**2 * Theta + pair.Theta
