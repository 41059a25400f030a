"""Theory beside measurement: kernels, differences entry by entry, trained ensembles and learning curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from widthwise.comparison.pulls import predicted_at
from widthwise.comparison.readings import read
from widthwise.errors import InvalidInput
from widthwise.plots.style import COLOURS, layer_ticks, look, lower_legend, marks, panels, style, symbol
from widthwise.results.labels import check_dataset

#: Inputs with a curve of their own.
_MOST_INPUTS = 8
#: Curves of single networks that are drawn.
_MOST_PATHS = 30


def _check_datasets(**given: xr.Dataset | None) -> None:
    """The first is there; others may be None."""
    for number, (name, one) in enumerate(given.items()):
        if number == 0 or one is not None:
            check_dataset(name, one)


def plot_flow(theory: xr.Dataset, measurement: xr.Dataset | None = None) -> Figure:
    """K_aa and Θ_aa of the first eight inputs against the layer, with measured values where there are some.

    A Dataset of `measure` alone will do.

    Examples
    --------
    >>> import widthwise as ww
    >>> figure = plot_flow(ww.theory(ww.MLP([2, 8, 8, 1], "tanh", C_W=1.5), [[0.5, 1.0]]))
    >>> [axis.get_xlabel() for axis in figure.axes]
    ['layer', 'layer']
    """
    _check_datasets(theory=theory, measurement=measurement)
    if measurement is None and _is_measured(theory):
        measurement = theory
    names = [name for name in ("K", "Theta") if name in theory]
    if not names:
        raise InvalidInput("theory", f"variables {list(theory.data_vars)}", "K or Theta")
    inputs = min(theory.sizes["a"], _MOST_INPUTS)
    with look():
        figure, axes = panels(len(names), 2, 4.6, 3.6)
        for axis, name in zip(axes, names, strict=True):
            for a in range(inputs):
                both: dict[str, Any] = style(a) | {"marker": marks(a)["marker"] if measurement is not None else ""}
                both |= {"linestyle": "none"} if _is_measured(theory) else {}
                axis.plot(theory["layer"], theory[name].values[:, a, a], label=f"input {a}", markevery=[-1], **both)
                if measurement is not None and f"{name}_se" in measurement:
                    value, error = (measurement[key].values[:, a, a] for key in (name, f"{name}_se"))
                    axis.errorbar(measurement["layer"], value, error, capsize=2, zorder=3, **marks(a))
            layer_ticks(axis, theory["layer"].values)
            axis.set_ylabel(f"{symbol(name)} of an input with itself")
        title = "points: measured" if measurement is not None else None
        lower_legend(figure, axes[-1], across=4, title=title)
        if theory.sizes["a"] > inputs:
            axes[0].set_title(f"the first {inputs} of {theory.sizes['a']} inputs")
    return figure


def _is_measured(dataset: xr.Dataset) -> bool:
    return "K_se" in dataset or "Theta_se" in dataset


def plot_spectrum(theory: xr.Dataset, measurement: xr.Dataset | None = None) -> Figure:
    """Eigenvalues of Θ and K at the output by rank; gradient flow learns along an eigenvector at the rate of its own.

    >>> import widthwise as ww
    >>> figure = plot_spectrum(ww.theory(ww.MLP([2, 8, 1], "tanh"), [[0.5, 1.0], [0.0, 1.0]]))
    >>> len(figure.axes[0].lines[0].get_xdata())
    2
    """
    _check_datasets(theory=theory, measurement=measurement)
    if not {"Theta", "K"} & set(theory.data_vars):
        raise InvalidInput("theory", f"variables {list(theory.data_vars)}", "K or Theta")
    with look():
        figure, (axis,) = panels(1, 1, 5.6, 4.0)
        lowest, largest = [], 0.0
        for number, name in enumerate(n for n in ("Theta", "K") if n in theory):
            for source, word in ((theory, "infinite width"), (measurement, "mean of sampled networks")):
                if source is None or name not in source:
                    continue
                values = np.linalg.eigvalsh(source[name].values[-1])[::-1]
                rank = np.arange(1, len(values) + 1)
                look_of = style(number) if source is theory else {**marks(number), "markerfacecolor": "none"}
                axis.plot(rank, values, label=f"{symbol(name)}, {word}", **look_of)
                largest = max(largest, values[0])
                lowest.append(values[values > 1e-14 * values[0]].min())
        axis.set(yscale="log", xlabel="rank", ylabel="eigenvalue")
        axis.set_ylim(0.5 * min(lowest), 2.0 * largest)
        if theory.sizes["a"] <= 12:
            axis.set_xticks(range(1, theory.sizes["a"] + 1))
        axis.legend()
    return figure


def plot_agreement(theory: xr.Dataset, measurement: xr.Dataset) -> Figure:
    """Measured minus predicted against predicted, every distinct entry with one standard error, a panel a variable.

    `theory` and `measure`, at the measurement's last layer, or `predict` and `train`. As in `compare`, means are
    predicted at the width of the measurement where the theory holds G1 and H1.

    >>> import widthwise as ww
    >>> net, X = ww.MLP([2, 16, 1], "tanh"), [[0.5, 1.0]]
    >>> figure = plot_agreement(ww.theory(net, X), ww.measure(net, X, networks=20))
    >>> [axis.get_title(loc="left") for axis in figure.axes]
    ['$K$', '$\\\\Theta$']
    """
    check_dataset("theory", theory)
    check_dataset("measurement", measurement)
    names = [str(n) for n in theory.data_vars if n in measurement and f"{n}_se" in measurement]
    if not names:
        raise InvalidInput("measurement", f"variables {list(measurement.data_vars)}", "some variable of the theory")
    layer = int(measurement["layer"].values[-1]) if "layer" in measurement.dims else None
    few = len(names) <= 2
    with look():
        figure, axes = panels(len(names), 2 if few else 4, *((4.6, 3.6) if few else (3.2, 2.7)))
        for axis, name in zip(axes, names, strict=True):
            value, error, n = read((measurement,), name, layer).reading
            predicted = predicted_at(theory, name, layer, n)
            # entries that are equal by symmetry, to rounding, are drawn once; by rising value
            scale = np.abs(predicted).max(initial=0.0) or 1.0
            _, first = np.unique(np.round(predicted.ravel() / scale, 9), return_index=True)
            x, y, bar = (array.ravel()[first] for array in (predicted, value - predicted, error))
            axis.axhline(0.0, color="0.6", lw=1)
            axis.errorbar(x, y, bar, fmt="o", color=COLOURS[0], ms=4 if few else 2.5, lw=1.0 if few else 0.8)
            axis.set_title(symbol(name))
            axis.ticklabel_format(scilimits=(-2, 3))
            axis.locator_params(axis="x", nbins=4)
        figure.supxlabel("predicted" + ("" if layer is None else f" at layer {layer}"))
        figure.supylabel("measured − predicted")
    return figure


def plot_predictions(predicted: xr.Dataset | None, measured: xr.Dataset | None = None) -> Figure:
    """Mean and standard deviation over initialisations of every output at every test input: predicted, and measured.

    Left the mean with a bar of one standard deviation, right the standard deviation itself.

    >>> import widthwise as ww
    >>> figure = plot_predictions(ww.predict(ww.MLP([1, 8, 1], "tanh"), [[1.0]], [0.5], [[0.3]]))
    >>> figure.axes[0].get_xlabel()
    'test input'
    """
    if predicted is not None:
        check_dataset("predicted", predicted)
    if measured is not None:
        check_dataset("measured", measured)
    sources = [s for s in (predicted, measured) if s is not None]
    if not sources or any("mean" not in s or "cov" not in s for s in sources):
        raise InvalidInput("predicted, measured", "no mean and cov", "Datasets of predict, posterior or train")
    outputs, tests = sources[0].sizes["output"], sources[0].sizes["test"]
    finite = predicted is not None and predicted.attrs.get("order")
    with look():
        figure, (left, right) = panels(2, 2, 4.6, 3.7)
        for i in range(outputs):
            at = np.arange(tests) + 0.12 * (i - 0.5 * (outputs - 1))
            prefix = f"output {i}, " if outputs > 1 else ""
            if predicted is not None:
                word = "predicted to order 1/n" if finite else "predicted, infinite width"
                _moments(left, right, at - 0.04, predicted, i, 2 * i, prefix + word)
                if "mean0" in predicted and finite:
                    dash: dict[str, Any] = {"marker": "_", "linestyle": "none", "color": "0.5", "ms": 12}
                    left.plot(at - 0.04, predicted["mean0"][i], label=f"{prefix}infinite width", **dash)
                    right.plot(at - 0.04, _deviation(predicted["cov0"], i), **dash)
            if measured is not None:
                _moments(left, right, at + 0.04, measured, i, 2 * i + 1, f"{prefix}trained networks")
        for axis in (left, right):
            axis.set(xlabel="test input", xticks=range(tests) if tests <= 12 else [])
        left.set_ylabel("output, mean ± standard deviation")
        right.set_ylabel("standard deviation over networks")
        right.set_ylim(bottom=0.0)
        lower_legend(figure, left)
    return figure


def _deviation(covariance: xr.DataArray, i: int) -> np.ndarray:
    """Standard deviation of one output at every test input."""
    return np.sqrt(np.diagonal(covariance.values[i, :, i, :]).clip(0.0))


def _moments(left: Axes, right: Axes, at, source: xr.Dataset, i: int, number: int, label: str) -> None:
    deviation, error = _deviation(source["cov"], i), None
    left.errorbar(at, source["mean"].values[i], deviation, capsize=3, label=label, **marks(number))
    if "cov_se" in source:
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where(deviation > 0.0, np.diagonal(source["cov_se"].values[i, :, i, :]) / (2 * deviation), 0.0)
    right.errorbar(at, deviation, error, capsize=3, **marks(number))


def plot_learning_curves(predicted: xr.Dataset, measured: xr.Dataset | None = None) -> Figure:
    """Outputs against the number of steps: predicted mean and band of one standard deviation, and real networks.

    `predicted` holds mean on (step, output, test) and cov on (step, output, test, output_, test_); `measured` holds
    `path` on (network, step, output, test). `widthwise.report.learning_curves` makes both.
    """
    _check_datasets(predicted=predicted, measured=measured)
    if measured is not None and "path" not in measured:
        raise InvalidInput("measured", f"variables {list(measured.data_vars)}", "path on (network, step, output, test)")
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
                paths = measured["path"].values[:, :, 0, t]
                for number, path in enumerate(paths[:_MOST_PATHS]):
                    axis.plot(step, path, color="0.55", lw=0.5, zorder=0, label="" if number else "single networks")
                how = {"color": COLOURS[1], "marker": "s", "ms": 3.5, "lw": 1.0, "linestyle": "none", "capsize": 2}
                said = f"mean ± standard deviation of {len(paths)} networks"
                axis.errorbar(step, paths.mean(axis=0), paths.std(axis=0, ddof=1), label=said, **how)
            axis.set_title(f"test input {t}")
            axis.set_xscale("symlog", linthresh=1)
            axis.set_xlim(0, step[-1])
        for axis in axes[-min(tests, 3) :]:
            axis.set_xlabel("step")
        axes[0].set_ylabel("output")
        lower_legend(figure, axes[0])
    return figure
