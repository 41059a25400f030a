"""Tiles: all quadruples whose last input is a given one, carried to the output and turned into the eigenbasis.

Inputs are ordered, training inputs first. Each sorted quadruple w ≤ x ≤ y ≤ z belongs to the tile of z, with w, x, y
training inputs, or y a second test input where z is one. A correlator is then known with z at any of its legs and
training inputs at the other legs turned into eigenvectors of Θ. An entry with z at several legs is shared among them
evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, permutations
from math import comb
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.devices import by_device, library
from widthwise.flow.tensors.quadruple_flow import CHUNKS, ROW_OF_ORDER, QuadrupleFlow
from widthwise.inference.tiled.forms import CORRELATORS, Read

#: Tensors that the forms read.
WANTED = tuple(
    sorted({read.tensor for c in CORRELATORS.values() for reads in chain(*c.reads.values()) for read in reads})
)
#: Places of three sorted inputs.
_THREE_PLACES = tuple(permutations(range(3)))
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


def _with_last(rows: np.ndarray, last: int) -> np.ndarray:
    return np.column_stack([rows, np.full(len(rows), last, np.int32)])


def rank(sorted_triples: Any, training: int) -> Any:
    """Where sorted triples (3, …) stand in `triples`."""
    w, x, y = sorted_triples
    pair = x * (x + 1) // 2 + w
    second = comb(training + 2, 3) + (y - training) * (training * (training + 1) // 2) + pair
    return library(y).where(y < training, y * (y + 1) * (y + 2) // 6 + pair, second)


class Lookup(NamedTuple):
    """For every three inputs, whatever their order: number of their order in `_THREE_PLACES`, and row in `triples`.

    Triples that hold two test inputs have the row `ABSENT`.
    """

    order: Any
    row: Any


def lookup(sizes: tuple[int, ...], training: int, on_host: bool = True) -> Lookup:
    """For three legs over the first `sizes` inputs."""
    xp = np if on_host else jnp
    a, b, c = xp.ix_(*(xp.arange(size, dtype=np.int32) for size in sizes))
    low, high = xp.minimum(xp.minimum(a, b), c), xp.maximum(xp.maximum(a, b), c)
    middle = a + b + c - low - high
    # of equal ones the first leg comes first
    first, second = 1 * (b < a) + (c < a), 1 * (a <= b) + (c < b)
    table = np.zeros((3, 3), np.uint8)
    for number, (place, next_place, _) in enumerate(_THREE_PLACES):
        table[place, next_place] = number
    rows = rank((low, middle, high.astype(np.int64)), training)
    row = xp.where(middle < training, rows, ABSENT).astype(np.int32)
    return Lookup(xp.asarray(table)[first, second], row)


class Placement(NamedTuple):
    """A correlator by name, the leg at which a tile has its last input, and the event orders of the algorithm."""

    correlator: str
    leg: int
    orders: tuple[int, ...]

    @property
    def others(self) -> list[int]:
        """The three other legs."""
        return [k for k in range(4) if k != self.leg]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Tile:
    """The quadruples of one last input, and their tensors in all orders, each (24, quadruples).

    `share` and the tensors are those of a whole list, of which `count` quadruples from `start` on are the tile's. Of
    all inputs the first `training` ones are training inputs, and legs run over the first `top` of these.
    """

    last: Any
    start: Any
    count: Any
    share: Any
    tensors: Mapping[str, Any]
    is_test: bool = field(metadata={"static": True})
    training: int = field(metadata={"static": True})
    inputs: int = field(metadata={"static": True})
    top: int = field(metadata={"static": True})

    def legs(self, correlator: str) -> tuple[int, ...]:
        """Where the last input can stand."""
        return CORRELATORS[correlator].external if self.is_test else (0, 1, 2, 3)

    def sizes(self, placement: Placement) -> tuple[int, ...]:
        """How many inputs the other legs run over: external ones of a test input's tile over the test inputs too."""
        external = CORRELATORS[placement.correlator].external if self.is_test else ()
        return tuple(self.inputs if leg in external else self.top for leg in placement.others)

    def correlator(self, placement: Placement, vectors: Any, lookup: Lookup) -> Any:
        """(event orders, pairings, three other legs) in the eigenbasis, with the last input at one leg.

        `lookup` is that of the sizes. What is not in the tile is zero.
        """
        xp = library(self.share)
        # one more column, of zeros, for what is not in the tile
        column = xp.where(lookup.row < self.count, lookup.row + self.start, self.share.shape[0])
        parts = []
        for order in placement.orders:
            for reads in CORRELATORS[placement.correlator].reads[order]:
                tensors = (read.count * self._reordered(read, placement) for read in reads)
                summed = xp.pad(sum(tensors, start=np.zeros(())) * self.share, ((0, 0), (0, 1)))
                parts.append(summed[lookup.order, column])
        sizes, more, own = self.sizes(placement), self.inputs - self.training, vectors[: self.top]
        with_tests = own
        if self.is_test:
            left, right = xp.zeros((self.training, more)), xp.zeros((more, self.training))
            with_tests = xp.block([[own, left], [right, xp.eye(more)]])
        stacked = xp.stack(parts).reshape(len(placement.orders), 3, *sizes)
        return to_modes(stacked, [own if size == self.top else with_tests for size in sizes])

    def _reordered(self, read: Read, placement: Placement) -> Any:
        """A tensor for the six orders of the other legs: (6, quadruples)."""
        by_leg = [dict(zip((*placement.others, placement.leg), (*places, 3), strict=True)) for places in _THREE_PLACES]
        rows = [ROW_OF_ORDER[tuple(place[leg] for leg in read.legs)] for place in by_leg]
        return self.tensors[read.tensor][np.array(rows)]


