"""Real networks, sampled or trained (theory §8) a batch at a time, and what they say so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from widthwise.devices import power_of_two
from widthwise.errors import InvalidInput, NotDifferentiable, TooLarge
from widthwise.experiments.sampler import conditional_kernel, forward, network_key, sample_parameters, tangent_kernel
from widthwise.experiments.tally import Chunks, Estimate, Tally, finite_networks, jackknife, merged
from widthwise.experiments.training.ensemble import Ensemble
from widthwise.experiments.training.output_cumulants import estimates
from widthwise.explorer.settings import Settings
from widthwise.inference.predict import max_learning_rate, predict
from widthwise.network import MLP, GradientDescent, GradientFlow
from widthwise.network.layered import parameter_count
from widthwise.plots.functions import TrainedFunctions, trained_functions
from widthwise.results.labels import label, layer_coordinate
from widthwise.study import Data, dataset

#: Parameters of one network that is sampled, and of all networks of a run.
LARGEST_NETWORK, LARGEST_RUN = 2_000_000, 20_000_000_000
#: Parameters of a batch, and the largest batch.
_BATCH_PARAMETERS, _LARGEST_BATCH = 1 << 20, 128
#: Bins of the histogram of outputs, and how many standard deviations it reaches.
_OUTPUT_BINS, _OUTPUT_REACH = 36, 4.5
#: The largest depth and width that a page trains, and how it does.
DEEPEST_TRAINED, WIDEST_TRAINED = 6, 256
_TRAINING = {"tolerance": 1e-6, "accuracy": 1e-5, "max_steps": 20_000, "batch": 16}


def plain_network(settings: Settings, features: int = 2) -> MLP:
    """The network; one with skips or normalisation is refused."""
    if settings.skip != "none":
        raise InvalidInput("skip", repr(settings.skip), "'none': this page samples and trains plain networks",
                           "Set skip connections to none, or measure and train in Python.")  # fmt: skip
    return settings.plain(features)


def check_size(settings: Settings) -> None:
    """Refuse runs that a page should not start."""
    net = plain_network(settings)
    parameters = parameter_count(net)
    if parameters > LARGEST_NETWORK:
        raise TooLarge("width, depth", f"{parameters:,} parameters a network", f"at most {LARGEST_NETWORK:,}",
                       "Take a smaller width or depth, or measure in Python.")  # fmt: skip
    if parameters * settings.networks > LARGEST_RUN:
        most = LARGEST_RUN // parameters
        raise TooLarge("networks", f"{settings.networks:,} of {parameters:,} parameters", f"at most {most:,}",
                       "Sample fewer or smaller networks, or measure in Python.")  # fmt: skip


def sample(settings: Settings, K: float) -> Iterator[xr.Dataset]:
    """After every batch, what the networks so far say, with standard errors; K sets the range of the histogram.

    K is the mean of Ĝ by layer, `correlation` that of a and b in it, `K_fluctuation` the variance of Ĝ_aa over its
    squared mean; Theta is at the output. `output_density` is a histogram of the output at a. Networks with numbers
    that are not finite are left out and counted as `nonfinite`.

    >>> settings = Settings(activation="relu", C_W=2.0, C_b=0.0, depth=2, width=16, networks=64)
    >>> *_, last = sample(settings, K=2.0)
    >>> last.attrs["networks"], bool(abs(last["K"][1, 0, 0] - 2.0) < 4 * last["K_se"][1, 0, 0])
    (64, True)
    """
    check_size(settings)
    net, X = plain_network(settings), jnp.asarray(settings.inputs)
    edges = np.linspace(-_OUTPUT_REACH, _OUTPUT_REACH, _OUTPUT_BINS + 1) * np.sqrt(K)
    batch = power_of_two(_BATCH_PARAMETERS // parameter_count(net), 1, _LARGEST_BATCH)
    tally, counts, broken = Tally(net.n), np.zeros(_OUTPUT_BINS), 0
    for start in range(0, settings.networks, batch):
        indices = np.arange(start, start + batch)
        seen = jax.tree.map(np.asarray, _observed(net, settings.seed, jnp.asarray(indices), X))
        kept = np.arange(batch) < settings.networks - start
        finite = finite_networks(seen)
        broken += int(np.sum(kept & ~finite))
        rows = kept & finite
        outputs = seen.pop("z")[rows]
        tally.add(indices[rows], {name: x[rows] for name, x in seen.items()}, np.zeros((int(rows.sum()), 0)))
        counts += np.histogram(outputs, edges)[0]
        if tally.networks > 1:
            yield _sampled_so_far(settings, net, tally, edges, counts, broken)
    if tally.networks < 2:
        raise InvalidInput("C_W", f"{settings.C_W:g}, at which {broken} networks have numbers that are not finite",
                           "networks that stay finite", "Reduce C_W or the depth.")  # fmt: skip


@jax.jit
def _observed(net: MLP, seed, indices, X) -> dict[str, jax.Array]:
    """Ĝ of every layer and its square (networks, layer, a, b), Θ and the output at a of the networks `indices`."""

    def one(index):
        layers = sample_parameters(net, network_key(seed, index))
        incoming, preactivations = forward(net, layers, X)
        K = jnp.stack([conditional_kernel(net.up_to(layer), incoming[:layer]) for layer in range(1, net.depth + 1)])
        Theta = tangent_kernel(net, layers, X)
        return {"K": K, "square": K**2, "Theta": Theta, "z": preactivations[-1][0, 0]}

    return jax.vmap(one)(indices)


def _sampled_so_far(settings: Settings, net: MLP, tally: Tally, edges, counts, broken: int) -> xr.Dataset:
    found, number = tally.replicates(), tally.networks
    K = found["K"]
    fluctuation = number / (number - 1) * (found["square"][:, :, 0, 0] / K[:, :, 0, 0] ** 2 - 1.0)
    share, bins = counts / number, np.diff(edges)
    error = np.sqrt(np.maximum(share * (1.0 - share), 1.0 / number**2) / number)
    parts = {
        "K": (("layer", "a", "b"), jackknife(K)),
        "correlation": (("layer",), jackknife(K[:, :, 0, 1] / np.sqrt(K[:, :, 0, 0] * K[:, :, 1, 1]))),
        "K_fluctuation": (("layer",), jackknife(fluctuation)),
        "Theta": (("a", "b"), jackknife(found["Theta"])),
        "output_density": (("z",), Estimate(share / bins, error / bins)),
    }
    layers = layer_coordinate(tuple(range(1, net.depth + 1))).assign(z=("z", 0.5 * (edges[1:] + edges[:-1])))
    attrs = {"seed": settings.seed, "networks": number, "nonfinite": broken}
    return _with_errors(parts, net, layers, kind="measure", **attrs)


def _with_errors(parts: dict[str, tuple[tuple[str, ...], Estimate]], net: MLP, coords: Any = None, **attrs):
    """A Dataset of estimates, each with NAME_se."""
    variables = {name: (dims, found.value) for name, (dims, found) in parts.items()}
    variables |= {f"{name}_se": (dims, found.error) for name, (dims, found) in parts.items()}
    return label(variables, net, coords, **attrs)


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """What is trained, on what, and how."""

    net: MLP
    data: Data
    algorithm: GradientFlow | GradientDescent


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


def task_of(settings: Settings) -> TrainingTask:
    """The network on the chosen data; descent takes half of the largest stable step.

    >>> task_of(Settings(depth=3)).data.X_test.shape
    (3, 2)
    """
    if settings.depth > DEEPEST_TRAINED or settings.width > WIDEST_TRAINED:
        raise TooLarge("depth, width", f"{settings.depth} layers of width {settings.width}",
                       f"at most {DEEPEST_TRAINED} layers of width {WIDEST_TRAINED} for training",
                       "Move the sliders of depth and width, or train in Python.")  # fmt: skip
    data = dataset(settings.data, settings.points)
    net = plain_network(settings, data.features)
    descent = settings.algorithm == "gradient descent"
    return TrainingTask(
        net, data, GradientDescent(0.5 * max_learning_rate(net, data.X_train)) if descent else GradientFlow()
    )


def prediction(task: TrainingTask) -> Predicted:
    """`predict` to order 1/n, or at infinite width where the tensors do not exist for the activation."""
    try:
        found, why = predict(task.net, *task.data.for_training(), algorithm=task.algorithm, order=1), ""
    except NotDifferentiable as error:
        found, why = predict(task.net, *task.data.for_training(), algorithm=task.algorithm), str(error)
    mean0, cov0 = found["mean0"].values[0], np.diagonal(found["cov0"].values[0, :, 0, :])
    spread0 = np.sqrt(np.maximum(cov0, 0.0))
    if why:
        return Predicted(mean0, spread0, None, None, 0.0, why, found)
    cov = np.diagonal(found["cov"].values[0, :, 0, :])
    scatters = cov0 > 1e-12 * cov0.max()
    strength = float(np.max(np.abs(cov - cov0)[scatters] / cov0[scatters], initial=0.0))
    return Predicted(mean0, spread0, found["mean"].values[0], np.sqrt(np.maximum(cov, 0.0)), strength, "", found)


#: Places along the line, steps of descent, and single networks that are drawn as functions.
_PAGE_PLACES, _PAGE_STEPS, _FUNCTIONS = 24, 300, 24


def functions_along(settings: Settings, everything: bool = False) -> TrainedFunctions:
    """What training makes of the output along the training inputs: infinite width, or order 1/n and networks too.

    >>> functions_along(Settings(depth=2, width=16)).mean0.shape
    (24,)
    """
    task = task_of(settings)
    X, y, _ = task.data.for_training()
    more = {"order": 1, "networks": _FUNCTIONS} if everything else {"order": 0, "networks": 0}
    return trained_functions(task.net, X, y, points=_PAGE_PLACES, steps=_PAGE_STEPS, seed=settings.seed, **more)


def train_batches(task: TrainingTask, networks: int, seed: int) -> Iterator[xr.Dataset]:
    """After every batch, mean and standard deviation (`spread`) of the trained networks so far at the tests.

    >>> task = task_of(Settings(depth=2, width=16, points=2))
    >>> *_, last = train_batches(task, 32, seed=0)
    >>> last.attrs["networks"], last["mean"].shape, last.attrs["unconverged"]
    (32, (2,), 0)
    """
    X, y, X_test = task.data.for_training()
    ensemble = Ensemble.of(task.net, task.algorithm, X, y.T, X_test, seed=seed, **_TRAINING)
    sums = None
    for chunk in Chunks.of(ensemble, networks):
        sums = merged(sums, ensemble(chunk))
        if sums["counts"].sum() < 2:
            continue
        found = estimates(sums, task.net.n)
        variance, error = (np.diagonal(part[0, :, 0, :]) for part in found["cov"])
        spread = np.sqrt(np.maximum(variance, 0.0))
        mean, mean_error = (part[0] for part in found["mean"])
        parts = {
            "mean": (("test",), Estimate(mean + ensemble.centre[0], mean_error)),
            # error/(2 spread), and √error where nothing scatters
            "spread": (("test",), Estimate(spread, np.sqrt(spread**2 + error) - spread)),
        }
        attrs = {"networks": int(sums["counts"].sum()), "unconverged": int(sums["unconverged"]), "seed": seed}
        yield _with_errors(parts, task.net, kind="train", **attrs)
