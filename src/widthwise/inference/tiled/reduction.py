"""Forms summed tile by tile: from tensors with four legs to matrices, without the tensors ever being there (theory §8).

In a tile one leg stands at a single input z, the others at modes. Turning it too, into Σ_r U_zr (mode r), would take
all tiles at once. But it is summed over r with a weight w(…, λ_r) and what else carries r, so that by `skeleton`
    Σ_r U_zr w(…, λ_r) h_r = Σ_k w(…, λ_k) Σ_r ℓ_kr U_zr h_r,
and only a few λ_k are met. The end of the chain, a, is treated in the same way, once for all tiles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from widthwise.inference.tiled.forms import FORMS, Form
from widthwise.inference.tiled.quadruple_tiles import Tile
from widthwise.inference.tiled.skeleton import Skeleton, skeleton, spread
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.einsum import against
from widthwise.inference.trained.trained_output import Weights

#: Letters by kind of weight, the one of the end first.
LETTERS = {"once": "ap", "twice": "aqp", "first": "apq", "second": "apqr"}


class Leg(NamedTuple):
    """Weights (event orders, j, …) with one letter at chosen rates, and ℓ (chosen, modes) of that letter.

    The axis of that letter comes right after j, so that two other letters lie together.
    """

    values: Any
    combine: Any


class Given(NamedTuple):
    """All that sums need besides tiles: eigenvectors, K and m, and for each kind its ends and weights by letter."""

    vectors: Any
    operands: dict[str, Any]
    ends: dict[str, Any]
    weights: dict[str, dict[str, Leg]]


#: Arrays by form and kind of sum, over the letters of the form; external ones run over modes and then test inputs.
Sums = dict[str, dict[str, Any]]


class Reduction:
    """Sums of all forms for one algorithm, at test inputs or at training inputs."""

    def __init__(
        self, clock: Clock, rates: np.ndarray, others: int, at_training: bool, K: np.ndarray, mean: np.ndarray,
        vectors: np.ndarray,
    ):  # fmt: skip
        self.rates, self.others, self.at_training = rates, others, at_training
        operands = {"K": K[: len(rates), : len(rates)], "m": mean[:, : len(rates)]}
        kinds = {kind: _Kind(kind, clock, rates, others, at_training) for kind in LETTERS}
        self.event_orders = {kind: found.orders for kind, found in kinds.items()}
        ends = {kind: found.ends for kind, found in kinds.items()}
        weights = {kind: {letter: found.at(letter) for letter in LETTERS[kind]} for kind, found in kinds.items()}
        self.given = Given(vectors, operands, ends, weights)
        size = {"x": 3, "A": len(mean), "B": len(mean)} | dict.fromkeys("pqr", len(rates))
        size |= dict.fromkeys("abcd", len(rates) + others)
        self.sums: Sums = {
            name: {kind: np.zeros([size[letter] for letter in letters]) for kind, (letters, _) in form.sums.items()}
            for name, form in FORMS.items()
        }

    def orders(self, family: str) -> tuple[int, ...]:
        """Event orders that the algorithm has."""
        kinds = {form.kind for form in FORMS.values() if form.family == family}
        return self.event_orders[min(kinds)] if len(kinds) == 1 else (0,)


def add_tile(
    tile: Tile, family: str, leg: int, orders: tuple[int, ...], looked_up: tuple[Any, Any], all_sums: list[Sums],
    all_given: list[Given],
) -> list[Sums]:  # fmt: skip
    """Sums of several reductions with a tile added that has its last input at one leg of a family."""
    found = tile.at(family, leg, orders, all_given[0].vectors, looked_up)
    added = []
    for sums, given in zip(all_sums, all_given, strict=True):
        new = dict(sums)
        for name, form in FORMS.items():
            letter, at_tests = form.legs[leg], given.ends["once"].shape[1] > len(given.vectors)
            if form.family == family and (at_tests and letter in "abcd" if tile.is_test else True):
                new[name] = _add_form(form, leg, tile, found, sums[name], given)
        added.append(new)
    return added


def _add_form(form: Form, leg: int, tile: Tile, found: Any, sums: dict[str, Any], given: Given) -> dict[str, Any]:
    letter, rest = form.legs[leg], form.legs[:leg] + form.legs[leg + 1 :]
    modes = len(given.vectors)
    # external legs of a form may be internal ones of its family's other forms
    cut = [slice(None) if tile.is_test and other in "abcd" else slice(modes) for other in rest]
    here = found[(slice(None), slice(None), *cut)]
    operands = _weight_operands(form, letter, letter in rest, tile, given)
    unweighted = letter in rest or not any(letter in letters for letters in form.weights)
    if unweighted and not tile.is_test:
        operands.append((given.vectors[tile.where.last], letter))
    added = {}
    for kind, (letters, others) in form.sums.items():
        all_operands = [*operands, *((given.operands[name], at) for name, at in others)]
        result = letters.replace(letter, "") if tile.is_test else letters
        made = against(here, "gx" + rest, all_operands, result)
        added[kind] = _plus(sums[kind], tuple(_range(one, letter, tile, modes) for one in letters), made)
    return added


def _plus(total: Any, at: tuple[Any, ...], more: Any) -> Any:
    """An array with more added at some indices: the same one where it is an array of numpy."""
    if not isinstance(total, np.ndarray):
        return total.at[at].add(more)
    total[at] += more
    return total


def _range(one: str, letter: str, tile: Tile, modes: int) -> Any:
    if one not in "abcd":
        return slice(None)
    if tile.is_test:
        return tile.where.last if one == letter else slice(None)
    return slice(modes)


def _weight_operands(form: Form, letter: str, repeated: bool, tile: Tile, given: Given) -> list[tuple[Any, str]]:
    """Weights with the ends that go with them, the letter of the tile's input joined to that input."""
    operands, ends, modes = [], given.ends[form.kind], len(given.vectors)
    row = None if tile.is_test else given.vectors[tile.where.last]
    for number, letters in enumerate(form.weights):
        end, inner, joint = letters[0], letters[1:], "jl"[number]
        here = letter in inner and not repeated
        weight = given.weights[form.kind][LETTERS[form.kind][1 + inner.index(letter) if here else 0]]
        # the event orders are summed once, with the first weight; a second one has a single order
        values, orders = (weight.values, "g") if number == 0 else (weight.values[0], "")
        skeletal = letter if here else inner[-1] if weight.combine is not None else ""
        operands.append((values, orders + joint + ("k" + inner.replace(skeletal, "") if skeletal else inner)))
        if skeletal and not here:
            operands.append((weight.combine, "k" + skeletal))
        elif skeletal and row is not None:
            operands.append((weight.combine * row, "k" + skeletal))
        if end == letter and not repeated:
            at_end = ends[:, tile.where.last] if row is None else ends[:, :modes] * row
            operands.append((at_end, joint if row is None else joint + end))
        else:
            operands.append((ends if tile.is_test else ends[:, :modes], joint + end))
    return operands


