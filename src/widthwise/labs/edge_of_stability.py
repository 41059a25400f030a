"""Full-batch descent sharpens its loss until the sharpness is 2/η and then stays there; gradient flow does not stop."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from widthwise.labs.base import Claim, Lab, Outcome, mean_and_error
from widthwise.labs.tools.units import ensemble, outputs_in_units
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, LINES, style
from widthwise.special.lanczos import sharpness

POINTS, FEATURES = 32, 6
#: Learning rates at which descent meets the edge, and two that are too small for it; sharpness is taken every so often.
EDGE, SLOW = 2.0 / np.array([2.4, 3.0, 3.8, 4.8]), np.array([0.075, 0.15])
BLOCKS, EVERY, NETWORKS = 80, 50, 4
#: Time until which the flow is followed, and its moments.
TIME = float(SLOW[0]) * BLOCKS * EVERY
MOMENTS = np.linspace(0.0, TIME, 26)


def network(width: int) -> MLP:
    return MLP([FEATURES, width, width, width, 1], "tanh", C_W=0.5)


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points on a sphere, x·x/n_0 = 1, with random signs to be learned by heart: y (1, points)."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(POINTS, FEATURES))
    return X * np.sqrt(FEATURES) / np.linalg.norm(X, axis=1, keepdims=True), rng.choice([-1.0, 1.0], (1, POINTS))


def _start(net: MLP, layers, X, y):
    """A network's parameters in units of √λ, its loss ½⟨(z − y)²⟩, and a vector from which Lanczos starts."""
    u, outputs = outputs_in_units(net, layers, X)
    probe = jax.random.normal(jax.random.key(0), u.shape)
    return u, lambda u: 0.5 * jnp.mean((outputs(u) - y) ** 2), probe


@partial(jax.jit, static_argnums=0)
def _descend(net: MLP, networks, X, y, rates):
    """Sharpness and loss every so many steps, (rates, networks, blocks + 1)."""

    def one(rate, layers):
        u, loss, probe = _start(net, layers, X, y)

        def block(u, _):
            then = jax.lax.fori_loop(0, EVERY, lambda _, u: u - rate * jax.grad(loss)(u), u)
            return then, (sharpness(loss, u, probe), loss(u))

        return jax.lax.scan(block, u, None, length=BLOCKS + 1)[1]

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(rates, networks)


@partial(jax.jit, static_argnums=0)
def _flow(net: MLP, networks, X, y):
    """Sharpness along du/dt = −∂L at the moments, (networks, moments)."""

    def one(layers):
        u, loss, probe = _start(net, layers, X, y)
        path = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, u, args: -jax.grad(loss)(u)),
            diffrax.Tsit5(),
            0.0,
            TIME,
            0.1,
            u,
            saveat=diffrax.SaveAt(ts=jnp.asarray(MOMENTS)),
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-8),
            max_steps=100_000,
        )
        return jax.lax.map(lambda u: sharpness(loss, u, probe), path.ys)

    return jax.vmap(one)(networks)


def at_the_edge(found: np.ndarray) -> np.ndarray:
    """Sharpness averaged over the second half of the steps, (rates, networks)."""
    return found[: len(EDGE), :, BLOCKS // 2 :].mean(axis=2)


def experiment(width: int, seed: int) -> Outcome:
    net, (X, y) = network(width), data(seed)
    networks = ensemble(net, seed, NETWORKS)
    found, losses = map(np.asarray, _descend(net, networks, X, y, jnp.asarray(np.concatenate([EDGE, SLOW]))))
    flow = np.asarray(_flow(net, networks, X, y))
    edge = at_the_edge(found)
    slopes = np.polyfit(np.log(EDGE), np.log(edge), 1)[0]
    level = 0.5 * EDGE[:, None] * edge
    # the flow by another way: descent to the same time with two small rates, and the line through them to rate zero
    slow, slower = found[-1, :, BLOCKS // 2].mean(), found[-2, :, BLOCKS].mean()
    claims = (
        Claim(
            "power of η in the sharpness at the edge",
            -1.0,
            *mean_and_error(slopes),
            wrong={"does not depend on η": 0.0, "like 1/√η": -0.5},
        ),
        Claim(
            "η × sharpness/2 at the edge; s.e.: the scatter of one run",
            1.0,
            float(level.mean()),
            float(level.std(ddof=1)),
            wrong={"1/η": 0.5, "the sharpness of the flow": float((0.5 * EDGE[:, None] * flow[:, -1]).mean())},
        ),
        Claim(
            "sharpness at the end of gradient flow",
            float(2 * slower - slow),
            float(flow[:, -1].mean()),
            float(abs(slow - slower)),
            exact=True,
            wrong={"stops at 2/η of the smallest rate at the edge": float(2.0 / EDGE[-1])},
        ),
    )
    return Outcome(claims, {"sharpness": found, "loss": losses, "flow": flow})


def draw(figure: Any, outcomes: Mapping[int, list[Outcome]]) -> None:
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
    axes[0].legend(loc="upper left", fontsize=7)
    axes[1].set(yscale="log", title="loss")
    for number, (width, results) in enumerate(outcomes.items()):
        edges = np.concatenate([at_the_edge(o.curves["sharpness"]) for o in results], axis=1)
        flows = np.concatenate([o.curves["flow"][:, -1] for o in results])
        colour = COLOURS[number % 4]
        axes[2].errorbar(
            EDGE * 1.03**number, edges.mean(axis=1), edges.std(axis=1), fmt="o", color=colour, label=f"width {width}"
        )
        axes[2].axhline(flows.mean(), color=colour, linestyle=LINES[number % 4], linewidth=0.9)
        axes[2].text(EDGE[-1], flows.mean() * 1.04, f"flow, width {width}", fontsize=7, color=colour)
    line = np.geomspace(EDGE.min(), EDGE.max(), 9)
    axes[2].plot(line, 2.0 / line, color="black", linewidth=0.8, label=r"$2/\eta$")
    axes[2].set(xscale="log", yscale="log", xlabel=r"$\eta$", title="sharpness at the end")
    axes[2].set_xticks(EDGE, [f"{rate:.2g}" for rate in EDGE])
    axes[2].minorticks_off()
    axes[2].legend(fontsize=7, loc="lower left")


LAB = Lab(
    name="edge-of-stability",
    title="descent stops sharpening at 2/η",
    statement=(
        "Full-batch gradient descent with rate η first sharpens its loss, as gradient flow does. A direction of "
        "curvature above 2/η is unstable, and its growing oscillation drives the largest eigenvalue of the Hessian "
        "back: it approaches 2/η and stays there while the loss goes on falling (theory §10), whatever the flow's "
        "own sharpness is. Coordinates are θ/√λ, in which one rate serves all layers."
    ),
    experiment=experiment,
    sizes=(16, 24, 32),
    quick_sizes=(16, 24),
    draw=draw,
)
