"""Forms summed tile by tile: from tensors with four legs to matrices, without the tensors ever being there (theory §8).

In a tile one leg stands at a single input z, the others at modes. Turning it too, into Σ_r U_zr (mode r), would take
all tiles at once. But it is summed over r with a weight w(…, λ_r) and what else carries r, so that by `skeleton`
    Σ_r U_zr w(…, λ_r) h_r = Σ_k w(…, λ_k) Σ_r ℓ_kr U_zr h_r,
and only a few λ_k are met. The end of the chain, a, is treated in the same way, once for all tiles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from widthwise.inference.tiled.forms import FORMS, Form
from widthwise.inference.tiled.quadruple_tiles import Lookup, Placement, Tile
from widthwise.inference.tiled.skeleton import Skeleton, evenly_spread, skeleton
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.einsum import Operand, against
from widthwise.inference.trained.trained_moments import Basis
from widthwise.inference.trained.trained_output import TermWeights

#: Letters of the weights of each kind, the one of the end first.
LETTERS = {"H": "ap", "HH": "aqp", "dH": "apq", "ddH": "apqr"}
#: Letters of legs that may be test inputs.
EXTERNAL = "abcd"


class SkeletalWeights(NamedTuple):
    """TermWeights (event orders, j, …) with one letter at chosen rates, and ℓ (chosen, modes) of that letter.

    The axis of that letter comes right after j, so that two other letters lie together.
    """

    values: Any
    combine: Any


class SumOperands(NamedTuple):
    """All that sums need besides tiles: eigenvectors, K and m of the errors; by kind, ends, and weights by letter."""

    vectors: Any
    errors: dict[str, Any]
    ends: dict[str, Any]
    weights: dict[str, dict[str, SkeletalWeights]]

    @property
    def at_tests(self) -> bool:
        return self.ends["H"].shape[1] > len(self.vectors)


#: Arrays by form and kind of sum, over the letters of the form; external ones run over modes and then test inputs.
FormSums = dict[str, dict[str, Any]]


class Reduction:
    """Sums of all forms for one algorithm, at test inputs or at training inputs."""

    def __init__(self, basis: Basis, clock: Clock, at_training: bool):
        rates, outputs = basis.rates, len(basis.target)
        self.basis = basis
        self.weights = TermWeights(clock, dict.fromkeys("apqr", rates), 0 if at_training else basis.others, at_training)
        kinds = {kind: _WeightsOfKind(kind, self.weights) for kind in LETTERS}
        self.event_orders = {kind: weights.orders for kind, weights in kinds.items()}
        self.operands = SumOperands(
            vectors=basis.vectors,
            errors={"K": basis.tensors["K"][: len(rates), : len(rates)], "m": -basis.target},
            ends={kind: weights.ends for kind, weights in kinds.items()},
            weights={kind: {at: weights.skeletal(at) for at in LETTERS[kind]} for kind, weights in kinds.items()},
        )
        size = {"x": 3, "A": outputs, "B": outputs} | dict.fromkeys("pqr", len(rates))
        size |= dict.fromkeys(EXTERNAL, len(rates) + self.weights.others)
        self.sums: FormSums = {
            name: {kind: np.zeros([size[letter] for letter in wanted.result]) for kind, wanted in form.sums.items()}
            for name, form in FORMS.items()
        }

    def orders(self, correlator: str) -> tuple[int, ...]:
        """Event orders that the algorithm has, the same for all forms of a correlator."""
        return next(self.event_orders[form.kind] for form in FORMS.values() if form.correlator == correlator)


def add_tile(
    tile: Tile, placement: Placement, lookup: Lookup, all_sums: list[FormSums], all_operands: list[SumOperands]
) -> list[FormSums]:
    """Sums of several reductions with a tile added that has its last input at one leg of a correlator."""
    correlator = tile.correlator(placement, all_operands[0].vectors, lookup)
    all_new = []
    for sums, operands in zip(all_sums, all_operands, strict=True):
        new = dict(sums)
        for name, form in FORMS.items():
            reached = not tile.is_test or (operands.at_tests and form.legs[placement.leg] in EXTERNAL)
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
    # external legs of a form may be internal ones of its correlator's other forms
    cut = [slice(None) if tile.is_test and other in EXTERNAL else slice(modes) for other in rest]
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
        added[kind] = _plus(sums[kind], tuple(_range(axis, letter, tile, modes) for axis in letters), more)
    return added


def _plus(total: Any, at: tuple[Any, ...], more: Any) -> Any:
    """An array with more added at some indices: the same one where it is an array of numpy."""
    if not isinstance(total, np.ndarray):
        return total.at[at].add(more)
    total[at] += more
    return total


def _range(axis: str, letter: str, tile: Tile, modes: int) -> Any:
    """Where a tile adds along an axis of a sum; `letter` is that of its last input."""
    if axis not in EXTERNAL:
        return slice(None)
    if tile.is_test:
        return tile.last if axis == letter else slice(None)
    return slice(modes)


def _weight_operands(form: Form, letter: str, repeated: bool, tile: Tile, operands: SumOperands) -> list[Operand]:
    """TermWeights with the ends that go with them, the letter of the tile's input joined to that input.

    Letters besides those of the form: g, event orders; j and l, chosen ends; k, chosen rates of a letter (`skeletal`).
    For "dH, ε_p" with a training input z at q: w over (g, j, k, p), ℓ_kq U_zq, and the ends over (j, a).
    """
    small, ends, modes = [], operands.ends[form.kind], len(operands.vectors)
    row = None if tile.is_test else operands.vectors[tile.last]
    for number, letters in enumerate(form.weights):
        end, inner, chosen_end = letters[0], letters[1:], "jl"[number]
        joined = letter in inner and not repeated
        at = LETTERS[form.kind][1 + inner.index(letter) if joined else 0]
        weight = operands.weights[form.kind][at]
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


class _WeightsOfKind:
    """TermWeights of one kind at chosen ends j, with `ends` (j, modes and test inputs); each letter's skeleton once."""

    def __init__(self, kind: str, weights: TermWeights):
        self.kind, self.inner, self.weights, self.rates = kind, LETTERS[kind][1:], weights, weights.rates["a"]
        self.by_letter: dict[str, SkeletalWeights] = {}
        looked_at = dict.fromkeys(self.inner, evenly_spread(self.rates))
        sample = self._evaluate(self.rates, min(weights.others, 1), looked_at)
        self.orders = tuple(sample)
        if weights.factorise:
            self.chosen, self.with_test, self.ends = np.zeros(0, int), 1, weights.ends()[None]
            return
        ends = skeleton(np.concatenate([values.reshape(len(values), -1) for values in sample.values()], axis=1).T)
        # all test inputs are one column
        modes = len(self.rates)
        self.chosen = np.sort(ends.chosen[ends.chosen < modes])
        self.with_test = int(np.any(ends.chosen >= modes))
        combine = ends.combine[np.argsort(ends.chosen)]
        self.ends = np.concatenate([combine[:, :modes], np.repeat(combine[:, modes:], weights.others, 1)], axis=1)

    def _evaluate(self, ends: np.ndarray, tests: int, rates: dict[str, np.ndarray]) -> dict[int, np.ndarray]:
        """TermWeights with a at the rates `ends` and at some test inputs, other letters at their rates."""
        return getattr(replace(self.weights, rates=rates | {"a": ends}, others=tests), self.kind)()

    def skeletal(self, letter: str) -> SkeletalWeights:
        """TermWeights with the other letters at all modes, the letter at its chosen rates.

        For the letter of the end, of three others the last one is at chosen rates: no array has three axes of modes.
        """
        letter = self.inner[-1] if letter not in self.inner and len(self.inner) == 3 else letter
        if letter not in self.by_letter:
            rates, combine, axis = dict.fromkeys(self.inner, self.rates), None, 1
            if letter in self.inner:
                chosen, combine = self._skeleton(letter)
                rates[letter], axis = self.rates[chosen], 1 + self.inner.index(letter)
            values = self._evaluate(self.rates[self.chosen], self.with_test, rates).values()
            self.by_letter[letter] = SkeletalWeights(np.stack([np.moveaxis(v, axis, 1) for v in values]), combine)
        return self.by_letter[letter]

    def _skeleton(self, letter: str) -> Skeleton:
        rates = dict.fromkeys(self.inner, evenly_spread(self.rates)) | {letter: self.rates}
        sample = self._evaluate(self.rates[self.chosen], self.with_test, rates).values()
        axis = 1 + self.inner.index(letter)
        return skeleton(np.concatenate([np.moveaxis(v, axis, -1).reshape(-1, len(self.rates)) for v in sample]))
