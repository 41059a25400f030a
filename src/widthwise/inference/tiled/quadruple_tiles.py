"""Tiles: all quadruples whose last input is a given one, carried to the output and turned into the eigenbasis.

Inputs are ordered, training inputs first. Each sorted quadruple w ≤ x ≤ y ≤ z belongs to the tile of z, with w, x, y
training inputs, or y a second test input where z is one. A family of forms is then known with z at any of its legs
and training inputs at the other legs turned into eigenvectors of Θ. An entry with z at several legs is shared among
them evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from math import comb
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from widthwise.devices import by_device
from widthwise.flow.tensors.placed import ORDERS
from widthwise.flow.tensors.quadruple_flow import CHUNKS, QuadrupleFlow
from widthwise.gaussian.four_point.geometry import library
from widthwise.inference.tiled.forms import FAMILIES

#: Tensors that the forms read.
WANTED = tuple(sorted({read[1] for f in FAMILIES.values() for part in f.reads.values() for p in part for read in p}))
#: Places of three sorted inputs, and the row of `ORDERS` for the places of four.
_THREE = tuple(permutations(range(3)))
_ROW = {tuple(order): row for row, order in enumerate(ORDERS.tolist())}
#: The row of a triple that no tile holds.
ABSENT = np.iinfo(np.int32).max


def triples(last: int, training: int) -> np.ndarray:
    """Sorted w ≤ x ≤ y (count, 3) of the tile of an input; a training input's are the first of a later one's.

    >>> triples(1, 5).tolist()
    [[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]]
    """
    pairs, within = _sorted(training)
    if last < training:
        return within[: comb(last + 3, 3)]
    return np.concatenate([within, *(_with_last(pairs, y) for y in range(training, last + 1))])


@lru_cache(maxsize=2)
def _sorted(inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted pairs (count, 2) and triples (count, 3), ordered by the last input, then by the one before."""
    singles = np.arange(inputs, dtype=np.int32)[:, None]
    pairs = np.concatenate([_with_last(singles[: x + 1], x) for x in range(inputs)])
    return pairs, np.concatenate([_with_last(pairs[: comb(y + 2, 2)], y) for y in range(inputs)])


def _with_last(some: np.ndarray, last: int) -> np.ndarray:
    return np.column_stack([some, np.full(len(some), last, np.int32)])


