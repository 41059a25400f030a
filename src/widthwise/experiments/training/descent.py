"""Gradient descent and its relatives on one network: plain, in batches, with momentum, Adam (theory §8).

Written for parameters measured in units of √λ, in which the learning-rate tensor is one: for plain steps and for
momentum that is λ in front of the gradient. A batch of B of N inputs has its gradient multiplied by N/B, so that it
is the full gradient on average; each step draws its batch anew.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widthwise.experiments.sampler import Parameters
from widthwise.experiments.tangent import gradient, outputs, rates
from widthwise.experiments.training.flows import Trained
from widthwise.network import SGD, Adam, GradientDescent, Momentum, Network
from widthwise.network.losses import SQUARED, Loss
from widthwise.network.schedules import rate_at

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
    eta = rate_at(algorithm.learning_rate, step)
    if isinstance(algorithm, Momentum):
        mu = algorithm.momentum
        first = jax.tree.map(lambda v, g: mu * v + g, memory.first, slope)
        ahead = jax.tree.map(lambda v, g: g + mu * v, first, slope) if algorithm.nesterov else first
        return jax.tree.map(lambda v: -eta * v, ahead), Memory(first, None)
    if isinstance(algorithm, Adam):
        p, q = algorithm.beta1, algorithm.beta2
        first = jax.tree.map(lambda m, g: p * m + (1 - p) * g, memory.first, slope)
        second = jax.tree.map(lambda v, g: q * v + (1 - q) * g**2, memory.second, slope)
        grown, grown_square = 1 - p ** (step + 1.0), 1 - q ** (step + 1.0)

        def move(m, v):
            return -eta * (m / grown) / (jnp.sqrt(v / grown_square) + algorithm.epsilon)

        return jax.tree.map(move, first, second), Memory(first, second)
    return jax.tree.map(lambda g: -eta * g, slope), memory


def decay_centre(algorithm: Any, start: Parameters) -> Parameters | None:
    """Where weight decay pulls the parameters, None where there is none."""
    if getattr(algorithm, "weight_decay", None) is None:
        return None
    return start if algorithm.decay_to == "initialisation" else jax.tree.map(jnp.zeros_like, start)


def _decayed(decay, slope, root, parameter, centre):
    """A gradient in units of √λ with that of ½ decay Σ(θ−centre)²/λ; groups that do not learn do not decay."""
    return slope + jnp.where(root > 0.0, decay * (parameter - centre) / jnp.where(root > 0.0, root, 1.0), 0.0)


class _DescentState(NamedTuple):
    layers: Parameters
    memory: Memory
    steps: Any
    residual: Any


def descend(
    net: Network, layers: Parameters, X, y, algorithm: Descent, key, tolerance, max_steps, loss: Loss = SQUARED
) -> Trained:
    """Train one network for the algorithm's steps, or until every |∂ℓ/∂z| < tolerance when it names none.

    Convergence is looked at once for as many steps as batches make up the data. `key` draws the batches; y is (i, a).

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
    centre, decay = decay_centre(algorithm, layers), getattr(algorithm, "weight_decay", None)

    def one_step(rows, state: _DescentState) -> tuple[_DescentState, Any]:
        """A step on some inputs, and ε on them before it."""
        found, error = gradient(net, state.layers, X[rows], y[:, rows], loss)
        slope = jax.tree.map(lambda root, g: len(X) / size * root * g, roots, found)
        if centre is not None:
            slope = jax.tree.map(partial(_decayed, decay), slope, roots, state.layers, centre)
        move, memory = update(algorithm, state.memory, slope, state.steps)
        moved = jax.tree.map(lambda p, root, m: p + root * m, state.layers, roots, move)
        return state._replace(layers=moved, memory=memory, steps=state.steps + 1), error

    def one_pass(state: _DescentState) -> tuple[_DescentState, Any]:
        """As many batches as make up the data, and ε on all inputs before them."""
        if size == len(X):
            return one_step(slice(None), state)

        def batch(_, now: _DescentState) -> _DescentState:
            drawn = jax.random.permutation(jax.random.fold_in(key, now.steps), len(X))[:size]
            then, _ = one_step(drawn, now)
            return jax.tree.map(lambda new, old: jnp.where(now.steps < limit, new, old), then, now)

        error = loss.slope(outputs(net, state.layers, X), y)
        return jax.lax.fori_loop(0, batches, batch, state), error

    def advance(state: _DescentState) -> _DescentState:
        then, error = one_pass(state)
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

    start = _DescentState(layers, remember(algorithm, layers), jnp.zeros((), int), jnp.max(jnp.abs(y)) + tolerance)
    end = jax.lax.while_loop(unfinished, advance, start)
    residual = jnp.max(jnp.abs(loss.slope(outputs(net, end.layers, X), y)))
    reached = residual < tolerance if algorithm.steps is None else end.steps >= limit
    return Trained(end.layers, end.steps, reached)
