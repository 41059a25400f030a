"""Activations under the peer's names, by closed form where one is known and by Hermite series elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
from jax.scipy.special import erf

from widthwise.activations import Activation, resolve
from widthwise.activations.closed_forms import ReluFamilyForm
from widthwise.errors import InvalidInput
from widthwise.network import Elementwise as ElementwiseLayer
from widthwise.network.validation import check_flag, check_integer, check_real, real_array
from widthwise.stax.recipes import Item, StaxLayer, made_of

#: Of a polynomial: its moments are factorials of twice the degree.
_HIGHEST_DEGREE = 60


def _layer(activation: Any) -> StaxLayer:
    made = ElementwiseLayer(activation)
    return made_of(Item(lambda sizes: ([made], sizes.channels)))


def _numbers(**given: Any) -> tuple[float, ...]:
    """Finite numbers by the names of their arguments."""
    return tuple(
        check_real(name, value, "a number from -1e50 to 1e50", least=-1e50, largest=1e50)
        for name, value in given.items()
    )


@lru_cache(maxsize=256)
def _function(name: str, numbers: tuple[float, ...]) -> Activation:
    """One object for each function, so that what is known of it is found again."""
    made = _FUNCTIONS[name]
    text = f"{name}({', '.join(f'{number:g}' for number in numbers)})"
    kinks = (0.0,) if name == "rectified_monomial" else ()
    return resolve(Activation(text, lambda z: made(z, *numbers), kinks))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "erf": lambda z, a, b, c: a * erf(b * z) + c,
    "sin": lambda z, a, b, c: a * jnp.sin(b * z + c),
    "rbf": lambda z, gamma: math.sqrt(2.0) * jnp.sin(math.sqrt(2.0 * gamma) * z + math.pi / 4.0),
    "exp": lambda z, a, b: a * jnp.exp(b * z),
    "gaussian": lambda z, a, b: a * jnp.exp(b * z * z),
    "gabor": lambda z: jnp.exp(-z * z) * jnp.sin(z),
    "rectified_monomial": lambda z, degree: jnp.where(z >= 0.0, z ** int(degree), 0.0),
    "polynomial": lambda z, *coefficients: jnp.polyval(jnp.asarray(coefficients[::-1], z.dtype), z) + 0.0 * z,
    "sigmoid_like": lambda z: 0.5 * erf(z / 2.4020563531719796) + 0.5,
}


def Relu(do_stabilize: bool = False) -> StaxLayer:
    """max(z, 0); stable without being asked."""
    check_flag("do_stabilize", do_stabilize)
    return _layer("relu")


def LeakyRelu(alpha: float, do_stabilize: bool = False) -> StaxLayer:
    """z for z > 0 and α z below."""
    check_flag("do_stabilize", do_stabilize)
    return _layer(f"leaky_relu({_numbers(alpha=alpha)[0]!r})")


def ABRelu(a: float, b: float, do_stabilize: bool = False) -> StaxLayer:
    """a min(z, 0) + b max(z, 0)."""
    check_flag("do_stabilize", do_stabilize)
    return _layer(_two_slopes(*_numbers(a=a, b=b)))


@lru_cache(maxsize=64)
def _two_slopes(a: float, b: float) -> Activation:
    function = lambda z: jnp.where(z > 0.0, b * z, a * z)  # noqa: E731
    return Activation(f"abrelu({a:g}, {b:g})", function, (0.0,), (a, b), ReluFamilyForm(b, a), builtin=False)


def Abs(do_stabilize: bool = False) -> StaxLayer:
    """|z|."""
    return ABRelu(-1.0, 1.0, do_stabilize)


def Sign() -> StaxLayer:
    """The sign of z; only its nngp exists."""
    return _layer(_sign())


@lru_cache(maxsize=1)
def _sign() -> Activation:
    return resolve(Activation("sign", lambda z: jnp.where(z > 0.0, 1.0, -1.0) + 0.0 * z, (0.0,)))


def Erf(a: float = 1.0, b: float = 1.0, c: float = 0.0) -> StaxLayer:
    """a erf(b z) + c."""
    numbers = _numbers(a=a, b=b, c=c)
    return _layer("erf" if numbers == (1.0, 1.0, 0.0) else _function("erf", numbers))


def Gelu(approximate: bool = False) -> StaxLayer:
    """z Φ(z), or its approximation by a tanh."""
    return _layer("gelu_tanh" if check_flag("approximate", approximate) else "gelu")


def Sin(a: float = 1.0, b: float = 1.0, c: float = 0.0) -> StaxLayer:
    """a sin(b z + c)."""
    numbers = _numbers(a=a, b=b, c=c)
    return _layer("sin" if numbers == (1.0, 1.0, 0.0) else _function("sin", numbers))


def Cos(a: float = 1.0, b: float = 1.0, c: float = 0.0) -> StaxLayer:
    """a cos(b z + c)."""
    a, b, c = _numbers(a=a, b=b, c=c)
    return Sin(a, b, c + math.pi / 2.0)


def Rbf(gamma: float = 1.0) -> StaxLayer:
    """√2 sin(√(2γ) z + π/4), whose kernel of one layer is e^{−γ|x−x'|²}."""
    return _layer(_function("rbf", (check_real("gamma", gamma, "a number from 0 to 1e50", largest=1e50),)))


def Exp(a: float = 1.0, b: float = 1.0) -> StaxLayer:
    """a e^{b z}."""
    return _layer(_function("exp", _numbers(a=a, b=b)))


def Gaussian(a: float = 1.0, b: float = -1.0) -> StaxLayer:
    """a e^{b z²}."""
    return _layer(_function("gaussian", _numbers(a=a, b=b)))


def Gabor() -> StaxLayer:
    """e^{−z²} sin z."""
    return _layer(_function("gabor", ()))


def Sigmoid_like() -> StaxLayer:
    """½ erf(z/2.402…) + ½, close to the logistic function."""
    return _layer(_function("sigmoid_like", ()))


def Monomial(degree: int) -> StaxLayer:
    """z^degree."""
    degree = check_integer("degree", degree, 0, _HIGHEST_DEGREE, f"an integer from 0 to {_HIGHEST_DEGREE}")
    return _layer("linear") if degree == 1 else Polynomial([0.0] * degree + [1.0])


def RectifiedMonomial(degree: int) -> StaxLayer:
    """z^degree for z ≥ 0, nothing below."""
    degree = check_integer("degree", degree, 0, _HIGHEST_DEGREE, f"an integer from 0 to {_HIGHEST_DEGREE}")
    return _layer({0: "step", 1: "relu"}.get(degree) or _function("rectified_monomial", (float(degree),)))


def Polynomial(coef: Sequence[float]) -> StaxLayer:
    """Σ_i coef_i z^i."""
    numbers = real_array(coef, "coef")
    if numbers.ndim != 1 or not 1 <= numbers.size <= _HIGHEST_DEGREE + 1:
        raise InvalidInput("coef", repr(coef), f"a list of 1 to {_HIGHEST_DEGREE + 1} coefficients, the constant first")
    return _layer(_function("polynomial", tuple(map(float, numbers))))


def Hermite(degree: int) -> StaxLayer:
    """The Hermite polynomial of a degree, normalised to ⟨he²⟩ = 1."""
    degree = check_integer("degree", degree, 0, _HIGHEST_DEGREE, f"an integer from 0 to {_HIGHEST_DEGREE}")
    below, own = [1.0], [0.0, 1.0]
    if degree == 0:
        return Polynomial(below)
    for k in range(1, degree):
        after = [0.0, *own]
        for place, value in enumerate(below):
            after[place] -= k * value
        below, own = own, after
    return Polynomial([value / math.sqrt(math.factorial(degree)) for value in own])


def Elementwise(fn: Callable[..., Any] | None = None, nngp_fn: Any = None, d_nngp_fn: Any = None) -> StaxLayer:
    """Any function of one array written in jax.numpy; its expectations are found here."""
    if fn is None:
        raise InvalidInput("fn", "None", "the function itself", "Kernels from nngp_fn alone have no network here.")
    return _layer(fn)


def ElementwiseNumerical(fn: Callable[..., Any], deg: int = 25, df: Any = None, do_backprop: bool = False) -> StaxLayer:
    """Any function of one array written in jax.numpy; `deg` and `df` are not needed."""
    return _layer(fn)
