"""Forms summed tile by tile: from tensors with four legs to matrices, without the tensors ever being there (theory §8).

In a tile one leg stands at a single input z, the others at modes. Turning it too, into Σ_r U_zr (mode r), would take
all tiles at once. But it is summed over r with a weight w(…, λ_r) and what else carries r, so that by `skeleton`
    Σ_r U_zr w(…, λ_r) h_r = Σ_k w(…, λ_k) Σ_r ℓ_kr U_zr h_r,
and only a few λ_k are met. The end of the chain, a, is treated in the same way, once for all tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.inference.clock import Clock
from widthwise.inference.einsum import einsum
from widthwise.inference.forms import FORMS, Form
from widthwise.inference.skeleton import Skeleton, skeleton, spread
from widthwise.inference.tiles import Tile
from widthwise.inference.trained_output import Weights

#: Letters by kind of weight, the one of the end first.
LETTERS = {"once": "ap", "twice": "aqp", "first": "apq", "second": "apqr"}


class Leg(NamedTuple):
    """Weights (event orders, j, …) with one letter at chosen rates, and ℓ (chosen, modes) of that letter."""

    values: np.ndarray
    combine: np.ndarray | None


class Reduction:
    """Sums of all forms for one algorithm, at test inputs or at training inputs.

    `sums[form][kind]` are arrays over the letters of the form; external ones run over modes and then test inputs.
    """

    def __init__(
        self, clock: Clock, rates: np.ndarray, others: int, at_training: bool, K: np.ndarray, mean: np.ndarray,
        vectors: np.ndarray,
    ):  # fmt: skip
        self.rates, self.others, self.at_training, self.vectors = rates, others, at_training, vectors
        self.operands = {"K": K[: len(rates), : len(rates)], "m": mean[:, : len(rates)]}
        self.weights = {kind: _Kind(kind, clock, rates, others, at_training) for kind in LETTERS}
        self.einsum: Callable[..., Any] = einsum if jax.default_backend() == "cpu" else _compiled_einsum
        size = {"x": 3, "A": len(mean), "B": len(mean)} | dict.fromkeys("pqr", len(rates))
        size |= dict.fromkeys("abcd", len(rates) + others)
        self.sums = {
            name: {kind: np.zeros([size[letter] for letter in letters]) for kind, (letters, _) in form.sums.items()}
            for name, form in FORMS.items()
        }

    def orders(self, family: str) -> tuple[int, ...]:
        """Event orders that the algorithm has."""
        kinds = {form.kind for form in FORMS.values() if form.family == family}
        return tuple(self.weights[min(kinds)].orders) if len(kinds) == 1 else (0,)

    def add(self, family: str, leg: int, tile: Tile, found: np.ndarray) -> None:
        """Add a tile, `found` as `Tile.at` gives it."""
        if tile.is_test and not self.others:
            return
        for name, form in FORMS.items():
            letter = form.legs[leg]
            if form.family == family and (letter in "abcd" or not tile.is_test):
                self._add_form(form, leg, tile, found, self.sums[name])

    def _add_form(self, form: Form, leg: int, tile: Tile, found: np.ndarray, sums: dict[str, np.ndarray]) -> None:
        letter, rest = form.legs[leg], form.legs[:leg] + form.legs[leg + 1 :]
        modes = len(self.rates)
        # external legs of a form may be internal ones of its family's other forms
        cut = [slice(None) if tile.is_test and other in "abcd" else slice(modes) for other in rest]
        operands = [(found[(slice(None), slice(None), *cut)], "gx" + rest)]
        operands += self._weight_operands(form, letter, letter in rest, tile)
        unweighted = letter in rest or not any(letter in letters for letters in form.weights)
        if unweighted and not tile.is_test:
            operands.append((self.vectors[tile.last], letter))
        for kind, (letters, others) in form.sums.items():
            given = [(self.operands[name], at) for name, at in others]
            result = letters.replace(letter, "") if tile.is_test else letters
            made = self.einsum(_expression([*operands, *given], result), *(values for values, _ in [*operands, *given]))
            at = [self._range(one, letter, tile) for one in letters]
            sums[kind][tuple(at)] += np.asarray(made)

    def _range(self, one: str, letter: str, tile: Tile) -> Any:
        if one not in "abcd":
            return slice(None)
        if tile.is_test:
            return tile.last if one == letter else slice(None)
        return slice(len(self.rates))

    def _weight_operands(self, form: Form, letter: str, repeated: bool, tile: Tile) -> list[tuple[np.ndarray, str]]:
        """Weights with the ends that go with them, the letter of the tile's input joined to that input."""
        operands, own = [], self.weights[form.kind]
        row = None if tile.is_test else self.vectors[tile.last]
        for number, letters in enumerate(form.weights):
            end, inner, joint = letters[0], letters[1:], "jl"[number]
            here = letter in inner and not repeated
            weight = own.at(LETTERS[form.kind][1 + inner.index(letter)] if here else None)
            # the event orders are summed once, with the first weight; a second one has a single order
            values, orders = (weight.values, "g") if number == 0 else (weight.values[0], "")
            operands.append((values, orders + joint + (inner.replace(letter, "k") if here else inner)))
            if here and weight.combine is not None and row is not None:
                operands.append((weight.combine * row, "k" + letter))
            if end == letter and not repeated:
                ends = own.ends[:, tile.last] if row is None else own.ends[:, : len(row)] * row
                operands.append((ends, joint if row is None else joint + end))
            else:
                operands.append((own.ends if tile.is_test else own.ends[:, : len(self.rates)], joint + end))
        return operands


class _Kind:
    """Weights of one kind at chosen ends j, with `ends` (j, modes and test inputs); each letter's skeleton once."""

    def __init__(self, kind: str, clock: Clock, rates: np.ndarray, others: int, at_training: bool):
        self.kind, self.clock, self.rates = kind, clock, rates
        self.at_training, self.others = at_training, others
        self.known: dict[str | None, Leg] = {}
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

    def at(self, letter: str | None) -> Leg:
        """Weights with the other letters at all modes; the letter at its chosen rates."""
        if letter not in self.known:
            inner = LETTERS[self.kind][1:]
            rates, combine = dict.fromkeys(inner, self.rates), None
            if letter is not None:
                found = self._skeleton(letter)
                rates[letter], combine = self.rates[found.chosen], found.combine
            made = self._evaluate(self.rates[self.chosen], self.with_test, rates)
            self.known[letter] = Leg(np.stack([np.ascontiguousarray(values) for values in made.values()]), combine)
        return self.known[letter]

    def _skeleton(self, letter: str) -> Skeleton:
        inner = LETTERS[self.kind][1:]
        rates = dict.fromkeys(inner, spread(self.rates)) | {letter: self.rates}
        look = self._evaluate(self.rates[self.chosen], self.with_test, rates).values()
        axis = 1 + inner.index(letter)
        return skeleton(np.concatenate([np.moveaxis(v, axis, -1).reshape(-1, len(self.rates)) for v in look]))


def _expression(operands: list[tuple[np.ndarray, str]], result: str) -> str:
    return ",".join(letters for _, letters in operands) + "->" + result


@partial(jax.jit, static_argnums=0)
def _compiled_einsum(expression: str, *operands):
    return jnp.einsum(expression, *operands, optimize="dp")
