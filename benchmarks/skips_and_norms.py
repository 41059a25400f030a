"""All tensors of order 1/n of residual and normalised networks: theory against real networks, with two controls.

Each tensor is measured at three widths by automatic differentiation, fitted as T + c/n + c₂/n², and T compared with
theory; a pull is their difference in standard errors. The controls leave out the memory of neurons, and hold
normalisers at their means: they should be rejected wherever a network has skips, or norms. It runs on a bare machine.

    python benchmarks/skips_and_norms.py --seconds 20 --widths 32 64 128 --cases 0 1 2
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.experiments.any_network import observe_any_network
from widthwise.experiments.estimators import connected, probe_signs
from widthwise.experiments.reference import reference
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.network import Network, NormMLP, ResMLP
from widthwise.tensors import CORRECTIONS

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [0.7, 0.6, 0.2]])
PER_LAYER = {
    "C_b": (0.1, 0.2, 0.05, 0.15), "C_W": (1.3, 0.8, 1.1, 0.7),
    "lambda_b": (0.2, 0.1, 0.3), "lambda_W": (1.0, 0.8, 1.2, 0.6),
}  # fmt: skip
CONTROLS = ("memory", "normaliser")
#: Numbers that a batch of networks may hold.
ROOM = 8e8


def numbers(depth: int) -> dict[str, Any]:
    """Hyperparameters that differ from layer to layer."""
    return {name: [values[layer % len(values)] for layer in range(depth)] for name, values in PER_LAYER.items()}


def residual(n: int, activation: str, skip: list[float], norm=None) -> Network:
    depth = len(skip) + 2
    return ResMLP([3, *[n] * (depth - 1), 1], activation, skip, norm=norm, **numbers(depth))


def normalised(n: int, activation: str, norm: list) -> Network:
    return NormMLP([3, *[n] * len(norm), 1], activation, norm, **numbers(len(norm) + 1))


RMS, LN = ("rms", 0.05), ("ln", 0.05)
CASES = {
    "residual gelu (1, .7), two inputs": (partial(residual, activation="gelu", skip=[1.0, 0.7]), 2),
    "residual tanh (.7, 1, 1), two inputs": (partial(residual, activation="tanh", skip=[0.7, 1.0, 1.0]), 2),
    "residual sin (1, .7), three inputs": (partial(residual, activation="sin", skip=[1.0, 0.7]), 3),
    "residual tanh (1, .7, 1, .7, 1), one input": (
        partial(residual, activation="tanh", skip=[1.0, 0.7, 1.0, 0.7, 1.0]), 1,
    ),
    "gelu, RMSNorm before, LayerNorm after, three inputs": (
        partial(normalised, activation="gelu", norm=[("rms", "pre", 0.1), ("ln", "post", 0.05)]), 3,
    ),
    "tanh, none, RMSNorm after, LayerNorm before, two inputs": (
        partial(normalised, activation="tanh", norm=[None, ("rms", "post", 0.1), ("ln", "pre", 0.05)]), 2,
    ),
    "residual gelu (1, .8), LayerNorm before, two inputs": (
        partial(residual, activation="gelu", skip=[1.0, 0.8], norm=[LN] * 3), 2,
    ),
    "residual tanh (.9, 1), RMSNorm, LayerNorm, RMSNorm before, two inputs": (
        partial(residual, activation="tanh", skip=[0.9, 1.0], norm=[RMS, LN, RMS]), 2,
    ),
    "residual swish (1, .8, 1, .9), RMSNorm before, one input": (
        partial(residual, activation="swish", skip=[1.0, 0.8, 1.0, 0.9], norm=[RMS] * 5), 1,
    ),
}  # fmt: skip


@partial(jax.jit, static_argnums=0)
def batch_means(names: tuple[str, ...], net: Network, inputs, ref, indices):
    def one(index):
        key = network_key(1, index)
        return observe_any_network(net, sample_parameters(net, key), inputs, names, ref, probe_signs(net, key))

    return jax.tree.map(lambda values: values.mean(axis=0), jax.vmap(one)(indices))


def measured(names: tuple[str, ...], net: Network, inputs: np.ndarray, seconds: float):
    """Means, standard errors by the jackknife over 40 groups of batches, and the number of networks."""
    ref, found, started = reference(net, inputs), [], None
    room = ROOM / (40 * len(inputs) ** 2 * net.depth * net.n**2)
    size = int(np.clip(2 ** np.floor(np.log2(room)), 32, 4096))
    while started is None or len(found) < 40 or time.time() - started < seconds:
        indices = len(found) * size + jnp.arange(size)
        found.append(jax.tree.map(np.asarray, batch_means(names, net, jnp.asarray(inputs), ref, indices)))
        started = started or time.time()  # compiling is not counted
    whole = {name: np.stack([one[name] for one in found]) for name in names}

    def estimate(kept):
        return connected({name: values[kept].mean(axis=0) for name, values in whole.items()}, net.n)

    groups = np.array_split(np.arange(len(found)), 40)
    without = [estimate(np.setdiff1d(np.arange(len(found)), group)) for group in groups]
    error = {name: np.sqrt(39.0 * np.var([one[name] for one in without], axis=0)) for name in names}
    return estimate(np.arange(len(found))), error, len(found) * size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--widths", type=int, nargs=3, default=[32, 64, 128])
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)))
    parser.add_argument("--tensors", nargs="*", default=list(CORRECTIONS))
    given = parser.parse_args()
    names = tuple(given.tensors)
    for title, (build, count) in [list(CASES.items())[number] for number in given.cases]:
        inputs = X[:count]
        found = [measured(names, build(n), inputs, given.seconds) for n in given.widths]
        net = build(given.widths[0])
        flows = [finite_flow(net, inputs, names, last_only=True, omit=frozenset(left_out)) for left_out in
                 ((), *((control,) for control in CONTROLS))]  # fmt: skip
        powers = np.vander(1.0 / np.array(given.widths), increasing=True)
        weights = np.linalg.inv(powers)[0]
        print(f"{title}: {', '.join(f'{found[k][2]} networks of width {n}' for k, n in enumerate(given.widths))}")
        for name in names:
            value = sum(weight * one[0][name] for weight, one in zip(weights, found, strict=True))
            error = np.sqrt(sum((weight * one[1][name]) ** 2 for weight, one in zip(weights, found, strict=True)))
            target, *wrong = (flow.tensors[name][0] for flow in flows)
            scale = np.abs(target).max()
            pulls = [np.abs(value - other).max() if scale == 0.0 else np.abs((value - other) / error).max()
                     for other in (target, *wrong)]  # fmt: skip
            rms = np.sqrt(np.mean(((value - target) / error) ** 2))
            off = " ".join(f"{np.abs(one[0][name] - target).max() / scale:.3f}" for one in found)
            own = f"pull rms {rms:.2f} worst {pulls[0]:.2f}  error {error.mean() / scale:.3f}  off by {off}"
            print(f"   {name:<2} {own}  without memory {pulls[1]:.1f}  fixed normaliser {pulls[2]:.1f}", flush=True)


if __name__ == "__main__":
    main()
