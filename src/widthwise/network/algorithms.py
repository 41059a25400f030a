"""Training algorithms: what theory and experiment must agree on, and no more."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

from widthwise.errors import InvalidInput


@dataclass(frozen=True)
class GradientFlow:
    """Gradient flow dθ/dt = −λ ∂L/∂θ, L = ½Σ(z−y)², for a `time`, or to convergence when it is None (theory §8).

    >>> GradientFlow()
    GradientFlow(time=None)
    """

    time: float | None = None

    def __post_init__(self):
        if self.time is not None and not _positive(self.time, zero=True):
            raise InvalidInput("time", repr(self.time), "a finite non-negative number, or None for convergence")


@dataclass(frozen=True)
class GradientDescent:
    """Full-batch gradient descent θ → θ − η λ ∂L/∂θ for a number of `steps`, or to convergence when None (theory §8).

    >>> GradientDescent(learning_rate=0.1, steps=20)
    GradientDescent(learning_rate=0.1, steps=20)
    """

    learning_rate: float
    steps: int | None = None

    def __post_init__(self):
        if not _positive(self.learning_rate):
            raise InvalidInput("learning_rate", repr(self.learning_rate), "a finite positive number")
        if self.steps is not None:
            try:
                valid = operator.index(self.steps) >= 0 and not isinstance(self.steps, bool)
            except TypeError:
                valid = False
            if not valid:
                raise InvalidInput("steps", repr(self.steps), "a non-negative integer, or None for convergence")


@dataclass(frozen=True)
class NewtonStep:
    """One step θ → θ − λ (∂z/∂θ)ᵀ a, with the a that makes the stepped network fit its training targets (theory §8).

    At infinite width it ends where gradient flow ends; at order 1/n it does not: it sees the kernel at one point only.

    >>> NewtonStep()
    NewtonStep()
    """


def _positive(value: object, zero: bool = False) -> bool:
    try:
        number = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return False
    return math.isfinite(number) and (number > 0 or (zero and number == 0))
