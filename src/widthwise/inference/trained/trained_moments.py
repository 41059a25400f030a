"""Trained outputs and kernels as polynomials in what is random at initialisation, and their moments (theory §8).

In the eigenbasis of Θ on the training inputs, with ε = z − y there and sums over modes p, q, r and outputs understood,
    z*_x = Y_x − Θ_xu Y_u,
    Y_i;a = w_a ε_ia − w_ap ΔĤ_ij;ap ε_jp + w_aqp ΔĤ_ij;aq ΔĤ_jk;qp ε_kp
          + (dĤ_ijk;apq w¹ + dĤ_jik;paq w²) ε_jp ε_kq − (six terms of ddIĤ, ddIIĤ) ε_jp ε_kq ε_mr,
where a is a test input x or a mode u. The weights are chains of events (see `clock`) that end at the output x, and pass
through u last if a = u. Trained to convergence they are those of theory §8, and −Θ_xu/λ_u is the −k_x of M.
Averaged over z, ΔĤ, dĤ, ddIĤ and ddIIĤ (`cumulants`) the polynomials give mean and covariance to order 1/n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations
from typing import Any, NamedTuple

import numpy as np

from widthwise.inference.infinite_width import Spectrum
from widthwise.inference.trained.clock import Clock, Link
from widthwise.inference.trained.cumulants import Cumulants, Factor, Monomial, average, joint_cumulant
from widthwise.inference.trained.einsum import Operand, einsum

#: Names of the second factor's indices in a covariance.
SECOND_COPY = str.maketrans("IJKMapqr", "ABCDbstu")


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
    """Weights × factors, in two pieces where the weights factorise."""
    if not weights.factorise:
        return Monomial((Operand(values, letters),), factors)
    inner = (Operand(values[0], letters[1:]),) if letters[1:] else ()
    return Monomial((Operand(weights.ends(), "a"), *inner), factors)


def kernel_change(clock: Clock, rates: np.ndarray, inputs: int) -> list[Monomial]:
    """H* − Ĥ over the indices "IJab": a, b run over the modes with these rates and then over the other inputs.

    With events ordered in time as for the outputs, sums over modes q, r and outputs k, m understood,
        H*_ij;ab − Ĥ_ij;ab = −(dĤ_ijk;abq + dĤ_jik;baq) ε_kq φ(λ_q)
            + (ddI_ijkm;abqr + ddII_ijkm;abqr + ddII_ikjm;aqbr + the same with ia ↔ jb) ε_kq ε_mr μ_q φ(λ_q, λ_qr)
            + (ddI_ijkm;abqr + ddI_jikm;baqr + 2 ddII_ijkm;abqr) ε_kq ε_mr (η/2) φ(λ_qr).
    At infinite width the kernel does not move: this is the leading measure of representation learning.

    >>> [len(term.factors) for term in kernel_change(Clock(0.0, None), np.array([1.0, 2.0]), 3)]
    [2, 2, 3, 3, 3, 3, 3, 3]
    """
    q, r = rates[:, None], rates
    single = clock.chain(rates)
    if clock.single:
        at_once = 0.5 * clock.chain(q, r)
        pair = np.zeros_like(at_once)
    else:
        pair = clock.linked(lambda now: [Link(q), Link(now.joint(q, r), now.kept(q))])
        at_once = clock.linked(lambda now: [Link(now.joint(q, r), 0.5 * now.step)])
    errors = Factor("z", "K", "q"), Factor("z", "M", "r")
    free = Operand(np.ones(inputs), "a"), Operand(np.ones(inputs), "b")

    def term(weight: np.ndarray, kind: str, outputs: str, places: str) -> Monomial:
        letters = "qr"[: weight.ndim]
        return Monomial((Operand(weight, letters), *free), (Factor(kind, outputs, places), *errors[: weight.ndim]))

    return [
        term(-single, "dH", "IJK", "abq"),
        term(-single, "dH", "JIK", "baq"),
        term(pair + at_once, "ddI", "IJKM", "abqr"),
        term(pair + at_once, "ddI", "JIKM", "baqr"),
        term(pair + at_once, "ddII", "IJKM", "abqr"),
        term(pair + at_once, "ddII", "JIKM", "baqr"),
        term(pair, "ddII", "IKJM", "aqbr"),
        term(pair, "ddII", "JKIM", "bqar"),
    ]


@dataclass(frozen=True)
class TermWeights:
    """Weights of all terms, for rates by letter; the indices follow a in the order of theory §8.

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
        """Weights (a, …) with the whole axis of a, whether they factorise or not."""
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
        orders = {0: self._linked(lambda now: [Link(p), Link(now.joint(p, q), now.kept(p))])}
        return orders | {1: self._linked(lambda now: [Link(now.joint(p, q), now.step)])} if clock.at_once else orders

    def ddH(self) -> dict[int, np.ndarray]:
        """Of the ddH terms, over "apqr"."""
        clock, p, q, r = self.clock, self.rates["p"][:, None, None], self.rates["q"][:, None], self.rates["r"]
        if clock.single:
            return {3: self._chain(p, q, r)}
        orders = {
            0: self._linked(
                lambda now: [Link(p), Link(now.joint(p, q), now.kept(p)), Link(now.joint(p, q, r), now.kept(p, q))]
            )
        }
        if clock.at_once:
            orders |= {
                1: self._linked(lambda now: [Link(p), Link(now.joint(p, q, r), now.step * now.kept(p))]),
                2: self._linked(
                    lambda now: [Link(now.joint(p, q), now.step), Link(now.joint(p, q, r), now.kept(p, q))]
                ),
                3: self._linked(lambda now: [Link(now.joint(p, q, r), now.step**2)]),
            }
        return orders

    def _chain(self, *nodes: Any) -> np.ndarray:
        """Weights (a, …) of a chain through the given rates, which are laid out over the indices that follow a."""
        return self._linked(lambda _: [Link(node) for node in nodes])

    def _linked(self, links: Callable[[Clock], list[Link]]) -> np.ndarray:
        """`_chain` of links, as a function of the clock of a step."""
        clock = self.clock
        direct = clock.linked(links)
        if self.factorise:
            return direct[None]
        modes = self.rates["a"].reshape(-1, *(1 for _ in direct.shape))
        if self.at_training:
            return clock.linked(links, first=modes)
        through = clock.linked(lambda now: [Link(modes), *links(now)])
        return np.concatenate([through, np.broadcast_to(direct, (self.others, *direct.shape))])


