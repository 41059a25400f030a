"""Tensors of order 1/n at quadruples with a repeated input, and the means that need no others (theory §4, §5).

All that the recursions read besides a quadruple's own entries has an input twice: N³ numbers a tensor, not N⁴, and
closed under the recursions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.devices import by_device
from widthwise.flow.tensors.placed import Listed, PlacedTensor, placed_step
from widthwise.flow.tensors.rules import FACES, NEEDS, READS, RULES
from widthwise.flow.tensors.tensor_rules import LayerStep
from widthwise.gaussian.four_point import Orders
from widthwise.gaussian.four_point.families import PERMUTATIONS, columns
from widthwise.gaussian.four_point.geometry import library
from widthwise.tensors import MEANS

#: Face by tensor name and pattern, each over its distinct inputs.
Faces = dict[str, dict[str, Any]]
#: Numbers in one array of a piece of a face, on a processor and on an accelerator.
FACE_PIECES = {"cpu": 1 << 17, "gpu": 1 << 20}
#: Four-point expectations (count, assignments) of sorted quadruples (count, 4).
Values = Callable[[np.ndarray], Any]


def no_faces(inputs: int) -> Faces:
    """Those of the first layer: zero."""
    return {name: {p: np.zeros((inputs,) * len(set(p))) for p in patterns} for name, patterns in FACES.items()}


def next_faces(layer: LayerStep, below: Faces, values: Values, placed: tuple[Orders, ...], compiled: bool) -> Faces:
    """Faces of layer l+1; `values` gives four-point expectations, columns as in `placed`."""
    inputs = len(layer.H)
    above = no_faces(inputs)
    step = min(max(1, by_device(FACE_PIECES) // inputs**2), inputs)
    rule = _compiled_face_entries if compiled else _face_entries
    if compiled:
        # once, not for each piece
        layer, below = jax.tree.map(jnp.asarray, (layer, below))
    for start in range(0, inputs, step):
        some = np.arange(start, min(start + step, inputs))
        # one shape for all pieces, so that each rule is compiled once
        padded = np.pad(some, (0, step - len(some) if compiled else 0), mode="edge")
        found = _Repeated.of(some, padded, inputs, values)
        found = jax.tree.map(jnp.asarray, found) if compiled else found
        for name, patterns in FACES.items():
            for pattern in patterns:
                grid = np.meshgrid(padded, *[np.arange(inputs)] * (len(set(pattern)) - 1), indexing="ij")
                inside = np.stack([axis.ravel() for axis in grid])
                made = rule(name, pattern, placed, replace(layer, fours={}), below, found, inside)
                above[name][pattern][some] = np.asarray(made).reshape(grid[0].shape)[: len(some)]
    return above


class _Repeated(NamedTuple):
    """Expectations of the quadruples (x, x, y, z), x from `some` inputs on, y ≤ z: (x, pairs, assignments)."""

    start: Any
    pair: Any
    values: Any

    @classmethod
    def of(cls, some: np.ndarray, padded: np.ndarray, inputs: int, values: Values) -> _Repeated:
        y, z = np.triu_indices(inputs)
        pair = np.zeros((inputs, inputs), int)
        pair[y, z] = pair[z, y] = np.arange(len(y))
        x = np.repeat(some, len(y))
        quads = np.sort(np.stack([x, x, np.tile(y, len(some)), np.tile(z, len(some))], axis=1), axis=1)
        found = values(quads)
        found = found.reshape(len(some), len(y), found.shape[-1])[padded - some[0]]
        return cls(int(some[0]), pair, found)

    def read(self, inside: Any, pattern: str, orders: Orders, placed: tuple[Orders, ...]) -> Any:
        """⟨σ^(o_1) …⟩ with the four inputs by a pattern of x, y, z, from columns (inputs, entries)."""
        xp = library(self.values)
        slots = inside[np.array(["xyz".index(letter) for letter in pattern])]
        # how many stand before each: of equal inputs the first comes first
        places = [
            sum(slots[j] <= slots[k] if j < k else slots[j] < slots[k] for j in range(4) if j != k) for k in range(4)
        ]
        codes = places[0] * 64 + places[1] * 16 + places[2] * 4 + places[3]
        y, z = inside[-2:] if len(inside) == 3 else (inside[1], inside[1])
        column = xp.asarray(_columns_by_code(orders, placed))[codes]
        return self.values[inside[0] - self.start, self.pair[y, z], column][None]


def _columns_by_code(orders: Orders, placed: tuple[Orders, ...]) -> np.ndarray:
    """`columns` by a number that spells the places that four inputs have when sorted."""
    table = np.zeros(256, int)
    for column, permutation in zip(columns(orders, placed), PERMUTATIONS, strict=True):
        table[np.argsort(permutation) @ (64, 16, 4, 1)] = column
    return table


def _face_entries(
    name: str, pattern: str, placed: tuple[Orders, ...], layer: LayerStep, below: Faces, found: _Repeated, inside
):
    """One tensor of layer l+1 at entries of a pattern."""
    fours = {orders: found.read(inside, pattern, orders, placed) for orders in READS[name]}
    listed = Listed(inside, np.array([["xyz".index(letter) for letter in pattern]]))
    tensors = {other: listed.tensor(other, None, faces) for other, faces in below.items()}
    terms = RULES[name](placed_step(layer, listed, fours), tensors)
    return sum(terms.values(), start=np.zeros(()))[0]


_compiled_face_entries = partial(jax.jit, static_argnums=(0, 1, 2))(_face_entries)


def next_means(layer: LayerStep, below: Faces, means: Mapping[str, Any]) -> dict[str, Any]:
    """G1 and H1 of layer l+1, from their values and the faces of layer l."""
    inputs = len(layer.H)
    listed = Listed(np.indices((inputs, inputs)).reshape(2, -1), np.array([[0, 1]]))
    needed = {other for name in MEANS for other in NEEDS[name]} - set(means)
    tensors = {name: _OnPairs(name, None, below[name], listed) for name in needed} | dict(means)
    return {name: sum(RULES[name](layer, tensors).values()) for name in MEANS}


class _OnPairs(PlacedTensor):
    """A tensor at indices a, b alone, as a matrix."""

    def entries(self, indices: str):
        inputs = round(self.listed.columns.shape[1] ** 0.5)
        return np.asarray(super().entries(indices)).reshape(inputs, inputs)
