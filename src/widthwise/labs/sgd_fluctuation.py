"""In the steady state of stochastic gradient descent, fluctuation and dissipation balance exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.labs.base import Claim, Lab, Outcome, mean_and_error
from widthwise.plots.style import COLOURS, LINES, MARKERS

SAMPLES, FEATURES, HIDDEN, BATCH, RUNS = 16, 3, 3, 2, 24
#: Weight decay of the network, part of its loss, which keeps its parameters from wandering.
DECAY = 0.05
#: Steps between two readings, and lengths of the phases in units of 1/η: first steps, settling, readings.
STRIDE, FIRST, SETTLING, READING = 10, 4, 100, 1000


class Problem(NamedTuple):
    """The data of one seed and where every run starts."""

    X: jax.Array
    y: jax.Array
    start: jax.Array


def linear_loss(theta, x, y):
    """½(θ·x − y)²."""
    return 0.5 * (theta @ x - y) ** 2


def network_loss(theta, x, y):
    """½(z − y)² of one hidden layer of tanh with bias, and ½ decay ‖θ‖²."""
    W, rest = theta[: HIDDEN * FEATURES].reshape(HIDDEN, FEATURES), theta[HIDDEN * FEATURES :]
    z = rest[:HIDDEN] @ jnp.tanh(W @ x + rest[HIDDEN : 2 * HIDDEN]) + rest[-1]
    return 0.5 * (z - y) ** 2 + 0.5 * DECAY * theta @ theta


#: Loss of one sample and number of parameters.
MODELS: dict[str, tuple[Callable, int]] = {
    "linear": (linear_loss, FEATURES),
    "network": (network_loss, HIDDEN * (FEATURES + 2) + 1),
}


class Reading(NamedTuple):
    """What is averaged over the steady state: ∇L, θ·∇L, tr C̃, ‖∇L‖², and the second to fourth derivatives of L along
    the batch gradient g: g·Hg, ∂³L[g, g, g], ∂⁴L[g, g, g, g]."""

    gradient: jax.Array
    work: jax.Array
    noise: jax.Array
    square: jax.Array
    second: jax.Array
    third: jax.Array
    fourth: jax.Array


def _read(loss: Callable, problem: Problem, theta, key) -> Reading:
    each = jax.vmap(jax.grad(loss), (None, 0, 0))(theta, problem.X, problem.y)
    mean = each.mean(axis=0)
    square = mean @ mean
    noise = square + (jnp.sum(each**2, axis=1).mean() - square) / BATCH
    g = each[jax.random.randint(key, (BATCH,), 0, SAMPLES)].mean(axis=0)

    def along(s):
        return jax.vmap(loss, (None, 0, 0))(theta + s * g, problem.X, problem.y).mean()

    def slope(function):
        return lambda s: jax.jvp(function, (s,), (1.0,))[1]

    second = slope(slope(along))
    third = slope(second)
    return Reading(mean, theta @ mean, noise, square, second(0.0), third(0.0), slope(third)(0.0))


@partial(jax.jit, static_argnums=(0, 3, 4))
def _run(model: str, problem: Problem, eta, steps: int, stride: int, theta, keys):
    """Readings every `stride` steps of every run, (runs, readings, ...), and where the runs end."""
    loss, _ = MODELS[model]

    def step(theta, key):
        chosen = jax.random.randint(key, (BATCH,), 0, SAMPLES)
        g = jax.vmap(jax.grad(loss), (None, 0, 0))(theta, problem.X[chosen], problem.y[chosen]).mean(axis=0)
        return theta - eta * g, None

    def block(theta, key):
        for_reading, for_steps = jax.random.split(key)
        reading = _read(loss, problem, theta, for_reading)
        return jax.lax.scan(step, theta, jax.random.split(for_steps, stride))[0], reading

    def one(theta, key):
        return jax.lax.scan(block, theta, jax.random.split(key, steps // stride))

    return jax.vmap(one)(theta, keys)


def draw_problem(model: str, seed: int) -> Problem:
    """Targets of a noisy rule, which no parameters fit, and a start far from the steady state."""
    random = np.random.default_rng([seed, len(model)])
    X = random.uniform(-1.5, 1.5, (SAMPLES, FEATURES))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.7 * random.normal(size=SAMPLES)
    start = 1.5 * random.normal(size=MODELS[model][1])
    return Problem(jnp.asarray(X), jnp.asarray(y), jnp.asarray(start))


def _ratio(above, below) -> tuple[float, float]:
    """⟨above⟩/⟨below⟩ over runs, (runs,) each, and its standard error by the linearised scatter."""
    ratio = above.mean() / below.mean()
    return float(ratio), mean_and_error((above - ratio * below) / below.mean())[1]


def _first_steps(model: str, eta: float, readings: Reading, begin, end) -> Claim:
    """While it still trains the ratio of the two sides is 1 + (‖θ_0‖² − ‖θ_T‖²)/(η² Σ tr C̃): a sum that telescopes."""
    dissipated, noise = np.asarray(readings.work.sum(axis=1)), np.asarray(readings.noise.sum(axis=1))
    boundary = np.sum(np.asarray(begin) ** 2 - np.asarray(end) ** 2, axis=1) / (2 * eta)
    mean, _ = _ratio(dissipated, eta / 2 * noise)
    predicted, _ = _ratio(eta / 2 * noise + boundary, eta / 2 * noise)
    scatter = mean_and_error((dissipated - boundary - eta / 2 * noise) / (eta / 2 * noise.mean()))[1]
    what = f"θ·∇L over (η/2) tr C̃, first steps, {model}"
    return Claim(what, predicted, mean, scatter, wrong={"already in equilibrium": 1.0})


def _steady_claims(model: str, eta: float, mean: Reading) -> list[Claim]:
    """Claims from averages over the readings, (runs, ...)."""
    direction = np.asarray(mean.gradient) @ np.ones(mean.gradient.shape[1]) / np.sqrt(mean.gradient.shape[1])
    scale = float(np.sqrt(mean.square.mean() / mean.gradient.shape[1]))
    work, noise, square = (np.asarray(a) for a in (mean.work, mean.noise, mean.square))
    leading = eta / 2 * np.asarray(mean.second)
    series = leading - eta**2 / 6 * np.asarray(mean.third) + eta**3 / 24 * np.asarray(mean.fourth)
    zero, error = mean_and_error(direction / scale)
    double = {"η in place of η/2": 2.0}
    claims = [
        Claim(f"u·∇L over its root mean square, {model}", 0.0, zero, error, wrong={"a tenth": 0.1}),
        Claim(f"θ·∇L over (η/2) tr C̃, {model}", 1.0, *_ratio(work, eta / 2 * noise), wrong=double),
    ]
    if model == "linear":
        return [*claims, Claim("|∇L|² over (η/2) tr HC̃, linear", 1.0, *_ratio(square, leading), wrong=double)]
    return [*claims, Claim("|∇L|² over its value to order η³, network", 1.0, *_ratio(square, series), wrong=double)]


def experiment(inverse_rate: int, seed: int) -> Outcome:
    """One learning rate η = 1/`inverse_rate`."""
    eta, claims, curves = 1.0 / inverse_rate, [], {}
    for number, model in enumerate(MODELS):
        problem = draw_problem(model, seed)
        keys = jax.random.split(jax.random.PRNGKey(1000 * seed + 10 * inverse_rate + number), (3, RUNS))
        theta = jnp.tile(problem.start, (RUNS, 1))
        begun, first = _run(model, problem, eta, FIRST * inverse_rate, 1, theta, keys[0])
        settled, middle = _run(model, problem, eta, SETTLING * inverse_rate, STRIDE, begun, keys[1])
        _, readings = _run(model, problem, eta, READING * inverse_rate, STRIDE, settled, keys[2])
        mean = jax.tree.map(lambda a: a.mean(axis=1), readings)
        claims += [*_steady_claims(model, eta, mean), _first_steps(model, eta, first, theta, begun)]
        curves[model] = _windows(eta, first, middle, readings)
    return Outcome(tuple(claims), curves)


def _windows(eta: float, first: Reading, middle: Reading, last: Reading) -> np.ndarray:
    """Time ηt, and both sides of the first relation, averaged over windows that double in length."""
    step = np.concatenate([np.full(r.work.shape[1], s) for r, s in ((first, 1), (middle, STRIDE), (last, STRIDE))])
    time = eta * (np.cumsum(step) - step / 2)
    sides = [
        np.concatenate([np.asarray(getattr(r, name)).mean(axis=0) for r in (first, middle, last)])
        for name in ("work", "noise")
    ]
    edges = np.geomspace(time[0], time[-1] * 1.001, 13)
    inside = [(time >= a) & (time < b) for a, b in pairwise(edges)]
    rows = [
        [np.average(v[i], weights=step[i]) for v in (time, sides[0], eta / 2 * sides[1])] for i in inside if i.any()
    ]
    return np.array(rows).T


def draw(figure: Any, outcomes: Mapping[int, list[Outcome]]) -> None:
    for axis, model in zip(figure.subplots(1, 2), MODELS, strict=True):
        for number, (size, found) in enumerate(outcomes.items()):
            time, work, noise = found[0].curves[model]
            style = {"color": COLOURS[number % 4], "markersize": 4}
            name = f"$\\eta$ = 1/{size}"
            axis.loglog(time, noise, linestyle=LINES[0], **style, label=rf"$(\eta/2)\,$tr$\,\tilde C$, {name}")
            axis.loglog(
                time,
                np.abs(work),
                marker=MARKERS[number % 4],
                linestyle=":",
                **style,
                label=rf"$|\theta\cdot\nabla L|$, {name}",
            )
        axis.set(xlabel=r"time $\eta t$", title=f"{model}: both sides of the relation")
    figure.axes[-1].legend(fontsize=7)


LAB = Lab(
    name="sgd-fluctuation",
    title="fluctuation and dissipation balance in the steady state of stochastic gradient descent",
    statement=(
        "Where ⟨θ⟩, ⟨‖θ‖²⟩ and ⟨L⟩ no longer change under θ → θ − ηg, g the gradient of a batch, ⟨∇L⟩ = 0, "
        "⟨θ·∇L⟩ = (η/2)⟨tr C̃⟩ with C̃ the second moment of g (theory §10), both exactly, and ⟨‖∇L‖²⟩ = "
        "(η/2)⟨tr HC̃⟩ − (η²/6)⟨∂³L[g,g,g]⟩ + (η³/24)⟨∂⁴L[g,g,g,g]⟩ − …, of which quadratic losses keep the "
        "first term. Before that the two sides of the second relation differ by (‖θ_0‖² − ‖θ_T‖²)/(2ηT): it "
        "tells whether training has settled."
    ),
    experiment=experiment,
    sizes=(4, 8, 16),
    quick_sizes=(4, 8),
    draw=draw,
)
