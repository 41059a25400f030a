"""The six four-point families of the recursions, and every way their derivatives can sit on four inputs.

A family is the orders of the derivatives, ⟨σ^(o_1)_a σ^(o_2)_b σ^(o_3)_c σ^(o_4)_d⟩ (theory §4). Values are kept once
for each sorted quadruple of inputs w ≤ x ≤ y ≤ z, with one column for each distinct assignment of the orders to the
four places; a full tensor is read from them in any index order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import combinations_with_replacement, permutations
from math import comb

import jax
import jax.numpy as jnp
import numpy as np

Orders = tuple[int, ...]

FAMILIES: tuple[Orders, ...] = (
    (0, 0, 0, 0),
    (0, 0, 1, 1),
    (1, 1, 1, 1),
    (2, 1, 1, 0),
    (2, 2, 1, 1),
    (3, 1, 1, 1),
)
PERMUTATIONS = tuple(permutations(range(4)))


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


@dataclass(frozen=True)
class Quadruples:
    """Sorted quadruples of N inputs, and for every (a, b, c, d) where its sorted form stands and how it was sorted."""

    inputs: int

    @cached_property
    def sorted(self) -> np.ndarray:
        """(count, 4) indices w ≤ x ≤ y ≤ z in lexicographic order."""
        return np.array(list(combinations_with_replacement(range(self.inputs), 4)), dtype=np.int32).reshape(-1, 4)

    def __len__(self) -> int:
        return comb(self.inputs + 3, 4)

    @cached_property
    def distinct(self) -> np.ndarray:
        """How many different inputs each sorted quadruple holds."""
        return 1 + np.count_nonzero(np.diff(self.sorted, axis=1), axis=1)

    @cached_property
    def lookup(self) -> tuple[jax.Array, jax.Array]:
        """For every (a, b, c, d), flat: the row of its sorted form, and the number of the sorting permutation."""
        return _lookup(self.inputs)


@partial(jax.jit, static_argnums=0)
def _lookup(inputs: int):
    index = [jnp.reshape(jnp.arange(inputs), [-1 if axis == k else 1 for axis in range(4)]) for k in range(4)]
    # a key holds the input and the place it came from, so that sorting keys sorts stably and remembers
    keys = [4 * value + place for place, value in enumerate(index)]
    for i, j in ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2)):
        keys[i], keys[j] = jnp.minimum(keys[i], keys[j]), jnp.maximum(keys[i], keys[j])
    places = [key % 4 for key in keys]
    table = np.zeros(256, np.uint8)
    for code, (p, q, r, s) in enumerate(PERMUTATIONS):
        table[p * 64 + q * 16 + r * 4 + s] = code
    code = jnp.asarray(table)[places[0] * 64 + places[1] * 16 + places[2] * 4 + places[3]]
    row = _rank([key // 4 for key in keys], inputs)
    return jnp.broadcast_to(row, code.shape).ravel().astype(jnp.int32), code.ravel()


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
