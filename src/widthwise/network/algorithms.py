"""Training algorithms: what theory and experiment must agree on, and no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from widthwise.errors import InvalidInput
from widthwise.network.layers.base import register_pytree
from widthwise.network.schedules import Schedule, check_rate
from widthwise.network.validation import check_flag, check_integer, check_names, check_real

FULL_BATCHES = "Use GradientDescent for full batches."
_below_one = partial(
    check_real,
    expected="a number from 0 up to, and not including, 1",
    remedy="0.9 is usual; with 0 nothing is remembered.",
    largest=math.nextafter(1.0, 0.0),
)
#: How each setting is checked.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "time": partial(check_real, expected="a finite non-negative number, or None for convergence"),
    "steps": partial(check_integer, least=0, expected="a non-negative integer, or None for convergence"),
    "batch_size": partial(check_integer, least=1, expected="a positive integer", remedy=FULL_BATCHES),
    "epsilon": partial(check_real, expected="a finite non-negative number"),
    "weight_decay": partial(check_real, expected="a finite non-negative number, or None for no decay"),
    "decay_to": lambda name, value: check_names(name, value, DECAY_TO),
    "nesterov": check_flag,
    **dict.fromkeys(("momentum", "beta1", "beta2"), _below_one),
}
#: Where weight decay pulls the parameters.
DECAY_TO = ("initialisation", "zero")
#: Settings that are told only where they are not the usual ones.
_USUAL = {"weight_decay": None, "decay_to": "initialisation", "nesterov": False}
Rate = float | Sequence[float] | Callable[[int], float] | Schedule
#: Settings for which None stands for convergence, for full batches, for no decay.
_OPTIONAL = ("time", "steps", "batch_size", "weight_decay")


class _Algorithm:
    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in _CHECKS and (value is not None or name not in _OPTIONAL):
                _CHECKS[name](name, value)
        if vars(self).get("weight_decay") == 0.0:
            # whether there is decay is compiled in, how much is not
            object.__setattr__(self, "weight_decay", None)
        if "learning_rate" in vars(self):
            rate = check_rate(vars(self)["learning_rate"], vars(self)["steps"])
            object.__setattr__(self, "learning_rate", rate)
            if isinstance(rate, Schedule):
                object.__setattr__(self, "steps", len(rate))

    def settings(self) -> dict[str, Any]:
        """Plain numbers, lists and names from which it can be made again; usual ones are left out."""
        told = {name: value for name, value in vars(self).items() if value != _USUAL.get(name)}
        return {name: list(value.rates) if isinstance(value, Schedule) else value for name, value in told.items()}

    def __repr__(self) -> str:
        told = {name: value for name, value in vars(self).items() if name not in _USUAL or value != _USUAL[name]}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in told.items())})"


@dataclass(frozen=True, repr=False)
class GradientFlow(_Algorithm):
    """Gradient flow dθ/dt = −λ ∂L/∂θ, L = ½Σ(z−y)², for a `time`, or to convergence when it is None (theory §8).

    Weight decay adds ½ weight_decay Σ(θ−θ₀)²/λ to the loss: −weight_decay (θ−θ₀) to dθ/dt. θ₀ is the initialisation, or
    zero with decay_to="zero". At infinite width the first makes kernel regression with a ridge. The second moves
    parameters, and with them the kernel, at order one even there: no network that is linear about its start describes
    it. For a time, or steps of `GradientDescent`, `predict` follows it by kernels between networks that shrink.

    >>> GradientFlow()
    GradientFlow(time=None)
    """

    time: float | None = None
    weight_decay: float | None = None
    decay_to: str = "initialisation"


@dataclass(frozen=True, repr=False)
class GradientDescent(_Algorithm):
    """Full-batch gradient descent θ → θ − η λ ∂L/∂θ for a number of `steps`, or to convergence when None (theory §8).

    The learning rate is a number, one number a step (a list, or a `schedule`), or a function of the step 0, 1, …; so
    it is for `SGD`, `Momentum` and `Adam`. Weight decay as for `GradientFlow`.

    >>> GradientDescent(learning_rate=0.1, steps=20)
    GradientDescent(learning_rate=0.1, steps=20)
    >>> GradientDescent(lambda step: 0.1 * 0.5**step, steps=3)
    GradientDescent(learning_rate=Schedule(0.1, 0.05, 0.025), steps=3)
    """

    learning_rate: Rate
    steps: int | None = None
    weight_decay: float | None = None
    decay_to: str = "initialisation"


@dataclass(frozen=True, repr=False)
class SGD(_Algorithm):
    """Stochastic gradient descent for a number of `steps`, or to convergence when None.

    Every step draws a new batch of B different inputs, whatever was drawn before. The gradient of a batch of B among N
    inputs is multiplied by N/B, so that its mean is the full gradient of theory §8 and the learning rate means the same
    as in `GradientDescent`.

    >>> SGD(learning_rate=0.1, batch_size=4)
    SGD(learning_rate=0.1, batch_size=4, steps=None)
    """

    learning_rate: Rate
    batch_size: int
    steps: int | None = None
    weight_decay: float | None = None
    decay_to: str = "initialisation"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is None:
            raise InvalidInput("batch_size", "None", "a positive integer", FULL_BATCHES)


@dataclass(frozen=True, repr=False)
class Momentum(_Algorithm):
    """Descent with heavy-ball momentum: v → μv + ∂L/∂θ, θ → θ − ηλv; full batch unless `batch_size` is given.

    With `nesterov` the gradient counts once more: θ → θ − ηλ(∂L/∂θ + μv), with the new v.

    >>> Momentum(learning_rate=0.1)
    Momentum(learning_rate=0.1, momentum=0.9, steps=None, batch_size=None)
    """

    learning_rate: Rate
    momentum: float = 0.9
    steps: int | None = None
    batch_size: int | None = None
    nesterov: bool = False
    weight_decay: float | None = None
    decay_to: str = "initialisation"


@dataclass(frozen=True, repr=False)
class Adam(_Algorithm):
    """Adam on parameters measured in units of √λ; full batch unless `batch_size` is given.

    With g = √λ ∂L/∂θ and its averages m, v (β₁, β₂, corrected for their start), θ → θ − η√λ m/(√v + ε).

    >>> Adam(learning_rate=0.01, steps=100)
    Adam(learning_rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-08, steps=100, batch_size=None)
    """

    learning_rate: Rate
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    steps: int | None = None
    batch_size: int | None = None


@dataclass(frozen=True, repr=False)
class NewtonStep(_Algorithm):
    """One step θ → θ − λ (∂z/∂θ)ᵀ a, with the a that makes the stepped network fit its training targets (theory §8).

    At infinite width it ends where gradient flow ends; at order 1/n it does not: it sees the kernel at one point only.

    >>> NewtonStep()
    NewtonStep()
    """


# Rates, times and steps are leaves: none of them is compiled in. The size of a batch is a shape.
_STATIC = ("batch_size", "nesterov", "decay_to")
for _algorithm in (GradientFlow, GradientDescent, SGD, Momentum, Adam, NewtonStep):
    register_pytree(_algorithm, [field.name for field in fields(_algorithm) if field.name not in _STATIC])