def rank(sorted_triples: Any, training: int) -> Any:
    """Where sorted triples (3, …) stand in `triples`."""
    w, x, y = sorted_triples
    pair = x * (x + 1) // 2 + w
    second = comb(training + 2, 3) + (y - training) * (training * (training + 1) // 2) + pair
    return library(y).where(y < training, y * (y + 1) * (y + 2) // 6 + pair, second)


def lookup(sizes: tuple[int, int, int], training: int, on_host: bool = True) -> tuple[Any, Any]:
    """For three legs over the first `sizes` inputs: which order they stand in, and the row of their sorted triple.

    Triples that hold two test inputs have the row `ABSENT`.
    """
    xp = np if on_host else jnp
    a, b, c = xp.ix_(*(xp.arange(size, dtype=np.int32) for size in sizes))
    low, high = xp.minimum(xp.minimum(a, b), c), xp.maximum(xp.maximum(a, b), c)
    middle = a + b + c - low - high
    # of equal ones the first leg comes first
    first, second = 1 * (b < a) + (c < a), 1 * (a <= b) + (c < b)
    table = np.zeros((3, 3), np.uint8)
    for code, (place, other, _) in enumerate(_THREE):
        table[place, other] = code
    rows = rank((low, middle, high.astype(np.int64)), training)
    row = xp.where(middle < training, rows, ABSENT).astype(np.int32)
    return xp.asarray(table)[first, second], row


class Where(NamedTuple):
    """A tile in a list of quadruples: its last input, where its quadruples begin and how many they are."""

    last: Any
    start: Any
    count: Any


class Tile:
    """The quadruples of one last input, and their tensors in all orders, each (24, quadruples).

    `share` and the tensors are those of a whole list; `top` is how many training inputs the legs run over.
    """

    def __init__(
        self, where: Where, is_test: bool, training: int, inputs: int, top: int, share: Any, tensors: Mapping[str, Any]
    ):
        self.where, self.is_test, self.training, self.inputs = where, is_test, training, inputs
        self.top, self.share, self.tensors = top, share, tensors

    def legs(self, family: str) -> tuple[int, ...]:
        """Where the last input can stand."""
        return FAMILIES[family].external if self.is_test else (0, 1, 2, 3)

    def sizes(self, family: str, leg: int) -> tuple[int, int, int]:
        """How many inputs the other legs run over: external ones of a test input's tile over the test inputs too."""
        first, second, third = (self.inputs if wide else self.top for wide in self._wide(family, leg))
        return first, second, third

    def _wide(self, family: str, leg: int) -> list[bool]:
        return [self.is_test and k in FAMILIES[family].external for k in range(4) if k != leg]

    def at(self, family: str, leg: int, orders: Sequence[int], vectors: Any, looked_up: tuple[Any, Any]) -> Any:
        """(event orders, pairings, three other legs) in the eigenbasis, with the last input at one leg.

        `looked_up` is `lookup` of the sizes. What is not in the tile is zero.
        """
        xp = library(self.share)
        others = [k for k in range(4) if k != leg]
        code, row = looked_up
        # one more column, of zeros, for what is not in the tile
        row = xp.where(row < self.where.count, row + self.where.start, self.share.shape[0])
        found = []
        for order in orders:
            for reads in FAMILIES[family].reads[order]:
                rows = (count * self._rows(tensor, positions, leg, others) for count, tensor, positions in reads)
                summed = xp.pad(sum(rows, start=np.zeros(())) * self.share, ((0, 0), (0, 1)))
                found.append(summed[code, row])
        stacked = xp.stack(found).reshape(len(orders), 3, *self.sizes(family, leg))
        return turn(stacked, [self._basis(vectors[: self.top], wide, xp) for wide in self._wide(family, leg)])

    def _rows(self, tensor: str, positions: tuple[int, ...], leg: int, others: list[int]):
        """A tensor, legs at its slots by position, for the six orders of the other legs: (6, quadruples)."""
        rows = []
        for places in _THREE:
            place = dict(zip(others, places, strict=True)) | {leg: 3}
            rows.append(_ROW[tuple(place[position] for position in positions)])
        return self.tensors[tensor][np.array(rows)]

    def _basis(self, vectors: Any, wide: bool, xp: Any) -> Any:
        if not wide:
            return vectors
        more = self.inputs - self.training
        left, right = xp.zeros((self.training, more)), xp.zeros((more, self.training))
        return xp.block([[vectors, left], [right, xp.eye(more)]])


def turn(found, bases: Sequence[np.ndarray]):
    """The last three axes contracted with the rows of three matrices."""
    *many, first, second, third = found.shape
    found = (found.reshape(-1, third) @ bases[2]).reshape(-1, second, bases[2].shape[1])
    found = (bases[1].T @ found).reshape(-1, first, bases[1].shape[1] * bases[2].shape[1])
    found = bases[0].T @ found
    return found.reshape(*many, *(basis.shape[1] for basis in bases))


def tiles(flow: QuadrupleFlow, training: int, on_host: bool) -> Iterator[Tile]:
    """The tiles of all inputs, small ones several at a time so that compiled steps are filled.

    On the host a tile's legs stop at its last input. On an accelerator all tiles have the same shapes, and so have the
    lists of their quadruples: for each other length everything would be compiled again.
    """
    groups = _groups(flow.inputs, training, by_device(CHUNKS) if flow.compiled else 1)
    room = 0 if on_host else max(sum(tile_size(last, training) for last in group) for group in groups)
    for group in groups:
        waiting = [(last, _with_last(triples(last, training), last)) for last in group]
        tensors = flow.tensors(np.concatenate([quads for _, quads in waiting]), WANTED, room)
        yield from _cut(waiting, tensors, training, flow.inputs, on_host)


def _groups(inputs: int, training: int, enough: int) -> list[list[int]]:
    """Last inputs whose tiles are carried together, until there are enough quadruples.

    The last inputs come first: their tiles are the largest, and meet nearly all planes that need many degrees.
    """
    groups, quadruples = [[]], 0
    for last in reversed(range(inputs)):
        if quadruples >= enough:
            groups, quadruples = [*groups, []], 0
        groups[-1].append(last)
        quadruples += tile_size(last, training)
    return groups


def _cut(
    waiting: list[tuple[int, np.ndarray]], tensors: Mapping[str, Any], training: int, inputs: int, on_host: bool
) -> Iterator[Tile]:
    """The tiles of some last inputs with their quadruples; tensors may be longer than all of these."""
    shares = np.concatenate([1.0 / np.count_nonzero(quads == last, axis=1) for last, quads in waiting])
    length = next(iter(tensors.values())).shape[1]
    shares = np.pad(shares, (0, length - len(shares)))
    start, share = 0, shares if on_host else jnp.asarray(shares)
    arrays = {name: np.asarray(values) for name, values in tensors.items()} if on_host else tensors
    for last, quads in waiting:
        count, top = len(quads), min(last + 1, training) if on_host else training
        if on_host:
            here = slice(start, start + count)
            own = {name: values[:, here] for name, values in arrays.items()}
            yield Tile(Where(last, 0, count), last >= training, training, inputs, top, shares[here], own)
        else:
            yield Tile(Where(last, start, count), last >= training, training, inputs, top, share, arrays)
        start += count


def tile_size(last: int, training: int) -> int:
    """How many quadruples the tile of an input holds.

    >>> tile_size(1, 5), len(triples(1, 5))
    (4, 4)
    """
    return comb(min(last, training - 1) + 3, 3) + max(last - training + 1, 0) * comb(training + 1, 2)


def count_quadruples(training: int, tests: int, depth: int) -> int:
    """How many sorted quadruples all tiles and faces hold together, each counted once a layer.

    >>> count_quadruples(2, 1, 2)          # five of the training inputs, four and three with the test input
    12
    """
    inputs = training + tests
    tiled = sum(tile_size(last, training) for last in range(inputs))
    return (depth - 1) * tiled + max(depth - 2, 0) * inputs * comb(inputs + 1, 2)
