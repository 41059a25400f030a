"""Learning rates at which errors decay: the bound of every optimiser that is linear in the gradients (theory §8)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.network.algorithms import SGD, GradientDescent, Momentum
from widthwise.network.losses import SQUARED, Loss
from widthwise.network.schedules import scheduled_rates


class UnstableStep(NamedTuple):
    """A rate past the bound, the first step that has it, what it should be, and what to do."""

    rate: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"The learning rate {self.rate} should be {self.expected}. {self.remedy}"


def decay_of(algorithm: Any) -> float:
    """Weight decay, 0 where there is none."""
    return getattr(algorithm, "weight_decay", None) or 0.0


def decays_to_zero(algorithm: Any) -> bool:
    """Whether weight decay pulls the parameters towards zero."""
    return decay_of(algorithm) > 0.0 and algorithm.decay_to == "zero"


def stable_product(algorithm: Any) -> float:
    """The bound below which η(λ + w) has to stay for errors to decay.

    >>> [stable_product(Momentum(0.1, 0.5, nesterov=nesterov)) for nesterov in (False, True)]
    [3.0, 1.5]
    """
    if not isinstance(algorithm, Momentum):
        return 2.0
    return 2.0 * (1.0 + algorithm.momentum) / (1.0 + 2.0 * algorithm.momentum * algorithm.nesterov)


def unstable_step(algorithm: Any, largest_eigenvalue: float, loss: Loss = SQUARED) -> UnstableStep | None:
    """The first step past the bound on a kernel with this eigenvalue; None where every step keeps to it.

    Losses whose curvature has no bound have none of rates either; nor has Adam, nor what has no rate.

    >>> unstable_step(GradientDescent([0.5, 1.0, 2.5]), 1.0).rate
    '2.5 at step 2'
    """
    if not isinstance(algorithm, GradientDescent | SGD | Momentum) or not np.isfinite(loss.curvature):
        return None
    curvature = largest_eigenvalue * loss.curvature + decay_of(algorithm)
    if not 0.0 < curvature < np.inf:
        return None
    rate: Any = algorithm.learning_rate
    rates, bound = scheduled_rates(algorithm), stable_product(algorithm)
    values = np.atleast_1d(rate if rates is None else rates)
    past = np.flatnonzero(values >= bound / curvature)
    if not len(past):
        return None
    symbol = "λ_max" if loss.curvature == 1.0 else f"({loss.curvature:g} λ_max)"
    symbol = symbol if decay_of(algorithm) == 0.0 else "(λ_max + weight_decay)"
    smaller = 0.9 * bound / curvature
    return UnstableStep(
        f"{values[past[0]]:g}" + ("" if rates is None else f" at step {past[0]}"),
        f"less than {bound:.6g}/{symbol} = {bound / curvature:.6g}, the stable bound on these training inputs",
        f"Take {smaller:.2g}." if rates is None else f"Multiply all rates by {smaller / values.max():.2g}.",
    )


def check_batch(algorithm: Any, inputs: int) -> None:
    """Refuse batches that are larger than the data."""
    size = getattr(algorithm, "batch_size", None)
    if size is not None and size > inputs:
        raise InvalidInput(
            "algorithm", f"batch_size={size}", f"at most {inputs}, the number of training inputs",
            "Take smaller batches; momentum without batch_size, and GradientDescent, have full ones.",
        )  # fmt: skip
