"""gradient flow on separable data finds the largest margin, logarithmically slowly

On separable data, with exponential or logistic loss, w(t) = ŵ log t + O(1) where ŵ is the least-norm vector with y x·ŵ
≥ 1 (theory §10): ‖w‖ grows like log t/γ, γ the largest margin, the direction tends to the support-vector machine's like
1/log t, and the points' shares of the gradient tend to its dual weights. The same holds with a bias, an input that is
always one, and for features of a kernel, but not for losses that fall like a power. For a homogeneous network of degree
2 the smoothed margin −log L/‖θ‖² never falls once the data are fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import nnls
from scipy.special import log_expit, logsumexp

from widthwise.errors import InvalidInput
from widthwise.labs.base import Outcome, Outcomes
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import LabEstimate, slope_and_drift
from widthwise.plots.style import COLOURS, LINES, style

SIZES = (10, 20, 40)
SIZE = "points"
FEATURES, WIDTH = 4, 16
#: Rescaled time to which the flow is integrated; directions agree when they differ by no more than the tolerance.
INTEGRATED, TOLERANCE = 1e5, 1e-6
#: Steps of the two-layer networks, each of length STEP/(1 + ‖θ‖²) in rescaled time.
STEP, NETWORK_STEPS = 0.3, 20_000


def log_logistic(margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log ℓ and log(−ℓ') of ℓ = log(1 + e^{−m}), which also holds where e^{−m} underflows.

    >>> loss, slope = log_logistic(np.array([0.0, 2000.0]))
    >>> loss.round(6), slope.round(6)
    (array([-3.66513e-01, -2.00000e+03]), array([-6.93147e-01, -2.00000e+03]))
    """
    small = np.log(np.logaddexp(0.0, -np.minimum(margins, 30.0)))
    return np.where(margins > 30.0, -margins, small), log_expit(-margins)


#: log ℓ and log(−ℓ') as functions of the margins m; for ℓ = e^{−m} both are −m.
LOSSES: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "exponential": lambda margins: (-margins, -margins),
    "logistic": log_logistic,
    "power": lambda margins: (
        -TAIL_POWER * np.log1p(margins),
        math.log(TAIL_POWER) - (TAIL_POWER + 1) * np.log1p(margins),
    ),
}
#: Losses with an exponential tail, and the exponent of the one that falls like a power of 1 + m.
EXPONENTIAL_TAILS, TAIL_POWER = ("exponential", "logistic"), 2


@dataclass(frozen=True)
class Path:
    """w (times, features), log(1 + t) (times,), and the points' shares −ℓ'_i/L of the gradient at the last time."""

    w: np.ndarray
    log_time: np.ndarray
    weights: np.ndarray

    @property
    def direction(self) -> np.ndarray:
        """In which w moves at last: w = ŵ log t + O(1) moves along ŵ."""
        return _unit(self.w[-1] - self.w[-5])

    @property
    def turning(self) -> float:
        """Four times what the direction turned from one part of the path to the next, or the accuracy of the solver."""
        return max(4.0 * float(np.linalg.norm(self.direction - _unit(self.w[-5] - self.w[-9]))), TOLERANCE)


