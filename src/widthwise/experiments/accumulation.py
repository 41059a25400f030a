"""Sums over networks: chunks are done anywhere, added up in their order, kept on disk, and Ctrl-C keeps what is done.

A job has parts, each a kind of network, and a number of networks that make a chunk. Called with a chunk it gives sums:
arrays by name, to be added up, and short lists of network numbers under names that end in `_indices`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.experiments.checkpoints import SavedRun
from widthwise.experiments.engines import run_chunks
from widthwise.progress import DelayedProgress

#: Indices of networks that went wrong which are remembered; all are counted.
REMEMBERED = 16

#: Of the arrays in a saved run.
FORMAT = 2

Sums = dict[str, np.ndarray]


class Chunk(NamedTuple):
    """Networks start, …, stop − 1 of one part."""

    part: int
    start: int
    stop: int


class Job(Protocol):
    """What is done to networks: how many kinds of them, how many at a time, and what a saved run is known by."""

    @property
    def parts(self) -> Sequence[Any]: ...

    @property
    def chunk(self) -> int: ...

    def __call__(self, chunk: Chunk) -> Sums: ...

    def fingerprint(self) -> dict[str, Any]: ...


def chunks_of(job: Job, networks: int) -> list[Chunk]:
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


def accumulate(
    job: Job, networks: int, engine: Any, path: str | os.PathLike | None, progress: bool | None, who: str
) -> tuple[list[Sums], bool]:
    """The sums of every part, and whether Ctrl-C cut them short."""
    chunks, parts = chunks_of(job, networks), len(job.parts)
    # a checkpoint holds whole chunks only, so that a later run may go on to more networks
    whole = networks // job.chunk * parts
    saved = None if path is None else SavedRun(path, {"format": FORMAT, **job.fingerprint()})
    done, sums = (0, [None] * parts) if saved is None else _resumed(saved, parts)
    if done > whole:
        held = done // parts * job.chunk
        raise InvalidInput(
            "checkpoint",
            f"{str(path)!r}, which holds {held} networks already",
            f"one with at most the {networks} that are asked for",
            f"Ask for networks={held} or more, or name another file.",
        )
    left, interrupted = chunks[done:], False
    results = run_chunks(job, left, engine)
    try:
        with DelayedProgress("networks", progress) as bar, closing(results):  # pyright: ignore[reportArgumentType]
            for chunk, result in zip(left, results, strict=True):
                added = [merged(old, result) if part == chunk.part else old for part, old in enumerate(sums)]
                done, sums = done + 1, added
                if saved is not None and done <= whole and (done == whole or saved.is_due()):
                    saved.write(_arrays(done, sums))
                bar(done, len(chunks))
    except KeyboardInterrupt:
        # standard errors need two networks of every part
        if done < parts or chunks[done - 1].stop < 2:
            raise
        interrupted = True
        warnings.warn(f"{who}: interrupted after {chunks[done - 1].stop} of {networks} networks", stacklevel=3)
    finally:
        if saved is not None and 0 < done < whole:
            saved.write(_arrays(done, sums))
    return [part for part in sums if part is not None], interrupted


def _arrays(done: int, sums: Sequence[Sums | None]) -> Sums:
    held = {f"{part}/{name}": value for part, own in enumerate(sums) for name, value in (own or {}).items()}
    return {"position": np.asarray(done), **held}


def _resumed(saved: SavedRun, parts: int) -> tuple[int, list[Sums | None]]:
    """Chunks that are done and the sums of every part, from a file or from the beginning."""
    stored = saved.read()
    if stored is None:
        return 0, [None] * parts
    done, sums = int(stored.pop("position")), [{} for _ in range(parts)]
    for key, value in stored.items():
        part, _, name = key.partition("/")
        sums[int(part)][name] = value
    return done, [own or None for own in sums]
