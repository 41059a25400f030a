"""Distributions of weights and biases: mean zero, symmetric, entry variances C_W/fan_in and C_b (theory §1).

    gaussian          independent, normal
    uniform           independent, uniform on ±√(3 C_W/fan_in); biases uniform on ±√(3 C_b)
    truncated_normal  independent, normal cut at ±2 of its own deviations, then scaled to the variance; biases too
    orthogonal        orthonormal rows (columns, where fan_out > fan_in) drawn from the Haar measure, times
                      √(C_W max(fan_in, fan_out)/fan_in); biases normal
    sparse            in each row a quarter of the entries, rounded up, at random places, normal of variance
                      C_W/(their number), and the others zero; biases normal

Entries of one row are uncorrelated in all of them. Rows are independent of each other except in `orthogonal`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widthwise.decompositions import one_by_one
from widthwise.errors import InvalidInput, UnknownName
from widthwise.network import Network, WeightLayer

#: Where the normal distribution is cut, in its own standard deviations, and the deviation of what is left.
CUT = 2.0
_CUT_DEVIATION = math.sqrt(
    1.0 - CUT * math.exp(-0.5 * CUT**2) * math.sqrt(2.0 / math.pi) / math.erf(CUT / math.sqrt(2.0))
)
#: The fraction of a row's entries that are not zero in "sparse".
NONZERO = 0.25

Draw = Callable[..., jax.Array]


class Initialisation(NamedTuple):
    """Draws of unit variance: weights(key, (fan_out, fan_in)) and biases(key, (fan_out,))."""

    weights: Draw
    biases: Draw


def nonzero_entries(fan_in: int) -> int:
    """How many entries of a row are not zero in "sparse".

    >>> nonzero_entries(64), nonzero_entries(3)
    (16, 1)
    """
    return math.ceil(NONZERO * fan_in)


def in_a_row(draw: Draw) -> Draw:
    """Independent numbers of any shape drawn along one axis: the same numbers, compiled in two thirds of the time."""

    def drawn(key, shape):
        return draw(key, (math.prod(shape),)).reshape(shape)

    return drawn


_normal = in_a_row(jax.random.normal)


@in_a_row
def _uniform(key, shape):
    return jax.random.uniform(key, shape, minval=-math.sqrt(3.0), maxval=math.sqrt(3.0))


@in_a_row
def _truncated(key, shape):
    return jax.random.truncated_normal(key, -CUT, CUT, shape) / _CUT_DEVIATION


def _orthogonal(key, shape):
    draw = one_by_one(lambda key: jax.random.orthogonal(key, shape[0], m=shape[1]))
    return math.sqrt(max(shape)) * draw(key)


def _sparse(key, shape):
    """The argsort of independent numbers is a random permutation: its small values stand at random places."""
    for_places, for_values = jax.random.split(key)
    count = nonzero_entries(shape[1])
    kept = jnp.argsort(in_a_row(jax.random.uniform)(for_places, shape), axis=1) < count
    return jnp.where(kept, math.sqrt(shape[1] / count) * _normal(for_values, shape), 0.0)


INITIALISATIONS = {
    "gaussian": Initialisation(_normal, _normal),
    "uniform": Initialisation(_uniform, _uniform),
    "truncated_normal": Initialisation(_truncated, _truncated),
    "orthogonal": Initialisation(_orthogonal, _normal),
    "sparse": Initialisation(_sparse, _normal),
}


def check_initialisation(net: Network, initialisation: Any) -> tuple[str, ...]:
    """One name per weight layer; a single name is repeated.

    >>> from widthwise.network import MLP
    >>> check_initialisation(MLP([2, 8, 1], "tanh"), "uniform")
    ('uniform', 'uniform')
    """
    count = sum(isinstance(step, WeightLayer) for step in net.steps)
    if isinstance(initialisation, str):
        names = (initialisation,) * count
    elif isinstance(initialisation, list | tuple) and len(initialisation) == count:
        names = tuple(initialisation)
    else:
        raise InvalidInput(
            "initialisation",
            repr(initialisation),
            f"one of {', '.join(sorted(INITIALISATIONS))}, or {count} of them, one per weight layer",
        )
    for name in names:
        if not isinstance(name, str) or name not in INITIALISATIONS:
            raise UnknownName.of("initialisation", name, INITIALISATIONS)
    return names


def is_gaussian(names: tuple[str, ...]) -> bool:
    """Whether the hidden layers are: all but the last, which the estimates of tensors do not read.

    >>> is_gaussian(("gaussian", "gaussian", "uniform")), is_gaussian(("uniform", "gaussian"))
    (True, False)
    """
    return set(names[:-1]) <= {"gaussian"}


def described(names: tuple[str, ...]) -> str:
    """The name, where all layers have one; else all of them.

    >>> described(("uniform", "uniform")), described(("gaussian", "sparse"))
    ('uniform', 'gaussian, sparse')
    """
    return names[0] if len(set(names)) == 1 else ", ".join(names)
