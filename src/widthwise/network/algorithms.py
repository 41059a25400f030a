"""Training algorithms: what theory and experiment must agree on, and no more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from widthwise.errors import InvalidInput
from widthwise.network.layers.base import register_pytree
from widthwise.network.validation import LEAST, check_integer, check_real

_below_one = partial(
    check_real, expected="a number from 0 up to, and not including, 1", largest=math.nextafter(1.0, 0.0)
)
#: How each setting is checked.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "time": partial(check_real, expected="a finite non-negative number, or None for convergence"),
    "learning_rate": partial(check_real, expected="a finite positive number", least=LEAST),
    "steps": partial(check_integer, least=0, expected="a non-negative integer, or None for convergence"),
    "batch_size": partial(check_integer, least=1, expected="a positive integer"),
    "epsilon": partial(check_real, expected="a finite non-negative number"),
    **dict.fromkeys(("momentum", "beta1", "beta2"), _below_one),
}
#: Settings for which None stands for convergence, or for full batches.
_OPTIONAL = ("time", "steps", "batch_size")


class _Algorithm:
    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None or name not in _OPTIONAL:
                _CHECKS[name](name, value)


@dataclass(frozen=True)
class GradientFlow(_Algorithm):
    """Gradient flow dθ/dt = −λ ∂L/∂θ, L = ½Σ(z−y)², for a `time`, or to convergence when it is None (theory §8).

    >>> GradientFlow()
    GradientFlow(time=None)
    """

    time: float | None = None


@dataclass(frozen=True)
class GradientDescent(_Algorithm):
    """Full-batch gradient descent θ → θ − η λ ∂L/∂θ for a number of `steps`, or to convergence when None (theory §8).

    >>> GradientDescent(learning_rate=0.1, steps=20)
    GradientDescent(learning_rate=0.1, steps=20)
    """

    learning_rate: float
    steps: int | None = None


@dataclass(frozen=True)
class SGD(_Algorithm):
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
        super().__post_init__()
        if self.batch_size is None:
            raise InvalidInput("batch_size", "None", "a positive integer", "Use GradientDescent for full batches.")


@dataclass(frozen=True)
class Momentum(_Algorithm):
    """Descent with heavy-ball momentum: v → μv + ∂L/∂θ, θ → θ − ηλv; full batch unless `batch_size` is given.

    >>> Momentum(learning_rate=0.1)
    Momentum(learning_rate=0.1, momentum=0.9, steps=None, batch_size=None)
    """

    learning_rate: float
    momentum: float = 0.9
    steps: int | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class Adam(_Algorithm):
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
