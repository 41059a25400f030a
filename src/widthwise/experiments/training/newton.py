"""One step along λJᵀ that fits the training data (theory §8)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from widthwise.decompositions import eigh
from widthwise.experiments.sampler import Parameters
from widthwise.experiments.tangent import added, kernel, outputs, pull, tangent
from widthwise.experiments.training.flows import Trained
from widthwise.network import Network


def newton_step(net: Network, layers: Parameters, X, y, tolerance, max_steps) -> Trained:
    """θ − λJᵀa with J at the start and the a that solves z(θ − λJᵀa) = y, found by a → a + Ĥ⁻¹(z − y). y is (i, a).

    >>> from widthwise.experiments.sampler import network_key, sample_parameters
    >>> from widthwise.network import MLP
    >>> net, X, y = MLP([2, 32, 1], "tanh"), jnp.array([[1.0, 0.2]]), jnp.array([[0.7]])
    >>> end = newton_step(net, sample_parameters(net, network_key(0, 0)), X, y, 1e-9, 100)
    >>> bool(abs(outputs(net, end.layers, X)[0, 0] - 0.7) < 1e-9)
    True
    """
    at = tangent(net, layers, X)
    values, vectors = eigh(kernel(at).reshape(y.size, y.size))
    # directions that the network cannot move in are left alone
    there = values > 10.0 * y.size * jnp.finfo(y.dtype).eps * values[-1]
    inverse = (vectors * jnp.where(there, 1.0 / jnp.where(there, values, 1.0), 0.0)) @ vectors.T

    def stepped(a):
        return added(layers, pull(net, at, a), -1.0)

    def unfinished(state):
        _, error, steps = state
        size = jnp.max(jnp.abs(error))
        return (size >= tolerance) & (steps < max_steps) & jnp.isfinite(size)

    def correct(state):
        a, error, steps = state
        a = a + (inverse @ error.ravel()).reshape(y.shape)
        return a, outputs(net, stepped(a), X) - y, steps + 1

    start = jnp.zeros_like(y), at.z - y, 0
    a, error, steps = jax.lax.while_loop(unfinished, correct, start)
    return Trained(stepped(a), steps, jnp.max(jnp.abs(error)) < tolerance)
