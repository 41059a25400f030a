"""Linear pieces of ReLU networks: what they can have, what random ones have, and what training does to the number."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.collections import PolyCollection
from matplotlib.pyplot import get_cmap

from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import forward
from widthwise.labs.base import Claim, Lab, Outcome, mean_and_error
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, MARKERS
from widthwise.special.linear_pieces import (
    expected_kinks,
    hyperplane_regions,
    linear_pieces_on_segment,
    region_bound,
    sawtooth_network,
)
from widthwise.special.polygon_pieces import PolygonPieces, linear_pieces_in_polygon

DEPTHS, NETWORKS = (2, 4), 600
A, B = np.array([-1.5, -0.5]), np.array([1.5, 1.0])
SQUARE = 2.0 * np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
POINTS, STEPS, RATE, TRAINED = 64, 500, 5e-3, 6
TEETH = 10
#: Colours for the direction of the slope in the figure.
SHADES = 6


def network(width: int, hidden: int) -> MLP:
    return MLP([2, *[width] * hidden, 1], "relu", C_b=0.3, C_W=2.0)


def _draw(net: MLP, seed: int, count: int) -> list[list[Any]]:
    """Networks drawn with the variances of theory §1, as numpy arrays."""
    rng = np.random.default_rng([seed, *net.widths])
    sizes = list(zip(itertools.pairwise(net.widths), net.C_b, net.C_W, strict=True))

    def one():
        return [Weights(_normal(rng, C_W / n, (m, n)), _normal(rng, C_b, (m,))) for (n, m), C_b, C_W in sizes]

    return [one() for _ in range(count)]


def _normal(rng: np.random.Generator, variance: float, shape: tuple[int, ...]) -> Any:
    return np.sqrt(variance) * rng.normal(size=shape)


@partial(jax.jit, static_argnums=(0,))
def _train(net: MLP, stacked: list[Weights], X, y) -> Any:
    """Full-batch Adam on the squared error, every network by itself; the network comes first in every array."""
    optimiser = optax.adam(RATE)

    def loss(layers):
        return jnp.mean((forward(net, layers, X)[1][-1][:, 0] - y) ** 2)

    def one(layers):
        def step(carry, _):
            now, state = carry
            updates, state = optimiser.update(jax.grad(loss)(now), state)
            return (optax.apply_updates(now, updates), state), None

        return jax.lax.scan(step, (layers, optimiser.init(layers)), None, STEPS)[0][0]

    return jax.vmap(one)(stacked)


def _crossings(W: np.ndarray, b: np.ndarray) -> tuple[int, int]:
    """Lines that meet the square, and crossings of two lines inside it, pair by pair."""
    d = SQUARE @ W.T + b
    lines = int(np.sum((d.max(axis=0) > 0.0) & (d.min(axis=0) < 0.0)))
    pairs = itertools.combinations(range(len(b)), 2)
    points = [np.linalg.solve(W[[i, j]], -b[[i, j]]) for i, j in pairs]
    return lines, sum(bool(np.all(np.abs(point) < SQUARE.max())) for point in points)


def experiment(width: int, seed: int) -> Outcome:
    first = _draw(network(2 * width, 1), seed, 1)[0][0]
    lines, inside = _crossings(*first)
    flat = linear_pieces_in_polygon([first, (np.ones((1, 2 * width)), None)], SQUARE).count
    teeth = linear_pieces_on_segment(sawtooth_network(TEETH), [0.0], [1.0]).merged().count
    bound, few = hyperplane_regions(2 * width, 2), 2 * width + 1
    claims = [
        Claim("one layer in a square", 1 + lines + inside, flat, 0.1, exact=True, wrong={"1 + lines": 1 + lines}),
        Claim("the same, hyperplane bound", bound, flat, 0.1, "at most", exact=True, wrong={"n + 1": few}),
        Claim("sawtooth of ten layers", 2**TEETH, teeth, 0.1, exact=True, wrong={"1 + neurons": 1 + 2 * TEETH}),
    ]
    curves: dict[str, Any] = {}
    for hidden in DEPTHS:
        random, kinks = _random(width, hidden, seed)
        trained, pieces = _trained(width, hidden, seed)
        claims += [random, *trained]
        curves[f"{hidden} layers"] = {"kinks": kinks, "pieces": pieces}
    return Outcome(tuple(claims), curves)


def _kinks(layers: list[Weights]) -> int:
    return linear_pieces_on_segment(layers, A, B).count - 1


def _random(width: int, hidden: int, seed: int) -> tuple[Claim, float]:
    """Kinks per neuron on a segment of untrained networks."""
    kinks = {}
    for n in (width, 2 * width):
        kinks[n] = np.array([_kinks(one) for one in _draw(network(n, hidden), seed, NETWORKS)]) / (hidden * n)
    expected = expected_kinks(network(width, hidden), A, B) / width
    # twice the width minus once: the term of order 1/n cancels
    measured = mean_and_error(2 * kinks[2 * width] - kinks[width])
    wrong = {"one each": 1.0, "as in the first layer": float(expected[0])}
    claim = Claim(f"kinks per neuron, {hidden} layers", float(expected.mean()), *measured, wrong=wrong)
    return claim, float(kinks[width].mean())


def _task(seed: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).uniform(-1.5, 1.5, size=(POINTS, 2))
    return X, np.sin(2.0 * X[:, 0]) * np.cos(2.0 * X[:, 1])


def _trained(width: int, hidden: int, seed: int) -> tuple[tuple[Claim, ...], list[list[PolygonPieces]]]:
    """Kinks on the segment and pieces in the square after training; the pieces before and after."""
    net, neurons = network(width, hidden), hidden * width
    start = _draw(net, seed, TRAINED)
    stacked = jax.tree.map(lambda *some: jnp.stack(some), *start)
    trained = jax.tree.map(np.asarray, _train(net, stacked, *map(jnp.asarray, _task(seed))))
    end = [jax.tree.map(lambda array, k=k: array[k], trained) for k in range(TRAINED)]
    pieces = [[linear_pieces_in_polygon(one, SQUARE) for one in which] for which in (start, end)]
    kinks = mean_and_error([_kinks(one) / neurons for one in end])
    logs = mean_and_error([np.log(some.count) for some in pieces[1]])
    bound, few = float(np.log(region_bound(net.widths))), float(np.log(1 + neurons))
    claims = (
        Claim(f"kinks per neuron, trained, {hidden} layers", 1.0, *kinks, kind="at most", wrong={"a tenth": 0.1}),
        Claim(f"log pieces, trained, {hidden} layers", bound, *logs, kind="at most", wrong={"1 + neurons": few}),
    )
    return claims, pieces


def draw(figure: Any, outcomes: Mapping[int, list[Outcome]]) -> None:
    axes = figure.subplots(1, 3)
    sizes = list(outcomes)
    pictures = outcomes[sizes[0]][0].curves[f"{DEPTHS[0]} layers"]["pieces"]
    for axis, which, name in zip(axes, pictures, ("untrained", "trained"), strict=False):
        slopes = np.arctan2(which[0].maps[:, 0, 2], which[0].maps[:, 0, 1])
        colours = get_cmap("twilight_shifted", SHADES)
        polygons = which[0].polygons()
        style = {"edgecolors": "white", "linewidths": 0.4, "antialiased": False}
        axis.add_collection(PolyCollection(polygons, array=slopes, cmap=colours, **style))
        axis.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal", xlabel="$x_1$", title=f"{name}: {len(polygons)} pieces")
        axis.set_xticks([-2, 0, 2])
        axis.set_yticks([-2, 0, 2])
    axes[0].set_ylabel("$x_2$")
    _draw_counts(axes[2], outcomes)


def _draw_counts(axis: Any, outcomes: Mapping[int, list[Outcome]]) -> None:
    sizes = list(outcomes)
    for number, hidden in enumerate(DEPTHS):
        neurons = hidden * np.array(sizes)
        curves = [[o.curves[f"{hidden} layers"] for o in outcomes[size]] for size in sizes]
        for row, fill in enumerate(("none", "full")):
            counts = [np.mean([p.count for c in some for p in c["pieces"][row]]) for some in curves]
            axis.plot(neurons, counts, marker=MARKERS[number], fillstyle=fill, color=COLOURS[0], linestyle="none",
                      label=f"square, {hidden} layers, {('untrained', 'trained')[row]}")  # fmt: skip
        kinks = [np.mean([c["kinks"] for c in some]) for some in curves]
        expected = [1 + float(expected_kinks(network(size, hidden), A, B).sum()) for size in sizes]
        axis.plot(neurons, 1 + neurons * kinks, marker=MARKERS[number], color=COLOURS[1], linestyle="none",
                  fillstyle="none", label=f"segment, {hidden} layers, untrained")  # fmt: skip
        axis.plot(neurons, expected, color=COLOURS[1], linewidth=0.8, label=None if number else "Kac–Rice")
    grid = np.array([DEPTHS[0] * sizes[0], DEPTHS[-1] * sizes[-1]])
    axis.plot(grid, grid**2 / 2, color=COLOURS[3], linewidth=0.8, linestyle="--", label="neurons²/2")
    axis.set(xscale="log", yscale="log", xlabel="neurons", title="number of pieces")
    ticks = sorted({hidden * size for hidden in DEPTHS for size in sizes})
    axis.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
    axis.set_xticks([], minor=True)
    axis.legend(fontsize=5.5, loc="upper left")
    axis.set_ylim(top=40 * grid[-1] ** 2)


LAB = Lab(
    name="linear-regions",
    title="random ReLU networks have far fewer linear pieces than they could",
    statement=(
        "One hidden layer cuts a plane like lines in general position, at most Σ_{i≤2} (n choose i) pieces; the "
        "sawtooth network reaches 2^L. But a random network has on a segment only arccos(B_ab/√(B_aa B_bb))/π "
        "kinks per neuron (Kac–Rice), and training keeps the number of that order (theory §10)."
    ),
    experiment=experiment,
    sizes=(8, 16, 32),
    quick_sizes=(8, 16),
    draw=draw,
)
