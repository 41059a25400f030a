"""Partial sums on disk, so that a long run that is interrupted, killed or crashes goes on where it was.

The file is replaced as a whole: whenever it is looked at, it holds the sums of the first so-many chunks.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from widthwise.activations import resolve
from widthwise.errors import CheckpointWarning, InvalidInput
from widthwise.network import Network

#: Seconds between two writings.
INTERVAL = 5.0
#: What tells two runs apart in few words.
SHOWN_KEYS = ("initialisation", "seed", "statistics", "batch", "chunk size")


class SavedRun:
    """Arrays of a run that is not finished, with what the run was `about`: a file continues no other run.

    A refusal prints the two values of the keys `SHOWN_KEYS`.
    """

    def __init__(self, path: str | os.PathLike, about: dict[str, Any]):
        self.path, self.about = Path(path), about
        self.written, self.warned = time.monotonic(), False
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise InvalidInput(
                "checkpoint", repr(str(path)), "the path of a file in a folder that exists", "Make the folder first."
            )

    def read(self) -> dict[str, np.ndarray] | None:
        """The arrays, or None where there is no file yet."""
        if not self.path.exists():
            return None
        try:
            with open(self.path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                stored = {name: file[name] for name in file.files}
            found = json.loads(str(stored.pop("about")))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidInput(
                "checkpoint",
                f"{str(self.path)!r}, which cannot be read as one ({error})",
                "a file written by an earlier run, or a new path",
                "Delete the file or name another.",
            ) from error
        differing = [key for key in self.about if self.about[key] != found.get(key)]
        if differing:
            listed = (
                f"{key} ({found.get(key)} there, {self.about[key]} here)" if key in SHOWN_KEYS else key
                for key in differing
            )
            raise InvalidInput(
                "checkpoint",
                f"{str(self.path)!r}, written by a run with other {', '.join(listed)}",
                "one of the same run",
                "Repeat the call that wrote it, delete the file, or name another.",
            )
        return stored

    def is_due(self) -> bool:
        """Whether the last time is `INTERVAL` seconds ago."""
        return time.monotonic() - self.written >= INTERVAL

    def write(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the file. Trouble with the disk is warned of once."""
        try:
            write_atomically(self.path, {"about": np.asarray(json.dumps(self.about)), **arrays})
        except OSError as error:
            if not self.warned:
                warnings.warn(
                    f"checkpoint: {str(self.path)!r} could not be written ({error.strerror or error}); the run goes "
                    "on, and its result is not affected, but it cannot be resumed from here. Make room on the disk.",
                    CheckpointWarning,
                    stacklevel=4,
                )
            self.warned = True
        self.written = time.monotonic()


def write_atomically(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """An npz file that is there complete or not at all, whenever the process ends."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def activation_digest(net: Network) -> str:
    """Functions of one name may differ: a few values tell them apart."""
    several = dict.fromkeys(net.activations) or (resolve("linear"),)
    return digest(np.concatenate([np.asarray(sigma(np.linspace(-3.0, 3.0, 13))) for sigma in several]))


def digest(array: np.ndarray) -> str:
    """A short text that is the same for equal arrays."""
    return hashlib.sha256(repr(array.shape).encode() + np.ascontiguousarray(array, float).tobytes()).hexdigest()[:16]
