"""Each kind of layer on a real network: how its parameters are drawn, what it does to activations, how it learns.

    draw            parameters of a layer, from two keys and the name of an initialisation; only kinds that have any
    apply           activations behind a layer (inputs, features)
    learning_rates  λ in the layout of the parameters (theory §1)
    contribution    its part of Ĥ_ij;ab (theory §3)
A kind of your own needs `apply`, and where it has parameters `draw` and `learning_rates` too: the last has a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widthwise.errors import InvalidInput
from widthwise.experiments.initialisations import INITIALISATIONS
from widthwise.network.layers.affine import Affine
from widthwise.network.layers.base import Layer
from widthwise.network.layers.dense import Dense
from widthwise.network.layers.elementwise import Elementwise
from widthwise.network.layers.normalisation import Normalisation
from widthwise.network.layers.residual import Fork, Join


class GainAndShift(NamedTuple):
    """Parameters of a learned gain and shift, each (neurons,)."""

    gain: jax.Array
    shift: jax.Array


class Weights(NamedTuple):
    """Parameters of a dense layer: W (outputs, inputs) and b (outputs,); or anything in their layout."""

    W: jax.Array
    b: jax.Array


@singledispatch
def draw(layer: Layer, keys: Sequence[Any], incoming: int | None, initialisation: str) -> Any:
    """Parameters of a layer that so many features come into."""
    raise _unknown(layer, "draw")


@singledispatch
def apply(layer: Layer, parameters: Any, s) -> jax.Array:
    """Activations behind a layer; `parameters` is None for a kind that has none."""
    raise _unknown(layer, "apply")


@singledispatch
def pass_on(layer: Layer, parameters: Any, s, branches: list[jax.Array]) -> jax.Array:
    """`apply`, for kinds that also read or add to the activations where residual connections began."""
    return apply(layer, parameters, s)


@singledispatch
def learning_rates(layer: Layer) -> Any:
    """λ, one number for each array of the parameters."""
    raise _unknown(layer, "learning_rates")


@singledispatch
def contribution(layer: Layer, parameters: Any, s, signals, s2, signals2) -> jax.Array:
    """Σ λ (∂z_ia/∂θ)(∂z_jb/∂θ) over the layer's parameters θ, on (i, a, j, b).

    s (a, incoming) and signals (i, a, outgoing) = ∂z_ia/∂(output of the layer at a); the same for b. By default the
    parameters are moved along λ ∂z_jb/∂θ, one (j, b) at a time.
    """

    def at(p, one):
        return apply(layer, p, one[None])[0]

    def moved(one, signal):
        gradient = jax.vjp(lambda p: at(p, one), parameters)[1](signal)[0]
        step = jax.tree.map(lambda rate, g: rate * g, learning_rates(layer), gradient)
        change = jax.jvp(lambda p: apply(layer, p, s), (parameters,), (step,))[1]
        return jnp.einsum("ian,an->ia", signals, change)

    return jnp.transpose(jax.vmap(jax.vmap(moved), (None, 0))(s2, signals2), (2, 3, 0, 1))


@draw.register
def _(layer: Dense, keys: Sequence[Any], incoming: int | None, initialisation: str) -> Weights:
    unit = INITIALISATIONS[initialisation]
    W, b = unit.weights(keys[0], (layer.outputs, layer.inputs)), unit.biases(keys[1], (layer.outputs,))
    return with_variances(layer, W, b)


def with_variances(layer: Dense, W, b) -> Weights:
    """Weights and biases of a dense layer from numbers of variance one."""
    return Weights(jnp.sqrt(layer.C_W / layer.inputs) * W, jnp.sqrt(layer.C_b) * b)


@apply.register
def _(layer: Dense, parameters: Weights, s) -> jax.Array:
    return s @ parameters.W.T + parameters.b


@learning_rates.register
def _(layer: Dense) -> Weights:
    return Weights(layer.lambda_W / layer.inputs, layer.lambda_b)  # pyright: ignore[reportArgumentType]


@contribution.register
def _(layer: Dense, parameters: Weights, s, signals, s2, signals2) -> jax.Array:
    return jnp.einsum("ab,ian,jbn->iajb", features(layer, s, s2), signals, signals2)


@apply.register
def _(layer: Elementwise, parameters: None, s) -> jax.Array:
    return layer.activation(s)


@apply.register
def _(layer: Normalisation, parameters: None, s) -> jax.Array:
    centred = s - jnp.mean(s, axis=-1, keepdims=True) if layer.centred else s
    return centred / jnp.sqrt(layer.epsilon + jnp.mean(centred**2, axis=-1, keepdims=True))


@draw.register
def _(layer: Affine, keys: Sequence[Any], incoming: int | None, initialisation: str) -> GainAndShift:
    assert incoming is not None
    return GainAndShift(jnp.ones(incoming), jnp.zeros(incoming))


@apply.register
def _(layer: Affine, parameters: GainAndShift, s) -> jax.Array:
    return parameters.gain * s + parameters.shift


@learning_rates.register
def _(layer: Affine) -> GainAndShift:
    return GainAndShift(layer.lambda_gain, layer.lambda_shift)  # pyright: ignore[reportArgumentType]


@contribution.register
def _(layer: Affine, parameters: GainAndShift, s, signals, s2, signals2) -> jax.Array:
    gained = layer.lambda_gain * jnp.einsum("ian,an,jbn,bn->iajb", signals, s, signals2, s2)
    return gained + layer.lambda_shift * jnp.einsum("ian,jbn->iajb", signals, signals2)


@pass_on.register
def _(layer: Fork, parameters: None, s, branches: list[jax.Array]) -> jax.Array:
    branches.append(s)
    return s


@pass_on.register
def _(layer: Join, parameters: None, s, branches: list[jax.Array]) -> jax.Array:
    return layer.scale * branches.pop() + s


def features(layer: Dense, s, s2) -> jax.Array:
    """λ_b + (λ_W/n) s_a·s_b of a dense layer."""
    return layer.lambda_b + layer.lambda_W / layer.inputs * (s @ s2.T)


def has_parameters(layer: Layer) -> bool:
    return draw.dispatch(type(layer)) is not draw.dispatch(object)


def _unknown(layer: Layer, what: str) -> InvalidInput:
    return InvalidInput(
        "net",
        f"a layer {layer!r}, whose kind cannot be sampled",
        f"kinds with `{what}` in widthwise.experiments.layer_passes",
        f"Register one: {what}.register({type(layer).__name__}).",
    )
