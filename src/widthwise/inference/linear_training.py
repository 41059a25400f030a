"""Every optimiser that is linear in the gradients, on a network that is linear in its parameters (theory §8).

Training moves the parameters by −λJᵀa, and the errors on the training inputs are ε = ε₀ − Θa. With q the gradient,
    flow       da/dt = q                                            q = ε₀ − Θa − w a,  w the weight decay
    descent    a → a + ηq
    momentum   v → μv + q,  a → a + ηv;    Nesterov's  a → a + η(q + μv)  with the new v
so that a = G ε₀, G a function of Θ: one number a mode of Θ. Trained to convergence it is 1/(λ + w), whatever the
optimiser and the schedule.

A batch of B of N inputs replaces ε by (N/B) P ε, P the projection on the batch. Its mean is ε, so E[a] = G ε₀ as
before, and given ε it scatters with the covariance
    (N − B)/(B(N − 1)) (N diag(εεᵀ) − εεᵀ),
from which second moments of (ε₀, a, v) follow step by step in closed form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from widthwise.errors import InvalidInput, UnstableLearningRate
from widthwise.network import SGD, GradientDescent, GradientFlow, Momentum, NewtonStep
from widthwise.network.losses import SQUARED, Loss
from widthwise.network.schedules import LONGEST_SCHEDULE, scheduled_rates
from widthwise.network.stability import decay_of, unstable_step

LinearAlgorithm = GradientFlow | GradientDescent | NewtonStep | SGD | Momentum
#: Steps after which the growth of a mean square is read off, and over how many.
SETTLING_STEPS, WATCHED = 400, 100


def duration(algorithm: Any) -> float | None:
    """A time, a number of steps, or None where it is trained to convergence."""
    return algorithm.time if isinstance(algorithm, GradientFlow) else getattr(algorithm, "steps", None)


def is_to_convergence(algorithm: Any) -> bool:
    return duration(algorithm) is None


def batch_of(algorithm: Any, inputs: int) -> int | None:
    """The size of a batch, None where it is all inputs."""
    size = getattr(algorithm, "batch_size", None)
    return None if size is None or size >= inputs else size


class _Update(NamedTuple):
    """One step: v → keep v + q,  a → a + η(direct q + through v)."""

    keep: float
    direct: float
    through: float

    @classmethod
    def of(cls, algorithm: Any) -> _Update:
        if not isinstance(algorithm, Momentum):
            return cls(0.0, 1.0, 0.0)
        if algorithm.nesterov:
            # a + η(q + μ(μv + q))
            return cls(algorithm.momentum, 1.0 + algorithm.momentum, algorithm.momentum**2)
        return cls(algorithm.momentum, 1.0, algorithm.momentum)


def check_rates(algorithm: Any, largest_eigenvalue: float, loss: Loss = SQUARED) -> None:
    """Refuse a rate past the bound, and say at which step it is where rates change.

    Losses whose curvature has no bound are followed wherever they lead.
    """
    step = unstable_step(algorithm, largest_eigenvalue, loss)
    if step is not None:
        raise UnstableLearningRate("learning_rate", *step)


def mode_response(algorithm: Any, values: np.ndarray) -> np.ndarray:
    """G at the eigenvalues of Θ: a = G ε₀ on average over batches.

    >>> mode_response(GradientDescent(0.5, steps=2), np.array([1.0, 0.0])).tolist()
    [0.75, 1.0]
    """
    curvature, time = values + decay_of(algorithm), duration(algorithm)
    if time is None:
        return 1.0 / curvature
    if isinstance(algorithm, GradientFlow):
        with np.errstate(over="ignore"):  # no time is too long
            grown = curvature * time
        small = grown < 1e-14
        return np.where(small, time, -np.expm1(-grown) / np.where(small, 1.0, curvature))
    update, rates = _Update.of(algorithm), scheduled_rates(algorithm)
    if rates is not None:
        a = v = np.zeros_like(values)
        for rate in rates:
            q = 1.0 - curvature * a
            a, v = a + rate * (update.direct * q + update.through * v), update.keep * v + q
        return a
    # (a, v, 1) is multiplied by the same matrix at every step
    rate: Any = algorithm.learning_rate  # pyright: ignore[reportAttributeAccessIssue]
    step = np.zeros((len(values), 3, 3))
    step[:, 0, 0], step[:, 0, 1], step[:, 0, 2] = (
        1 - rate * update.direct * curvature,
        rate * update.through,
        rate * update.direct,
    )
    step[:, 1, 0], step[:, 1, 1], step[:, 1, 2] = -curvature, update.keep, 1.0
    step[:, 2, 2] = 1.0
    return np.linalg.matrix_power(step, int(time))[:, 0, 2]


class BatchNoise(NamedTuple):
    """Steps in batches: the map of (ε₀, a, v) to its mean after a step, and what a batch adds to their covariance."""

    algorithm: Any
    Theta: np.ndarray
    size: int

    def second_moments(self, start: np.ndarray) -> np.ndarray:
        """E[a aᵀ] after training, from E[ε₀ ε₀ᵀ] (…, N, N)."""
        inputs, steps, rates = len(self.Theta), int(self.algorithm.steps), scheduled_rates(self.algorithm)
        if steps > LONGEST_SCHEDULE:
            raise InvalidInput(
                "algorithm", repr(self.algorithm), f"at most {LONGEST_SCHEDULE} steps in batches, taken one by one",
                "steps=None trains to convergence.",
            )  # fmt: skip
        moments = np.zeros((*start.shape[:-2], 3 * inputs, 3 * inputs))
        moments[..., :inputs, :inputs] = start
        for step in range(steps):
            moments = self.after_step(moments, self.algorithm.learning_rate if rates is None else rates[step])
        return moments[..., inputs : 2 * inputs, inputs : 2 * inputs]

    def after_step(self, moments: np.ndarray, rate: float) -> np.ndarray:
        """Second moments of (ε₀, a, v) one step later."""
        inputs, update = len(self.Theta), _Update.of(self.algorithm)
        one, zero, curved = (
            np.eye(inputs),
            np.zeros((inputs, inputs)),
            self.Theta + decay_of(self.algorithm) * np.eye(inputs),
        )
        direct = rate * update.direct
        mean = np.block(
            [
                [one, zero, zero],
                [direct * one, one - direct * curved, rate * update.through * one],
                [one, -curved, update.keep * one],
            ]
        )
        to_error = np.concatenate([one, -self.Theta, zero], axis=1)
        errors = to_error @ moments @ to_error.T
        scatter = -errors
        scatter[..., range(inputs), range(inputs)] *= 1 - inputs
        scatter *= (inputs - self.size) / (self.size * (inputs - 1))
        enters = np.concatenate([zero, direct * one, one], axis=0)
        return mean @ moments @ mean.T + enters @ scatter @ enters.T

    def check_convergence(self) -> None:
        """Refuse a constant rate at which the mean square of the errors grows though their mean decays."""
        inputs, update = len(self.Theta), self.algorithm
        # at the fixed point a = Θ⁻¹ε₀ nothing is left to scatter: (a, v) about it, which ε₀ = 0 describes
        moments, sizes = np.zeros((3 * inputs, 3 * inputs)), []
        moments[inputs:, inputs:] = np.eye(2 * inputs)
        for _ in range(SETTLING_STEPS):
            moments = self.after_step(moments, update.learning_rate)
            sizes.append(np.trace(moments))
            moments = moments / sizes[-1]
        growth = float(np.exp(np.mean(np.log(sizes[-WATCHED:]))))
        if growth >= 1.0:
            raise UnstableLearningRate(
                "learning_rate",
                f"{update.learning_rate:g} with batches of {self.size} of {inputs} inputs: the mean square of the "
                f"errors grows {growth:.4g}-fold a step",
                "a rate at which it falls",
                "Take a smaller rate or larger batches, or train for a number of steps.",
            )
