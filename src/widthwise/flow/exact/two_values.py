"""Activations whose square takes two values (a step, a sign): sums over neurons are binomial, Ĝ has point masses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

from widthwise.activations import Activation, evaluate, intervals
from widthwise.flow.exact.kernel_law import KernelLaw
from widthwise.flow.exact.neurons import Neuron

_RADIUS = 64.0
_LEAST = 1e-300


@dataclass(frozen=True)
class TwoValues:
    """σ² is `low` or `high`."""

    activation: Activation
    low: float
    high: float

    @classmethod
    def of(cls, activation: Activation) -> TwoValues | None:
        """The two values (equal for a sign), or None if σ² takes more of them.

        >>> from widthwise.activations import resolve
        >>> TwoValues.of(resolve("step")).high
        1.0
        >>> TwoValues.of(resolve("tanh")) is None
        True
        """
        edges = intervals(activation, (0,), _RADIUS)
        values = np.unique(evaluate(activation, 0, 0.5 * (edges[1:] + edges[:-1])) ** 2)
        if len(values) > 2:
            return None
        return cls(activation, float(values[0]), float(values[-1]))

    def advance(self, law: KernelLaw, n: int, C_b: float, C_W: float) -> KernelLaw:
        """m = low + (high − low) k/n, k binomial with the probability of `high` at each kernel."""
        if self.low == self.high:
            return KernelLaw.certain(C_b, C_W, self.low)
        share, index = np.unique(self._share(law.atom_kernels), return_inverse=True)
        weights = np.bincount(index, law.masses)
        k = np.arange(n + 1.0)
        ways = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
        masses = weights @ np.exp(ways + xlogy(k, share[:, None]) + xlog1py(n - k, -share[:, None]))
        atoms, seen = self.low + (self.high - self.low) * k / n, masses > _LEAST
        return KernelLaw(C_b, C_W, 0.0, 1.0, np.zeros(0), atoms[seen], masses[seen])

    def _share(self, kernels: np.ndarray) -> np.ndarray:
        """P(σ² = high) at each kernel."""
        middle = 0.5 * (self.low + self.high)
        result = np.full(len(kernels), float(evaluate(self.activation, 0, np.zeros(1))[0] ** 2 > middle))
        alive = kernels > 0.0
        if alive.any():
            neuron = Neuron.at(self.activation, kernels[alive])
            result[alive] = np.minimum(np.where(neuron.y > middle, neuron.weights, 0.0).sum(axis=1), 1.0)
        return result
