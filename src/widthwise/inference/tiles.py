"""Tiles: all quadruples whose last input is a given one, carried to the output and turned into the eigenbasis.

Inputs are ordered, training inputs first. Each sorted quadruple w ≤ x ≤ y ≤ z belongs to the tile of z, with w, x, y
training inputs, or y a second test input where z is one. A family of forms is then known with z at any of its legs
and training inputs at the other legs turned into eigenvectors of Θ. An entry with z at several legs is shared among
them evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import permutations
from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.flow.placed import ORDERS
from widthwise.flow.quadruple_flow import CHUNKS, QuadrupleFlow
from widthwise.inference.forms import FAMILIES

#: Tensors that the forms read.
WANTED = tuple(sorted({read[1] for f in FAMILIES.values() for part in f.reads.values() for p in part for read in p}))
#: Places of three sorted inputs, and the row of `ORDERS` for the places of four.
_THREE = tuple(permutations(range(3)))
_ROW = {tuple(order): row for row, order in enumerate(ORDERS.tolist())}


def triples(last: int, training: int) -> np.ndarray:
    """Sorted w ≤ x ≤ y (count, 3) of the tile of an input; a training input's are the first of a later one's."""
    top = min(last + 1, training)
    w, x, y = (axis.ravel() for axis in np.indices((top, top, top), dtype=np.int32))
    order = np.flatnonzero((w <= x) & (x <= y))
    within = np.stack([w, x, y], axis=1)[order[np.lexsort((w[order], x[order], y[order]))]]
    if last < training:
        return within
    w, x = (axis.ravel() for axis in np.indices((top, top), dtype=np.int32))
    order = np.flatnonzero(w <= x)
    pairs = np.stack([w, x], axis=1)[order[np.lexsort((w[order], x[order]))]]
    seconds = [np.column_stack([pairs, np.full(len(pairs), y, np.int32)]) for y in range(training, last + 1)]
    return np.concatenate([within, *seconds])


def rank(sorted_triples: np.ndarray, training: int) -> np.ndarray:
    """Where sorted triples (3, …) stand in `triples`."""
    w, x, y = sorted_triples
    pair = x * (x + 1) // 2 + w
    second = comb(training + 2, 3) + (y - training) * (training * (training + 1) // 2) + pair
    return np.where(y < training, y * (y + 1) * (y + 2) // 6 + pair, second)


@lru_cache(maxsize=8)
def _lookup(sizes: tuple[int, int, int], training: int, count: int, on_host: bool) -> tuple[Any, Any]:
    """For three legs over the first `sizes` inputs: which order they stand in, and the row of their sorted triple.

    Triples that are not among the first `count`, or hold two test inputs, have the row `count`.
    """
    legs = np.stack(np.broadcast_arrays(*np.ix_(*(np.arange(size) for size in sizes))))
    order = np.argsort(legs, axis=0, kind="stable")
    places = np.argsort(order, axis=0)
    table = np.zeros((3, 3), np.uint8)
    for code, (first, second, _) in enumerate(_THREE):
        table[first, second] = code
    ranked = np.take_along_axis(legs, order, axis=0)
    row = np.where(ranked[1] < training, np.minimum(rank(ranked, training), count), count).astype(np.int32)
    found = table[places[0], places[1]], row
    return found if on_host else tuple(map(jnp.asarray, found))


class Tile:
    """The quadruples of one last input, and their tensors in all orders, each (24, quadruples).

    On an accelerator all tiles have the same shapes, with zeros in the place of inputs past the last: `share` then is
    longer than the quadruples are many.
    """

    def __init__(self, last: int, training: int, inputs: int, share: Any, tensors: Mapping[str, Any]):
        self.last, self.training, self.inputs, self.share, self.tensors = last, training, inputs, share, tensors
        self.top = min(last + 1, training) if isinstance(share, np.ndarray) else training

    @property
    def is_test(self) -> bool:
        return self.last >= self.training

    def legs(self, family: str) -> tuple[int, ...]:
        """Where the last input can stand."""
        return FAMILIES[family].external if self.is_test else (0, 1, 2, 3)

    def at(self, family: str, leg: int, orders: Sequence[int], vectors: np.ndarray) -> Any:
        """(event orders, pairings, three other legs) in the eigenbasis, with the last input at one leg.

        External legs of a test input's tile go on from the modes to the test inputs.
        """
        others = [k for k in range(4) if k != leg]
        wide = [self.is_test and k in FAMILIES[family].external for k in others]
        sizes = tuple(self.inputs if w else self.top for w in wide)
        on_host = isinstance(self.share, np.ndarray)
        code, row = _lookup(sizes, self.training, len(self.share), on_host)
        xp = np if on_host else jnp
        found = []
        for order in orders:
            for reads in FAMILIES[family].reads[order]:
                rows = (count * self._rows(tensor, positions, leg, others) for count, tensor, positions in reads)
                # one more column, of zeros, for what is not in the tile
                summed = xp.pad(sum(rows, start=np.zeros(())) * self.share, ((0, 0), (0, 1)))
                found.append(summed[code, row])
        stacked = xp.stack(found).reshape(len(orders), 3, *sizes)
        return turn(stacked, [self._basis(vectors[: self.top], w) for w in wide])

    def _rows(self, tensor: str, positions: tuple[int, ...], leg: int, others: list[int]):
        """A tensor, legs at its slots by position, for the six orders of the other legs: (6, quadruples)."""
        rows = []
        for places in _THREE:
            place = dict(zip(others, places, strict=True)) | {leg: 3}
            rows.append(_ROW[tuple(place[position] for position in positions)])
        return self.tensors[tensor][np.array(rows)]

    def _basis(self, vectors: np.ndarray, wide: bool) -> np.ndarray:
        if not wide:
            return vectors
        basis = np.eye(self.inputs)
        basis[: self.training, : self.training] = vectors
        return basis


def turn(found, bases: Sequence[np.ndarray]):
    """The last three axes contracted with the rows of three matrices."""
    *many, first, second, third = found.shape
    found = (found.reshape(-1, third) @ bases[2]).reshape(-1, second, bases[2].shape[1])
    found = (bases[1].T @ found).reshape(-1, first, bases[1].shape[1] * bases[2].shape[1])
    found = bases[0].T @ found
    return found.reshape(*many, *(basis.shape[1] for basis in bases))


def tiles(flow: QuadrupleFlow, training: int, on_host: bool | None = None) -> Iterator[Tile]:
    """The tiles of all inputs, the first inputs several at a time so that compiled steps are filled."""
    on_host = jax.default_backend() == "cpu" if on_host is None else on_host
    enough = CHUNKS.get(jax.default_backend(), CHUNKS["gpu"]) if flow.compiled else 1
    waiting: list[tuple[int, np.ndarray]] = []
    for last in range(flow.inputs):
        some = triples(last, training)
        waiting.append((last, np.column_stack([some, np.full(len(some), last, np.int32)])))
        if sum(len(quads) for _, quads in waiting) >= enough or last == flow.inputs - 1:
            tensors = flow.tensors(np.concatenate([quads for _, quads in waiting]), WANTED)
            cut = _on_host(tensors) if on_host else _on_device(tensors, training, flow.inputs)
            start = 0
            for number, quads in waiting:
                share = 1.0 / np.count_nonzero(quads == number, axis=1)
                yield Tile(number, training, flow.inputs, *cut(number, start, share))
                start += len(quads)
            waiting = []


def _on_host(tensors: Mapping[str, Any]):
    arrays = {name: np.asarray(values) for name, values in tensors.items()}
    return lambda last, start, share: (
        share,
        {name: values[:, start : start + len(share)] for name, values in arrays.items()},
    )


def _on_device(tensors: Mapping[str, Any], training: int, inputs: int):
    """Slices of one length, filled up with zeros by their shares."""
    longest = [comb(training + 2, 3), comb(training + 2, 3) + (inputs - training) * comb(training + 1, 2)]
    padded = {name: jnp.pad(values, ((0, 0), (0, longest[1]))) for name, values in tensors.items()}

    def cut(last: int, start: int, share: np.ndarray):
        length = longest[last >= training]
        own = {name: _slice(values, start, length) for name, values in padded.items()}
        return jnp.asarray(np.pad(share, (0, length - len(share)))), own

    return cut


@partial(jax.jit, static_argnums=2)
def _slice(values, start, length: int):
    return jax.lax.dynamic_slice_in_dim(values, start, length, axis=1)


def count_quadruples(training: int, tests: int, depth: int) -> int:
    """How many sorted quadruples all tiles and faces hold together, each counted once a layer.

    >>> count_quadruples(2, 1, 2)          # five of the training inputs, four and three with the test input
    12
    """
    inputs = training + tests
    tiled = comb(training + 3, 4) + tests * comb(training + 2, 3) + comb(tests + 1, 2) * comb(training + 1, 2)
    return (depth - 1) * tiled + max(depth - 2, 0) * inputs * comb(inputs + 1, 2)
