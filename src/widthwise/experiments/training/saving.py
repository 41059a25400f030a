"""Partial sums of a training run on disk, so that it goes on where it was cut off."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.experiments.checkpoints import INTERVAL, CheckpointWarning, write_atomically
from widthwise.experiments.training.ensemble import Ensemble
from widthwise.experiments.training.moments import Sums


class SavedSums:
    """Reads and writes the sums over the first networks 0, …, done − 1 of an ensemble."""

    def __init__(self, path: str | os.PathLike, ensemble: Ensemble):
        self.path, self.about = Path(path), fingerprint(ensemble)
        self.written, self.warned = time.monotonic(), False
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise InvalidInput(
                "checkpoint", repr(str(path)), "the path of a file in a folder that exists", "Make the folder first."
            )

    def load(self) -> tuple[int, Sums | None]:
        """(networks done, their sums), or (0, None) where there is no file yet."""
        if not self.path.exists():
            return 0, None
        try:
            with np.load(self.path, allow_pickle=False) as file:
                stored = {name: file[name] for name in file.files}
            about, done = json.loads(str(stored.pop("about"))), int(stored.pop("done"))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidInput(
                "checkpoint",
                f"{str(self.path)!r}, which cannot be read as one ({error})",
                "a file written by an earlier run of train, or a new path",
                "Delete the file or name another.",
            ) from error
        differing = [key for key in self.about if self.about[key] != about.get(key)]
        if differing:
            raise InvalidInput(
                "checkpoint",
                f"{str(self.path)!r}, written by a run with other {', '.join(differing)}",
                "one of the same run",
                "Repeat the call that wrote it, delete the file, or name another.",
            )
        return done, stored

    def save(self, done: int, sums: Sums, *, now: bool = False) -> None:
        """Write, if the last time is `INTERVAL` seconds ago or `now`. Trouble with the disk is warned of once."""
        if not now and time.monotonic() - self.written < INTERVAL:
            return
        try:
            write_atomically(self.path, {"about": np.asarray(json.dumps(self.about)), "done": np.asarray(done), **sums})
        except OSError as error:
            if not self.warned:
                warnings.warn(
                    f"checkpoint: {str(self.path)!r} could not be written ({error.strerror or error}); the run goes "
                    "on, and its result is not affected, but it cannot be resumed from here. Make room on the disk.",
                    CheckpointWarning,
                    stacklevel=3,
                )
            self.warned = True
        self.written = time.monotonic()


def fingerprint(ensemble: Ensemble) -> dict[str, str]:
    """What must be the same for sums to be continued; the number of networks need not be."""
    activation = np.asarray(ensemble.net.activation(np.linspace(-3.0, 3.0, 13)))
    return {
        "network": ensemble.net.to_json(),
        "activation": _digest(activation),
        "algorithm": repr(ensemble.algorithm),
        "inputs": _digest(ensemble.X),
        "targets": _digest(ensemble.y),
        "seed": str(ensemble.seed),
        "tolerance": repr((ensemble.tolerance, ensemble.accuracy, ensemble.max_steps)),
        "batch": str(ensemble.batch),
    }


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(repr(array.shape).encode() + np.ascontiguousarray(array, float).tobytes()).hexdigest()[:16]
