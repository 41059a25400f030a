"""Expectations at two inputs of the relu family, a₊z for z > 0 and a₋z for z < 0, in closed form.

A product of its values and slopes at one input is c_± |z|^m on each side of zero, so with unit variances and the
correlation ρ all that is needed are M(p, q) = ⟨u^p θ(u) v^q θ(v)⟩. By parts (theory §1, Stein), with s² = 1 − ρ² the
variance of u given that v vanishes,
    M(p, q) = (p−1) M(p−2, q) + ρq M(p−1, q−1),    M(p, 0) = (p−1) M(p−2, 0) + ρ ⟨δ(v) u^{p−1}θ(u)⟩,
    M(0, 0) = 1/4 + arcsin(ρ)/2π.
Legs, derivatives of ⟨σ^(p)_a σ^(p)_b⟩, are the closed forms of the activation, and the sum of all of them where both
inputs are one variable.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from widthwise.activations import Activation
from widthwise.activations.closed_forms import ReluFamilyForm, determinant, right_angle
from widthwise.gaussian.four_points.families import Orders
from widthwise.gaussian.pair import closed_pair, is_parallel, line_derivative

_SIDES = (1.0, -1.0)


def has_closed_pairs(activation: Activation) -> bool:
    """Whether it is of the relu family, and not the linear activation."""
    return isinstance(activation.closed, ReluFamilyForm)


class ReluPairs:
    """Expectations between the inputs x, along rows, and y, along columns: {"xx": (x, 1), "xy": (x, y), "yy": (1, y)}.

    Without "xy" those of x alone.
    """

    def __init__(self, activation: Activation, K: dict[str, np.ndarray]):
        assert isinstance(activation.closed, ReluFamilyForm)
        self.activation, self.K = activation, K
        self.slopes = activation.closed.positive, activation.closed.negative
        self.parallel = np.zeros((), bool)
        if "xy" in K:
            self.parallel = is_parallel(K["xx"], K["xy"], K["yy"])
            square = K["xx"] * K["yy"]
            self.root = np.sqrt(np.maximum(determinant(K["xx"], K["xy"], K["yy"]), 0.0) / square)
            self.root = np.where(self.parallel, 0.0, self.root)
            self.rho = np.where(self.parallel, np.sign(K["xy"]), np.clip(K["xy"] / np.sqrt(square), -1.0, 1.0))
        self._moment = lru_cache(maxsize=None)(self._truncated)

    def mean(self, split: tuple[Orders, Orders]) -> Any:
        """⟨Π σ^(o)(z_x) Π σ^(o)(z_y)⟩ of functions, not of point masses."""
        at_x, at_y = split
        (m, scale_x), (k, scale_y) = self._scaled(at_x, "xx"), self._scaled(at_y, "yy")
        if not at_x or not at_y:
            count, power, scale = (len(at_x), m, scale_x) if at_x else (len(at_y), k, scale_y)
            return scale * self._sides(count, power) * _half_moment(power)
        total = sum(
            self._side(len(at_x), m, i) * self._side(len(at_y), k, j) * self._moment(m, k, s * t)
            for i, s in enumerate(_SIDES)
            for j, t in enumerate(_SIDES)
        )
        return scale_x * scale_y * total

    def leg(self, p: int, q: int, pair: str) -> Any:
        """⟨σ^(p)_a σ^(q)_b⟩ for a pair of letters; zero where it does not exist, at inputs that are one variable."""
        if pair[0] == pair[1]:
            exists, K = self.activation.exists_at_one_input(p, q), self.K[pair]
            return closed_pair(self.activation.closed, p, q, K, K, K) if exists else np.zeros_like(K)
        K = (self.K["xx"], self.K["xy"], self.K["yy"])
        with np.errstate(all="ignore"):
            found = closed_pair(self.activation.closed, p, q, *(K if pair == "xy" else K[::-1]))
        return found if self.activation.exists_at_one_input(p, q) else np.where(self.parallel, 0.0, found)

    def joined(self, p: int, order: int, pair: str) -> tuple[Any, Any]:
        """Where legs of this order do not exist apart, and half of the total derivative of ⟨σ^(p)_a σ^(p)_b⟩ there."""
        if 2 * p + order <= 2 * self.activation.first_jump:
            return np.zeros((), bool), 0.0
        a, b = (self.K[2 * letter] for letter in pair)
        one, opposite = (line_derivative(self.activation, p, p, order, 1.0, sign) for sign in _SIDES)
        same = pair[0] == pair[1]
        whole = np.where(np.ones((), bool) if same else self.rho > 0.0, one, opposite)
        scaled = whole * (a * b) ** (0.5 * (1 - p)) * a ** (-0.5 * order)
        return (np.ones((), bool), 0.5 * scaled) if same else (self.parallel, 0.5 * scaled)

    def _scaled(self, orders: Orders, at: str) -> tuple[int, Any]:
        """The power of z in a product, and that power of its scale."""
        assert all(order <= 1 for order in orders)
        m = sum(1 - order for order in orders)
        return m, self.K[at] ** (0.5 * m) if orders else 1.0

    def _side(self, factors: int, power: int, side: int) -> float:
        """What stands before |z|^power on one side of zero."""
        return self.slopes[side] ** factors * _SIDES[side] ** power

    def _sides(self, factors: int, power: int) -> float:
        return self._side(factors, power, 0) + self._side(factors, power, 1)

    def _truncated(self, p: int, q: int, sign: float) -> Any:
        """M(p, q) at the correlation sign·ρ."""
        if p < q:
            return self._moment(q, p, sign)
        rho = sign * self.rho
        if p == 0:
            return 0.25 + right_angle(rho, self.root) / (2.0 * math.pi)
        below = (p - 1) * self._moment(p - 2, q, sign) if p > 1 else self._at_zero(q)
        return below + rho * (q * self._moment(p - 1, q - 1, sign) if q else self._at_zero(p - 1))

    def _at_zero(self, power: int) -> Any:
        """⟨δ(v) u^power θ(u)⟩."""
        return _half_moment(power) * self.root**power / math.sqrt(2.0 * math.pi)


def _half_moment(power: int) -> float:
    """⟨u^power θ(u)⟩ of a standard normal u.

    >>> [round(_half_moment(power), 6) for power in range(5)]
    [0.5, 0.398942, 0.5, 0.797885, 1.5]
    """
    return 2.0 ** (0.5 * power - 1.0) * math.gamma(0.5 * (power + 1)) / math.sqrt(math.pi)
