"""descent stops sharpening at 2/η

Full-batch gradient descent with rate η first sharpens its loss, as gradient flow does. A direction of curvature above
2/η is unstable, and its growing oscillation drives the largest eigenvalue of the Hessian back: it approaches 2/η and
stays there while the loss goes on falling (theory §10), whatever the flow's own sharpness is. Every network has data of
its own. Coordinates are θ/√λ, in which one rate serves all layers.
"""

from __future__ import annotations

import math
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from widthwise.experiments.sampler import sample_parameters
from widthwise.labs.base import Outcome, Outcomes, only_ticks, outputs_in_units, over_networks
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import mean_and_error
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, LINES, style
from widthwise.special.lanczos import sharpness

SIZES = (16, 24, 32)
SIZE = "width"
POINTS, FEATURES = 32, 6
#: Learning rates at which descent meets the edge, and two that are too small for it; sharpness is taken every so often.
EDGE, SLOW = 2.0 / np.array([2.4, 3.0, 3.8, 4.8]), np.array([0.075, 0.15])
BLOCKS, EVERY, NETWORKS = 80, 50, 6
#: Time until which the flow is followed, and its moments.
TIME = float(SLOW[0]) * BLOCKS * EVERY
MOMENTS = np.linspace(0.0, TIME, 26)
#: Folded into a network's key for its data.
DATA_KEY = 0x5EED_0030


def network(width: int) -> MLP:
    return MLP([FEATURES, width, width, width, 1], "tanh", C_W=0.5)


def _start(net: MLP, key):
    """A network's parameters in units of √λ, its loss ½⟨(z − y)²⟩, and a vector from which Lanczos starts.

    The data are points on a sphere, x·x/n_0 = 1, with random signs to be learned by heart.
    """
    for_inputs, for_signs = jax.random.split(jax.random.fold_in(key, DATA_KEY))
    X = jax.random.normal(for_inputs, (POINTS, FEATURES))
    X = X * jnp.sqrt(FEATURES) / jnp.linalg.norm(X, axis=1, keepdims=True)
    y = jax.random.rademacher(for_signs, (1, POINTS), dtype=X.dtype)
    u, outputs = outputs_in_units(net, sample_parameters(net, key), X)
    probe = jax.random.normal(jax.random.key(0), u.shape)
    return u, lambda u: 0.5 * jnp.mean((outputs(u) - y) ** 2), probe


@over_networks
def _sharpness_of_descent(net: MLP, key, rates):
    """Sharpness and loss every so many steps, (networks, rates, blocks + 1)."""
    u, loss, probe = _start(net, key)

    def one(rate):
        def block(u, _):
            then = jax.lax.fori_loop(0, EVERY, lambda _, u: u - rate * jax.grad(loss)(u), u)
            return then, (sharpness(loss, u, probe), loss(u))

        return jax.lax.scan(block, u, None, length=BLOCKS + 1)[1]

    return jax.vmap(one)(rates)


@over_networks
def _sharpness_of_flow(net: MLP, key):
    """Sharpness along du/dt = −∂L at the moments, (networks, moments)."""
    u, loss, probe = _start(net, key)
    descent = diffrax.ODETerm(lambda t, u, args: -jax.grad(loss)(u))
    saved, steps = diffrax.SaveAt(ts=jnp.asarray(MOMENTS)), diffrax.PIDController(rtol=1e-6, atol=1e-8)
    path = diffrax.diffeqsolve(
        descent, diffrax.Tsit5(), 0.0, TIME, 0.1, u, saveat=saved, stepsize_controller=steps, max_steps=100_000
    )
    return jax.lax.map(lambda u: sharpness(loss, u, probe), path.ys)


