"""Partial sums on disk, so that a long run that is interrupted, killed or crashes goes on where it was.

The file is replaced as a whole: whenever it is looked at, it holds the sums of the first so-many chunks.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import warnings
import zipfile
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from widthwise.activations import resolve
from widthwise.errors import CheckpointWarning, InvalidInput, NotWritten, one_line
from widthwise.files import check_path, claimed, remove_left_overs, replacing
from widthwise.network import Network

#: Seconds between two writings.
INTERVAL = 5.0
#: Characters of a file's name, so that one for the time of writing fits beside it into the 255 of most systems.
LONGEST_NAME = 200
#: What tells two runs apart in few words.
SHOWN_KEYS = ("format", "initialisation", "seed", "statistics", "batch", "chunk size")


class SavedRun:
    """Arrays of a run that is not finished, with what the run was `about`: a file continues no other run.

    A refusal prints the two values of the keys `SHOWN_KEYS`.
    """

    def __init__(self, path: str | os.PathLike, about: dict[str, Any]):
        expected = "the path of a file in a folder that exists"
        self.path, self.about = check_path("checkpoint", path, expected), about
        self.written, self.warned = time.monotonic(), False
        self._writing = threading.Lock()
        # by os.path, for which a name that is too long is no folder; pathlib raises
        if os.path.isdir(self.path) or not os.path.isdir(self.path.parent) or len(self.path.name) > LONGEST_NAME:
            raise InvalidInput("checkpoint", repr(str(path)), expected, "Make the folder first.")
        remove_left_overs(self.path)

    def alone(self) -> AbstractContextManager[None]:
        """A block in which no other process reads or writes this run."""
        return claimed("checkpoint", self.path)

    def read(self) -> dict[str, np.ndarray] | None:
        """The arrays, or None where there is no file yet."""
        if not self.path.exists():
            return None
        try:
            with open(self.path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                stored = {name: file[name] for name in file.files}
            found = dict(json.loads(str(stored.pop("about"))))
        except Exception as error:  # damage has as many kinds as zip, zlib, numpy and json have errors
            raise self._unreadable(f"which cannot be read as one ({one_line(error)})") from error
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
        if str(stored.pop("contents", "")) != _contents(stored):
            raise self._unreadable("whose numbers are not those that were written")
        return stored

    def _unreadable(self, what: str) -> InvalidInput:
        return InvalidInput(
            "checkpoint",
            f"{str(self.path)!r}, {what}",
            "a file written by an earlier run, or a new path",
            "Delete the file or name another.",
        )

    def is_due(self) -> bool:
        """Whether the last time is `INTERVAL` seconds ago."""
        return time.monotonic() - self.written >= INTERVAL

    def write(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the file. Trouble with the disk is warned of once."""
        about = {"about": np.asarray(json.dumps(self.about)), "contents": np.asarray(_contents(arrays))}
        try:
            # also written by the thread that answers Ctrl-C
            with self._writing, replacing(self.path) as part, zipfile.ZipFile(part, "w") as archive:
                for name, array in (about | arrays).items():
                    # not by np.savez: that of numpy 2.0 leaves the archive open where the disk is full
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, array, allow_pickle=False)
        except NotWritten as error:
            if not self.warned:
                warnings.warn(
                    f"checkpoint: {str(self.path)!r} could not be written ({error.reason}); the run goes "
                    "on, and its result is not affected, but it cannot be resumed from here. Make room on the disk.",
                    CheckpointWarning,
                    stacklevel=4,
                )
            self.warned = True
        self.written = time.monotonic()


def _contents(arrays: dict[str, np.ndarray]) -> str:
    """The same text for the same arrays under the same names."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype.str} {arrays[name].shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def activation_digest(net: Network) -> str:
    """Functions of one name may differ: a few values tell them apart."""
    several = dict.fromkeys(net.activations) or (resolve("linear"),)
    return digest(np.concatenate([np.asarray(sigma(np.linspace(-3.0, 3.0, 13))) for sigma in several]))


def digest(array: np.ndarray) -> str:
    """A short text that is the same for equal arrays."""
    return hashlib.sha256(repr(array.shape).encode() + np.ascontiguousarray(array, float).tobytes()).hexdigest()[:16]
