"""Training algorithms: what theory and experiment must agree on, and no more."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, fields

from widthwise.errors import InvalidInput
from widthwise.network.layers.base import register_pytree


@dataclass(frozen=True)
class GradientFlow:
    """Gradient flow dθ/dt = −λ ∂L/∂θ, L = ½Σ(z−y)², for a `time`, or to convergence when it is None (theory §8).

    >>> GradientFlow()
    GradientFlow(time=None)
    """

    time: float | None = None

    def __post_init__(self) -> None:
        if self.time is not None and not _is_positive(self.time, zero=True):
            raise InvalidInput("time", repr(self.time), "a finite non-negative number, or None for convergence")


@dataclass(frozen=True)
class GradientDescent:
    """Full-batch gradient descent θ → θ − η λ ∂L/∂θ for a number of `steps`, or to convergence when None (theory §8).

    >>> GradientDescent(learning_rate=0.1, steps=20)
    GradientDescent(learning_rate=0.1, steps=20)
    """

    learning_rate: float
    steps: int | None = None

    def __post_init__(self) -> None:
        _check_descent(self.learning_rate, self.steps)


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent in batches drawn without replacement, for `steps`, or to convergence when None.

    The gradient of a batch of B among N inputs is multiplied by N/B, so that its mean is the full gradient of theory
    §8 and the learning rate means the same as in `GradientDescent`.

    >>> SGD(learning_rate=0.1, batch_size=4)
    SGD(learning_rate=0.1, batch_size=4, steps=None)
    """

    learning_rate: float
    batch_size: int
    steps: int | None = None

    def __post_init__(self) -> None:
        _check_descent(self.learning_rate, self.steps, self.batch_size)
        if self.batch_size is None:
            raise InvalidInput("batch_size", "None", "a positive integer", "Use GradientDescent for full batches.")


@dataclass(frozen=True)
class Momentum:
    """Descent with heavy-ball momentum: v → μv + ∂L/∂θ, θ → θ − ηλv; full batch unless `batch_size` is given.

    >>> Momentum(learning_rate=0.1)
    Momentum(learning_rate=0.1, momentum=0.9, steps=None, batch_size=None)
    """

    learning_rate: float
    momentum: float = 0.9
    steps: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        _check_descent(self.learning_rate, self.steps, self.batch_size)
        _check_fraction("momentum", self.momentum)


@dataclass(frozen=True)
class Adam:
    """Adam on parameters measured in units of √λ; full batch unless `batch_size` is given.

    With g = √λ ∂L/∂θ and its averages m, v (β₁, β₂, corrected for their start), θ → θ − η√λ m/(√v + ε).

    >>> Adam(learning_rate=0.01, steps=100)
    Adam(learning_rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-08, steps=100, batch_size=None)
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    steps: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        _check_descent(self.learning_rate, self.steps, self.batch_size)
        _check_fraction("beta1", self.beta1)
        _check_fraction("beta2", self.beta2)
        if not _is_positive(self.epsilon, zero=True):
            raise InvalidInput("epsilon", repr(self.epsilon), "a finite non-negative number")


@dataclass(frozen=True)
class NewtonStep:
    """One step θ → θ − λ (∂z/∂θ)ᵀ a, with the a that makes the stepped network fit its training targets (theory §8).

    At infinite width it ends where gradient flow ends; at order 1/n it does not: it sees the kernel at one point only.

    >>> NewtonStep()
    NewtonStep()
    """


# Rates, times and steps are leaves: none of them is compiled in. The size of a batch is a shape.
for _algorithm in (GradientFlow, GradientDescent, SGD, Momentum, Adam, NewtonStep):
    register_pytree(_algorithm, [field.name for field in fields(_algorithm) if field.name != "batch_size"])


def _is_positive(value: object, zero: bool = False) -> bool:
    try:
        number = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return False
    return math.isfinite(number) and (number > 0 or (zero and number == 0))


def _check_descent(learning_rate: object, steps: object, batch_size: object = None) -> None:
    if not _is_positive(learning_rate):
        raise InvalidInput("learning_rate", repr(learning_rate), "a finite positive number")
    if steps is not None and not _whole(steps, 0):
        raise InvalidInput("steps", repr(steps), "a non-negative integer, or None for convergence")
    if batch_size is not None and not _whole(batch_size, 1):
        raise InvalidInput("batch_size", repr(batch_size), "a positive integer")


def _check_fraction(name: str, value: object) -> None:
    if not (_is_positive(value, zero=True) and float(value) < 1):  # pyright: ignore[reportArgumentType]
        raise InvalidInput(name, repr(value), "a number from 0 up to, and not including, 1")


def _whole(value: object, least: int) -> bool:
    try:
        return operator.index(value) >= least and not isinstance(value, bool)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return False
