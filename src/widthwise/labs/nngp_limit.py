"""random networks tend to a Gaussian process like 1/n

A collective observable of a hidden layer, such as Ĝ = C_b + (C_W/n) Σ σ², keeps a variance V/n, so that the outputs of
random networks become Gaussian with a fourth cumulant 3V/n (theory §3, §4), and outputs at two inputs jointly, with
(V_aabb + 2V_abab)/n. With one hidden layer all of it holds exactly at every width. Last weights that are not Gaussian,
with excess kurtosis κ, add κ C_W²⟨σ⁴⟩/n and no more: the limit is the same Gaussian process. With two hidden layers and
sparse weights between them (a quarter of each row is not zero) V is the same as with Gaussian weights, and the
correction G1 of the mean kernel is four times as large.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.experiments.sampler import conditional_kernel, forward, sample_parameters
from widthwise.gaussian import expectation
from widthwise.gaussian.kernel_rules import dense_kernel
from widthwise.gaussian.pair import line_derivative
from widthwise.labs.base import Outcome, Outcomes, only_ticks, over_networks
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import extrapolated
from widthwise.network import MLP
from widthwise.plots.style import marks, style
from widthwise.results.theory import theory

SIZES = (8, 32, 128)
SIZE = "width"
X, PAIR = np.array([[1.0, -0.6]]), np.array([[1.0, -0.6], [0.4, 0.9]])
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


@over_networks
def _shallow_observables(net: MLP, key):
    """Ĝ and the output of networks; the output once with Gaussian and once with uniform last weights."""
    layers = sample_parameters(net, key)
    incoming, preactivations = forward(net, layers, jnp.asarray(X))
    flat = jax.random.uniform(jax.random.fold_in(key, OTHER_KEY), (net.n,), minval=-1.0, maxval=1.0)
    other = jnp.sqrt(3.0 * net.C_W[-1] / net.n) * flat @ incoming[-1][0] + layers[-1].b[0]
    return conditional_kernel(net, incoming)[0, 0], preactivations[-1][0, 0], other


@over_networks
def _pair_outputs(net: MLP, key):
    """The conditional kernel of two inputs, (2, 2), and their outputs."""
    incoming, preactivations = forward(net, sample_parameters(net, key), jnp.asarray(PAIR))
    return conditional_kernel(net, incoming), preactivations[-1][:, 0]


@over_networks
def _deep_kernels(net: MLP, key):
    """Ĝ of networks whose weights between the hidden layers are sparse."""
    layers = sample_parameters(net, key, ("gaussian", "sparse", "gaussian"))
    return conditional_kernel(net, forward(net, layers, jnp.asarray(X))[0])[0, 0]


def experiment(width: int, seed: int) -> Outcome:
    claims, curves = _shallow(width, seed)
    return Outcome((*claims, _two_inputs(width, seed), *_two_layers(width, seed)), curves)


def _two_inputs(width: int, seed: int) -> Claim:
    """n × the joint fourth cumulant of outputs at two inputs, κ(z_a, z_a, z_b, z_b), exact at every width.

    Given the hidden layer outputs are Gaussian: it is Cov(Ĝ_aa, Ĝ_bb) + 2 Var Ĝ_ab, which is measured.
    """
    net = network(width)
    th = theory(net, PAIR, order=1, tensors=["K", "V"], layers="last")
    K, V = th["K"].values[-1], th["V"].values[-1]
    kernels, z = _pair_outputs(net, seed, NETWORKS // 2, blocks=BLOCKS)
    moved = kernels - K
    joint = width * (moved[:, 0, 0] * moved[:, 1, 1] + 2.0 * moved[:, 0, 1] ** 2)
    # outputs by themselves have the same mean; what they add to it has mean zero given the kernel, and is left in
    excess = width * (z[:, 0] ** 2 * z[:, 1] ** 2 - kernels[:, 0, 0] * kernels[:, 1, 1] - 2.0 * kernels[:, 0, 1] ** 2)
    weight = float(-np.cov(joint, excess)[0, 1] / np.var(excess))
    blocks = (joint + weight * excess).reshape(BLOCKS, -1).mean(axis=1)
    predicted = float(V[0, 0, 1, 1] + 2.0 * V[0, 1, 0, 1])
    return Claim.mean("n × joint fourth cumulant at two inputs", predicted, blocks).rejects(
        {"a Gaussian process": 0.0, "twice": 2.0 * predicted, "V_aabb alone": float(V[0, 0, 1, 1])}
    )


def _shallow(width: int, seed: int) -> tuple[tuple[Claim, ...], dict[str, Any]]:
    """Exact at every width: the variance of Ĝ, and fourth cumulants of the output for two kinds of last weights."""
    net = network(width)
    th = theory(net, X, order=1, tensors=["K", "V"], layers="last")
    K, V = float(th["K"].values[-1, 0, 0]), float(th["V"].values[-1, 0, 0, 0, 0])
    first = dense_kernel(net.C_b[0], net.C_W[0], float(X[0] @ X[0]) / net.widths[0])
    moment = net.C_W[-1] ** 2 * _fourth_moment(net, first)
    kernels, *outputs = np.reshape(_shallow_observables(net, seed, NETWORKS, blocks=BLOCKS), (3, BLOCKS, -1))
    variance = width * ((kernels - K) ** 2).mean(axis=1)
    # K is known, so that these are unbiased: E z⁴ − 3K²
    gaussian, uniform = (width * ((z**4).mean(axis=1) - 3 * K * (2 * (z**2).mean(axis=1) - K)) for z in outputs)
    scaled = {"fluctuations like 1/√n": V * np.sqrt(width), "a factor of two": 2 * V}
    claims = (
        Claim.mean("n × variance of the kernel", V, variance).rejects(scaled),
        Claim.mean("n × fourth cumulant, Gaussian weights", 3 * V, gaussian).rejects({"a Gaussian process": 0.0}),
        Claim.mean("n × fourth cumulant, uniform last weights", 3 * V + UNIFORM * moment, uniform).rejects(
            {"as with Gaussian weights": 3 * V}
        ),
    )
    return claims, {"kernel": kernels.ravel()[:20_000] / K}


def _two_layers(width: int, seed: int) -> tuple[Claim, ...]:
    """Two hidden layers with sparse weights between them; at widths 2n and 4n, combined so that O(1/n) drops.

    A sum of n such weights times activations has the fourth cumulant C_W²[3 var σ² + 9 var σ²]/n, the second part
    being that of the weights. It moves the mean of σ² at the second layer by ⟨∂⁴σ²⟩/24 of itself.
    """
    net = deep_network(width)
    th = theory(net, X, order=1, tensors=["K", "V", "G1"], layers="all")
    K, V, G1 = (th[name].values.reshape(3) for name in ("K", "V", "G1"))
    bend = line_derivative(net.activation, 0, 0, 4, *[K[1] ** 0.5] * 2)
    mean_kernel = G1[2] + net.C_W[2] * 9.0 * V[1] * bend / 24.0
    own = net.C_W[2] ** 2 * (_fourth_moment(net, K[1]) - float(expectation(net.activation, K[1]).value) ** 2)
    count = max(DEEP_WEIGHTS // (20 * width**2) // BLOCKS, 4) * BLOCKS
    widths = (2 * width, 4 * width)
    means = [n * (_deep_kernels(deep_network(n), seed, count, blocks=4) - K[2]) for n in widths]
    mean = extrapolated(*means, blocks=BLOCKS)
    variance = extrapolated(*(moved**2 / n for n, moved in zip(widths, means, strict=True)), blocks=BLOCKS)
    return (
        Claim("V, two hidden layers, sparse weights", V[2], *variance).rejects(
            {"fluctuations like 1/√n": V[2] * np.sqrt(width), "the last hidden layer alone": own}
        ),
        Claim("G1, two hidden layers, sparse weights", mean_kernel, *mean).rejects({"as with Gaussian weights": G1[2]}),
    )


def _fourth_moment(net: MLP, K: float) -> float:
    """⟨σ⁴⟩ at a layer with kernel K, as ⟨s(z)²⟩ of s = σ²."""
    return float(expectation(lambda z: net.activation(z) ** 2, K).value)


def draw(figure: Any, outcomes: Outcomes) -> None:
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
    only_ticks(right, sizes)
    right.legend(fontsize=9, loc="upper left")
