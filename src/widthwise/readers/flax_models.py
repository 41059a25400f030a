"""Flax (nnx): read a module and initialise it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from widthwise.errors import InvalidInput
from widthwise.network import MLP
from widthwise.readers.chains import Chain, unsupported
from widthwise.readers.jax_models import drawn_for, jax_chain, marked, read_with_one_rate
from widthwise.readers.packages import need
from widthwise.readers.specification import Reading, warn_of

_HARMLESS = {"Sequential", "Linear", "Dropout", "List", "Dict", "Rngs", "RngStream"}


def from_flax(model: Any, *, learning_rate: float = 1.0, activation: Any = None, recognise: bool = True) -> MLP:
    """The specification of a Flax (nnx) model: widths, activation, and from its weights C_b and C_W (theory §1).

    The model is traced, so modules of your own with a `__call__` count as well as `nnx.Sequential`.

    Parameters
    ----------
    model : an `nnx.Module` made of nnx.Linear and one kind of elementwise activation.
    learning_rate : of plain gradient descent on every parameter: λ_b = η and λ_W = η n_{l−1}.
    activation : to use instead of the one that was read.
    recognise : give C_b and C_W exactly where the weights are consistent with one known initialisation.

    Returns
    -------
    The network, as from `from_torch`.

    >>> from flax import nnx
    >>> rngs = nnx.Rngs(0)
    >>> model = nnx.Sequential(nnx.Linear(3, 64, rngs=rngs), nnx.gelu, nnx.Linear(64, 1, rngs=rngs))
    >>> net = from_flax(model)
    >>> net.widths, net.activation.name, net.C_b, net.C_W
    ((3, 64, 1), 'gelu', (0.0, 0.0), (1.0, 1.0))
    """
    return warn_of(read_flax(model, learning_rate, activation, recognise))


def read_flax(model: Any, learning_rate: float = 1.0, activation: Any = None, recognise: bool = True) -> Reading:
    """`from_flax` with everything that was read, and no warning."""
    return read_with_one_rate(flax_chain(model, activation), learning_rate, activation, recognise)


def init_flax(model: Any, net: MLP, seed: int = 0) -> Any:
    """Fill a Flax (nnx) model, in place, with Gaussian weights and biases of variance C_W/n_{l−1} and C_b (theory §1).

    Returns
    -------
    The model itself. Its widths and activation must be those of `net`.

    >>> from flax import nnx
    >>> model = nnx.Sequential(nnx.Linear(3, 8, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(8, 1, rngs=nnx.Rngs(1)))
    >>> model = init_flax(model, MLP([3, 8, 1], "relu", C_b=0.1, C_W=2.0))
    >>> bool((model.layers[0].bias[...] != 0).all())
    True
    """
    chain = flax_chain(model, net.activation)
    drawn = drawn_for(chain, net, seed)
    for layer, new in zip(chain.dense, drawn, strict=True):
        layer.owner.kernel[...] = new.W.T.astype(layer.owner.kernel.dtype)
        if layer.b is not None:
            layer.owner.bias[...] = new.b.astype(layer.owner.bias.dtype)
    return model


def flax_chain(model: Any, activation: Any = None) -> Chain:
    """The weight layers and activation of a module, in the order in which its call applies them."""
    nnx = need("flax.nnx", "interop", "reading a Flax model")
    if not isinstance(model, nnx.Module):
        raise InvalidInput("model", type(model).__name__, "a flax.nnx.Module", "Linen modules are not read.")
    modules = list(nnx.iter_modules(model))
    for path, module in modules:
        kind = type(module)
        if kind.__module__.startswith("flax.") and kind.__name__ not in _HARMLESS:
            raise unsupported(f"{_text(path)} ({kind.__name__})")
        if kind.__name__ == "Dropout" and not module.deterministic and module.rate > 0.0:
            raise unsupported(f"{_text(path)} (Dropout)", "Call model.eval() first: dropout is then the identity.")
    linear = [(f"{_text(path)} (Linear)", module) for path, module in modules if isinstance(module, nnx.Linear)]
    copy = nnx.clone(model)
    copies = [module for _, module in nnx.iter_modules(copy) if isinstance(module, nnx.Linear)]
    marks = marked([layer.kernel for layer in copies])
    for layer, mark in zip(copies, marks, strict=True):
        layer.kernel.set_value(mark)
        if layer.bias is not None:
            layer.bias.set_value(jnp.full(layer.bias.shape, 0.5))
    functions = [value for _, value in nnx.iter_graph(model) if callable(value)]
    return jax_chain(lambda x: copy(x[None, :]), linear, marks, _values, functions, activation)


def _values(layer: Any) -> tuple[np.ndarray, np.ndarray | None]:
    bias = None if layer.bias is None else np.asarray(layer.bias[...], float)
    return np.asarray(layer.kernel[...], float).T, bias


def _text(path: tuple) -> str:
    return ".".join(map(str, path)) or "the model"