class _Kind:
    """Weights of one kind at chosen ends j, with `ends` (j, modes and test inputs); each letter's skeleton once."""

    def __init__(self, kind: str, clock: Clock, rates: np.ndarray, others: int, at_training: bool):
        self.kind, self.clock, self.rates = kind, clock, rates
        self.at_training, self.others = at_training, others
        self.known: dict[str, Leg] = {}
        look = self._evaluate(rates, min(others, 1), dict.fromkeys(LETTERS[kind][1:], spread(rates)))
        self.orders = tuple(look)
        if Weights(clock, dict.fromkeys("apqr", rates), others, at_training).apart:
            self.chosen, self.with_test = np.zeros(0, int), 1
            self.ends = np.concatenate([1.0 / rates, np.ones(others)])[None]
            return
        columns = np.concatenate([values.reshape(len(values), -1) for values in look.values()], axis=1)
        found = skeleton(columns.T)
        # all test inputs are one column
        self.chosen = np.sort(found.chosen[found.chosen < len(rates)])
        self.with_test = int(np.any(found.chosen >= len(rates)))
        order = np.argsort(found.chosen)
        combine = found.combine[order]
        self.ends = np.concatenate([combine[:, : len(rates)], np.repeat(combine[:, len(rates) :], others, 1)], axis=1)

    def _evaluate(self, ends: np.ndarray, others: int, rates: dict[str, np.ndarray]) -> dict[int, np.ndarray]:
        weights = Weights(self.clock, rates | {"a": ends}, others, self.at_training)
        return getattr(weights, self.kind)()

    def at(self, letter: str) -> Leg:
        """Weights with the other letters at all modes, the letter at its chosen rates.

        For the letter of the end, of three others the last one is at chosen rates: no array has three axes of modes.
        """
        inner = LETTERS[self.kind][1:]
        letter = inner[-1] if letter not in inner and len(inner) == 3 else letter
        if letter in self.known:
            return self.known[letter]
        rates, combine = dict.fromkeys(inner, self.rates), None
        if letter in inner:
            found = self._skeleton(letter)
            rates[letter], combine = self.rates[found.chosen], found.combine
        made = self._evaluate(self.rates[self.chosen], self.with_test, rates)
        axis = 1 + inner.index(letter) if letter in inner else 1
        self.known[letter] = Leg(np.stack([np.moveaxis(values, axis, 1) for values in made.values()]), combine)
        return self.known[letter]

    def _skeleton(self, letter: str) -> Skeleton:
        inner = LETTERS[self.kind][1:]
        rates = dict.fromkeys(inner, spread(self.rates)) | {letter: self.rates}
        look = self._evaluate(self.rates[self.chosen], self.with_test, rates).values()
        axis = 1 + inner.index(letter)
        return skeleton(np.concatenate([np.moveaxis(v, axis, -1).reshape(-1, len(self.rates)) for v in look]))
