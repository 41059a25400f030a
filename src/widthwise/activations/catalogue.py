"""The built-in activations, one line each, and activations from the user: a name, or a function in jax.numpy."""

from __future__ import annotations

import copyreg
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations.base import Activation, ActivationLike
from widthwise.activations.closed_forms import DerivativeForm, ErfForm, GeluForm, MonomialForm, ReluFamilyForm, SineForm
from widthwise.errors import BadActivation, InvalidInput, UnknownName


def _two_slopes(positive: float, negative: float) -> Callable:
    return lambda z: jnp.where(z > 0, positive * z, negative * z)


_RELU = ReluFamilyForm(1.0, 0.0)

_FIXED = {
    name: Activation(name, function, (0.0,) if name in ("step", "relu") else (), closed=closed, builtin=True)
    for name, function, closed in (
        ("step", lambda z: jnp.where(z >= 0, 1.0, 0.0).astype(jnp.result_type(z)), DerivativeForm(_RELU)),
        ("sigmoid", jax.nn.sigmoid, None),
        ("tanh", jnp.tanh, None),
        ("sin", jnp.sin, SineForm()),
        ("linear", lambda z: z, MonomialForm(1)),
        ("relu", _two_slopes(1.0, 0.0), _RELU),
        ("softplus", jax.nn.softplus, None),
        ("swish", lambda z: z * jax.nn.sigmoid(z), None),
        ("gelu", lambda z: 0.5 * z * jax.lax.erfc(-math.sqrt(0.5) * z), GeluForm()),
        ("erf", jax.scipy.special.erf, ErfForm()),
        ("quadratic", lambda z: z**2, MonomialForm(2)),
        ("cubic", lambda z: z**3, MonomialForm(3)),
    )
}

_ALIASES = {"perceptron": "step", "silu": "swish", "identity": "linear", "sine": "sin", "logistic": "sigmoid"}

#: jax's own functions that are exactly a built-in (jax.nn.gelu is not: it defaults to an approximation).
_SAME_FUNCTION = {
    jax.nn.relu: "relu", jnp.tanh: "tanh", jax.nn.tanh: "tanh", jnp.sin: "sin", jax.nn.sigmoid: "sigmoid",
    jax.nn.softplus: "softplus", jax.nn.silu: "swish", jax.nn.swish: "swish", jax.scipy.special.erf: "erf",
}  # fmt: skip
#: Points at which a function of the user is tried.
_PROBE = np.array([-7.3, -3.0, -1.1, -0.4, -1e-3, 1e-3, 0.3, 0.9, 2.1, 5.7])

ACTIVATION_NAMES = tuple(sorted([*_FIXED, "leaky_relu"]))


@lru_cache(maxsize=64)
def _leaky_relu(slope: float = 0.01) -> Activation:
    """z for z > 0, slope · z for z < 0."""
    kinks, closed = (0.0,) if slope != 1.0 else (), ReluFamilyForm(1.0, slope)
    return Activation("leaky_relu", _two_slopes(1.0, slope), kinks, (slope,), closed, builtin=True)


def named(text: str) -> Activation:
    """An activation from its name: `"tanh"`, `"silu"`, `"leaky_relu(0.2)"`.

    >>> named("silu").name
    'swish'
    >>> named("leaky_relu(0.2)")
    'leaky_relu(0.2)'
    """
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    name, given = (match.group(1).lower(), match.group(2) or "") if match else (text, "")
    name = _ALIASES.get(name, name)
    if name == "leaky_relu":
        return _leaky_relu(*_given_slope(text, given))
    if name not in _FIXED:
        raise UnknownName.of(
            "activation",
            text,
            [*ACTIVATION_NAMES, *_ALIASES],
            also=", or a function of one argument written in jax.numpy",
        )
    if given:
        raise InvalidInput("activation", repr(text), f"{name!r}, which takes no parameter")
    return _FIXED[name]


def _given_slope(text: str, given: str) -> list[float]:
    pieces = [piece.split("=")[-1].strip() for piece in given.split(",") if piece.strip()]
    try:
        values = [float(piece) for piece in pieces]
    except ValueError:
        values = [math.nan]
    if len(values) > 1 or not all(map(math.isfinite, values)):
        expected = "leaky_relu(slope) with finite numbers, for example leaky_relu(0.1)"
        raise InvalidInput("activation", repr(text), expected)
    return values