def follow(Z: np.ndarray, loss: str) -> Path:
    """Gradient flow dw/dt = −∇L of L = Σ ℓ(z_i·w) from w = 0, in the time s of ds = L dt.

    In s the flow is dw/ds = Σ p_i z_i, p_i = −ℓ'_i/L, and u = log(1 + t) obeys du/ds = e^{−u}/L: nothing under- or
    overflows.

    Z (points, features) holds the inputs multiplied by their labels; the loss is one of LOSSES.

    >>> Z = np.array([[2.0, 0.0], [0.0, 1.0]])
    >>> end = follow(Z, "exponential").direction
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
    return Path(found.y[:-1].T, found.y[-1], weights(found.y[:-1, -1])[0])


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


def _direction_error(path: Path, machine: HardMargin) -> np.ndarray:
    return np.linalg.norm(_unit(path.w) - _unit(machine.w), axis=1)


def _linear_claims(Z: np.ndarray, machine: HardMargin, loss: str, path: Path) -> list[Claim]:
    best, error = _unit(machine.w), _direction_error(path, machine)
    share, found = (weights / weights.sum() for weights in (machine.weights, path.weights))
    even = np.where(share > 0, 1 / np.count_nonzero(share), 0.0)
    off, even_off = (np.abs(weights - share).max() for weights in (found, even))
    late, length = path.log_time > 0.01 * path.log_time[-1], 1.0 / machine.margin
    away = np.linalg.norm(path.direction - best)
    growth = slope_and_drift(path.log_time[late], np.linalg.norm(path.w, axis=1)[late])
    exponent = slope_and_drift(np.log(path.log_time[late]), np.log(error[late]))
    return [
        Claim.exactly(f"direction − support-vector machine's, {loss}", 0.0, away, path.turning).rejects(
            {"the mean of the classes": np.linalg.norm(_unit(Z.mean(axis=0)) - best)}
        ),
        Claim.exactly(f"weights of the points − support vectors', {loss}", 0.0, off, TOLERANCE).rejects(
            {"support vectors weigh the same": even_off}
        ),
        Claim.exactly(f"d‖w‖/d log t, {loss}", length, *growth).rejects(
            {"the margin, not its inverse": 1 / length, "twice as fast": 2 * length}
        ),
        Claim.exactly(f"exponent of the direction's error in log t, {loss}", -1.0, *exponent).rejects(
            {"-1/2": -0.5, "-2": -2.0}
        ),
    ]


@jax.jit
def _relu_flow(theta, X, labels):
    """−log L, ‖θ‖ and −θ·∇L/(‖θ‖‖∇L‖) along the flow ds = L dt of two ReLU layers without biases, by Heun steps."""

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

    return jax.lax.scan(move, theta, None, length=NETWORK_STEPS)[1]


def _network_claim(points: int, seed: int) -> tuple[Claim, np.ndarray]:
    """The local slope of log(−log L) against log‖θ‖ once the data are fitted, which is 2 + d log γ̃/d log‖θ‖."""
    random = np.random.default_rng([points, seed, 1])
    X = random.choice([-1.0, 1.0], (points, 2)) * random.uniform(0.4, 1.5, (points, 2))
    labels = np.sign(X[:, 0] * X[:, 1])
    theta = (0.5 * random.normal(size=(WIDTH, 2)), 0.5 * random.normal(size=WIDTH))
    score, norm, aligned = map(np.asarray, _relu_flow(theta, X, labels))
    fitted = np.flatnonzero(score > 0.1)[:: NETWORK_STEPS // 300]
    slopes = np.diff(np.log(score[fitted])) / np.diff(np.log(norm[fitted]))
    claim = Claim.exactly("least d log(−log L)/d log‖θ‖, two ReLU layers", 2.0, slopes.min(), 1e-4, "at least").rejects(
        {"a tenth more than the degree of homogeneity": 2.2}
    )
    return claim, np.array([norm[fitted], score[fitted] / norm[fitted] ** 2, aligned[fitted]])


def with_bias(Z: np.ndarray, seed: int) -> np.ndarray:
    """The same points away from the origin, with an input that is always one; inputs times labels.

    Labels stay, by a plane that need not pass through the origin.
    """
    labels = np.random.default_rng([len(Z), seed, 2]).choice([-1.0, 1.0], len(Z))
    return np.column_stack([Z + 0.5 * labels[:, None], labels])


def kernel_features(points: int, seed: int) -> np.ndarray:
    """Features, times labels, whose inner products are exp(−½|x − x'|²) on points that no plane separates."""
    X = np.random.default_rng([points, seed, 3]).normal(size=(points, 2))
    distances = np.sum((X[:, None] - X) ** 2, axis=2)
    root = np.linalg.cholesky(np.exp(-0.5 * distances) + 1e-3 * np.eye(points))
    return np.sign(X[:, 0] * X[:, 1])[:, None] * root


def _other_claims(points: int, seed: int, Z: np.ndarray, machine: HardMargin) -> list[Claim]:
    """A kernel's machine is found too; the direction of a loss that falls like a power is another one."""
    features = kernel_features(points, seed)
    of_kernel = hard_margin(features)
    in_features = follow(features, "exponential")
    away = np.linalg.norm(in_features.direction - _unit(of_kernel.w))
    power = np.linalg.norm(follow(Z, "power").direction - _unit(machine.w))
    biased = with_bias(Z, seed)
    planes = hard_margin(biased)
    moved = follow(biased, "exponential")
    shifted = np.linalg.norm(moved.direction - _unit(planes.w))
    return [
        Claim.exactly("direction − support-vector machine's, kernel", 0.0, away, in_features.turning).rejects(
            {"the mean of the classes": np.linalg.norm(_unit(features.mean(axis=0)) - _unit(of_kernel.w))}
        ),
        Claim.exactly("direction − support-vector machine's, with bias", 0.0, shifted, moved.turning).fails_for(
            {"a loss that falls like a power": LabEstimate(float(power), 0.0, math.inf)}
        ),
    ]


def experiment(points: int, seed: int) -> Outcome:
    Z = draw_points(points, seed)
    machine = hard_margin(Z)
    paths = {loss: follow(Z, loss) for loss in EXPONENTIAL_TAILS}
    claims = [claim for loss, path in paths.items() for claim in _linear_claims(Z, machine, loss, path)]
    of_network, network = _network_claim(points, seed)
    curves = {loss: (path.log_time, _direction_error(path, machine)) for loss, path in paths.items()}
    return Outcome((*claims, *_other_claims(points, seed, Z, machine), of_network), curves | {"network": network})


def draw(figure: Any, outcomes: Outcomes) -> None:
    left, right = figure.subplots(1, 2)
    for number, (size, found) in enumerate(outcomes.items()):
        for loss, line in zip(EXPONENTIAL_TAILS, LINES, strict=False):
            left.loglog(*found[0].curves[loss], line, color=COLOURS[number % 4], label=f"{size} points, {loss}")
        norm, margin, _ = found[0].curves["network"]
        right.plot(norm, margin, **style(number), label=f"{size} points")
    x = np.array([1e2, 1e5])
    left.loglog(x, 30 / x, color="black", linewidth=0.7, label=r"slope $-1$")
    left.set(xlabel=r"$\log(1+t)$", ylabel=r"$\|w/\|w\|-\hat w\|$", title="linear: direction − the machine's")
    left.legend(fontsize=9)
    right.set(xlabel=r"$\|\theta\|$", ylabel=r"$-\log L/\|\theta\|^2$", title="two ReLU layers: smoothed margin")
    right.legend()


@dataclass(frozen=True)
class HardMargin:
    """The support-vector machine without bias: w = Σ_i a_i z_i of least norm with z_i·w ≥ 1 for z_i = y_i x_i.

    w (features,); weights a ≥ 0 (points,), positive on support vectors only.
    """

    w: np.ndarray
    weights: np.ndarray

    @property
    def margin(self) -> float:
        """The largest margin 1/‖w‖ that a unit vector can have."""
        return float(1.0 / np.linalg.norm(self.w))


def hard_margin(Z: Any) -> HardMargin:
    """Least-norm w with Z w ≥ 1, by non-negative least squares (an active-set method, exact to rounding).

    With r the residual of min ‖(Zᵀ; 1ᵀ)u − (0; 1)‖ over u ≥ 0, w = −r_1..d/r_{d+1} and a = −u/r_{d+1}.

    Z (points, features) holds the inputs multiplied by their labels ±1.

    >>> found = hard_margin([[2.0, 0.0], [0.0, 1.0], [3.0, 3.0]])
    >>> found.w.round(9), found.weights.round(9)
    (array([0.5, 1. ]), array([0.25, 1.  , 0.  ]))
    """
    Z = np.asarray(Z, float)
    target = np.append(np.zeros(Z.shape[1]), 1.0)
    system = np.vstack([Z.T, np.ones(len(Z))])
    u, distance = nnls(system, target)
    if distance < 1e-10:
        raise InvalidInput("Z", "points that no plane through the origin separates", "linearly separable points")
    residual = system @ u - target
    return HardMargin(-residual[:-1] / residual[-1], -u / residual[-1])
