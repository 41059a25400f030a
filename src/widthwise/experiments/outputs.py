"""Outputs of sampled networks, at initialisation and along gradient descent."""

from __future__ import annotations

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.errors import NonFiniteWarning
from widthwise.experiments.sampler import forward, network_key, sample_parameters
from widthwise.experiments.tangent import gradient, outputs, rates
from widthwise.memory import require_memory
from widthwise.network import Network, check_networks, check_seed, check_targets
from widthwise.network.layered import parameter_count

_DRAWN_AT_ONCE = 64


def sample_outputs(net: Network, X, networks: int = 1000, seed: int = 0) -> np.ndarray:
    """Outputs (networks, inputs, outputs) of networks drawn at random; network i of a seed is always the same one.

    >>> from widthwise.network import MLP
    >>> sample_outputs(MLP([2, 8, 3], "tanh"), [[1.0, 0.5]], networks=5).shape
    (5, 1, 3)
    """
    X = jnp.asarray(net.check_inputs(X))
    networks, seed = check_networks(networks, 1), check_seed(seed)
    require_memory(
        16 * networks * len(X) * net.widths[-1] + 16 * _DRAWN_AT_ONCE * parameter_count(net),
        f"{networks} networks of {parameter_count(net)} parameters at {len(X)} inputs", "Take fewer or narrower.",
    )  # fmt: skip
    whole = [
        _drawn(net, seed, jnp.arange(start, start + _DRAWN_AT_ONCE), X) for start in range(0, networks, _DRAWN_AT_ONCE)
    ]
    return np.concatenate([np.asarray(part) for part in whole])[:networks]


@jax.jit
def _drawn(net: Network, seed, indices, X):
    return jax.vmap(lambda i: forward(net, sample_parameters(net, network_key(seed, i)), X)[1][-1])(indices)


def descent_paths(
    net: Network, X, y, X_test, learning_rate: float, steps, networks: int = 32, seed: int = 0
) -> np.ndarray:
    """Outputs at X_test (networks, len(steps), outputs, tests) after so many steps of full-batch gradient descent.

    Learning-rate tensor and loss of theory §8; `steps` rises from 0 or more. Networks that end with numbers that are
    not finite are left out, with a warning that says how many.

    >>> from widthwise.network import MLP
    >>> net, X = MLP([1, 16, 1], "tanh"), [[1.0]]
    >>> paths = descent_paths(net, X, [0.5], X, 0.2, steps=[0, 50], networks=4)
    >>> paths.shape, bool(abs(paths[:, 1] - 0.5).max() < 1e-3)
    ((4, 2, 1, 1), True)
    """
    X = net.check_inputs(X)
    y = jnp.asarray(check_targets(y, len(X), net.widths[-1]).T)
    X_test = jnp.asarray(net.check_inputs(X_test, "X_test"))
    gaps = jnp.asarray(np.diff(np.asarray(steps, int), prepend=0))
    networks, seed = check_networks(networks, 1), check_seed(seed)
    require_memory(
        32 * networks * (parameter_count(net) + len(gaps) * len(X_test) * net.widths[-1]),
        f"{networks} networks of {parameter_count(net)} parameters at {len(gaps)} times", "Take fewer or narrower.",
    )  # fmt: skip
    keys = jax.vmap(partial(network_key, seed))(jnp.arange(networks))
    paths = np.asarray(_descent_outputs(net, learning_rate, keys, jnp.asarray(X), y, X_test, gaps))
    finite = np.isfinite(paths).all(axis=(1, 2, 3))
    if not finite.all():
        warnings.warn(
            f"gradient descent: {(~finite).sum()} of {networks} networks of seed {seed} (the first is number "
            f"{finite.argmin()}) end with numbers that are not finite and are left out. Take wider networks, or a "
            "smaller C_W.",
            NonFiniteWarning,
            stacklevel=3,
        )
    return paths[finite]


@jax.jit
def _descent_outputs(net: Network, learning_rate, keys, X, y, X_test, gaps):
    scale = rates(net)

    def one_step(_, layers):
        slope, _ = gradient(net, layers, X, y)
        return jax.tree.map(lambda p, rate, g: p - learning_rate * rate * g, layers, scale, slope)

    def advance(layers, gap):
        layers = jax.lax.fori_loop(0, gap, one_step, layers)
        return layers, outputs(net, layers, X_test)

    return jax.vmap(lambda key: jax.lax.scan(advance, sample_parameters(net, key), gaps)[1])(keys)
