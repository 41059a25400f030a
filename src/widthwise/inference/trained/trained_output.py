"""The trained output as a polynomial in what is random at initialisation: z, ΔĤ, dĤ, ddIĤ, ddIIĤ (theory §8).

In the eigenbasis of Θ on the training inputs, with ε = z − y there and sums over modes p, q, r and outputs understood,
    z*_x = Y_x − Θ_xu Y_u,
    Y_i;a = w_a ε_ia − w_ap ΔĤ_ij;ap ε_jp + w_aqp ΔĤ_ij;aq ΔĤ_jk;qp ε_kp
          + (dĤ_ijk;apq w¹ + dĤ_jik;paq w²) ε_jp ε_kq − (six terms of ddIĤ, ddIIĤ) ε_jp ε_kq ε_mr,
where a is a test input x or a mode u. The weights are chains of events (see `clock`) that end at the output x, and pass
through u last if a = u. Trained to convergence they are those of theory §8, and −Θ_xu/λ_u is the −k_x of M.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.cumulants import Factor, Monomial, Operand

#: Event orders of dĤ: one after another, both at one step. Of ddĤ: one after another, the last two at one step, the
#: first two at one step, all three at one step. Terms of theory §8: kind, outputs, inputs, how often each order counts.
FIRST = (
    ("dH", "IJK", "apq", (1, 1 / 2)),
    ("dH", "JIK", "paq", (1, 0)),
)
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
    weights = Weights(clock, dict.fromkeys("apqr", rates), others, at_training)
    errors = ("z", "J", "p"), ("z", "K", "q"), ("z", "M", "r")
    terms = [
        _monomial(weights, weights.free()[0], "a", ("z", "I", "a")),
        _monomial(weights, -weights.once()[0], "ap", ("H", "IJ", "ap"), ("z", "J", "p")),
        _monomial(weights, weights.twice()[0], "aqp", ("H", "IJ", "aq"), ("H", "JK", "qp"), ("z", "K", "p")),
    ]
    for table, orders, letters, sign in (
        (FIRST, weights.first(), "apq", 1.0),
        (SECOND, weights.second(), "apqr", -1.0),
    ):
        for kind, outputs, inputs, counts in table:
            found = [sign * counts[k] * values for k, values in orders.items() if counts[k]]
            if found:
                total = sum(found[1:], found[0])
                terms.append(_monomial(weights, total, letters, (kind, outputs, inputs), *errors[: len(letters) - 1]))
    return terms


def _monomial(weights: Weights, values: np.ndarray, letters: str, *factors: tuple[str, str, str]) -> Monomial:
    """Weights × factors, in two pieces where a stands apart."""
    inner = (Operand(values[0], letters[1:]),) if letters[1:] else ()
    apart = (Operand(weights.ends(), "a"), *inner)
    return Monomial(apart if weights.apart else (Operand(values, letters),), tuple(Factor(*f) for f in factors))


@dataclass(frozen=True)
class Weights:
    """Weights of all terms, for rates by letter; the indices follow a in the order of theory §8.

    Along a stand the modes with the rates of "a", then the test inputs. Trained to convergence a weight is that of the
    end times that of the events before: a is then `apart`, the axis of a has length one, and `ends` goes with it.
    Each is a dictionary of event orders, as in `FIRST` and `SECOND`, those that the algorithm has.
    """

    clock: Clock
    rates: Mapping[str, np.ndarray]
    others: int
    at_training: bool

    @property
    def apart(self) -> bool:
        return self.clock.duration is None and not self.at_training

    def ends(self) -> np.ndarray:
        """1/λ_a at modes, 1 at test inputs."""
        return np.concatenate([1.0 / self.rates["a"], np.ones(self.others)])

    def free(self) -> dict[int, np.ndarray]:
        """Of ε_a, over "a"."""
        return {0: self._chain()}

    def once(self) -> dict[int, np.ndarray]:
        """Of ΔĤ_ap ε_p, over "ap"."""
        return {0: self._chain(self.rates["p"])}

    def twice(self) -> dict[int, np.ndarray]:
        """Of ΔĤ_aq ΔĤ_qp ε_p, over "aqp"."""
        return {0: self._chain(self.rates["q"][:, None], self.rates["p"])}

    def first(self) -> dict[int, np.ndarray]:
        """Of the dĤ terms, over "apq"."""
        clock, p, q = self.clock, self.rates["p"][:, None], self.rates["q"]
        if clock.single:
            return {1: self._chain(p, q)}
        joint = clock.joint(p, q)
        orders = {0: clock.kept(p) * self._chain(p, joint)}
        return orders | {1: clock.step * self._chain(joint)} if clock.at_once else orders

    def second(self) -> dict[int, np.ndarray]:
        """Of the ddĤ terms, over "apqr"."""
        clock, p, q, r = self.clock, self.rates["p"][:, None, None], self.rates["q"][:, None], self.rates["r"]
        if clock.single:
            return {3: self._chain(p, q, r)}
        pq, pqr = clock.joint(p, q), clock.joint(p, q, r)
        orders = {0: clock.kept(p, p, q) * self._chain(p, pq, pqr)}
        if clock.at_once:
            orders |= {
                1: clock.step * clock.kept(p) * self._chain(p, pqr),
                2: clock.step * clock.kept(p, q) * self._chain(pq, pqr),
                3: clock.step**2 * self._chain(pqr),
            }
        return orders

    def _chain(self, *nodes: Any) -> np.ndarray:
        """Weights (a, …) of a chain through the given rates, which are laid out over the indices that follow a."""
        inner = np.broadcast_shapes(*(np.shape(node) for node in nodes))
        if self.apart:
            return np.broadcast_to(self.clock.chain(*nodes), (1, *inner))
        modes = self.rates["a"].reshape(-1, *(1 for _ in inner))
        if self.at_training:
            return self.clock.chain(*nodes, first=modes)
        through = self.clock.chain(modes, *nodes)
        direct = np.broadcast_to(self.clock.chain(*nodes), (self.others, *inner))
        return np.concatenate([through, direct])
