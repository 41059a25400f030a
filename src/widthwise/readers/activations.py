"""Which activation a function or a layer of another package is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import ACTIVATION_NAMES, Activation, activation, evaluate, resolve

_PROBE_POINTS = np.concatenate([np.linspace(-7.3, 7.1, 61), [-1e-3, 1e-3]])
#: Those of torch that are no built-ins: the name here, a function of z and of parameters, and where it jumps (None: at
#: its parameters).
_OF_TORCH: dict[str, tuple[str, Callable, tuple[float, ...] | None]] = {
    "gelu": ("gelu_tanh", lambda z, approximate: jax.nn.gelu(z, approximate=True), ()),
    "softplus": ("softplus(beta={:g})", lambda z, beta: jax.nn.softplus(beta * z) / beta, ()),
    "elu": ("elu({:g})", jax.nn.elu, (0.0,)),
    "celu": ("celu({:g})", jax.nn.celu, (0.0,)),
    "selu": ("selu", jax.nn.selu, (0.0,)),
    "softsign": ("softsign", jax.nn.soft_sign, (0.0,)),
    "mish": ("mish", jax.nn.mish, ()),
    "relu6": ("relu6", jax.nn.relu6, (0.0, 6.0)),
    "hardsigmoid": ("hardsigmoid", jax.nn.hard_sigmoid, (-3.0, 3.0)),
    "hardswish": ("hardswish", jax.nn.hard_silu, (-3.0, 3.0)),
    "logsigmoid": ("logsigmoid", jax.nn.log_sigmoid, ()),
    "tanhshrink": ("tanhshrink", lambda z: z - jnp.tanh(z), ()),
    "hardtanh": ("hardtanh({:g}, {:g})", jnp.clip, None),
}
#: Functions of jax.nn that are no built-ins of widthwise, and where they or a derivative jump.
_OF_JAX: dict[Callable, tuple[float, ...]] = {
    function: kinks
    for _, function, kinks in _OF_TORCH.values()
    if kinks is not None and hasattr(jax.nn, function.__name__)
} | {jax.nn.hard_tanh: (-1.0, 1.0), jax.nn.gelu: ()}


def identify(function: Callable, candidates: Iterable[Any] = ()) -> Activation | None:
    """The activation with the values of a function: a built-in, or else a candidate, or one of jax.nn; else None.

    >>> identify(partial(jax.nn.leaky_relu, negative_slope=0.2))
    'leaky_relu(0.2)'
    >>> identify(lambda z: jax.nn.gelu(z, approximate=False))
    'gelu'
    >>> identify(jax.nn.elu).kinks
    (0.0,)
    """
    values = _probed(function)
    if values is None:
        return None
    for name in ACTIVATION_NAMES:
        if name != "leaky_relu" and np.allclose(values, _built_in(name), rtol=1e-13, atol=1e-14):
            return resolve(name)
    slope = float(-np.asarray(function(jnp.asarray([-1.0])))[0])
    if np.allclose(values, np.where(_PROBE_POINTS > 0, _PROBE_POINTS, slope * _PROBE_POINTS), rtol=1e-13, atol=1e-14):
        return resolve(f"leaky_relu({slope!r})")
    for candidate in (*candidates, *_OF_JAX):
        same = _probed(candidate)
        if same is not None and np.allclose(same, values, rtol=1e-12, atol=1e-13):
            if isinstance(candidate, Activation):
                return candidate
            name = getattr(candidate.func if isinstance(candidate, partial) else candidate, "__name__", None)
            kinks = next((kinks for known, kinks in _OF_JAX.items() if known is candidate), ())
            return activation(candidate, kinks=kinks, name=None if name == "<lambda>" else name)
    return None


def _probed(function: Callable) -> np.ndarray | None:
    """Values at some points; None for a callable that is no function of one array."""
    try:
        values = np.asarray(function(jnp.asarray(_PROBE_POINTS)))
    except Exception:  # whatever a function of the user may raise
        return None
    return values if values.shape == _PROBE_POINTS.shape else None


@lru_cache(maxsize=32)
def _built_in(name: str) -> np.ndarray:
    return evaluate(resolve(name), 0, _PROBE_POINTS)


@lru_cache(maxsize=64)
def torch_activation(name: str, *values: Any) -> Activation:
    """An activation of torch by the name of its function and its parameters, made once for each set of them.

    >>> torch_activation("softplus", 2.0).name, torch_activation("softplus", 1.0).name
    ('softplus(beta=2)', 'softplus')
    """
    if name == "leaky_relu":
        return resolve(f"leaky_relu({float(values[0])!r})")
    if name not in _OF_TORCH or (name, *values) in (("gelu", "none"), ("softplus", 1.0)):
        return resolve(name)
    text, function, kinks = _OF_TORCH[name]
    kinks = values if kinks is None else kinks
    return activation(lambda z: function(z, *values), kinks=kinks, name=text.format(*values))
