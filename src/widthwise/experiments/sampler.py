"""Networks drawn at random, and what one of them says about K and Θ.

Network number i of a seed always has the same parameters: its random key depends on (seed, i) alone.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from widthwise.experiments.initialisations import INITIALISATIONS
from widthwise.network import MLP


class Layer(NamedTuple):
    W: jax.Array
    b: jax.Array


def network_key(seed, index):
    """The random key of one network."""
    return jax.random.fold_in(jax.random.key(seed), index)


def sample_parameters(net: MLP, key, initialisation: tuple[str, ...] | None = None) -> list[Layer]:
    """Weights and biases with the variances of theory §1; `initialisation` names the distribution of each weight layer.

    >>> layers = sample_parameters(MLP([2, 8, 1], "tanh"), network_key(0, 0), ("sparse", "gaussian"))
    >>> [int(row) for row in (layers[0].W != 0).sum(axis=1)]
    [1, 1, 1, 1, 1, 1, 1, 1]
    """
    layers = []
    names = initialisation or ("gaussian",) * net.depth
    for fan_in, fan_out, C_b, C_W, name in zip(net.widths[:-1], net.widths[1:], net.C_b, net.C_W, names, strict=True):
        key, for_weights, for_biases = jax.random.split(key, 3)
        draw = INITIALISATIONS[name]
        W = jnp.sqrt(C_W / fan_in) * draw.weights(for_weights, (fan_out, fan_in))
        layers.append(Layer(W, jnp.sqrt(C_b) * draw.biases(for_biases, (fan_out,))))
    return layers


def forward(net: MLP, layers: list[Layer], X) -> tuple[list[jax.Array], list[jax.Array]]:
    """Inputs of every layer, and preactivations, each (inputs, neurons)."""
    incoming, preactivations = [X], []
    for layer in layers:
        preactivations.append(incoming[-1] @ layer.W.T + layer.b)
        incoming.append(net.activation(preactivations[-1]))
    return incoming[:-1], preactivations


def conditional_kernel(net: MLP, incoming):
    """Ĝ_ab = C_b + (C_W/n) Σ_j σ_ja σ_jb: E[z z] of the last layer given the ones below (theory §1).

    Its mean is that of z z, with far less scatter.
    """
    return net.C_b[-1] + net.C_W[-1] / net.n * (incoming[-1] @ incoming[-1].T)


def tangent_kernel(net: MLP, layers: list[Layer], incoming, preactivations):
    """Ĥ_ii;ab averaged over outputs i (theory §3), layer by layer: no Jacobian of the parameters is stored.

    Ĥ_ii;ab = Σ_l (λ_b + (λ_W/n_{l−1}) σ_a·σ_b) (δ_a·δ_b) with δˡ = ∂z_i/∂zˡ by back-propagation.
    """
    slope = net.activation.derivative(1)
    outputs, inputs = net.widths[-1], len(preactivations[-1])
    signal = jnp.broadcast_to(jnp.eye(outputs)[:, None, :], (outputs, inputs, outputs))
    total = jnp.zeros((inputs, inputs))
    for depth in reversed(range(net.depth)):
        fan_in = net.widths[depth]
        features = net.lambda_b[depth] + net.lambda_W[depth] / fan_in * (incoming[depth] @ incoming[depth].T)
        total = total + features * jnp.einsum("iak,ibk->ab", signal, signal) / outputs
        if depth:
            signal = (signal @ layers[depth].W) * slope(preactivations[depth - 1])
    return total
