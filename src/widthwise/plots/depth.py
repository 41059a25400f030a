"""K, Θ and every dimensionless ratio with depth, beside their laws of large depth (theory §7)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from widthwise.criticality.asymptotic_laws import asymptotics
from widthwise.criticality.critical import SCALE_INVARIANT, critical
from widthwise.criticality.kernel_fixed_points import fixed_points
from widthwise.errors import InvalidInput
from widthwise.network import MLP, plain
from widthwise.plots.style import COLOURS, layer_ticks, look, panels, symbol
from widthwise.results.labels import network_of
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

    Returns
    -------
    A matplotlib Figure.

    >>> import widthwise as ww
    >>> figure = plot_depth(ww.single_input(ww.MLP([1] + [64] * 49 + [1], "tanh"), [1.0], tensors=["V"]))
    >>> [axis.get_title(loc="left") for axis in figure.axes]
    ['$K$', '$V/K^2$']
    """
    names = [str(v) for v in flow.data_vars if not str(v).startswith("log_")]
    if "layer" not in flow.dims or "K" not in names or "a" in flow.dims:
        raise InvalidInput("flow", f"dimensions {dict(flow.sizes)}", "a Dataset of widthwise.single_input")
    law = laws(plain(network_of(flow), "plot_depth"), flow)
    deep = flow.sizes["layer"] >= _DEEP
    with look():
        figure, axes = panels(len(names), 5, 2.5, 2.2)
        for axis, name in zip(axes, names, strict=True):
            _panel(axis, name, flow, law, deep)
        figure.supxlabel("layer", fontsize=10)
        figure.suptitle(f"solid: exact recursion\ndashed: {law.title}", fontsize=9, x=0.01, ha="left")
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
    axis.set_title(("−" if sign < 0.0 else "") + _written(name, flow[name]))


def _written(name: str, variable: xr.DataArray) -> str:
    if not name.endswith("_ratio"):
        return symbol(name)
    scale = SCALE_TEXT[variable.attrs["K_power"], variable.attrs["Theta_power"]].translate(_TEX)
    return f"{symbol(name.removesuffix('_ratio'))[:-1]}/{scale}$"


def laws(net: MLP, flow: xr.Dataset) -> Law:
    """Power laws if the network is critical, uniform and of equal widths; else fixed points."""
    layer = flow["layer"].values.astype(float)
    point = _critical(net)
    if point is None:
        return _fixed(net, flow)
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


def _critical(net: MLP):
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


def _fixed(net: MLP, flow: xr.Dataset) -> Law:
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
