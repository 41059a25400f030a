"""Mean and covariance of trained outputs to order 1/n without tensors on all quadruples of inputs (theory §8).

The same sums as `trained_moments`, in another order: tiles of quadruples flow to the output, are summed with the
weights of the algorithm, and are dropped. Memory grows like N³, time like the N⁴/24 quadruples of inputs.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise import devices
from widthwise.flow.tensors.quadruple_flow import QuadrupleFlow
from widthwise.inference.tiled.forms import CORRELATORS
from widthwise.inference.tiled.quadruple_tiles import Placement, lookup, tiles
from widthwise.inference.tiled.reduction import FormSums, Reduction, add_tile
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.einsum import einsum
from widthwise.inference.trained.trained_moments import Basis, OutputMoments, readout_at_tests
from widthwise.inference.training_kernel import Spectrum


def contracted_moments(
    flow: QuadrupleFlow, spectrum: Spectrum, y: np.ndarray, clock: Clock
) -> tuple[OutputMoments, OutputMoments]:
    """Coefficients of 1/n of the moments at the test inputs and at the training inputs; y (training inputs, outputs).

    The inputs of the flow are the training inputs, then the test inputs.
    """
    basis = Basis.of(spectrum, flow.Theta, {name: getattr(flow, name) for name in ("K", "G1", "H1")}, y)
    at_tests, at_training = Reduction(basis, clock, at_training=False), None
    # trained to convergence the training data are fitted: nothing is random there
    if clock.duration is not None:
        at_training = Reduction(basis, clock, at_training=True)
    add_tiles(flow, [at_tests, at_training] if at_training else [at_tests])
    tests = assembled_moments(at_tests).read_out(readout_at_tests(basis.Theta, len(y)))
    if at_training is None:
        return tests, OutputMoments.zero(*basis.target.shape)
    return tests, assembled_moments(at_training).read_out(basis.vectors)


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
                placement = Placement(correlator, leg, reductions[0].orders(correlator))
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
