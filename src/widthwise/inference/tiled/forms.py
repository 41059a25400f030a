"""What mean and covariance take from each tensor of order 1/n: sums over its legs, one entry at a time (theory §8).

A correlator has four legs, a pair of output and input each. Legs with equal outputs stand in pairs; the three ways to
pair them, numbered x by the partner of the first leg, are kept apart until outputs are summed. A correlator lists the
tensors of §3 that make each pairing. A form names its legs: a, b, c, d are external, modes or test inputs, and p, q, r
internal, modes that meet an error ε. It says which weights of the algorithm go with them, and what is summed.

For example the dH terms of mean1, w_apq (dĤ_ijk;apq + dĤ_jik;paq) ε_jp ε_kq in gradient flow. One error is averaged
with dĤ, the other takes its mean. The correlator "dH z" holds E[(dĤ_ijk;apq + dĤ_jik;paq) z_md] by pairing,
    x = 0:  ij, km    Q_apqd + Q_paqd
    x = 1:  ik, jm    Q_aqpd + P_paqd
    x = 2:  im, jk    P_apqd + Q_pqad,
and the error ε_jp stands at d: legs "apqp", weights over "apq", and the sum over p leaves a matrix of a and q,
    Form(correlator="dH z", legs="apqp", kind="dH", weights=("apq",), sums={"all": FormSum("xaq")}).
With m = j the outputs then give 1, n_L and 1 times δ_ik (`contracted_moments`). docs/contractions.md has all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from widthwise.inference.trained.cumulants import CONNECTED, Factor
from widthwise.inference.trained.trained_moments import DDH_TERMS, DH_TERMS


class Read(NamedTuple):
    """A tensor that is read so many times, with the leg of the correlator at each of its slots."""

    count: float
    tensor: str
    legs: tuple[int, ...]


#: For each event order, for each pairing, tensors that are summed.
Reads = dict[int, tuple[list[Read], list[Read], list[Read]]]


@dataclass(frozen=True)
class Correlator:
    """Tensors that are read, and which of the four legs may be test inputs."""

    reads: Reads
    external: tuple[int, ...]


def _reads(inputs: str, outputs: str, terms: Sequence[tuple[tuple[Factor, ...], tuple[float, ...]]]) -> Reads:
    """Tensors of the sum of some products of factors, whose four legs have these letters.

    With each product comes how often it counts in each event order.
    """
    reads: Reads = {order: ([], [], []) for order in range(len(terms[0][1]))}
    for factors, counts in terms:
        of_inputs = [inputs.index(letter) for factor in factors for letter in factor.inputs]
        of_outputs = [outputs.index(letter) for factor in factors for letter in factor.outputs]
        for pairs, tensor, slots in CONNECTED[tuple(factor.kind for factor in factors)]:
            output_pairs = [{of_outputs[int(k)] for k in pair} for pair in pairs]
            (partner,) = next(pair for pair in output_pairs if 0 in pair) - {0}
            legs_of_slots = tuple(of_inputs[int(k)] for k in slots)
            for order, count in enumerate(counts):
                if count:
                    reads[order][partner - 1].append(Read(count, tensor, legs_of_slots))
    return reads


_DDH = [((t.factor,), t.counts) for t in DDH_TERMS]
_DH_Z = [((t.factor, Factor("z", "D", "d")), t.counts) for t in DH_TERMS]
_H_H = [((Factor("H", "IJ", "ap"), Factor("H", "KM", "bq")), (1.0,))]
_Z_Z_H = [((Factor("z", "I", "c"), Factor("z", "J", "d"), Factor("H", "KM", "ap")), (1.0,))]
CORRELATORS = {
    "ddH": Correlator(_reads("apqr", "IJKM", _DDH), external=(0,)),
    "dH z": Correlator(_reads("apqd", "IJKD", _DH_Z), external=(0, 3)),
    "H H": Correlator(_reads("apbq", "IJKM", _H_H), external=(0, 2)),
    "z z H": Correlator(_reads("cdap", "IJKM", _Z_Z_H), external=(0, 2)),
}


class FormSum(NamedTuple):
    """Letters of a sum, and what it is summed with: K of the initial outputs, or m, the mean of ε, with letters.

    x is the pairing; A and B are the outputs of two means.
    """

    result: str
    errors: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Form:
    """Legs of a correlator by letter (a letter twice: summed over equal inputs), weights by letters, and sums.

    `kind` names the weights of `TermWeights`: H, HH, dH or ddH.
    """

    correlator: str
    legs: str
    kind: str
    weights: tuple[str, ...]
    sums: dict[str, FormSum]


def _two_errors(at: str, left: str) -> dict[str, FormSum]:
    """Two errors at the given legs: joined by K, or at their means with outputs A and B. Two legs are left."""
    p, q = at
    return {"K": FormSum("x" + left, (("K", at),)), "m": FormSum("xAB" + left, (("m", "A" + p), ("m", "B" + q)))}


FORMS = {
    # ddH terms, −ddH_…;apqr ε_p ε_q ε_r w_apqr: two errors averaged with each other or at their means, the third open
    **{
        f"ddH, {third} open": Form(
            correlator="ddH", legs="apqr", kind="ddH", weights=("apqr",), sums=_two_errors(two, left="a" + third)
        )
        for two, third in (("qr", "p"), ("pr", "q"), ("pq", "r"))
    },
    # dH terms, dH_…;apq ε_p ε_q w_apq: dĤ averaged with another output z_d, with ε_p, with ε_q
    "dH, z": Form(correlator="dH z", legs="apqd", kind="dH", weights=("apq",), sums=_two_errors("pq", left="ad")),
    "dH, ε_p": Form(correlator="dH z", legs="apqp", kind="dH", weights=("apq",), sums={"all": FormSum("xaq")}),
    "dH, ε_q": Form(correlator="dH z", legs="apqq", kind="dH", weights=("apq",), sums={"all": FormSum("xap")}),
    # free part: ΔĤ_aq ΔĤ_qp ε_p w_aqp; ΔĤ_ap ε_p w_ap with the same of b and q; ΔĤ_ap ε_p w_ap with another output z_c
    "HH": Form(correlator="H H", legs="aqqp", kind="HH", weights=("aqp",), sums={"all": FormSum("xap")}),
    "H, H": Form(correlator="H H", legs="apbq", kind="H", weights=("ap", "bq"), sums=_two_errors("pq", left="ab")),
    "H, z": Form(correlator="z z H", legs="cpap", kind="H", weights=("ap",), sums={"all": FormSum("xca")}),
}
