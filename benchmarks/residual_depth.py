"""Deep residual networks at one input: theory at order 1/n against sampled networks, with two controls that must fail.

    PYTHONPATH=src python benchmarks/residual_depth.py [--networks 4000] [--widths 128 256 512] [--parts output relu]

Needs jax, numpy and scipy alone, and runs on an accelerator as it is. Each statistic is measured at three widths,
fitted as T + c/n + c₂/n², and T compared with theory; a pull is their difference in standard errors.

Networks are drawn by what their weights do to one input: given z, the entries of W s are independent Gaussians of
variance C_W |s|²/n, so that a layer takes n random numbers in place of n². `--weights` draws all weights.

output: V and G1 at a plain output behind 50 blocks, where z' = γ z + W σ(z). Controls: functionals up to Hermite
degree 2 (the local closure), and without memory at all.
scaling: V/K² on the stream after L blocks, γ = 1: with C_W = 1/L it tends to a constant, with C_W = 1 it does not.
relu: V̂/K² a block on the critical line γ² + C_W/2 = 1, C_W² Σ_st c(γ^|s−t|)/L, largest near γ = 0.45.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import resolve
from widthwise.experiments.sampler import conditional_kernel, forward, network_key, sample_parameters
from widthwise.flow.one_input.deep_blocks import single_block_flow
from widthwise.flow.one_input.scaled_numbers import value_of
from widthwise.network import Network, ResMLP

INPUT = np.ones(1)
#: Parts of the networks that the jackknife leaves out in turn.
GROUPS = 40


class Blocks(NamedTuple):
    """γ and C_W of every step behind the first layer; the last is the plain output. C_b = 0, K¹ = 1."""

    gamma: np.ndarray
    C_W: np.ndarray

    def network(self, n: int, activation: str) -> Network:
        return ResMLP([1, *[n] * len(self.gamma), 1], activation, self.gamma[:-1], C_W=[1.0, *self.C_W])

    @classmethod
    def equal(cls, count: int, gamma: float, C_W: float, output: float = 1.0) -> Blocks:
        return cls(np.array([gamma] * count + [0.0]), np.array([C_W] * count + [output]))


class Moments(NamedTuple):
    """Means over networks: Ĝ, Ĝ² of the output; of the stream before it K̂, K̂², and z², z_i² z_j² of two neurons."""

    output: Any
    output_square: Any
    stream: Any
    stream_square: Any
    z_square: Any
    z_pairs: Any


@partial(jax.jit, static_argnums=(0, 1, 2))
def drawn(activation, n: int, networks: int, blocks: Blocks, key) -> Moments:
    """Networks drawn by what their weights do to one input."""
    first, later = jax.random.split(key)

    def step(carry, layer):
        z, K = carry
        gamma, C_W, key = layer
        G = C_W * jnp.mean(activation(z) ** 2, axis=1)
        return (gamma * z + jnp.sqrt(G)[:, None] * jax.random.normal(key, z.shape), gamma**2 * K + G), None

    start = jax.random.normal(first, (networks, n)), jnp.ones(networks)
    keys = jax.random.split(later, len(blocks.gamma))
    (z, K), _ = jax.lax.scan(step, start, (blocks.gamma[:-1], blocks.C_W[:-1], keys[:-1]))
    G = blocks.C_W[-1] * jnp.mean(activation(z) ** 2, axis=1)
    square = jnp.sum(z**2, axis=1)
    pairs = (square**2 - jnp.sum(z**4, axis=1)) / (n * (n - 1))
    return Moments(*(jnp.mean(x) for x in (G, G**2, K, K**2, square / n, pairs)))


@partial(jax.jit, static_argnums=1)
def drawn_with_weights(net: Network, networks: int, first) -> Moments:
    """The same for the output, with all weights."""

    def one(index):
        parameters = sample_parameters(net, network_key(1, index))
        return conditional_kernel(net, forward(net, parameters, INPUT[None])[0])[0, 0]

    G, nothing = jax.vmap(one)(first + jnp.arange(networks)), jnp.zeros(())
    return Moments(jnp.mean(G), jnp.mean(G**2), nothing, nothing, nothing, nothing)


def sampled(activation: str, n: int, blocks: Blocks, networks: int, weights: bool) -> list[Moments]:
    """Means over each group of networks."""
    size, net = max(1, networks // GROUPS), blocks.network(n, activation)
    if weights:
        found = [drawn_with_weights(net, size, group * size) for group in range(GROUPS)]
    else:
        keys = jax.random.split(jax.random.PRNGKey(n), GROUPS)
        found = [drawn(resolve(activation), n, size, blocks, key) for key in keys]
    return [jax.tree.map(float, one) for one in found]


def statistics(m: Moments, n: int, K: np.ndarray) -> dict[str, float]:
    """Over powers of K of infinite width, at the output and at the stream before it."""
    return {
        "V": n * (m.output_square - m.output**2) / K[-1] ** 2,
        "G1": n * (m.output - K[-1]) / K[-1],
        "V stream": n * (m.z_pairs - m.z_square**2) / K[-2] ** 2,
        "V̂ stream": n * (m.stream_square - m.stream**2) / K[-2] ** 2,
    }


def fitted(activation: str, blocks: Blocks, K: np.ndarray, given: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """T and its standard error of every statistic, from T + c/n + c₂/n² at the widths."""
    powers = np.linalg.inv(np.vander(1.0 / np.array(given.widths), increasing=True))[0]
    totals: dict[str, tuple[float, float]] = {}
    for weight, n in zip(powers, given.widths, strict=True):
        groups = np.array(sampled(activation, n, blocks, given.networks, given.weights))
        whole = statistics(Moments(*groups.mean(axis=0)), n, K)
        without = [statistics(Moments(*np.delete(groups, k, axis=0).mean(axis=0)), n, K) for k in range(GROUPS)]
        for name, value in whole.items():
            variance = (GROUPS - 1.0) * np.var([one[name] for one in without])
            before = totals.get(name, (0.0, 0.0))
            totals[name] = before[0] + weight * value, before[1] + weight**2 * variance
    return {name: (value, np.sqrt(variance)) for name, (value, variance) in totals.items()}


def pull(measured: tuple[float, float], expected: float) -> str:
    return f"{(measured[0] - expected) / max(measured[1], 1e-300):+.1f}"


def output(given: argparse.Namespace) -> None:
    count = given.blocks
    print(f"V/K² and G1/K at a plain output behind {count} blocks; pulls of theory | local closure | no memory")
    for activation in ("tanh", "gelu"):
        for gamma, C_W in ((1.0, 1.0 / count), (1.0, 4.0 / count), (0.9, 0.3)):
            blocks = Blocks.equal(count, gamma, C_W)
            net, started = blocks.network(given.widths[0], activation), time.time()
            flow = single_block_flow(net, INPUT, ("V", "G1"), False)
            seconds, K = time.time() - started, value_of(flow.K)
            local = single_block_flow(net, INPUT, ("V", "G1"), False, degrees=3)
            forgetful = single_block_flow(net, INPUT, ("V", "G1"), False, degrees=1)
            found = fitted(activation, blocks, K, given)
            print(f"  {activation} γ = {gamma}, C_W = {C_W:.3g}: theory in {seconds:.1f} s, error {flow.error:.0e}")
            for name in ("V", "G1"):
                expected = [one.ratios[name][-1] for one in (flow, local, forgetful)]
                pulls = " | ".join(pull(found[name], one) for one in expected)
                values = " | ".join(f"{one:.5g}" for one in expected)
                print(
                    f"    {name:<2} {found[name][0]:.5g} ± {found[name][1]:.2g} against {values}: pulls {pulls}",
                    flush=True,
                )


def scaling(given: argparse.Namespace) -> None:
    print("V/K² on the stream after L blocks, γ = 1: theory, measured, pull")
    for label, weight in (("C_W = 1/L", lambda count: 1.0 / count), ("C_W = 1", lambda count: 1.0)):
        for activation in ("linear", "tanh", "gelu"):
            for count in given.depths:
                blocks = Blocks.equal(count, 1.0, weight(count))
                flow = single_block_flow(blocks.network(8, activation), INPUT, ("V",), False)
                text = (
                    f"  {label:<9} {activation:<6} L = {count:<4} {flow.ratios['V'][-2]:9.5f} (error {flow.error:.0e})"
                )
                if count <= given.measured_depth:
                    found = fitted(activation, blocks, value_of(flow.K), given)["V stream"]
                    text += f"   {found[0]:9.4f} ± {found[1]:.2g}   {pull(found, flow.ratios['V'][-2])}"
                print(text, flush=True)


def relu_covariance(rho: np.ndarray) -> np.ndarray:
    """c(ρ) = cov(σ(u)², σ(v)²) of unit Gaussians with correlation ρ (theory §11)."""
    angle = np.arccos(np.clip(rho, -1.0, 1.0))
    mean = 3.0 * np.sin(angle) * np.cos(angle) + (np.pi - angle) * (1.0 + 2.0 * np.cos(angle) ** 2)
    return mean / (2.0 * np.pi) - 0.25


def relu(given: argparse.Namespace) -> None:
    print(f"relu on γ² + C_W/2 = 1: V̂/K² after {given.relu_blocks} blocks: theory, i=j and V only, measured, pulls,")
    print("  and the growth ν a block as L → ∞")
    for gamma in (0.0, 0.3, 0.45, 0.6, 0.75, 0.9, 0.95):
        C_W, count = 2.0 * (1.0 - gamma**2), given.relu_blocks
        apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
        expected = C_W**2 * relu_covariance(gamma**apart).sum()
        growth = C_W**2 * (relu_covariance(np.ones(1)) + 2.0 * relu_covariance(gamma ** np.arange(1, 4000)).sum())[0]
        closed = count * (1.0 - gamma**2) * (5.0 - gamma**2)
        blocks = Blocks.equal(count, gamma, C_W)
        found = fitted("relu", blocks, np.ones(2), given)["V̂ stream"]  # K = 1 at every layer
        pulls = f"{pull(found, expected)} | {pull(found, closed)}"
        values = f"{expected:8.3f}  {closed:8.3f}  {found[0]:8.3f} ± {found[1]:.2g}"
        print(f"  γ = {gamma:<4}  {values}  pulls {pulls}  ν = {growth:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=4000, help="networks of each width")
    parser.add_argument("--widths", type=int, nargs=3, default=[128, 256, 512])
    parser.add_argument("--blocks", type=int, default=50)
    parser.add_argument("--relu-blocks", type=int, default=16)
    parser.add_argument("--depths", type=int, nargs="*", default=[8, 16, 32, 64, 128])
    parser.add_argument("--measured-depth", type=int, default=1 << 20, help="no networks are drawn beyond this depth")
    parser.add_argument("--weights", action="store_true", help="draw all weights (output only)")
    parser.add_argument("--parts", nargs="*", default=["output", "scaling", "relu"])
    given = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}: {given.networks} networks of each of the widths {given.widths}")
    for part in ["output"] if given.weights else given.parts:
        {"output": output, "scaling": scaling, "relu": relu}[part](given)


if __name__ == "__main__":
    main()
