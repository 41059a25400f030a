"""Rules of theory §4 on lists of quadruples: matrices and tensors read where each quadruple's inputs stand.

A list has some columns of inputs, and places (rows, 4) that say which column each index a, b, c, d of a rule reads.
For sorted quadruples all 24 orders are rows, so a tensor in another index order is another row of the same list. A
tensor with a repeated input belongs to no such list; it is read from faces, arrays over the distinct inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from widthwise.flow.tensors.legs import Legs
from widthwise.flow.tensors.rules import FACES, equal_entries, fits
from widthwise.flow.tensors.tensor_rules import LayerStep

#: All index orders of four sorted inputs: row, then the place of a, b, c, d.
ORDERS = np.array(list(permutations(range(4))))
ROW_OF_ORDER = {tuple(int(k) for k in order): row for row, order in enumerate(ORDERS)}
_EXCHANGED = np.array([ROW_OF_ORDER[c, d, a, b] for a, b, c, d in ORDERS.tolist()])


@dataclass(frozen=True, eq=False)
class Listed:
    """Inputs (columns, quadruples), and which column the indices a, b, c, d read: places (rows, 4)."""

    columns: Any
    places: np.ndarray

    def matrix(self, values) -> PlacedMatrix:
        first, second = self.columns[:, None], self.columns[None, :]
        return PlacedMatrix(values[first, second], self.places)

    def tensor(self, name: str, orders, faces: Mapping[str, Any]) -> PlacedTensor:
        """A tensor known in all `orders` (24, quadruples), or None, and on its `faces` by pattern."""
        return PlacedTensor(name, orders, faces, self)


@dataclass(frozen=True, eq=False)
class PlacedMatrix:
    """A matrix between all columns of a list: (columns, columns, quadruples)."""

    values: Any
    places: np.ndarray

    def on(self, pair: str):
        """M_pair over (rows, quadruples)."""
        first, second = ("abcd".index(letter) for letter in pair)
        return self.values[self.places[:, first], self.places[:, second]]

    def __mul__(self, other):
        return PlacedMatrix(self.values * getattr(other, "values", other), self.places)

    __rmul__ = __mul__

    def __add__(self, other):
        return PlacedMatrix(self.values + other.values, self.places)


class PlacedTensor:
    """A tensor of the layer below, at any indices that the rules ask for."""

    def __init__(self, name: str, orders, faces: Mapping[str, Any], listed: Listed):
        self.name, self.orders, self.listed = name, orders, listed
        self.faces, self.known = faces, {}

    def entries(self, indices: str):
        """The tensor at these letters, over (rows, quadruples); see `tensor_rules.entries`."""
        places = self.listed.places[:, ["abcd".index(letter) for letter in indices]]
        if len(set(places[0].tolist())) == 4:
            return self.orders[np.array([ROW_OF_ORDER[tuple(row)] for row in places.tolist()])]
        for equal in equal_entries(self.name, places):
            for pattern in FACES[self.name]:
                if fits(pattern, equal):
                    at = equal[:, [pattern.index(letter) for letter in sorted(set(pattern))]]
                    return self._face(pattern)[tuple(at.T)]
        raise KeyError(f"{self.name} is not kept at inputs like {indices}")

    def _face(self, pattern: str):
        """A face between all columns of the list: (columns, …, quadruples)."""
        if pattern not in self.known:
            columns, count = self.listed.columns, len(set(pattern))
            grids = [columns[tuple(slice(None) if j == k else None for j in range(count))] for k in range(count)]
            self.known[pattern] = self.faces[pattern][tuple(grids)]
        return self.known[pattern]


@dataclass(frozen=True)
class PlacedStep(LayerStep):
    """`LayerStep` on a list of quadruples in all orders."""

    def exchanged(self, values):
        return values[_EXCHANGED]


def placed_step(step: LayerStep, listed: Listed, fours: Mapping[tuple[int, ...], Any]) -> PlacedStep:
    """A step with its matrices laid out over a list; the rules of quadruples read no fourth derivatives."""

    def placed(legs: Legs) -> Legs:
        value, aa, ab = (listed.matrix(part) for part in (legs.value, legs.aa, legs.ab))
        return replace(legs, value=value, aa=aa, ab=ab, aaaa=None, aaab=None, aabb=None)

    H, sigma, slope = listed.matrix(step.H), placed(step.sigma), placed(step.slope)
    return PlacedStep(C=step.C, lam=step.lam, r=step.r, H=H, sigma=sigma, slope=slope, fours=fours)
