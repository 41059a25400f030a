"""Networks that are really trained, a batch at a time, beside the prediction (theory §8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import xarray as xr

from widthwise.errors import NotDifferentiable, TooLarge
from widthwise.experiments.network_sums import merged
from widthwise.experiments.tally import Estimate
from widthwise.experiments.training.ensemble import Ensemble, train_chunk
from widthwise.experiments.training.moments import estimates
from widthwise.explorer.settings import Settings
from widthwise.inference.predict import max_learning_rate, predict
from widthwise.network import MLP, GradientDescent, GradientFlow
from widthwise.results.labels import label
from widthwise.study import Data, dataset

#: The largest depth and width that a page trains.
DEEPEST, WIDEST = 6, 256
_TOLERANCE, _ACCURACY, _MOST_STEPS, _BATCH = 1e-6, 1e-5, 20_000, 16


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained, on what, and how."""

    net: MLP
    data: Data
    algorithm: GradientFlow | GradientDescent

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.data.for_training()


@dataclass(frozen=True, eq=False)
class Predicted:
    """Mean and standard deviation at the tests (test,), at infinite width and, where it exists, to order 1/n.

    `why` says why there is no order 1/n; `strength` is the largest share of the 1/n term in a variance.
    """

    mean0: np.ndarray
    spread0: np.ndarray
    mean: np.ndarray | None
    spread: np.ndarray | None
    strength: float
    why: str
    dataset: xr.Dataset


@dataclass(frozen=True, eq=False)
class Trained:
    """Mean and standard deviation at the tests (test,) over the first `networks` networks, with standard errors."""

    net: MLP
    networks: int
    unconverged: int
    mean: Estimate
    spread: Estimate
    seed: int

    def dataset(self) -> xr.Dataset:
        parts = {"mean": self.mean, "spread": self.spread}
        variables = {name: (("test",), found.value) for name, found in parts.items()}
        variables |= {f"{name}_se": (("test",), found.error) for name, found in parts.items()}
        return label(
            variables, self.net, kind="train", networks=self.networks, unconverged=self.unconverged, seed=self.seed
        )


def task_of(settings: Settings) -> Task:
    """The network on the chosen data; descent takes half of the largest stable step.

    >>> task_of(Settings(depth=3)).data.X_test.shape
    (3, 2)
    """
    if settings.depth > DEEPEST or settings.width > WIDEST:
        raise TooLarge("depth, width", f"{settings.depth} layers of width {settings.width}",
                       f"at most {DEEPEST} layers of width {WIDEST} for training",
                       "Move the sliders of depth and width, or train in Python.")  # fmt: skip
    data = dataset(settings.data, settings.points)
    net = settings.network(data.features)
    descent = settings.algorithm == "gradient descent"
    return Task(net, data, GradientDescent(0.5 * max_learning_rate(net, data.X_train)) if descent else GradientFlow())


def prediction(task: Task) -> Predicted:
    """`predict` to order 1/n, or at infinite width where the tensors do not exist for the activation."""
    try:
        found, why = predict(task.net, *task.parts, algorithm=task.algorithm, order=1), ""
    except NotDifferentiable as error:
        found, why = predict(task.net, *task.parts, algorithm=task.algorithm), str(error)
    mean0, cov0 = found["mean0"].values[0], np.diagonal(found["cov0"].values[0, :, 0, :])
    spread0 = np.sqrt(np.maximum(cov0, 0.0))
    if why:
        return Predicted(mean0, spread0, None, None, 0.0, why, found)
    cov = np.diagonal(found["cov"].values[0, :, 0, :])
    scatters = cov0 > 1e-12 * cov0.max()
    strength = float(np.max(np.abs(cov - cov0)[scatters] / cov0[scatters], initial=0.0))
    return Predicted(mean0, spread0, found["mean"].values[0], np.sqrt(np.maximum(cov, 0.0)), strength, "", found)


def train(task: Task, networks: int, seed: int) -> Iterator[Trained]:
    """After every batch, what the trained networks so far say.

    >>> task = task_of(Settings(depth=2, width=16, points=2))
    >>> *_, last = train(task, 32, seed=0)
    >>> last.networks, last.mean.value.shape, last.unconverged
    (32, (2,), 0)
    """
    X, y, X_test = task.parts
    how = {"tolerance": _TOLERANCE, "accuracy": _ACCURACY, "max_steps": _MOST_STEPS, "batch": _BATCH}
    ensemble = Ensemble.of(task.net, task.algorithm, X, y.T, X_test, seed=seed, **how)
    sums = None
    for chunk in ensemble.chunks(networks):
        sums = merged(sums, train_chunk(ensemble, chunk))
        found = estimates(sums)
        variance, error = (np.diagonal(part[0, :, 0, :]) for part in found["cov"])
        spread = np.sqrt(np.maximum(variance, 0.0))
        mean, mean_error = (part[0] for part in found["mean"])
        yield Trained(
            task.net, int(sums["counts"].sum()), int(sums["unconverged"]),
            Estimate(mean + ensemble.centre[0], mean_error),
            # error/(2 spread), and √error where nothing scatters
            Estimate(spread, np.sqrt(spread**2 + error) - spread), seed,
        )  # fmt: skip
