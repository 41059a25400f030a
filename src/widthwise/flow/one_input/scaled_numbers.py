"""Positive numbers of any size: a float64 mantissa and a power of two, so that 2^100000 and 2^−100000 are ordinary.

Arithmetic is as exact as float64: powers of two never round. Functions are elementwise and go through `jax.lax.scan`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

#: Exponent of zero: below that of every other number.
_ZERO = -(1 << 29)


class Scaled(NamedTuple):
    """mantissa · 2^exponent with ½ ≤ mantissa < 1, or zero."""

    mantissa: Any
    exponent: Any


def scaled(value: Any, exponent: Any = 0) -> Scaled:
    """value · 2^exponent.

    >>> [x.item() for x in scaled(3.0, 5000)]
    [0.75, 5002]
    """
    mantissa, shift = jnp.frexp(value)
    return Scaled(mantissa, jnp.where(mantissa == 0.0, _ZERO, shift + exponent).astype(jnp.int32))


def times(number: Scaled, factor) -> Scaled:
    """A scaled number times a float.

    >>> [x.item() for x in times(scaled(1.0, 5000), 3.0)]
    [0.75, 5002]
    """
    return scaled(number.mantissa * factor, number.exponent)


def plus(a: Scaled, b: Scaled) -> Scaled:
    """The sum of two scaled numbers.

    >>> [x.item() for x in plus(scaled(1.0, 5000), scaled(2.0, 5000))]
    [0.75, 5002]
    """
    top = jnp.maximum(a.exponent, b.exponent)
    return scaled(jnp.ldexp(a.mantissa, a.exponent - top) + jnp.ldexp(b.mantissa, b.exponent - top), top)


def ratio(a: Scaled, b: Scaled):
    """a / b as a float; zero if b is.

    >>> ratio(scaled(3.0, 5000), scaled(2.0, 5001)).item()
    0.75
    """
    return jnp.where(
        b.mantissa > 0.0,
        jnp.ldexp(a.mantissa / jnp.where(b.mantissa > 0.0, b.mantissa, 1.0), a.exponent - b.exponent),
        0.0,
    )


def to_float(number: Scaled, smallest: float, largest: float):
    """The number as a float, moved into [smallest, largest].

    >>> to_float(scaled(3.0, 5000), 1e-9, 1e9).item()
    1000000000.0
    """
    return jnp.clip(jnp.ldexp(number.mantissa, jnp.clip(number.exponent, -1020, 1020)), smallest, largest)


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
