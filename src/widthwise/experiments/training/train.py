"""`train`: the variables of `predict`, measured on networks that are really trained."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from widthwise.activations import require_derivatives
from widthwise.errors import (
    AccuracyWarning,
    InvalidInput,
    NonFiniteWarning,
    NoRule,
    UnstableLearningRate,
    UnstableRateWarning,
)
from widthwise.experiments.accumulation import accumulate
from widthwise.experiments.initialisations import check_initialisation, described
from widthwise.experiments.tally import JACKKNIFE_BLOCKS, Chunk, Sums
from widthwise.experiments.training.ensemble import Ensemble
from widthwise.experiments.training.output_cumulants import estimates
from widthwise.memory import require_memory
from widthwise.network import Dropout, Network, simplified
from widthwise.network.algorithms import SGD, Adam, GradientDescent, GradientFlow, Momentum, NewtonStep
from widthwise.network.losses import Loss, check_loss, require_an_end
from widthwise.network.stability import UnstableStep, check_batch, unstable_step
from widthwise.network.validation import LEAST, check_integer, check_networks, check_real, check_seed, check_targets
from widthwise.results.labels import TEST_PAIRS, TEST_TRIPLES, label

TrainingAlgorithm = GradientFlow | GradientDescent | NewtonStep | SGD | Momentum | Adam
#: Steps after which a network that is trained to convergence counts as not converged.
_MAX_STEPS = {GradientFlow: 2_000, NewtonStep: 200}
_MAX_STEPS_DESCENT = 100_000
#: With one left out at a time, the rest have a covariance.
LEAST_NETWORKS = 3
#: The most that a network may take. A small network takes a microsecond a step, so these take a quarter of an hour, and
#: networks side by side are interrupted between their trainings only.
MOST_STEPS = 10**9
#: Below this reduction of the variance control variates add noise, and are not used.
NOISY = 0.5


def train(
    net: Network,
    X_train: Any,
    y_train: Any,
    X_test: Any,
    networks: int = 1000,
    algorithm: TrainingAlgorithm | None = None,
    seed: int = 0,
    *,
    loss: str | Callable[[Any, Any], Any] = "squared",
    tolerance: float = 1e-6,
    max_steps: int | None = None,
    initialisation: str | Sequence[str] = "gaussian",
    engine: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    batch: int | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Mean and covariance of the outputs of networks that are really trained, with standard errors (theory §8).

    Control variates built from the linearised network, whose means are known exactly at every width, take most of the
    noise away; `variance_reduction_mean` and `variance_reduction_cov` say by how much. Where they would add noise, as
    where the linearised networks diverge though the networks do not, plain averages stand, and the reduction is 1.

    Parameters
    ----------
    X_train, y_train, X_test : as in `predict`.
    networks : how many to train, at least 3: two have no error of their covariance. Network i of a seed always starts
        as the same network.
    algorithm : `GradientFlow()` (default), `GradientDescent`, `NewtonStep`, `SGD`, `Momentum` or `Adam`.
    loss : as in `predict`; "squared" is ½Σ(z−y)².
    tolerance : networks trained to convergence end when every |∂ℓ/∂z|, under squared loss |z − y|, is below it. For
        gradient flow it sets the accuracy of integration too: each step is right to 10 × tolerance, at most 1e-5, of
        its length.
    max_steps : steps after which a network counts as not converged.
    initialisation : of all layers, as in `measure`; the output layer too is drawn from it.
    engine, checkpoint, batch : as in `measure`.

    Returns
    -------
    Dataset with mean on (output, test), and cov, kernel (the neural tangent kernel after training) and change (what
    training adds to it) on (output, test, output_, test_), each with NAME_se; and kappa3, kappa4 on (output, test), n
    times the third and fourth cumulant, as `predict` gives them with cumulants=4; for up to four tests kappa3_joint on
    (output, test, test_, test__) too, as `trained_skewness` gives it. Networks that did not converge are in
    the moments, counted in the attribute `unconverged` and warned of; those that are not finite cannot be, and are
    counted in `nonfinite`. Ctrl-C returns what is done so far, with the attribute `interrupted`.

    >>> import widthwise as ww
    >>> from widthwise.experiments.training.train import train
    >>> net = ww.MLP([1, 64, 1], "tanh", C_b=0.1, C_W=1.5)
    >>> data = [[-1.0], [1.0]], [0.5, 0.7], [[0.3]]
    >>> t, p = train(net, *data, networks=200), ww.predict(net, *data, order=1)
    >>> bool(abs(t["mean"] - p["mean"]) < 4 * t["mean_se"]), t.attrs["unconverged"]
    (True, 0)
    """
    net = simplified(net)
    _refuse_masks(net)
    X = net.check_inputs(X_train, "X_train")
    y = check_targets(y_train, len(X), net.widths[-1]).T
    X_test = net.check_inputs(X_test, "X_test")
    chosen = check_loss(loss, y.T)
    algorithm = _check_algorithm(algorithm, len(X), chosen)
    networks, seed = check_networks(networks, LEAST_NETWORKS), check_seed(seed)
    for sigma in net.activations:
        require_derivatives(sigma, 1, "training")
    # sums of blocks for four matrices and two plain ones, those of a chunk beside them
    needed = 8 * 2 * 8 * JACKKNIFE_BLOCKS * (net.widths[-1] * len(X_test)) ** 2
    require_memory(needed, f"sums of covariances of {len(X_test)} test inputs", "Take fewer test inputs.")
    tolerance = check_real("tolerance", tolerance, "a finite positive number", least=LEAST)
    if max_steps is None:
        max_steps = _MAX_STEPS.get(type(algorithm), _MAX_STEPS_DESCENT)
    batch = None if batch is None else check_integer("batch", batch, 1)
    max_steps = _check_steps("max_steps", max_steps)
    drawn, accuracy = check_initialisation(net, initialisation), float(np.clip(10 * tolerance, 1e-9, 1e-5))
    how = {"seed": seed, "tolerance": tolerance, "accuracy": accuracy, "max_steps": max_steps, "initialisation": drawn}
    ensemble = Ensemble.of(net, algorithm, X, y, X_test, batch, loss=chosen, **how)
    (sums,), interrupted = accumulate(ensemble, networks, engine, checkpoint, progress, "train")
    attrs = _training_report(ensemble, sums, networks)
    return _dataset(ensemble, sums, attrs | {"interrupted": int(interrupted)})


