"""loss and schedule drop out at infinite width, and return at order 1/n

Trained to convergence, a network of infinite width ends at the same function under every loss whose only stationary
point is z = y, with momentum or without, and with any schedule of its learning rate. At width n the ends differ by δ/n
on average, and δ follows from the paths at infinite width: loss and optimiser weight M[dĤ_jik;bxc] by Σ w s_jb a_kc,
and ddĤ by its like (theory §8, §10). Each network and its mirror image are trained in two ways from one initialisation.
"""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.devices import on_all_cores
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import sample_parameters
from widthwise.experiments.tangent import outputs
from widthwise.experiments.training.ensemble import train_one
from widthwise.inference.predict import predict
from widthwise.labs.base import Outcome, Outcomes, only_ticks, over_networks
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import mean_and_error
from widthwise.network import MLP, GradientDescent, GradientFlow, Momentum, schedule
from widthwise.network.losses import NAMED_LOSSES
from widthwise.plots.style import marks, style

SIZES = (64, 128)
SIZE = "width"
X, Y = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8]]), np.array([[4.0], [-3.25]])
X_TEST = np.array([[0.6, -0.2, 0.4], [-1.0, -0.3, 0.5]])
NETWORKS, DRAWS = 100, 2048
#: Steps of descent, a rate at which they converge, and how many of them warm up.
STEPS, RATE, WARM_UP = 80, 0.5, 40
#: Tolerance and accuracy of training, and its largest number of steps.
HOW = (1e-6, 1e-5, 5000)


class Way(NamedTuple):
    """An algorithm and the name of a loss."""

    algorithm: Any
    loss: str = "squared"


class TwoWays(NamedTuple):
    """A way to train, the way that it is compared with, and the test input at which they are compared."""

    way: Way
    other: Way
    test: int


_one_at_a_time = Lock()
FLOW = Way(GradientFlow())
PAIRS = {
    "log-cosh against squared loss": TwoWays(Way(GradientFlow(), "log_cosh"), FLOW, 0),
    "momentum against flow": TwoWays(Way(Momentum(0.05, 0.5)), FLOW, 1),
    "warm-up against a constant rate": TwoWays(
        Way(GradientDescent(schedule(RATE, STEPS, warm_up=WARM_UP, decay="constant"))),
        Way(GradientDescent(RATE, STEPS)),
        1,
    ),
}
WAYS = tuple(dict.fromkeys(way for pair in PAIRS.values() for way in (pair.way, pair.other)))


def network(width: int) -> MLP:
    return MLP([3, width, 1], "tanh", C_b=0.1, C_W=2.0, lambda_b=0.2)


@over_networks
def _away(net: MLP, key) -> jax.Array:
    """How far the first way of each pair ends from the second at the test input: (networks, pairs).

    A mean over the network and its mirror image, whose outputs before training are −z: what is odd in z drops out, and
    with it M[dĤ] y y, most of the scatter and none of the mean.
    """
    start = sample_parameters(net, key)

    def one(sign):
        last = start[-1]._replace(W=sign * start[-1].W, b=sign * start[-1].b)
        return _differences(net, [*start[:-1], last], key)

    return jax.vmap(one)(jnp.array([1.0, -1.0])).mean(axis=0)


def _differences(net: MLP, start: list[Weights], key) -> jax.Array:
    ends = {}
    for way in WAYS:
        loss = NAMED_LOSSES[way.loss]
        end = train_one(net, way.algorithm, start, jnp.asarray(X), jnp.asarray(Y).T, key, HOW, loss)
        ends[way] = outputs(net, end.layers, jnp.asarray(X_TEST))[0]
    return jnp.array([(ends[pair.way] - ends[pair.other])[pair.test] for pair in PAIRS.values()])


def end_differences() -> dict[str, tuple[float, float]]:
    """δ, the coefficient of 1/n by which the ends of each pair differ, and its standard error."""
    with _one_at_a_time:  # experiments may run side by side
        return _end_differences()


@cache
def _end_differences() -> dict[str, tuple[float, float]]:
    ends, found = dict(zip(WAYS, on_all_cores(_predicted, WAYS), strict=True)), {}
    for name, (way, other, test) in PAIRS.items():
        means, errors = (
            [p[f"mean1{part}"].values[0, test] if f"mean1{part}" in p else 0.0 for p in (ends[way], ends[other])]
            for part in ("", "_se")
        )
        found[name] = means[0] - means[1], float(np.hypot(errors[0], errors[1]))
    return found


def _predicted(way: Way) -> Any:
    return predict(network(4 * max(SIZES)), X, Y, X_TEST, way.algorithm, order=1, loss=way.loss, draws=DRAWS)


def experiment(width: int, seed: int) -> Outcome:
    widths = np.array([1, 2, 4]) * width
    differences = [_away(network(n), seed, NETWORKS) for n in widths]
    claims, delta = [], end_differences()
    for number, name in enumerate(PAIRS):
        # networks of the same number may be correlated from width to width
        once, twice, widest = (d[:, number] for d in differences)
        value, error = delta[name]
        at_order_one = mean_and_error(2.0 * widths[2] * widest - widths[1] * twice)
        measured = at_order_one._replace(error=float(np.hypot(at_order_one.error, error)))
        claims.append(Claim(f"{name}: n × difference", value, *measured).rejects({"none": 0.0, "twice": 2.0 * value}))
        limit = mean_and_error((8.0 * widest - 6.0 * twice + once) / 3.0)
        claims.append(
            Claim(f"{name}: difference at infinite width", 0.0, *limit).rejects({"as at width n": value / width})
        )
    curves = {name: np.array([d[:, number].mean() for d in differences]) for number, name in enumerate(PAIRS)}
    return Outcome(tuple(claims), curves)


def draw(figure: Any, outcomes: Outcomes) -> None:
    panels = figure.subplots(1, len(PAIRS))
    sizes = np.array(list(outcomes))
    widths = np.array([sizes.min(), 4 * sizes.max()])
    for number, (panel, (name, (value, _))) in enumerate(zip(panels, end_differences().items(), strict=True)):
        panel.plot(widths, np.abs(value) / widths, **style(number))
        for size, found in outcomes.items():
            mean = np.abs(np.mean([outcome.curves[name] for outcome in found], axis=0))
            panel.plot(np.array([1, 2, 4]) * size, mean, **marks(number))
        panel.set(xscale="log", yscale="log", xlabel="width n")
        only_ticks(panel, sorted({*(sizes * 1), *(4 * sizes)}))
        panel.set_title(name.replace(" against ", "\nagainst "))
    panels[0].set_ylabel("difference of the mean ends; line: δ/n")
