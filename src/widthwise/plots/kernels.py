"""Kernels: their flow through the layers, and their spectrum."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from widthwise.errors import InvalidInput
from widthwise.plots.style import layer_ticks, look, lower_legend, marks, panels, style, symbol

#: Inputs with a curve of their own.
MOST = 8


def plot_flow(theory: xr.Dataset, measurement: xr.Dataset | None = None) -> Figure:
    """K_aa and Θ_aa of the first eight inputs against the layer, with measured values where there are some.

    A Dataset of `measure` alone will do.

    Returns
    -------
    A matplotlib Figure.

    >>> import widthwise as ww
    >>> figure = plot_flow(ww.theory(ww.MLP([2, 8, 8, 1], "tanh", C_W=1.5), [[0.5, 1.0]]))
    >>> [axis.get_xlabel() for axis in figure.axes]
    ['layer', 'layer']
    """
    if measurement is None and _is_measured(theory):
        measurement = theory
    names = [name for name in ("K", "Theta") if name in theory]
    if not names:
        raise InvalidInput("theory", f"variables {list(theory.data_vars)}", "K or Theta")
    inputs = min(theory.sizes["a"], MOST)
    with look():
        figure, axes = panels(len(names), 2, 3.8, 3.0)
        for axis, name in zip(axes, names, strict=True):
            for a in range(inputs):
                line = {"linestyle": "none"} if _is_measured(theory) else {}
                both: dict[str, Any] = (
                    style(a) | {"marker": marks(a)["marker"] if measurement is not None else ""} | line
                )
                axis.plot(theory["layer"], theory[name].values[:, a, a], label=f"input {a}", markevery=[-1], **both)
                _measured_flow(axis, measurement, name, a)
            layer_ticks(axis, theory["layer"].values)
            axis.set_ylabel(f"{symbol(name)} of an input with itself")
        title = "points: measured" if measurement is not None else None
        lower_legend(figure, axes[-1], across=4, title=title, title_fontsize=8)
        if theory.sizes["a"] > inputs:
            axes[0].set_title(f"the first {inputs} of {theory.sizes['a']} inputs")
    return figure


def _is_measured(dataset: xr.Dataset) -> bool:
    return "K_se" in dataset or "Theta_se" in dataset


def _measured_flow(axis: Axes, measurement: xr.Dataset | None, name: str, a: int) -> None:
    if measurement is None or f"{name}_se" not in measurement:
        return
    error = measurement[name + "_se"].values[:, a, a]
    axis.errorbar(measurement["layer"], measurement[name].values[:, a, a], error, capsize=2, zorder=3, **marks(a))


def plot_spectrum(theory: xr.Dataset, measurement: xr.Dataset | None = None) -> Figure:
    """Eigenvalues of Θ and K at the output by rank; gradient flow learns along an eigenvector at the rate of its own.

    Returns
    -------
    A matplotlib Figure.

    >>> import widthwise as ww
    >>> figure = plot_spectrum(ww.theory(ww.MLP([2, 8, 1], "tanh"), [[0.5, 1.0], [0.0, 1.0]]))
    >>> len(figure.axes[0].lines[0].get_xdata())
    2
    """
    with look():
        figure, (axis,) = panels(1, 1, 4.4, 3.2)
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
