"""random ReLU networks have far fewer linear pieces than they could

One hidden layer cuts a plane like lines in general position, at most Σ_{i≤2} (n choose i) pieces; the sawtooth network
reaches 2^L. But a random network has on a segment only arccos(B_ab/√(B_aa B_bb))/π kinks per neuron (Kac–Rice), and
training keeps the number of that order (theory §10).
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.collections import PolyCollection
from matplotlib.pyplot import get_cmap

from widthwise import special
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import forward
from widthwise.labs.base import Outcome, Outcomes
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import extrapolated
from widthwise.labs.tools.classifier import train_network
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, marks

SIZES = (8, 16, 32)
SIZE = "width"
DEPTHS, NETWORKS = (2, 4), 600
A, B = np.array([-1.5, -0.5]), np.array([1.5, 1.0])
SQUARE = 2.0 * np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
POINTS, STEPS, RATE, TRAINED = 64, 500, 5e-3, 6
TEETH = 10
#: Colours for the direction of the slope in the figure.
SHADES = 6


def network(width: int, hidden: int) -> MLP:
    return MLP([2, *[width] * hidden, 1], "relu", C_b=0.3, C_W=2.0)


def _drawn_networks(net: MLP, seed: int, count: int) -> list[list[Any]]:
    """Networks drawn with the variances of theory §1, as numpy arrays."""
    rng = np.random.default_rng([seed, *net.widths])

    def normal(variance: float, *shape: int) -> Any:
        return np.sqrt(variance) * rng.normal(size=shape)

    def one():
        return [Weights(normal(d.C_W / d.inputs, d.outputs, d.inputs), normal(d.C_b, d.outputs)) for d in net.dense]

    return [one() for _ in range(count)]


@jax.jit
def _trained_by_adam(net: MLP, stacked: list[Weights], X, y) -> Any:
    """Full-batch Adam on the squared error, every network by itself; the network comes first in every array."""

    def loss(layers):
        return jnp.mean((forward(net, layers, X)[1][-1][:, 0] - y) ** 2)

    return jax.vmap(lambda start: train_network(loss, start, optax.adam(RATE), blocks=1, every=STEPS)[0])(stacked)


def experiment(width: int, seed: int) -> Outcome:
    first = _drawn_networks(network(2 * width, 1), seed, 1)[0][0]
    # lines that meet the square, and crossings of two lines inside it, pair by pair
    (W, b), d = first, SQUARE @ first.W.T + first.b
    lines = int(np.sum((d.max(axis=0) > 0.0) & (d.min(axis=0) < 0.0)))
    points = [np.linalg.solve(W[[i, j]], -b[[i, j]]) for i, j in itertools.combinations(range(len(b)), 2)]
    inside = sum(bool(np.all(np.abs(point) < SQUARE.max())) for point in points)
    flat = special.linear_pieces_in_polygon([first, (np.ones((1, 2 * width)), None)], SQUARE).count
    teeth = special.linear_pieces_on_segment(special.sawtooth_network(TEETH), [0.0], [1.0]).merged().count
    bound, few = special.hyperplane_regions(2 * width, 2), 2 * width + 1
    claims = [
        Claim.exactly("one layer in a square", 1 + lines + inside, flat, 0.1).rejects({"1 + lines": 1 + lines}),
        Claim.exactly("the same, hyperplane bound", bound, flat, 0.1, "at most").rejects({"n + 1": few}),
        Claim.exactly("sawtooth of ten layers", 2**TEETH, teeth, 0.1).rejects({"1 + neurons": 1 + 2 * TEETH}),
    ]
    curves: dict[str, Any] = {}
    for hidden in DEPTHS:
        random, kinks = _random(width, hidden, seed)
        trained, pieces = _trained_claims(width, hidden, seed)
        claims += [random, *trained]
        curves[f"{hidden} layers"] = {"kinks": kinks, "pieces": pieces}
    return Outcome(tuple(claims), curves)


def _kinks(layers: list[Weights]) -> int:
    return special.linear_pieces_on_segment(layers, A, B).count - 1


def _random(width: int, hidden: int, seed: int) -> tuple[Claim, float]:
    """Kinks per neuron on a segment of untrained networks."""
    kinks = {}
    for n in (width, 2 * width):
        kinks[n] = np.array([_kinks(one) for one in _drawn_networks(network(n, hidden), seed, NETWORKS)]) / (hidden * n)
    expected = special.expected_kinks(network(width, hidden), A, B) / width
    measured = extrapolated(kinks[width], kinks[2 * width], blocks=NETWORKS)
    wrong = {"one each": 1.0, "as in the first layer": expected[0]}
    claim = Claim(f"kinks per neuron, {hidden} layers", expected.mean(), *measured).rejects(wrong)
    return claim, float(kinks[width].mean())


def _trained_claims(width: int, hidden: int, seed: int) -> tuple[tuple[Claim, ...], list[list[special.PolygonPieces]]]:
    """Kinks on the segment and pieces in the square after training; the pieces before and after."""
    net, neurons = network(width, hidden), hidden * width
    start = _drawn_networks(net, seed, TRAINED)
    stacked = jax.tree.map(lambda *some: jnp.stack(some), *start)
    X = np.random.default_rng(seed).uniform(-1.5, 1.5, size=(POINTS, 2))
    y = np.sin(2.0 * X[:, 0]) * np.cos(2.0 * X[:, 1])
    trained = jax.tree.map(np.asarray, _trained_by_adam(net, stacked, X, y))
    end = [jax.tree.map(lambda array, k=k: array[k], trained) for k in range(TRAINED)]
    pieces = [[special.linear_pieces_in_polygon(one, SQUARE) for one in which] for which in (start, end)]
    kinks = [_kinks(one) / neurons for one in end]
    logs, bound = [np.log(some.count) for some in pieces[1]], np.log(special.region_bound(net.widths))
    claims = (
        Claim.mean(f"kinks per neuron, trained, {hidden} layers", 1.0, kinks, "at most").rejects({"a tenth": 0.1}),
        Claim.mean(f"log pieces, trained, {hidden} layers", bound, logs, "at most").rejects(
            {"1 + neurons": np.log(1 + neurons)}
        ),
    )
    return claims, pieces


def draw(figure: Any, outcomes: Outcomes) -> None:
    axes = figure.subplots(1, 3)
    sizes = list(outcomes)
    pictures = outcomes[sizes[0]][0].curves[f"{DEPTHS[0]} layers"]["pieces"]
    for axis, which, name in zip(axes, pictures, ("untrained", "trained"), strict=False):
        slopes = np.arctan2(which[0].maps[:, 0, 2], which[0].maps[:, 0, 1])
        colours = get_cmap("twilight_shifted", SHADES)
        polygons = which[0].polygons()
        style = {"edgecolors": "white", "linewidths": 0.4, "antialiased": False}
        axis.add_collection(PolyCollection(polygons, array=slopes, cmap=colours, **style))
        axis.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal", xticks=[-2, 0, 2], yticks=[-2, 0, 2], xlabel="$x_1$")
        axis.set_title(f"{name}: {len(polygons)} pieces")
    axes[0].set_ylabel("$x_2$")
    _draw_counts(axes[2], outcomes)


def _draw_counts(axis: Any, outcomes: Outcomes) -> None:
    sizes = list(outcomes)
    for number, hidden in enumerate(DEPTHS):
        neurons, points = hidden * np.array(sizes), marks(number) | {"color": COLOURS[1], "fillstyle": "none"}
        curves = [[o.curves[f"{hidden} layers"] for o in outcomes[size]] for size in sizes]
        for row, fill in enumerate(("none", "full")):
            counts = [np.mean([p.count for c in some for p in c["pieces"][row]]) for some in curves]
            label = f"square, {hidden} layers, {('untrained', 'trained')[row]}"
            axis.plot(neurons, counts, **(points | {"fillstyle": fill, "color": COLOURS[0]}), label=label)
        kinks = [np.mean([c["kinks"] for c in some]) for some in curves]
        expected = [1 + float(special.expected_kinks(network(size, hidden), A, B).sum()) for size in sizes]
        axis.plot(neurons, 1 + neurons * kinks, **points, label=f"segment, {hidden} layers, untrained")
        axis.plot(neurons, expected, color=COLOURS[1], linewidth=0.8, label=None if number else "Kac–Rice")
    grid = np.array([DEPTHS[0] * sizes[0], DEPTHS[-1] * sizes[-1]])
    axis.plot(grid, grid**2 / 2, color=COLOURS[3], linewidth=0.8, linestyle="--", label="neurons²/2")
    axis.set(xscale="log", yscale="log", xlabel="neurons", title="number of pieces")
    axis.set_xticks([], minor=True)
    ticks = sorted({hidden * size for hidden in DEPTHS for size in sizes})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.legend(fontsize=8, loc="upper left")
    axis.set_ylim(top=40 * grid[-1] ** 2)