def activation(what: ActivationLike, *, kinks: Sequence[float] = (), name: str | None = None) -> Activation:
    """Make an activation from a name or from a function of one array written in `jax.numpy`.

    `kinks` lists the positions where the function or one of its derivatives jumps; without them, whatever needs
    such a derivative is refused with a message that says where the kink was found. `name` is used in messages and
    saved results. Names: step, sigmoid, tanh, sin, linear, relu, leaky_relu(slope), softplus, swish, gelu (exact),
    erf, quadratic, cubic, and the aliases perceptron, silu, identity.

    >>> import jax.numpy as jnp
    >>> softsign = activation(lambda z: z / (1 + jnp.abs(z)), kinks=[0.0], name="softsign")
    >>> softsign.first_jump
    2
    >>> activation("leaky_relu(0.3)").parameters
    (0.3,)
    """
    kinks = tuple(float(k) for k in kinks)
    declared = bool(kinks) or name is not None
    if declared and (not callable(what) or isinstance(what, Activation)):
        raise InvalidInput("kinks", f"{kinks} with activation {what!r}", "kinks and name only with a function")
    if not np.all(np.isfinite(kinks)):
        raise InvalidInput("kinks", str(kinks), "finite positions")
    if declared and callable(what):
        what = Activation(name or _name_of(what), what, kinks=tuple(sorted(set(kinks))))
    return resolve(what)


def resolve(what: ActivationLike) -> Activation:
    """A checked activation: built-ins by name or by jax function, anything else tried on a few points first."""
    if isinstance(what, Activation):
        return what if what.builtin else _checked(what)
    if isinstance(what, str):
        return named(what)
    if callable(what):
        with suppress(KeyError, TypeError):  # not a known function of jax, or not even hashable
            return _FIXED[_SAME_FUNCTION[what]]
        return _checked(Activation(_name_of(what), what))
    raise InvalidInput(
        "activation", f"{what!r} ({type(what).__name__})", "a name, or a function of one argument written in jax.numpy"
    )


def _name_of(function: Callable) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "custom" if name == "<lambda>" else name


@lru_cache(maxsize=256)
def _checked(candidate: Activation) -> Activation:
    remedy = "Write it elementwise with jax.numpy, for example lambda z: z * jnp.tanh(z)."

    def refuse(problem: str, remedy: str = remedy):
        return BadActivation("activation", f"{candidate.name}, {problem}", "a function of one array", remedy)

    z, compiled = jnp.asarray(_PROBE), jax.jit(candidate.function)
    try:
        values = compiled(z)
    except Exception as error:  # whatever a user's function may raise
        reason = str(error).splitlines()[0] if str(error) else ""
        raise refuse(f"which failed on an array of numbers with {type(error).__name__}: {reason}") from error
    shape, dtype = getattr(values, "shape", None), getattr(values, "dtype", None)
    if shape != z.shape or dtype is None:
        raise refuse(f"which returned shape {shape} for an array of shape {z.shape}")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise refuse(f"which returned {dtype} numbers for float64 input", "Return real floating-point numbers.")
    if not np.all(np.isfinite(values)):
        bad = _PROBE[~np.isfinite(np.asarray(values))]
        raise refuse(f"which returned NaN or infinity at z = {bad[0]:g}", "It must be finite for every real z.")
    alone = [np.asarray(compiled(_PROBE[i : i + 1]))[0] for i in range(len(z))]
    if not np.allclose(values, alone, rtol=1e-10, atol=1e-12):
        raise refuse("whose value at one entry depends on the other entries")
    return candidate


def _reduce(sigma: Activation):
    """Built-ins are pickled by name: their functions are closures, and the copy must be the same activation."""
    if sigma.builtin:
        return named, (sigma.spec,)
    return Activation, (sigma.name, sigma.function, sigma.kinks, sigma.parameters, sigma.closed)


copyreg.pickle(Activation, _reduce)  # pyright: ignore[reportArgumentType]
