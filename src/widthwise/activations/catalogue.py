"""The built-in activations, one line each, and the names people know them by."""

from __future__ import annotations

import copyreg
import inspect
import re
from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp

from widthwise.activations.base import Activation
from widthwise.activations.closed_forms import (
    DerivativeForm,
    ErfForm,
    GeluForm,
    MonomialForm,
    ReluFamilyForm,
    SineForm,
)
from widthwise.errors import InvalidInput, UnknownName


def _step(z):
    return jnp.where(z >= 0, 1.0, 0.0).astype(jnp.result_type(z))


def _gelu(z):
    return z * jax.scipy.special.ndtr(z)


def _swish(z):
    return z * jax.nn.sigmoid(z)


def _identity(z):
    return z


def _power(degree: int) -> Callable:
    return lambda z: z**degree


def _two_slopes(positive: float, negative: float) -> Callable:
    return lambda z: jnp.where(z > 0, positive * z, negative * z)


def _make(name, function, **more) -> Activation:
    return Activation(name, function, builtin=True, **more)


_RELU = ReluFamilyForm(1.0, 0.0)

_FIXED = {
    activation.name: activation
    for activation in (
        _make("step", _step, kinks=(0.0,), closed=DerivativeForm(_RELU)),
        _make("sigmoid", jax.nn.sigmoid),
        _make("tanh", jnp.tanh),
        _make("sin", jnp.sin, closed=SineForm()),
        _make("linear", _identity, closed=MonomialForm(1)),
        _make("relu", _two_slopes(1.0, 0.0), kinks=(0.0,), closed=_RELU),
        _make("softplus", jax.nn.softplus),
        _make("swish", _swish),
        _make("gelu", _gelu, closed=GeluForm()),
        _make("erf", jax.scipy.special.erf, closed=ErfForm()),
        _make("quadratic", _power(2), closed=MonomialForm(2)),
        _make("cubic", _power(3), closed=MonomialForm(3)),
    )
}

_ALIASES = {"perceptron": "step", "silu": "swish", "identity": "linear", "sine": "sin", "logistic": "sigmoid"}

#: jax's own functions that are exactly a built-in (jax.nn.gelu is not: it defaults to an approximation).
_SAME_FUNCTION = {
    jax.nn.relu: "relu",
    jnp.tanh: "tanh",
    jax.nn.tanh: "tanh",
    jnp.sin: "sin",
    jax.nn.sigmoid: "sigmoid",
    jax.nn.softplus: "softplus",
    jax.nn.silu: "swish",
    jax.nn.swish: "swish",
    jax.scipy.special.erf: "erf",
}


@lru_cache(maxsize=64)
def leaky_relu(slope: float = 0.01) -> Activation:
    """z for z > 0, slope · z for z < 0."""
    return _make(
        "leaky_relu",
        _two_slopes(1.0, slope),
        kinks=(0.0,) if slope != 1.0 else (),
        parameters=(slope,),
        closed=ReluFamilyForm(1.0, slope),
    )


_FAMILIES: dict[str, Callable[..., Activation]] = {"leaky_relu": leaky_relu}

NAMES = tuple(sorted([*_FIXED, *_FAMILIES]))


def builtin_for(function: object) -> Activation | None:
    """The built-in activation that a known jax function is, if it is one."""
    try:
        return _FIXED[_SAME_FUNCTION[function]]  # pyright: ignore[reportArgumentType]
    except (KeyError, TypeError):
        return None


def named(text: str) -> Activation:
    """An activation from its name: `"tanh"`, `"silu"`, `"leaky_relu(0.2)"`.

    >>> named("silu").name
    'swish'
    >>> named("leaky_relu(0.2)")
    'leaky_relu(0.2)'
    """
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    name = match.group(1).lower() if match else text
    name = _ALIASES.get(name, name)
    given = match.group(2) if match else None
    if name in _FIXED and not given:
        return _FIXED[name]
    if name in _FAMILIES:
        return _FAMILIES[name](*_numbers(text, name, given or ""))
    if name in _FIXED:
        raise InvalidInput("activation", repr(text), f"{name!r}, which takes no parameter")
    raise UnknownName.of(
        "activation", text, [*NAMES, *_ALIASES], also=", or a function of one argument written in jax.numpy"
    )


def _numbers(text: str, name: str, given: str) -> list[float]:
    parameters = inspect.signature(_FAMILIES[name]).parameters
    pieces = [piece.split("=")[-1].strip() for piece in given.split(",") if piece.strip()]
    try:
        values = [float(piece) for piece in pieces]
    except ValueError:
        values = [float("nan")]
    if len(values) > len(parameters) or not all(abs(v) < float("inf") for v in values):
        expected = f"{name}({', '.join(parameters)}) with finite numbers, for example {name}(0.1)"
        raise InvalidInput("activation", repr(text), expected)
    return values


def _reduce(activation: Activation):
    """Built-ins are pickled by name: their functions are closures, and the copy must be the same activation."""
    if activation.builtin:
        return named, (activation.spec,)
    return Activation, (
        activation.name,
        activation.function,
        activation.kinks,
        activation.parameters,
        activation.closed,
    )


copyreg.pickle(Activation, _reduce)  # pyright: ignore[reportArgumentType]
