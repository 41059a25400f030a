"""path sums of ReLU networks are exact at finite width

Gates of a random ReLU network are fair coins, so E (∂z/∂x)² = 2/n_0 and E (∂z/∂x)⁴ is a product over layers for any
symmetric weights; |Ju|² follows the exact chain, near exp N(−β/2, β) with β = 5 Σ 1/n_l. The tangent kernel has mean
2(L + 1)|x|²/n_0 for L hidden layers and an exact second moment; off the diagonal its mean is that of infinite width
plus H1/n. Its largest eigenvalue stays below the row, Frobenius and Chernoff bounds (theory §5, §10).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from widthwise import special
from widthwise.experiments.sampler import forward, sample_parameters, tangent_kernel
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
POINTS, TAIL = 10, 0.05
#: Seeds of other draws lie this far from those of the networks.
OTHER_SEED = 1_000_003


def network(width: int) -> MLP:
    """Three hidden layers with biases, in the parameterisation W = √(2/n) Ŵ, trained with respect to Ŵ."""
    return MLP([FEATURES, *[width] * HIDDEN, 1], "relu", C_b=0.2, C_W=2.0, lambda_b=0.0, lambda_W=2.0)


def experiment(width: int, seed: int) -> Outcome:
    net = network(width)
    paths, curves = _derivatives(net, seed)
    return Outcome((*paths, *_kernel_claims(network(2 * width), seed), *_largest(4 * width, seed)), curves)


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
    points = np.random.default_rng(5).normal(size=(POINTS, FEATURES))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
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
            "95 % quantile of λ_max, Chernoff", special.chernoff_bound(C_0, R, POINTS, TAIL), *upper, "at most"
        ).rejects({"C_0, no fluctuation": C_0}),
    )


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
