"""Learning rates that change: one number a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import jax
import numpy as np

from widthwise.errors import InvalidInput, UnknownName
from widthwise.network.validation import LEAST, check_integer, check_real, is_one_of

#: Rates are kept one by one.
LONGEST_SCHEDULE = 1_000_000
#: How a schedule goes on once it is warm.
WARM_SHAPES = ("constant", "cosine", "linear")
EXPECTED_RATE = "a finite positive number, one of them a step, or a function of the step"


@dataclass(frozen=True)
class Schedule:
    """The learning rates of steps 0, 1, …; an array of them once jax has it.

    >>> Schedule((0.1, 0.2))
    Schedule(0.1, 0.2)
    """

    rates: Any

    def __len__(self) -> int:
        return len(self.rates)

    def __repr__(self) -> str:
        if len(self) <= 4:
            return f"Schedule({', '.join(f'{rate:g}' for rate in self.rates)})"
        told = crc32(np.asarray(self.rates, dtype=float).tobytes())
        return f"Schedule({self.rates[0]:g}, …, {self.rates[-1]:g}; {len(self)} steps, #{told:08x})"


jax.tree_util.register_pytree_node(
    Schedule, lambda schedule: ((np.asarray(schedule.rates),), None), lambda _, rates: Schedule(*rates)
)


def schedule(peak: float, steps: int, *, warm_up: int = 0, decay: str = "cosine", end: float = 0.0) -> Schedule:
    """Learning rates that rise evenly to `peak` in `warm_up` steps, then stay, or fall to `end` × peak.

    They fall along half a cosine, or evenly with decay="linear"; decay="constant" stays. The last rate would be
    end × peak one step after the last step, so that all rates are positive.

    >>> tuple(round(rate, 3) for rate in schedule(1.0, 6, warm_up=2).rates)
    (0.5, 1.0, 1.0, 0.854, 0.5, 0.146)
    """
    peak = check_real("peak", peak, "a finite positive number", least=LEAST)
    steps = check_integer("steps", steps, 1, LONGEST_SCHEDULE, f"an integer from 1 to {LONGEST_SCHEDULE}")
    warm_up = check_integer(
        "warm_up",
        warm_up,
        0,
        steps,
        f"an integer from 0 to steps = {steps}",
        "Warm up for fewer steps, or train for more.",
    )
    end = check_real("end", end, "a share of the peak, from 0 to 1", largest=1.0)
    if not is_one_of(decay, WARM_SHAPES):
        raise UnknownName.of("decay", decay, WARM_SHAPES)
    rising = [(step + 1) / warm_up for step in range(warm_up)]
    gone = [step / (steps - warm_up) for step in range(steps - warm_up)]
    fallen = {
        "constant": [0.0 for _ in gone],
        "cosine": [0.5 * (1.0 - math.cos(math.pi * share)) for share in gone],
        "linear": gone,
    }[decay]
    return Schedule(tuple(peak * share for share in (*rising, *(1.0 - (1.0 - end) * share for share in fallen))))


def check_rate(rate: Any, steps: int | None) -> Any:
    """A number, or a `Schedule` of as many steps as are trained; functions of the step are called.

    >>> check_rate(lambda step: 0.1 / (1 + step), 3)
    Schedule(0.1, 0.05, 0.0333333)
    """
    if isinstance(rate, jax.core.Tracer):  # pyright: ignore[reportAttributeAccessIssue]
        return rate
    if callable(rate):
        if steps is None:
            remedy = "Name the steps, or give the rates as a list."
            raise InvalidInput("steps", "None with a learning rate that is a function", "a number of steps", remedy)
        check_integer("steps", steps, 0, LONGEST_SCHEDULE, f"at most {LONGEST_SCHEDULE} steps with rates that change")
        try:
            rate = [rate(step) for step in range(steps)]
        except Exception as error:
            got = f"a function that raises {type(error).__name__}"
            remedy = "For example lambda step: 0.1 * 0.9**step."
            raise InvalidInput("learning_rate", got, "a function of the step 0, 1, …", remedy) from None
    if isinstance(rate, Schedule):
        rate = rate.rates
    is_list = isinstance(rate, Sequence | np.ndarray) and not isinstance(rate, str | bytes)
    if not is_list or (isinstance(rate, np.ndarray) and rate.ndim == 0):
        return check_real("learning_rate", rate, EXPECTED_RATE, least=LEAST)  # pyright: ignore[reportArgumentType]
    if len(rate) == 0 or any(isinstance(value, str | bytes) or np.iterable(value) for value in rate):
        got = "an empty list" if len(rate) == 0 else f"a list that holds {next(iter(rate))!r}"
        raise InvalidInput("learning_rate", got, EXPECTED_RATE, "For example [0.1, 0.1, 0.05].")
    check_integer("steps", len(rate), 0, LONGEST_SCHEDULE, f"at most {LONGEST_SCHEDULE} rates")
    if steps is not None and steps > len(rate):
        got = f"{len(rate)} learning rates for {steps} steps"
        raise InvalidInput("learning_rate", got, "one per step", "Give more of them, or fewer steps.")
    one, remedy = "finite positive numbers", "`schedule` makes rates that rise and fall."
    return Schedule(
        tuple(
            check_real(f"learning_rate[{k}]", value, one, remedy, least=LEAST) for k, value in enumerate(rate[:steps])
        )
    )


def scheduled_rates(algorithm: Any) -> np.ndarray | None:
    """The rates of all steps of an algorithm with a schedule; None where its rate is one number."""
    rate = getattr(algorithm, "learning_rate", None)
    return np.asarray(rate.rates) if isinstance(rate, Schedule) else None


def rate_at(rate: Any, step: Any) -> Any:
    """The rate of one step, within compiled code too."""
    return jax.numpy.asarray(rate.rates)[step] if isinstance(rate, Schedule) else rate
