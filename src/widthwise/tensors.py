"""K, Θ and the tensors of order 1/n: one record each, from which every list of them in the package is made (theory §3).

What is said here holds for theory and sampled networks alike. The recursion of a tensor is in `flow.tensors`, its
estimator in `experiments.estimators`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

#: Legs of each factor of a correlator: dĤ has one more than Ĥ, ddIĤ and ddIIĤ two.
_LEGS = {"z": 1, "H": 2, "dH": 3, "ddI": 4, "ddII": 4}
_WITHIN_PAIRS = ((1, 0, 2, 3), (0, 1, 3, 2))
_BOTH_PAIRS, _PAIR_FOR_PAIR = (1, 0, 3, 2), (2, 3, 0, 1)
#: How the natural scales K^i Θ^j are written.
SCALE_TEXT = {
    (2, 0): "K²", (1, 0): "K", (1, 1): "(KΘ)", (0, 1): "Θ", (0, 2): "Θ²", (-1, 3): "(Θ³/K)",
    (1.5, 0): "K^1.5", (0.5, 1): "(K^0.5 Θ)", (-0.5, 2): "(Θ²/K^0.5)",
}  # fmt: skip


@dataclass(frozen=True)
class TensorRecord:
    """What is to be known about a tensor.

    `factors` are the variables whose correlator it stands in; `meaning` says it in words. `derivatives` is the highest
    derivative of σ in it, and `symmetry` are permutations of its slots that leave it as it is and generate all others.
    `products` are the two means whose product is taken off a mean over networks of the plain moment.
    """

    name: str
    factors: tuple[str, ...]
    meaning: str
    derivatives: int
    symmetry: tuple[tuple[int, ...], ...]
    products: tuple[str, ...] = ()
    tex: str = ""

    @property
    def slots(self) -> int:
        return sum(_LEGS[factor] for factor in self.factors)

    @property
    def scale(self) -> tuple[float, int]:
        """Its natural scale K^i Θ^j: z counts as √K, Ĥ as Θ, a further derivative of Ĥ as Θ/√K."""
        of_kernel = [_LEGS[factor] for factor in self.factors if factor != "z"]
        roots = self.factors.count("z") - sum(legs - 2 for legs in of_kernel)
        return (roots / 2 if roots % 2 else roots // 2), sum(legs - 1 for legs in of_kernel)


_ZZ, _H, _HH, _ZZH, _DHZ, _DDII = ("z", "z"), ("H",), ("H", "H"), ("z", "z", "H"), ("dH", "z"), ("ddII",)
_MATRIX, _LAST_TWO = ((1, 0),), ((0, 2, 1),)
_RECORDS = (
    TensorRecord("K", _ZZ, "kernel of the preactivations at infinite width (theory §2)", 0, _MATRIX),
    TensorRecord("Theta", _H, "neural tangent kernel at infinite width (theory §2)", 1, _MATRIX, tex=r"\Theta"),
    TensorRecord("G1", _ZZ, "correction of order 1/n to the mean of z z (theory §3, §5)", 0, _MATRIX, tex="G_1"),
    TensorRecord(
        "H1", _H, "correction of order 1/n to the mean of the neural tangent kernel (theory §3, §5)", 1, _MATRIX,
        tex="H_1",
    ),
    TensorRecord(
        "V", (*_ZZ, *_ZZ), "connected four-point function of preactivations (theory §3)", 0,
        (_PAIR_FOR_PAIR, *_WITHIN_PAIRS), products=("G1", "G1"),
    ),
    TensorRecord(
        "A", _HH, "covariance of the neural tangent kernel, paired within (theory §3)", 1,
        (_PAIR_FOR_PAIR, *_WITHIN_PAIRS), products=("H1", "H1"),
    ),
    TensorRecord(
        "B", _HH, "covariance of the neural tangent kernel, paired across (theory §3)", 1, (_BOTH_PAIRS, _PAIR_FOR_PAIR)
    ),
    TensorRecord(
        "D", _ZZH, "covariance of z z with the neural tangent kernel, paired within (theory §3)", 1, _WITHIN_PAIRS,
        products=("G1", "H1"),
    ),
    TensorRecord(
        "F", _ZZH, "covariance of z z with the neural tangent kernel, paired across (theory §3)", 1, (_PAIR_FOR_PAIR,)
    ),
    TensorRecord(
        "P", _DHZ, "z with the first differential dH, z paired with its first slot (theory §3)", 2, ((0, 2, 1, 3),)
    ),
    TensorRecord("Q", _DHZ, "z with the first differential dH, z paired with its last slot (theory §3)", 2, ()),
    TensorRecord("R", ("ddI",), "mean of the second differential ddI (theory §3)", 3, ((0, 1, 3, 2),)),
    TensorRecord("S", _DDII, "mean of the second differential ddII, first pairing (theory §3)", 2, (_BOTH_PAIRS,)),
    TensorRecord("T", _DDII, "mean of the second differential ddII, second pairing (theory §3)", 2, ((3, 2, 1, 0),)),
    TensorRecord("U", _DDII, "mean of the second differential ddII, third pairing (theory §3)", 2, (_PAIR_FOR_PAIR,)),
    # tensors of three slots, on the streams of residual networks; d itself is the name of a slot
    TensorRecord(
        "v3", ("z", *_ZZ), "z of one neuron with z z of another on a residual stream (theory §11)", 0, _LAST_TWO,
        tex="v",
    ),
    TensorRecord(
        "d3", ("z", *_H), "z of one neuron with the neural tangent kernel of another on a residual stream (theory §11)",
        1, _LAST_TWO, tex="d",
    ),
    TensorRecord(
        "f3", ("z", *_H), "z of a neuron with its neural tangent kernel to another on a residual stream (theory §11)",
        1, (), tex="f",
    ),
    TensorRecord("q3", ("dH",), "mean of the first differential dH on a residual stream (theory §11)", 2, (), tex="q"),
)  # fmt: skip
#: By name, in the order in which a Dataset shows them.
TENSORS = {record.name: record for record in _RECORDS}
KERNELS = ("K", "Theta")
#: Tensors of order 1/n that vanish but on the stream of a residual network: those with a neuron's single leg.
SINGLE_LEGS = tuple(name for name in TENSORS if TENSORS[name].slots == 3)
#: The tensors of order 1/n that every network has.
CORRECTIONS = tuple(name for name in TENSORS if name not in KERNELS + SINGLE_LEGS)
#: Of them those on pairs of inputs, corrections to the means of K and Θ, and those on quadruples.
MEANS = tuple(name for name in CORRECTIONS if TENSORS[name].slots == 2)
FOURS = tuple(name for name in CORRECTIONS if TENSORS[name].slots == 4)
#: Those in which the neural tangent kernel has no part, and those in which its differentials stand.
WITHOUT_THETA = tuple(name for name in CORRECTIONS if TENSORS[name].scale[1] == 0)
DIFFERENTIALS = tuple(name for name in CORRECTIONS if TENSORS[name].factors[0].startswith("d"))
#: Those that are covariances: the two means whose product is taken off the plain moment.
PRODUCTS = {name: TENSORS[name].products for name in CORRECTIONS if TENSORS[name].products}
#: Kernels, and the coefficient of 1/n in the mean of each.
SHIFTS: dict[str, str] = dict(zip(KERNELS, MEANS, strict=True))


def dimensions(name: str) -> tuple[str, ...]:
    """The inputs at the slots of a tensor, as a Dataset calls them.

    >>> dimensions("Theta"), dimensions("V")
    (('a', 'b'), ('a', 'b', 'c', 'd'))
    """
    return tuple("abcd"[: TENSORS[name].slots])


@lru_cache(maxsize=64)
def distinct_entries(name: str, inputs: int) -> np.ndarray:
    """Positions, in the flattened tensor, of one entry out of each set that are equal by definition (theory §3).

    >>> distinct_entries("K", 2).tolist(), len(distinct_entries("V", 2)), len(distinct_entries("Q", 2))
    ([0, 1, 3], 6, 16)
    """
    slots, symmetry = TENSORS[name].slots, TENSORS[name].symmetry
    number = np.arange(inputs**slots).reshape((inputs,) * slots)
    lowest = number
    for _ in symmetry * 2:  # the largest group has 8 elements
        for slot_order in symmetry:
            lowest = np.minimum(lowest, lowest.transpose(slot_order))
    return np.flatnonzero(lowest == number)
