"""The six four-point families of the recursions, and every way their derivatives can sit on four inputs.

A family is the orders of the derivatives, ⟨σ^(o_1)_a σ^(o_2)_b σ^(o_3)_c σ^(o_4)_d⟩ (theory §4). Values are kept once
for each sorted quadruple of inputs w ≤ x ≤ y ≤ z, with one column for each distinct assignment of the orders to the
four places; a full tensor is read from them in any index order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement, permutations
from math import comb

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
    def lookup(self) -> tuple[np.ndarray, np.ndarray]:
        """For every (a, b, c, d), flat: the row of its sorted form, and the number of the sorting permutation."""
        index = np.indices((self.inputs,) * 4, dtype=np.int32).reshape(4, -1)
        order = np.argsort(index, axis=0, kind="stable")
        ranked = np.take_along_axis(index, order, axis=0)
        codes = {permutation: code for code, permutation in enumerate(PERMUTATIONS)}
        table = np.zeros(256, np.uint8)
        for permutation, code in codes.items():
            table[permutation[0] * 64 + permutation[1] * 16 + permutation[2] * 4 + permutation[3]] = code
        code = table[order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3]]
        return _rank(ranked, self.inputs), code


def _rank(ranked: np.ndarray, inputs: int) -> np.ndarray:
    """Position of sorted quadruples in lexicographic order, by counting those that come before."""
    w, x, y, z = (ranked[k].astype(np.int64) for k in range(4))

    def upto(n, k):  # multisets of size k from n things
        total = np.ones_like(n)
        for j in range(k):
            total = total * (n + j) // (j + 1)
        return total

    N = np.int64(inputs)
    before = upto(np.full_like(w, N), 4) - upto(N - w, 4)
    before += upto(N - w, 3) - upto(N - x, 3)
    before += upto(N - x, 2) - upto(N - y, 2)
    before += z - y
    return before.astype(np.int32)


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


def full(values: np.ndarray, orders: Orders, placed: tuple[Orders, ...], inputs: int) -> np.ndarray:
    """⟨σ^(o_1)_a σ^(o_2)_b σ^(o_3)_c σ^(o_4)_d⟩ on (a, b, c, d) from values (sorted quadruples, assignments)."""
    row, code = quadruples(inputs).lookup
    return values[row, columns(orders, placed)[code]].reshape((inputs,) * 4)
