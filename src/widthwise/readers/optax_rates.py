"""Gradient descent with the learning rates of a network on the parameters of Flax (nnx) and Equinox models (Optax)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax

from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tangent import rates
from widthwise.extras import need
from widthwise.network import Network, check_network
from widthwise.readers.chains import check_fits, model_rates
from widthwise.readers.jax_models import equinox_chain, flax_chain


def optax_transform(net: Network, learning_rate: float = 1.0, model: Any = None) -> Any:
    """Gradient descent with step ηλ_W/n_{l−1} on weights and ηλ_b on biases, as an Optax transformation (theory §1).

    Gains and shifts of normalisations have ηλ_gain and ηλ_shift. It works on the parameters of Flax (nnx) and Equinox
    models, or on any tree that holds one matrix and perhaps one vector for each weight layer, and a vector or two for
    each gain and shift. Behind `optax.scale_by_adam()` in `optax.chain` it gives Adam the same rates.

    Parameters
    ----------
    net, learning_rate : the network whose λ are used, and η.
    model : the Flax or Equinox model, whose call says which tensor belongs to which layer, and by which constant factor
        β a branch is multiplied (its steps are those over β²). Without it layers are told apart by their shapes; those
        of equal shape are taken in the order of their names in the tree, numbers in them read as numbers.

    Returns
    -------
    An `optax.GradientTransformation`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from widthwise.network import MLP
    >>> step = optax_transform(MLP([2, 8, 1], "tanh", lambda_b=0.5, lambda_W=[2.0, 4.0]), learning_rate=0.1)
    >>> params = [{"W": jnp.ones((8, 2)), "b": jnp.ones(8)}, {"W": jnp.ones((1, 8)), "b": jnp.ones(1)}]
    >>> updates, _ = step.update(params, step.init(params))
    >>> [round(float(x.ravel()[0]), 6) for x in jax.tree.leaves(updates)]
    [-0.1, -0.05, -0.05, -0.05]
    """
    optax = need("optax", "readers", "optax_transform")
    by_name = None if model is None else rates_by_name(model, net)

    def init(params):
        layer_rates(net, params, by_name)
        return optax.EmptyState()

    def update(updates, state, params=None):
        each = layer_rates(net, updates, by_name)
        return jax.tree.map(lambda rate, g: -learning_rate * rate * g, each, updates), state

    return optax.GradientTransformation(init, update)


def rates_by_name(model: Any, net: Network) -> dict[tuple[str, ...], float]:
    """The rate of each tensor of a model, by its name in the model's tree."""
    if any(base.__module__.startswith("equinox") for base in type(model).__mro__):
        chain = equinox_chain(model, check_network(net).activations)
        tensors = [(_names(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(model)]
    else:
        chain = flax_chain(model, check_network(net).activations)
        nnx = need("flax.nnx", "readers", "reading a Flax model")
        tensors = [(tuple(map(str, path)), part) for path, part in nnx.iter_graph(model)]
    check_fits(chain, net)
    by_id = {
        id(tensor): rate
        for step, both in zip(chain.learned, model_rates(chain, net), strict=True)
        for tensor, rate in zip(step.tensors, both, strict=True)
    }
    return {name: by_id[id(tensor)] for name, tensor in tensors if tensor is not None and id(tensor) in by_id}


def layer_rates(net: Network, params: Any, by_name: Mapping[tuple[str, ...], float] | None = None) -> Any:
    """The rate of every leaf of a tree of parameters, in a tree of the same form; by name if those are given."""
    leaves, form = jax.tree_util.tree_flatten_with_path(params)
    names = [_names(path) for path, _ in leaves]
    if by_name is None:
        found = _rates_by_shape(net, names, [tuple(leaf.shape) for _, leaf in leaves])
    else:
        unknown = [".".join(name) for name in names if name not in by_name]
        if unknown:
            raise InvalidInput("params", f"a leaf {unknown[0]}", "the parameters of the model's layers")
        found = [by_name[name] for name in names]
    return jax.tree_util.tree_unflatten(form, found)


def _rates_by_shape(net: Network, names: list[tuple[str, ...]], shapes: list[tuple[int, ...]]) -> list[float]:
    groups: dict[tuple, list[int]] = {}
    for number, name in enumerate(names):
        groups.setdefault(_sortable(name[:-1]), []).append(number)
    waiting = [groups[owner] for owner in sorted(groups)]
    found = [0.0] * len(names)
    layers = jax.eval_shape(lambda: sample_parameters(net, network_key(0, 0)))
    for layer, rate in zip(layers, rates(net), strict=True):
        weights = isinstance(layer, Weights)
        first, second = layer[0].shape, layer[1].shape
        allowed = {first, first[::-1], second}
        for group in waiting:
            own = [shapes[i] for i in group]
            if sum(len(shape) == 2 for shape in own) == weights and len(own) <= 2 and allowed >= set(own):
                break
        else:
            kind = "one matrix and at most one vector" if weights else "at most a gain and a shift"
            expected = f"for every layer of {list(net.widths)} {kind}, under one name"
            raise InvalidInput("params", f"leaves of shapes {shapes}", expected, "Or give optax_transform the model.")
        waiting.remove(group)
        for i in group:
            of_first = len(shapes[i]) == 2 if weights else names[i][-1] not in ("bias", "shift", "b")
            found[i] = float(rate[0] if of_first else rate[1])
    if waiting:
        raise InvalidInput("params", f"{len(waiting)} layers more than the network's {net.depth}", "one for each layer")
    return found


def _names(path: tuple) -> tuple[str, ...]:
    """The names on the way to a parameter: Flax wraps each parameter once more."""
    names = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return tuple(names[:-1] if names and names[-1] == "value" else names)


def _sortable(names: tuple[str, ...]) -> tuple:
    """Comparable names: layer2 comes before layer10, numbers in a name are compared as numbers."""
    pieces = [[part for part in re.split(r"(\d+)", name) if part] for name in names]
    return tuple(tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts) for parts in pieces)
