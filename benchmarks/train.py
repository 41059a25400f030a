"""Networks trained a second, against the plain way in the same run, and the memory of both.

    python benchmarks/train.py [--width 64] [--depth 3] [--networks 2048] [--steps 100]

The plain way is what one would write first: `jax.vmap` over networks of a loop of `jax.grad` and `optax.sgd` for
gradient descent, or of `jax.experimental.ode.odeint` along the gradient for gradient flow, all networks at once; it
gives trained outputs. `train` gives their mean and covariance, and the tangent kernel before and after, with control
variates: the last column is the time that plain averages need for its standard error of the mean, over its own. Every
way runs in a process of its own, sees the same networks, and is timed after compilation; `memory` is what its peak
adds to that of the imports. `pull` is the difference of the means in plain standard errors: the networks are the same,
but control variates take their luck away.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from common import best_time, describe_machine, peak_mb, run_apart

from widthwise.experiments.sampler import forward, network_key, sample_parameters
from widthwise.experiments.tangent import rates
from widthwise.experiments.training.train import train
from widthwise.network import MLP
from widthwise.network.algorithms import GradientDescent, GradientFlow

RATE = 0.2
WAYS = ("descent", "flow")
_COLUMNS = ("", "networks/s", "first call s", "memory MB", "s.e. mean", "pull", "for s.e.")


def network(width: int, depth: int) -> MLP:
    return MLP([3, *[width] * (depth - 1), 1], "tanh", C_b=0.1, C_W=1.6, lambda_b=0.3, lambda_W=0.9)


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Four training inputs, their targets (inputs,), two tests."""
    X = np.random.default_rng(0).normal(size=(6, 3))
    return X[:4], np.array([0.8, -0.5, 0.3, 0.6]), X[4:]


def plain(net: MLP, way: str, steps: int, seed: int, networks: int) -> jax.Array:
    """Trained outputs at the tests, (networks, tests)."""
    X, y, tests = (jnp.asarray(part) for part in data())
    lam = rates(net)

    def outputs(layers, inputs):
        return forward(net, layers, inputs)[1][-1][:, 0]

    slope = jax.grad(lambda layers: 0.5 * jnp.sum((outputs(layers, X) - y) ** 2))

    def by_steps(layers):
        import optax

        optimiser = optax.sgd(RATE)

        def step(carry, _):
            layers, state = carry
            scaled = jax.tree.map(jnp.multiply, lam, slope(layers))
            update, state = optimiser.update(scaled, state)
            return (optax.apply_updates(layers, update), state), None

        return jax.lax.scan(step, (layers, optimiser.init(layers)), length=steps)[0][0]

    def by_time(layers):
        from jax.experimental.ode import odeint

        def velocity(layers, _):
            return jax.tree.map(lambda rate, g: -rate * g, lam, slope(layers))

        path = odeint(velocity, layers, jnp.array([0.0, RATE * steps]), rtol=1e-5, atol=1e-7)
        return jax.tree.map(lambda values: values[-1], path)

    def one(index):
        start = sample_parameters(net, network_key(seed, index))
        return outputs(by_steps(start) if way == "descent" else by_time(start), tests)

    return jax.vmap(one)(jnp.arange(networks))


def run(which: str, way: str, width: int, depth: int, networks: int, steps: int) -> dict[str, float]:
    """One way in this process: seconds, memory, and the mean at the first test with its error."""
    net, before = network(width, depth), peak_mb()
    if which == "plain":
        call = jax.jit(partial(plain, net, way, steps), static_argnums=(0, 1))
        first = best_time(lambda: jax.block_until_ready(call(0, networks)), 1)
        seconds = best_time(lambda: jax.block_until_ready(call(0, networks)), 2)
        z = np.asarray(call(0, networks))[:, 0]
        found = {"mean": z.mean(), "error": z.std(ddof=1) / np.sqrt(networks)}
    else:
        how = GradientDescent(RATE, steps) if way == "descent" else GradientFlow(RATE * steps)
        trained = partial(train, net, *data(), networks, how, progress=False)
        first = best_time(trained, 1)
        seconds = best_time(trained, 2)
        t = trained()
        found = {"mean": float(t["mean"][0, 0]), "error": float(t["mean_se"][0, 0])}
    return {"seconds": seconds, "first": first, "memory": peak_mb() - before, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("width", 64), ("depth", 3), ("networks", 2048), ("steps", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--alone", nargs=2, metavar=("WHICH", "WAY"), help="one way, as a JSON object")
    options = parser.parse_args()
    size = (options.width, options.depth, options.networks, options.steps)
    if options.alone:
        which, way = options.alone
        print(json.dumps(run(which, way, *size)))
        return
    describe_machine()
    print(f"{network(options.width, options.depth)}, 4 training inputs, {options.networks} networks, {options.steps} "
          f"steps of {RATE} or the time they take")  # fmt: skip
    print("  ".join(h.rjust(12) for h in _COLUMNS))
    named = [f"--{name}={value}" for name, value in zip(("width", "depth", "networks", "steps"), size, strict=True)]
    for way in WAYS:
        ours, other = (
            run_apart(sys.executable, Path(__file__), *named, "--alone", which, way) for which in ("ours", "plain")
        )
        if ours is None or other is None:
            continue
        gain = (other["seconds"] * other["error"] ** 2) / (ours["seconds"] * ours["error"] ** 2)
        pull = (ours["mean"] - other["mean"]) / other["error"]
        for label, row, last in ((way, ours, ("", "")), ("plain", other, (f"{pull:+.2f}", f"{gain:.0f}×"))):
            cells = [label, f"{options.networks / row['seconds']:.0f}", f"{row['first']:.1f}", f"{row['memory']:.0f}"]
            print("  ".join(cell.rjust(12) for cell in (*cells, f"{row['error']:.1e}", *last)))


if __name__ == "__main__":
    main()
