"""Activations from the user: a name, an Activation, or any function written in jax.numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations.base import Activation, ActivationLike
from widthwise.activations.catalogue import builtin_for, named
from widthwise.errors import BadActivation, InvalidInput

_PROBE = np.array([-7.3, -3.0, -1.1, -0.4, -1e-3, 1e-3, 0.3, 0.9, 2.1, 5.7])


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
    return resolve(_declared(what, tuple(float(k) for k in kinks), name))


def resolve(what: ActivationLike) -> Activation:
    """A checked activation: built-ins by name or by jax function, anything else tried on a few points first."""
    if isinstance(what, Activation):
        return what if what.builtin else _checked(what)
    if isinstance(what, str):
        return named(what)
    if callable(what):
        return builtin_for(what) or _checked(Activation(_name_of(what), what))
    raise InvalidInput(
        "activation", f"{what!r} ({type(what).__name__})", "a name, or a function of one argument written in jax.numpy"
    )


def _declared(what, kinks: tuple[float, ...], name: str | None):
    if not callable(what) or isinstance(what, Activation):
        if kinks or name is not None:
            raise InvalidInput("kinks", f"{kinks} with activation {what!r}", "kinks and name only with a function")
        return what
    if not np.all(np.isfinite(kinks)):
        raise InvalidInput("kinks", str(kinks), "finite positions")
    if not kinks and name is None:
        return what
    return Activation(name or _name_of(what), what, kinks=tuple(sorted(set(kinks))))


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
