"""Derivatives, tangent kernels and their largest eigenvalue in ReLU networks, against exact path sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from widthwise.experiments.sampler import forward, network_key, sample_parameters, tangent_kernel
from widthwise.labs.base import Claim, Lab, Outcome, mean_and_error
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, LINES, MARKERS
from widthwise.results.theory import theory
from widthwise.special.learning_rate_limits import chernoff_bound, largest_eigenvalue_bounds
from widthwise.special.relu_paths import (
    expected_relu_ntk,
    log_normal_exponent,
    relu_derivative_law,
    relu_ntk_moments,
    relu_path_moments,
)

HIDDEN, FEATURES = 3, 3
NETWORKS, BLOCKS, KERNELS = 16_000, 20, 1_000
X = np.array([[1.0, -0.6, 0.8], [-0.9, 0.1, -1.1]])
U = np.array([0.0, 1.0, 0.0])
UNIFORM_KURTOSIS = 1.8
POINTS, TAIL = 10, 0.05
#: Seeds of other draws lie this far from those of the networks.
OTHER_SEED = 1_000_003


def network(width: int) -> MLP:
    """Three hidden layers with biases, in the parameterisation W = √(2/n) Ŵ, trained with respect to Ŵ."""
    return MLP([FEATURES, *[width] * HIDDEN, 1], "relu", C_b=0.2, C_W=2.0, lambda_b=0.0, lambda_W=2.0)


def experiment(width: int, seed: int) -> Outcome:
    net = network(width)
    paths, curves = _derivatives(net, seed)
    return Outcome((*paths, *_kernels(network(2 * width), seed), *_largest(4 * width, seed)), curves)


# ---- derivatives ---------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(0, 3, 4))
def _squares(net: MLP, seed, start, count: int, initialisation: str):
    """Σ_j a_j² and Σ_j a_j⁴ of the derivatives a = ∂σ/∂u in every hidden layer: (networks, layers, 2)."""

    def one(index):
        layers = sample_parameters(net, network_key(seed, index), (initialisation,) * net.depth)
        _, a = jax.jvp(lambda x: forward(net, layers, x[None])[0][1:], (jnp.asarray(X[0]),), (jnp.asarray(U),))
        return jnp.stack([jnp.stack([jnp.sum(v**2), jnp.sum(v**4)]) for v in a])

    return jax.vmap(one)(start + jnp.arange(count))


def _sampled(net: MLP, seed: int, initialisation: str) -> np.ndarray:
    size = NETWORKS // BLOCKS
    return np.stack([_squares(net, seed, block * size, size, initialisation) for block in range(BLOCKS)])


def _derivatives(net: MLP, seed: int) -> tuple[tuple[Claim, ...], dict[str, Any]]:
    variance = net.C_W[-1] / net.n
    square, fourth = np.moveaxis(_sampled(net, seed, "uniform")[:, :, -1], -1, 0)
    exact = relu_path_moments(net, U, UNIFORM_KURTOSIS)
    gaussian = relu_path_moments(net, U)
    # averaged over the last layer's weights, given the others
    second = mean_and_error(variance * square.mean(axis=1))
    quartic = mean_and_error(variance**2 * (3 * square**2 + (UNIFORM_KURTOSIS - 3) * fourth).mean(axis=1))
    sampled = _sampled(net, seed, "gaussian")[..., 0]
    G = (variance * sampled[:, :, -1]).ravel()
    law, beta = relu_derivative_law(net, U), log_normal_exponent(net)
    quantile = _quantile(law)
    below = mean_and_error(quantile >= G)
    shallow = relu_derivative_law(network(net.n).replace(widths=[FEATURES, *[net.n] * (HIDDEN - 1), 1]), U)
    log_normal = float(norm.cdf((math.log(quantile / law.variance) + beta / 2) / math.sqrt(beta)))
    log_variance = _log_variance(law)
    logs = np.log(G[G > 0.0])
    claims = (
        Claim("E (∂z/∂x)², uniform weights", exact.second[-1], *second, wrong={"gates dropped": 2 * exact.second[-1]}),
        Claim(
            "E (∂z/∂x)⁴, uniform weights",
            exact.fourth[-1],
            *quartic,
            wrong={"as with Gaussian weights": gaussian.fourth[-1], "a Gaussian": 3 * exact.second[-1] ** 2},
        ),
        Claim(
            "share below the exact 5 % quantile",
            TAIL,
            *below,
            wrong={"log-normal": log_normal, "a layer fewer": float(shallow.kernel_cdf(quantile))},
        ),
        Claim(
            "variance of log |Ju|²",
            log_variance,
            *mean_and_error(_block_variances(logs)),
            wrong={"2 Σ 1/n, as linear": 0.4 * beta, "no fluctuation": 0.0},
        ),
    )
    kurtosis = 3 * np.mean(sampled**2, axis=(0, 1)) / np.mean(sampled, axis=(0, 1)) ** 2
    curves = {"log": logs[:20_000] - math.log(law.variance), "beta": beta, "law": law, "kurtosis": kurtosis}
    return claims, curves | {"exact kurtosis": gaussian.kurtosis[1:]}


def _quantile(law: Any) -> float:
    """The kernel that is exceeded by all but the share TAIL of the networks."""
    log_quantile: Any = brentq(lambda t: float(law.kernel_cdf(math.exp(t))) - TAIL, -40.0, 5.0)
    return math.exp(log_quantile)


def _block_variances(logs: np.ndarray) -> np.ndarray:
    return np.array([np.var(block, ddof=1) for block in np.array_split(logs, BLOCKS)])


def _log_variance(law: Any) -> float:
    """Variance of log Ĝ, given that it is not zero."""
    kernel = law.kernel
    weights = kernel.weights / kernel.weights.sum()
    mean = float(weights @ kernel.log_g)
    return float(weights @ (kernel.log_g - mean) ** 2)


# ---- tangent kernels -----------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(0, 3))
def _tangent(net: MLP, seed, start, count: int):
    def one(index):
        layers = sample_parameters(net, network_key(seed, index))
        return tangent_kernel(net, layers, jnp.asarray(X))

    return jax.vmap(one)(start + jnp.arange(count))


def _kernels(net: MLP, seed: int) -> tuple[Claim, ...]:
    """Without biases: E Θ_aa = 2 (hidden layers + 1) |x|²/n_0."""
    bare = net.replace(C_b=0.0)
    size = NETWORKS // BLOCKS // 2
    K = np.concatenate([_tangent(bare, seed + OTHER_SEED, block * size, size) for block in range(BLOCKS)])
    unit = 2 * float(X[0] @ X[0]) / FEATURES
    second = relu_ntk_moments(bare, X[0]).second[-1]
    wide = float(theory(bare, X, layers="last")["Theta"].values[-1, 0, 1])
    return (
        Claim(
            "E Θ on the diagonal",
            (HIDDEN + 1) * unit,
            *mean_and_error(K[:, 0, 0]),
            wrong={"2L, a layer dropped": HIDDEN * unit},
        ),
        Claim(
            "E Θ² on the diagonal",
            second,
            *mean_and_error(K[:, 0, 0] ** 2),
            wrong={"(E Θ)²": ((HIDDEN + 1) * unit) ** 2},
        ),
        Claim(
            "E Θ off the diagonal",
            float(expected_relu_ntk(bare, X)[0, 1]),
            *mean_and_error(K[:, 0, 1]),
            wrong={"infinite width": wide},
        ),
    )


# ---- largest eigenvalue --------------------------------------------------------------------------------------------


@cache
def _inputs() -> np.ndarray:
    points = np.random.default_rng(5).normal(size=(POINTS, FEATURES))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


@partial(jax.jit, static_argnums=(0, 2))
def _gated(width: int, seed, count: int):
    """Tangent kernels of one hidden layer whose weights alone are trained, last weights ±1: (1/n) Σ_j D_j X Xᵀ D_j."""
    points = jnp.asarray(_inputs())

    def one(index):
        gates = (jax.random.normal(network_key(seed, index), (width, FEATURES)) @ points.T > 0.0).astype(float)
        return gates.T @ gates / width * (points @ points.T)

    return jax.vmap(one)(jnp.arange(count))


def _largest(width: int, seed: int) -> tuple[Claim, ...]:
    points = _inputs()
    K = np.asarray(_gated(width, seed, KERNELS))
    gram = np.clip(points @ points.T, -1.0, 1.0)
    C_0 = float(np.linalg.eigvalsh(gram * (math.pi - np.arccos(gram)) / (2 * math.pi))[-1])
    R = float(np.linalg.eigvalsh(gram)[-1]) / width
    largest = np.linalg.eigvalsh(K)[:, -1]
    bounds = [largest_eigenvalue_bounds(kernel) for kernel in K]
    row, frobenius = (float(np.mean([getattr(bound, name) for bound in bounds])) for name in ("row", "frobenius"))
    quantiles = [np.quantile(block, 1 - TAIL) for block in np.array_split(largest, BLOCKS)]
    mean, upper = mean_and_error(largest), mean_and_error(quantiles)
    each = float(np.trace(gram)) / (2 * POINTS)
    return (
        Claim("λ_max against the row bound", row, *mean, kind="at most", wrong={"a mean eigenvalue": each}),
        Claim("λ_max against Frobenius", frobenius, *mean, kind="at most", wrong={"half of it": frobenius / 2}),
        Claim(
            "95 % quantile of λ_max, Chernoff",
            chernoff_bound(C_0, R, POINTS, TAIL),
            *upper,
            kind="at most",
            wrong={"C_0, no fluctuation": C_0},
        ),
    )  # fmt: skip


# ---- figure --------------------------------------------------------------------------------------------------------


def draw(figure: Any, outcomes: Mapping[int, list[Outcome]]) -> None:
    left, right = figure.subplots(1, 2)
    sizes = list(outcomes)
    for number, size in enumerate(sizes):
        curves = outcomes[size][0].curves
        colour = COLOURS[number % 4]
        grid = np.linspace(-7.0, 4.0, 300)
        left.hist(curves["log"], bins=80, range=(-7, 4), density=True, histtype="stepfilled", alpha=0.25, color=colour)
        law = curves["law"]
        left.plot(grid, law.kernel_density(law.variance * np.exp(grid)) * law.variance * np.exp(grid), color=colour,
                  label=f"n = {size}, exact")  # fmt: skip
        beta = curves["beta"]
        left.plot(grid, norm.pdf(grid, -beta / 2, math.sqrt(beta)), color=colour, linestyle=":")
        layers = np.arange(1, HIDDEN + 1)
        measured = np.mean([o.curves["kurtosis"] for o in outcomes[size]], axis=0)
        right.plot(layers, curves["exact kurtosis"], color=colour, linestyle=LINES[number % 4])
        right.plot(layers, measured, color=colour, marker=MARKERS[number % 4], linestyle="none", label=f"n = {size}")
    left.set(xlabel=r"$\log |Ju|^2/\mathbf{E}|Ju|^2$", ylabel="density", title="derivatives (dotted: log-normal)")
    left.legend(loc="upper left")
    right.set(xlabel="hidden layers", ylabel=r"$\mathbf{E}\,d^4/(\mathbf{E}\,d^2)^2$", yscale="log",
              title=r"kurtosis of $d=\partial z/\partial x$: lines $3\,(1+5/n)^L$")  # fmt: skip
    right.set_xticks(np.arange(1, HIDDEN + 1))
    right.legend()


LAB = Lab(
    name="relu-paths",
    title="path sums of ReLU networks are exact at finite width",
    statement=(
        "Gates of a random ReLU network are fair coins, so E (∂z/∂x)² = 2/n_0 and E (∂z/∂x)⁴ is a product over "
        "layers for any symmetric weights; |Ju|² follows the exact chain, near exp N(−β/2, β) with β = 5 Σ 1/n_l. "
        "The tangent kernel has mean 2(L + 1)|x|²/n_0 for L hidden layers and an exact second moment; off the "
        "diagonal its mean is that of infinite width plus H1/n. Its largest eigenvalue stays below the row, "
        "Frobenius and Chernoff bounds (theory §5, §10)."
    ),
    experiment=experiment,
    sizes=(16, 32, 64),
    quick_sizes=(16, 32),
    draw=draw,
)
