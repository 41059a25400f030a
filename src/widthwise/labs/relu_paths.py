"""path sums of ReLU networks are exact at finite width

Gates of a random ReLU network are fair coins, so E (∂z/∂x)² = 2/n_0 and E (∂z/∂x)⁴ is a product over layers for any
symmetric weights; |Ju|² follows the exact chain, near exp N(−β/2, β) with β = 5 Σ 1/n_l. The tangent kernel has mean
2(L + 1)|x|²/n_0 for L hidden layers and an exact second moment; off the diagonal its mean is that of infinite width
plus H1/n. Its largest eigenvalue stays below the row, Frobenius and Chernoff bounds (theory §5, §10).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from widthwise import special
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import forward, network_key, sample_parameters, tangent_kernel
from widthwise.labs.base import Outcome, Outcomes, over_networks
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import log_variance, mean_and_error, over_blocks
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, marks, style
from widthwise.results.theory import theory
from widthwise.special.relu_paths import log_normal_exponent

SIZES = (16, 32, 64)
SIZE = "width"
HIDDEN, FEATURES = 3, 3
NETWORKS, BLOCKS, KERNEL_NETWORKS = 16_000, 20, 1_000
X = np.array([[1.0, -0.6, 0.8], [-0.9, 0.1, -1.1]])
U = np.array([0.0, 1.0, 0.0])
UNIFORM_KURTOSIS = 1.8
POINTS, TAIL, DEEP_KERNELS = 10, 0.05, 300
#: Seeds of other draws lie this far from those of the networks.
OTHER_SEED = 1_000_003


def network(width: int) -> MLP:
    """Three hidden layers with biases, in the parameterisation W = √(2/n) Ŵ, trained with respect to Ŵ."""
    return MLP([FEATURES, *[width] * HIDDEN, 1], "relu", C_b=0.2, C_W=2.0, lambda_b=0.0, lambda_W=2.0)


def experiment(width: int, seed: int) -> Outcome:
    net = network(width)
    paths, curves = _derivatives(net, seed)
    claims = (*paths, *_gate_claims(net, seed), *_kernel_claims(network(2 * width), seed), _growth_claim(width))
    return Outcome((*claims, *_largest(4 * width, seed), _deep_chernoff(4 * width, seed)), curves)


def _derivative_powers(initialisation: str) -> Callable[..., np.ndarray]:
    """Of networks: Σ_j a_j² and Σ_j a_j⁴ of the derivatives a = ∂σ/∂u in every hidden layer, (networks, layers, 2)."""

    @over_networks
    def powers(net: MLP, key):
        layers = sample_parameters(net, key, (initialisation,) * net.depth)
        _, a = jax.jvp(lambda x: forward(net, layers, x[None])[0][1:], (jnp.asarray(X[0]),), (jnp.asarray(U),))
        return jnp.stack([jnp.stack([jnp.sum(v**2), jnp.sum(v**4)]) for v in a])

    return powers


def _derivatives(net: MLP, seed: int) -> tuple[tuple[Claim, ...], dict[str, Any]]:
    variance = net.C_W[-1] / net.n
    uniform, gaussian = (
        _derivative_powers(name)(net, seed, NETWORKS, blocks=BLOCKS) for name in ("uniform", "gaussian")
    )
    square, fourth = uniform[:, -1].T.reshape(2, BLOCKS, -1)
    exact, other = special.relu_path_moments(net, U, UNIFORM_KURTOSIS), special.relu_path_moments(net, U)
    # averaged over the last layer's weights, given the others
    second = variance * square.mean(axis=1)
    quartic = variance**2 * (3 * square**2 + (UNIFORM_KURTOSIS - 3) * fourth).mean(axis=1)
    G = variance * gaussian[:, -1, 0]
    law, beta = special.relu_derivative_law(net, U), log_normal_exponent(net)
    # the kernel that is exceeded by all but the share TAIL of the networks
    log_quantile: Any = brentq(lambda t: float(law.kernel_cdf(math.exp(t))) - TAIL, -40.0, 5.0)
    quantile = math.exp(log_quantile)
    shallow = special.relu_derivative_law(network(net.n).replace(widths=[FEATURES, *[net.n] * (HIDDEN - 1), 1]), U)
    log_normal = norm.cdf((math.log(quantile / law.variance) + beta / 2) / math.sqrt(beta))
    logs = np.log(G[G > 0.0])
    # the variance of log Ĝ, given that it is not zero
    log_g, weights = law.kernel.log_g, law.kernel.weights / law.kernel.weights.sum()
    spread = math.log(weights @ (log_g - weights @ log_g) ** 2)
    claims = (
        Claim.mean("E (∂z/∂x)², uniform weights", exact.second[-1], second).rejects(
            {"gates dropped": 2 * exact.second[-1]}
        ),
        Claim.mean("E (∂z/∂x)⁴, uniform weights", exact.fourth[-1], quartic).rejects(
            {"as with Gaussian weights": other.fourth[-1], "a Gaussian": 3 * exact.second[-1] ** 2}
        ),
        Claim.mean("share below the exact 5 % quantile", TAIL, quantile >= G).rejects(
            {"log-normal": log_normal, "a layer fewer": shallow.kernel_cdf(quantile)}
        ),
        Claim("log variance of log |Ju|²", spread, *log_variance(logs)).rejects(
            {"2 Σ 1/n, as linear": math.log(0.4 * beta), "twice": spread + math.log(2)}
        ),
    )
    kurtosis = 3 * np.mean(gaussian[..., 0] ** 2, axis=0) / np.mean(gaussian[..., 0], axis=0) ** 2
    curves = {"log": logs[:20_000] - math.log(law.variance), "beta": beta, "law": law, "kurtosis": kurtosis}
    return claims, curves | {"exact kurtosis": other.kurtosis[1:]}


def path_sum(layers: list[Weights], x) -> float:
    """z of a ReLU network without biases as a sum over all paths: x_i at its foot times weights times gates on its way.

    >>> net = MLP([2, 3, 3, 1], "relu", C_W=2.0)
    >>> layers = sample_parameters(net, network_key(0, 0))
    >>> z = forward(net, layers, np.ones((1, 2)))[1][-1][0, 0]
    >>> bool(abs(path_sum(layers, np.ones(2)) - z) < 1e-12)
    True
    """
    signal, gates = np.asarray(x), []
    for W in (np.asarray(layer.W) for layer in layers[:-1]):
        gates.append(W @ signal > 0.0)
        signal = np.maximum(W @ signal, 0.0)
    total, last = 0.0, np.asarray(layers[-1].W)[0]
    for path in itertools.product(range(len(x)), *(range(len(g)) for g in gates)):
        steps = zip(layers[:-1], gates, path[:-1], path[1:], strict=True)
        total += x[path[0]] * last[path[-1]] * math.prod(float(own.W[b, a]) * g[b] for own, g, a, b in steps)
    return total


@over_networks
def _gates(net: MLP, key):
    """Of one neuron in each hidden layer, whether its gate is open; and one more of the first layer."""
    preactivations = forward(net, sample_parameters(net, key), jnp.asarray(X[:1]))[1][:-1]
    return jnp.stack([z[0, 0] > 0.0 for z in preactivations] + [preactivations[0][0, 1] > 0.0])


def _gate_claims(net: MLP, seed: int) -> tuple[Claim, ...]:
    """The path formula on a small network, and gates that are independent fair coins."""
    small = MLP([FEATURES, *[4] * HIDDEN, 1], "relu", C_W=2.0, lambda_b=0.0)
    layers = sample_parameters(small, network_key(seed, 0))
    z = float(forward(small, layers, jnp.asarray(X[:1]))[1][-1][0, 0])
    weights = math.prod(float(jnp.sum(jnp.abs(layer.W))) for layer in layers)
    linear = X[0]
    for layer in layers:
        linear = np.asarray(layer.W) @ linear
    gates = _gates(net, seed + 2 * OTHER_SEED, NETWORKS, blocks=BLOCKS)
    along = gates[:, :HIDDEN].all(axis=1)
    return (
        Claim.exactly("z as a sum over paths", z, path_sum(layers, X[0]), 1e-13 * weights).rejects(
            {"all gates open": linear[0]}
        ),
        Claim.mean("a path is open", 0.5**HIDDEN, along).rejects({"its gates agree": 0.5, "always": 1.0}),
        Claim.mean("two neurons of a layer are open", 0.25, gates[:, 0] & gates[:, -1]).rejects(
            {"as one": 0.5, "never both": 0.0}
        ),
    )


def _growth_claim(width: int) -> Claim:
    """log E Θ²/(E Θ)² grows by log(1 + 5/n) a layer once L ≫ n; e^(5L/n) is its growth, not its value."""
    depths = np.array([12, 13]) * width
    moments = [
        special.relu_ntk_moments(MLP([1, *[width] * L, 1], "relu", C_W=2.0, lambda_b=0.0, lambda_W=2.0), [1.0])
        for L in depths
    ]
    logs = np.log([1.0 + float(found.relative_variance[-1]) for found in moments])
    slope, rate = (logs[1] - logs[0]) / width, math.log1p(5.0 / width)
    # (E Θ)² grows like L², whose logarithm is left: 2/L a layer
    return Claim.exactly("growth of log E Θ²/(E Θ)² a layer, L = 12n", rate, slope, 3.0 / depths[0]).rejects(
        {"5/n, as e^(5L/n)": 5.0 / width, "2/n, as linear layers": 2.0 / width}
    )


@over_networks
def _tangent_kernels(net: MLP, key):
    return tangent_kernel(net, sample_parameters(net, key), jnp.asarray(X))


def _kernel_claims(net: MLP, seed: int) -> tuple[Claim, ...]:
    """Without biases: E Θ_aa = 2 (hidden layers + 1) |x|²/n_0."""
    bare = net.replace(C_b=0.0)
    K = _tangent_kernels(bare, seed + OTHER_SEED, NETWORKS // 2, blocks=BLOCKS)
    unit = 2 * float(X[0] @ X[0]) / FEATURES
    second = special.relu_ntk_moments(bare, X[0]).second[-1]
    wide = theory(bare, X, layers="last")["Theta"].values[-1, 0, 1]
    return (
        Claim.mean("E Θ on the diagonal", (HIDDEN + 1) * unit, K[:, 0, 0]).rejects(
            {"2L, a layer dropped": HIDDEN * unit}
        ),
        Claim.mean("E Θ² on the diagonal", second, K[:, 0, 0] ** 2).rejects({"(E Θ)²": ((HIDDEN + 1) * unit) ** 2}),
        Claim.mean("E Θ off the diagonal", special.expected_relu_ntk(bare, X)[0, 1], K[:, 0, 1]).rejects(
            {"infinite width": wide}
        ),
    )


@over_networks
def _gated_kernels(net: MLP, key, points):
    """Tangent kernels of one hidden layer whose weights alone are trained, last weights ±1: (1/n) Σ_j D_j X Xᵀ D_j."""
    gates = (jax.random.normal(key, (net.n, FEATURES)) @ points.T > 0.0).astype(float)
    return gates.T @ gates / net.n * (points @ points.T)


def _largest(width: int, seed: int) -> tuple[Claim, ...]:
    points = _unit_points()
    K = _gated_kernels(MLP([FEATURES, width, 1], "relu"), seed, KERNEL_NETWORKS, points)
    gram = np.clip(points @ points.T, -1.0, 1.0)
    C_0 = float(np.linalg.eigvalsh(gram * (math.pi - np.arccos(gram)) / (2 * math.pi))[-1])
    R = float(np.linalg.eigvalsh(gram)[-1]) / width
    largest = np.linalg.eigvalsh(K)[:, -1]
    bounds = [special.largest_eigenvalue_bounds(kernel) for kernel in K]
    row, frobenius = (float(np.mean([getattr(bound, name) for bound in bounds])) for name in ("row", "frobenius"))
    mean, upper = mean_and_error(largest), over_blocks(lambda block: np.quantile(block, 1 - TAIL), largest, BLOCKS)
    each = float(np.trace(gram)) / (2 * POINTS)
    return (
        Claim("λ_max against the row bound", row, *mean, kind="at most").rejects({"a mean eigenvalue": each}),
        Claim("λ_max against Frobenius", frobenius, *mean, kind="at most").rejects({"half of it": frobenius / 2}),
        Claim(
            "95 % quantile of λ_max, Chernoff", special.chernoff_bound(C_0, R, POINTS, TAIL), *upper, kind="at most"
        ).rejects({"C_0, no fluctuation": C_0}),
    )


@over_networks
def _second_layer_kernels(net: MLP, key, points):
    """λ_max of what the second of two hidden layers adds to the kernel; given the first layer, λ_max of its mean over
    gates, C_0, and the largest that one neuron can add, R."""
    first, second = jax.random.split(key)
    features = jax.nn.relu(jax.random.normal(first, (net.n, FEATURES)) @ points.T) * jnp.sqrt(2.0 / net.n)
    Q = features.T @ features
    gates = (jax.random.normal(second, (net.n, net.n)) @ features > 0.0).astype(float)
    norms = jnp.sqrt(jnp.diag(Q))
    angles = jnp.arccos(jnp.clip(Q / jnp.outer(norms, norms), -1.0, 1.0))
    C_0 = jnp.linalg.eigvalsh(Q * (jnp.pi - angles) / (2 * jnp.pi))[-1]
    largest = jnp.linalg.eigvalsh(gates.T @ gates / net.n * Q)[-1]
    return largest, C_0, jnp.linalg.eigvalsh(Q)[-1] / net.n


def _deep_chernoff(width: int, seed: int) -> Claim:
    """Given the first hidden layer, neurons of the second are independent: what they add obeys the same bound."""
    points = _unit_points()
    net = MLP([FEATURES, width, width, 1], "relu")
    largest, C_0, R = _second_layer_kernels(net, seed + 3 * OTHER_SEED, DEEP_KERNELS, points)
    bounds = np.array([special.chernoff_bound(c, r, POINTS, TAIL) for c, r in zip(C_0, R, strict=True)])
    return Claim.mean("two hidden layers: share beyond Chernoff", TAIL, largest > bounds, "at most").fails_for(
        {"beyond C_0, no fluctuation": mean_and_error(largest > C_0)}
    )


def _unit_points() -> np.ndarray:
    points = np.random.default_rng(5).normal(size=(POINTS, FEATURES))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def draw(figure: Any, outcomes: Outcomes) -> None:
    left, right = figure.subplots(1, 2)
    grid, layers = np.linspace(-7.0, 4.0, 300), np.arange(1, HIDDEN + 1)
    for number, size in enumerate(outcomes):
        curves, colour = outcomes[size][0].curves, COLOURS[number % 4]
        left.hist(curves["log"], bins=80, range=(-7, 4), density=True, histtype="stepfilled", alpha=0.25, color=colour)
        law, beta = curves["law"], curves["beta"]
        kernels = law.variance * np.exp(grid)
        left.plot(grid, law.kernel_density(kernels) * kernels, color=colour, label=f"n = {size}, exact")
        left.plot(grid, norm.pdf(grid, -beta / 2, math.sqrt(beta)), color=colour, linestyle=":")
        measured = np.mean([o.curves["kurtosis"] for o in outcomes[size]], axis=0)
        right.plot(layers, curves["exact kurtosis"], **style(number))
        right.plot(layers, measured, **marks(number), label=f"n = {size}")
    left.set(xlabel=r"$\log |Ju|^2/\mathbf{E}|Ju|^2$", ylabel="density", title="derivatives (dotted: log-normal)")
    left.legend(loc="upper left")
    right.set(xlabel="hidden layers", ylabel=r"$\mathbf{E}\,d^4/(\mathbf{E}\,d^2)^2$", yscale="log", xticks=layers)
    right.set_title(r"kurtosis of $d=\partial z/\partial x$: lines $3\,(1+5/n)^L$")
    right.legend()
