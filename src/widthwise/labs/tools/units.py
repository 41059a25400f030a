"""Parameters of several networks, and parameters in units of √λ, in which gradient descent has one learning rate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tangent import outputs, rates
from widthwise.network import MLP


@partial(jax.jit, static_argnums=(0, 2))
def ensemble(net: MLP, seed: Any, networks: int) -> list[Weights]:
    """Parameters of networks 0, 1, … of a seed, stacked along the first axis: for `jax.vmap`.

    >>> ensemble(MLP([2, 3, 1], "tanh"), 0, 5)[0].W.shape
    (5, 3, 2)
    """
    return jax.vmap(lambda index: sample_parameters(net, network_key(seed, index)))(jnp.arange(networks))


def in_units(net: MLP, layers: list[Weights]) -> tuple[jax.Array, Callable[[Any], list[Weights]]]:
    """The parameters as one vector u = θ/√λ, and the way back to layers.

    Parameters that do not learn (λ = 0) stay where they are: their u is zero and moves nothing.

    Returns
    -------
    u (parameters,), and the function from such a vector to layers.

    >>> net = MLP([4, 2], "linear", lambda_W=4.0, lambda_b=0.25)        # λ = 1 on weights, 1/4 on biases
    >>> layers = sample_parameters(net, network_key(0, 0))
    >>> u, back = in_units(net, layers)
    >>> u.shape, bool(jnp.allclose(back(u)[0].W, layers[0].W)), back(u + 1.0)[0].b.tolist()
    ((10,), True, [0.5, 0.5])
    """
    flat, unravel = ravel_pytree(layers)
    roots = ravel_pytree(jax.tree.map(lambda rate, p: jnp.full(p.shape, jnp.sqrt(rate)), rates(net), layers))[0]
    learns = roots > 0.0
    fixed = jnp.where(learns, 0.0, flat)
    u = jnp.where(learns, flat / jnp.where(learns, roots, 1.0), 0.0)
    return u, lambda u: unravel(fixed + roots * u)


def outputs_in_units(net: MLP, layers: list[Weights], X: Any) -> tuple[jax.Array, Callable[[Any], jax.Array]]:
    """u = θ/√λ, and the outputs z (outputs, inputs) as a function of it."""
    u, back = in_units(net, layers)
    return u, lambda u: outputs(net, back(u), X)
