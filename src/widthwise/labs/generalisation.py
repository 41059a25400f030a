"""Test error to order 1/n against trained networks: where a finite width helps, where it hurts, and too much depth."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import digamma, polygamma
from scipy.stats import binom

from widthwise.experiments.sampler import network_key
from widthwise.experiments.training.labelled import train
from widthwise.inference.observables.labelled import expected_error
from widthwise.labs.base import Claim, Lab, Outcome, mean_and_error
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, LINES, MARKERS

#: Name, depth, C_b and C_W of the students. C_b = 0, C_W = 1 is critical for tanh.
STUDENTS: dict[str, tuple[int, float, float]] = {
    "critical, depth 2": (2, 0.0, 1.0),
    "off-critical, depth 2": (2, 0.1, 2.0),
}
NETWORKS = 1000
#: Width of the overly deep networks, how many, and time of their training in units of one over the mean kernel.
NARROW, DEEP_NETWORKS, TIME, STEPS = 8, 1000, 5.0, 40


def student(depth: int, C_b: float, C_W: float, width: int) -> MLP:
    """A tanh network whose layers share the learning rate."""
    return MLP([3, *[width] * (depth - 1), 1], "tanh", C_b=C_b, C_W=C_W, lambda_b=1 / depth, lambda_W=1 / depth)


@lru_cache
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Four training and three test inputs with targets of one teacher, tanh(x₁ − x₂ + x₃/2) + 0.3 x₂."""
    random = np.random.default_rng(0)
    X, X_test = random.normal(size=(4, 3)), random.normal(size=(3, 3))
    y, y_test = (np.tanh(x @ [1.0, -1.0, 0.5]) + 0.3 * x[:, 1] for x in (X, X_test))
    return X, y, X_test, y_test


@lru_cache
def coefficients(depth: int, C_b: float, C_W: float) -> tuple[float, float]:
    """Test error at infinite width and its coefficient of 1/n, averaged over the test inputs (theory §8)."""
    found = expected_error(student(depth, C_b, C_W, 64), *data(), order=1)
    return float(found["error0"].mean()), float(found["error1"].mean())


def measured_error(net: MLP, seed: int) -> tuple[float, float]:
    """Mean squared test error of networks that are trained by gradient flow to convergence, and its standard error."""
    X, y, X_test, y_test = data()
    found = train(net, X, y, X_test, networks=NETWORKS, seed=seed, progress=False)
    off, tests = found["mean"].values[0] - y_test, np.arange(len(y_test))
    error = off**2 + found["cov"].values[0, tests, 0, tests]
    # errors of the test inputs are added as if they were perfectly correlated, which is never too small
    scatter = 2 * np.abs(off) * found["mean_se"].values[0] + found["cov_se"].values[0, tests, 0, tests]
    return float(error.mean()), float(scatter.mean())


def _finite_width_claims(width: int, seed: int) -> list[Claim]:
    claims = []
    for name, setting in STUDENTS.items():
        zeroth, first = coefficients(*setting)
        found = measured_error(student(*setting, width), seed)
        wrong = {"infinite width": zeroth, "the opposite sign": zeroth - first / width}
        claims.append(Claim(f"test error, {name}", zeroth + first / width, *found, wrong=wrong))
    return claims


def layer_logarithm(width: int) -> tuple[float, float]:
    """Mean and variance of log((2/n) Σ relu(z)²) over n standard normal z of which one at least is positive.

    With k positive ones the sum is χ²_k, and k is binomial.

    >>> mean, variance = layer_logarithm(1000)
    >>> round(1000 * mean, 1), round(1000 * variance, 1)      # −5/(2n) and 5/n to leading order
    (-2.5, 5.0)
    """
    k = np.arange(1, width + 1)
    weight = binom.pmf(k, width, 0.5) / (1 - 0.5**width)
    mean = np.log(4.0 / width) + digamma(k / 2)
    average = weight @ mean
    return float(average), float(weight @ (polygamma(1, k / 2) + (mean - average) ** 2))


def deep_outputs(weights, X):
    """Output of a narrow ReLU network at one input, and Σσ² of its last hidden layer; weights (first, middle, last).

    The middle layers are scanned over, so that hundreds of them compile as one.
    """
    first, middle, last = weights
    hidden, _ = jax.lax.scan(lambda h, W: (jax.nn.relu(W @ h), None), jax.nn.relu(first @ X), middle)
    return last @ hidden, hidden @ hidden


@partial(jax.jit, static_argnums=(0,))
def _deep(depth: int, seed, rate):
    """Ĝ of each network at x = (1, 1), and its squared error, target 1, after gradient descent over that before."""
    shapes = ((NARROW, 2), (depth - 2, NARROW, NARROW), (NARROW,))
    fan_in = (2, NARROW, NARROW)

    def one(index):
        keys = jax.random.split(network_key(seed, index), 3)
        drawn = zip(keys, shapes, fan_in, strict=True)
        start = [jnp.sqrt(2.0 / n) * jax.random.normal(key, shape) for key, shape, n in drawn]

        def loss(weights):
            return 0.5 * (deep_outputs(weights, jnp.ones(2))[0] - 1.0) ** 2

        def step(weights, _):
            return [W - rate / n * g for W, n, g in zip(weights, fan_in, jax.grad(loss)(weights), strict=True)], None

        end = jax.lax.scan(step, start, None, length=STEPS)[0]
        return 2.0 / NARROW * deep_outputs(start, jnp.ones(2))[1], loss(end) / loss(start)

    return jax.vmap(one)(jnp.arange(DEEP_NETWORKS))


