"""The activation: σ, its derivatives of any order, where it kinks, and its closed forms if it has any."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from widthwise import precision as _precision  # noqa: F401  (float64 before any array is made)

#: A function that acts on each entry of an array.
RealFunction = Callable[[Any], Any]

#: One-sided values next to a kink are read at this distance from it (times the kink's own size, if larger).
ONE_SIDED = 1e-12
#: A jump smaller than this, relative to the values on either side, is no jump.
JUMP_TOLERANCE = 1e-9


class Atom(NamedTuple):
    """A point mass `weight · δ^(order)(z − position)` inside a derivative of a kinked activation."""

    position: float
    order: int
    weight: float


class ClosedForm(Protocol):
    """Exact ⟨σ^(p)(z_a) σ^(q)(z_b)⟩ as a function of the 2×2 kernel, written for one pair."""

    def pair(self, p: int, q: int, K_aa: Any, K_ab: Any, K_bb: Any) -> Any: ...

    def stated(self, p: int, q: int) -> bool: ...

    def value_and_slope(self, K_aa: Any, K_ab: Any, K_bb: Any) -> tuple[Any, Any]:
        """⟨σ_a σ_b⟩ and ⟨σ'_a σ'_b⟩, which kernels read together; forms that share work between the two say so."""
        return self.pair(0, 0, K_aa, K_ab, K_bb), self.pair(1, 1, K_aa, K_ab, K_bb)


def differentiate(function: RealFunction) -> RealFunction:
    """Derivative of an elementwise function, again elementwise (one forward-mode pass)."""
    return lambda z: jax.jvp(function, (z,), (jnp.ones_like(z),))[1]


@lru_cache(maxsize=512)
def _derivative(function: RealFunction, order: int) -> RealFunction:
    return function if order == 0 else differentiate(_derivative(function, order - 1))


@dataclass(frozen=True, eq=False)
class Activation:
    """An activation function and what the theory must know about it.

    `function` acts elementwise and is written in `jax.numpy`; its derivatives come from jax. `kinks` are the
    positions where σ or one of its derivatives jumps. `closed` gives Gaussian expectations exactly, where known.

    Two activations are equal when they are the same built-in with the same parameters, or the same function with
    the same kinks.

    >>> from widthwise.activations import resolve
    >>> relu = resolve("relu")
    >>> relu.kinks, relu.first_jump
    ((0.0,), 1)
    >>> float(relu.derivative(1)(2.0))
    1.0
    """

    name: str
    function: RealFunction
    kinks: tuple[float, ...] = ()
    parameters: tuple[float, ...] = ()
    closed: ClosedForm | None = None
    builtin: bool = field(default=False, repr=False)

    def __call__(self, z: Any) -> Any:
        return self.function(z)

    @property
    def spec(self) -> str:
        """The name as a user would type it, parameters included: `leaky_relu(0.1)`."""
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(f'{p:.17g}' if p != round(p, 6) else f'{p:g}' for p in self.parameters)})"

    def _identity(self):
        return (self.name, self.parameters) if self.builtin else (self.function, self.kinks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Activation) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        if self.builtin:
            return repr(self.spec)
        kinks = f", kinks={self.kinks!r}" if self.kinks else ""
        return f"Activation(name={self.name!r}, function={self.function!r}{kinks})"

    def derivative(self, order: int) -> RealFunction:
        """The regular part of σ^(order): σ differentiated wherever it has no kink (theory §1, Kinks)."""
        return _derivative(self.function, order)

    def jumps(self, order: int) -> np.ndarray:
        """Jump of σ^(order) across each kink, right minus left."""
        return _jumps(self, order) if self.kinks else np.zeros(0)

    @cached_property
    def first_jump(self) -> float:
        """Lowest derivative that jumps somewhere: 0 for a step, 1 for relu, 2 for elu, infinity if smooth."""
        return next((order for order in range(8) if np.any(self.jumps(order) != 0.0)), math.inf)

    def atoms(self, order: int) -> tuple[Atom, ...]:
        """Point masses of σ^(order): the jump of σ^(m) contributes jump · δ^(order−1−m) for every m < order."""
        return tuple(
            Atom(position, order - 1 - m, float(jump))
            for m in range(order)
            for position, jump in zip(self.kinks, self.jumps(m), strict=True)
            if jump != 0.0
        )

    def exists_at_one_input(self, p: int, q: int) -> bool:
        """Whether ⟨σ^(p) σ^(q)⟩ exists when both factors see the same input.

        A δ^(s) may stand next to a function with s continuous derivatives, not next to a jump or another δ
        (theory §1, Kinks); with m = `first_jump` that is p, q ≤ m or p + q ≤ 2m.
        """
        return max(p, q) <= self.first_jump or p + q <= 2 * self.first_jump


@lru_cache(maxsize=512)
def _jumps(activation: Activation, order: int) -> np.ndarray:
    kinks = np.asarray(activation.kinks)
    step = ONE_SIDED * np.maximum(1.0, np.abs(kinks))
    value, slope = activation.derivative(order), activation.derivative(order + 1)
    one_sided = jax.jit(lambda z, offset: value(z) - offset * slope(z))
    right, left = (np.asarray(one_sided(kinks + offset, offset)) for offset in (step, -step))
    jump = right - left
    jump[np.abs(jump) <= JUMP_TOLERANCE * np.maximum(1.0, np.abs(right) + np.abs(left))] = 0.0
    return jump


#: What stands for an activation where one is asked for: a name, a function written in jax.numpy, or an Activation.
ActivationLike = str | Callable[..., Any] | Activation
