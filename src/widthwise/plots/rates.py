"""Learning rates by layer, and what each layer contributes to Θ before and after (theory §7)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from widthwise.criticality.learning_rates import LearningRates
from widthwise.plots.style import COLOURS, MARKERS, layer_ticks, look, panels, style


def plot_learning_rates(rates: LearningRates) -> Figure:
    """λ_b and λ_W that make every layer count equally, and the shares of the layers in Θ before and after.

    Returns
    -------
    A matplotlib Figure.

    >>> import widthwise as ww
    >>> figure = plot_learning_rates(ww.criticality.equalise(ww.MLP([2, 16, 16, 1], "tanh")))
    >>> [axis.get_xlabel() for axis in figure.axes]
    ['layer', 'layer']
    """
    layer = np.arange(1, rates.network.depth + 1)
    with look():
        figure, (left, right) = panels(2, 2, 3.9, 3.0)
        for number, (name, values) in enumerate(((r"$\lambda_b$", rates.lambda_b), (r"$\lambda_W$", rates.lambda_W))):
            if max(values) > 0.0:
                marker = MARKERS[number] if len(layer) <= 30 else ""
                left.plot(layer, values, label=name, marker=marker, **style(number))
        left.set(yscale="log", ylabel="learning rate")
        left.legend()
        for number, (word, shares) in enumerate((("as given", rates.before), ("with these rates", rates.after))):
            how: dict[str, Any] = {"color": COLOURS[number + 1], "hatch": ("", "//")[number], "edgecolor": "white"}
            right.bar(layer + 0.2 * (2 * number - 1), shares.layers, 0.4, label=word, **how)
        right.set_ylabel(r"contribution to $\Theta$")
        right.set_ylim(0.0, 1.35 * right.get_ylim()[1])
        right.legend(loc="upper right", ncols=2)
        for axis in (left, right):
            layer_ticks(axis, layer)
    return figure