class OutputMoments(NamedTuple):
    """Mean (outputs, inputs) and covariance (outputs, inputs, outputs, inputs) of one order in 1/n."""

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def zero(cls, outputs: int, inputs: int) -> OutputMoments:
        return cls(np.zeros((outputs, inputs)), np.zeros((outputs, inputs, outputs, inputs)))

    def read_out(self, readout: np.ndarray) -> OutputMoments:
        """The same of linear combinations (combinations, inputs) of the inputs."""
        covariance = einsum("xa,iajb,yb->ixjy", readout, self.covariance, readout)
        return OutputMoments(self.mean @ readout.T, covariance)


@dataclass(frozen=True, eq=False)
class Basis:
    """Everything on training and test inputs, with training inputs turned into eigenvectors of their Θ.

    `tensors` holds K, G1, H1 and the tensors of theory §3; `target` is y in the eigenbasis, (outputs, modes).
    """

    rates: np.ndarray
    vectors: np.ndarray
    Theta: np.ndarray
    tensors: Mapping[str, np.ndarray]
    target: np.ndarray

    @classmethod
    def of(cls, spectrum: Spectrum, Theta: np.ndarray, tensors: Mapping[str, np.ndarray], y: np.ndarray) -> Basis:
        """From arrays over training inputs, then test inputs, and y (training inputs, outputs)."""
        U = spectrum.vectors
        turned = {name: rotate(tensor, U) for name, tensor in tensors.items()}
        return cls(spectrum.values, U, rotate(Theta, U), turned, (U.T @ y).T)

    @property
    def others(self) -> int:
        return len(self.Theta) - len(self.rates)

    @property
    def cumulants(self) -> Cumulants:
        """Averages over initialisation of ε = z − y on modes and z on test inputs."""
        mean = np.concatenate([-self.target, np.zeros((len(self.target), self.others))], axis=1)
        return Cumulants(self.tensors, mean)


def rotate(tensor: np.ndarray, U: np.ndarray) -> np.ndarray:
    """Every slot of a tensor from training inputs, which come first, to their eigenvectors; test inputs stay."""
    for axis in range(tensor.ndim):
        moved = np.moveaxis(tensor, axis, 0)
        turned = np.tensordot(U.T, moved[: len(U)], 1)
        tensor = np.moveaxis(np.concatenate([turned, moved[len(U) :]]), 0, axis)
    return tensor


def readout_at_tests(Theta: np.ndarray, modes: int) -> np.ndarray:
    """z*_x = Y_x − Θ_xu Y_u as a matrix (tests, modes and tests), from Θ on modes and test inputs."""
    return np.concatenate([-Theta[modes:, :modes], np.eye(len(Theta) - modes)], axis=1)


