"""Theory against measurement, entry by entry, with bars of one standard error."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from widthwise.comparison.pulls import predicted_at
from widthwise.comparison.readings import read
from widthwise.errors import InvalidInput
from widthwise.plots.style import COLOURS, look, panels, symbol


def plot_agreement(theory: xr.Dataset, measurement: xr.Dataset) -> Figure:
    """Measured minus predicted against predicted, every distinct entry with one standard error, a panel a variable.

    `theory` and `measure`, at the measurement's last layer, or `predict` and `train`. As in `compare`, means are
    predicted at the width of the measurement where the theory holds G1 and H1.

    Returns
    -------
    A matplotlib Figure.

    >>> import widthwise as ww
    >>> net, X = ww.MLP([2, 16, 1], "tanh"), [[0.5, 1.0]]
    >>> figure = plot_agreement(ww.theory(net, X), ww.measure(net, X, networks=20))
    >>> [axis.get_title(loc="left") for axis in figure.axes]
    ['$K$', '$\\\\Theta$']
    """
    names = [str(n) for n in theory.data_vars if n in measurement and f"{n}_se" in measurement]
    if not names:
        raise InvalidInput("measurement", f"variables {list(measurement.data_vars)}", "some variable of the theory")
    layer = int(measurement["layer"].values[-1]) if "layer" in measurement.dims else None
    few = len(names) <= 2
    with look():
        figure, axes = panels(len(names), 5, *((3.6, 3.0) if few else (2.5, 2.2)))
        for axis, name in zip(axes, names, strict=True):
            value, error, n = read(measurement, name, layer).reading
            predicted = predicted_at(theory, name, layer, n)
            first = _first_of_each(predicted)
            x, y, bar = (array.ravel()[first] for array in (predicted, value - predicted, error))
            axis.axhline(0.0, color="0.6", lw=1)
            axis.errorbar(x, y, bar, fmt="o", color=COLOURS[0], ms=4 if few else 2.5, lw=1.0 if few else 0.8)
            axis.set_title(symbol(name))
            axis.ticklabel_format(scilimits=(-2, 3))
            axis.locator_params(axis="x", nbins=4)
        figure.supxlabel("predicted" + ("" if layer is None else f" at layer {layer}"), fontsize=10)
        figure.supylabel("measured − predicted", fontsize=10)
    return figure


def _first_of_each(predicted: np.ndarray) -> np.ndarray:
    """Places of entries that differ: those that are equal by symmetry, to rounding, are drawn once; by rising value."""
    scale = np.abs(predicted).max(initial=0.0) or 1.0
    _, first = np.unique(np.round(predicted.ravel() / scale, 9), return_index=True)
    return first
