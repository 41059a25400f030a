"""Nodes for functions of one standard normal variable that are smooth at the scale of the activation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from widthwise.activations import Activation, evaluate
from widthwise.gaussian.polynomials import basis

#: The Gaussian is followed to here.
REACH = 12.0
#: Most nodes along one axis; beyond it the activation is too sharp for the kernel.
MOST_NODES = 1200


@dataclass(frozen=True)
class Grid:
    """Points and weights of the trapezoidal rule times the normal density.

    For functions analytic in a strip of half-width d it converges like e^{−2πd/step}: far faster than any Gauss rule.
    """

    u: np.ndarray
    weight: np.ndarray

    @property
    def nodes(self) -> int:
        return len(self.u)


@lru_cache(maxsize=8)
def smooth_grid(activation: Activation, K_max: float, degrees: int, accuracy: float = 1e-12) -> Grid | None:
    """The coarsest grid on which one-input integrals with Hermite polynomials below `degrees` are right to `accuracy`.

    A plane is no harder: along either axis its functions vary no faster than one input of the largest kernel does.
    None where the activation is kinked, or too sharp for the kernel: the trapezoidal rule does not reach there.
    """
    if activation.kinks:
        return None
    scale, count = float(np.sqrt(K_max)), 48
    grid = trapezoidal(count)
    before = _one_input_integrals(activation, scale, degrees, grid)
    while count < MOST_NODES // 2:
        count = 8 * round(1.35 * count / 8)
        finer = trapezoidal(count)
        now = _one_input_integrals(activation, scale, degrees, finer)
        if np.all(np.abs(now - before) <= accuracy * np.abs(now[:, :1])):
            return grid
        before, grid = now, finer
    return None


def trapezoidal(count: int) -> Grid:
    """2 count equal steps across the reach."""
    u = np.linspace(-REACH, REACH, 2 * count + 1)
    return Grid(u, (u[1] - u[0]) * np.exp(-0.5 * u * u) / np.sqrt(2.0 * np.pi))


def _one_input_integrals(activation: Activation, scale: float, degrees: int, grid: Grid) -> np.ndarray:
    """⟨f⁴ he_k⟩ for σ and three derivatives f, and some degrees k from 0 to the highest: four factors at one input.

    Kernels a little below the largest are looked at too: an oscillating function can be right at one by chance.
    """
    spread = np.linspace(0, degrees - 2, 5).astype(int)
    degree = np.unique(np.concatenate([spread, spread + 1]))  # both parities: odd and even activations have only one
    polynomials = basis(grid.u, degrees)[degree] * grid.weight
    scales = scale * np.array([1.0, 0.83, 0.67])[:, None]
    fourth = np.concatenate([evaluate(activation, order, scales * grid.u) ** 4 for order in range(4)])
    return fourth @ polynomials.T
