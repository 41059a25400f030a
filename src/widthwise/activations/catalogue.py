"""The built-in activations, one line each, and activations from the user: a name, or a function in jax.numpy."""

from __future__ import annotations

import copyreg
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations.base import Activation, ActivationLike
from widthwise.activations.closed_forms import DerivativeForm, ErfForm, GeluForm, MonomialForm, ReluFamilyForm, SineForm
from widthwise.errors import BadActivation, InvalidInput, NoRule, UnknownName, shown


def _two_slopes(positive: float, negative: float) -> Callable:
    return lambda z: jnp.where(z > 0, positive * z, negative * z)


@jax.custom_jvp
def _sigmoid(z: Any) -> Any:
    """The sigmoid with a derivative σ(z)σ(−z) that keeps its digits where σ is all but one: σ(1−σ) does not."""
    return jax.nn.sigmoid(z)


@_sigmoid.defjvp
def _sigmoid_slope(primals: Any, tangents: Any) -> Any:
    (z,), (dz,) = primals, tangents
    return _sigmoid(z), _sigmoid(z) * _sigmoid(-z) * dz


def _gelu_tanh(z: Any) -> Any:
    """½z(1 + tanh(√(2/π)(z + 0.044715z³))), the default of jax.nn.gelu, as z times a sigmoid: nothing cancels."""
    return z * _sigmoid(math.sqrt(8.0 / math.pi) * (z + 0.044715 * z**3))


_RELU = ReluFamilyForm(1.0, 0.0)

_FIXED = {
    name: Activation(name, function, kinks, closed=closed, builtin=True)
    for name, function, kinks, closed in (
        ("step", lambda z: jnp.where(z >= 0, 1.0, 0.0).astype(jnp.result_type(z)), (0.0,), DerivativeForm(_RELU)),
        ("sigmoid", jax.nn.sigmoid, (), None),
        ("tanh", jnp.tanh, (), None),
        ("sin", jnp.sin, (), SineForm()),
        ("linear", lambda z: z, (), MonomialForm(1)),
        ("relu", _two_slopes(1.0, 0.0), (0.0,), _RELU),
        ("softplus", jax.nn.softplus, (), None),
        ("swish", lambda z: z * jax.nn.sigmoid(z), (), None),
        ("gelu", lambda z: 0.5 * z * jax.lax.erfc(-math.sqrt(0.5) * z), (), GeluForm()),
        ("gelu_tanh", _gelu_tanh, (), None),
        ("erf", jax.scipy.special.erf, (), ErfForm()),
        ("quadratic", lambda z: z**2, (), MonomialForm(2)),
        ("cubic", lambda z: z**3, (), MonomialForm(3)),
        ("mish", jax.nn.mish, (), None),
        ("logsigmoid", jax.nn.log_sigmoid, (), None),
        ("tanhshrink", lambda z: z - jnp.tanh(z), (), None),
        ("softsign", jax.nn.soft_sign, (0.0,), None),
        ("selu", jax.nn.selu, (0.0,), None),
        ("relu6", jax.nn.relu6, (0.0, 6.0), None),
        ("hardsigmoid", jax.nn.hard_sigmoid, (-3.0, 3.0), None),
        ("hardswish", jax.nn.hard_silu, (-3.0, 3.0), None),
        ("sparse_plus", jax.nn.sparse_plus, (-1.0, 1.0), None),
        ("sparse_sigmoid", jax.nn.sparse_sigmoid, (-1.0, 1.0), None),
    )
}


class _Family(NamedTuple):
    """Activations that differ by parameters: σ(z, *parameters), where it kinks, and what the parameters must be."""

    form: str
    function: Callable
    defaults: tuple[float, ...] | None
    kinks: Callable[..., tuple[float, ...]] = lambda *_: (0.0,)
    allowed: Callable[..., bool] = lambda *_: True
    expected: str = "finite numbers"
    closed: Callable[..., Any] = lambda *_: None


def _shrunk(z: Any, width: float, shift: float) -> Any:
    return jnp.where(z > width, z - shift, jnp.where(z < -width, z + shift, 0.0))


