"""descent is stable below 2/λ_max: regression, noise, wide networks, layers

Descent on a quadratic loss is stable for η < 2/λ_max, fastest at 2/(λ_max+λ_min), where it contracts by (κ−1)/(κ+1).
Noise of deviation s in the gradient leaves E w² = ηs²/(λ(2−ηλ)); rates c/t remove it like c²s²/((2cλ−1)t), and rates
whose sum is finite stop short of the minimum, at sin(π√(cλ))/(π√(cλ)) for c/t². A wide network obeys the bound with
λ_max of Θ, which width n raises by (1/n)Σ E(u·ΔĤu_p)²/(λ−λ_p) (theory §3, §8); with one rate for all parameters the
bound falls like 1/n. Rates of theory §7 make every layer add the same to the kernel.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq

from widthwise.criticality.learning_rates import equalise
from widthwise.experiments.layer_passes import features
from widthwise.experiments.sampler import sample_parameters
from widthwise.experiments.tangent import added, gradient, kernel, scaled, tangent
from widthwise.labs.base import Outcome, Outcomes, over_networks
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import extrapolated
from widthwise.network import MLP
from widthwise.plots.style import style
from widthwise.results.theory import theory

SIZES = (32, 64, 128)
SIZE = "width"
X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [-0.7, 0.5, 0.9]])
#: Steps of descent on the linear problem; how close its measured rates come.
STEPS, TOLERANCE = 4000, 1e-3
#: Gradient noise of deviation NOISE on a mode of curvature CURVATURE; runs, and steps of each.
CURVATURE, NOISE, RUNS, NOISY_STEPS = 0.8, 1.0, 40_000, 200
CONSTANT, DECAY, SUMMABLE = 1.0, 2.0, 0.5
#: Networks sampled; the step in units of 2/λ_max; steps of descent, and the size of the residual, too small to bend.
NETWORKS, ABOVE, GROWTH_STEPS, SMALL = 2100, 2.0, 14, 1e-11


def network(width: int) -> MLP:
    return MLP([3, width, 1], "tanh", C_b=0.1, C_W=2.0, lambda_b=0.2)


def _final_factor(eigenvalues: np.ndarray, rate: float, steps: int = STEPS) -> float:
    """|w − w*| grows by this factor a step at the end of descent on ½Σλ w²: measured by running it."""
    w, factor = np.ones(len(eigenvalues)), 1.0
    for _ in range(steps):
        moved = w - rate * eigenvalues * w
        factor = float(np.linalg.norm(moved) / np.linalg.norm(w))
        w = moved / np.linalg.norm(moved)
    return factor


def _linear_descent(rows: int, seed: int) -> tuple[list[Claim], dict[str, Any]]:
    """Descent on ½|Xw − y|² of random data: the bound 2/λ_max, and the best rate 2/(λ_max + λ_min)."""
    data = np.random.default_rng(seed).standard_normal((rows, 4)) * np.array([1.0, 0.8, 0.7, 0.6])
    values = np.linalg.eigvalsh(data.T @ data / rows)
    least, largest = values[0], values[-1]
    bound = brentq(lambda rate: _final_factor(values, rate, 400) - 1.0, 1.0 / largest, 4.0 / largest, xtol=1e-8)
    condition, best = largest / least, _final_factor(values, 2.0 / (least + largest))
    claims = [
        Claim.exactly("linear: largest stable rate × λ_max", 2.0, bound * largest, TOLERANCE).rejects({"1": 1.0}),
        Claim.exactly(
            "linear: factor a step at the best rate", (condition - 1.0) / (condition + 1.0), best, TOLERANCE
        ).rejects({"1 − 1/κ, that of 1/λ_max": 1.0 - 1.0 / condition}),
    ]
    rates = np.linspace(0.05, 1.15, 45) * 2.0 / largest
    return claims, {"rates": rates * largest, "factors": [_final_factor(values, rate, 400) for rate in rates]}


@jax.jit
def _noisy(seed, size):
    """w (runs, 3) at the end of descents from w = 1: with noise at constant rates and at c/t, without at c/t²."""
    key = jax.random.fold_in(jax.random.key(seed), 0x5EED_0010 + size)
    t = jnp.arange(1.0, NOISY_STEPS + 1.0)
    schedules = jnp.stack([jnp.full(NOISY_STEPS, CONSTANT), DECAY / t, SUMMABLE / t**2], axis=1)

    def step(w, inputs):
        eta, number = inputs
        noise = NOISE * jax.random.normal(jax.random.fold_in(key, number), w.shape)
        return w - eta * (CURVATURE * w + noise * jnp.array([1.0, 1.0, 0.0])), None

    return jax.lax.scan(step, jnp.ones((RUNS, 3)), (schedules, jnp.arange(NOISY_STEPS)))[0]


def _noise(size: int, seed: int) -> list[Claim]:
    """E w² at the end of constant steps and of steps c/t, and where steps of finite sum get stuck."""
    w = np.asarray(_noisy(seed, size))
    stationary = CONSTANT * NOISE**2 / (CURVATURE * (2.0 - CONSTANT * CURVATURE))
    expected = 1.0
    for t in range(1, NOISY_STEPS + 1):
        expected = (1.0 - DECAY / t * CURVATURE) ** 2 * expected + (DECAY / t * NOISE) ** 2
    limit = DECAY**2 * NOISE**2 / (2.0 * DECAY * CURVATURE - 1.0)
    x = np.sqrt(SUMMABLE * CURVATURE)
    stuck = np.sinc(x)
    return [
        Claim.mean("noise: E w² at a constant rate", stationary, w[:, 0] ** 2).rejects(
            {"ηs²/2λ": CONSTANT * NOISE**2 / (2.0 * CURVATURE)}
        ),
        Claim.mean("noise: t E w² at rates c/t", NOISY_STEPS * expected, NOISY_STEPS * w[:, 1] ** 2).rejects(
            {"like 1/√t": limit * NOISY_STEPS**0.5, "c²s²": DECAY**2 * NOISE**2}
        ),
        Claim.exactly("no noise, rates c/t²: w that is left", stuck, w[0, 2], 2.0 * stuck * x**2 / NOISY_STEPS).rejects(
            {"the minimum": 0.0}
        ),
    ]


@over_networks
def _grown(net: MLP, key, rate, top):
    """λ̂_max of networks from descent, and u·Ĥu for a fixed u = `top`: each (networks,).

    A residual too small to bend the network grows by 1 − ηλ̂ a step, once the largest eigenvalue has won.
    """
    inputs, start = jnp.asarray(X), sample_parameters(net, key)
    at = tangent(net, start, inputs)
    y = at.z - SMALL * top[None]

    def step(layers, _):
        found, error = gradient(net, layers, inputs, y)
        return added(layers, scaled(net, found), -rate), jnp.linalg.norm(error)

    sizes = jax.lax.scan(step, start, None, length=GROWTH_STEPS)[1]
    return (1.0 + sizes[-1] / sizes[-2]) / rate, top @ kernel(at)[0, :, 0] @ top


@over_networks
def _first_share(net: MLP, key):
    """What the first layer adds to Ĥ_aa, averaged over inputs: (networks,)."""
    at = tangent(net, sample_parameters(net, key), jnp.asarray(X))
    diagonal = jnp.diag(features(net.dense[0], at.incoming[0], at.incoming[0]))
    return jnp.mean(diagonal * jnp.sum(at.signals[0][0] ** 2, axis=1))


def largest_eigenvalue(net: MLP) -> tuple[float, float, np.ndarray]:
    """λ_max of Θ, the coefficient of 1/n in the mean of λ̂_max, and the eigenvector u.

    E λ̂ = λ + (1/n)[u·H1u + Σ_p E(u·ΔĤu_p)²/(λ − λ_p)], the covariance of ΔĤ being A + B + B (theory §3).

    >>> largest, shift, u = largest_eigenvalue(network(32))
    >>> round(largest, 4), round(shift, 4)
    (1.6784, 0.7751)
    """
    th = theory(net, X, order=1, tensors=["Theta", "H1", "A", "B"], layers="last")
    Theta, H1, A, B = (th[name].values[0] for name in ("Theta", "H1", "A", "B"))
    values, u = np.linalg.eigh(Theta)
    covariance, top = A + np.einsum("acbd->abcd", B) + np.einsum("adbc->abcd", B), u[:, -1]
    moved = np.einsum("abcd,a,bp,c,dp->p", covariance, top, u[:, :-1], top, u[:, :-1])
    shift = top @ H1 @ top + np.sum(moved / (values[-1] - values[:-1]))
    return float(values[-1]), float(shift), top


def _networks(width: int, seed: int) -> tuple[list[Claim], np.ndarray]:
    """The bound 2/λ̂_max of real networks: in NTK scaling, and with one rate for all parameters."""
    claims, shifts, found = [], [], {}
    makes = {"NTK scaling": network, "one rate for all": lambda n: MLP.standard([3, n, 1], "tanh", C_b=0.1, C_W=2.0)}
    for name, make in makes.items():
        for n in (width, 2 * width):
            largest, shift, top = largest_eigenvalue(make(n))
            grown, control = _grown(make(n), seed, NETWORKS, ABOVE * 2.0 / largest, top)
            found[n] = (largest, shift, grown)
            # with one hidden layer u·Ĥu has the mean λ at every width, and most of the noise
            shifts.append(n * (grown - control) / largest)
        once, twice = (shift / largest for largest, shift, _ in (found[width], found[2 * width]))
        claim = Claim(f"{name}: n × relative shift of λ_max", 2.0 * twice - once, *extrapolated(*shifts[-2:]))
        claims.append(claim.rejects({"λ_max of Θ at any width": 0.0}))
    # λ_max/n from both widths, so that the order after 1/n drops, prediction and measurement alike
    parts = [((4.0, -1.0)[n == width] / (3.0 * n), n, *found[n]) for n in (2 * width, width)]
    predicted = sum(weight * (largest + shift / n) for weight, n, largest, shift, _ in parts)
    grown, before = found[2 * width][2], found[width][0]
    claim = Claim.mean("one rate for all: λ_max/n", predicted, sum(weight * values for weight, *_, values in parts))
    wrong = {"one rate at every width": before * sum(weight for weight, *_ in parts)}
    return [*claims, claim.rejects(wrong)], grown / found[2 * width][0]


def _layers(width: int, seed: int) -> Claim:
    """What the first of four layers adds to Ĥ when rates are chosen so that every layer adds the same."""
    first = []
    for n in (width, 2 * width):
        rates = equalise(MLP([3, n, n, n, 1], "tanh", C_b=0.05, C_W=1.5), X)
        first.append(_first_share(rates.network, seed, NETWORKS))
    found = extrapolated(*(share / rates.after.total for share in first))
    wrong = {"its share with equal rates": rates.before.layers[0] / rates.before.total}
    return Claim("first layer's share with equalised rates", 0.25, *found).rejects(wrong)


def experiment(width: int, seed: int) -> Outcome:
    linear, curves = _linear_descent(width, seed)
    networks, spread = _networks(width, seed)
    return Outcome((*linear, *_noise(width, seed), *networks, _layers(width, seed)), curves | {"spread": spread})


def draw(figure: Any, outcomes: Outcomes) -> None:
    left, right = figure.subplots(1, 2)
    for number, outcome in enumerate(outcomes[min(outcomes)]):
        left.plot(
            outcome.curves["rates"], outcome.curves["factors"], **style(number), label=f"data of seed {outcome.seed}"
        )
    left.axhline(1.0, color="black", linewidth=0.8)
    left.axvline(2.0, color="black", linewidth=0.8)
    left.set(xlabel=r"rate $\times\ \lambda_{\max}$", ylabel="error after a step / before", ylim=(0.5, 1.4))
    left.set_title("linear regression")
    left.legend()
    for number, (size, found) in enumerate(outcomes.items()):
        values = np.concatenate([outcome.curves["spread"] for outcome in found])
        right.hist(1.0 / values, bins=60, density=True, histtype="step", label=f"n = {2 * size}", **style(number))
    right.axvline(1.0, color="black", linewidth=0.8)
    right.set(xlabel=r"largest stable rate of a network / $2\lambda_{\max}^{-1}$ of $\Theta$", ylabel="density")
    right.set_title("real networks, one rate for all")
    right.legend()
