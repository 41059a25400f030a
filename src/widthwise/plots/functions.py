"""Trained networks as functions of one variable: mean and band of the theory, and single networks over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.interpolate import PchipInterpolator

from widthwise.errors import InvalidInput, NotDifferentiable
from widthwise.experiments.outputs import descent_paths
from widthwise.inference.predict import max_learning_rate, predict
from widthwise.network import (
    MLP,
    GradientDescent,
    check_integer,
    check_network,
    check_seed,
    check_targets,
    plain,
)
from widthwise.plots.style import COLOURS, INK, PAPER, look, panels

#: Inputs of one prediction to order 1/n: its cost grows with their fourth power, so that points go in small groups.
_INPUTS_OF_A_GROUP = 8
#: How far beyond the training inputs the line reaches, as a part of its length, on either side.
_BEYOND = 0.15
#: Descent takes this part of the largest stable step.
_STEP = 0.5
#: More points or networks would not be seen in a figure.
_MOST_POINTS, _MOST_NETWORKS = 10_000, 10_000


@dataclass(frozen=True, eq=False)
class TrainedFunctions:
    """One output along a line through the training inputs, after the same number of steps in theory and networks.

    `place` (points,), `mean0` and `spread0` at infinite width, `mean` and `spread` to order 1/n (None where it does not
    exist for the activation, and `why` says so), `networks` (count, points), `trained_at` and `targets` of the training
    inputs, `steps` of gradient descent.
    """

    place: np.ndarray
    mean0: np.ndarray
    spread0: np.ndarray
    mean: np.ndarray | None
    spread: np.ndarray | None
    networks: np.ndarray
    trained_at: np.ndarray
    targets: np.ndarray
    steps: int
    net: MLP
    why: str = ""


def trained_functions(
    net: MLP,
    X_train: Any,
    y_train: Any,
    *,
    networks: int = 30,
    points: int = 24,
    steps: int = 500,
    seed: int = 0,
    order: int = 1,
) -> TrainedFunctions:
    """What gradient descent makes of the first output along the line from each training input to the next.

    With one feature the line is the axis itself, and inputs are taken by rising value. Descent takes half of the
    largest stable step, `steps` times, in the theory as on the networks. `order=0` and `networks=0` leave out what
    takes longer.

    >>> made = trained_functions(MLP([1, 32, 1], "tanh", C_b=0.3), [[-1.0], [1.0]], [1.0, -1.0], networks=3, points=5)
    >>> made.networks.shape, made.mean.shape, made.trained_at.tolist()
    ((3, 5), (5,), [-1.0, 1.0])
    """
    net = plain(check_network(net), "trained_functions")
    X = net.check_inputs(X_train, "X_train")
    y = check_targets(y_train, len(X), net.widths[-1])
    points = check_integer("points", points, 2, _MOST_POINTS)
    networks, steps = check_integer("networks", networks, 0, _MOST_NETWORKS), check_integer("steps", steps, 1)
    order, seed = check_integer("order", order, 0, 1), check_seed(seed)
    if len(X) < 2 or len(X) >= _INPUTS_OF_A_GROUP:
        raise InvalidInput("X_train", f"{len(X)} inputs", f"2 to {_INPUTS_OF_A_GROUP - 1} for a line through them")
    if X.shape[1] == 1:
        rising = np.argsort(X[:, 0])
        X, y = X[rising], y[rising]
    trained_at, place, line = _line(X, points)
    rate = _STEP * max_learning_rate(net, X)
    algorithm = GradientDescent(rate, steps)
    # groups of one size share their programs: the last one overlaps the one before
    group, why = _INPUTS_OF_A_GROUP - len(X) if order else points, ""
    starts = [min(i, max(points - group, 0)) for i in range(0, points, group)]
    new = [slice(group * k - i, None) for k, i in enumerate(starts)]
    try:
        found = [predict(net, X, y, line[i : i + group], algorithm, order=order) for i in starts]
    except NotDifferentiable as error:
        found, new, why = [predict(net, X, y, line, algorithm)], [slice(None)], str(error)

    def along(name: str) -> np.ndarray:
        return np.concatenate([part[name].values[0, rows] for part, rows in zip(found, new, strict=True)])

    def spread(name: str) -> np.ndarray:
        variances = [np.diagonal(part[name].values[0, :, 0, :])[rows] for part, rows in zip(found, new, strict=True)]
        return np.sqrt(np.concatenate(variances).clip(0.0))

    paths = np.empty((0, points))
    if networks:
        paths = descent_paths(net, X, y, line, rate, [steps], networks, seed)[:, 0, 0]
    finite = (None, None) if why or not order else (along("mean"), spread("cov"))
    return TrainedFunctions(
        place, along("mean0"), spread("cov0"), *finite, paths, trained_at, y[:, 0], steps, net, why
    )  # fmt: skip


def _line(X: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the training inputs stand on the line through them, places on it, and the inputs there."""
    lengths = np.linalg.norm(np.diff(X, axis=0), axis=1)
    if not lengths.all():
        raise InvalidInput("X_train", "two neighbours that are equal", "distinct inputs")
    at = X[:, 0] if X.shape[1] == 1 else np.concatenate([[0.0], np.cumsum(lengths)])
    beyond = _BEYOND * (at[-1] - at[0])
    place = np.linspace(at[0] - beyond, at[-1] + beyond, points)
    index = np.clip(np.searchsorted(at, place) - 1, 0, len(X) - 2)
    share = ((place - at[index]) / (at[index + 1] - at[index]))[:, None]
    return at, place, (1.0 - share) * X[index] + share * X[index + 1]