_FAMILIES = {
    family.form.partition("(")[0]: family
    for family in (
        _Family(
            "leaky_relu(slope)", lambda z, slope: _two_slopes(1.0, slope)(z), (0.01,),
            lambda slope: (0.0,) if slope != 1.0 else (), closed=lambda slope: ReluFamilyForm(1.0, slope),
        ),
        _Family("elu(alpha)", jax.nn.elu, (1.0,)),
        _Family("celu(alpha)", jax.nn.celu, (1.0,), allowed=lambda alpha: alpha > 0.0, expected="a positive alpha"),
        _Family(
            "softplus(beta)", lambda z, beta: jax.nn.softplus(beta * z) / beta, (1.0,), lambda beta: (),
            lambda beta: beta > 0.0, "a positive beta",
        ),
        _Family(
            "squareplus(b)", jax.nn.squareplus, (4.0,), lambda b: (), lambda b: b > 0.0, "a positive b",
        ),
        _Family(
            "hardtanh(low, high)", jnp.clip, (-1.0, 1.0), lambda *ends: ends, lambda low, high: low < high, "low < high"
        ),
        _Family(
            "softshrink(width)", lambda z, width: _shrunk(z, width, width), (0.5,), lambda width: (-width, width),
            lambda width: width > 0.0, "a positive width",
        ),
        _Family(
            "hardshrink(width)", lambda z, width: _shrunk(z, width, 0.0), (0.5,), lambda width: (-width, width),
            lambda width: width > 0.0, "a positive width",
        ),
        _Family(
            "threshold(position, value)", lambda z, position, value: jnp.where(z > position, z, value), None,
            lambda position, value: (position,),
        ),
    )
}  # fmt: skip

