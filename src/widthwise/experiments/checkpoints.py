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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widthwise.activations import resolve
from widthwise.errors import CheckpointWarning, InvalidInput
from widthwise.experiments.programme import Programme, Sums
from widthwise.experiments.tally import Tally
from widthwise.network import Network

#: Seconds between two writings.
INTERVAL = 5.0
_FIELDS = ("counts", "control_sums", "control_squares")


class SavedRun:
    """Arrays of a run that is not finished, with what the run was `about`: a file continues no other run.

    `shown` are the keys whose two values a refusal prints.
    """

    def __init__(self, path: str | os.PathLike, about: dict[str, Any], shown: frozenset[str] = frozenset()):
        self.path, self.about, self.shown = Path(path), about, shown
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
            raise InvalidInput(
                "checkpoint",
                f"{str(self.path)!r}, written by a run with other {self._listed(differing, found)}",
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

    def _listed(self, keys: list[str], there: dict[str, Any]) -> str:
        def one(key: str) -> str:
            return f"{key} ({there.get(key)} there, {self.about[key]} here)" if key in self.shown else key

        return ", ".join(one(key) for key in keys)


class Checkpoint:
    """Reads and writes the sums of a programme; `position` counts the chunks that are in them."""

    def __init__(self, path: str | os.PathLike, programme: Programme):
        self.programme = programme
        self.file = SavedRun(
            path, fingerprint(programme), frozenset({"initialisation", "seed", "statistics", "batch", "chunk size"})
        )

    def load(self) -> tuple[int, list[Sums]] | None:
        """(position, sums of every part), or None where there is no file yet."""
        stored = self.file.read()
        if stored is None:
            return None
        return int(stored["position"]), [_unpack(stored, i, part.net.n) for i, part in enumerate(self.programme.parts)]

    def save(self, position: int, sums: Sequence[Sums], *, now: bool = False) -> None:
        """Write, if the last time is `INTERVAL` seconds ago or `now`."""
        if now or self.file.is_due():
            arrays = {"position": np.asarray(position)}
            for index, part in enumerate(sums):
                arrays |= _pack(part, index)
            self.file.write(arrays)


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


def fingerprint(programme: Programme) -> dict[str, Any]:
    """What must be the same for sums to be continued; the number of networks need not be."""
    parts = programme.parts
    return {
        "networks' specification": [part.net.to_json() for part in parts],
        "activation": activation_digest(parts[0].net),
        "inputs": digest(programme.X),
        "initialisation": [list(part.initialisation) for part in parts],
        "seed": [part.seed for part in parts],
        "statistics": [[*part.kernels, *part.tensors] for part in parts],
        "batch": programme.batch,
        "chunk size": programme.chunk,
    }


def activation_digest(net: Network) -> str:
    """Functions of one name may differ: a few values tell them apart."""
    several = dict.fromkeys(net.activations) or (resolve("linear"),)
    return digest(np.concatenate([np.asarray(sigma(np.linspace(-3.0, 3.0, 13))) for sigma in several]))


def digest(array: np.ndarray) -> str:
    """A short text that is the same for equal arrays."""
    return hashlib.sha256(repr(array.shape).encode() + np.ascontiguousarray(array, float).tobytes()).hexdigest()[:16]


def _pack(sums: Sums, index: int) -> dict[str, np.ndarray]:
    found = {f"{index}/broken": np.asarray(sums.broken), f"{index}/where": np.asarray(sums.where, int)}
    for kind in ("kernels", "tensors"):
        tally: Tally = getattr(sums, kind)
        found |= {f"{index}/{kind}/{name}": getattr(tally, name) for name in _FIELDS}
        for name in tally.sums:
            found[f"{index}/{kind}/sums/{name}"] = tally.sums[name]
            found[f"{index}/{kind}/products/{name}"] = tally.products[name]
    return found


def _unpack(stored: dict[str, np.ndarray], index: int, n: int) -> Sums:
    tallies = []
    for kind in ("kernels", "tensors"):
        tally, prefix = Tally(n), f"{index}/{kind}/"
        for name in _FIELDS:
            setattr(tally, name, stored[prefix + name])
        for group in ("sums", "products"):
            start = f"{prefix}{group}/"
            setattr(tally, group, {key.removeprefix(start): v for key, v in stored.items() if key.startswith(start)})
        tallies.append(tally)
    kernels, tensors = tallies
    return Sums(kernels, tensors, int(stored[f"{index}/broken"]), tuple(stored[f"{index}/where"].tolist()))
