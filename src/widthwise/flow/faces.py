"""Tensors of order 1/n at quadruples with a repeated input, and the means that need no others (theory §4, §5).

All that the recursions read besides a quadruple's own entries has an input twice: N³ numbers a tensor, not N⁴, and
closed under the recursions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from widthwise.flow.finite_rules import READS, RULES, Layer
from widthwise.flow.legs import Legs
from widthwise.flow.mean_rules import rule_G1, rule_H1
from widthwise.flow.placed import FACES, Listed, PlacedTensor, placed_layer
from widthwise.gaussian.four_point import Orders
from widthwise.gaussian.four_point.families import PERMUTATIONS, columns

#: Face by tensor name and pattern, each over its distinct inputs.
Faces = dict[str, dict[str, Any]]
#: Numbers in one array of a piece of a face.
PIECE = 1 << 17
#: Four-point expectations (count, assignments) of sorted quadruples (count, 4).
Values = Callable[[np.ndarray], np.ndarray]


def no_faces(inputs: int) -> Faces:
    """Those of the first layer: zero."""
    return {name: {p: np.zeros((inputs,) * len(set(p))) for p in patterns} for name, patterns in FACES.items()}


def next_faces(layer: Layer, below: Faces, values: Values, placed: tuple[Orders, ...], compiled: bool) -> Faces:
    """Faces of layer l+1; `values` gives four-point expectations, columns as in `placed`."""
    inputs = len(layer.H)
    above = no_faces(inputs)
    step = max(1, PIECE // inputs**2)
    rule = _compiled if compiled else _entries
    for start in range(0, inputs, step):
        some = np.arange(start, min(start + step, inputs))
        found = _Repeated.of(some, inputs, values)
        for name, patterns in FACES.items():
            for pattern in patterns:
                grid = np.meshgrid(some, *[np.arange(inputs)] * (len(set(pattern)) - 1), indexing="ij")
                inside = np.stack([axis.ravel() for axis in grid])
                fours = {orders: found.read(inside, pattern, orders, placed) for orders in READS[name]}
                made = rule(name, pattern, replace(layer, fours={}), below, fours, inside)
                above[name][pattern][some] = np.asarray(made).reshape(grid[0].shape)
    return above


@dataclass(frozen=True)
class _Repeated:
    """Expectations of the quadruples (x, x, y, z), x from `some` inputs on, y ≤ z: (x, pairs, assignments)."""

    start: int
    pair: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, some: np.ndarray, inputs: int, values: Values) -> _Repeated:
        y, z = np.triu_indices(inputs)
        pair = np.zeros((inputs, inputs), int)
        pair[y, z] = pair[z, y] = np.arange(len(y))
        x = np.repeat(some, len(y))
        quads = np.sort(np.stack([x, x, np.tile(y, len(some)), np.tile(z, len(some))], axis=1), axis=1)
        return cls(int(some[0]), pair, values(quads).reshape(len(some), len(y), -1))

    def read(self, inside: np.ndarray, pattern: str, orders: Orders, placed: tuple[Orders, ...]) -> np.ndarray:
        """⟨σ^(o_1) …⟩ with the four inputs by a pattern of x, y, z, from columns (inputs, entries)."""
        slots = inside[["xyz".index(letter) for letter in pattern]]
        order = np.argsort(slots, axis=0, kind="stable")
        codes = order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3]
        y, z = inside[-2:] if len(inside) == 3 else (inside[1], inside[1])
        row = self.values[inside[0] - self.start, self.pair[y, z]]
        return np.take_along_axis(row, _columns_by_code(orders, placed)[codes][:, None], axis=1).T


def _columns_by_code(orders: Orders, placed: tuple[Orders, ...]) -> np.ndarray:
    """`columns` by a number that spells the sorting permutation."""
    table = np.zeros(256, int)
    for column, (p, q, r, s) in zip(columns(orders, placed), PERMUTATIONS, strict=True):
        table[p * 64 + q * 16 + r * 4 + s] = column
    return table


def _entries(name: str, pattern: str, layer: Layer, below: Faces, fours: Mapping[Orders, Any], inside):
    """One tensor of layer l+1 at entries of a pattern."""
    listed = Listed(inside, np.array([["xyz".index(letter) for letter in pattern]]))
    tensors = {other: listed.tensor(other, None, faces) for other, faces in below.items()}
    terms = RULES[name](placed_layer(layer, listed, fours), tensors)
    return sum(terms.values(), start=np.zeros(()))[0]


_compiled = partial(jax.jit, static_argnums=(0, 1))(_entries)


def next_means(layer: Layer, sigma: Legs, slope: Legs, below: Faces, means: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """G1 and H1 of layer l+1, from their values and the faces of layer l."""
    inputs = len(layer.H)
    grid = np.indices((inputs, inputs)).reshape(2, -1)
    listed = Listed(grid, np.array([[0, 1]]))
    tensors = {name: _OnPairs(name, None, below[name], listed) for name in ("V", "D", "F")} | dict(means)
    return {
        "G1": sum(rule_G1(layer, sigma, tensors).values()),
        "H1": sum(rule_H1(layer, sigma, slope, tensors).values()),
    }  # pyright: ignore[reportReturnType]


class _OnPairs(PlacedTensor):
    """A tensor at indices a, b alone, as a matrix."""

    def read(self, indices: str):
        inputs = round(self.listed.columns.shape[1] ** 0.5)
        return np.asarray(super().read(indices)).reshape(inputs, inputs)