def plot_functions(functions: TrainedFunctions) -> Figure:
    """Mean ± standard deviation at infinite width and to order 1/n, and the trained networks.

    >>> made = trained_functions(MLP([1, 32, 1], "tanh", C_b=0.3), [[-1.0], [1.0]], [1.0, -1.0], networks=3, points=5)
    >>> [text.get_text() for text in plot_functions(made).axes[0].texts]
    ['infinite width', 'order 1/n', '3 trained networks', 'data']
    """
    if not isinstance(functions, TrainedFunctions):
        raise InvalidInput("functions", type(functions).__name__, "what trained_functions returns")
    fine = np.linspace(functions.place[0], functions.place[-1], 201)

    def smooth(values: np.ndarray) -> np.ndarray:
        return PchipInterpolator(functions.place, values, axis=-1)(fine)

    with look():
        figure, (axis,) = panels(1, 1, 8.4, 4.6)
        for path in functions.networks:
            axis.plot(fine, smooth(path), color="0.6", lw=0.8, alpha=0.7, zorder=1)
        bands = [("infinite width", functions.mean0, functions.spread0, COLOURS[0], "--")]
        if functions.mean is not None and functions.spread is not None:
            bands.append(("order 1/n", functions.mean, functions.spread, COLOURS[1], "-"))
        for _, mean, spread, colour, line in bands:
            middle, width = smooth(mean), smooth(spread)
            axis.fill_between(fine, middle - width, middle + width, color=colour, alpha=0.18, lw=0, zorder=2)
            axis.plot(fine, middle, line, color=colour, lw=2.6, zorder=3)
            for edge in (middle - width, middle + width):
                axis.plot(fine, edge, line, color=colour, lw=1.2, zorder=3)
        axis.plot(functions.trained_at, functions.targets, "o", color=INK, mec=PAPER, ms=9, zorder=5)
        words = [(name, colour) for name, *_, colour, _ in bands]
        if len(functions.networks):
            words.append((f"{len(functions.networks)} trained networks", "0.45"))
        words.append(("data", INK))
        for row, (name, colour) in enumerate(words):
            axis.text(1.01, 0.95 - 0.09 * row, name, color=colour, weight="bold", transform=axis.transAxes, va="top")
        one = functions.net.widths[0] == 1
        axis.set(xlabel="input $x$" if one else "place on the line through the training inputs", ylabel="output")
        axis.set_title(
            f"{functions.net.depth} layers of width {functions.net.n}, {functions.net.activation_text}, after "
            f"{functions.steps} steps: mean ± standard deviation"
        )
        low, high = (smooth(functions.mean0 + s * 3.2 * functions.spread0) for s in (-1, 1))
        axis.set_ylim(min(low.min(), functions.targets.min()) - 0.1, max(high.max(), functions.targets.max()) + 0.1)
    return figure
