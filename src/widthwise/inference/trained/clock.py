"""How long an algorithm trains, as weights of chains of events (theory §8, gradient flow and gradient descent alike).

In the eigenbasis of Θ an error decays at the rate λ_p, a product of errors at the joint rate
    λ_pq = λ_p + λ_q − ηλ_pλ_q,      1 − ηλ_pq = μ_pμ_q,      μ = 1 − ηλ,      with η = 0 for gradient flow.
Every coefficient of the perturbed solution is a chain of events at times s_1 > s_2 > … , the output first:
    φ(λ_1, …, λ_m) = Σ or ∫ of the decays at rate λ_j between events j−1 and j, and none before the first.
That is the divided difference (−1)^m f[0, λ_1, …, λ_m] of f(λ) = (1 − ηλ)^steps or e^{−λt}. Trained to convergence it
is 1/(λ_1 ⋯ λ_m). Stopped early, it is read off a power of a small triangular matrix, which sums the same series by
repeated squaring: nothing is divided, so rates may coincide or vanish.

Where the step η changes, the power is a product of such matrices, the latest step first. Joint rates and what one step
leaves of an error then belong to the step, so a chain is given as a function of it: `Link`s, from the output on.

A single step that fits the training data has all its events at one time: in place of chains stand φ(λ_p, λ_q, …) of the
separate rates, and only events that happen at once are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from widthwise.inference.infinite_width import Algorithm
from widthwise.inference.linear_training import duration
from widthwise.network import GradientDescent, NewtonStep
from widthwise.network.schedules import scheduled_rates

#: Terms of the exponential series at a scaled rate below 1/4: the first one dropped is below rounding.
SERIES = 14
#: Entries {(row, column): values} on and above the diagonal; an entry depends on the rates between row and column.
Triangle = dict[tuple[int, int], Any]


class Link(NamedTuple):
    """An event of a chain: the rate at which errors decay before it, and its weight besides the step η."""

    rate: Any
    weight: Any = 1.0


@dataclass(frozen=True)
class Clock:
    """Step η (0 for flow) and duration: a number of steps, a time, or None for convergence; or a single step.

    Where η changes, `schedule` holds that of every step, and `step` is the first of them.
    """

    step: float
    duration: float | None
    single: bool = False
    schedule: tuple[float, ...] | None = None

    @classmethod
    def of(cls, algorithm: Algorithm) -> Clock:
        rates = scheduled_rates(algorithm)
        if rates is not None:
            return cls(float(rates[0]), len(rates), schedule=tuple(rates.tolist()))
        step: Any = algorithm.learning_rate if isinstance(algorithm, GradientDescent) else 0.0
        return cls(step, duration(algorithm), isinstance(algorithm, NewtonStep))

    @property
    def at_once(self) -> bool:
        """Whether several events can fall on one time."""
        return self.single or self.step > 0.0

    def joint(self, *rates: Any) -> Any:
        """The rate of a product of modes: λ_p + λ_q − ηλ_pλ_q, and so on.

        >>> float(Clock(0.5, None).joint(1.0, 2.0)), float(Clock(0.0, None).joint(1.0, 2.0))
        (2.0, 3.0)
        """
        return reduce(lambda left, right: left + right - self.step * left * right, rates)

    def kept(self, *rates: Any) -> Any:
        """What one step leaves of a product of modes: Π (1 − ηλ), which is 1 for flow."""
        return reduce(lambda left, rate: left * (1.0 - self.step * rate), rates, 1.0)

    def chain(self, *rates: Any, first: Any = 0.0) -> Any:
        """φ(λ_1, …, λ_m), rates broadcast; with `first` the output itself decays, (−1)^m f[first, λ_1, …, λ_m].

        >>> float(Clock(0.3, None).chain(2.0, 5.0)), float(Clock(0.25, 2).chain(1.0, 1.0))
        (0.1, 0.0625)
        """
        return self.linked(lambda _: [Link(rate) for rate in rates], first)

    def linked(self, links: Callable[[Clock], Sequence[Link]], first: Any = 0.0) -> Any:
        """`chain` with weights, as a function of a clock whose step is that of the events.

        >>> round(float(Clock(0.2, 2, schedule=(0.2, 0.1)).linked(lambda clock: [Link(3.0), Link(1.0)])), 12)
        0.02
        """
        rates, weights = zip(*links(self), strict=True) if links(self) else ((), ())
        nodes = [np.asarray(rate, dtype=float) for rate in (first, *rates)]
        shape = np.broadcast_shapes(*(rate.shape for rate in nodes), *(np.shape(weight) for weight in weights))
        if self.schedule is not None:
            power = _bidiagonal([np.ones_like(rate) for rate in nodes], [0.0] * len(rates))
            for step in self.schedule:
                power = _triangle_product(Clock(step, 1)._one_step(first, links), power)
            return np.broadcast_to(power[0, len(rates)], shape)
        if self.duration is None:
            value = 0.0 if np.any(first) else reduce(lambda left, rate: left / rate, rates, 1.0)
        elif self.step == 0.0:
            value = self._flow(nodes, self.duration)[0, len(rates)]
        else:
            value = self._steps(nodes, int(self.duration))[0, len(rates)]
        return np.broadcast_to(reduce(lambda left, weight: left * weight, weights, value), shape)

    def _one_step(self, first: Any, links: Callable[[Clock], Sequence[Link]]) -> Triangle:
        found = links(self)
        nodes = [np.asarray(rate, dtype=float) for rate in (first, *(link.rate for link in found))]
        return _bidiagonal([1.0 - self.step * rate for rate in nodes], [self.step * link.weight for link in found])

    def _steps(self, nodes: Sequence[np.ndarray], steps: int) -> Triangle:
        """The matrix with 1 − ηλ_j on its diagonal and η above it, to the power of the number of steps."""
        base = _bidiagonal([1.0 - self.step * rate for rate in nodes], [self.step] * (len(nodes) - 1))
        power = _bidiagonal([np.ones_like(rate) for rate in nodes], [0.0] * (len(nodes) - 1))
        while steps:
            if steps & 1:
                power = _triangle_product(power, base)
            steps >>= 1
            base = _triangle_product(base, base) if steps else base
        return power

    @staticmethod
    def _flow(nodes: Sequence[np.ndarray], time: float) -> Triangle:
        """exp of time × the matrix with −λ_j on its diagonal and 1 above it: a series, then squarings."""
        # a power of two above four times the fastest rate × time, which itself may not be representable
        fastest = max(1.0, *(float(np.max(rate)) for rate in nodes))
        squarings = max(0, 2 + math.frexp(fastest)[1] + math.frexp(time)[1])
        scale = math.ldexp(time, -squarings)
        scaled = _bidiagonal([-scale * rate for rate in nodes], [scale] * (len(nodes) - 1))
        power = _bidiagonal([np.ones_like(rate) for rate in nodes], [0.0] * (len(nodes) - 1))
        for term in range(SERIES, 0, -1):
            power = {at: value / term for at, value in _triangle_product(scaled, power).items()}
            power |= {(j, j): 1.0 + power[j, j] for j in range(len(nodes))}
        for left in range(squarings - 1, -1, -1):
            power = _triangle_product(power, power)
            with np.errstate(over="ignore"):
                power |= {(j, j): np.exp(-rate * math.ldexp(time, -left)) for j, rate in enumerate(nodes)}
        return power


def _bidiagonal(diagonal: Sequence[Any], above: Sequence[Any]) -> Triangle:
    size = len(diagonal)
    zero: Triangle = {(i, j): 0.0 for i in range(size) for j in range(i, size)}
    return zero | {(j, j): diagonal[j] for j in range(size)} | {(j, j + 1): above[j] for j in range(size - 1)}


def _triangle_product(left: Triangle, right: Triangle) -> Triangle:
    return {(i, j): sum(left[i, k] * right[k, j] for k in range(i, j + 1)) for i, j in left}