def _refuse_masks(net: Network) -> None:
    if any(isinstance(step, Dropout) for step in net.steps):
        raise NoRule(
            "net", "a network with Dropout, whose masks are drawn anew at every step of training",
            "networks without it", "Take it out to train; `measure` draws networks with their masks.",
        )  # fmt: skip


def _check_steps(name: str, steps: Any) -> int:
    if check_integer(name, steps, 1) > MOST_STEPS:
        raise InvalidInput(
            name, f"{steps}, of which {MOST_STEPS:.0e} take a network at least a quarter of an hour",
            f"an integer of at most {MOST_STEPS}",
            "steps=None ends where a network fits its targets; `predict` takes any number of steps.",
        )  # fmt: skip
    return steps


def _training_report(ensemble: Ensemble, sums: Sums, networks: int) -> dict[str, Any]:
    """Counts of networks that went wrong, with their indices, and warnings where there are any."""
    used = int(sums["counts"].sum())
    again = f"sample_parameters(net, network_key({ensemble.seed}, index), {ensemble.initialisation})"
    found: dict[str, Any] = {"networks": used}
    for name in ("unconverged", "nonfinite"):
        found[name] = int(sums[name])
        if found[name]:
            found[f"{name}_networks"] = sums[f"{name}_indices"].tolist()
    unstable = _past_bound(ensemble)
    cause = "" if unstable is None else f"{unstable} "
    broken, late = (f"(indices {found.get(f'{name}_networks')})" for name in ("nonfinite", "unconverged"))
    if used < LEAST_NETWORKS:
        _blame_inputs_that_are_too_large(ensemble, networks)
        wrong = f"with which {found['nonfinite']} networks end with numbers that are not finite {broken}"
        if unstable is not None:
            raise UnstableLearningRate("learning_rate", f"{unstable.rate}, {wrong}", unstable.expected, unstable.remedy)
        raise InvalidInput(
            "algorithm",
            f"{ensemble.algorithm!r}, {wrong}",
            f"at least {LEAST_NETWORKS} networks that stay finite",
            "Take a smaller learning rate (`max_learning_rate` gives the bound at infinite width), or wider networks.",
        )
    if found["nonfinite"]:
        warnings.warn(
            f"train: {found['nonfinite']} of {networks} networks {broken} of seed {ensemble.seed} end with numbers "
            f"that are not finite. They are left out, which biases the results. {cause}To repeat one of them: {again}",
            NonFiniteWarning,
            stacklevel=3,
        )
    if found["unconverged"]:
        warnings.warn(
            f"train: {found['unconverged']} of {networks} networks {late} of seed {ensemble.seed} did not reach "
            f"their targets to within {ensemble.tolerance:g} in {ensemble.max_steps} steps; they are included in the "
            f"moments as they are. {cause or 'Raise max_steps, or take another learning rate. '}To repeat one of them: "
            f"{again}",
            AccuracyWarning,
            stacklevel=3,
        )
    if unstable is not None and ensemble.algorithm.steps is not None and not found["nonfinite"]:
        warnings.warn(f"train: {unstable}", UnstableRateWarning, stacklevel=3)
    return found | {"steps_mean": float(sums["steps"]) / (used + found["nonfinite"])}


