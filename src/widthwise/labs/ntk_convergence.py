"""wide networks converge at a rate that the least eigenvalue of Θ bounds

z = n^(−1/2) Σ a_j σ(w_j·x) with |σ|, |σ'|, |σ''| ≤ 1 on m unit inputs, λ_0 the least eigenvalue of Θ. The kernel at the
start is a mean over independent neurons: n E‖Ĥ−Θ‖² is constant. While λ_min(Ĥ) ≥ λ_0/2 the loss stays below e^(−λ_0 t)
L(0) and no w_j travels further than Δ* = 2√(2mL(0))/(λ_0√n); with n > 256 m⁴L(0)/λ_0⁴ it does (theory §10). All of it
holds at widths that are smaller by many powers of ten.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg

from widthwise.decompositions import eigvalsh
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import sample_parameters
from widthwise.experiments.tangent import added, kernel, pull, tangent
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.gaussian import expectation
from widthwise.labs.base import Outcome, Outcomes, over_networks
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import extrapolated, mean_and_error
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, marks, style
from widthwise.results.theory import theory

SIZES = (3, 6, 9)
SIZE = "points"
DIMENSION = 10
#: Narrow widths, run as masks of the largest of them, and wide ones; how many networks of each.
NARROW, WIDE = (3, 6, 12, 24), (256, 512)
NETWORKS = 72
#: Networks with two hidden layers, and their widths.
DEEP_NETWORKS, DEEP_WIDTHS = 1500, (48, 96)
#: Steps of descent, each of RATE/λ_max; every so many of them the kernel is looked at.
STEPS, EVERY, RATE = 480, 8, 0.5
RESAMPLES = 200
#: Folded into a network's key for its signs.
SIGNS = 0x5EED_0020


def network(width: int) -> MLP:
    """z = n^(−1/2) Σ_j a_j tanh(w_j·x), w_j standard normal and trained at rate one, a_j = ±1 fixed."""
    return MLP([DIMENSION, width, 1], "tanh", C_W=[DIMENSION, 1.0], lambda_b=0.0, lambda_W=[DIMENSION, 0.0])


def unit_vectors(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors that are not far from orthogonal, and targets ±1."""
    X = np.random.default_rng(points).standard_normal((points, DIMENSION))
    return X / np.linalg.norm(X, axis=1, keepdims=True), (-1.0) ** np.arange(points)


class Course(NamedTuple):
    """Of each network: Ĥ and ε at the start; loss and least eigenvalue of Ĥ on the way; longest and total travel; norm
    of the change of Ĥ."""

    kernel: Any
    error: Any
    losses: Any
    least: Any
    longest: Any
    total: Any
    changed: Any


