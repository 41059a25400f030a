"""Odd and even activations: which degrees meet which types of plane functions, so that fewer vanishing sums are made.

Where σ is odd or even, σ^(p) σ^(q) has only degrees of the parity of p + q. Orders of derivatives on four inputs that
add up to an even number put types of one parity on both planes. Even degrees are then summed over the types of even
p + q, odd degrees over the others, a row of types each; otherwise a single row has all types at all degrees.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from widthwise.activations import Activation, evaluate
from widthwise.gaussian.four_point.families import Orders, pair_types
from widthwise.gaussian.four_point.geometry import PAIRINGS
from widthwise.gaussian.four_point.grids import Grid

Rows = tuple[tuple[int, ...], ...]


def has_parity(activation: Activation, scale: np.ndarray, grid: Grid) -> bool:
    """Whether the activation is odd or even, up to rounding, wherever the inputs reach; scale (inputs)."""
    values, mirrored = (evaluate(activation, 0, sign * scale[:, None] * grid.u) for sign in (1.0, -1.0))
    least = 16 * np.finfo(float).eps * np.abs(values).max()
    return bool(min(np.abs(values + mirrored).max(), np.abs(values - mirrored).max()) <= least)


@lru_cache(maxsize=64)
def type_rows(placed: tuple[Orders, ...], parity: bool) -> Rows:
    """Numbers of the types, a row for all degrees or one for even and one for odd degrees, of the same length.

    >>> type_rows(((0, 0, 1, 1), (0, 1, 0, 1), (1, 0, 0, 1)), True)         # of (0, 0), (0, 1), (1, 0), (1, 1)
    ((0, 3), (1, 2))
    """
    types = pair_types(placed)
    rows = [[number for number, pair in enumerate(types) if sum(pair) % 2 == odd] for odd in (0, 1)]
    if not parity or any(sum(orders) % 2 for orders in placed) or not all(rows):
        return (tuple(range(len(types))),)
    # a shorter row is filled up with its last type, which nothing reads again
    length = max(map(len, rows))
    return tuple((*row, *[row[-1]] * (length - len(row))) for row in rows)


class Layout(NamedTuple):
    """For each assignment its types on the two planes of the first pairing, and the rows of types."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    rows: Rows

    @property
    def columns(self) -> np.ndarray:
        """Where each assignment stands among products of all types of a row, one row after the other."""
        pairs = [(a, b) for row in self.rows for a in row for b in row]
        return np.array([pairs.index(pair) for pair in zip(self.first, self.second, strict=True)])


@lru_cache(maxsize=64)
def layout(placed: tuple[Orders, ...], parity: bool) -> tuple[Layout, np.ndarray]:
    """The layout of the first pairing, and for each pairing which of its columns an assignment has.

    All ways to place the orders of a family are there, so that another pairing has the same pairs in another order.
    """
    where = {pair: number for number, pair in enumerate(pair_types(placed))}
    found = [[(where[o[a], o[b]], where[o[c], o[d]]) for o in placed] for a, b, c, d in PAIRINGS]
    number = {pair: column for column, pair in enumerate(found[0])}
    first, second = zip(*found[0], strict=True)
    column = np.array([[number[pair] for pair in pairing] for pairing in found])
    return Layout(first, second, type_rows(placed, parity)), column
