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
from typing import Any, NamedTuple

import numpy as np

from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.cumulants import Factor, Monomial
from widthwise.inference.trained.einsum import Operand


class EventTerm(NamedTuple):
    """A term of theory §8, and how often it counts in each order of events.

    Event orders of dĤ: one after another; both at one step. Of ddĤ: one after another; the last two at one step; the
    first two at one step; all three at one step. Gradient flow has the first alone.
    """

    factor: Factor
    counts: tuple[float, ...]


#: The dH terms, M[dH_ijk;xpq + dH_jik;pxq].
DH_TERMS = (
    EventTerm(Factor("dH", "IJK", "apq"), (1, 1 / 2)),
    EventTerm(Factor("dH", "JIK", "paq"), (1, 0)),
)
#: The ddH terms, in the order in which theory §8 has them.
DDH_TERMS = (
    EventTerm(Factor("ddI", "IJKM", "apqr"), (1, 1 / 2, 1 / 2, 1 / 6)),
    EventTerm(Factor("ddII", "IJKM", "apqr"), (1, 1, 1 / 2, 0)),
    EventTerm(Factor("ddII", "IKJM", "aqpr"), (1, 0, 1 / 2, 0)),
    EventTerm(Factor("ddI", "JIKM", "paqr"), (1, 1 / 2, 0, 0)),
    EventTerm(Factor("ddII", "JIKM", "paqr"), (1, 0, 0, 0)),
    EventTerm(Factor("ddII", "JKIM", "pqar"), (1, 0, 0, 0)),
)


def trained_output(clock: Clock, rates: np.ndarray, others: int, at_training: bool = False) -> list[Monomial]:
    """Y over the indices "Ia": a runs over the modes with these rates, then over `others` test inputs.

    With `at_training` it is ε itself after training, in the eigenbasis: a runs over the modes alone.

    >>> [len(term.factors) for term in trained_output(Clock(0.0, None), np.array([1.0, 2.0]), 1)]
    [1, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4]
    """
    weights = TermWeights(clock, dict.fromkeys("apqr", rates), others, at_training)
    errors = Factor("z", "J", "p"), Factor("z", "K", "q"), Factor("z", "M", "r")
    H_ap, H_aq, H_qp = Factor("H", "IJ", "ap"), Factor("H", "IJ", "aq"), Factor("H", "JK", "qp")
    terms = [
        _weighted_factors(weights, weights.free()[0], "a", Factor("z", "I", "a")),
        _weighted_factors(weights, -weights.H()[0], "ap", H_ap, errors[0]),
        _weighted_factors(weights, weights.HH()[0], "aqp", H_aq, H_qp, Factor("z", "K", "p")),
    ]
    for table, orders, letters, sign in (
        (DH_TERMS, weights.dH(), "apq", 1.0),
        (DDH_TERMS, weights.ddH(), "apqr", -1.0),
    ):
        for factor, counts in table:
            counted = [sign * counts[order] * values for order, values in orders.items() if counts[order]]
            if counted:
                total = sum(counted[1:], counted[0])
                terms.append(_weighted_factors(weights, total, letters, factor, *errors[: len(letters) - 1]))
    return terms


def _weighted_factors(weights: TermWeights, values: np.ndarray, letters: str, *factors: Factor) -> Monomial:
    """TermWeights × factors, in two pieces where the weights factorise."""
    if not weights.factorise:
        return Monomial((Operand(values, letters),), factors)
    inner = (Operand(values[0], letters[1:]),) if letters[1:] else ()
    return Monomial((Operand(weights.ends(), "a"), *inner), factors)


@dataclass(frozen=True)
class TermWeights:
    """TermWeights of all terms, for rates by letter; the indices follow a in the order of theory §8.

    Along a stand the modes with the rates of "a", then the test inputs. Trained to convergence weights `factorise` into
    that of the end, a, and that of the events before: the axis of a then has length one, and `ends` goes with it.
    Each is a dictionary by event order (see `EventTerm`), of those that the algorithm has.
    """

    clock: Clock
    rates: Mapping[str, np.ndarray]
    others: int
    at_training: bool

    @property
    def factorise(self) -> bool:
        return self.clock.duration is None and not self.at_training

    def ends(self) -> np.ndarray:
        """1/λ_a at modes, 1 at test inputs."""
        return np.concatenate([1.0 / self.rates["a"], np.ones(self.others)])

    def with_ends(self, values: np.ndarray) -> np.ndarray:
        """TermWeights (a, …) with the whole axis of a, whether they factorise or not."""
        return values * self.ends().reshape(-1, *(1 for _ in values.shape[1:])) if self.factorise else values

    def free(self) -> dict[int, np.ndarray]:
        """Of ε_a, over "a"."""
        return {0: self._chain()}

    def H(self) -> dict[int, np.ndarray]:
        """Of ΔĤ_ap ε_p, over "ap"."""
        return {0: self._chain(self.rates["p"])}

    def HH(self) -> dict[int, np.ndarray]:
        """Of ΔĤ_aq ΔĤ_qp ε_p, over "aqp"."""
        return {0: self._chain(self.rates["q"][:, None], self.rates["p"])}

    def dH(self) -> dict[int, np.ndarray]:
        """Of the dH terms, over "apq"."""
        clock, p, q = self.clock, self.rates["p"][:, None], self.rates["q"]
        if clock.single:
            return {1: self._chain(p, q)}
        joint = clock.joint(p, q)
        orders = {0: clock.kept(p) * self._chain(p, joint)}
        return orders | {1: clock.step * self._chain(joint)} if clock.at_once else orders

    def ddH(self) -> dict[int, np.ndarray]:
        """Of the ddH terms, over "apqr"."""
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
        """TermWeights (a, …) of a chain through the given rates, which are laid out over the indices that follow a."""
        inner = np.broadcast_shapes(*(np.shape(node) for node in nodes))
        if self.factorise:
            return np.broadcast_to(self.clock.chain(*nodes), (1, *inner))
        modes = self.rates["a"].reshape(-1, *(1 for _ in inner))
        if self.at_training:
            return self.clock.chain(*nodes, first=modes)
        through = self.clock.chain(modes, *nodes)
        direct = np.broadcast_to(self.clock.chain(*nodes), (self.others, *inner))
        return np.concatenate([through, direct])
