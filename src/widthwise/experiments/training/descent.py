"""Gradient descent and its relatives on one network: plain, in batches, with momentum, Adam (theory §8).

Written for parameters measured in units of √λ, in which the learning-rate tensor is one: for plain steps and for
momentum that is λ in front of the gradient. A batch of B of N inputs has its gradient multiplied by N/B, so that it
is the full gradient on average; each pass draws a new order of the inputs, and what does not fill a batch is left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widthwise.experiments.sampler import Parameters
from widthwise.experiments.tangent import gradient, outputs, rates
from widthwise.experiments.training.flows import Trained
from widthwise.network import SGD, Adam, GradientDescent, Momentum, Network

Descent = GradientDescent | SGD | Momentum | Adam


class Memory(NamedTuple):
    """Running averages of the gradient and of its square; None where a method has none."""

    first: Any
    second: Any


def remember(algorithm: Descent, layers: Parameters) -> Memory:
    """The memory at the start of training."""
    nothing = jax.tree.map(jnp.zeros_like, layers)
    first = nothing if isinstance(algorithm, Momentum | Adam) else None
    return Memory(first, nothing if isinstance(algorithm, Adam) else None)


def update(algorithm: Descent, memory: Memory, slope: Parameters, step) -> tuple[Parameters, Memory]:
    """The move in units of √λ that follows from a gradient in the same units, at step 0, 1, …

    >>> from widthwise.experiments.layer_passes import Weights
    >>> start = [Weights(jnp.zeros((1, 1)), jnp.zeros(1))]
    >>> slope = [Weights(jnp.full((1, 1), 3.0), jnp.full(1, -2.0))]
    >>> move, _ = update(Adam(0.1), remember(Adam(0.1), start), slope, 0)
    >>> round(float(move[0].W[0, 0]), 6), round(float(move[0].b[0]), 6)
    (-0.1, 0.1)
    """
    eta = algorithm.learning_rate
    if isinstance(algorithm, Momentum):
        first = jax.tree.map(lambda v, g: algorithm.momentum * v + g, memory.first, slope)
        return jax.tree.map(lambda v: -eta * v, first), Memory(first, None)
    if isinstance(algorithm, Adam):
        p, q = algorithm.beta1, algorithm.beta2
        first = jax.tree.map(lambda m, g: p * m + (1 - p) * g, memory.first, slope)
        second = jax.tree.map(lambda v, g: q * v + (1 - q) * g**2, memory.second, slope)
        grown, grown_square = 1 - p ** (step + 1.0), 1 - q ** (step + 1.0)

        def move(m, v):
            return -eta * (m / grown) / (jnp.sqrt(v / grown_square) + algorithm.epsilon)

        return jax.tree.map(move, first, second), Memory(first, second)
    return jax.tree.map(lambda g: -eta * g, slope), memory


class _DescentState(NamedTuple):
    layers: Parameters
    memory: Memory
    steps: Any
    passes: Any
    residual: Any


def descend(net: Network, layers: Parameters, X, y, algorithm: Descent, key, tolerance, max_steps) -> Trained:
    """Train one network for the algorithm's steps, or until every |z − y| < tolerance when it names none.

    Convergence is looked at once per pass through the data, and `key` orders the inputs of each pass. y is (i, a).

    >>> from widthwise.experiments.sampler import network_key, sample_parameters
    >>> from widthwise.network import MLP
    >>> net, X, y = MLP([2, 32, 1], "tanh"), jnp.array([[1.0, 0.2]]), jnp.array([[0.7]])
    >>> start, how = sample_parameters(net, network_key(0, 0)), GradientDescent(0.3)
    >>> end = jax.jit(lambda layers: descend(net, layers, X, y, how, network_key(0, 0), 1e-6, 1000))(start)
    >>> bool(end.converged), bool(abs(outputs(net, end.layers, X)[0, 0] - 0.7) < 1e-6)
    (True, True)
    """
    limit = max_steps if algorithm.steps is None else algorithm.steps
    size = min(getattr(algorithm, "batch_size", None) or len(X), len(X))
    batches, roots = len(X) // size, jax.tree.map(lambda rate: rate**0.5, rates(net))

    def one_step(rows, state: _DescentState) -> tuple[_DescentState, Any]:
        """A step on some inputs, and ε on them before it."""
        found, error = gradient(net, state.layers, X[rows], y[:, rows])
        slope = jax.tree.map(lambda root, g: len(X) / size * root * g, roots, found)
        move, memory = update(algorithm, state.memory, slope, state.steps)
        moved = jax.tree.map(lambda p, root, m: p + root * m, state.layers, roots, move)
        return state._replace(layers=moved, memory=memory, steps=state.steps + 1), error

    def one_pass(state: _DescentState) -> tuple[_DescentState, Any]:
        """All batches, and ε on all inputs before them."""
        if size == len(X):
            return one_step(slice(None), state)
        order = jax.random.permutation(jax.random.fold_in(key, state.passes), len(X))

        def batch(number, now: _DescentState) -> _DescentState:
            then, _ = one_step(jax.lax.dynamic_slice_in_dim(order, number * size, size), now)
            return jax.tree.map(lambda new, old: jnp.where(now.steps < limit, new, old), then, now)

        return jax.lax.fori_loop(0, batches, batch, state), outputs(net, state.layers, X) - y

    def advance(state: _DescentState) -> _DescentState:
        then, error = one_pass(state)
        then = then._replace(passes=state.passes + 1)
        if algorithm.steps is not None:
            return then
        # stop where the tolerance is met: with momentum, the next step may lead out again
        residual = jnp.max(jnp.abs(error))
        kept = jax.tree.map(lambda new, old: jnp.where(residual < tolerance, old, new), then, state)
        return kept._replace(residual=residual)

    def unfinished(state: _DescentState):
        # a number of steps is the same for all networks, so that side by side none waits to be masked
        going = state.steps < limit
        if algorithm.steps is not None:
            return going
        return going & jnp.isfinite(state.residual) & (state.residual >= tolerance)

    start = _DescentState(layers, remember(algorithm, layers), jnp.zeros((), int), 0, jnp.max(jnp.abs(y)) + tolerance)
    end = jax.lax.while_loop(unfinished, advance, start)
    residual = jnp.max(jnp.abs(outputs(net, end.layers, X) - y))
    reached = residual < tolerance if algorithm.steps is None else end.steps >= limit
    return Trained(end.layers, end.steps, reached)
