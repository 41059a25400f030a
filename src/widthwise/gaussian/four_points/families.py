"""The six four-point families of the recursions, and every way their derivatives can sit on four inputs.

A family is the orders of the derivatives, ⟨σ^(o_1)_a σ^(o_2)_b σ^(o_3)_c σ^(o_4)_d⟩ (theory §4). Values are kept once
for each sorted quadruple of inputs w ≤ x ≤ y ≤ z, with one column for each distinct assignment of the orders to the
four places; a full tensor is read from them in any index order.

Where σ is odd or even, σ^(p) σ^(q) has only degrees of the parity of p + q. Orders of derivatives on four inputs that
add up to an even number put types of one parity on both planes. Even degrees are then summed over the types of even
p + q, odd degrees over the others, a row of types each; otherwise a single row has all types at all degrees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import combinations_with_replacement, permutations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Orders = tuple[int, ...]
TypeRows = tuple[tuple[int, ...], ...]

#: Below this many inputs numpy is quicker than compiling.
COMPILE_FROM = 24

FAMILIES: tuple[Orders, ...] = ((0, 0, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1), (2, 1, 1, 0), (2, 2, 1, 1), (3, 1, 1, 1))
PERMUTATIONS = tuple(permutations(range(4)))
#: The three ways to split four places into two planes.
PAIRINGS = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2))


def assignments(families: tuple[Orders, ...]) -> tuple[Orders, ...]:
    """All distinct ways to place the orders of the families on four ordered inputs.

    >>> len(assignments(FAMILIES))
    30
    """
    placed = {tuple(orders[k] for k in permutation) for orders in families for permutation in PERMUTATIONS}
    return tuple(sorted(placed))


def pair_types(placed: tuple[Orders, ...]) -> tuple[tuple[int, int], ...]:
    """Orders that two of the four inputs can carry, whichever two are taken together as a plane."""
    found = {(orders[i], orders[j]) for orders in placed for i in range(4) for j in range(4) if i != j}
    return tuple(sorted(found))


@lru_cache(maxsize=64)
def type_rows(placed: tuple[Orders, ...], parity: bool) -> TypeRows:
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
    rows: TypeRows

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


@dataclass(frozen=True)
class Quadruples:
    """Sorted quadruples of N inputs, and for every (a, b, c, d) where its sorted form stands and how it was sorted."""

    inputs: int

    @cached_property
    def sorted(self) -> np.ndarray:
        """(count, 4) indices w ≤ x ≤ y ≤ z in lexicographic order."""
        return np.array(list(combinations_with_replacement(range(self.inputs), 4)), dtype=np.int32).reshape(-1, 4)

    @cached_property
    def lookup(self) -> tuple[Any, Any]:
        """For every (a, b, c, d), flat: the row of its sorted form, and the number of the sorting permutation."""
        return _lookup(self.inputs, np) if self.inputs < COMPILE_FROM else _compiled_lookup(self.inputs, jnp)


def _lookup(inputs: int, xp: Any):
    index = [xp.reshape(xp.arange(inputs), [-1 if axis == k else 1 for axis in range(4)]) for k in range(4)]
    # a key holds the input and the place it came from, so that sorting keys sorts stably and remembers
    keys = [4 * value + place for place, value in enumerate(index)]
    for i, j in ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2)):
        keys[i], keys[j] = xp.minimum(keys[i], keys[j]), xp.maximum(keys[i], keys[j])
    places = [key % 4 for key in keys]
    table = np.zeros(256, np.uint8)
    for code, (p, q, r, s) in enumerate(PERMUTATIONS):
        table[p * 64 + q * 16 + r * 4 + s] = code
    code = xp.asarray(table)[places[0] * 64 + places[1] * 16 + places[2] * 4 + places[3]]
    row = _rank([key // 4 for key in keys], inputs)
    return xp.broadcast_to(row, code.shape).ravel().astype(np.int32), code.ravel()


_compiled_lookup = partial(jax.jit, static_argnums=(0, 1))(_lookup)


def _rank(ranked, inputs: int):
    """Position of sorted quadruples in lexicographic order, by counting those that come before."""
    w, x, y, z = ranked

    def upto(n, k):  # multisets of size k from n things
        total = 1
        for j in range(k):
            total = total * (n + j) // (j + 1)
        return total

    before = upto(inputs, 4) - upto(inputs - w, 4)
    before = before + upto(inputs - w, 3) - upto(inputs - x, 3)
    before = before + upto(inputs - x, 2) - upto(inputs - y, 2)
    return before + z - y


@lru_cache(maxsize=4)
def quadruples(inputs: int) -> Quadruples:
    return Quadruples(inputs)


@lru_cache(maxsize=64)
def columns(orders: Orders, placed: tuple[Orders, ...]) -> np.ndarray:
    """For each sorting permutation, the column that holds ⟨σ^(o_1)_a …⟩ when (a, b, c, d) is sorted by it.

    Sorted place k holds the original index number permutation[k], hence the order orders[permutation[k]].
    """
    where = {assignment: column for column, assignment in enumerate(placed)}
    return np.array([where[tuple(orders[k] for k in permutation)] for permutation in PERMUTATIONS])


def full(values, lookup, orders: Orders, placed: tuple[Orders, ...], inputs: int):
    """⟨σ^(o_1)_a σ^(o_2)_b σ^(o_3)_c σ^(o_4)_d⟩ on (a, b, c, d) from values (sorted quadruples, assignments)."""
    row, code = lookup
    table = columns(orders, placed)
    column = jnp.asarray(table)[code] if isinstance(code, jax.Array) else table[code]
    return values[row, column].reshape((inputs,) * 4)
