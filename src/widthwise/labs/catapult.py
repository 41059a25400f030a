"""a step beyond 2/λ_0 throws the loss up to order m and lands where the curvature is smaller

For one datum and one hidden layer of m neurons, gradient descent is a map of the residual r = z − y and the curvature
λ: r' = r[1 − ηλ + cη²zr], λ' = λ + cηr²[ηλ − 4z/r], c = ‖x‖²/(md) (theory §10). Below ηλ_0 = 2 + cη²z² descent is lazy;
up to ηλ_0 = 4 the residual climbs to order √m in ½ log m/log(ηλ_0 − 1) steps, λ falls and descent converges; above, it
diverges. A linear layer follows the map exactly, and a ReLU layer as long as no neuron changes side. When r is of order
√m, neurons do: the laws in m stay, but with one datum a ReLU layer loses neurons instead of diverging at 4/λ_0. With
several data most networks diverge there. Smooth activations and random quadratic models are thrown and settle as well;
beyond 4/λ_0 tanh diverges and gelu does not. On digits the test error is the same at all lazy rates and smaller beyond.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.experiments.sampler import tangent_kernel
from widthwise.experiments.tangent import added, gradient, outputs, scaled
from widthwise.labs.base import Outcome, Outcomes, ensemble, only_ticks
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import difference_and_error, mean_and_error
from widthwise.labs.tools.classifier import digit_classes
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, marks, style
from widthwise.special.learning_rate_limits import catapult_orbit

SIZES, QUICK_SIZES = (512, 2048, 8192), (512, 1024)
SIZE = "width"
X = np.array([[1.0, -0.5, 0.8]])
TARGET = 0.7
#: η = FACTOR/λ_0 for the laws in m; a few networks are run with each of FACTORS.
FACTOR, FACTORS = 2.5, np.array([0.5, 1.0, 1.5, 1.9, 2.2, 2.5, 2.8, 3.0, 3.1, 3.4, 3.7, 3.95, 4.2, 5.0, 6.0, 8.0])
WIDER, NETWORKS, FEW = 4, 300, 8
#: Networks that are trained on several data, and how many data.
MANY, DATA = 40, 6
SETTLED, DIVERGED = 1e-2, 1e6
STEPS = 100
#: Rates, in units of 1/λ_0, of a lazy descent, of a catapult and of one that is too fast; size of quadratic models.
LAZY, THROWN, FAST, PARAMETERS = 1.5, 3.0, 6.0, 128
#: Digits: networks, their width, pictures a class to train and to test on, steps; how far the error falls at least.
READERS, READER_WIDTH, PICTURES, READING_STEPS, FALLS_TO = 12, 128, 24, 400, 0.75


def network(width: int, activation: str) -> MLP:
    """z = Σ_j V_j σ(W_j·x), the NTK parameterisation of variance one, no biases."""
    return MLP([X.shape[1], width, 1], activation, C_W=1.0, lambda_b=0.0)


def coupling(width: int) -> float:
    """c = ‖x‖²/(m d)."""
    return float((X**2).sum()) / (width * X.shape[1])


@partial(jax.jit, static_argnames="steps")
def _catapult(net: MLP, networks, factors, target, steps: int):
    """Networks under η = factor/λ_0, factors (runs, networks).

    Residuals and ηλ before each step (runs, networks, steps), λ_0, and the share of neurons that are on at the end.
    """
    at = jnp.full((1, 1), target)

    def curvature(layers):
        return tangent_kernel(net, layers, X)[0, 0]

    def one(factor, layers):
        start = curvature(layers)

        def step(now, _):
            slope, error = gradient(net, now, X, at)
            return added(now, scaled(net, slope), -factor / start), (error[0, 0], factor * curvature(now) / start)

        end, (residuals, bends) = jax.lax.scan(step, layers, None, length=steps)
        return residuals, bends, start, jnp.mean(X @ end[0].W.T > 0.0)

    return jax.vmap(jax.vmap(one), (0, None))(factors, networks)


def thrown(net: MLP, networks: Any, factors: np.ndarray, target: float, steps: int = STEPS) -> list[np.ndarray]:
    return [np.asarray(part) for part in _catapult(net, networks, factors, target, steps=steps)]


def _boundary(net: MLP, networks: Any, beyond: Any, rounds: int) -> np.ndarray:
    """ηλ_0 of each network above which its residuals are `beyond`, within 8/15^rounds; target zero."""
    low, high = np.ones(FEW), np.full(FEW, 9.0)
    for _ in range(rounds):
        factors = np.linspace(low, high, len(FACTORS))
        first = np.argmax(beyond(thrown(net, networks, factors, 0.0)[0]), axis=0)
        low, high = factors[first - 1, range(FEW)], factors[first, range(FEW)]
    return high


def _map_claims(width: int, networks: Any, sweep: list[np.ndarray]) -> tuple[Claim, ...]:
    """A linear hidden layer follows the map, and changes phase where the map does."""
    net, c = network(width, "linear"), coupling(width)
    residuals, bends, start, _ = (part[FACTORS == 3.0][0] for part in sweep)

    def curvature(c, target):
        orbit = catapult_orbit(residuals[:, 0], start, 3.0 / start, c, target, steps=4)
        return np.mean(3.0 / start * orbit.curvature[-1])

    onset = _boundary(net, networks, lambda r: np.abs(r[..., 1]) > np.abs(r[..., 0]), 5).mean()
    last = _boundary(net, networks, _diverged, 3).mean()
    # κ = 2 + κ² c z²/λ_0², of which the smaller root
    bend = c * (residuals[:, 0] + TARGET) ** 2 / start**2
    expected = np.mean((1.0 - np.sqrt(1.0 - 8.0 * bend)) / (2.0 * bend))
    return (
        Claim.exactly("linear layer: ηλ after four steps", curvature(c, TARGET), bends[:, 4].mean(), 1e-11).rejects(
            {"c without 1/d": curvature(c * X.shape[1], TARGET), "4z/r set to 4": curvature(c, 0.0)}
        ),
        Claim.exactly("linear layer: ηλ_0 where the first step raises the loss", expected, onset, 1e-5).rejects(
            {"2 at every width": 2.0}
        ),
        Claim.exactly("linear layer: ηλ_0 where descent diverges", 4.0, last, 5e-3).rejects(
            {"2/λ_0": 2.0, "12/λ_0": 12.0}
        ),
    )


@jax.jit
def _largest_residual(net: MLP, networks, X, y):
    """Largest |r| of networks after STEPS of descent on their own data at η = 8/λ_0, λ_0 the largest of the kernel."""

    def one(layers, x, at):
        rate = 8.0 / jnp.linalg.eigvalsh(tangent_kernel(net, layers, x))[-1]

        def step(now, _):
            slope, error = gradient(net, now, x, at)
            return added(now, scaled(net, slope), -rate), jnp.max(jnp.abs(error))

        return jax.lax.scan(step, layers, None, length=STEPS)[1][-1]

    return jax.vmap(one)(networks, X, y)


def _diverge_on_several(net: MLP, networks: Any, seed: int) -> np.ndarray:
    """Whether each of some networks diverges on DATA random points of its own with random signs."""
    random = np.random.default_rng([seed, 9])
    X_, y = random.normal(size=(MANY, DATA, X.shape[1])), random.choice([-1.0, 1.0], (MANY, 1, DATA))
    return ~(np.asarray(_largest_residual(net, networks, X_, y)) < DIVERGED)


def _lands_flatter(residuals: np.ndarray, bends: np.ndarray) -> np.ndarray:
    """Whether residuals (…, steps) first double at least, then settle, where the curvature is below 2/η."""
    size = np.abs(residuals)
    return (size.max(axis=-1) > 2.0 * size[..., 0]) & (size[..., -1] < SETTLED) & (bends[..., -1] < 2.0)


def _smooth_claims(width: int, seed: int) -> list[Claim]:
    """Other activations than ReLU, one datum."""
    found, claims = {}, []
    for name in ("tanh", "gelu"):
        net = network(width, name)
        factors = np.tile(np.array([[LAZY], [THROWN], [FAST]]), 2 * FEW)
        residuals, bends, *_ = thrown(net, ensemble(net, seed, 2 * FEW), factors, 0.0)
        lazy, landed = _lands_flatter(residuals[:2], bends[:2])
        found[name] = _diverged(residuals[2])
        claim = Claim.mean(f"{name}: share thrown at {THROWN:g}/λ_0 that lands flatter", 0.8, landed, "at least")
        claims.append(claim.fails_for({f"at {LAZY:g}/λ_0": mean_and_error(lazy)}))
    claim = Claim.mean(f"tanh at {FAST:g}/λ_0: share that diverges", 0.8, found["tanh"], "at least")
    return [*claims, claim.fails_for({"gelu": mean_and_error(found["gelu"])})]


def quadratic_orbit(random: np.random.Generator, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """z and ηλ on the way of models z = z_0 + φ·θ + ½θ·ψθ with random φ, symmetric ψ: (models, steps); target zero.

    Entries of ψ are such that its norm is 4/√parameters: the model is nearly linear, as a wide network is.
    """
    shape = (2 * FEW, PARAMETERS, PARAMETERS)
    half = random.normal(size=shape) / PARAMETERS * math.sqrt(2.0)
    psi, phi = half + half.swapaxes(1, 2), random.normal(size=shape[:2]) / math.sqrt(PARAMETERS)
    z_0, theta = 0.3 * random.normal(size=2 * FEW), np.zeros(shape[:2])
    rate, found = factor / (phi**2).sum(axis=1), []
    for _ in range(STEPS):
        bent = np.einsum("kab,kb->ka", psi, theta)
        z, slope = z_0 + ((phi + 0.5 * bent) * theta).sum(axis=1), phi + bent
        found.append((z, rate * (slope**2).sum(axis=1)))
        going = np.abs(z) < DIVERGED
        theta = theta - np.where(going, rate * z, 0.0)[:, None] * slope
    residuals, bends = np.moveaxis(np.array(found), 0, -1)
    return residuals, bends


def _quadratic_claim(seed: int) -> Claim:
    random = np.random.default_rng([seed, 11])
    landed = {factor: _lands_flatter(*quadratic_orbit(random, factor)) for factor in (LAZY, FACTOR, FAST)}
    claim = Claim.mean(
        f"random quadratic models: share thrown at {FACTOR:g}/λ_0 that lands flatter", 0.6, landed[FACTOR], "at least"
    )
    return claim.fails_for({f"at {factor:g}/λ_0": mean_and_error(landed[factor]) for factor in (LAZY, FAST)})


@jax.jit
def _test_errors(net: MLP, networks, X, X_test, y, factors):
    """Mean squared test error after descent at η = factor/λ_0, λ_0 that of the mean loss: (networks, factors)."""

    def one(layers, x, x_test, factor):
        rate = factor / jnp.linalg.eigvalsh(tangent_kernel(net, layers, x))[-1]

        def step(_, now):
            return added(now, scaled(net, gradient(net, now, x, y)[0]), -rate)

        end = jax.lax.fori_loop(0, READING_STEPS, step, layers)
        return jnp.mean((outputs(net, end, x_test) - y) ** 2)

    return jax.vmap(jax.vmap(one, (None, None, None, 0)), (0, 0, 0, None))(networks, X, X_test, factors)


def _digits_claim(seed: int) -> Claim:
    """Zeros against ones: log of the test error over that at 1/λ_0, network by network."""
    net = MLP([64, READER_WIDTH, 1], "relu", C_W=2.0, lambda_b=0.0)
    drawn = [digit_classes(2, PICTURES, [seed, number]) for number in range(READERS)]
    X_, X_test = (np.stack([pair[k].X for pair in drawn]) for k in (0, 1))
    y = 1.0 - 2.0 * drawn[0][0].labels[None]
    factors = np.array([1.0, LAZY, THROWN])
    errors = np.asarray(_test_errors(net, ensemble(net, seed, READERS), X_, X_test, y, factors))
    lazy, landed = np.log(errors[:, 1:] / errors[:, :1]).T
    claim = Claim.mean(
        f"digits: log of test error at {THROWN:g}/λ_0 over that at 1/λ_0", math.log(FALLS_TO), landed, "at most"
    )
    return claim.fails_for({f"at {LAZY:g}/λ_0": mean_and_error(lazy)})


def _diverged(residuals: np.ndarray) -> np.ndarray:
    return ~(np.abs(residuals[..., -1]) < DIVERGED)


def experiment(width: int, seed: int) -> Outcome:
    peaks, times, settled, rates = [], [], [], []
    for number, neurons in enumerate((width, WIDER * width)):
        net = network(neurons, "relu")
        networks = ensemble(net, 2 * seed + number, NETWORKS)
        found = thrown(net, networks, np.full((1, NETWORKS), FACTOR), 0.0, 60)
        size = np.abs(found[0][0])
        peaks.append(np.log(size.max(axis=1)))
        times.append(size.argmax(axis=1))
        settled.append(size.shape[1] - (size[:, ::-1] > SETTLED).argmax(axis=1))
        rates.append(np.mean(-1.0 / np.log(np.abs(1.0 - found[1][0, :, -1]))))
    half, up = 0.5 * math.log(WIDER), 1.0 / math.log(FACTOR - 1.0)
    few, factors = ensemble(network(width, "relu"), 2 * seed, FEW), np.tile(FACTORS[:, None], FEW)
    linear, relu = (thrown(network(width, name), few, factors, TARGET) for name in ("linear", "relu"))
    several = _diverge_on_several(network(width, "relu"), ensemble(network(width, "relu"), 2 * seed, MANY), seed)
    # r climbs from order one to order √m: the law of the largest leaves out relative orders of 1/√m
    claims = (
        *_map_claims(width, few, linear),
        Claim(
            f"ReLU: log of the largest residual, m to {WIDER}m", half, *difference_and_error(*peaks), margin=width**-0.5
        ).rejects({"does not grow": 0.0, "grows like m": 2 * half}),
        Claim(f"ReLU: steps to the largest residual, m to {WIDER}m", half * up, *difference_and_error(*times)).rejects(
            {"does not depend on m": 0.0, "log m instead of log √m": 2 * half * up}
        ),
        Claim(
            f"ReLU: steps until settled, m to {WIDER}m", half * (up + rates[1]), *difference_and_error(*settled)
        ).rejects({"the climb alone": half * up, "does not depend on m": 0.0}),
        Claim.exactly(
            "ReLU at η = 8/λ_0: share of networks that diverge", 0.0, _diverged(relu[0][-1]).mean(), 0.01
        ).rejects({"all, as the map": 1.0}),
        Claim.mean(f"the same, {DATA} data", 0.5, several, "at least").fails_for(
            {"one datum": mean_and_error(_diverged(relu[0][-1]))}
        ),
        *_smooth_claims(width, seed),
        _quadratic_claim(seed),
        _digits_claim(seed),
    )
    return Outcome(claims, {"peak": peaks[0], "settled": settled[0], "linear": linear, "relu": relu})


def draw(figure: Any, outcomes: Outcomes) -> None:
    figure.set_size_inches(10.0, 3.6)
    left, middle, right = figure.subplots(1, 3)
    _draw_regions(left, outcomes)
    _draw_ends(middle, outcomes)
    sizes = np.array(list(outcomes))
    peaks, times = (
        np.array([np.concatenate([o.curves[name] for o in found]).mean() for found in outcomes.values()])
        for name in ("peak", "settled")
    )
    claim = next(c for c in outcomes[sizes[0]][0].claims if "settled" in c.what)
    climb = times[0] + claim.predicted / math.log(WIDER) * np.log(sizes / sizes[0])
    right.plot(sizes, np.exp(peaks[0]) * np.sqrt(sizes / sizes[0]), **style(0), linewidth=0.8, label=r"$\sqrt{m}$")
    right.plot(sizes, np.exp(peaks), **marks(0), label=r"largest $|r|$")
    right.plot(sizes, climb, **style(1), linewidth=0.8, label=r"$\propto\log m$")
    right.plot(sizes, times, **marks(1), label="steps until settled")
    right.set(xscale="log", yscale="log", xlabel="neurons $m$", title=rf"ReLU, $\eta={FACTOR}/\lambda_0$")
    only_ticks(right, sizes)
    right.set_yticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    right.legend()


def _draw_regions(axis: Any, outcomes: Outcomes) -> None:
    """Phases of the map in the plane of ηλ_0 and η√c|r_0|, and the networks that were run."""
    k, s = np.meshgrid(np.linspace(0.05, 5.0, 199), np.geomspace(1e-3, 2.5, 160))
    orbit = catapult_orbit(s, k, 1.0, 1.0, steps=300)
    bounded = np.abs(orbit.residual[-1]) < DIVERGED
    raised = np.abs(orbit.residual[1]) > np.abs(orbit.residual[0])
    phase = np.where(2 * s > k, np.nan, np.where(~bounded, 2.0, raised * 1.0))
    axis.contourf(k, s, phase, levels=[-0.5, 0.5, 1.5, 2.5], colors=["#dfe8ef", "#f3d9cb", "#d9d9d9"])
    for number, size in enumerate(list(outcomes)[:3]):
        residuals, _, start, _ = outcomes[size][0].curves["linear"]
        at = np.broadcast_to(FACTORS[:, None], start.shape)
        place = at / start * math.sqrt(coupling(size)) * np.abs(residuals[..., 0])
        out, shown = _diverged(residuals), at < 5.0
        axis.scatter(at[shown & ~out], place[shown & ~out], s=5, color=COLOURS[number], label=f"$m={size}$")
        axis.scatter(at[shown & out], place[shown & out], s=9, color=COLOURS[number], marker="x", linewidth=0.7)
    for x, text in ((1.0, "lazy"), (3.0, "catapult"), (4.5, "diverges")):
        axis.text(x, 0.0013, text, ha="center")
    axis.text(0.1, 1.2, r"$2\eta\sqrt{c}|r|>\eta\lambda$:" + "\nno network", fontsize=9)
    axis.set(yscale="log", ylim=(1e-3, None), xlabel=r"$\eta\lambda_0$", ylabel=r"$\eta\sqrt{c}\,|r_0|$")
    axis.set_title("the map; linear networks")
    axis.legend(loc="upper left", bbox_to_anchor=(0.0, 0.88), fontsize=9, handletextpad=0.1)


def _draw_ends(axis: Any, outcomes: Outcomes) -> None:
    size = list(outcomes)[-1]
    for number, activation in enumerate(("linear", "relu")):
        ends = np.concatenate([o.curves[activation][1][..., -1] for o in outcomes[size]], axis=1)
        kept = ~np.concatenate([_diverged(o.curves[activation][0]) for o in outcomes[size]], axis=1).any(axis=1)
        mean, spread = ends[kept].mean(axis=1), ends[kept].std(axis=1)
        axis.errorbar(FACTORS[kept], mean, spread, capsize=2, **marks(number), label=f"{activation} layer")
    axis.plot([0.0, 2.0], [0.0, 2.0], color="black", linewidth=0.8)
    for boundary in (2.0, 4.0):
        axis.axvline(boundary, color="black", linewidth=0.6, linestyle=":")
    on = np.concatenate([o.curves["relu"][3] for o in outcomes[size]], axis=1).mean(axis=1)
    axis.plot(FACTORS, on, color=COLOURS[2], linestyle="-.", label="share of ReLU neurons on")
    axis.set(xlabel=r"$\eta\lambda_0$", ylabel=r"$\eta\lambda$ at the end", title=f"where descent ends, $m={size}$")
    axis.legend(fontsize=9)