def at_the_edge(found: np.ndarray, since: int = BLOCKS // 2) -> np.ndarray:
    """Sharpness averaged over the second half of the steps, or since another look, (rates, networks)."""
    return found[: len(EDGE), :, since:].mean(axis=2)


def experiment(width: int, seed: int) -> Outcome:
    net = network(width)
    descent = _sharpness_of_descent(net, seed, NETWORKS, np.concatenate([EDGE, SLOW]))
    found, losses = (np.swapaxes(part, 0, 1) for part in descent)  # (rates, networks, blocks + 1)
    flow = _sharpness_of_flow(net, seed, NETWORKS)
    edge, later = at_the_edge(found), at_the_edge(found, 3 * BLOCKS // 4)
    levels = [0.5 * (EDGE[:, None] * values).mean(axis=0) for values in (edge, later)]
    slopes = [np.polyfit(np.log(EDGE), np.log(values), 1)[0] for values in (edge, later)]
    # the flow by another way: descent to the same time with two small rates, and the line through them to rate zero
    slow, slower = found[-1, :, BLOCKS // 2], found[-2, :, BLOCKS]
    by_descent, curved = 2 * slower - slow, np.abs(slow - slower)
    claims = (
        _settled_claim("power of η in the sharpness at the edge", -1.0, *slopes).rejects(
            {"does not depend on η": 0.0, "like 1/√η": -0.5}
        ),
        _settled_claim("η × sharpness/2 at the edge", 1.0, *levels).rejects(
            {"1/η": 0.5, "the sharpness of the flow": 0.5 * np.mean(EDGE) * flow[:, -1].mean()}
        ),
        Claim.exactly(
            "sharpness at the end of gradient flow", by_descent.mean(), flow[:, -1].mean(), 2.0 * curved.mean()
        ).rejects({"stops at 2/η of the smallest rate at the edge": 2.0 / EDGE[-1]}),
        Claim.mean("log of the loss at the end over that halfway, at the edge", 0.0, _fall(losses), "at most").rejects(
            {"falls a thousandfold": -math.log(1000.0)}
        ),
    )
    return Outcome(claims, {"sharpness": found, "loss": losses, "flow": flow})


def _settled_claim(what: str, predicted: float, second_half: np.ndarray, last_quarter: np.ndarray) -> Claim:
    """A claim about the mean over networks in the second half of the steps; it may be off by what still changes."""
    drift = abs(float(np.mean(last_quarter - second_half)))
    return Claim(what, predicted, *mean_and_error(second_half), margin=2.0 * drift)


def _fall(losses: np.ndarray) -> np.ndarray:
    """Logarithm of the loss at the end over that halfway, mean over rates, (networks,): ratios have long tails."""
    logs = np.log(losses[: len(EDGE)])
    return np.mean(logs[..., -1] - logs[..., BLOCKS // 2], axis=0)


def draw(figure: Any, outcomes: Outcomes) -> None:
    figure.set_size_inches(9.5, 3.6)
    axes = figure.subplots(1, 3)
    size = list(outcomes)[-1]
    one = outcomes[size][0].curves
    steps = EVERY * np.arange(BLOCKS + 1)
    for number, rate in enumerate(EDGE):
        axes[0].plot(steps * rate, one["sharpness"][number, 0], **style(number), label=rf"$\eta={rate:.2g}$")
        axes[0].axhline(2.0 / rate, color=COLOURS[number], linewidth=0.5)
        axes[1].plot(steps * rate, one["loss"][number, 0], **style(number))
    axes[0].plot(MOMENTS, one["flow"][0], color="black", linewidth=0.9, label="flow")
    axes[1].plot(steps * SLOW[0], one["loss"][len(EDGE), 0], color="black", linewidth=0.9)
    for axis in axes[:2]:
        axis.set(xscale="log", xlabel=r"time $\eta\,\times$ steps", xlim=(10.0, None))
    axes[0].set(ylabel="sharpness", title=rf"horizontal lines: $2/\eta$, width {size}")
    axes[0].legend(loc="upper left", fontsize=9)
    axes[1].set(yscale="log", title="loss")
    for number, (width, results) in enumerate(outcomes.items()):
        edges = np.concatenate([at_the_edge(o.curves["sharpness"]) for o in results], axis=1)
        flows = np.concatenate([o.curves["flow"][:, -1] for o in results])
        colour = COLOURS[number % 4]
        at, mean, spread = EDGE * 1.03**number, edges.mean(axis=1), edges.std(axis=1)
        axes[2].errorbar(at, mean, spread, fmt="o", color=colour, label=f"width {width}")
        axes[2].axhline(flows.mean(), color=colour, linestyle=LINES[number % 4], linewidth=0.9)
        axes[2].text(EDGE[-1], flows.mean() * 1.04, f"flow, width {width}", fontsize=9, color=colour)
    line = np.geomspace(EDGE.min(), EDGE.max(), 9)
    axes[2].plot(line, 2.0 / line, color="black", linewidth=0.8, label=r"$2/\eta$")
    axes[2].set(xscale="log", yscale="log", xlabel=r"$\eta$", title="sharpness at the end")
    only_ticks(axes[2], EDGE, "{:.2g}")
    axes[2].legend(fontsize=9, loc="lower left")