def _learned(depth: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """log Ĝ/K of the living networks, whether each network is alive, and the share that halves its error.

    At C_W = 2, C_b = 0 and x = (1, 1) every layer has K = 2 and adds 1 to the mean tangent kernel, λ_W = 1 and λ_b = 0:
    Θ = L (theory §2).
    """
    kernels, left = map(np.asarray, _deep(depth, seed, TIME / STEPS / depth))
    alive = kernels > 0.0
    return np.log(kernels[alive] / 2.0), alive, float(np.mean(left < 0.5))


def _deep_claims(depth: int, seed: int) -> tuple[list[Claim], dict[str, Any]]:
    """Networks of width 8, as deep as the size says."""
    logs, alive, learned = _learned(depth, seed)
    _, _, shallow = _learned(2, seed)
    mean, variance = layer_logarithm(NARROW)
    hidden, dead = depth - 1, 1 - (1 - 0.5**NARROW) ** (depth - 1)
    binomial = np.sqrt(dead * (1 - dead) / DEEP_NETWORKS)
    squares = mean_and_error((logs - hidden * mean) ** 2)
    lost, error = shallow - learned, np.sqrt(0.5 / DEEP_NETWORKS)
    claims = [
        Claim(
            "deep: mean of log Ĝ/K", hidden * mean, *mean_and_error(logs), wrong={"a typical network is average": 0.0}
        ),
        Claim("deep: variance of log Ĝ/K", hidden * variance, *squares, wrong={"5L/n": 5 * hidden / NARROW}),
        Claim("deep: share of dead networks", dead, float(1 - alive.mean()), binomial, wrong={"none": 0.0}),
        Claim("deep: share that learns at depth 2 but not here", 0.5, lost, error, "at least"),
    ]
    return claims, {"logs": logs, "learned": (shallow, learned)}


def experiment(width: int, seed: int) -> Outcome:
    """Students of one width; and networks of width 8 with as many layers."""
    deep, curves = _deep_claims(width, seed)
    return Outcome((*_finite_width_claims(width, seed), *deep), curves)


def draw(figure: Any, outcomes: Mapping[int, list[Outcome]]) -> None:
    left, right = figure.subplots(1, 2)
    widths = np.geomspace(min(outcomes) / 1.3, max(outcomes) * 1.3, 50)
    for number, (name, setting) in enumerate(STUDENTS.items()):
        zeroth, first = coefficients(*setting)
        found = [[o.claims[number] for o in outcomes[size]] for size in outcomes]
        means = [np.mean([c.measured for c in some]) for some in found]
        errors = [np.hypot.reduce([c.standard_error for c in some]) / len(some) for some in found]
        marks = {"color": COLOURS[number], "marker": MARKERS[number], "linestyle": "none", "capsize": 2}
        left.errorbar(list(outcomes), means, errors, label=name, **marks)
        left.plot(widths, zeroth + first / widths, color=COLOURS[number])
        left.axhline(zeroth, color=COLOURS[number], linewidth=0.7, linestyle=":")
    left.set(xscale="log", xlabel="width n", ylabel="test error", ylim=(0.0, None))
    left.set_xticks(list(outcomes), list(map(str, outcomes)))
    left.minorticks_off()
    left.set_title("lines: order 1/n; dotted: infinite width")
    left.legend(fontsize=7)
    for number, (depth, found) in enumerate(outcomes.items()):
        style = {"color": COLOURS[number % 4], "linestyle": LINES[number % 4], "histtype": "step", "density": True}
        share = found[0].curves["learned"][1]
        right.hist(found[0].curves["logs"], bins=40, label=f"{depth} layers: {share:.0%} learn", **style)
    right.axvline(0.0, color="black", linewidth=0.7)
    right.set(
        xlabel=r"$\log \hat G/K$ of one network", ylabel="density", title="width 8: deep networks are not average"
    )
    right.legend(fontsize=7)


LAB = Lab(
    name="generalisation",
    title="test error to order 1/n, and how depth beyond the width drowns learning",
    statement=(
        "The squared test error of networks trained by gradient flow is error0 + error1/n + O(1/n²), with "
        "coefficients of theory §8; the sign of error1 depends on the initialisation. In a ReLU network "
        "of width n the logarithm of the kernel of one input is a sum of independent terms, one a hidden "
        "layer, with negative mean: for L ≫ n a typical network is far from the average one, and a learning "
        "rate that suits the average trains few of them."
    ),
    experiment=experiment,
    sizes=(32, 64, 128),
    quick_sizes=(32, 64),
    draw=draw,
)
