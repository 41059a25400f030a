"""Symmetric matrices of few inputs as rows of their entries at a ≤ b."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class TriangleOfPairs:
    """Which two inputs each entry belongs to, where each input stands with itself, and where the entries of the square
    stand in a row and in the square.

    >>> pairs = TriangleOfPairs.of(2)
    >>> row = pairs.packed(np.array([[4.0, 2.0], [2.0, 9.0]]))
    >>> row.tolist(), [one.tolist() for one in pairs.variances(row)]
    ([4.0, 2.0, 9.0], [[4.0, 4.0, 9.0], [4.0, 9.0, 9.0]])
    >>> pairs.squares([row]).tolist()
    [[[4.0, 2.0], [2.0, 9.0]]]
    """

    first: np.ndarray
    second: np.ndarray
    equal: np.ndarray
    entries: np.ndarray
    places: np.ndarray

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, inputs: int) -> TriangleOfPairs:
        """Of so many inputs."""
        first, second = np.triu_indices(inputs)
        entries = first * inputs + second
        places = np.empty((inputs, inputs), np.intp)
        places[first, second] = places[second, first] = np.arange(len(first))
        return cls(first, second, places.diagonal().copy(), entries, places)

    def packed(self, square: np.ndarray) -> np.ndarray:
        return square.take(self.entries)

    def variances(self, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Entries (a, a) and (b, b) of every pair."""
        diagonal = row.take(self.equal)
        return diagonal.take(self.first), diagonal.take(self.second)

    def squares(self, rows: Sequence[np.ndarray], dtype: Any = np.float64) -> np.ndarray:
        """The matrices of some rows, one after the other."""
        return np.stack([row.take(self.places) for row in rows]).astype(dtype, copy=False)
