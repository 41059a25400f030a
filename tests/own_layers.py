"""Kinds of layers that are not in the package, each with all that it means in one place."""

import jax.numpy as jnp
import numpy as np

from widthwise.experiments.layer_passes import apply, draw, learning_rates
from widthwise.gaussian.kernel_rules import kernel_rule
from widthwise.network import Layer, layer_kind, number


@layer_kind("mixing")
class Mixing(Layer):
    """A fixed orthogonal mixing of the neurons, times a gain."""

    gain: float = number(1.0)
    seed: int = 0

    no_order_one = "neurons behind a fixed mixing are not independent given the layers below"


@kernel_rule.register
def _(layer: Mixing, pair):
    return layer.gain**2 * pair.K_ab, layer.gain**2 * pair.Theta


@apply.register
def _(layer: Mixing, parameters, s):
    turned, _ = np.linalg.qr(np.random.default_rng(layer.seed).normal(size=(s.shape[1], s.shape[1])))
    return layer.gain * (s @ jnp.asarray(turned))


@layer_kind("trained gain")
class TrainedGain(Layer):
    """One factor per neuron, which starts at one and learns at the rate λ."""

    rate: float = number(1.0)


@kernel_rule.register
def _(layer: TrainedGain, pair):
    return pair.K_ab, pair.Theta + layer.rate * pair.K_ab


@draw.register
def _(layer: TrainedGain, keys, incoming, initialisation):
    return jnp.ones(incoming)


@apply.register
def _(layer: TrainedGain, parameters, s):
    return s * parameters


@learning_rates.register
def _(layer: TrainedGain):
    return layer.rate
