"""Partial sums of a training run on disk, so that it goes on where it was cut off."""

from __future__ import annotations

import os

import numpy as np

from widthwise.experiments.checkpoints import SavedRun, activation_digest, digest
from widthwise.experiments.training.ensemble import Ensemble
from widthwise.experiments.training.moments import Sums


class SavedSums:
    """Reads and writes the sums over the first networks 0, …, done − 1 of an ensemble."""

    def __init__(self, path: str | os.PathLike, ensemble: Ensemble):
        self.file = SavedRun(path, fingerprint(ensemble))

    def load(self) -> tuple[int, Sums | None]:
        """(networks done, their sums), or (0, None) where there is no file yet."""
        stored = self.file.read()
        return (0, None) if stored is None else (int(stored.pop("done")), stored)

    def save(self, done: int, sums: Sums, *, now: bool = False) -> None:
        """Write, if the last time is some seconds ago or `now`."""
        if now or self.file.is_due():
            self.file.write({"done": np.asarray(done), **sums})


def fingerprint(ensemble: Ensemble) -> dict[str, str]:
    """What must be the same for sums to be continued; the number of networks need not be."""
    return {
        "network": ensemble.net.to_json(),
        "activation": activation_digest(ensemble.net),
        "algorithm": repr(ensemble.algorithm),
        "inputs": digest(ensemble.X),
        "targets": digest(ensemble.y),
        "initialisation": repr(ensemble.initialisation),
        "seed": str(ensemble.seed),
        "tolerance": repr((ensemble.tolerance, ensemble.accuracy, ensemble.max_steps)),
        "batch": str(ensemble.batch),
    }
