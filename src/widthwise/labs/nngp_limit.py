"""Random networks tend to a Gaussian process, and collective observables stop fluctuating, both like 1/n."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.experiments.sampler import conditional_kernel, forward, network_key, sample_parameters
from widthwise.gaussian import expectation
from widthwise.labs.base import Claim, Lab, Outcome, mean_and_error
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, LINES, MARKERS
from widthwise.results import theory

X = np.array([[1.0, -0.6]])
NETWORKS, BLOCKS = 400_000, 40
#: Excess kurtosis of a uniform number.
UNIFORM = -1.2
#: Folded into a network's key; far from the small numbers that its parameters use.
OTHER_KEY = 0x5EED_0002


def network(width: int) -> MLP:
    """One hidden layer, where the coefficients of 1/n are exact at every width."""
    return MLP([2, width, 1], "tanh", C_b=0.1, C_W=2.0)


@partial(jax.jit, static_argnums=(0, 3))
def _observe(net: MLP, seed, start, count: int):
    """Ĝ and the output of `count` networks; the output once with Gaussian and once with uniform last weights."""

    def one(index):
        key = network_key(seed, index)
        layers = sample_parameters(net, key)
        incoming, preactivations = forward(net, layers, jnp.asarray(X))
        flat = jax.random.uniform(jax.random.fold_in(key, OTHER_KEY), (net.n,), minval=-1.0, maxval=1.0)
        other = jnp.sqrt(3.0 * net.C_W[-1] / net.n) * flat @ incoming[-1][0] + layers[-1].b[0]
        return conditional_kernel(net, incoming)[0, 0], preactivations[-1][0, 0], other

    return jax.vmap(one)(start + jnp.arange(count))


def experiment(width: int, seed: int) -> Outcome:
    net = network(width)
    th = theory(net, X, order=1, tensors=["K", "V"], layers="last")
    K, V = float(th["K"].values[-1, 0, 0]), float(th["V"].values[-1, 0, 0, 0, 0])
    moment = net.C_W[-1] ** 2 * _fourth_moment(net)
    size = NETWORKS // BLOCKS
    blocks = [np.stack(_observe(net, seed, block * size, size)) for block in range(BLOCKS)]
    kernels, gaussian, uniform = np.stack(blocks, axis=1)  # each (blocks, networks)
    variance = mean_and_error(width * ((kernels - K) ** 2).mean(axis=1))
    # K is known, so that these are unbiased: E z⁴ − 3K²
    cumulant = mean_and_error(width * ((gaussian**4).mean(axis=1) - 3 * K * (2 * (gaussian**2).mean(axis=1) - K)))
    other = mean_and_error(width * ((uniform**4).mean(axis=1) - 3 * K * (2 * (uniform**2).mean(axis=1) - K)))
    scaled = {"fluctuations like 1/√n": V * np.sqrt(width), "a factor of two": 2 * V}
    claims = (
        Claim("n × variance of the kernel", V, *variance, wrong=scaled),
        Claim("n × fourth cumulant, Gaussian weights", 3 * V, *cumulant, wrong={"a Gaussian process": 0.0}),
        Claim(
            "n × fourth cumulant, uniform last weights",
            3 * V + UNIFORM * moment,
            *other,
            wrong={"as with Gaussian weights": 3 * V},
        ),
    )
    return Outcome(claims, {"kernel": kernels.ravel()[:20_000] / K, "V": V / K**2})


def _fourth_moment(net: MLP) -> float:
    """⟨σ⁴⟩ at the hidden layer, as ⟨s(z)²⟩ of s = σ²."""
    K = net.C_b[0] + net.C_W[0] * float(X[0] @ X[0]) / net.widths[0]
    return float(expectation(lambda z: net.activation(z) ** 2, K, orders=(0, 0)).value)


def draw(figure: Any, outcomes: Mapping[int, list[Outcome]]) -> None:
    left, right = figure.subplots(1, 2)
    sizes = list(outcomes)
    for number, size in enumerate(sizes):
        values = outcomes[size][0].curves["kernel"]
        style = {"color": COLOURS[number % 4], "linestyle": LINES[number % 4], "label": f"n = {size}"}
        left.hist(values, bins=60, density=True, histtype="step", **style)
    left.set(xlabel=r"$\hat G/K$ of one network", ylabel="density", title="the kernel of a network concentrates")
    left.legend()
    for number, claim in enumerate(outcomes[sizes[0]][0].claims):
        found = [[o.claims[number] for o in outcomes[size]] for size in sizes]
        style = {"color": COLOURS[number], "marker": MARKERS[number], "linestyle": "none", "label": claim.what}
        at = np.array(sizes) * 1.04**number
        means = [np.mean([c.measured for c in some]) for some in found]
        right.errorbar(at, means, [some[0].standard_error for some in found], capsize=2, **style)
        right.axhline(claim.predicted, color=COLOURS[number], linewidth=0.8)
    right.set(xscale="log", xlabel="width n", title="coefficients of 1/n: points measured, lines predicted")
    right.legend(fontsize=7)


LAB = Lab(
    name="nngp-limit",
    title="random networks tend to a Gaussian process like 1/n",
    statement=(
        "A collective observable of a hidden layer, such as Ĝ = C_b + (C_W/n) Σ σ², keeps a variance V/n, so that the "
        "outputs of random networks become Gaussian with a fourth cumulant 3V/n (theory §3, §4). With one hidden layer "
        "both hold exactly at every width. Last weights that are not Gaussian, with excess kurtosis κ, add "
        "κ C_W²⟨σ⁴⟩/n and no more: the limit is the same Gaussian process."
    ),
    experiment=experiment,
    sizes=(16, 64, 256),
    quick_sizes=(8, 32),
    draw=draw,
)
