"""A network linearised at its parameters: J = ∂z/∂θ, λJᵀ and Ĥ = JλJᵀ, without J being stored (theory §1, §3).

Axes: i, j outputs; a, b inputs; neurons last.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from widthwise.experiments.layer_passes import apply, contribution, learning_rates
from widthwise.experiments.sampler import Parameters, backward, output_rows, with_parameters
from widthwise.network import Layer, Network
from widthwise.network.losses import SQUARED, Loss


class Tangent(NamedTuple):
    """The outputs z (i, a), and per layer with parameters: the layer, its parameters, s (a, incoming), δ (i, a, n)."""

    z: jax.Array
    layers: list[Layer]
    parameters: Parameters
    incoming: list[jax.Array]
    signals: list[jax.Array]


def outputs(net: Network, parameters: Parameters, X) -> jax.Array:
    """z (i, a)."""
    return output_rows(net, parameters, X).T


def tangent(net: Network, parameters: Parameters, X) -> Tangent:
    """The network linearised at its parameters, on the inputs X.

    >>> from widthwise.experiments.sampler import network_key, sample_parameters
    >>> from widthwise.network import MLP
    >>> net, X = MLP([2, 8, 3], "tanh"), jnp.array([[1.0, 0.2], [0.3, -0.5]])
    >>> at = tangent(net, sample_parameters(net, network_key(0, 0)), X)
    >>> at.z.shape, kernel(at).shape
    ((3, 2), (3, 2, 3, 2))
    """
    z, incoming, _, signals = backward(net, parameters, X)
    return Tangent(z.T, with_parameters(net), parameters, incoming, signals)


def restricted(at: Tangent, inputs: int) -> Tangent:
    """The same on the first few inputs."""
    return at._replace(
        z=at.z[:, :inputs], incoming=[s[:inputs] for s in at.incoming], signals=[d[:, :inputs] for d in at.signals]
    )


def push(at: Tangent, move: Parameters) -> jax.Array:
    """J·move, the change of the outputs to first order: (i, a)."""
    total = jnp.zeros_like(at.z)
    for layer, own, s, delta, step in zip(*at[1:], move, strict=True):
        change = jax.jvp(lambda p, layer=layer, s=s: apply(layer, p, s), (own,), (step,))[1]
        total = total + jnp.einsum("ia...,a...->ia", delta, change)
    return total


def pull(net: Network, at: Tangent, error) -> Parameters:
    """λJᵀ·error, error (i, a)."""
    found = []
    for layer, own, s, delta in zip(*at[1:], strict=True):
        back = jnp.einsum("ia...,ia->a...", delta, error)
        found.append(jax.vjp(lambda p, layer=layer, s=s: apply(layer, p, s), own)[1](back)[0])
    return scaled(net, found)


def kernel(at: Tangent) -> jax.Array:
    """Ĥ = JλJᵀ on (i, a, j, b) (theory §3)."""
    parts = [contribution(layer, own, s, d, s, d) for layer, own, s, d in zip(*at[1:], strict=True)]
    return sum(parts[1:], parts[0])


def gradient(net: Network, parameters: Parameters, X, y, loss: Loss = SQUARED) -> tuple[Parameters, jax.Array]:
    """Jᵀε, the gradient of the loss in the layout of the parameters, and ε = ∂ℓ/∂z (i, a); y is (i, a)."""
    z, pull_back = jax.vjp(lambda p: outputs(net, p, X), parameters)
    error = loss.slope(z, y)
    return pull_back(error)[0], error


def rates(net: Network) -> Parameters:
    """The learning-rate tensor λ, diagonal and equal within a group: λ_W/n_{l−1} and λ_b (theory §1)."""
    return [learning_rates(layer) for layer in with_parameters(net)]


def scaled(net: Network, move: Parameters) -> Parameters:
    """λ times a vector in parameter space."""
    return jax.tree.map(lambda rate, value: rate * value, rates(net), move)


def length(net: Network, move: Parameters) -> jax.Array:
    """√Σ move²/λ: the outputs at x move by at most √Ĥ_xx times this. Groups that do not learn do not count."""

    def square(rate, m):
        return jnp.where(rate > 0.0, jnp.sum(m**2) / jnp.where(rate > 0.0, rate, 1.0), 0.0)

    return jnp.sqrt(sum(jax.tree.leaves(jax.tree.map(square, rates(net), move)), jnp.zeros(())))


def added(parameters: Parameters, move: Parameters, factor=1.0) -> Parameters:
    return jax.tree.map(lambda p, m: p + factor * m, parameters, move)