def _past_bound(ensemble: Ensemble) -> UnstableStep | None:
    """The first step whose rate is past the bound at infinite width; real networks may survive it."""
    train = ensemble.y.shape[1]
    Theta = ensemble.known.Theta[:train, :train]
    if not np.isfinite(Theta).all():
        return None
    return unstable_step(ensemble.algorithm, float(np.linalg.eigvalsh(Theta)[-1]), ensemble.loss)


def _blame_inputs_that_are_too_large(ensemble: Ensemble, networks: int) -> None:
    """Refuse the larger ones of training and test inputs if numbers are not finite before training."""
    train = ensemble.y.shape[1]
    X, X_test = ensemble.X[:train], ensemble.X[train:]
    how = {name: getattr(ensemble, name) for name in ("seed", "tolerance", "accuracy", "max_steps", "initialisation")}
    no_step = GradientDescent(np.finfo(float).tiny, steps=1)
    untrained = Ensemble.of(ensemble.net, no_step, X, ensemble.y, X_test, ensemble.batch, **how)
    if untrained(Chunk(0, 0, min(networks, ensemble.batch)))["counts"].sum():
        return
    sizes = {"X_train": np.abs(X).max(), "X_test": np.abs(X_test).max()}
    name = max(sizes, key=lambda one: sizes[one])
    raise InvalidInput(
        name,
        f"numbers up to {sizes[name]:.3g}, at which networks have numbers that are not finite before they are trained",
        "inputs at which networks of this depth and activation stay finite",
        "Scale the inputs down, or take a smaller weight variance.",
    )


def _dataset(ensemble: Ensemble, sums: Sums, attrs: dict[str, Any]) -> xr.Dataset:
    found = estimates(sums, ensemble.net.n)
    variables = {}
    names = ("mean", "cov", "kernel", "change", "kappa3", "kappa4", "kappa3_joint")
    for name in (name for name in names if name in found):
        value, error = found[name]
        plain = found["plain_" + name]
        # how many times more networks plain averages would need; NaN where nothing scatters
        scatter = error > 1e-12 * max(float(plain.error.max()), 1e-300)
        ratio = plain.error[scatter] / error[scatter]
        reduction = float(np.median(ratio**2)) if scatter.any() else math.nan
        if reduction < NOISY:
            (value, error), reduction = plain, 1.0
        dims = TEST_TRIPLES if name == "kappa3_joint" else TEST_PAIRS[: value.ndim]
        variables[name] = (dims, value + ensemble.centre if name == "mean" else value)
        variables[name + "_se"] = (dims, error)
        attrs[f"variance_reduction_{name}"] = reduction
    how: dict[str, Any] = {"kind": "train", "algorithm": repr(ensemble.algorithm), "seed": ensemble.seed}
    how["loss"] = ensemble.loss.name
    drawn = described(ensemble.initialisation or ("gaussian",))
    return label(variables, ensemble.net, **how, tolerance=ensemble.tolerance, initialisation=drawn, **attrs)


def _check_algorithm(algorithm: Any, inputs: int, loss: Loss) -> TrainingAlgorithm:
    algorithm = GradientFlow() if algorithm is None else algorithm
    if not isinstance(algorithm, TrainingAlgorithm):
        names = "GradientFlow(), GradientDescent(learning_rate), NewtonStep(), SGD, Momentum or Adam"
        raise InvalidInput("algorithm", repr(algorithm), names)
    check_batch(algorithm, inputs)
    steps = getattr(algorithm, "steps", None)
    if steps is not None:
        _check_steps("steps", steps)
    if steps is None and getattr(algorithm, "time", None) is None:
        require_an_end(algorithm, loss)
        if getattr(algorithm, "weight_decay", None) is not None:
            got, expected = f"{algorithm!r}, which does not fit the targets", "a number of steps, or a time"
            raise InvalidInput("algorithm", got, expected, "Under squared loss `predict` gives its end.")
    return algorithm
