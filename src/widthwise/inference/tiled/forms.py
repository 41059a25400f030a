"""What mean and covariance take from each tensor of order 1/n: sums over its legs, one entry at a time (theory §8).

Every tensor of §3 enters once, with four legs: external ones (a, b, c, d), modes or test inputs, and internal ones
(p, q, r), modes that meet an error ε. Legs with equal outputs stand in pairs; the three ways to pair them, by the
partner of the first leg, are kept apart until outputs are summed. A family lists which tensor in which order makes
each pairing; a form is a family with names for its legs, weights of the algorithm, and what is summed.
"""

from __future__ import annotations

from dataclasses import dataclass

from widthwise.inference.trained.cumulants import CONNECTED
from widthwise.inference.trained.trained_output import FIRST, SECOND

#: (how often, tensor, the leg at each slot of the tensor)
Read = tuple[float, str, tuple[int, ...]]
#: For each event order, for each pairing, tensors that are summed.
Reads = dict[int, tuple[list[Read], list[Read], list[Read]]]


def _from_terms(table, legs: str, outputs: str, also: tuple[str, str, str] | None = None) -> Reads:
    """Reads of the terms of `trained_output`; `also` is one more factor (kind, output, input) of the correlator."""
    reads: Reads = {order: ([], [], []) for order in range(len(table[0][-1]))}
    for kind, at, places, counts in table:
        kinds, at, places = ((kind, also[0]), at + also[1], places + also[2]) if also else ((kind,), at, places)
        for pairs, tensor, slots in CONNECTED[kinds]:
            positions = tuple(legs.index(places[int(k)]) for k in slots)
            for order, count in enumerate(counts):
                if count:
                    reads[order][_pairing([outputs.index(letter) for letter in at], pairs)].append(
                        (count, tensor, positions)
                    )
    return reads


def _pairing(legs: list[int], pairs: tuple[str, ...]) -> int:
    """Number of the leg, less one, that is paired with the first."""
    partners = {frozenset(legs[int(k)] for k in pair) for pair in pairs}
    return next(other for other in (1, 2, 3) if frozenset((0, other)) in partners) - 1


def _direct(kinds: tuple[str, ...]) -> Reads:
    """A correlator whose factors have the legs in their own order."""
    reads: Reads = {0: ([], [], [])}
    for pairs, tensor, slots in CONNECTED[kinds]:
        reads[0][_pairing([0, 1, 2, 3], pairs)].append((1.0, tensor, tuple(int(k) for k in slots)))
    return reads


@dataclass(frozen=True)
class Family:
    """Reads, and which of the four legs may be test inputs."""

    reads: Reads
    external: tuple[int, ...]


FAMILIES = {
    "ddH": Family(_from_terms(SECOND, "apqr", "IJKM"), (0,)),
    "dH z": Family(_from_terms(FIRST, "apqd", "IJKD", ("z", "D", "d")), (0, 3)),
    "H H": Family(_direct(("H", "H")), (0, 2)),
    "z z H": Family(_direct(("z", "z", "H")), (0, 2)),
}


@dataclass(frozen=True)
class Form:
    """Legs by letter (a letter twice: summed over equal inputs), weights by kind and letters, and sums.

    A sum is (letters of the result, operands); x is the pairing, A and B outputs, K the kernel and m the mean of ε.
    """

    family: str
    legs: str
    kind: str
    weights: tuple[str, ...]
    sums: dict[str, tuple[str, tuple[tuple[str, str], ...]]]


def _open(left: str, closed: str) -> dict[str, tuple[str, tuple[tuple[str, str], ...]]]:
    """The two closed legs joined by K, or by the means of two errors with outputs A and B."""
    p, q = closed
    return {"K": ("x" + left, (("K", p + q),)), "m": ("xAB" + left, (("m", "A" + p), ("m", "B" + q)))}


FORMS = {
    "p": Form("ddH", "apqr", "second", ("apqr",), _open("ap", "qr")),
    "q": Form("ddH", "apqr", "second", ("apqr",), _open("aq", "pr")),
    "r": Form("ddH", "apqr", "second", ("apqr",), _open("ar", "pq")),
    "d": Form("dH z", "apqd", "first", ("apq",), _open("ad", "pq")),
    "d=p": Form("dH z", "apqp", "first", ("apq",), {"": ("xaq", ())}),
    "d=q": Form("dH z", "apqq", "first", ("apq",), {"": ("xap", ())}),
    "HH": Form("H H", "aqqp", "twice", ("aqp",), {"": ("xap", ())}),
    "H,H": Form("H H", "apbq", "once", ("ap", "bq"), _open("ab", "pq")),
    "z,H": Form("z z H", "cpap", "once", ("ap",), {"": ("xca", ())}),
}
