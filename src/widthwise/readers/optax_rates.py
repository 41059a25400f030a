"""Optax: a step of its own for every weight matrix and bias of a jax model."""

from __future__ import annotations

import re
from typing import Any

import jax

from widthwise.errors import InvalidInput
from widthwise.experiments.tangent import rates
from widthwise.network import MLP
from widthwise.readers.packages import need


def optax_transform(net: MLP, learning_rate: float = 1.0) -> Any:
    """Gradient descent with step ηλ_W/n_{l−1} on weights and ηλ_b on biases, as an Optax transformation (theory §1).

    It works on the parameters of Flax (nnx) and Equinox models, or on any tree that holds one matrix and perhaps one
    vector for each layer. Layers are told apart by their shapes; those of equal shape are taken in the order of their
    names in the tree, numbers in them read as numbers. Behind `optax.scale_by_adam()` in `optax.chain` it gives Adam
    the same rates.

    Returns
    -------
    An `optax.GradientTransformation`.

    >>> import jax.numpy as jnp
    >>> step = optax_transform(MLP([2, 8, 1], "tanh", lambda_b=0.5, lambda_W=[2.0, 4.0]), learning_rate=0.1)
    >>> params = [{"W": jnp.ones((8, 2)), "b": jnp.ones(8)}, {"W": jnp.ones((1, 8)), "b": jnp.ones(1)}]
    >>> updates, _ = step.update(params, step.init(params))
    >>> [round(float(x.ravel()[0]), 6) for x in jax.tree.leaves(updates)]
    [-0.1, -0.05, -0.05, -0.05]
    """
    optax = need("optax", "interop", "optax_transform")

    def init(params):
        layer_rates(net, params)
        return optax.EmptyState()

    def update(updates, state, params=None):
        each = layer_rates(net, updates)
        return jax.tree.map(lambda rate, g: -learning_rate * rate * g, each, updates), state

    return optax.GradientTransformation(init, update)


def layer_rates(net: MLP, params: Any) -> Any:
    """λ_W/n_{l−1} or λ_b for every leaf of a tree of parameters, in a tree of the same form."""
    leaves, form = jax.tree_util.tree_flatten_with_path(params)
    groups: dict[tuple, list[int]] = {}
    for number, (path, _) in enumerate(leaves):
        groups.setdefault(_owner(path), []).append(number)
    waiting = [groups[owner] for owner in sorted(groups)]
    found = [0.0] * len(leaves)
    for fan_in, fan_out, rate in zip(net.widths[:-1], net.widths[1:], rates(net), strict=True):
        shapes = ({(fan_in, fan_out), (fan_out, fan_in)}, {(fan_out,)})
        fitting = [group for group in waiting if _is_layer([leaves[i][1].shape for i in group], *shapes)]
        if not fitting:
            raise InvalidInput(
                "params",
                f"leaves of shapes {[tuple(leaf.shape) for _, leaf in leaves]}",
                f"for every layer of {list(net.widths)} one matrix and at most one vector, under one name",
            )
        waiting.remove(fitting[0])
        for i in fitting[0]:
            found[i] = float(rate.W if leaves[i][1].ndim == 2 else rate.b)
    if waiting:
        raise InvalidInput("params", f"{len(waiting)} layers more than the network's {net.depth}", "one for each layer")
    return jax.tree_util.tree_unflatten(form, found)


def _is_layer(shapes: list[tuple[int, ...]], matrices: set, vectors: set) -> bool:
    return sum(shape in matrices for shape in shapes) == 1 and all(shape in matrices | vectors for shape in shapes)


def _owner(path: tuple) -> tuple:
    """The names above a parameter's own, comparable: Flax wraps each parameter once more."""
    names = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    if names and names[-1] == "value":
        names = names[:-1]
    return tuple(tuple(_natural(name)) for name in names[:-1])


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sort keys by which layer2 comes before layer10."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name) if part]
