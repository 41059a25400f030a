"""Trained outputs beyond mean and covariance, and functions drawn from prior or posterior (theory §8, §9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from widthwise.errors import InvalidInput
from widthwise.network import check_integer, real_array
from widthwise.plots.style import COLOURS, look, lower_legend, marks, panels, style
from widthwise.results.labels import check_dataset

#: Functions that are drawn one by one, and the shares of all of them within the bands.
_MOST_FUNCTIONS, _SHARES_WITHIN = 12, (0.95, 0.68)


def plot_trained_density(density: xr.Dataset) -> Figure:
    """The density of a trained output to order 1/n beside the Gaussian of its mean and variance, of `trained_density`.

    The band is its error, ticks below are quantiles; on the right stands what is left once the Gaussian is divided out.

    >>> import widthwise as ww
    >>> net = ww.MLP([1, 64, 1], "tanh", C_b=0.1, C_W=1.5)
    >>> figure = plot_trained_density(ww.trained_density(net, [[-1.0], [1.0]], [0.5, 0.7], [0.3]))
    >>> figure.axes[1].get_ylabel()
    'density / Gaussian'
    """
    check_dataset("density", density, "a Dataset of trained_density")
    if not {"density", "gaussian", "quantile"} <= {str(name) for name in density.data_vars}:
        raise InvalidInput("density", f"variables {list(density.data_vars)}", "a Dataset of trained_density")
    ordered = density.sortby("z")
    z, value, error, gaussian = (ordered[name].values for name in ("z", "density", "density_error", "gaussian"))
    deviation = float(np.sqrt(density["variance"]))
    near = np.abs(z - float(density["mean"])) <= 3.0 * deviation
    with look():
        figure, (left, right) = panels(2, 2, 3.9, 3.0)
        for axis, scale, at in ((left, np.ones_like(z), np.ones_like(near)), (right, gaussian, near)):
            axis.fill_between(
                z[at], ((value - error) / scale)[at], ((value + error) / scale)[at], color=COLOURS[0], alpha=0.2, lw=0
            )
            axis.plot(z[at], (value / scale)[at], label="to order 1/n, band: its error", **style(0))
            axis.plot(z[at], (gaussian / scale)[at], label="Gaussian of the same mean and variance", **style(1))
            axis.set_xlabel(f"output {density.attrs.get('output', 0)} after training")
        how: dict[str, Any] = {"marker": "|", "color": "0.35", "linestyle": "none", "ms": 9}
        left.plot(density["quantile"], np.zeros(density.sizes["probability"]), label="quantiles", **how)
        left.set_ylabel("density")
        right.set_ylabel("density / Gaussian")
        lower_legend(figure, left)
    return figure


def plot_cumulants(predicted: xr.Dataset, measured: xr.Dataset | None = None) -> Figure:
    """Third and fourth cumulants of every output at every test, times n: `predict(cumulants=4)` and `train`.

    >>> import widthwise as ww
    >>> net, data = ww.MLP([1, 64, 1], "tanh", C_b=0.1, C_W=1.5), ([[-1.0], [1.0]], [0.5, 0.7], [[0.3], [2.0]])
    >>> figure = plot_cumulants(ww.predict(net, *data, cumulants=4))
    >>> [axis.get_ylabel() for axis in figure.axes]
    ['$n\\\\kappa_3$', '$n\\\\kappa_4$']
    """
    check_dataset("predicted", predicted, "a Dataset of predict(cumulants=3 or 4)")
    if measured is not None:
        check_dataset("measured", measured, "a Dataset of train")
    names = [name for name in ("kappa3", "kappa4") if name in predicted]
    if not names or (measured is not None and any(f"{name}_se" not in measured for name in names)):
        raise InvalidInput(
            "predicted, measured", "no kappa3 in one of them", "Datasets of predict(cumulants=3 or 4), and of train"
        )
    tests, outputs = predicted.sizes["test"], predicted.sizes["output"]
    with look():
        figure, axes = panels(len(names), 2, 3.9, 3.0)
        for axis, name in zip(axes, names, strict=True):
            axis.axhline(0.0, color="0.6", lw=0.8)
            for i in range(outputs):
                at = np.arange(tests) + 0.16 * (i - 0.5 * (outputs - 1))
                prefix = f"output {i}, " if outputs > 1 else ""
                axis.plot(at - 0.04, predicted[name][i], label=f"{prefix}predicted", **marks(2 * i))
                if measured is not None:
                    error = measured[f"{name}_se"][i]
                    label = f"{prefix}trained networks, n = {measured.attrs.get('n', '?')}"
                    axis.errorbar(at + 0.04, measured[name][i], error, capsize=3, label=label, **marks(2 * i + 1))
            axis.set(xlabel="test input", xticks=range(tests) if tests <= 12 else [])
            axis.set_ylabel(rf"$n\kappa_{name[-1]}$")
        lower_legend(figure, axes[0])
    return figure


def plot_drawn_functions(drawn: xr.DataArray, x: Any = None, output: int = 0) -> Figure:
    """Functions of `sample_prior` or `sample_posterior`: some of them, their median, and bands of 68% and 95%.

    `x` places the inputs on the horizontal axis, one number each; their order otherwise.

    >>> import widthwise as ww
    >>> x = np.linspace(-2.0, 2.0, 9)
    >>> drawn = ww.sample_prior(ww.MLP([1, 32, 1], "tanh", C_b=0.1), x[:, None], draws=200, order=1)
    >>> plot_drawn_functions(drawn, x).axes[0].get_ylabel()
    'output 0'
    """
    if not isinstance(drawn, xr.DataArray) or drawn.dims != ("sample", "output", "test"):
        raise InvalidInput("drawn", type(drawn).__name__, "functions of sample_prior or sample_posterior")
    output = check_integer("output", output, 0, drawn.sizes["output"] - 1)
    at = np.arange(drawn.sizes["test"]) if x is None else real_array(x, "x").ravel()
    if len(at) != drawn.sizes["test"]:
        raise InvalidInput("x", f"{len(at)} numbers", f"one for each of {drawn.sizes['test']} inputs")
    order = np.argsort(at)
    at, values = at[order], drawn.values[:, output, order]
    with look():
        figure, (axis,) = panels(1, 1, 4.6, 3.2)
        for share in _SHARES_WITHIN:
            low, high = np.quantile(values, [0.5 - share / 2, 0.5 + share / 2], axis=0)
            axis.fill_between(at, low, high, color=COLOURS[0], alpha=0.15, lw=0, label=f"{share:.0%} of {len(values)}")
        for number, one in enumerate(values[:_MOST_FUNCTIONS]):
            axis.plot(at, one, color="0.5", lw=0.6, label="" if number else "single functions")
        axis.plot(at, np.median(values, axis=0), label="median", **style(0))
        axis.set(xlabel="test input" if x is None else "input", ylabel=f"output {output}")
        finite = f"to order 1/n, n = {drawn.attrs.get('n', '?')}" if drawn.attrs.get("order") else "infinite width"
        axis.set_title(f"{drawn.name}, {finite}")
        lower_legend(figure, axis, across=4)
    return figure
