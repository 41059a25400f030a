"""Kernels: their flow through the layers, and their agreement with sampled networks."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from widthwise.plots.style import COLOURS, LINES, MARKERS, look

_SYMBOL = {"K": "$K$", "Theta": r"$\Theta$"}


def plot_flow(theory: xr.Dataset, measurement: xr.Dataset | None = None) -> Figure:
    """K_aa and Θ_aa of every input against the layer, with measured values where there are some."""
    names = [name for name in ("K", "Theta") if name in theory]
    with look():
        figure, axes = plt.subplots(1, len(names), figsize=(3.6 * len(names), 3.0), squeeze=False)
        for axis, name in zip(axes[0], names, strict=True):
            layers = theory["layer"].values
            for a in range(theory.sizes["a"]):
                values = theory[name].values[:, a, a]
                axis.plot(layers, values, LINES[a % 4], color=COLOURS[a % 4], label=f"input {a}")
                if measurement is not None and name in measurement:
                    at = measurement["layer"].values
                    centre = measurement[name].values[:, a, a]
                    error = measurement[name + "_se"].values[:, a, a]
                    axis.errorbar(at, centre, error, fmt=MARKERS[a % 4], color=COLOURS[a % 4], ms=4, capsize=2)
            axis.set_xlabel("layer")
            axis.set_ylabel(f"{_SYMBOL[name]} of an input with itself")
            axis.set_xticks(layers if len(layers) <= 12 else np.linspace(layers[0], layers[-1], 6).round())
        axes[0][0].legend(fontsize=7)
    return figure


def plot_agreement(theory: xr.Dataset, measurement: xr.Dataset) -> Figure:
    """Measured over predicted, entry by entry, with bars of one standard error."""
    names = [name for name in ("K", "Theta") if name in theory and name + "_se" in measurement]
    layer = int(measurement["layer"].values[-1])
    with look():
        figure, axes = plt.subplots(1, len(names), figsize=(3.6 * len(names), 3.0), squeeze=False, sharey=True)
        for axis, name, colour, marker in zip(axes[0], names, COLOURS, MARKERS, strict=False):
            predicted = theory[name].sel(layer=layer).values
            measured = measurement[name].sel(layer=layer).values
            error = measurement[name + "_se"].sel(layer=layer).values
            upper = np.triu_indices(len(predicted))
            order = np.argsort(predicted[upper])
            x, y, bar = (array[upper][order] for array in (predicted, measured / predicted, error / np.abs(predicted)))
            axis.axhline(1.0, color="0.6", lw=1)
            axis.errorbar(x, y, bar, fmt=marker, color=colour, ms=4, capsize=2)
            axis.set_xlabel(f"predicted {_SYMBOL[name]}, layer {layer}")
        axes[0][0].set_ylabel("measured / predicted")
    return figure
