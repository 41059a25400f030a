"""The phase diagram of an activation, with its critical line and point (theory §7)."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from widthwise.activations import resolve
from widthwise.criticality.critical import critical
from widthwise.criticality.phase_grid import PHASE_NAMES, critical_line
from widthwise.errors import InvalidInput
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, look, lower_legend, panels

_SHADES = ("#e9eef3", "#ffffff", "#f3ddcf", "#c9c9c9")


def plot_phase(diagram: xr.Dataset, net: MLP | None = None) -> Figure:
    """Phases over C_W and C_b, contours of χ_⊥, the line χ_⊥ = 1, the critical point, and a network's own place.

    Returns
    -------
    A matplotlib Figure.

    >>> import widthwise as ww
    >>> ds = ww.phase_diagram("tanh", np.linspace(0.5, 3, 20), np.linspace(0, 0.5, 10))
    >>> figure = plot_phase(ds, ww.MLP([1, 8, 8, 1], "tanh", C_W=1.5, C_b=0.1))
    >>> figure.axes[0].get_xlabel()
    '$C_W$'
    """
    if "chi_perp" not in diagram or diagram["chi_perp"].ndim != 2 or min(diagram["chi_perp"].shape) < 2:
        raise InvalidInput("diagram", f"{dict(diagram.sizes)}", "a Dataset of phase_diagram on at least a 2 × 2 grid")
    C_W, C_b = diagram["C_W"].values, diagram["C_b"].values
    phase = np.array([[PHASE_NAMES.index(str(name)) for name in row] for row in diagram["phase"].values])
    with look():
        figure, (axis,) = panels(1, 1, 5.2, 3.8)
        colours = ListedColormap(_SHADES)
        axis.pcolormesh(
            C_W,
            C_b,
            phase,
            cmap=colours,
            norm=BoundaryNorm(np.arange(-0.5, 4.5), 4),
            shading="nearest",
            rasterized=True,
        )
        _contours(axis, diagram)
        _names(axis, C_W, C_b, phase)
        _critical(axis, diagram)
        if net is not None:
            style = {
                "marker": "X",
                "markersize": 9,
                "color": COLOURS[1],
                "markeredgecolor": "white",
                "linestyle": "none",
            }
            axis.plot(net.C_W[-1], net.C_b[-1], label="this network", zorder=5, **style)
        axis.set(xlabel="$C_W$", ylabel="$C_b$", xlim=(C_W.min(), C_W.max()), title=diagram.attrs.get("activation", ""))
        margin = 0.02 * (C_b.max() - C_b.min())
        axis.set_ylim(C_b.min() - margin, C_b.max())
        lower_legend(figure, axis)
    return figure


def _contours(axis: Axes, diagram: xr.Dataset) -> None:
    chi = np.where(np.isfinite(diagram["K_star"].values), diagram["chi_perp"].values, np.nan)
    if not np.isfinite(chi).any():
        return
    levels = [x for x in (0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0) if np.nanmin(chi) < x < np.nanmax(chi)]
    if levels:
        drawn = axis.contour(diagram["C_W"], diagram["C_b"], chi, levels=levels, colors="0.55", linewidths=0.7)
        axis.clabel(drawn, fmt=lambda x: rf"$\chi_\perp$={x:g}", fontsize=7)


def _names(axis: Axes, C_W: np.ndarray, C_b: np.ndarray, phase: np.ndarray) -> None:
    """The word of each phase, deep inside its region."""
    from scipy.ndimage import distance_transform_edt

    for index, name in enumerate(PHASE_NAMES):
        inside = np.pad(phase == index, 1)
        depth = np.asarray(distance_transform_edt(inside))[1:-1, 1:-1]
        if depth.max(initial=0.0) < 2.0:
            continue
        row, column = np.unravel_index(np.argmax(depth), depth.shape)
        box = {"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.8}
        axis.text(C_W[column], C_b[row], name, ha="center", va="center", style="italic", bbox=box, zorder=4)


def _critical(axis: Axes, diagram: xr.Dataset) -> None:
    sigma = resolve(diagram.attrs["activation"])
    try:
        _, C_W, C_b = critical_line(sigma)
        axis.plot(C_W, C_b, color=COLOURS[0], label=r"$\chi_\perp = 1$")
    except InvalidInput:
        pass  # a single point, which follows
    try:
        point = critical(sigma)
    except InvalidInput:
        return
    style = {"marker": "*", "markersize": 13, "color": COLOURS[0], "linestyle": "none", "clip_on": False}
    axis.plot(point.C_W, point.C_b, label="critical point", zorder=5, **style)
