"""Phases, laws of large depth and learning rates that make every layer count equally (theory §7)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.ndimage import distance_transform_edt

from widthwise.activations import resolve
from widthwise.criticality.asymptotic_laws import asymptotics
from widthwise.criticality.critical import SCALE_INVARIANT, critical
from widthwise.criticality.depth_width import LARGE_EFFECTS
from widthwise.criticality.kernel_fixed_points import fixed_points
from widthwise.criticality.learning_rates import LearningRates
from widthwise.criticality.phase_diagram import PHASE_NAMES, block_of_diagram, critical_line
from widthwise.errors import InvalidInput
from widthwise.network import MLP, plain, simplified
from widthwise.plots.style import (
    AREA_COLOURS,
    COLOURS,
    MARKERS,
    PAPER,
    layer_ticks,
    look,
    lower_legend,
    panels,
    style,
    symbol,
)
from widthwise.results.labels import check_dataset, network_of
from widthwise.tensors import SCALE_TEXT

#: From this depth on, depth and ratios are drawn on logarithmic axes.
_DEEP = 24
_TEX = str.maketrans({"Θ": r"\Theta", "²": "^2", "³": "^3"})


class Law(NamedTuple):
    """What is drawn beside the exact recursion: curves by variable, and what they are."""

    curves: dict[str, np.ndarray]
    title: str


def plot_depth(flow: xr.Dataset) -> Figure:
    """Every variable of `single_input` against the layer, with its law of large depth.

    At a critical initialisation the laws are powers of depth; elsewhere K and Θ tend to fixed points, and the ratios
    have no law. Negative quantities are drawn with their sign turned, which the title of the panel says.

    Examples
    --------
    >>> import widthwise as ww
    >>> figure = plot_depth(ww.single_input(ww.MLP([1] + [64] * 49 + [1], "tanh"), [1.0], tensors=["V"]))
    >>> [axis.get_title(loc="left") for axis in figure.axes]
    ['$K$', '$V/K^2$']
    """
    check_dataset("flow", flow, "a Dataset of widthwise.single_input")
    names = [str(v) for v in flow.data_vars if not str(v).startswith("log_")]
    if "layer" not in flow.dims or "K" not in names or "a" in flow.dims:
        raise InvalidInput("flow", f"dimensions {dict(flow.sizes)}", "a Dataset of widthwise.single_input")
    net = simplified(network_of(flow))
    law = laws(net, flow) if isinstance(net, MLP) else Law({}, "none is known with skips or norms")
    deep = flow.sizes["layer"] >= _DEEP
    with look():
        figure, axes = panels(len(names), 4, 3.2, 2.7)
        for axis, name in zip(axes, names, strict=True):
            _panel(axis, name, flow, law, deep)
            largest, limit = float(np.nanmax(np.abs(flow[name].values))), LARGE_EFFECTS * net.n
            if name.endswith("_ratio") and largest > limit:
                _, top = axis.get_ylim()
                axis.axhspan(limit, max(top, 1.05 * largest), color="0.5", alpha=0.15, lw=0)
        figure.supxlabel("layer")
        words = f"solid: exact recursion\ndashed: {law.title}"
        if any(axis.patches for axis in axes):
            words += f"\ngrey: 1/n is not small (over {LARGE_EFFECTS:.0%} at width {net.n})"
        figure.suptitle(words, x=0.01, ha="left")
    return figure


def _panel(axis: Axes, name: str, flow: xr.Dataset, law: Law, deep: bool) -> None:
    layer, values = flow["layer"].values, flow[name].values
    sign = -1.0 if deep and values[np.isfinite(values)][-1:].sum() < 0.0 else 1.0
    if deep:
        values = np.where(sign * values > 0.0, values, np.nan)
    axis.plot(layer, sign * values, color=COLOURS[0], marker="" if deep else "o", markersize=3)
    if name in law.curves:
        axis.plot(layer, sign * law.curves[name], "--", color=COLOURS[1])
    if deep:
        positive = values[np.isfinite(values)] * sign > 0.0
        axis.set(xscale="log", yscale="log" if positive.any() else "linear")
        if np.nanmax(np.abs(values)) < 1.01 * np.nanmin(np.abs(values)):
            axis.set(yscale="linear", ylim=np.sort(sign * np.nanmean(values) * np.array([0.8, 1.2])))
    else:
        layer_ticks(axis, layer)
        axis.set_xlabel("")
    written = symbol(name.removesuffix("_ratio"))
    if name.endswith("_ratio"):
        scale = SCALE_TEXT[flow[name].attrs["K_power"], flow[name].attrs["Theta_power"]].translate(_TEX)
        written = f"{written[:-1]}/{scale}$"
    axis.set_title(("−" if sign < 0.0 else "") + written)


def laws(net: MLP, flow: xr.Dataset) -> Law:
    """Power laws if the network is critical, uniform and of equal widths; else fixed points."""
    layer = flow["layer"].values.astype(float)
    point = _point_of(net)
    if point is None:
        return _fixed_law(net, flow)
    growth = point.laws(lambda_b=net.lambda_b[-1], lambda_W=net.lambda_W[-1], K=float(flow["K"].values[-1]))
    curves = {f"{name}_ratio": c * layer ** growth.exponent[name] for name, c in growth.coefficient.items()}
    if "Theta" in flow:
        # the law fixes the power only: it is drawn through the last layer
        curves["Theta"] = flow["Theta"].values[-1] * (layer / layer[-1]) ** growth.exponent["Theta"]
    if point.universality == SCALE_INVARIANT:
        curves["K"] = np.full(len(layer), flow["K"].values[0])
    else:
        curves["K"] = asymptotics(net.activation).leading(layer)
    return Law(curves, "leading law of large depth at criticality")


def _point_of(net: MLP):
    """The critical point if the network sits on it with uniform rates and equal hidden widths."""
    try:
        point = critical(net.activation)
    except InvalidInput:  # not critical, or not one activation
        return None
    same = all(len(set(values)) == 1 for values in (net.lambda_b, net.lambda_W, net.widths[1:-1]))
    close = all(
        abs(got - wanted) <= 1e-6 * max(1.0, abs(wanted))
        for wanted, values in ((point.C_b, net.C_b[1:]), (point.C_W, net.C_W[1:]))
        for got in values
    )
    return point if same and close and net.depth > 1 else None


def _fixed_law(net: MLP, flow: xr.Dataset) -> Law:
    """K* and, where gradients decay, Θ* = (λ_b + λ_W⟨σ²⟩)/(1 − χ_⊥), of layers like the last one."""
    try:
        point = fixed_points(net.activation, net.C_b[-1], net.C_W[-1]).reached_from(float(flow["K"].values[0]))
    except InvalidInput:
        point = None
    if point is None or not np.isfinite(point.K):
        return Law({}, "no law: the kernel grows without bound")
    ones = np.ones(flow.sizes["layer"])
    curves = {"K": point.K * ones}
    if point.chi_perp < 1.0 - 1e-9:
        square = (point.K - net.C_b[-1]) / net.C_W[-1] if net.C_W[-1] else 0.0
        curves["Theta"] = (net.lambda_b[-1] + net.lambda_W[-1] * square) / (1.0 - point.chi_perp) * ones
    return Law(curves, "fixed point of layers like the last one")


def plot_phase(diagram: xr.Dataset, net: MLP | None = None) -> Figure:
    """Phases over C_W and C_b, contours of χ_⊥, the line χ_⊥ = 1, the critical point, and a network's own place.

    >>> import widthwise as ww
    >>> ds = ww.phase_diagram("tanh", np.linspace(0.5, 3, 20), np.linspace(0, 0.5, 10))
    >>> figure = plot_phase(ds, ww.MLP([1, 8, 8, 1], "tanh", C_W=1.5, C_b=0.1))
    >>> figure.axes[0].get_xlabel()
    '$C_W$'
    """
    check_dataset("diagram", diagram, "a Dataset of phase_diagram")
    net = None if net is None else plain(net, "a figure of phases")
    if "chi_perp" not in diagram or diagram["chi_perp"].ndim != 2 or min(diagram["chi_perp"].shape) < 2:
        raise InvalidInput("diagram", f"{dict(diagram.sizes)}", "a Dataset of phase_diagram on at least a 2 × 2 grid")
    C_W, C_b = diagram["C_W"].values, diagram["C_b"].values
    phase = np.array([[PHASE_NAMES.index(str(name)) for name in row] for row in diagram["phase"].values])
    with look():
        figure, (axis,) = panels(1, 1, 6.4, 4.6)
        _regions(axis, diagram, phase)
        _contours(axis, diagram)
        _name_phases(axis, C_W, C_b, phase)
        _draw_critical(axis, diagram)
        if net is not None:
            place = (net.C_W[-1], net.C_b[-1])
            axis.plot(*place, "X", ms=9, color=COLOURS[1], mec=PAPER, label="this network", zorder=5)
        axis.set(xlabel="$C_W$", ylabel="$C_b$", xlim=(C_W.min(), C_W.max()), title=diagram.attrs.get("activation", ""))
        margin = 0.02 * (C_b.max() - C_b.min())
        axis.set_ylim(C_b.min() - margin, C_b.max())
        lower_legend(figure, axis)
    return figure


def _regions(axis: Axes, diagram: xr.Dataset, phase: np.ndarray) -> None:
    """Areas of the phases, bounded by χ_⊥ = 1 itself and not by the nearest points of the grid."""
    C_W, C_b, chi = diagram["C_W"].values, diagram["C_b"].values, diagram["chi_perp"].values
    divergent = phase == PHASE_NAMES.index("divergent")
    levels = [min(0.0, np.nanmin(chi)) - 1.0, 1.0, max(1.0, np.nanmax(chi)) + 1.0]
    # beyond χ = 1 the kernel of a piecewise linear activation grows without bound: the line bounds that phase too
    all_diverge = bool(divergent[chi > 1.0 + 1e-9].all())
    axis.contourf(C_W, C_b, chi, levels=levels, colors=[AREA_COLOURS[0], AREA_COLOURS[3 if all_diverge else 2]])
    if divergent.any() and not all_diverge:
        axis.contourf(C_W, C_b, divergent.astype(float), levels=[0.5, 1.5], colors=[AREA_COLOURS[3]])


def _contours(axis: Axes, diagram: xr.Dataset) -> None:
    chi = np.where(np.isfinite(diagram["K_star"].values), diagram["chi_perp"].values, np.nan)
    if not np.isfinite(chi).any():
        return
    levels = [x for x in (0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0) if np.nanmin(chi) < x < np.nanmax(chi)]
    if levels:
        drawn = axis.contour(diagram["C_W"], diagram["C_b"], chi, levels=levels, colors="0.5", linewidths=0.9)
        axis.clabel(drawn, fmt=lambda x: rf"$\chi_\perp$={x:g}", fontsize=10)


def _name_phases(axis: Axes, C_W: np.ndarray, C_b: np.ndarray, phase: np.ndarray) -> None:
    """The word of each phase, deep inside its region."""
    for index, name in enumerate(PHASE_NAMES):
        inside = np.pad(phase == index, 1)
        depth = np.asarray(distance_transform_edt(inside))[1:-1, 1:-1]
        if depth.max(initial=0.0) < 2.0:
            continue
        row, column = np.unravel_index(np.argmax(depth), depth.shape)
        box = {"boxstyle": "round,pad=0.2", "fc": PAPER, "ec": "none", "alpha": 0.8}
        axis.text(C_W[column], C_b[row], name, ha="center", va="center", style="italic", bbox=box, zorder=4)


def _draw_critical(axis: Axes, diagram: xr.Dataset) -> None:
    sigma, block = resolve(diagram.attrs["activation"]), block_of_diagram(diagram)
    with suppress(InvalidInput):  # then it is a single point, which follows
        _, C_W, C_b = critical_line(sigma, **block)
        axis.plot(C_W, C_b, color=COLOURS[0], label=r"$\chi_\perp = 1$")
    with suppress(InvalidInput):
        point = critical(sigma, **block)
        mark: Any = {"ms": 15, "color": COLOURS[0], "clip_on": False, "zorder": 5}
        if diagram["C_W"].max() >= point.C_W and point.C_b <= diagram["C_b"].max():
            axis.plot(point.C_W, point.C_b, "*", label="critical point", **mark)


def plot_learning_rates(rates: LearningRates) -> Figure:
    """λ_b and λ_W that make every layer count equally, and the shares of the layers in Θ before and after.

    Examples
    --------
    >>> import widthwise as ww
    >>> figure = plot_learning_rates(ww.criticality.equalise(ww.MLP([2, 16, 16, 1], "tanh")))
    >>> [axis.get_xlabel() for axis in figure.axes]
    ['layer', 'layer']
    """
    if not isinstance(rates, LearningRates):
        raise InvalidInput("rates", type(rates).__name__, "what widthwise.criticality.equalise returns")
    layer = np.arange(1, len(rates.lambda_b) + 1)
    with look():
        figure, (left, right) = panels(2, 2, 4.6, 3.6)
        for number, (name, values) in enumerate(((r"$\lambda_b$", rates.lambda_b), (r"$\lambda_W$", rates.lambda_W))):
            if max(values) > 0.0:
                marker = MARKERS[number] if len(layer) <= 30 else ""
                left.plot(layer, values, label=name, marker=marker, **style(number))
        left.set(yscale="log", ylabel="learning rate")
        left.legend()
        for number, (word, shares) in enumerate((("as given", rates.before), ("with these rates", rates.after))):
            how: dict[str, Any] = {"color": COLOURS[number + 1], "hatch": ("", "//")[number], "edgecolor": PAPER}
            right.bar(layer + 0.2 * (2 * number - 1), shares.layers, 0.4, label=word, **how)
        right.set_ylabel(r"contribution to $\Theta$")
        right.set_ylim(0.0, 1.35 * right.get_ylim()[1])
        right.legend(loc="upper right", ncols=2)
        for axis in (left, right):
            layer_ticks(axis, layer)
    return figure
