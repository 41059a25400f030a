"""Each kind of layer on a real network: how its parameters are drawn, what it does to activations, how it learns.

    draw            parameters of a layer, from two keys and the name of an initialisation; only kinds that have any
    apply           activations behind a layer (inputs, positions…, features)
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
import numpy as np

from widthwise.errors import InvalidInput
from widthwise.experiments.initialisations import INITIALISATIONS
from widthwise.network.layers.affine import Affine
from widthwise.network.layers.attention import Attention
from widthwise.network.layers.base import Layer
from widthwise.network.layers.conv import Conv
from widthwise.network.layers.dense import Dense, WeightLayer
from widthwise.network.layers.dropout import Dropout
from widthwise.network.layers.elementwise import Elementwise
from widthwise.network.layers.normalisation import Normalisation
from widthwise.network.layers.parallel import Merge, Switch
from widthwise.network.layers.pooling import AvgPool, Flatten, GlobalAvgPool, GlobalSumPool, Pool
from widthwise.network.layers.residual import Fork, Join
from widthwise.network.layers.windows import Windowed


class GainAndShift(NamedTuple):
    """Parameters of a learned gain and shift, each (neurons,)."""

    gain: jax.Array
    shift: jax.Array


class Weights(NamedTuple):
    """Parameters of a dense layer: W (outputs, inputs) and b (outputs,); or anything in their layout.

    Those of a convolution are the same on windows, whose entries come first and channels last: W (outputs, fan-in).
    """

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
def pass_on(layer: Layer, parameters: Any, s, branches: list[list[jax.Array]]) -> jax.Array:
    """`apply`, for kinds that also read or add to the activations where branches began, and where they ended."""
    return apply(layer, parameters, s)


@singledispatch
def learning_rates(layer: Layer) -> Any:
    """λ, one number for each array of the parameters."""
    raise _unknown(layer, "learning_rates")


@singledispatch
def contribution(layer: Layer, parameters: Any, s, signals, s2, signals2) -> jax.Array:
    """Σ λ (∂z_ia/∂θ)(∂z_jb/∂θ) over the layer's parameters θ, on (i, a, j, b).

    s (a, incoming) and signals (i, a, outgoing) = ∂z_ia/∂(output of the layer at a), with positions before the
    features where there are any; the same for b. By default the parameters are moved along λ ∂z_jb/∂θ, one (j, b) at a
    time.
    """

    def at(p, one):
        return apply(layer, p, one[None])[0]

    def moved(one, signal):
        gradient = jax.vjp(lambda p: at(p, one), parameters)[1](signal)[0]
        step = jax.tree.map(lambda rate, g: rate * g, learning_rates(layer), gradient)
        change = jax.jvp(lambda p: apply(layer, p, s), (parameters,), (step,))[1]
        return jnp.einsum("iaf,af->ia", _in_a_row(signals, 2), _in_a_row(change, 1))

    return jnp.transpose(jax.vmap(jax.vmap(moved), (None, 0))(s2, signals2), (2, 3, 0, 1))


def _in_a_row(values, axes: int):
    """All axes behind the first few in one."""
    return values.reshape(*values.shape[:axes], -1)


@draw.register
def _(layer: WeightLayer, keys: Sequence[Any], incoming: int | None, initialisation: str) -> Weights:
    unit = INITIALISATIONS[initialisation]
    W, b = unit.weights(keys[0], (layer.outputs, layer.fan_in)), unit.biases(keys[1], (layer.outputs,))
    return with_variances(layer, W, b)


def with_variances(layer: WeightLayer, W, b) -> Weights:
    """Weights and biases of a dense layer or a convolution from numbers of variance one."""
    return Weights(jnp.sqrt(layer.C_W / layer.fan_in) * W, jnp.sqrt(layer.C_b) * b)


@apply.register
def _(layer: Dense, parameters: Weights, s) -> jax.Array:
    return s @ parameters.W.T + parameters.b


@apply.register
def _(layer: Conv, parameters: Weights, s) -> jax.Array:
    return windows_of(layer, s) @ parameters.W.T + parameters.b


def windows_of(layer: Windowed, s) -> jax.Array:
    """What stands in every window: (inputs, positions…, entries × channels)."""
    parts = list(window_entries(layer, s))
    return jnp.concatenate(parts, axis=-1)


def window_entries(layer: Windowed, s):
    """The activations at one entry of every window after the other, each (inputs, positions…, channels)."""
    shape = s.shape[1:-1]
    slides, counts = layer.slides(shape), layer.positions_behind(shape)
    ends = [(0, 0), *((slide.before, slide.after) for slide in slides), (0, 0)]
    padded = jnp.pad(s, ends, mode="wrap" if slides[0].wraps else "constant")
    for offset in layer.offsets:
        begins = [slide.dilation * entry for slide, entry in zip(slides, offset, strict=True)]
        parts = (slice(at, at + (n - 1) * slide.stride + 1, slide.stride)
                 for at, n, slide in zip(begins, counts, slides, strict=True))  # fmt: skip
        yield padded[(slice(None), *parts)]


@learning_rates.register
def _(layer: WeightLayer) -> Weights:
    return Weights(layer.lambda_W / layer.fan_in, layer.lambda_b)  # pyright: ignore[reportArgumentType]


@contribution.register
def _(layer: WeightLayer, parameters: Weights, s, signals, s2, signals2) -> jax.Array:
    if s.ndim == 2:
        return jnp.einsum("ab,ian,jbn->iajb", features(layer, s, s2), signals, signals2)
    (rows, own), (rows2, own2) = (_at_positions(layer, *both) for both in ((s, signals), (s2, signals2)))
    # ∂z_ia/∂W = Σ_p δ_iap s_ap: products of those, or of δ and of s at all pairs of positions, whichever is smaller
    gradient = len(own) * len(s) * layer.outputs * layer.fan_in
    if own.shape[0] * own.shape[1] * own.shape[2] * np.prod(own2.shape[:3]) < 2 * gradient:
        shared = jnp.einsum("apf,bqf->apbq", rows, rows2)
        weights = jnp.einsum("iapn,jbqn,apbq->iajb", own, own2, shared, optimize=[(0, 1), (0, 1)])
    else:
        G, G2 = (jnp.einsum("iapn,apf->ianf", *both) for both in ((own, rows), (own2, rows2)))
        weights = jnp.einsum("ianf,jbnf->iajb", G, G2)
    biases = jnp.einsum("ian,jbn->iajb", own.sum(axis=2), own2.sum(axis=2))
    return layer.lambda_W / layer.fan_in * weights + layer.lambda_b * biases


def _at_positions(layer: WeightLayer, s, signals) -> tuple[jax.Array, jax.Array]:
    """What every neuron reads (inputs, positions, fan-in), and signals (i, inputs, positions, outputs)."""
    rows = windows_of(layer, s) if isinstance(layer, Windowed) else s
    signals = signals.reshape(*signals.shape[:2], -1, signals.shape[-1])
    return rows.reshape(len(rows), -1, rows.shape[-1]), signals


@apply.register
def _(layer: Pool, parameters: None, s) -> jax.Array:
    total = sum(window_entries(layer, s), jnp.zeros(()))
    if not layer.averages:
        return total
    if isinstance(layer, AvgPool) and not layer.padding_counts:
        return total / sum(window_entries(layer, jnp.ones((1, *s.shape[1:-1], 1))), jnp.zeros(()))
    return total / layer.size


@apply.register
def _(layer: GlobalAvgPool, parameters: None, s) -> jax.Array:
    return s.mean(axis=tuple(range(1, s.ndim - 1)))


@apply.register
def _(layer: GlobalSumPool, parameters: None, s) -> jax.Array:
    return s.sum(axis=tuple(range(1, s.ndim - 1)))


@apply.register
def _(layer: Flatten, parameters: None, s) -> jax.Array:
    return s.reshape(len(s), -1)


@draw.register
def _(layer: Dropout, keys: Sequence[Any], incoming: int | None, initialisation: str) -> jax.Array:
    # the key itself as exact numbers: masks have the shape of what comes, and nothing of them is learned
    return jax.random.key_data(keys[0]).astype(float)


@apply.register
def _(layer: Dropout, parameters: jax.Array, s) -> jax.Array:
    key = jax.random.wrap_key_data(jax.lax.stop_gradient(parameters).astype(jnp.uint32))
    kept = jax.random.uniform(key, s.shape) >= layer.rate
    return jnp.where(kept, s / (1.0 - layer.rate), 0.0)


@learning_rates.register
def _(layer: Dropout) -> float:
    return 0.0


@contribution.register
def _(layer: Dropout, parameters: jax.Array, s, signals, s2, signals2) -> jax.Array:
    return jnp.zeros((*signals.shape[:2], *signals2.shape[:2]))


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
    if s.ndim > 2:
        (G, g), (G2, g2) = (
            (_over_positions(own * one, 2), _over_positions(own, 2)) for one, own in ((s, signals), (s2, signals2))
        )
        gained = layer.lambda_gain * jnp.einsum("ian,jbn->iajb", G, G2)
        return gained + layer.lambda_shift * jnp.einsum("ian,jbn->iajb", g, g2)
    gained = layer.lambda_gain * jnp.einsum("ian,an,jbn,bn->iajb", signals, s, signals2, s2)
    return gained + layer.lambda_shift * jnp.einsum("ian,jbn->iajb", signals, signals2)


class AttentionWeights(NamedTuple):
    """Keys, queries, values (heads, inputs, width), output (outputs, heads × values), b; the key of random vectors."""

    keys: jax.Array
    queries: jax.Array
    values: jax.Array
    output: jax.Array
    b: jax.Array
    positions: jax.Array


@draw.register
def _(layer: Attention, keys: Sequence[Any], incoming: int | None, initialisation: str) -> AttentionWeights:
    (key_width, value_width), normal = layer.sizes, jax.random.normal
    k = jax.random.split(keys[0], 6)
    scale, heads = layer.inputs**-0.5, layer.heads
    strength = layer.C_QK ** (0.5 if layer.scaling == "1/n" else 0.25)
    return AttentionWeights(
        scale * strength * normal(k[0], (heads, layer.inputs, key_width)),
        scale * strength * normal(k[1], (heads, layer.inputs, key_width)),
        scale * normal(k[2], (heads, layer.inputs, value_width)),
        jnp.sqrt(layer.C_W / (heads * value_width)) * normal(k[3], (layer.outputs, heads * value_width)),
        jnp.sqrt(layer.C_b) * normal(k[4], (layer.outputs,)),
        jax.random.key_data(k[5]).astype(float),
    )


@apply.register
def _(layer: Attention, parameters: AttentionWeights, s) -> jax.Array:
    rows = s.reshape(len(s), -1, s.shape[-1])
    read = rows + _position_vectors(layer, parameters.positions, s.shape[1:])
    keys = jnp.einsum("apc,hck->ahpk", read, parameters.keys)
    tied = layer.scaling == "1/n"
    queries = keys if tied else jnp.einsum("apc,hck->ahpk", read, parameters.queries)
    G = jnp.einsum("ahpk,ahrk->ahpr", queries, keys) / layer.sizes[0] ** (1.0 if tied else 0.5)
    shapes = {"identity": lambda G: G, "softmax": jax.nn.softmax, "relu": jax.nn.relu, "abs": jnp.abs}
    values = jnp.einsum("apc,hcv->ahpv", read if layer.in_values else rows, parameters.values)
    heads = jnp.einsum("ahpr,ahrv->aphv", shapes[layer.mechanism](G), values)
    z = heads.reshape(*rows.shape[:2], -1) @ parameters.output.T + parameters.b
    return z.reshape(*s.shape[:-1], layer.outputs)


def _position_vectors(layer: Attention, key, shape: tuple[int, ...]) -> jax.Array:
    """Random vectors (positions, channels) with covariance positional e^{−distance/length}, which are not learned."""
    grid = jnp.stack(jnp.meshgrid(*map(jnp.arange, shape[:-1]), indexing="ij"), axis=-1).reshape(-1, len(shape) - 1)
    distance = jnp.sqrt(((grid[:, None] - grid[None]) ** 2).sum(axis=-1).astype(float))
    far = jnp.exp(-distance / jnp.where(layer.length > 0.0, layer.length, 1.0))
    root = jnp.linalg.cholesky(jnp.where(layer.length > 0.0, far, jnp.eye(len(grid))))
    bits = jax.random.wrap_key_data(jax.lax.stop_gradient(key).astype(jnp.uint32))
    return jnp.sqrt(layer.positional) * root @ jax.random.normal(bits, (len(grid), shape[-1]))


@learning_rates.register
def _(layer: Attention) -> AttentionWeights:
    _, value_width = layer.sizes
    of_keys = layer.lambda_QK * (layer.C_QK if layer.scaling == "1/n" else jnp.sqrt(layer.C_QK)) / layer.inputs
    of_values, of_output = layer.lambda_V / layer.inputs, layer.lambda_W / (layer.heads * value_width)
    return AttentionWeights(of_keys, of_keys, of_values, of_output, layer.lambda_b, 0.0)  # pyright: ignore[reportArgumentType]


def _over_positions(values, axes: int):
    """The sum over positions, which stand between the first few axes and the features."""
    return values.sum(axis=tuple(range(axes, values.ndim - 1)))


@pass_on.register
def _(layer: Fork, parameters: None, s, branches: list[list[jax.Array]]) -> jax.Array:
    branches.append([s])
    return s


@pass_on.register
def _(layer: Join, parameters: None, s, branches: list[list[jax.Array]]) -> jax.Array:
    return layer.scale * branches.pop()[0] + s


@pass_on.register
def _(layer: Switch, parameters: None, s, branches: list[list[jax.Array]]) -> jax.Array:
    branches[-1].append(s)
    return s if layer.last else branches[-1][0]


@pass_on.register
def _(layer: Merge, parameters: None, s, branches: list[list[jax.Array]]) -> jax.Array:
    _, first, *others = branches.pop()
    if layer.join == "concatenate":
        return jnp.concatenate([first, *others], axis=-1)
    for one in others:
        first = first * one if layer.join == "product" else first + one
    return first


def features(layer: WeightLayer, s, s2) -> jax.Array:
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
