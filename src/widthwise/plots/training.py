"""Trained networks: predictions beside trained ensembles, and learning curves inside their predicted bands."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from widthwise.errors import InvalidInput
from widthwise.plots.style import COLOURS, look, lower_legend, marks, panels

#: Curves of single networks that are drawn.
_PATHS = 30


def plot_predictions(predicted: xr.Dataset | None, measured: xr.Dataset | None = None) -> Figure:
    """Mean and standard deviation over initialisations of every output at every test input: predicted, and measured.

    Left the mean with a bar of one standard deviation, right the standard deviation itself.

    Returns
    -------
    A matplotlib Figure.

    >>> import widthwise as ww
    >>> figure = plot_predictions(ww.predict(ww.MLP([1, 8, 1], "tanh"), [[1.0]], [0.5], [[0.3]]))
    >>> figure.axes[0].get_xlabel()
    'test input'
    """
    sources = [s for s in (predicted, measured) if s is not None]
    if not sources or any("mean" not in s or "cov" not in s for s in sources):
        raise InvalidInput("predicted, measured", "no mean and cov", "Datasets of predict, posterior or train")
    outputs, tests = sources[0].sizes["output"], sources[0].sizes["test"]
    with look():
        figure, (left, right) = panels(2, 2, 3.9, 3.1)
        for i in range(outputs):
            at = np.arange(tests) + 0.12 * (i - 0.5 * (outputs - 1))
            prefix = f"output {i}, " if outputs > 1 else ""
            if predicted is not None:
                _points(left, right, at - 0.04, predicted, i, 2 * i, prefix + _order(predicted))
                if "mean0" in predicted and predicted.attrs.get("order"):
                    left.plot(
                        at - 0.04, predicted["mean0"][i], "_", color="0.5", ms=12, label=f"{prefix}infinite width"
                    )
                    deviation = np.sqrt(np.diagonal(predicted["cov0"].values[i, :, i, :]).clip(0.0))
                    right.plot(at - 0.04, deviation, "_", color="0.5", ms=12)
            if measured is not None:
                _points(left, right, at + 0.04, measured, i, 2 * i + 1, f"{prefix}trained networks")
        for axis in (left, right):
            axis.set(xlabel="test input", xticks=range(tests) if tests <= 12 else [])
        left.set_ylabel("output, mean ± standard deviation")
        right.set_ylabel("standard deviation over networks")
        right.set_ylim(bottom=0.0)
        lower_legend(figure, left)
    return figure


def _order(predicted: xr.Dataset) -> str:
    return "predicted to order 1/n" if predicted.attrs.get("order") else "predicted, infinite width"


def _points(left: Axes, right: Axes, at, source: xr.Dataset, i: int, number: int, label: str) -> None:
    variance = np.diagonal(source["cov"].values[i, :, i, :]).clip(0.0)
    deviation = np.sqrt(variance)
    left.errorbar(at, source["mean"].values[i], deviation, capsize=3, label=label, **marks(number))
    error = None
    if "cov_se" in source:
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where(deviation > 0.0, np.diagonal(source["cov_se"].values[i, :, i, :]) / (2 * deviation), 0.0)
    right.errorbar(at, deviation, error, capsize=3, **marks(number))


def plot_learning_curves(predicted: xr.Dataset, measured: xr.Dataset | None = None) -> Figure:
    """Outputs against the number of steps: predicted mean and band of one standard deviation, and real networks.

    `predicted` holds mean on (step, output, test) and cov on (step, output, test, output_, test_); `measured` holds
    `path` on (network, step, output, test). `widthwise.report.learning_curves` makes both.
    """
    if "step" not in predicted.dims or "mean" not in predicted:
        raise InvalidInput("predicted", f"dimensions {dict(predicted.sizes)}", "mean on (step, output, test)")
    tests = min(predicted.sizes["test"], 6)
    step = predicted["step"].values
    with look():
        figure, axes = panels(tests, 3, 3.1, 2.6, sharex=True)
        for t, axis in enumerate(axes):
            mean = predicted["mean"].values[:, 0, t]
            deviation = np.sqrt(predicted["cov"].values[:, 0, t, 0, t].clip(0.0))
            axis.fill_between(step, mean - deviation, mean + deviation, color=COLOURS[0], alpha=0.2, lw=0)
            axis.plot(step, mean, color=COLOURS[0], lw=2, label="predicted mean, band of one standard deviation")
            if measured is not None:
                _paths(axis, step, measured["path"].values[:, :, 0, t])
            axis.set_title(f"test input {t}")
            axis.set_xscale("symlog", linthresh=1)
            axis.set_xlim(0, step[-1])
        for axis in axes[-min(tests, 3) :]:
            axis.set_xlabel("step")
        axes[0].set_ylabel("output")
        lower_legend(figure, axes[0])
    return figure


def _paths(axis: Axes, step: np.ndarray, paths: np.ndarray) -> None:
    for number, path in enumerate(paths[:_PATHS]):
        axis.plot(step, path, color="0.55", lw=0.5, zorder=0, label="" if number else "single networks")
    mean, deviation = paths.mean(axis=0), paths.std(axis=0, ddof=1)
    how = {"color": COLOURS[1], "marker": "s", "ms": 3.5, "lw": 1.0, "linestyle": "none", "capsize": 2}
    axis.errorbar(step, mean, deviation, label=f"mean ± standard deviation of {len(paths)} networks", **how)
