"""The trained output as a polynomial in what is random at initialisation: z, ΔĤ, dĤ, ddIĤ, ddIIĤ (theory §8).

In the eigenbasis of Θ on the training inputs, with ε = z − y there and sums over modes p, q, r and outputs understood,
    z*_x = Y_x − Θ_xu Y_u,
    Y_i;a = w_a ε_ia − w_ap ΔĤ_ij;ap ε_jp + w_aqp ΔĤ_ij;aq ΔĤ_jk;qp ε_kp
          + (dĤ_ijk;apq w¹ + dĤ_jik;paq w²) ε_jp ε_kq − (six terms of ddIĤ, ddIIĤ) ε_jp ε_kq ε_mr,
where a is a test input x or a mode u. The weights are chains of events (see `clock`) that end at the output x, and pass
through u last if a = u. Trained to convergence they are those of theory §8, and −Θ_xu/λ_u is the −k_x of M.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.inference.clock import Clock
from widthwise.inference.cumulants import Monomial, monomial

#: ddĤ terms of theory §8: kind, outputs, inputs, and how often each event order counts: one after another, the last two
#: at one step, the first two at one step, all three at one step.
SECOND = (
    ("ddI", "IJKM", "apqr", (1, 1 / 2, 1 / 2, 1 / 6)),
    ("ddII", "IJKM", "apqr", (1, 1, 1 / 2, 0)),
    ("ddII", "IKJM", "aqpr", (1, 0, 1 / 2, 0)),
    ("ddI", "JIKM", "paqr", (1, 1 / 2, 0, 0)),
    ("ddII", "JIKM", "paqr", (1, 0, 0, 0)),
    ("ddII", "JKIM", "pqar", (1, 0, 0, 0)),
)


def trained_output(clock: Clock, rates: np.ndarray, others: int, at_training: bool = False) -> list[Monomial]:
    """Y over the indices "Ia": a runs over the modes with these rates, then over `others` test inputs.

    With `at_training` it is ε itself after training, in the eigenbasis: a runs over the modes alone.

    >>> [len(term.factors) for term in trained_output(Clock(0.0, None), np.array([1.0, 2.0]), 1)]
    [1, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4]
    """
    weight = _Weights(clock, rates, others, at_training)
    p, q = rates[:, None], rates
    sequential, at_once = _first(weight)
    errors = ("z", "J", "p"), ("z", "K", "q"), ("z", "M", "r")
    return [
        monomial(weight(), "a", ("z", "I", "a")),
        monomial(-weight(rates), "ap", ("H", "IJ", "ap"), ("z", "J", "p")),
        monomial(weight(p, q), "aqp", ("H", "IJ", "aq"), ("H", "JK", "qp"), ("z", "K", "p")),
        monomial(sequential + 0.5 * at_once, "apq", ("dH", "IJK", "apq"), *errors[:2]),
        monomial(sequential, "apq", ("dH", "JIK", "paq"), *errors[:2]),
        *(monomial(values, "apqr", factor, *errors) for values, factor in _second(weight)),
    ]


def _first(weight: _Weights) -> tuple[np.ndarray, np.ndarray]:
    """Weights over (a, p, q) of two events one after another, and of two at one step."""
    clock, p, q = weight.clock, weight.rates[:, None], weight.rates
    if clock.single:
        at_once = weight(p, q)
        return np.zeros_like(at_once), at_once
    joint = clock.joint(p, q)
    sequential = clock.kept(p) * weight(p, joint)
    return sequential, clock.step * weight(joint) if clock.at_once else np.zeros_like(sequential)


def _second(weight: _Weights):
    """The ddĤ terms, with their sign."""
    orders = _event_orders(weight)
    for kind, outputs, inputs, counts in SECOND:
        found = [count * orders[k] for k, count in enumerate(counts) if count and k in orders]
        if found:
            yield -sum(found[1:], found[0]), (kind, outputs, inputs)


def _event_orders(weight: _Weights) -> dict[int, np.ndarray]:
    """Weights over (a, p, q, r) by the position of `SECOND`, those that the algorithm has."""
    clock, rates = weight.clock, weight.rates
    p, q, r = rates[:, None, None], rates[:, None], rates
    if clock.single:
        return {3: weight(p, q, r)}
    pq, pqr = clock.joint(p, q), clock.joint(p, q, r)
    orders = {0: clock.kept(p, p, q) * weight(p, pq, pqr)}
    if clock.at_once:
        orders |= {
            1: clock.step * clock.kept(p) * weight(p, pqr),
            2: clock.step * clock.kept(p, q) * weight(pq, pqr),
            3: clock.step**2 * weight(pqr),
        }
    return orders


@dataclass(frozen=True)
class _Weights:
    """Chains of events by where they end: rows over the modes, then over the test inputs."""

    clock: Clock
    rates: np.ndarray
    others: int
    at_training: bool

    def __call__(self, *nodes: Any) -> np.ndarray:
        """Weights (a, …) of a chain through the given rates, which are laid out over the indices that follow a."""
        inner = np.broadcast_shapes(*(np.shape(node) for node in nodes))
        modes = self.rates.reshape(-1, *(1 for _ in inner))
        if self.at_training:
            return self.clock.chain(*nodes, first=modes)
        through = self.clock.chain(modes, *nodes)
        direct = np.broadcast_to(self.clock.chain(*nodes), (self.others, *inner))
        return np.concatenate([through, direct])
