"""Chunks of networks are done anywhere, their sums added up in order and kept on disk; Ctrl-C keeps what is done."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.experiments.checkpoints import SavedRun
from widthwise.experiments.engines import run_chunks
from widthwise.experiments.tally import Chunks, NetworkJob, Sums, merged
from widthwise.interrupts import before_leaving, deferred, safe_point
from widthwise.progress import DelayedProgress

#: Of the arrays in a saved run.
FORMAT = 4


def accumulate(
    job: NetworkJob, networks: int, engine: Any, path: str | os.PathLike | None, progress: bool | None, who: str
) -> tuple[list[Sums], bool]:
    """The sums of every part, and whether Ctrl-C cut them short."""
    if path is None:
        return _accumulate(job, networks, engine, None, progress, who)
    saved = SavedRun(path, {"format": FORMAT, **job.fingerprint()})
    with saved.alone():
        return _accumulate(job, networks, engine, saved, progress, who)


def _accumulate(
    job: NetworkJob, networks: int, engine: Any, saved: SavedRun | None, progress: bool | None, who: str
) -> tuple[list[Sums], bool]:
    chunks, parts = Chunks.of(job, networks), len(job.parts)
    # a checkpoint holds whole chunks only, so that a later run may go on to more networks
    whole = networks // job.chunk * parts
    sums: list[Sums | None] = [None] * parts
    done, stored = 0, None if saved is None else saved.read()
    if stored is not None:
        done, kept = int(stored.pop("position")), [{} for _ in range(parts)]
        for key, value in stored.items():
            part, _, name = key.partition("/")
            kept[int(part)][name] = value
        sums = [own or None for own in kept]
    if saved is not None and done > whole:
        held = done // parts * job.chunk
        raise InvalidInput(
            "checkpoint",
            f"{str(saved.path)!r}, which holds {held} networks already",
            f"one with at most the {networks} that are asked for",
            f"Ask for networks={held} or more, or name another file.",
        )
    left, interrupted = chunks[done:], False
    arrays = _arrays(done, sums)  # replaced as a whole: it may be written from another thread

    def keep() -> None:
        if saved is not None and 0 < arrays["position"] <= whole:
            saved.write(arrays)

    results = run_chunks(job, left, engine)
    try:
        with deferred(), before_leaving(keep), DelayedProgress("networks", progress) as bar, closing(results):
            try:
                for chunk, result in zip(left, results, strict=True):
                    sums = [merged(old, result) if part == chunk.part else old for part, old in enumerate(sums)]
                    done += 1
                    arrays = _arrays(done, sums)
                    if saved is not None and done <= whole and (done == whole or saved.is_due()):
                        saved.write(arrays)
                    bar(done, len(chunks))
                    safe_point()
            finally:
                # before workers are waited for
                if done != whole:
                    keep()
    except KeyboardInterrupt:
        # standard errors need two networks of every part
        if done < parts or chunks[done - 1].stop < 2:
            raise
        interrupted = True
        warnings.warn(f"{who}: interrupted after {chunks[done - 1].stop} of {networks} networks", stacklevel=4)
    return [part for part in sums if part is not None], interrupted


def _arrays(done: int, sums: Sequence[Sums | None]) -> Sums:
    held = {f"{part}/{name}": value for part, own in enumerate(sums) for name, value in (own or {}).items()}
    return {"position": np.asarray(done), **held}