#: Names of the same function elsewhere. Letters' case and underscores do not count: `hard_tanh` is torch's `Hardtanh`.
_ALIASES = {
    "perceptron": "step", "silu": "swish", "identity": "linear", "sine": "sin", "logistic": "sigmoid",
    "hard_silu": "hardswish", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip
_MIXES = "it lets the neurons of a layer act on each other, and the theory needs a function of one number"
#: Why layers of torch and jax that are called activations are none here, by their names in small letters.
NO_ACTIVATIONS = {
    "softmax": _MIXES, "softmin": _MIXES, "logsoftmax": _MIXES, "softmax2d": _MIXES, "glu": _MIXES,
    "multiheadattention": _MIXES,
    "prelu": "its slope is learned; leaky_relu(slope) has a fixed one",
    "rrelu": "its slope is drawn anew at every call; leaky_relu(slope) has a fixed one",
}  # fmt: skip

#: jax's own functions that are exactly a built-in.
_SAME_FUNCTION = {
    jax.nn.relu: "relu", jnp.tanh: "tanh", jax.nn.tanh: "tanh", jnp.sin: "sin", jax.nn.sigmoid: "sigmoid",
    jax.nn.softplus: "softplus", jax.nn.silu: "swish", jax.nn.swish: "swish", jax.scipy.special.erf: "erf",
    jax.nn.gelu: "gelu_tanh", jax.nn.identity: "linear", jax.nn.leaky_relu: "leaky_relu", jax.nn.elu: "elu",
    jax.nn.celu: "celu", jax.nn.selu: "selu", jax.nn.mish: "mish", jax.nn.log_sigmoid: "logsigmoid",
    jax.nn.soft_sign: "softsign", jax.nn.relu6: "relu6", jax.nn.hard_sigmoid: "hardsigmoid",
    jax.nn.hard_silu: "hardswish", jax.nn.hard_swish: "hardswish", jax.nn.hard_tanh: "hardtanh",
    jax.nn.squareplus: "squareplus", jax.nn.sparse_plus: "sparse_plus", jax.nn.sparse_sigmoid: "sparse_sigmoid",
}  # fmt: skip
#: Points at which a function of the user is tried.
_PROBE = np.array([-7.3, -3.0, -1.1, -0.4, -1e-3, 1e-3, 0.3, 0.9, 2.1, 5.7])

ACTIVATION_NAMES = tuple(sorted({*_FIXED, *_FAMILIES}))


def _bare(name: str) -> str:
    return name.lower().replace("_", "")


_BY_BARE_NAME = {_bare(name): name for name in ACTIVATION_NAMES} | {_bare(a): name for a, name in _ALIASES.items()}


@lru_cache(maxsize=256)
def _member(name: str, values: tuple[float, ...]) -> Activation:
    """An activation with parameters, made once for each set of them."""
    family = _FAMILIES[name]
    kinks, closed = tuple(sorted(family.kinks(*values))), family.closed(*values)
    return Activation(name, lambda z: family.function(z, *values), kinks, values, closed, builtin=True)


def named(text: str) -> Activation:
    """An activation from its name: `"tanh"`, `"silu"`, `"leaky_relu(0.2)"`.

    >>> named("silu").name
    'swish'
    >>> named("LeakyReLU(0.2)")
    'leaky_relu(0.2)'
    """
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    bare, given = (_bare(match.group(1)), match.group(2) or "") if match else (text, "")
    name = _BY_BARE_NAME.get(bare, bare)
    if bare in NO_ACTIVATIONS:
        reason = f"Reason: {NO_ACTIVATIONS[bare]}."
        raise NoRule("activation", repr(text), "a fixed function that acts on each neuron alone", reason)
    if name not in ACTIVATION_NAMES:
        raise UnknownName.of(
            "activation",
            text,
            [*ACTIVATION_NAMES, *_ALIASES],
            also=", or a function of one argument written in jax.numpy",
        )
    if name not in _FAMILIES or (name in _FIXED and not given):
        if given:
            raise InvalidInput("activation", repr(text), f"{name!r}, which takes no parameter")
        return _FIXED[name]
    family, values = _FAMILIES[name], _parameters(text, given, _FAMILIES[name])
    return _FIXED[name] if name in _FIXED and values == family.defaults else _member(name, values)


def _parameters(text: str, given: str, family: _Family) -> tuple[float, ...]:
    """Those that are written, then the defaults of the others."""
    pieces = [piece.split("=")[-1].strip() for piece in given.split(",") if piece.strip()]
    values = (math.nan,)
    with suppress(ValueError):
        values = tuple(float(piece) for piece in pieces)
    defaults = family.defaults or ()
    count = family.form.count(",") + 1
    values += defaults[len(values) :]
    if len(values) != count or not all(map(math.isfinite, values)) or not family.allowed(*values):
        example = ", ".join(f"{value:g}" for value in defaults or (0.1, 0.0))
        name = family.form.partition("(")[0]
        raise InvalidInput(
            "activation", repr(text), f"{family.form} with {family.expected}, for example {name}({example})"
        )
    return values


def activation(what: ActivationLike, *, kinks: Sequence[float] = (), name: str | None = None) -> Activation:
    """Make an activation from a name or from a function of one array written in `jax.numpy`.

    `kinks` lists the positions where the function or one of its derivatives jumps; without them, whatever needs
    such a derivative is refused with a message that says where the kink was found. `name` is used in messages and
    saved results. Names: step, sigmoid, tanh, sin, linear, relu, leaky_relu(slope), softplus(beta), swish,
    gelu (exact), gelu_tanh, erf, quadratic, cubic, the other elementwise activations of torch.nn and jax.nn by either's
    name (elu, selu, mish, hardtanh, …), and the aliases perceptron, silu, identity.

    >>> import jax.numpy as jnp
    >>> bent = activation(lambda z: z / (1 + 2 * jnp.abs(z)), kinks=[0.0], name="bent")
    >>> bent.first_jump
    2
    >>> activation("leaky_relu(0.3)").parameters
    (0.3,)
    """
    kinks = _checked_kinks(kinks)
    declared = bool(kinks) or name is not None
    if declared and (not callable(what) or isinstance(what, Activation)):
        raise InvalidInput("kinks", f"{kinks} with activation {what!r}", "kinks and name only with a function")
    if declared and callable(what):
        what = Activation(name or _name_of(what), what, kinks=tuple(sorted(set(kinks))))
    return resolve(what)


def _checked_kinks(kinks: Any) -> tuple[float, ...]:
    try:
        array = np.asarray(kinks)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "fiu") or not np.all(np.isfinite(array)):
            raise ValueError
    except Exception:  # of the caller's object, too
        raise InvalidInput("kinks", shown(kinks), "finite positions, as a list", "For example kinks=[0.0].") from None
    return tuple(map(float, array))


def resolve(what: ActivationLike) -> Activation:
    """A checked activation: built-ins by name or by jax function, anything else tried on a few points first."""
    if isinstance(what, Activation):
        return what if what.builtin else _checked(what)
    if isinstance(what, str):
        return named(what)
    if callable(what):
        with suppress(KeyError, TypeError):  # not a known function of jax, or not even hashable
            return named(_SAME_FUNCTION[what])
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
    if dtype != z.dtype:
        remedy = "Return the type that came in: drop .astype(…), or write .astype(z.dtype)."
        raise refuse(f"which returned {dtype} numbers for {z.dtype} input", remedy)
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
