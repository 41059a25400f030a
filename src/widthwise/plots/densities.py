"""The law of the output: densities beside sampled networks, and the couplings of its action (theory §3, §6)."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

from widthwise.criticality.depth_width import LARGE_EFFECTS
from widthwise.errors import DivergentMoment, InvalidInput, NotDifferentiable
from widthwise.experiments.outputs import sample_outputs
from widthwise.flow.action.couplings import couplings
from widthwise.flow.action.output_density import output_density
from widthwise.flow.exact import exact_law
from widthwise.flow.one_input.deep_flow import single_flow
from widthwise.network import MLP, check_integer, check_one_input, check_seed, plain
from widthwise.network.validation import check_flag
from widthwise.plots.style import COLOURS, layer_ticks, look, lower_legend, panels, style

_GAUSSIAN = "Gaussian, infinite width"
#: Bins of the histogram, and how many standard deviations figures reach.
_BIN_COUNT, _FIGURE_REACH = 41, 5.0
#: Numbers of neurons, and layers, whose couplings are shown.
_MOST_NEURONS, _MOST_LAYERS = 32, 6


def plot_output_density(net: MLP, x: Any, networks: int = 20_000, seed: int = 0, exact: bool = True) -> Figure:
    """Histogram of one output at one input over sampled networks, and three densities; on the right over the Gaussian.

    The exact density is drawn where `exact_law` has one; `networks=0` draws no histogram.

    >>> import widthwise as ww
    >>> figure = plot_output_density(ww.MLP([2, 8, 8, 1], "tanh"), [1.0, 1.0], networks=200)
    >>> figure.axes[1].get_ylabel()
    'density / Gaussian'
    """
    net = plain(net, "a density of outputs")
    networks, seed, exact = check_integer("networks", networks, 0), check_seed(seed), check_flag("exact", exact)
    x = tuple(check_one_input(x, net.widths[0]).tolist())
    one = net.up_to(net.depth, 1)
    scale, z, curves = _densities(one, x, exact)
    gaussian = curves[_GAUSSIAN]
    with look():
        figure, (left, right) = panels(2, 2, 4.6, 3.7)
        if networks:
            _histogram(left, right, _samples(one, x, networks, seed), scale)
        for number, (name, values) in enumerate(curves.items()):
            left.plot(z, values, label=name, **style(number))
            right.plot(z, values / gaussian, **style(number))
        left.set(yscale="log", xlabel="output $z$", ylabel="density", xlim=(z[0], z[-1]))
        left.set_ylim(0.3 * gaussian.min(), 3.0 * gaussian.max())
        near = np.abs(z) < 3.5 * scale
        ratios = np.stack([values / gaussian for values in curves.values()])[:, near]
        # a density may be infinite at zero, where some networks are silent
        top = float(np.quantile(ratios[np.isfinite(ratios)], 0.99))
        right.set(xlabel="output $z$", ylabel="density / Gaussian", xlim=(-3.5 * scale, 3.5 * scale))
        right.set_ylim(0.0, 1.15 * max(top, 1.3))
        lower_legend(figure, left, across=2)
    return figure


@lru_cache(maxsize=8)
def _densities(net: MLP, x: tuple[float, ...], exact: bool) -> tuple[float, np.ndarray, dict[str, np.ndarray]]:
    """√K, outputs z, and densities there by name; kept, as a page draws them twice."""
    expansion = output_density(net, [x])
    scale = float(np.sqrt(expansion.couplings.K[0, 0]))
    z = np.linspace(-_FIGURE_REACH * scale, _FIGURE_REACH * scale, 401)
    curves = {_GAUSSIAN: norm.pdf(z, scale=scale), "to order 1/n": expansion.density(z)}
    if exact:
        with suppress(InvalidInput, NotDifferentiable, DivergentMoment):  # then there is none
            curves["exact at this width"] = exact_law(net, np.asarray(x)).density(z)
    return scale, z, curves


@lru_cache(maxsize=8)
def _samples(net: MLP, x: tuple[float, ...], networks: int, seed: int) -> np.ndarray:
    return sample_outputs(net, [x], networks, seed)[:, 0, 0]


def _histogram(left: Axes, right: Axes, samples: np.ndarray, scale: float) -> None:
    """Counts with √count as their error; bins without a count are left out."""
    edges = np.linspace(-_FIGURE_REACH * scale, _FIGURE_REACH * scale, _BIN_COUNT + 1)
    counts, _ = np.histogram(samples, edges)
    centre, width = 0.5 * (edges[1:] + edges[:-1]), edges[1] - edges[0]
    expected = np.diff(norm.cdf(edges, scale=scale)) / width
    seen = counts > 0
    density, error = counts / (len(samples) * width), np.sqrt(counts) / (len(samples) * width)
    how: dict[str, Any] = {"fmt": "o", "color": "0.35", "ms": 3, "lw": 0.8, "zorder": 1}
    left.errorbar(centre[seen], density[seen], error[seen], label=f"{len(samples)} sampled networks", **how)
    right.errorbar(centre[seen], (density / expected)[seen], (error / expected)[seen], **how)
    right.axhline(1.0, color=COLOURS[3], lw=0.6)


def plot_running(net: MLP, x: Any) -> Figure:
    """g_m K of m kept neurons for every hidden layer and the output, and V/(nK²) against the layer, at one input.

    >>> import widthwise as ww
    >>> figure = plot_running(ww.MLP([2, 64, 64, 1], "relu", C_W=2.0), [1.0, 1.0])
    >>> figure.axes[1].lines[0].get_ydata().round(6).tolist()                       # 5(l − 1)/64
    [0.0, 0.078125, 0.15625]
    """
    net = plain(net, "couplings")
    x = check_one_input(x, net.widths[0])
    ratio = single_flow(net, x, ("V",), False).ratios["V"] / np.asarray(net.widths[:-1])
    layers = np.arange(1, net.depth + 1)
    # at most so many, from the first hidden layer to the output
    shown = layers[1:][np.linspace(0, net.depth - 2, min(net.depth - 1, _MOST_LAYERS)).round().astype(int)]
    with look():
        figure, (left, right) = panels(2, 2, 4.6, 3.6)
        for number, layer in enumerate(shown):
            neurons = min(net.widths[layer], _MOST_NEURONS) if layer < net.depth else _MOST_NEURONS
            made = couplings(net.up_to(int(layer), neurons), x[None, :])
            m, g = made.running()
            label = "output layer" if layer == net.depth else f"layer {layer}"
            left.plot(m, g[:, 0, 0] * made.K[0, 0], label=label, **style(number))
        left.set(xlabel="neurons kept, $m$", ylabel="$g_m K$", title="quadratic coupling, times $K$")
        left.axhline(1.0, color="0.6", lw=0.8)
        left.legend()
        right.plot(layers, ratio, color=COLOURS[0], marker="o" if net.depth <= 30 else "")
        right.set(ylabel="$V/(nK^2)$", title="relative variance of the kernel")
        if ratio.max() > LARGE_EFFECTS:  # the threshold of `depth_width`
            right.axhspan(LARGE_EFFECTS, 1.05 * ratio.max(), color="0.5", alpha=0.15, lw=0)
            right.text(1.0, 1.02 * ratio.max(), "1/n is not small here", va="top", fontsize=10)
        layer_ticks(right, layers)
    return figure