def to_modes(values: Any, bases: Sequence[Any]) -> Any:
    """The last three axes contracted with the rows of three matrices."""
    *leading, first, second, third = values.shape
    values = (values.reshape(-1, third) @ bases[2]).reshape(-1, second, bases[2].shape[1])
    values = (bases[1].T @ values).reshape(-1, first, bases[1].shape[1] * bases[2].shape[1])
    values = bases[0].T @ values
    return values.reshape(*leading, *(basis.shape[1] for basis in bases))


def tiles(flow: QuadrupleFlow, training: int, on_host: bool) -> Iterator[Tile]:
    """The tiles of all inputs, small ones several at a time so that compiled steps are filled.

    On the host a tile's legs stop at its last input. On an accelerator all tiles have the same shapes, and so have the
    lists of their quadruples: for each other length everything would be compiled again.
    """
    groups = _groups(flow.inputs, training, by_device(CHUNKS) if flow.compiled else 1)
    room = 0 if on_host else max(sum(tile_size(last, training) for last in group) for group in groups)
    for group in groups:
        quads_of = {last: _with_last(triples(last, training), last) for last in group}
        tensors = flow.tensors(np.concatenate([*quads_of.values()]), WANTED, room)
        shares = np.concatenate([1.0 / np.count_nonzero(quads == last, axis=1) for last, quads in quads_of.items()])
        # tensors may be longer than all quadruples
        shares = np.pad(shares, (0, next(iter(tensors.values())).shape[1] - len(shares)))
        share, arrays = jax.tree.map(np.asarray if on_host else jnp.asarray, (shares, tensors))
        start = 0
        for last, quads in quads_of.items():
            part = slice(start, start + len(quads))
            yield Tile(
                last=last,
                start=0 if on_host else start,
                count=len(quads),
                share=share[part] if on_host else share,
                tensors={name: values[:, part] for name, values in arrays.items()} if on_host else arrays,
                is_test=last >= training,
                training=training,
                inputs=flow.inputs,
                top=min(last + 1, training) if on_host else training,
            )
            start += len(quads)


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
