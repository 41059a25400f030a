"""Running couplings: what integrating out neurons does, and how the quartic coupling grows with depth (theory §6)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from widthwise.flow.action.couplings import couplings
from widthwise.flow.one_input.deep_flow import single_flow
from widthwise.network import MLP
from widthwise.network.inputs import check_one_input
from widthwise.plots.style import COLOURS, layer_ticks, look, panels, style

#: Numbers of neurons that are shown.
_MOST = 32


def plot_running(net: MLP, x: Any) -> Figure:
    """g_m K of m kept neurons for every hidden layer and the output, and V/(nK²) against the layer, at one input.

    Returns
    -------
    A matplotlib Figure.

    >>> import widthwise as ww
    >>> figure = plot_running(ww.MLP([2, 64, 64, 1], "relu", C_W=2.0), [1.0, 1.0])
    >>> figure.axes[1].lines[0].get_ydata().round(6).tolist()                       # 5(l − 1)/64
    [0.0, 0.078125, 0.15625]
    """
    x = check_one_input(x, net.widths[0])
    ratio = single_flow(net, x, ("V",), False).ratios["V"] / np.asarray(net.widths[:-1])
    layers = np.arange(1, net.depth + 1)
    with look():
        figure, (left, right) = panels(2, 2, 3.9, 3.0)
        for number, layer in enumerate(_spread(layers[1:], 6)):
            neurons = min(net.widths[layer], _MOST) if layer < net.depth else _MOST
            made = couplings(net.up_to(int(layer), neurons), x[None, :])
            m, g = made.running()
            label = "output layer" if layer == net.depth else f"layer {layer}"
            left.plot(m, g[:, 0, 0] * made.K[0, 0], label=label, **style(number))
        left.set(xlabel="neurons kept, $m$", ylabel="$g_m K$", title="quadratic coupling, times $K$")
        left.axhline(1.0, color="0.6", lw=0.8)
        left.legend()
        right.plot(layers, ratio, color=COLOURS[0], marker="o" if net.depth <= 30 else "")
        right.set(ylabel="$V/(nK^2)$", title="relative variance of the kernel")
        layer_ticks(right, layers)
    return figure


def _spread(layers: np.ndarray, most: int) -> np.ndarray:
    if len(layers) <= most:
        return layers
    return layers[np.linspace(0, len(layers) - 1, most).round().astype(int)]
