"""Networks drawn at random, the pass forward and the pass backward, and what one network says about K and Θ.

Network number i of a seed always has the same parameters: its random key depends on (seed, i) alone. Parameters are a
list with one entry for each layer that has any.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.experiments.layer_passes import apply, contribution, draw, has_parameters, pass_on, with_variances
from widthwise.network import Dense, Elementwise, Layer, Network, WeightLayer
from widthwise.network.layered import parameter_count
from widthwise.network.layers.normalisation import Normalisation

#: One entry for each layer that has parameters.
Parameters = list[Any]
#: Marks keys of single layers; as a number it is beyond all numbers that a network's own key is asked for.
_LAYER_KEY = 0x5EED_1000


def network_key(seed, index):
    """The random key of one network."""
    return jax.random.fold_in(jax.random.key(seed), index)


def with_parameters(net: Network) -> list[Layer]:
    """The layers of a network that have parameters."""
    return [step for step in net.steps if has_parameters(step)]


@lru_cache(maxsize=64)
def drawn_alike(net: Network) -> Network:
    """A network with the same parameters whose program for drawing them serves other activations; see `on_device`."""
    kept = [layer for layer in net.layers if not isinstance(layer, Elementwise | Normalisation)]
    return on_device(Network(kept) if net.positions == 0 else net)


@lru_cache(maxsize=64)
def on_device(net: Network) -> Network:
    """The same with its numbers where programs run: not sent there again with every call."""
    return jax.tree.map(jnp.asarray, net)


def sample_parameters(net: Network, key, initialisation: tuple[str, ...] | None = None) -> Parameters:
    """Weights and biases with the variances of theory §1; `initialisation` names the distribution of each dense layer.

    >>> from widthwise.network import MLP
    >>> layers = sample_parameters(MLP([2, 8, 1], "tanh"), network_key(0, 0), ("sparse", "gaussian"))
    >>> [int(row) for row in (layers[0].W != 0).sum(axis=1)]
    [1, 1, 1, 1, 1, 1, 1, 1]
    """
    names, parameters = iter(initialisation or ()), []
    # one call for the numbers of all layers, since each takes a tenth of a second to compile; layers of other
    # initialisations do not use theirs
    normal = _normal_numbers(key, parameter_count(net))
    for position, (step, signal) in enumerate(zip(net.steps, net.step_signals, strict=True)):
        if isinstance(step, WeightLayer):
            size = step.fan_in * step.outputs
            W, b, normal = jnp.split(normal, (size, size + step.outputs))
            name = next(names, "gaussian")
            if name == "gaussian":
                parameters.append(with_variances(step, W.reshape(step.outputs, step.fan_in), b))
            else:
                parameters.append(draw(step, _layer_keys(key, position), signal.width, name))
        elif has_parameters(step):
            parameters.append(draw(step, _layer_keys(key, position), signal.width, "gaussian"))
    return parameters


def _normal_numbers(key, count: int):
    """`jax.random.normal`, in a loop over two halves: else XLA compiles the inverse of erf once for every layer."""
    uniform = jax.random.uniform(key, (count,), minval=np.nextafter(-1.0, 0.0), maxval=1.0)
    halves = jnp.pad(uniform, (0, count % 2)).reshape(2, -1)
    return np.sqrt(2.0) * jax.lax.map(jax.lax.erf_inv, halves).ravel()[:count]


def _layer_keys(key, position: int):
    return jax.random.split(jax.random.fold_in(key, _LAYER_KEY + position))


def forward(net: Network, parameters: Parameters, X) -> tuple[list[jax.Array], list[jax.Array]]:
    """Inputs and outputs of the layers with parameters, each (inputs, neurons); the last output is the network's."""
    return _forward_with_nudges(net, parameters, X, [0.0] * len(parameters))[1]


def output_rows(net: Network, parameters: Parameters, X) -> jax.Array:
    """z, one row per input; outputs at all positions in a row where there are any."""
    return _forward_with_nudges(net, parameters, X, [0.0] * len(parameters))[0]


def mean_squares(net: Network, parameters: Parameters, X) -> list[float]:
    """(1/n) Σ z² over neurons, inputs and positions, behind each reported layer, by one pass.

    >>> from widthwise.network import MLP
    >>> net = MLP([2, 4, 1], "relu")
    >>> len(mean_squares(net, sample_parameters(net, network_key(0, 0)), jnp.ones((3, 2))))
    2
    """
    s, branches, found, own = X, [], [], iter(parameters)
    for block in net.blocks:
        for step in block:
            s = apply(step, next(own), s) if has_parameters(step) else pass_on(step, None, s, branches)
        found.append(float((s**2).mean()))
    return found


def _forward_with_nudges(net: Network, parameters: Parameters, X, nudges: list):
    """z, and inputs and outputs of the layers with parameters, to whose outputs the nudges are added."""
    s, incoming, outgoing, branches = X, [], [], []
    own = iter(zip(parameters, nudges, strict=True))
    for step in net.steps:
        if has_parameters(step):
            here, nudge = next(own)
            incoming.append(s)
            s = apply(step, here, s) + nudge
            outgoing.append(s)
        else:
            s = pass_on(step, None, s, branches)
    return s.reshape(len(s), -1), (incoming, outgoing)


def backward(net: Network, parameters: Parameters, X):
    """z (a, i), inputs and outputs of the layers with parameters, and the signals δ = ∂z_ia/∂(output at a): (i, a, n).

    The one backward pass of the library: an input's output depends on its own nudges alone, so that one pull-back per
    output gives the signals at all inputs.
    """
    shapes = jax.eval_shape(lambda: forward(net, parameters, X)[1])
    nudges = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
    z, pull_back, (incoming, outgoing) = jax.vjp(
        lambda moved: _forward_with_nudges(net, parameters, X, moved), nudges, has_aux=True
    )
    one_each = jnp.broadcast_to(jnp.eye(z.shape[1], dtype=z.dtype)[:, None, :], (z.shape[1], *z.shape))
    return z, incoming, outgoing, jax.vmap(pull_back)(one_each)[0]


def output_kernel(net: Network, parameters: Parameters, X):
    """Ĝ of a network that ends with a dense layer, else the mean of z z over outputs, which has the same mean.

    Outputs at equal positions count, and are averaged over.
    """
    if isinstance(net.layers[-1], Dense) and net.signals[-1].positions in (None, 0):
        return conditional_kernel(net, forward(net, parameters, X)[0])
    z = output_rows(net, parameters, X)
    return z @ z.T / z.shape[1]


def conditional_kernel(net: Network, incoming):
    """Ĝ_ab = C_b + (C_W/n) Σ_j σ_ja σ_jb: E[z z] of the last layer given the ones below (theory §1).

    Its mean is that of z z, with far less scatter.
    """
    last = net.layers[-1]
    assert isinstance(last, Dense)
    return last.C_b + last.C_W / last.inputs * (incoming[-1] @ incoming[-1].T)


def tangent_kernel(net: Network, parameters: Parameters, X):
    """Ĥ_ii;ab averaged over outputs i (theory §3), layer by layer: no Jacobian of the parameters is stored."""
    _, incoming, _, signals = backward(net, parameters, X)
    total = jnp.zeros((len(X), len(X)))
    for layer, own, s, delta in zip(with_parameters(net), parameters, incoming, signals, strict=True):

        def traced(one, layer=layer, own=own, s=s):
            return contribution(layer, own, s, one[None], s, one[None])[0, :, 0, :]

        total = total + jnp.mean(jax.vmap(traced)(delta), axis=0)
    return total
