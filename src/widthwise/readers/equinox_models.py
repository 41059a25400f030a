"""Equinox: read a module and initialise it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.errors import InvalidInput
from widthwise.network import MLP
from widthwise.readers.chains import Chain, unsupported
from widthwise.readers.jax_models import drawn_for, jax_chain, marked, read_with_one_rate
from widthwise.readers.packages import need
from widthwise.readers.specification import Reading, warn_of

_HARMLESS = {"Sequential", "MLP", "Linear", "Identity", "Lambda", "Dropout"}


def from_equinox(model: Any, *, learning_rate: float = 1.0, activation: Any = None, recognise: bool = True) -> MLP:
    """The specification of an Equinox model: widths, activation, and from its weights C_b and C_W (theory §1).

    The model is traced, so modules of your own with a `__call__` count as well as `eqx.nn.MLP` and
    `eqx.nn.Sequential`.

    Parameters
    ----------
    model : an `eqx.Module` made of eqx.nn.Linear and one kind of elementwise activation.
    learning_rate : of plain gradient descent on every parameter: λ_b = η and λ_W = η n_{l−1}.
    activation : to use instead of the one that was read.
    recognise : give C_b and C_W exactly where the weights are consistent with one known initialisation.

    Returns
    -------
    The network, as from `from_torch`.

    >>> import equinox as eqx
    >>> model = eqx.nn.MLP(3, 1, width_size=64, depth=2, activation=jax.nn.tanh, key=jax.random.key(0))
    >>> from_equinox(model) == MLP.torch_default([3, 64, 64, 1], "tanh")    # the same default
    True
    """
    return warn_of(read_equinox(model, learning_rate, activation, recognise))


def read_equinox(model: Any, learning_rate: float = 1.0, activation: Any = None, recognise: bool = True) -> Reading:
    """`from_equinox` with everything that was read, and no warning."""
    return read_with_one_rate(equinox_chain(model, activation), learning_rate, activation, recognise)


def init_equinox(model: Any, net: MLP, seed: int = 0) -> Any:
    """A copy of an Equinox model with Gaussian weights and biases of variance C_W/n_{l−1} and C_b (theory §1).

    Returns
    -------
    The new model. Its widths and activation must be those of `net`.

    >>> import equinox as eqx
    >>> model = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
    >>> float(abs(init_equinox(model, MLP([3, 8, 1], "relu", C_W=2.0)).layers[0].bias).max())
    0.0
    """
    chain = equinox_chain(model, net.activation)
    drawn = drawn_for(chain, net, seed)
    new = {id(layer.owner): values for layer, values in zip(chain.dense, drawn, strict=True)}
    return _replaced(model, lambda layer: (new[id(layer)].W, new[id(layer)].b))


def equinox_chain(model: Any, activation: Any = None) -> Chain:
    """The weight layers and activation of a module, in the order in which its call applies them."""
    eqx = need("equinox", "interop", "reading an Equinox model")
    if not isinstance(model, eqx.Module):
        raise InvalidInput("model", type(model).__name__, "an equinox.Module")
    _check_modules(model)
    linear = _linear(model)
    marks = marked([layer.weight for _, layer in linear])
    by_layer = {id(layer): mark for (_, layer), mark in zip(linear, marks, strict=True)}
    copy = _replaced(model, lambda layer: (by_layer[id(layer)], jnp.full(len(layer.weight), 0.5)))
    functions = [leaf for leaf in jax.tree.leaves(model) if callable(leaf)]
    return jax_chain(copy, linear, marks, _values, functions, activation)


def _linear(model: Any) -> list[tuple[str, Any]]:
    eqx = need("equinox", "interop", "reading an Equinox model")
    found = jax.tree_util.tree_leaves_with_path(model, is_leaf=lambda x: isinstance(x, eqx.nn.Linear))
    return [
        (f"{jax.tree_util.keystr(path).lstrip('.')} (Linear)", x) for path, x in found if isinstance(x, eqx.nn.Linear)
    ]


def _check_modules(model: Any) -> None:
    """Refuse modules of equinox.nn that are no part of a multilayer perceptron, by name and position."""
    eqx = need("equinox", "interop", "reading an Equinox model")

    def other(x: Any) -> bool:
        kind = type(x)
        return isinstance(x, eqx.Module) and kind.__module__.startswith("equinox.nn") and kind.__name__ not in _HARMLESS

    def stop(x: Any) -> bool:
        return other(x) or isinstance(x, eqx.nn.Dropout)

    for path, x in jax.tree_util.tree_leaves_with_path(model, is_leaf=stop):
        where = f"{jax.tree_util.keystr(path).lstrip('.')} ({type(x).__name__})"
        if other(x):
            raise unsupported(where)
        if isinstance(x, eqx.nn.Dropout) and not x.inference and x.p > 0:
            raise unsupported(where, "Use equinox.nn.inference_mode(model) first: dropout is then the identity.")


def _replaced(model: Any, values: Any) -> Any:
    """A copy whose Linear layers have other weights and biases, in the dtype they had."""
    eqx = need("equinox", "interop", "reading an Equinox model")

    def one(x: Any) -> Any:
        if not isinstance(x, eqx.nn.Linear):
            return x
        W, b = values(x)
        new = eqx.tree_at(lambda layer: layer.weight, x, W.astype(x.weight.dtype))
        return new if x.bias is None else eqx.tree_at(lambda layer: layer.bias, new, b.astype(x.bias.dtype))

    return jax.tree.map(one, model, is_leaf=lambda x: isinstance(x, eqx.nn.Linear))


def _values(layer: Any) -> tuple[np.ndarray, np.ndarray | None]:
    return np.asarray(layer.weight, float), None if layer.bias is None else np.asarray(layer.bias, float)
