"""Positive numbers of any size: a float64 mantissa and a power of two, so that 2^100000 and 2^−100000 are ordinary.

Arithmetic is as exact as float64: powers of two never round. It is elementwise and goes through `jax.lax.scan`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: Exponent of zero: below that of every other number.
_ZERO_EXPONENT = -(1 << 29)


@dataclass(frozen=True)
class Scaled:
    """mantissa · 2^exponent with ½ ≤ mantissa < 1, or zero; plus and times floats, plus and over others of its kind.

    >>> total = 1.0 + 3.0 * scaled_number(1.0, 5000) + scaled_number(1.0, 5001)
    >>> total.mantissa.item(), total.exponent.item(), (total / scaled_number(2.0, 5001)).item()
    (0.625, 5003, 1.25)
    """

    mantissa: Any
    exponent: Any

    #: numpy numbers on the left leave the operation to this class
    __array_ufunc__ = None

    def __getitem__(self, layers) -> Scaled:
        return Scaled(self.mantissa[layers], self.exponent[layers])

    def __mul__(self, factor) -> Scaled:
        return scaled_number(self.mantissa * factor, self.exponent)

    def __add__(self, other) -> Scaled:
        other = other if isinstance(other, Scaled) else scaled_number(other)
        top = jnp.maximum(self.exponent, other.exponent)
        return scaled_number(sum(jnp.ldexp(one.mantissa, one.exponent - top) for one in (self, other)), top)

    def __truediv__(self, other: Scaled):
        """As a float; zero if the other number is."""
        alive = other.mantissa > 0.0
        mantissa = self.mantissa / jnp.where(alive, other.mantissa, 1.0)
        return jnp.where(alive, jnp.ldexp(mantissa, self.exponent - other.exponent), 0.0)

    __rmul__, __radd__ = __mul__, __add__


jax.tree_util.register_dataclass(Scaled, ["mantissa", "exponent"], [])


def scaled_number(value: Any, exponent: Any = 0) -> Scaled:
    """value · 2^exponent."""
    mantissa, shift = jnp.frexp(value)
    return Scaled(mantissa, jnp.where(mantissa == 0.0, _ZERO_EXPONENT, shift + exponent).astype(jnp.int32))


def recursion(step: Callable[[Scaled, Any], tuple[Scaled, Any]], first: Scaled, layers: Any) -> tuple[Scaled, Any]:
    """The numbers of all layers from the first on, and what every step notes besides; `step` gives both."""

    def noted(below, layer):
        above, note = step(below, layer)
        return above, (above, note)

    _, (above, notes) = jax.lax.scan(noted, first, layers)
    return jax.tree.map(lambda one, others: jnp.concatenate([one[None], others]), first, above), notes


def value_of(number: Scaled) -> np.ndarray:
    """As float64: infinity above 1.8e308 and zero below 2.2e-308.

    >>> value_of(Scaled(np.array([0.5, 0.5, 0.5]), np.array([3, 5000, -5000])))
    array([ 4., inf,  0.])
    """
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(np.asarray(number.mantissa), np.asarray(number.exponent))


def log_of(number: Scaled) -> np.ndarray:
    """The natural logarithm, finite for every number but zero.

    >>> log_of(Scaled(np.array([0.5, 0.0]), np.array([100001, 0]))) / np.log(2.0)
    array([100000.,    -inf])
    """
    mantissa = np.asarray(number.mantissa)
    with np.errstate(divide="ignore"):
        return np.where(mantissa > 0.0, np.log(mantissa) + np.asarray(number.exponent) * np.log(2.0), -np.inf)
