"""Sums over networks by name, and the chunks they come from.

A job has parts, each a kind of network, and a number of networks that make a chunk. Called with a chunk it gives sums:
arrays by name, to be added up, and short lists of network numbers under names that end in `_indices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

#: Indices of networks that went wrong which are remembered; all are counted.
REMEMBERED = 16

Sums = dict[str, np.ndarray]


class Chunk(NamedTuple):
    """Networks start, …, stop − 1 of one part."""

    part: int
    start: int
    stop: int


class NetworkJob(Protocol):
    """What is done to networks: how many kinds of them, how many at a time, and what a saved run is known by."""

    @property
    def parts(self) -> Sequence[Any]: ...

    @property
    def chunk(self) -> int: ...

    def __call__(self, chunk: Chunk) -> Sums: ...

    def fingerprint(self) -> dict[str, Any]: ...


def chunks_of(job: NetworkJob, networks: int) -> list[Chunk]:
    """Chunks of all parts in the order in which they are added up: by range of networks, then by part."""
    starts, parts = range(0, networks, job.chunk), range(len(job.parts))
    return [Chunk(part, start, min(start + job.chunk, networks)) for start in starts for part in parts]


def merged(one: Sums | None, other: Sums) -> Sums:
    """Sums over both sets of networks, neither of which is changed: an interrupt in the middle does no harm."""
    if one is None:
        return other
    names = [*one, *(name for name in other if name not in one)]
    return {name: _both(name, one, other) if name in one and name in other else (one | other)[name] for name in names}


def _both(name: str, one: Sums, other: Sums) -> np.ndarray:
    if name.endswith("_indices"):
        return np.concatenate([one[name], other[name]])[:REMEMBERED]
    return one[name] + other[name]


def went_wrong(name: str, indices: np.ndarray, wrong: np.ndarray) -> Sums:
    """How many networks went wrong, and which, under a name.

    >>> went_wrong("late", np.arange(3), np.array([True, False, True]))
    {'late': array(2), 'late_indices': array([0, 2])}
    """
    return {name: np.asarray(wrong.sum()), f"{name}_indices": indices[wrong][:REMEMBERED]}
