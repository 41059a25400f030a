"""Mean and covariance of trained outputs to order 1/n without tensors on all quadruples of inputs (theory §8).

The same sums as `trained_moments`, in another order: tiles of quadruples flow to the output, are summed with the
weights of the algorithm, and are dropped. Memory grows like N³, time like the N⁴/24 quadruples of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from widthwise import devices
from widthwise.flow.tensors.quadruple_flow import QuadrupleFlow
from widthwise.inference.tiled.forms import FAMILIES
from widthwise.inference.tiled.quadruple_tiles import Tile, lookup, tiles
from widthwise.inference.tiled.reduction import Reduction, Sums, add_tile
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.einsum import einsum
from widthwise.inference.trained.trained_moments import Moments, rotate
from widthwise.inference.trained.trained_output import Weights
from widthwise.inference.training_kernel import Spectrum


def contracted_moments(flow: QuadrupleFlow, spectrum: Spectrum, y: np.ndarray, clock: Clock) -> tuple[Moments, Moments]:
    """Coefficients of 1/n of the moments at the test inputs and at the training inputs; y (training inputs, outputs).

    The inputs of the flow are the training inputs, then the test inputs.
    """
    U, modes = spectrum.vectors, len(y)
    tests, outputs = flow.inputs - modes, y.shape[1]
    matrices = {name: rotate(getattr(flow, name), U) for name in ("K", "Theta", "G1", "H1")}
    mean = np.concatenate([-(U.T @ y).T, np.zeros((outputs, tests))], axis=1)
    # trained to convergence the training data are fitted: nothing is random there
    wanted = [(tests, False), (0, True)][: 1 if clock.duration is None else 2]
    reductions = [
        Reduction(clock, spectrum.values, others, at_training, matrices["K"], mean, U) for others, at_training in wanted
    ]
    for reduction, sums in zip(reductions, add_tiles(flow, modes, reductions), strict=True):
        reduction.sums = sums
    at_tests, *at_training = (_assemble(reduction, matrices, mean, clock) for reduction in reductions)
    nothing = Moments(np.zeros((outputs, modes)), np.zeros((outputs, modes, outputs, modes)))
    readout = np.concatenate([-matrices["Theta"][modes:, :modes], np.eye(tests)], axis=1)
    return _read(at_tests, readout), _read(at_training[0], U) if at_training else nothing


def add_tiles(flow: QuadrupleFlow, modes: int, reductions: list[Reduction]) -> list[Sums]:
    """All tiles summed, with numpy on the host, or compiled with everything on an accelerator."""
    on_host = not devices.on_accelerator()
    place = (lambda arrays: arrays) if on_host else partial(jax.tree.map, jnp.asarray)
    all_sums, all_given = place([r.sums for r in reductions]), place([r.given for r in reductions])
    looked_up = lru_cache(maxsize=8)(partial(lookup, training=modes, on_host=on_host))
    for tile in tiles(flow, modes, on_host):
        for family in FAMILIES:
            orders = reductions[0].orders(family)
            for leg in tile.legs(family):
                what = family, leg, orders, looked_up(tile.sizes(family, leg)), all_sums, all_given
                all_sums = add_tile(tile, *what) if on_host else _add_compiled(tile, *what)
    return jax.tree.map(np.asarray, all_sums)


def _add_compiled(tile: Tile, family: str, leg: int, orders, looked_up, all_sums, all_given) -> list[Sums]:
    """`add_tile`, compiled once for training inputs and once for test inputs."""
    shape = tile.is_test, tile.training, tile.inputs, tile.top
    reads = {read[1] for part in FAMILIES[family].reads.values() for p in part for read in p}
    tensors = {name: tile.tensors[name] for name in reads}
    return _add(family, leg, orders, shape, looked_up, all_sums, all_given, tile.where, tile.share, tensors)


@partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=5)
def _add(family, leg, orders, shape, looked_up, all_sums, all_given, where, share, tensors):
    is_test, training, inputs, top = shape
    tile = Tile(where, is_test, training, inputs, top, share, tensors)
    return add_tile(tile, family, leg, orders, looked_up, all_sums, all_given)


def _read(moments: Moments, readout: np.ndarray) -> Moments:
    covariance = einsum("xa,iajb,yb->ixjy", readout, moments.covariance, readout)
    return Moments(moments.mean @ readout.T, covariance)


def _assemble(r: Reduction, matrices: Mapping[str, np.ndarray], mean: np.ndarray, clock: Clock) -> Moments:
    """Sums over outputs: theory §8, mean1 and cov1, before the readout. Letters as in `forms`; c and C, of z_Cc."""
    modes = len(r.rates)
    inputs = modes + r.others
    K, G1, H1 = (matrices[name][:inputs, :inputs] for name in ("K", "G1", "H1"))
    weights = Weights(clock, dict.fromkeys("apqr", r.rates), r.others, r.at_training)
    free, once = (next(iter(part.values())) * _ends(weights, part) for part in (weights.free(), weights.once()))
    m, K_c, one = mean[:, :modes], free[:, None] * K[:, :modes], np.eye(len(mean))
    pairings = np.stack([np.einsum(f"{e},{f}->IJKM", one, one) for e, f in (("IJ", "KM"), ("IK", "JM"), ("IM", "JK"))])

    s = r.sums
    # of the ddH terms: two errors joined by K or at their means, the third open
    opened = {leg: s[leg]["m"] + einsum("AB,xar->xABar", one, s[leg]["K"]) for leg in "pqr"}
    average = -einsum("xIJKM,xKMap,Jp->Ia", pairings, opened["p"], m)
    average -= einsum("xIJKJ,xaq,Kq->Ia", pairings, s["q"]["K"], m) + einsum(
        "xIJJM,xar,Mr->Ia", pairings, s["r"]["K"], m
    )
    mixed = -einsum("xICKM,xKMap,cp->CcIa", pairings, opened["p"], K_c)
    mixed -= einsum("xIJCM,xJMaq,cq->CcIa", pairings, opened["q"], K_c)
    mixed -= einsum("xIJKC,xJKar,cr->CcIa", pairings, opened["r"], K_c)
    # of the dH terms
    at_p, at_q = (s[f"d={leg}"][""] for leg in "pq")
    average += einsum("xIJKJ,xaq,Kq->Ia", pairings, at_p, m) + einsum("xIJKK,xap,Jp->Ia", pairings, at_q, m)
    opened_d = s["d"]["m"] + einsum("AB,xad->xABad", one, s["d"]["K"])
    mixed += einsum("xIJKC,xJKac,c->CcIa", pairings, opened_d, free)
    mixed += einsum("xIJCJ,xaq,cq->CcIa", pairings, at_p, K_c) + einsum("xICKK,xap,cp->CcIa", pairings, at_q, K_c)
    # of ΔH: alone, twice in one output, once in each, and with z
    average -= einsum("ap,ap,Ip->Ia", once, H1[:, :modes], m)
    average += einsum("xIJJK,xap,Kp->Ia", pairings, s["HH"][""], m)
    mixed += einsum("xIJJC,xap,cp->CcIa", pairings, s["HH"][""], K_c)
    mixed -= einsum("CI,ap,ap,cp->CcIa", one, once, H1[:, :modes], K_c)
    mixed -= einsum("xCJIJ,xca,c->CcIa", pairings, s["z,H"][""], free)
    spread = einsum("xIJKM,xJMab->IaKb", pairings, s["H,H"]["m"]) + einsum("xIJKJ,xab->IaKb", pairings, s["H,H"]["K"])
    spread += einsum("IJ,a,ab,b->IaJb", one, free, G1, free)
    return Moments(average, spread + mixed + mixed.transpose(2, 3, 0, 1))


def _ends(weights: Weights, part: Mapping[int, np.ndarray]) -> np.ndarray | float:
    ends = next(iter(part.values()))
    return weights.ends().reshape(-1, *(1 for _ in ends.shape[1:])) if weights.apart else 1.0
