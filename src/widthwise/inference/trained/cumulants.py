"""Averages to order 1/n of polynomials in the outputs z, ΔĤ, dĤ, ddIĤ and ddIIĤ (theory §3).

A polynomial is a list of monomials, a monomial a coefficient array with a product of factors written in indices:
capital letters are outputs, small ones inputs, and indices that the result does not name are summed. To order 1/n all
variables but z stand in one connected correlator of §3, alone or with some of the z, and the other z pair up by K or
take their mean. Everything else is of higher order. One term is one `einsum`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from widthwise.inference.trained.einsum import Operand, contracted, letter_sizes


class Pairing(NamedTuple):
    """One term of a connected correlator: legs in pairs of equal outputs, and the tensor with its legs slot by slot.

    Legs are numbered along the factors: of dĤ_ijk;abc z_md they are 0, 1, 2 and 3.
    """

    pairs: tuple[str, ...]
    tensor: str
    slots: str


def _four_legs(*tensors: tuple[str, str]) -> tuple[Pairing, ...]:
    """Tensors and slots where the first leg is paired with the second, the third and the fourth."""
    pairs = ("01", "23"), ("02", "13"), ("03", "12")
    return tuple(Pairing(legs, tensor, slots) for legs, (tensor, slots) in zip(pairs, tensors, strict=True))


#: The connected correlators of §3, by the kinds of their factors.
CONNECTED: dict[tuple[str, ...], tuple[Pairing, ...]] = {
    ("z", "z"): (Pairing(("01",), "G1", "01"),),
    ("z", "z", "z", "z"): _four_legs(("V", "0123"), ("V", "0213"), ("V", "0312")),
    ("H",): (Pairing(("01",), "H1", "01"),),
    ("H", "H"): _four_legs(("A", "0123"), ("B", "0213"), ("B", "0312")),
    ("z", "z", "H"): _four_legs(("D", "0123"), ("F", "0213"), ("F", "0312")),
    ("dH", "z"): _four_legs(("Q", "0123"), ("Q", "0213"), ("P", "0123")),
    ("ddI",): _four_legs(("R", "0123"), ("R", "0231"), ("R", "0312")),
    ("ddII",): _four_legs(("S", "0123"), ("T", "0231"), ("U", "0312")),
}


class Factor(NamedTuple):
    """One variable: "z", "H" (meaning ΔĤ), "dH", "ddI" or "ddII", with as many outputs as inputs."""

    kind: str
    outputs: str
    inputs: str


@dataclass(frozen=True, eq=False)
class Monomial:
    """Π coefficients × Π factors. An input index that is shorter in a coefficient runs over the first inputs only."""

    coefficients: tuple[Operand, ...]
    factors: tuple[Factor, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """How far each index of the coefficients runs."""
        return letter_sizes(self.coefficients)

    def __mul__(self, other: Monomial) -> Monomial:
        return Monomial(self.coefficients + other.coefficients, self.factors + other.factors)

    def renamed(self, table: dict[int, int]) -> Monomial:
        """The same with other letters, `table` from str.maketrans."""
        coefficients = tuple(Operand(array, letters.translate(table)) for array, letters in self.coefficients)
        factors = tuple(Factor(f.kind, f.outputs.translate(table), f.inputs.translate(table)) for f in self.factors)
        return Monomial(coefficients, factors)


def monomial(coefficient: np.ndarray, letters: str, *factors: tuple[str, str, str]) -> Monomial:
    """coefficient[letters] × Π factors, each (kind, outputs, inputs)."""
    return Monomial((Operand(coefficient, letters),), tuple(Factor(*factor) for factor in factors))


@dataclass(frozen=True, eq=False)
class Cumulants:
    """K and the tensors of §3 on all inputs, and the mean of z, which may be shifted, shape (outputs, inputs)."""

    tensors: Mapping[str, np.ndarray]
    mean: np.ndarray


class Averages(NamedTuple):
    """An average: its value at infinite width and the coefficient of 1/n."""

    order0: np.ndarray
    order1: np.ndarray


def average(polynomial: Iterable[Monomial], result: str, cumulants: Cumulants) -> Averages:
    """E of the sum of the monomials, over the indices `result`.

    >>> tensors = {"K": np.array([[2.0]]), "G1": np.array([[0.5]]), "V": np.full((1, 1, 1, 1), 3.0)}
    >>> z4 = monomial(np.ones(1), "a", *[("z", "I", "a")] * 4)
    >>> [float(part[0, 0]) for part in average([z4], "Ia", Cumulants(tensors, np.zeros((1, 1))))]   # 3K², 6KG1 + 3V
    [12.0, 15.0]
    """
    return joint_cumulant([polynomial], result, cumulants)


def joint_cumulant(polynomials: Sequence[Iterable[Monomial]], result: str, cumulants: Cumulants) -> Averages:
    """The joint cumulant of polynomials that share no index but those of `result`: of two of them the covariance.

    Correlators are cumulants themselves, so it is the sum over the arrangements in which they join all polynomials.

    >>> tensors = {"K": np.array([[2.0]]), "G1": np.array([[0.5]]), "V": np.full((1, 1, 1, 1), 3.0)}
    >>> squares = [[monomial(np.ones(1), "ab"[k], *[("z", "IJ"[k], "ab"[k])] * 2)] for k in (0, 1)]
    >>> parts = joint_cumulant(squares, "IaJb", Cumulants(tensors, np.zeros((1, 1))))    # 2K², 4KG1 + 3V
    >>> float(parts.order0.squeeze()), float(parts.order1.squeeze())
    (8.0, 13.0)
    """
    products = list(product(*polynomials))
    sizes = {letter: size for terms in products for term in terms for letter, size in term.sizes.items()}
    shape = [len(cumulants.mean) if letter.isupper() else sizes[letter] for letter in result]
    totals = np.zeros((2, *shape))
    for terms in products:
        whole = reduce(Monomial.__mul__, terms)
        owners = [number for number, term in enumerate(terms) for _ in term.factors]
        for power, blocks in _arrangements([factor.kind for factor in whole.factors]):
            if _join_all([{owners[k] for k in block.factors} for block in blocks], len(terms)):
                totals[power] += _contract(whole, blocks, result, cumulants)
    return Averages(*totals)


def _join_all(links: Sequence[set[int]], count: int) -> bool:
    """Whether links join the numbers 0, …, count − 1.

    >>> _join_all([{0, 1}, {2}], 3), _join_all([{0, 1}, {1, 2}], 3)
    (False, True)
    """
    reached, left = {0}, list(links)
    while touching := [link for link in left if link & reached]:
        left = [link for link in left if not link & reached]
        reached = reached.union(*touching)
    return len(reached) == count


class _Block(NamedTuple):
    """Factors of a monomial, by position, that are averaged together, and a pairing of their legs."""

    factors: tuple[int, ...]
    pairing: Pairing


_MEAN, _KERNEL = Pairing((), "mean", "0"), Pairing(("01",), "K", "01")


def _arrangements(kinds: Sequence[str]) -> Iterator[tuple[int, list[_Block]]]:
    """Every way to sort factors into correlators, with the power of 1/n that it has, up to the first."""
    free = [k for k, kind in enumerate(kinds) if kind == "z"]
    others = [k for k, kind in enumerate(kinds) if kind != "z"]
    if not others:
        yield from ((0, blocks) for blocks in _pairings(free))
    for connected, pairings in CONNECTED.items():
        if sorted(kind for kind in connected if kind != "z") != sorted(kinds[k] for k in others):
            continue
        for chosen in combinations(free, connected.count("z")):
            unpaired = [k for k in free if k not in chosen]
            factors = (*chosen, *others) if connected[0] == "z" else (*others, *chosen)
            for pairing in pairings:
                yield from ((1, [_Block(factors, pairing), *rest]) for rest in _pairings(unpaired))


def _pairings(free: Sequence[int]) -> Iterator[list[_Block]]:
    """Each z takes its mean or pairs with a later one."""
    if not free:
        yield []
        return
    first, *others = free
    for rest in _pairings(others):
        yield [_Block((first,), _MEAN), *rest]
    for partner in others:
        for rest in _pairings([k for k in others if k != partner]):
            yield [_Block((first, partner), _KERNEL), *rest]


def _contract(term: Monomial, blocks: Sequence[_Block], result: str, cumulants: Cumulants):
    """One einsum: correlators times coefficients, outputs made equal as the correlators say."""
    same: dict[str, str] = {}

    def representative(letter: str) -> str:
        return representative(same[letter]) if letter in same else letter

    operands = [*term.coefficients]
    for factors, (pairs, tensor, slots) in blocks:
        outputs = "".join(term.factors[k].outputs for k in factors)
        inputs = "".join(term.factors[k].inputs for k in factors)
        for pair in pairs:
            first, second = sorted((representative(outputs[int(k)]) for k in pair), key=lambda c: (c not in result, c))
            if first != second:
                same[second] = first
        letters = ("" if pairs else outputs) + "".join(inputs[int(k)] for k in slots)
        values = cumulants.tensors[tensor] if pairs else cumulants.mean
        # a coefficient may run over the first entries along an index alone
        operands.append(Operand(values[tuple(slice(term.sizes.get(letter)) for letter in letters)], letters))
    operands = [Operand(values, "".join(map(representative, letters))) for values, letters in operands]
    named = {representative(letter) for factor in term.factors for letter in factor.outputs}
    loops = named - set(result) - {letter for _, letters in operands for letter in letters}
    count = len(cumulants.mean)
    operands += [Operand(np.eye(count), letter + representative(letter)) for letter in result if letter in same]
    present = "".join(letters for _, letters in operands)
    operands += [Operand(np.ones(count), letter) for letter in result if letter.isupper() and letter not in present]
    return count ** len(loops) * contracted(operands, result)