@over_networks
def _course(net: MLP, key, neurons, X, y, rate) -> Course:
    """Descent on networks of which `neurons` are in use: the signs of the others are zero."""
    hidden, last = sample_parameters(net, key)
    signs = jax.random.rademacher(jax.random.fold_in(key, SIGNS), last.W.shape, dtype=X.dtype)
    used = jnp.arange(net.n) < neurons
    start = [hidden, Weights(signs * used / jnp.sqrt(jnp.asarray(neurons, X.dtype)), last.b)]

    def step(_, layers):
        at = tangent(net, layers, X)
        return added(layers, pull(net, at, at.z - y[None]), -rate)

    def look(layers, _):
        at = tangent(net, layers, X)
        seen = (kernel(at)[0, :, 0], at.z[0] - y)
        return jax.lax.fori_loop(0, EVERY, step, layers), seen

    end, (kernels, errors) = jax.lax.scan(look, start, None, length=STEPS // EVERY)
    moved = jnp.sum((end[0].W - hidden.W) ** 2, axis=1)
    losses, least = 0.5 * jnp.sum(errors**2, axis=1), jax.vmap(eigvalsh)(kernels)[:, 0]
    change = kernel(tangent(net, end, X))[0, :, 0] - kernels[0]
    changed = jnp.max(jnp.abs(eigvalsh(change)))
    return Course(kernels[0], errors[0], losses, least, jnp.sqrt(moved.max()), moved.sum(), changed)


def neuron_spread(net: MLP, X: np.ndarray) -> float:
    """n E‖Ĥ − Θ‖_F² = Σ_ab (x_a·x_b)² [⟨σ'_a²σ'_b²⟩ − ⟨σ'_aσ'_b⟩²]: the neurons are independent.

    >>> round(neuron_spread(network(8), np.eye(DIMENSION)[:1]), 6)
    0.125839
    """
    gram = X @ X.T
    K = np.diag(gram)[:, None], gram, np.diag(gram)[None]
    slope = net.activation.derivative(1)
    squares = expectation(lambda z: slope(z) ** 2, *K).value
    return float(np.sum(gram**2 * (squares - expectation(net.activation, *K, orders=(1, 1)).value ** 2)))


def bernstein(Theta: np.ndarray, width: int) -> float:
    """Bound on E‖Ĥ − Θ‖ by the matrix Bernstein inequality: √(2v log 2m/n) + R log 2m/(3n), R = m, v ≤ Rλ_max.

    Ĥ is a mean of n independent positive matrices whose norm is at most R = Σ|x_a|² = m when |σ'| ≤ 1.

    >>> bernstein(np.eye(2), 10_000) < bernstein(np.eye(2), 100)
    True
    """
    points, log = len(Theta), np.log(2.0 * len(Theta))
    v = points * linalg.eigvalsh(Theta)[-1]
    return float(np.sqrt(2.0 * v * log / width) + points * log / (3.0 * width))


def sufficient_width(points: int, loss: float, least: float) -> float:
    """256 m⁴ L(0)/λ_0⁴ (theory §10).

    >>> sufficient_width(2, 1.0, 0.5)
    65536.0
    """
    return 256.0 * points**4 * loss / least**4


def experiment(points: int, seed: int) -> Outcome:
    X, y = unit_vectors(points)
    limit = kernel_flow(network(WIDE[-1]), X, last_only=True)
    K, Theta = limit.K[-1], limit.Theta[-1]
    values = linalg.eigvalsh(Theta)
    rate = RATE / values[-1]
    wide = {n: _course(network(n), seed, NETWORKS, n, X, y, rate) for n in WIDE}
    narrow = {n: _course(network(NARROW[-1]), seed, NETWORKS, n, X, y, rate) for n in NARROW}
    found = wide[WIDE[-1]]
    times = rate * EVERY * np.arange(STEPS // EVERY)
    claims = [*_concentration(Theta, X, wide), *_bounds(points, values[0], found, times), _travel(K, Theta, y, wide)]
    claims += [_enough_width(points, values[0], found, narrow, seed), _two_layer_spread(X, seed)]
    least = {n: course.least.min(axis=1) / values[0] for n, course in (narrow | wide).items()}
    ratio = np.median(found.losses / found.losses[:, :1], axis=0)
    return Outcome(tuple(claims), {"least": least, "times": times * values[0], "loss": ratio})


def _concentration(Theta: np.ndarray, X: np.ndarray, wide: dict[int, Course]) -> list[Claim]:
    """Ĥ at the start: its mean square distance from Θ, exact at every width, and the norm against Bernstein."""
    spread = neuron_spread(network(WIDE[-1]), X)
    squares = np.concatenate([n * ((course.kernel - Theta) ** 2).sum(axis=(1, 2)) for n, course in wide.items()])
    norms = np.linalg.norm(wide[WIDE[-1]].kernel - Theta, 2, axis=(1, 2))
    bound = bernstein(Theta, WIDE[-1])
    return [
        Claim.mean("n E‖Ĥ − Θ‖²", spread, squares).rejects({"like 1/√n": spread * WIDE[0] ** 0.5}),
        Claim.mean("E‖Ĥ − Θ‖, bound", bound, norms, "at most").rejects({"like 1/n": bound / WIDE[-1] ** 0.5}),
    ]


@over_networks
def _kernels(net: MLP, key, X):
    return kernel(tangent(net, sample_parameters(net, key), X))[0, :, 0]


def _two_layer_spread(X: np.ndarray, seed: int) -> Claim:
    """n E‖Ĥ − Θ‖² with two hidden layers of n, all parameters trained: Σ_ab (A + 2B sums), and O(1/n) drops.

    The covariance of Ĥ_ab and Ĥ_cd is (A_abcd + B_acbd + B_adbc)/n (theory §3).
    """
    nets = [MLP([DIMENSION, n, n, 1], "tanh", C_W=[DIMENSION, 1.5, 1.5]) for n in DEEP_WIDTHS]
    th = theory(nets[0], X, order=1, tensors=["Theta", "A", "B"], layers="last")
    Theta, A, B = (th[name].values[0] for name in ("Theta", "A", "B"))
    spread = float(sum(np.einsum(axes, tensor) for axes, tensor in (("abab->", A), ("aabb->", B), ("abba->", B))))
    squares = [
        n * ((_kernels(net, seed, DEEP_NETWORKS, X) - Theta) ** 2).sum(axis=(1, 2))
        for n, net in zip(DEEP_WIDTHS, nets, strict=True)
    ]
    return Claim("n E‖Ĥ − Θ‖², two hidden layers", spread, *extrapolated(*squares)).rejects(
        {"like 1/√n": spread * DEEP_WIDTHS[0] ** 0.5, "twice": 2.0 * spread}
    )


def _bounds(points: int, least: float, found: Course, times: np.ndarray) -> list[Claim]:
    """−log(L/L(0))/t is at least λ_0; no weight vector travels further than Δ* = 2√(2mL(0))/(λ_0√n), and if none
    travels further than Δ, ‖ΔĤ‖ ≤ 2mΔ."""
    losses = np.maximum(found.losses / found.losses[:, :1], 1e-26)
    rates = np.where(losses > 1e-24, -np.log(losses), np.inf)[:, 1:] / times[1:]
    travel = 2.0 * np.sqrt(2.0 * points * found.losses[:, 0]) / (least * WIDE[-1] ** 0.5)
    rate = Claim.mean("rate of the loss / λ_0, bound", 1.0, rates.min(axis=1) / least, "at least")
    longest = Claim.mean("longest travel / Δ*, bound", 1.0, found.longest / travel, "at most")
    change = Claim.mean("‖ΔĤ‖/2mΔ, bound", 1.0, found.changed / (2.0 * points * found.longest), "at most")
    return [
        rate.rejects({"at least 4λ_0": 4.0}),
        longest.rejects({"Δ* like 1/n": WIDE[-1] ** -0.5}),
        change.rejects({"2mΔ/n": 1.0 / WIDE[-1]}),
    ]


def _travel(K: np.ndarray, Theta: np.ndarray, y: np.ndarray, wide: dict[int, Course]) -> Claim:
    """Σ_j|Δw_j|² → ε·Θ⁻¹ε, whose mean over starts is y·Θ⁻¹y + tr KΘ⁻¹; from two widths, without O(1/n)."""
    labels, start = float(y @ linalg.solve(Theta, y)), float(np.trace(linalg.solve(Theta, K)))
    inverse = linalg.inv(Theta)
    excess = [c.total - np.einsum("ka,ab,kb->k", c.error, inverse, c.error) for c in wide.values()]
    found = mean_and_error(2.0 * excess[1] - excess[0])
    wrong = {"labels alone": labels, "1/λ_0 for Θ⁻¹": (y @ y + np.trace(K)) / linalg.eigvalsh(Theta)[0]}
    return Claim("total squared travel", labels + start, *found._replace(value=labels + start + found.value)).rejects(
        wrong
    )


def _enough_width(points: int, least: float, found: Course, narrow: dict[int, Course], seed: int) -> Claim:
    """log₂ of the width from which half the networks keep λ_min(Ĥ) ≥ λ_0/2 all the way, against the bound."""
    lowest = np.stack([course.least.min(axis=1) / least for course in narrow.values()])
    widths = np.log2(list(narrow))

    def crossing(values: np.ndarray) -> float:
        return float(np.interp(0.5, np.maximum.accumulate(np.median(values, axis=1)), widths))

    rng = np.random.default_rng(seed)
    again = [crossing(lowest[:, rng.integers(0, NETWORKS, NETWORKS)]) for _ in range(RESAMPLES)]
    bound = np.log2(sufficient_width(points, found.losses[:, 0].mean(), least))
    error = max(float(np.std(again)), 0.02)
    return Claim(
        "log₂ of the width that is enough, bound", bound, crossing(lowest), error, NETWORKS - 1, kind="at most"
    ).rejects({"one neuron a point is enough": np.log2(points)})


def draw(figure: Any, outcomes: Outcomes) -> None:
    left, right = figure.subplots(1, 2)
    for number, (points, found) in enumerate(outcomes.items()):
        least = found[0].curves["least"]
        widths = sorted(least)
        low, median, high = np.quantile([least[n] for n in widths], [0.1, 0.5, 0.9], axis=1)
        left.plot(widths, median, **(marks(number) | style(number)), label=f"m = {points} points")
        left.fill_between(widths, low, high, color=COLOURS[number], alpha=0.15, linewidth=0)
        right.plot(found[0].curves["times"], found[0].curves["loss"], **style(number), label=f"m = {points}")
    left.axhline(0.5, color="black", linewidth=0.8)
    left.set(xscale="log", xlabel="width n", ylabel=r"least eigenvalue on the way / $\lambda_0$")
    left.set_title("the kernel stays positive (median, 80 %)")
    left.legend()
    times = np.linspace(0.0, 20.0, 50)
    right.plot(times, np.exp(-times), color="black", linewidth=0.8, label=r"bound $e^{-\lambda_0 t}$")
    right.set(yscale="log", xlim=(0, 20), ylim=(1e-20, 3.0), xlabel=r"$\lambda_0 t$", ylabel="loss / loss at start")
    right.set_title(f"loss at n = {WIDE[-1]} (median)")
    right.legend()
