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
from widthwise.gaussian.kernel_rules import dense_kernel
from widthwise.gaussian.pair import line_derivative
from widthwise.labs.base import Claim, Lab, Outcome, mean_and_error
from widthwise.labs.tools.widths import extrapolated
from widthwise.network import MLP
from widthwise.plots.style import marks, style
from widthwise.results.theory import theory

X = np.array([[1.0, -0.6]])
NETWORKS, BLOCKS = 240_000, 40
#: Excess kurtosis of a uniform number.
UNIFORM = -1.2
#: Weights drawn for the deep networks of one run, at most; how many networks share it follows.
DEEP_WEIGHTS = 10_000_000
#: Folded into a network's key; far from the small numbers that its parameters use.
OTHER_KEY = 0x5EED_0002


def network(width: int) -> MLP:
    """One hidden layer, where the coefficients of 1/n are exact at every width."""
    return MLP([2, width, 1], "tanh", C_b=0.1, C_W=2.0)


def deep_network(width: int) -> MLP:
    """Two hidden layers, where the coefficients of 1/n have corrections of relative order 1/n."""
    return MLP([2, width, width, 1], "sin")


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


@partial(jax.jit, static_argnums=(0, 3))
def _observe_deep(net: MLP, seed, start, count: int):
    """Ĝ of `count` networks whose weights between the hidden layers are sparse."""

    def one(index):
        layers = sample_parameters(net, network_key(seed, index), ("gaussian", "sparse", "gaussian"))
        return conditional_kernel(net, forward(net, layers, jnp.asarray(X))[0])[0, 0]

    return jax.vmap(one)(start + jnp.arange(count))


def experiment(width: int, seed: int) -> Outcome:
    claims, curves = _shallow(width, seed)
    return Outcome((*claims, *_deep(width, seed)), curves)


def _shallow(width: int, seed: int) -> tuple[tuple[Claim, ...], dict[str, Any]]:
    """Exact at every width: the variance of Ĝ, and fourth cumulants of the output for two kinds of last weights."""
    net = network(width)
    th = theory(net, X, order=1, tensors=["K", "V"], layers="last")
    K, V = float(th["K"].values[-1, 0, 0]), float(th["V"].values[-1, 0, 0, 0, 0])
    first = dense_kernel(net.C_b[0], net.C_W[0], float(X[0] @ X[0]) / net.widths[0])
    moment = net.C_W[-1] ** 2 * _fourth_moment(net, first)
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
    return claims, {"kernel": kernels.ravel()[:20_000] / K}


def _deep(width: int, seed: int) -> tuple[Claim, ...]:
    """Two hidden layers with sparse weights between them; at widths 2n and 4n, combined so that O(1/n) drops.

    A sum of n such weights times activations has the fourth cumulant C_W²[3 var σ² + 9 var σ²]/n, the second part
    being that of the weights. It moves the mean of σ² at the second layer by ⟨∂⁴σ²⟩/24 of itself.
    """
    net = deep_network(width)
    th = theory(net, X, order=1, tensors=["K", "V", "G1"], layers="all")
    K, V, G1 = (th[name].values.reshape(3) for name in ("K", "V", "G1"))
    bend = line_derivative(net.activation, 0, 0, 4, *[K[1] ** 0.5] * 2)
    moved = G1[2] + net.C_W[2] * 9.0 * V[1] * bend / 24.0
    own = net.C_W[2] ** 2 * (_fourth_moment(net, K[1]) - float(expectation(net.activation, K[1]).value) ** 2)
    count = max(DEEP_WEIGHTS // (20 * width**2) // BLOCKS, 4) * BLOCKS
    means, variances = [], []
    for n in (2 * width, 4 * width):
        size = max(count // 4, BLOCKS)
        parts = [_observe_deep(deep_network(n), seed, start, size) for start in range(0, count, size)]
        moved_by = n * (np.concatenate(parts)[:count] - K[2])
        means.append(moved_by)
        variances.append(moved_by**2 / n)
    mean, variance = (extrapolated(*found, blocks=BLOCKS) for found in (means, variances))
    return (
        Claim(
            "V, two hidden layers, sparse weights",
            V[2],
            *variance,
            wrong={"fluctuations like 1/√n": V[2] * np.sqrt(width), "the last hidden layer alone": own},
        ),
        Claim("G1, two hidden layers, sparse weights", moved, *mean, wrong={"as with Gaussian weights": G1[2]}),
    )


def _fourth_moment(net: MLP, K: float) -> float:
    """⟨σ⁴⟩ at a layer with kernel K, as ⟨s(z)²⟩ of s = σ²."""
    return float(expectation(lambda z: net.activation(z) ** 2, K).value)


def draw(figure: Any, outcomes: Mapping[int, list[Outcome]]) -> None:
    left, right = figure.subplots(1, 2)
    sizes = list(outcomes)
    for number, size in enumerate(sizes):
        values = outcomes[size][0].curves["kernel"]
        left.hist(values, bins=60, density=True, histtype="step", label=f"n = {size}", **style(number))
    left.set(xlabel=r"$\hat G/K$ of one network", ylabel="density", title="the kernel of a network concentrates")
    left.legend()
    for number, claim in enumerate(outcomes[sizes[0]][0].claims):
        found = [[o.claims[number] for o in outcomes[size]] for size in sizes]
        at = np.array(sizes) * 1.06**number
        means = np.array([np.mean([c.measured for c in some]) for some in found]) / claim.predicted
        errors = np.array([some[0].standard_error / len(some) ** 0.5 for some in found]) / abs(claim.predicted)
        seen = errors < 0.6  # the others say nothing
        right.errorbar(at[seen], means[seen], errors[seen], capsize=2, **marks(number), label=claim.what)
    right.axhline(1.0, color="black", linewidth=0.8)
    right.set(xscale="log", xlabel="width n", ylabel="measured / predicted", title="coefficients of 1/n", ylim=(0, 3.2))
    right.set_xticks(sizes, [str(size) for size in sizes])
    right.minorticks_off()
    right.legend(fontsize=7, loc="upper left")


LAB = Lab(
    name="nngp-limit",
    title="random networks tend to a Gaussian process like 1/n",
    statement=(
        "A collective observable of a hidden layer, such as Ĝ = C_b + (C_W/n) Σ σ², keeps a variance V/n, so that the "
        "outputs of random networks become Gaussian with a fourth cumulant 3V/n (theory §3, §4). With one hidden layer "
        "both hold exactly at every width. Last weights that are not Gaussian, with excess kurtosis κ, add "
        "κ C_W²⟨σ⁴⟩/n and no more: the limit is the same Gaussian process. With two hidden layers and sparse weights "
        "between them (a quarter of each row is not zero) V is the same as with Gaussian weights, and the correction "
        "G1 of the mean kernel is four times as large."
    ),
    experiment=experiment,
    sizes=(8, 32, 128),
    quick_sizes=(8, 32),
    draw=draw,
)
