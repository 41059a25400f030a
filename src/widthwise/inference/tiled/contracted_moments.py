"""Mean and covariance of trained outputs to order 1/n without tensors on all quadruples of inputs (theory §8).

The same sums as `trained_moments`, in another order: tiles of quadruples flow to the output, are summed with the
weights of the algorithm, and are dropped. Memory grows like N³, time like the N⁴/24 quadruples of inputs.

In a tile one leg stands at a single input z, the others at modes. Turning it too, into Σ_r U_zr (mode r), would take
all tiles at once. But it is summed over r with a weight w(…, λ_r) and what else carries r. Weights depend on each rate
through chains of events, analytic functions of it. Seen as a matrix over (everything else, r) such a function has a low
numerical rank: its columns are combinations of a few of them (`skeleton`), so that
    w(…, λ_r) = Σ_k w(…, λ_k) ℓ_kr,      Σ_r U_zr w(…, λ_r) h_r = Σ_k w(…, λ_k) Σ_r ℓ_kr U_zr h_r,
and only a few λ_k are met. The end of the chain, a, is treated in the same way, once for all tiles.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg

from widthwise import devices
from widthwise.flow.tensors.quadruple_flow import QuadrupleFlow
from widthwise.inference.infinite_width import Spectrum
from widthwise.inference.tiled.forms import CORRELATORS, FORMS, Form
from widthwise.inference.tiled.quadruple_tiles import Lookup, Placement, Tile, lookup, tiles
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.einsum import Operand, against, einsum
from widthwise.inference.trained.trained_moments import Basis, OutputMoments, TermWeights, readout_at_tests

#: Letters of the weights of each kind, the one of the end first.
LETTERS = {"H": "ap", "HH": "aqp", "dH": "apq", "ddH": "apqr"}
#: Letters of legs that may be test inputs.
EXTERNAL = "abcd"
#: What a further column must add, relative to the largest, to be taken.
NEGLIGIBLE_COLUMN = 1e-13
#: Rates from the whole spectrum at which the other indices are looked at. With 9 of 20 rates, networks trained to
#: convergence were 10⁻⁵ off; with 16, 10⁻¹⁰.
LOOKS = 24


def contracted_moments(
    flow: QuadrupleFlow, spectrum: Spectrum, y: np.ndarray, clock: Clock
) -> tuple[OutputMoments, OutputMoments]:
    """Coefficients of 1/n of the moments at the test inputs and at the training inputs; y (training inputs, outputs).

    The inputs of the flow are the training inputs, then the test inputs.
    """
    basis = Basis.of(spectrum, flow.Theta, {name: getattr(flow, name) for name in ("K", "G1", "H1")}, y)
    # trained to convergence the training data are fitted: nothing is random there
    reductions = [Reduction(basis, clock, place) for place in ((False,) if clock.duration is None else (False, True))]
    add_tiles(flow, reductions)
    tests, *training = (assembled_moments(reduction) for reduction in reductions)
    at_training = training[0].read_out(basis.vectors) if training else OutputMoments.zero(*basis.target.shape)
    return tests.read_out(readout_at_tests(basis.Theta, len(y))), at_training


class SkeletalWeights(NamedTuple):
    """Weights (event orders, j, …) with one letter at chosen rates, and ℓ (chosen, modes) of that letter.

    The axis of that letter comes right after j, so that two other letters lie together.
    """

    values: Any
    combine: Any


class KindWeights(NamedTuple):
    """Weights of one kind at chosen ends j, by letter, and what takes them to all ends: (j, modes and test inputs)."""

    ends: Any
    by_letter: dict[str, SkeletalWeights]


class SumOperands(NamedTuple):
    """All that sums need besides tiles: eigenvectors, K and m of the errors, weights by kind."""

    vectors: Any
    errors: dict[str, Any]
    kinds: dict[str, KindWeights]


#: Arrays by form and kind of sum, over the letters of the form; external ones run over modes and then test inputs.
FormSums = dict[str, dict[str, Any]]


class Reduction:
    """Sums of all forms for one algorithm, at test inputs or at training inputs."""

    def __init__(self, basis: Basis, clock: Clock, at_training: bool):
        rates, outputs = basis.rates, len(basis.target)
        self.basis = basis
        self.weights = TermWeights(clock, dict.fromkeys("apqr", rates), 0 if at_training else basis.others, at_training)
        orders, kinds = {}, {}
        for kind in LETTERS:
            orders[kind], kinds[kind] = _kind_weights(kind, self.weights)
        #: Event orders that the algorithm has, the same for all forms of a correlator.
        self.orders = {form.correlator: orders[form.kind] for form in FORMS.values()}
        errors = {"K": basis.tensors["K"][: len(rates), : len(rates)], "m": -basis.target}
        self.operands = SumOperands(basis.vectors, errors, kinds)
        size = {"x": 3, "A": outputs, "B": outputs} | dict.fromkeys("pqr", len(rates))
        size |= dict.fromkeys(EXTERNAL, len(rates) + self.weights.others)
        self.sums: FormSums = {
            name: {kind: np.zeros([size[letter] for letter in wanted.result]) for kind, wanted in form.sums.items()}
            for name, form in FORMS.items()
        }


def add_tile(
    tile: Tile, placement: Placement, lookup: Lookup, all_sums: list[FormSums], all_operands: list[SumOperands]
) -> list[FormSums]:
    """Sums of several reductions with a tile added that has its last input at one leg of a correlator."""
    correlator = tile.correlator(placement, all_operands[0].vectors, lookup)
    all_new = []
    for sums, operands in zip(all_sums, all_operands, strict=True):
        new, at_tests = dict(sums), operands.kinds["H"].ends.shape[1] > len(operands.vectors)
        for name, form in FORMS.items():
            reached = not tile.is_test or (at_tests and form.legs[placement.leg] in EXTERNAL)
            if form.correlator == placement.correlator and reached:
                new[name] = _add_form(form, placement.leg, tile, correlator, sums[name], operands)
        all_new.append(new)
    return all_new


def _add_form(
    form: Form, leg: int, tile: Tile, correlator: Any, sums: dict[str, Any], operands: SumOperands
) -> dict[str, Any]:
    """Sums of a form with those over a tile added, which has its last input at the given leg."""
    letter, rest = form.legs[leg], form.legs[:leg] + form.legs[leg + 1 :]
    modes, repeated = len(operands.vectors), letter in rest
    external = slice(None if tile.is_test else modes)
    # external legs of a form may be internal ones of its correlator's other forms
    cut = [external if other in EXTERNAL else slice(modes) for other in rest]
    part = correlator[(slice(None), slice(None), *cut)]
    small = _weight_operands(form, letter, repeated, tile, operands)
    unweighted = repeated or not any(letter in letters for letters in form.weights)
    if unweighted and not tile.is_test:
        small.append(Operand(operands.vectors[tile.last], letter))
    added = {}
    for kind, (letters, errors) in form.sums.items():
        all_small = [*small, *(Operand(operands.errors[name], at) for name, at in errors)]
        result = letters.replace(letter, "") if tile.is_test else letters
        more = against(part, "gx" + rest, all_small, result)
        ranges = {axis: external if axis in EXTERNAL else slice(None) for axis in letters}
        ranges |= {letter: tile.last} if tile.is_test else {}
        at, added[kind] = tuple(ranges[axis] for axis in letters), sums[kind]
        if isinstance(sums[kind], np.ndarray):
            added[kind][at] += more
        else:
            added[kind] = sums[kind].at[at].add(more)
    return added


def _weight_operands(form: Form, letter: str, repeated: bool, tile: Tile, operands: SumOperands) -> list[Operand]:
    """Weights with the ends that go with them, the letter of the tile's input joined to that input.

    Letters besides those of the form: g, event orders; j and l, chosen ends; k, chosen rates of a letter (`skeletal`).
    For "dH, ε_p" with a training input z at q: w over (g, j, k, p), ℓ_kq U_zq, and the ends over (j, a).
    """
    small, (ends, by_letter), modes = [], operands.kinds[form.kind], len(operands.vectors)
    row = None if tile.is_test else operands.vectors[tile.last]
    for number, letters in enumerate(form.weights):
        end, inner, chosen_end = letters[0], letters[1:], "jl"[number]
        joined = letter in inner and not repeated
        weight = by_letter[LETTERS[form.kind][1 + inner.index(letter) if joined else 0]]
        # the event orders are summed once, with the first weight; a second one has a single order
        values, orders = (weight.values, "g") if number == 0 else (weight.values[0], "")
        skeletal = letter if joined else inner[-1] if weight.combine is not None else ""
        rest = "k" + inner.replace(skeletal, "") if skeletal else inner
        small.append(Operand(values, orders + chosen_end + rest))
        if skeletal and not joined:
            small.append(Operand(weight.combine, "k" + skeletal))
        elif skeletal and row is not None:
            small.append(Operand(weight.combine * row, "k" + skeletal))
        if end != letter or repeated:
            small.append(Operand(ends if tile.is_test else ends[:, :modes], chosen_end + end))
        elif row is None:
            small.append(Operand(ends[:, tile.last], chosen_end))
        else:
            small.append(Operand(ends[:, :modes] * row, chosen_end + end))
    return small


def _kind_weights(kind: str, weights: TermWeights) -> tuple[tuple[int, ...], KindWeights]:
    """Event orders of one kind of weights, and these at chosen ends, each letter in turn at its chosen rates."""
    inner, rates, modes = LETTERS[kind][1:], weights.rates["a"], len(weights.rates["a"])
    everywhere, looked_at = dict.fromkeys(inner, rates), dict.fromkeys(inner, evenly_spread(rates))

    def evaluate(ends: np.ndarray, tests: int, by_letter: dict[str, np.ndarray]) -> dict[int, np.ndarray]:
        """With a at the rates `ends` and at some test inputs, other letters at their rates."""
        return getattr(replace(weights, rates=by_letter | {"a": ends}, others=tests), kind)()

    sample = evaluate(rates, min(weights.others, 1), looked_at)
    at_ends, with_test, ends = rates[:0], 1, weights.ends()[None]
    if not weights.factorise:
        chosen, combine = skeleton(np.concatenate([v.reshape(len(v), -1) for v in sample.values()], axis=1).T)
        # all test inputs are one column
        at_ends, with_test = rates[np.sort(chosen[chosen < modes])], int(np.any(chosen >= modes))
        combine = combine[np.argsort(chosen)]
        ends = np.concatenate([combine[:, :modes], np.repeat(combine[:, modes:], weights.others, 1)], axis=1)

    def skeletal(letter: str) -> SkeletalWeights:
        axis = 1 + inner.index(letter)
        columns = evaluate(at_ends, with_test, looked_at | {letter: rates}).values()
        chosen, combine = skeleton(np.concatenate([np.moveaxis(v, axis, -1).reshape(-1, modes) for v in columns]))
        values = evaluate(at_ends, with_test, everywhere | {letter: rates[chosen]}).values()
        return SkeletalWeights(np.stack([np.moveaxis(v, axis, 1) for v in values]), combine)

    by_letter = {letter: skeletal(letter) for letter in inner}
    # of three letters besides the end the last one is at chosen rates: no array has three axes of modes
    by_letter["a"] = by_letter[inner[-1]]
    if len(inner) < 3:
        by_letter["a"] = SkeletalWeights(np.stack([*evaluate(at_ends, with_test, everywhere).values()]), None)
    return tuple(sample), KindWeights(ends, by_letter)


class Skeleton(NamedTuple):
    """Numbers of the chosen columns, and ℓ (chosen, all)."""

    chosen: np.ndarray
    combine: np.ndarray


def skeleton(sample: np.ndarray) -> Skeleton:
    """Columns of a matrix (rows, all) that give all others, by a QR decomposition with column pivoting.

    >>> found = skeleton(np.outer([1.0, 2.0, 3.0], [1.0, 4.0, 2.0]))      # of rank one
    >>> len(found.chosen), (found.combine * found.combine[0, 1] ** -1 * 4.0).round(12).tolist()
    (1, [[1.0, 4.0, 2.0]])
    """
    rows = np.max(np.abs(sample), axis=1, initial=0.0)
    if not rows.any():
        return Skeleton(np.zeros(1, int), np.zeros((1, sample.shape[1])))
    kept = sample[rows > 0.0] / rows[rows > 0.0, None]
    scale = np.sqrt(np.mean(kept**2, axis=0))
    scale = np.where(scale > 0.0, scale, 1.0)
    _, R, pivots = linalg.qr(kept / scale, mode="economic", pivoting=True)  # pyright: ignore[reportAssignmentType]
    diagonal = np.abs(np.diag(R))
    rank = int(np.count_nonzero(diagonal > NEGLIGIBLE_COLUMN * diagonal[0]))
    combine = np.zeros((rank, sample.shape[1]))
    combine[:, pivots] = linalg.solve_triangular(R[:rank, :rank], R[:rank])
    return Skeleton(pivots[:rank], combine * scale / scale[pivots[:rank]][:, None])


def evenly_spread(rates: np.ndarray, count: int = LOOKS) -> np.ndarray:
    """Some of the rates, evenly spread in their order, the extreme ones among them."""
    return rates[np.unique(np.linspace(0, len(rates) - 1, count).astype(int))]


#: `add_tile` compiled, once for training inputs and once for test inputs.
_add_compiled = jax.jit(add_tile, static_argnames="placement", donate_argnames="all_sums")


def add_tiles(flow: QuadrupleFlow, reductions: list[Reduction]) -> None:
    """All tiles added to the sums of reductions, with numpy on the host, or compiled, everything on an accelerator."""
    on_host, training = not devices.on_accelerator(), len(reductions[0].basis.rates)
    place = (lambda arrays: arrays) if on_host else partial(jax.tree.map, jnp.asarray)
    all_sums, all_operands = place([r.sums for r in reductions]), place([r.operands for r in reductions])
    lookup_of = lru_cache(maxsize=8)(partial(lookup, training=training, on_host=on_host))
    add = add_tile if on_host else _add_compiled
    for tile in tiles(flow, training, on_host):
        for correlator in CORRELATORS:
            for leg in tile.legs(correlator):
                placement = Placement(correlator, leg, reductions[0].orders[correlator])
                all_sums = add(tile, placement, lookup_of(tile.sizes(placement)), all_sums, all_operands)
    for reduction, sums in zip(reductions, jax.tree.map(np.asarray, all_sums), strict=True):
        reduction.sums = sums


class AveragedTerms(NamedTuple):
    """What some terms of Y_Ia add to mean1 (I, a), and their average with z_Cc (C, c, I, a), twice in cov1."""

    mean: np.ndarray
    with_z: np.ndarray


class OutputFactors(NamedTuple):
    """What sums of forms meet when outputs are summed.

    m_Jp = −y_Jp is the mean of ε; w_c the weight of a free output, zK_cp = w_c K_cp its average with ε_p;
    equal_AB is δ of outputs, pairs_xIJKM that of the outputs of four legs in pairing x.
    """

    m: np.ndarray
    w: np.ndarray
    zK: np.ndarray
    equal: np.ndarray
    pairs: np.ndarray

    @classmethod
    def of(cls, reduction: Reduction) -> OutputFactors:
        basis, weights = reduction.basis, reduction.weights
        w, modes, equal = weights.with_ends(weights.free()[0]), len(basis.rates), np.eye(len(basis.target))
        pairings = "IJ,KM", "IK,JM", "IM,JK"
        pairs = np.stack([np.einsum(f"{pairing}->IJKM", equal, equal) for pairing in pairings])
        return cls(m=-basis.target, w=w, zK=w[:, None] * basis.tensors["K"][: len(w), :modes], equal=equal, pairs=pairs)

    def averaged(self, sums: dict[str, Any]) -> np.ndarray:
        """Two errors of outputs A, B: E[ε_A ε_B] = δ_AB K + m_A m_B. Over x, A, B and the two legs that are left."""
        return sums["m"] + einsum("AB,xac->xABac", self.equal, sums["K"])


def assembled_moments(reduction: Reduction) -> OutputMoments:
    """Sums over outputs: theory §8, mean1 and cov1, before the readout. Letters as in `forms`; c and C, of z_Cc."""
    sums, e, weights = reduction.sums, OutputFactors.of(reduction), reduction.weights
    G1, H1 = (reduction.basis.tensors[name][: len(e.w), : len(e.w)] for name in ("G1", "H1"))
    ddH, dH = ddH_terms(sums, e), dH_terms(sums, e)
    H = H_terms(sums, e, weights.with_ends(weights.H()[0]) * H1[:, : len(reduction.basis.rates)])
    mean, with_z = ddH.mean + dH.mean + H.mean, ddH.with_z + dH.with_z + H.with_z
    both = einsum("IJ,a,ab,b->IaJb", e.equal, e.w, G1, e.w)  # δ_ij G1_xy
    both += einsum("xIJKJ,xab->IaKb", e.pairs, sums["H, H"]["K"])  # (A, B, B) (SKS)_bc
    both += einsum("xIJKM,xJMab->IaKb", e.pairs, sums["H, H"]["m"])  # (A, B, B) (S y_k)_b (S y_l)_c
    return OutputMoments(mean, both + with_z + with_z.transpose(2, 3, 0, 1))


def ddH_terms(sums: FormSums, e: OutputFactors) -> AveragedTerms:
    """− ddH terms, with E[ε_J ε_K ε_M] in the mean and E[z_C ε_J ε_K ε_M] in the covariance."""
    at_p, at_q, at_r = (sums[f"ddH, {leg} open"] for leg in "pqr")
    mean = -einsum("xIJKM,xKMap,Jp->Ia", e.pairs, e.averaged(at_p), e.m)  # (K_KM + y_K y_M) y_J
    mean -= einsum("xIJKJ,xaq,Kq->Ia", e.pairs, at_q["K"], e.m)  # K_JM y_K
    mean -= einsum("xIJJM,xar,Mr->Ia", e.pairs, at_r["K"], e.m)  # K_JK y_M
    with_z = -einsum("xICKM,xKMap,cp->CcIa", e.pairs, e.averaged(at_p), e.zK)  # −K_CJ (K_KM + y_K y_M)
    with_z -= einsum("xIJCM,xJMaq,cq->CcIa", e.pairs, e.averaged(at_q), e.zK)  # −K_CK (K_JM + y_J y_M)
    with_z -= einsum("xIJKC,xJKar,cr->CcIa", e.pairs, e.averaged(at_r), e.zK)  # −K_CM (K_JK + y_J y_K)
    return AveragedTerms(mean, with_z)


def dH_terms(sums: FormSums, e: OutputFactors) -> AveragedTerms:
    """dH terms, with E[dĤ ε_J ε_K] in the mean and E[z_C dĤ ε_J ε_K] in the covariance."""
    with_p, with_q = sums["dH, ε_p"]["all"], sums["dH, ε_q"]["all"]
    mean = einsum("xIJKJ,xaq,Kq->Ia", e.pairs, with_p, e.m)  # −E[dĤ z_J] y_K
    mean += einsum("xIJKK,xap,Jp->Ia", e.pairs, with_q, e.m)  # −E[dĤ z_K] y_J
    with_z = einsum("xIJKC,xJKac,c->CcIa", e.pairs, e.averaged(sums["dH, z"]), e.w)  # E[dĤ z_C] (y_J y_K + K_JK)
    with_z += einsum("xIJCJ,xaq,cq->CcIa", e.pairs, with_p, e.zK)  # E[dĤ z_J] K_CK
    with_z += einsum("xICKK,xap,cp->CcIa", e.pairs, with_q, e.zK)  # E[dĤ z_K] K_CJ
    return AveragedTerms(mean, with_z)


def H_terms(sums: FormSums, e: OutputFactors, wH1: np.ndarray) -> AveragedTerms:
    """Terms of the free part with ΔĤ once or twice in one output; wH1_ap = w_ap H1_ap."""
    HH, with_other = sums["HH"]["all"], sums["H, z"]["all"]
    mean = -einsum("ap,Ip->Ia", wH1, e.m)  # M[H1] S y
    mean += einsum("xIJJK,xap,Kp->Ia", e.pairs, HH, e.m)  # −M[A_(xb)(cd) + B_xcbd + n_L B_xdbc] S_bc S_de y_e
    with_z = -einsum("CI,ap,cp->CcIa", e.equal, wH1, e.zK)  # −K_xe H1_yb S_eb
    with_z += einsum("xIJJC,xap,cp->CcIa", e.pairs, HH, e.zK)  # K_xe S_ed S_bc (A_(yb)(cd) + B_ycbd + n_L B_ydbc)
    with_z -= einsum("xCJIJ,xca,c->CcIa", e.pairs, with_other, e.w)  # −(D_(xe)(yb) + n_L F_xyeb + F_xbey) S_eb
    return AveragedTerms(mean, with_z)
