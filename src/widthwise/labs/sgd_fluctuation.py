"""fluctuation and dissipation balance in the steady state of stochastic gradient descent

Where ⟨θ⟩, ⟨‖θ‖²⟩ and ⟨L⟩ no longer change under θ → θ − ηg, g the gradient of a batch, ⟨∇L⟩ = 0, ⟨θ·∇L⟩ = (η/2)⟨tr C̃⟩
with C̃ the second moment of g (theory §10), both exactly, and ⟨‖∇L‖²⟩ = (η/2)⟨tr HC̃⟩ − (η²/6)⟨∂³L[g,g,g]⟩ +
(η³/24)⟨∂⁴L[g,g,g,g]⟩ − …, of which quadratic losses keep the first term. Before that the two sides of the second
relation differ by (‖θ_0‖² − ‖θ_T‖²)/(2ηT): it tells whether training has settled. Where a network misses its labels by
noise alone the covariance of single gradients is 2L times the Hessian; where it cannot fit its rule it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.labs.base import Outcome, Outcomes
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import mean_and_error, ratio_and_error
from widthwise.plots.style import marks

SIZES = (4, 8, 16)
SIZE = "inverse_rate"
SAMPLES, FEATURES, HIDDEN, BATCH, RUNS = 16, 3, 3, 2, 24
#: Weight decay of the network, part of its loss, which keeps its parameters from wandering.
DECAY = 0.05
#: Steps between two readings, and lengths of the phases in units of 1/η: first steps, settling, readings.
STRIDE, FIRST, SETTLING, READING = 10, 4, 100, 1000
#: Shape of the noise: fits, inputs of each, deviation of the labels, rate and steps of descent to the minimum.
FITS, INPUTS, LABEL_NOISE, FIT_RATE, FIT_STEPS = 16, 1200, 0.5, 0.1, 2000


class NoisyProblem(NamedTuple):
    """The data of one seed and where every run starts."""

    X: jax.Array
    y: jax.Array
    start: jax.Array


def network_output(theta, x):
    """One hidden layer of tanh with bias."""
    W, rest = theta[: HIDDEN * FEATURES].reshape(HIDDEN, FEATURES), theta[HIDDEN * FEATURES :]
    return rest[:HIDDEN] @ jnp.tanh(W @ x + rest[HIDDEN : 2 * HIDDEN]) + rest[-1]


def network_loss(theta, x, y, decay=DECAY):
    """½(z − y)² of the network, and ½ decay ‖θ‖²."""
    return 0.5 * (network_output(theta, x) - y) ** 2 + 0.5 * decay * theta @ theta


#: Loss of one sample and number of parameters.
MODELS: dict[str, tuple[Callable, int]] = {
    "linear": (lambda theta, x, y: 0.5 * (theta @ x - y) ** 2, FEATURES),
    "network": (network_loss, HIDDEN * (FEATURES + 2) + 1),
}


class SteadyReading(NamedTuple):
    """What is averaged over the steady state: ∇L, θ·∇L, tr C̃, ‖∇L‖², the second to fourth derivatives of L along the
    batch gradient g: g·Hg, ∂³L[g, g, g], ∂⁴L[g, g, g, g], and (L(θ − ηg) − L(θ))/η + g·∇L, the series of all orders.
    """

    gradient: jax.Array
    work: jax.Array
    noise: jax.Array
    square: jax.Array
    second: jax.Array
    third: jax.Array
    fourth: jax.Array
    all_orders: jax.Array


def _steady_reading(loss: Callable, problem: NoisyProblem, eta, theta, key) -> SteadyReading:
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
    all_orders = (along(-eta) - along(0.0)) / eta + g @ mean
    return SteadyReading(mean, theta @ mean, noise, square, second(0.0), third(0.0), slope(third)(0.0), all_orders)


@partial(jax.jit, static_argnums=(0, 3, 4))
def _noisy_descent(model: str, problem: NoisyProblem, eta, steps: int, stride: int, theta, keys):
    """Readings every `stride` steps of every run, (runs, readings, ...), and where the runs end."""
    loss, _ = MODELS[model]

    def step(theta, key):
        chosen = jax.random.randint(key, (BATCH,), 0, SAMPLES)
        g = jax.vmap(jax.grad(loss), (None, 0, 0))(theta, problem.X[chosen], problem.y[chosen]).mean(axis=0)
        return theta - eta * g, None

    def block(theta, key):
        for_reading, for_steps = jax.random.split(key)
        reading = _steady_reading(loss, problem, eta, theta, for_reading)
        return jax.lax.scan(step, theta, jax.random.split(for_steps, stride))[0], reading

    def one(theta, key):
        return jax.lax.scan(block, theta, jax.random.split(key, steps // stride))

    return jax.vmap(one)(theta, keys)


def draw_problem(model: str, seed: int) -> NoisyProblem:
    """Targets of a noisy rule, which no parameters fit, and a start far from the steady state."""
    random = np.random.default_rng([seed, len(model)])
    X = random.uniform(-1.5, 1.5, (SAMPLES, FEATURES))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.7 * random.normal(size=SAMPLES)
    return NoisyProblem(*map(jnp.asarray, (X, y, 1.5 * random.normal(size=MODELS[model][1]))))


def _first_steps(model: str, eta: float, readings: SteadyReading, begin, end) -> Claim:
    """While it still trains the ratio of the two sides is 1 + (‖θ_0‖² − ‖θ_T‖²)/(η² Σ tr C̃): a sum that telescopes."""
    dissipated, noise = readings.work.sum(axis=1), eta / 2 * readings.noise.sum(axis=1)
    boundary = np.sum(begin**2 - end**2, axis=1) / (2 * eta)
    mean, predicted = (float(side.mean() / noise.mean()) for side in (dissipated, noise + boundary))
    found = mean_and_error((dissipated - boundary - noise) / noise.mean())._replace(value=mean)
    what = f"θ·∇L over (η/2) tr C̃, first steps, {model}"
    return Claim(what, predicted, *found).rejects({"already in equilibrium": 1.0})


def _steady_claims(model: str, eta: float, mean: SteadyReading) -> list[Claim]:
    """Claims from averages over the readings, (runs, ...)."""
    size = mean.gradient.shape[1]
    along = mean.gradient @ np.ones(size) / np.sqrt(size) / np.sqrt(mean.square.mean() / size)
    balance, series, what = ratio_and_error(mean.work, eta / 2 * mean.noise), eta / 2 * mean.second, "(η/2) tr HC̃"
    margin = 0.0
    if model == "network":
        series, what = series - eta**2 / 6 * mean.third + eta**3 / 24 * mean.fourth, "its value to order η³"
        margin = abs(float(mean.all_orders.mean() / series.mean()) - 1.0)  # the orders that the series leaves out
    dissipated = ratio_and_error(mean.square, series)
    double = {"η in place of η/2": 2.0}
    return [
        Claim.mean(f"u·∇L over its root mean square, {model}", 0.0, along).rejects({"a tenth": 0.1}),
        Claim(f"θ·∇L over (η/2) tr C̃, {model}", 1.0, *balance).rejects(double),
        Claim(f"|∇L|² over {what}, {model}", 1.0, *dissipated, margin=margin).rejects(double),
    ]


@jax.jit
def _noise_shape(theta, X, y):
    """At the minimum below θ: the cosine of C, the covariance of single gradients, and H; and tr C/(2L tr H)."""
    loss = partial(network_loss, decay=0.0)

    def mean_loss(theta):
        return jax.vmap(loss, (None, 0, 0))(theta, X, y).mean()

    theta = jax.lax.fori_loop(0, FIT_STEPS, lambda _, theta: theta - FIT_RATE * jax.grad(mean_loss)(theta), theta)
    each, H = jax.vmap(jax.grad(loss), (None, 0, 0))(theta, X, y), jax.hessian(mean_loss)(theta)
    C = jnp.cov(each.T, bias=True)
    cosine = jnp.sum(C * H) / jnp.sqrt(jnp.sum(C**2) * jnp.sum(H**2))
    return cosine, jnp.trace(C) / (2.0 * mean_loss(theta) * jnp.trace(H))


def _noise_shape_claims(inverse_rate: int, seed: int) -> list[Claim]:
    """C = Σ r²JJᵀ/N: where r is noise, independent of J, it is ⟨r²⟩ΣJJᵀ/N = 2LH; and a rule that cannot be fitted."""
    random, size = np.random.default_rng([seed, inverse_rate, 3]), MODELS["network"][1]
    X, theta = random.uniform(-1.5, 1.5, (FITS, INPUTS, FEATURES)), random.normal(size=(FITS, size))
    rule = np.asarray(jax.vmap(jax.vmap(network_output, (None, 0)))(theta, X))
    noisy = rule + LABEL_NOISE * random.normal(size=rule.shape)
    shapes = jax.vmap(_noise_shape)
    cosine, ratio = map(np.asarray, shapes(theta, X, noisy))
    other_cosine, other_ratio = map(np.asarray, shapes(theta, X, 2.0 * np.sin(3.0 * X[..., 0]) * X[..., 1]))
    other = "a rule that it cannot fit"
    # fitting takes the share parameters/inputs of the noise, more of it where gradients are large
    return [
        Claim.mean("label noise: cosine of C and H", 0.98, cosine, "at least").fails_for(
            {other: mean_and_error(other_cosine)}
        ),
        Claim("label noise: tr C over 2L tr H", 1.0, *mean_and_error(ratio), margin=size / INPUTS).fails_for(
            {other: mean_and_error(other_ratio)}
        ),
    ]


def experiment(inverse_rate: int, seed: int) -> Outcome:
    """One learning rate η = 1/`inverse_rate`."""
    eta, claims, curves = 1.0 / inverse_rate, [], {}
    for number, model in enumerate(MODELS):
        problem = draw_problem(model, seed)
        keys = jax.random.split(jax.random.PRNGKey(1000 * seed + 10 * inverse_rate + number), (3, RUNS))
        ends, readings = [np.tile(problem.start, (RUNS, 1))], []
        for phase, stride, own in zip((FIRST, SETTLING, READING), (1, STRIDE, STRIDE), keys, strict=True):
            found = _noisy_descent(model, problem, eta, phase * inverse_rate, stride, ends[-1], own)
            end, reading = jax.tree.map(np.asarray, found)
            ends.append(end)
            readings.append(reading)
        mean = jax.tree.map(lambda a: a.mean(axis=1), readings[-1])
        claims += [*_steady_claims(model, eta, mean), _first_steps(model, eta, readings[0], *ends[:2])]
        curves[model] = _windows(eta, readings)
    return Outcome((*claims, *_noise_shape_claims(inverse_rate, seed)), curves)


def _windows(eta: float, phases: list[SteadyReading]) -> np.ndarray:
    """Time ηt, and both sides of the first relation, averaged over windows that double in length."""
    work, noise = (np.concatenate([getattr(r, name).mean(axis=0) for r in phases]) for name in ("work", "noise"))
    step = np.repeat((1, STRIDE, STRIDE), [r.work.shape[1] for r in phases])
    time = eta * (np.cumsum(step) - step / 2)
    edges = np.geomspace(time[0], time[-1] * 1.001, 13)
    inside = [(time >= a) & (time < b) for a, b in pairwise(edges)]
    curves = (time, work, eta / 2 * noise)
    return np.array([[np.average(v[i], weights=step[i]) for v in curves] for i in inside if i.any()]).T


def draw(figure: Any, outcomes: Outcomes) -> None:
    for axis, model in zip(figure.subplots(1, 2), MODELS, strict=True):
        for number, (size, found) in enumerate(outcomes.items()):
            time, work, noise = found[0].curves[model]
            points, name = marks(number) | {"linestyle": ":", "markersize": 4}, rf"$\eta$ = 1/{size}"
            axis.loglog(time, noise, color=points["color"], label=rf"$(\eta/2)\,$tr$\,\tilde C$, {name}")
            axis.loglog(time, np.abs(work), **points, label=rf"$|\theta\cdot\nabla L|$, {name}")
        axis.set(xlabel=r"time $\eta t$", title=f"{model}: both sides of the relation")
    figure.axes[-1].legend(fontsize=9)
