"""On separable data gradient flow never stops: it grows like log t in the direction of a support-vector machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import log_expit, logsumexp

from widthwise.labs.base import Claim, Lab, Outcome
from widthwise.labs.tools.convex import HardMargin, hard_margin
from widthwise.labs.tools.line_fits import slope_with_error
from widthwise.plots.style import COLOURS, LINES

FEATURES, WIDTH = 4, 16
#: Rescaled time to which the flow is integrated, and to which its straight end is continued.
INTEGRATED, CONTINUED = 1e5, 1e10
#: Directions agree when they differ by no more than 1e-6, four of these.
TOLERANCE = 2.5e-7
#: Steps of the two-layer networks, each of length STEP/(1 + ‖θ‖²) in rescaled time.
STEP, NETWORK_STEPS = 0.3, 20_000


def log_exponential(margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log ℓ and log(−ℓ') of ℓ = e^{−m}."""
    return -margins, -margins


def log_logistic(margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log ℓ and log(−ℓ') of ℓ = log(1 + e^{−m}), which also holds where e^{−m} underflows.

    >>> loss, slope = log_logistic(np.array([0.0, 2000.0]))
    >>> loss.round(6), slope.round(6)
    (array([-3.66513e-01, -2.00000e+03]), array([-6.93147e-01, -2.00000e+03]))
    """
    small = np.log(np.logaddexp(0.0, -np.minimum(margins, 30.0)))
    return np.where(margins > 30.0, -margins, small), log_expit(-margins)


LOSSES: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "exponential": log_exponential,
    "logistic": log_logistic,
}


@dataclass(frozen=True)
class Path:
    """w (times, features), log(1 + t) (times,) and −∇L/L at the last time (features,)."""

    w: np.ndarray
    log_time: np.ndarray
    velocity: np.ndarray
    weights: np.ndarray


def follow(Z: np.ndarray, loss: str) -> Path:
    """Gradient flow dw/dt = −∇L of L = Σ ℓ(z_i·w) from w = 0, in the time s of ds = L dt.

    In s the flow is dw/ds = Σ p_i z_i, p_i = −ℓ'_i/L, and u = log(1 + t) obeys du/ds = e^{−u}/L: nothing under- or
    overflows. Once the p_i have settled the path is straight, and is continued as such: w = w_1 + (s − s_1) dw/ds,
    −log L = −log L_1 + g(s − s_1) with g = ‖dw/ds‖², and t = 1/(gL).

    Parameters
    ----------
    Z : (points, features), inputs multiplied by their labels.
    loss : "exponential" or "logistic".

    Returns
    -------
    Path.

    >>> Z = np.array([[2.0, 0.0], [0.0, 1.0]])
    >>> end = follow(Z, "exponential").w[-1]
    >>> bool(np.allclose(end / end[1], hard_margin(Z).w, atol=1e-6))
    True
    """
    logs = LOSSES[loss]

    def weights(w):
        value, slope = logs(Z @ w)
        total = np.asarray(logsumexp(value))
        return np.exp(slope - total), total

    def velocity(_, state):
        p, total = weights(state[:-1])
        return np.append(p @ Z, np.exp(-total - state[-1]))

    times = np.minimum(np.logspace(-1, np.log10(INTEGRATED), 60), INTEGRATED)
    begin = np.zeros(Z.shape[1] + 1)
    found = solve_ivp(velocity, (0.0, INTEGRATED), begin, "LSODA", t_eval=times, rtol=1e-11, atol=1e-13)
    last = found.y[:-1, -1]
    p, total = weights(last)
    straight, ahead = p @ Z, np.logspace(np.log10(2 * INTEGRATED), np.log10(CONTINUED), 40) - INTEGRATED
    growth = float(straight @ straight)
    w = np.vstack([found.y[:-1].T, last + ahead[:, None] * straight])
    log_time = np.append(found.y[-1], -total + growth * ahead - np.log(growth))
    return Path(w, log_time, straight, p)


def draw_points(points: int, seed: int) -> np.ndarray:
    """Gaussian points with labels of a plane, moved apart by 0.3; inputs times labels."""
    random = np.random.default_rng([points, seed])
    normal = random.normal(size=FEATURES)
    normal /= np.linalg.norm(normal)
    X = random.normal(size=(points, FEATURES))
    labels = np.sign(X @ normal)
    return labels[:, None] * X + 0.3 * normal


def _unit(w: np.ndarray) -> np.ndarray:
    return w / np.linalg.norm(w, axis=-1, keepdims=True)


def _linear_claims(Z: np.ndarray, machine: HardMargin, loss: str, path: Path) -> list[Claim]:
    best, error = _unit(machine.w), np.linalg.norm(_unit(path.w) - _unit(machine.w), axis=1)
    share = machine.weights / machine.weights.sum()
    found = path.weights / path.weights.sum()
    even = np.where(share > 0, 1 / np.count_nonzero(share), 0.0)
    mean, late = _unit(Z.mean(axis=0)), path.log_time > 1e4
    norm = np.linalg.norm(path.w, axis=1)
    length = 1.0 / machine.margin
    return [
        Claim(
            f"direction − support-vector machine's, {loss}",
            0.0,
            float(error[-1]),
            TOLERANCE,
            wrong={"the mean of the classes": float(np.linalg.norm(mean - best))},
            exact=True,
        ),
        Claim(
            f"weights of the points − support vectors', {loss}",
            0.0,
            float(np.abs(found - share).max()),
            TOLERANCE,
            wrong={"support vectors weigh the same": float(np.abs(even - share).max())},
            exact=True,
        ),
        Claim(
            f"d‖w‖/d log t, {loss}",
            length,
            *slope_with_error(path.log_time[late], norm[late]),
            wrong={"the margin, not its inverse": 1 / length, "twice as fast": 2 * length},
            exact=True,
        ),
        Claim(
            f"exponent of the direction's error in log t, {loss}",
            -1.0,
            *slope_with_error(np.log(path.log_time[late]), np.log(error[late])),
            wrong={"-1/2": -0.5, "-2": -2.0},
            exact=True,
        ),
    ]


@partial(jax.jit, static_argnums=(2,))
def _train_network(W, Z_labels, steps: int):
    """−log L, ‖θ‖ and −θ·∇L/(‖θ‖‖∇L‖) along the flow ds = L dt of two ReLU layers without biases, by Heun steps."""
    X, labels = Z_labels

    def log_loss(theta):
        first, last = theta
        return jax.nn.logsumexp(-labels * (jax.nn.relu(X @ first.T) @ last))

    def move(theta, _):
        value, g = jax.value_and_grad(log_loss)(theta)
        square, gradient = (sum(jnp.sum(a**2) for a in tree) for tree in (theta, g))
        step = STEP / (1.0 + square)
        half = jax.tree.map(lambda a, b: a - step * b, theta, g)
        again = jax.grad(log_loss)(half)
        new = jax.tree.map(lambda a, b, c: a - step / 2 * (b + c), theta, g, again)
        inner = sum(jnp.sum(a * b) for a, b in zip(theta, g, strict=True))
        return new, (-value, jnp.sqrt(square), -inner / jnp.sqrt(square * gradient))

    return jax.lax.scan(move, W, None, length=steps)[1]


def _network_claims(points: int, seed: int) -> tuple[list[Claim], np.ndarray]:
    """The local slope of log(−log L) against log‖θ‖ once the data are fitted, which is 2 + d log γ̃/d log‖θ‖."""
    random = np.random.default_rng([points, seed, 1])
    X = random.choice([-1.0, 1.0], (points, 2)) * random.uniform(0.4, 1.5, (points, 2))
    labels = np.sign(X[:, 0] * X[:, 1])
    W = (0.5 * random.normal(size=(WIDTH, 2)), 0.5 * random.normal(size=WIDTH))
    score, norm, aligned = map(np.asarray, _train_network(W, (X, labels), NETWORK_STEPS))
    fitted = np.flatnonzero(score > 0.1)[:: NETWORK_STEPS // 300]
    slopes = np.diff(np.log(score[fitted])) / np.diff(np.log(norm[fitted]))
    claims = [
        Claim(
            "least d log(−log L)/d log‖θ‖, two ReLU layers",
            2.0,
            float(slopes.min()),
            1e-4,
            "at least",
            wrong={"a tenth more than the degree of homogeneity": 2.2},
            exact=True,
        )
    ]
    return claims, np.array([norm[fitted], score[fitted] / norm[fitted] ** 2, aligned[fitted]])


def experiment(points: int, seed: int) -> Outcome:
    Z = draw_points(points, seed)
    machine = hard_margin(Z)
    paths = {loss: follow(Z, loss) for loss in LOSSES}
    claims = [claim for loss, path in paths.items() for claim in _linear_claims(Z, machine, loss, path)]
    more, network = _network_claims(points, seed)
    curves = {
        loss: (path.log_time, np.linalg.norm(_unit(path.w) - _unit(machine.w), axis=1)) for loss, path in paths.items()
    }
    return Outcome((*claims, *more), curves | {"network": network})


def draw(figure: Any, outcomes: Mapping[int, list[Outcome]]) -> None:
    left, right = figure.subplots(1, 2)
    for number, (size, found) in enumerate(outcomes.items()):
        style = {"color": COLOURS[number % 4], "label": f"{size} points"}
        for loss, line in zip(LOSSES, LINES, strict=False):
            log_time, error = found[0].curves[loss]
            left.loglog(log_time, error, linestyle=line, **(style | {"label": f"{size} points, {loss}"}))
        norm, margin, _ = found[0].curves["network"]
        right.plot(norm, margin, linestyle=LINES[number % 4], **style)
    x = np.array([1e3, 1e8])
    left.loglog(x, 30 / x, color="black", linewidth=0.7, label=r"slope $-1$")
    left.set(xlabel=r"$\log(1+t)$", ylabel=r"$\|w/\|w\|-\hat w\|$", title="linear: direction − the machine's")
    left.legend(fontsize=7)
    title = "two ReLU layers: smoothed margin"
    right.set(xlabel=r"$\|\theta\|$", ylabel=r"$-\log L/\|\theta\|^2$", title=title)
    right.legend()


LAB = Lab(
    name="max-margin",
    title="gradient flow on separable data finds the largest margin, logarithmically slowly",
    statement=(
        "On separable data, with exponential or logistic loss, w(t) = ŵ log t + O(1) where ŵ is the "
        "least-norm vector with y x·ŵ ≥ 1 (theory §10): ‖w‖ grows like log t/γ, γ the largest margin, the "
        "direction tends to the support-vector machine's like 1/log t, and the points' shares of the gradient "
        "tend to its dual weights. For a homogeneous network of degree 2 the smoothed margin −log L/‖θ‖² "
        "never falls once the data are fitted."
    ),
    experiment=experiment,
    sizes=(10, 20, 40),
    quick_sizes=(10, 20),
    draw=draw,
)
