"""Which activation a function or a layer of another package is."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, activation, resolve
from widthwise.activations.resolution import evaluate
from widthwise.errors import InvalidInput

PROBE = np.concatenate([np.linspace(-7.3, 7.1, 61), [-1e-3, 1e-3]])
_NAMES = ("relu", "tanh", "sigmoid", "softplus", "swish", "gelu", "erf", "sin", "linear", "quadratic", "cubic", "step")
#: Functions of jax.nn that are no built-ins of widthwise, and where they or a derivative jump.
_KINKED = {
    "elu": (0.0,),
    "selu": (0.0,),
    "celu": (0.0,),
    "hard_tanh": (-1.0, 1.0),
    "relu6": (0.0, 6.0),
    "hard_sigmoid": (-3.0, 3.0),
    "hard_silu": (-3.0, 3.0),
    "soft_sign": (0.0,),
}


#: The same as functions, with the smooth ones that are no built-ins either.
LIBRARY = (*(getattr(jax.nn, name) for name in _KINKED), jax.nn.gelu, jax.nn.mish, jax.nn.log_sigmoid)


def identify(function: Any, *, only_builtin: bool = False) -> Activation:
    """The activation that a jax function computes: a built-in if it has the same values, itself otherwise.

    >>> identify(partial(jax.nn.leaky_relu, negative_slope=0.2))
    'leaky_relu(0.2)'
    >>> identify(lambda z: jax.nn.gelu(z, approximate=False))
    'gelu'
    >>> identify(jax.nn.elu).kinks
    (0.0,)
    """
    found = _same_values(function)
    if found is not None:
        return found
    if only_builtin:
        raise InvalidInput("activation", _name(function) or "a function", "one of " + ", ".join(_NAMES))
    name = _name(function)
    for known, kinks in _KINKED.items():
        if function is getattr(jax.nn, known):
            return activation(function, kinks=kinks, name=known)
    return activation(function, name=name)


def _name(function: Any) -> str | None:
    inner = function.func if isinstance(function, partial) else function
    name = getattr(inner, "__name__", None)
    return None if name == "<lambda>" else name


def _same_values(function: Callable) -> Activation | None:
    try:
        values = np.asarray(function(jnp.asarray(PROBE)))
    except Exception:  # whatever a function of the user may raise; `activation` explains it
        return None
    if values.shape != PROBE.shape:
        return None
    for name in _NAMES:
        if np.allclose(values, _table(name), rtol=1e-13, atol=1e-14):
            return resolve(name)
    slope = float(-np.asarray(function(jnp.asarray([-1.0])))[0])
    if np.allclose(values, np.where(PROBE > 0, PROBE, slope * PROBE), rtol=1e-13, atol=1e-14):
        return resolve(f"leaky_relu({slope!r})")
    return None


@lru_cache(maxsize=32)
def _table(name: str) -> np.ndarray:
    return evaluate(resolve(name), 0, PROBE)


@lru_cache(maxsize=64)
def parametric(name: str, *values: float) -> Activation:
    """Families that torch has and jax.nn has not under the same name, made once for each set of parameters.

    >>> parametric("softplus", 2.0).name
    'softplus(beta=2)'
    """
    if name == "softplus":
        (beta,) = values
        return activation(lambda z: jax.nn.softplus(beta * z) / beta, name=f"softplus(beta={beta:g})")
    if name in ("elu", "celu"):
        (alpha,) = values
        function = getattr(jax.nn, name)
        return activation(lambda z: function(z, alpha), kinks=(0.0,), name=f"{name}({alpha:g})")
    if name == "hardtanh":
        low, high = values
        return activation(lambda z: jnp.clip(z, low, high), kinks=values, name=f"hardtanh({low:g}, {high:g})")
    return _plain(name)


def _plain(name: str) -> Activation:
    functions: dict[str, tuple[Callable, tuple[float, ...]]] = {
        "gelu_tanh": (partial(jax.nn.gelu, approximate=True), ()),
        "selu": (jax.nn.selu, (0.0,)),
        "softsign": (jax.nn.soft_sign, (0.0,)),
        "mish": (jax.nn.mish, ()),
        "relu6": (jax.nn.relu6, (0.0, 6.0)),
        "hardsigmoid": (jax.nn.hard_sigmoid, (-3.0, 3.0)),
        "hardswish": (jax.nn.hard_silu, (-3.0, 3.0)),
        "logsigmoid": (jax.nn.log_sigmoid, ()),
        "tanhshrink": (_tanhshrink, ()),
    }
    function, kinks = functions[name]
    return activation(function, kinks=kinks, name=name)


def _tanhshrink(z):
    return z - jnp.tanh(z)