def moments_at_tests(basis: Basis, clock: Clock) -> tuple[OutputMoments, OutputMoments]:
    """Moments at the test inputs, of order 1 and of order 1/n."""
    order0, order1 = _joint_moments(trained_output(clock, basis.rates, basis.others), basis.cumulants)
    readout = readout_at_tests(basis.Theta, len(basis.rates))
    return order0.read_out(readout), order1.read_out(readout)


def moments_at_training(basis: Basis, clock: Clock) -> tuple[OutputMoments, OutputMoments]:
    """The same at the training inputs; the mean of order 1 includes the targets."""
    order0 = order1 = OutputMoments.zero(*basis.target.shape)
    # trained to convergence the training data are fitted: nothing is random there
    if clock.duration is not None:
        errors = trained_output(clock, basis.rates, 0, at_training=True)
        order0, order1 = (part.read_out(basis.vectors) for part in _joint_moments(errors, basis.cumulants))
    return order0._replace(mean=order0.mean + basis.target @ basis.vectors.T), order1


def _joint_moments(outputs: list[Monomial], cumulants: Cumulants) -> tuple[OutputMoments, OutputMoments]:
    """Moments, of order 1 and of order 1/n, of polynomials over "Ia"."""
    copies = [term.renamed(SECOND_COPY) for term in outputs]
    means = average(outputs, "Ia", cumulants)
    covariances = [np.zeros((*part.shape, *part.shape)) for part in means]
    for k, term in enumerate(outputs):
        # the other order of two different terms is the transpose
        same = joint_cumulant([[term], copies[k : k + 1]], "IaAb", cumulants)
        mixed = joint_cumulant([[term], copies[k + 1 :]], "IaAb", cumulants) if k + 1 < len(copies) else None
        for power, total in enumerate(covariances):
            total += same[power]
            if mixed is not None:
                total += mixed[power] + mixed[power].transpose(2, 3, 0, 1)
    return OutputMoments(means.order0, covariances[0]), OutputMoments(means.order1, covariances[1])


def cumulants_at_tests(basis: Basis, clock: Clock, highest: int) -> dict[int, np.ndarray]:
    """Coefficients of 1/n of the cumulants of each trained output at each test, from the third to the `highest`.

    Each is (outputs, tests).
    At infinite width they vanish. To order 1/n a joint cumulant of the polynomials above has at most two factors that
    are not linear in the initial outputs, and these together stand in one correlator of theory §3.
    """
    return {order: _joint_cumulant_at(basis, clock, "x" * order) for order in range(3, highest + 1)}


def joint_third_cumulant(basis: Basis, clock: Clock) -> np.ndarray:
    """The coefficient of 1/n of the third cumulant of one output at three tests: (outputs, tests, tests, tests)."""
    return _joint_cumulant_at(basis, clock, "xhi")


def _joint_cumulant_at(basis: Basis, clock: Clock, tests: str) -> np.ndarray:
    """The joint cumulant of one output at tests with these letters; equal letters are the same test."""
    readout = readout_at_tests(basis.Theta, len(basis.rates))
    linear, *others = trained_output(clock, basis.rates, basis.others)
    copies = [str.maketrans("JKMapqr", letters) for letters in ("JKMapqr", "ABCbstu", "DEFcvwy", "GHLdefg")]
    result, total = "I" + "".join(dict.fromkeys(tests)), 0.0
    for nonlinear in ([], *([term] for term in others), *combinations_with_replacement(others, 2)):
        chosen = [*nonlinear, *[linear] * (len(tests) - len(nonlinear))]
        orders = list({tuple(map(id, order)): order for order in permutations(chosen)}.values())
        # at one test the order does not matter
        count, orders = (len(orders), orders[:1]) if len(result) == 2 else (1, orders)
        for order in orders:
            polynomials = []
            for term, test, table in zip(order, tests, copies, strict=False):
                read = Monomial((*term.coefficients, Operand(readout, test + "a")), term.factors)
                polynomials.append([read.renamed(table)])
            total = total + count * joint_cumulant(polynomials, result, basis.cumulants).order1
    return np.asarray(total)


def mean_kernel_change(basis: Basis, clock: Clock) -> np.ndarray:
    """Coefficient of 1/n of E[H* − Ĥ] on (output, input, output, input): training inputs, then test inputs."""
    terms = kernel_change(clock, basis.rates, len(basis.Theta))
    change = average(terms, "IJab", basis.cumulants).order1
    back = np.eye(len(basis.Theta))
    back[: len(basis.rates), : len(basis.rates)] = basis.vectors
    return einsum("xa,yb,ijab->ixjy", back, back, change)
