"""A network linearised at its parameters: J = ∂z/∂θ and λJᵀ as rank-one products layer by layer (theory §1, §3).

∂z_ia/∂W = δ_ia ⊗ s_a and ∂z_ia/∂b = δ_ia, with s the incoming activations and δ the back-propagated signals of
`differentials.chain`, so neither J nor a Jacobian is stored. Axes: i, j outputs; a, b inputs; neurons last.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from widthwise.experiments.differentials import chain
from widthwise.experiments.sampler import Layer, forward
from widthwise.network import MLP


class Tangent(NamedTuple):
    """The outputs z (i, a), and per layer s (a, incoming), λ_b + (λ_W/n) s_a·s_b (a, b), δ (i, a, neurons)."""

    z: jax.Array
    incoming: list[jax.Array]
    features: list[jax.Array]
    signals: list[jax.Array]


def outputs(net: MLP, layers: list[Layer], X) -> jax.Array:
    """z (i, a)."""
    return forward(net, layers, X)[1][-1].T


def tangent(net: MLP, layers: list[Layer], X) -> Tangent:
    """The network linearised at its parameters, on the inputs X.

    >>> from widthwise.experiments.sampler import network_key, sample_parameters
    >>> net, X = MLP([2, 8, 3], "tanh"), jnp.array([[1.0, 0.2], [0.3, -0.5]])
    >>> at = tangent(net, sample_parameters(net, network_key(0, 0)), X)
    >>> at.z.shape, kernel(at).shape
    ((3, 2), (3, 2, 3, 2))
    """
    c = chain(net, layers, X, 1)
    z = (c.incoming[-1] @ layers[-1].W.T + layers[-1].b).T
    return Tangent(z, c.incoming, c.features, c.signals)


def restricted(at: Tangent, inputs: int) -> Tangent:
    """The same on the first few inputs."""
    return Tangent(
        at.z[:, :inputs],
        [s[:inputs] for s in at.incoming],
        [f[:inputs, :inputs] for f in at.features],
        [d[:, :inputs] for d in at.signals],
    )


def push(at: Tangent, move: list[Layer]) -> jax.Array:
    """J·move, the change of the outputs to first order: (i, a)."""
    parts = zip(at.signals, at.incoming, move, strict=True)
    return sum((jnp.einsum("ian,an->ia", d, s @ m.W.T + m.b) for d, s, m in parts), jnp.zeros_like(at.z))


def pull(net: MLP, at: Tangent, error) -> list[Layer]:
    """λJᵀ·error, error (i, a)."""
    back = [jnp.einsum("ian,ia->an", signal, error) for signal in at.signals]
    return scaled(net, [Layer(b.T @ s, b.sum(axis=0)) for b, s in zip(back, at.incoming, strict=True)])


def kernel(at: Tangent) -> jax.Array:
    """Ĥ = JλJᵀ on (i, a, j, b) (theory §3)."""
    parts = [jnp.einsum("ab,ian,jbn->iajb", f, d, d) for f, d in zip(at.features, at.signals, strict=True)]
    return sum(parts[1:], parts[0])


def gradient(net: MLP, layers: list[Layer], X, y) -> tuple[list[Layer], jax.Array]:
    """Jᵀε, the gradient of ½Σ(z − y)² in the layout of the parameters, and ε (i, a); y is (i, a)."""
    incoming, preactivations = forward(net, layers, X)
    error = preactivations[-1].T - y
    signal, found, slope = error.T, [], net.activation.derivative(1)
    for depth in reversed(range(net.depth)):
        found.insert(0, Layer(signal.T @ incoming[depth], signal.sum(axis=0)))
        if depth:
            signal = (signal @ layers[depth].W) * slope(preactivations[depth - 1])
    return found, error


def rates(net: MLP) -> list[Layer]:
    """The learning-rate tensor λ, diagonal and equal within a group: λ_W/n_{l−1} and λ_b (theory §1)."""
    parts = zip(net.lambda_W, net.widths[:-1], net.lambda_b, strict=True)
    return [Layer(weight / fan_in, bias) for weight, fan_in, bias in parts]  # pyright: ignore[reportArgumentType]


def scaled(net: MLP, move: list[Layer]) -> list[Layer]:
    """λ times a vector in parameter space."""
    return jax.tree.map(lambda rate, value: rate * value, rates(net), move)


def length(net: MLP, move: list[Layer]) -> jax.Array:
    """√Σ move²/λ: the outputs at x move by at most √Ĥ_xx times this. Groups that do not learn do not count."""
    squares = jax.tree.map(lambda rate, m: jnp.sum(m**2) / rate if rate else 0.0, rates(net), move)
    return jnp.sqrt(sum(jax.tree.leaves(squares), jnp.zeros(())))


def added(layers: list[Layer], move: list[Layer], factor=1.0) -> list[Layer]:
    return jax.tree.map(lambda p, m: p + factor * m, layers, move)
