"""regression, Mercer, Hilbert space, spheres, point processes, positivity

Ridge regression on features is ridge regression with their kernel, and the mean of a Gaussian process with that noise.
On a measure k = Σ μφφ, and ⟨f, g⟩ = Σ f_p g_p/μ_p reproduces f. On a sphere μ_ℓ = ∫kP_ℓ, from the Hermite coefficients
of σ in closed form; real networks of one hidden layer have it on average at every width. Subsets with P(S) ∝ det L_S
contain points with probability det M, M = L(1+L)⁻¹. The kernel is positive definite on distinct inputs unless σ is a
polynomial, an input is repeated, or, without biases, inputs are antipodal and the odd part of σ is a polynomial, as in
relu, gelu, swish (theory §2, §9).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from widthwise.experiments.sampler import conditional_kernel, forward, network_key, sample_parameters, tangent_kernel
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.gaussian.hermite import hermite_table
from widthwise.inference.infinite_width import GaussianProcess
from widthwise.labs.base import Outcome, Outcomes, over_networks
from widthwise.labs.claims import Claim
from widthwise.labs.tools import mercer_spectra
from widthwise.labs.tools.expansion import expand
from widthwise.network import MLP
from widthwise.plots.style import marks, style

SIZES = (32, 128, 512)
SIZE = "width"
#: Dimension of the sphere's space, quadrature nodes and degrees on it.
DIMENSION, NODES, DEGREES = 3, 24, 6
NETWORKS, SUBSETS, RIDGE = 1500, 4000, 0.1
#: Terms of the Hermite series, and the accuracy of exact claims.
TERMS, TOLERANCE = 128, 1e-6
#: Points on a circle, and the strength of the point process on them.
POINTS, STRENGTH = 8, 1.0


def network(width: int, dimension: int = DIMENSION) -> MLP:
    return MLP([dimension, width, 1], "swish", C_W=2.0, lambda_b=0.3)


def circle(points: int, turn: float = 0.1) -> np.ndarray:
    """Points on a circle with x·x/n_0 = 1.

    >>> circle(4, 0.0).round(6)[0].tolist()
    [1.414214, 0.0]
    """
    angle = turn + 2.0 * np.pi * np.arange(points) / points
    return np.sqrt(2.0) * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _last_tangent_kernel(net: MLP, X: np.ndarray, X2: np.ndarray | None = None) -> np.ndarray:
    return kernel_flow(net, X, X2, last_only=True).Theta[-1]


def _ridge_claims(width: int, seed: int) -> list[Claim]:
    """Ridge regression on the tangent features of a network, through its kernel, and as a Gaussian process."""
    net, X = network(width, 2), circle(POINTS + 1)
    y = np.random.default_rng(seed).standard_normal(POINTS)
    # ∂z_a/∂θ in units of √λ: (inputs, parameters)
    features = jax.jit(lambda net, layers, X: expand(net, layers, X, jnp.zeros(1)).phi)
    phi = np.asarray(features(net, sample_parameters(net, network_key(seed, 0)), X))
    H = phi @ phi.T
    train, test = slice(POINTS), slice(POINTS, None)

    def through_kernel(ridge: float) -> float:
        fitted = KernelRidge(kernel="precomputed").set_params(alpha=ridge).fit(H[train, train], y)
        return fitted.predict(H[test, train]).item()

    fitted = Ridge(alpha=RIDGE, fit_intercept=False, solver="cholesky").fit(phi[train], y)
    process = GaussianProcess.condition(H[train, train], RIDGE, X[train])
    expected, size = through_kernel(RIDGE), TOLERANCE * np.abs(y).max()
    of_features, of_process = fitted.predict(phi[test]).item(), process.mean(H[test, train], y[:, None]).item()
    wrong = {"half the ridge": through_kernel(0.5 * RIDGE)}
    return [
        Claim.exactly("ridge through features = through the kernel", expected, of_features, size).rejects(wrong),
        Claim.exactly("Gaussian process with noise = ridge", expected, of_process, size).rejects(wrong),
    ]


def _hilbert(width: int, seed: int) -> list[Claim]:
    """The kernel Θ on a circle: eigenvalues against Gegenbauer's, the reproducing property, the norm."""
    net, grid = network(width, 2), circle(96, 0.0)
    Theta = _last_tangent_kernel(net, grid)
    found = mercer_spectra.mercer(Theta, np.full(len(grid), 1.0 / len(grid)), floor=1e-12)
    rng = np.random.default_rng(seed)
    at, weights = rng.choice(len(grid), 5, replace=False), rng.standard_normal(5)
    f, x = Theta[:, at] @ weights, int(rng.integers(len(grid)))
    plain, norm = np.mean(f * Theta[:, x]), weights @ Theta[np.ix_(at, at)] @ weights
    by_degree = mercer_spectra.eigenvalues(2, _last_tangent_kernel(net, *_nodes(2)).ravel(), 3)
    size = 1e-5 * np.abs(f).max()
    return [
        Claim.exactly("Mercer: third eigenvalue on the circle", by_degree[1], found.values[2], 1e-6).rejects(
            {"of degree 2": by_degree[2]}
        ),
        Claim.exactly("reproducing property ⟨f, k(x,·)⟩ = f(x)", f[x], found.inner(f, Theta[:, x]), size).rejects(
            {"inner product of L²": plain}
        ),
        Claim.exactly("norm² of f = Σ α_i k(x_i,·) is α·Kα", norm, found.inner(f, f), 1e-5 * norm).rejects(
            {"α·α": weights @ weights}
        ),
    ]


def _nodes(dimension: int, nodes: int = NODES) -> tuple[np.ndarray, np.ndarray]:
    """One point of the sphere |x|² = d, and points at the cosines of quadrature."""
    t, _ = mercer_spectra.cosines(dimension, nodes)
    others = np.zeros((nodes, dimension))
    others[:, 0], others[:, 1] = t, np.sqrt(1.0 - t**2)
    return np.sqrt(dimension) * np.eye(dimension)[:1], np.sqrt(dimension) * others


def hermite_spectrum(net: MLP, degrees: int) -> tuple[np.ndarray, np.ndarray]:
    """μ_ℓ of K and of Θ on the sphere x·x = n_0 for one hidden layer without bias variance, from Hermite coefficients.

    ⟨σσ⟩ = Σ f_k² t^k and ⟨σ'σ'⟩ = Σ g_k² t^k at z of variance C_W, and powers of t have eigenvalues in closed form;
    K = C_b + C_W⟨σσ⟩, Θ = λ_b + λ_W⟨σσ⟩ + C_W(λ_b + λ_W t)⟨σ'σ'⟩ (theory §2).

    >>> K, Theta = hermite_spectrum(MLP([3, 8, 1], "linear", lambda_b=0.0), 3)
    >>> K.round(12).tolist(), Theta.round(12).tolist()
    ([0.0, 0.333333333333, 0.0], [0.0, 0.666666666667, 0.0])
    """
    d = net.widths[0]
    f, g = (
        hermite_table(net.activation, order, np.array([net.C_W[0]]), TERMS).coefficients[0] ** 2 for order in (0, 1)
    )
    powers = [[mercer_spectra.power_eigenvalue(d, k, degree) for k in range(TERMS + 1)] for degree in range(degrees)]
    value, slope = np.zeros(TERMS + 1), np.zeros(TERMS + 1)
    value[:-1] = f
    slope[:-1] = net.lambda_b[0] * g
    slope[1:] += net.lambda_W[0] * g
    K, Theta = net.C_W[1] * value, net.lambda_W[1] * value + net.C_W[1] * slope
    K[0] += net.C_b[1]
    Theta[0] += net.lambda_b[1]
    return np.array(powers) @ K, np.array(powers) @ Theta


@over_networks
def _on_sphere(net: MLP, key, X):
    """Ĥ between the first input and the others: (networks, inputs − 1)."""
    return tangent_kernel(net, sample_parameters(net, key), X)[0, 1:]


def _spheres(width: int, seed: int) -> tuple[list[Claim], dict[str, Any]]:
    """Spectra by quadrature of the kernel, by Hermite coefficients, and of real networks."""
    net = network(width)
    point, others = _nodes(DIMENSION)
    expected = mercer_spectra.eigenvalues(DIMENSION, _last_tangent_kernel(net, point, others)[0], DEGREES)
    K, Theta = hermite_spectrum(net, DEGREES)
    kernels = _on_sphere(net, seed, NETWORKS, np.concatenate([point, others]))
    measured = mercer_spectra.eigenvalues(DIMENSION, kernels, DEGREES)
    claims = [Claim.exactly("sphere: μ_2 of Θ, Hermite = Gegenbauer", Theta[2], expected[2], 1e-9)]
    claims += [Claim.mean(f"sphere: μ_{k} of real networks", Theta[k], measured[:, k]) for k in (0, 1, 2)]
    claims = [claim.rejects({"of K": K[k]}) for k, claim in zip((2, 0, 1, 2), claims, strict=True)]
    return claims, {"K": K, "Theta": Theta, "measured": measured.mean(axis=0)}


def _first_kernel(net: MLP, seed: int, X: np.ndarray) -> np.ndarray:
    """Ĝ of the first network of a seed."""
    incoming, _ = forward(net, sample_parameters(net, network_key(seed, 0)), X)
    return np.asarray(conditional_kernel(net, incoming))


def _process(width: int, seed: int) -> tuple[list[Claim], np.ndarray]:
    """Subsets of points on a circle drawn with the kernel of a real network; probabilities of all points and pairs."""
    L = STRENGTH * _first_kernel(network(width, 2), seed, circle(POINTS))
    M = mercer_spectra.marginal_kernel(L)
    subsets = mercer_spectra.sample_subsets(L, SUBSETS, seed)
    i, j = np.unravel_index(np.argmax(np.abs(M - np.diag(np.diag(M)))), M.shape)
    together = np.outer(np.diag(M), np.diag(M)) - M**2 + np.diag(np.diag(M))
    upper = np.triu_indices(len(M))
    pairs = np.stack([together[upper], (subsets.T.astype(float) @ subsets / len(subsets))[upper]])
    claims = [
        Claim.mean("point process: a point is in", M[i, i], subsets[:, i]).rejects(
            {"L/(1+L) entry by entry": L[i, i] / (1.0 + L[i, i])}
        ),
        Claim.mean("point process: two points are in", together[i, j], subsets[:, i] & subsets[:, j]).rejects(
            {"independently": M[i, i] * M[j, j]}
        ),
        Claim.mean("point process: number of points", np.trace(M), subsets.sum(axis=1)).rejects({"tr L": np.trace(L)}),
    ]
    return claims, pairs


def _ranks(width: int, seed: int) -> list[Claim]:
    """Kernels of real networks: positive definite for swish on an odd number of directions, and three ways to fail.

    Without biases swish is z/2 plus an even function: antipodal points share its even harmonics and differ by the two
    of degree one alone.
    """
    odd, even = circle(7), circle(8)
    constant, linear, second = (mercer_spectra.multiplicity(2, degree) for degree in range(3))
    quadratic = constant + second

    def rank(what: str, activation: Any, X: np.ndarray, expected: int, wrong: dict[str, Any]) -> Claim:
        kernel = _first_kernel(MLP([2, width, 1], activation, C_W=2.0), seed, X)
        found = np.linalg.matrix_rank(kernel, tol=1e-9, hermitian=True)
        return Claim.exactly(f"rank, {what}", expected, found, 0.1).rejects(wrong)

    return [
        rank("swish, 7 directions", "swish", odd, 7, {"as z²": quadratic}),
        rank("z², 7 directions", jnp.square, odd, quadratic, {"positive definite": 7}),
        rank("swish, one of 8 repeated", "swish", np.concatenate([odd, odd[:1]]), 7, {"positive definite": 8}),
        rank("swish, 4 antipodal pairs", "swish", even, 4 + linear, {"positive definite": 8}),
    ]


def experiment(width: int, seed: int) -> Outcome:
    spheres, curves = _spheres(width, seed)
    process, pairs = _process(width, seed)
    claims = (*_ridge_claims(width, seed), *_hilbert(width, seed), *spheres, *process, *_ranks(width, seed))
    return Outcome(claims, curves | {"pairs": pairs})


def draw(figure: Any, outcomes: Outcomes) -> None:
    left, right = figure.subplots(1, 2)
    sizes, degrees = list(outcomes), np.arange(DEGREES)
    curves = outcomes[sizes[0]][0].curves
    left.plot(degrees, curves["Theta"], **style(0), label=r"$\Theta$, Hermite series")
    left.plot(degrees, curves["K"], color="black", marker="x", linestyle="none", label="$K$, Hermite series")
    for number, size in enumerate(sizes):
        mean = np.mean([outcome.curves["measured"] for outcome in outcomes[size]], axis=0)
        left.plot(degrees, mean, **marks(number), label=f"networks, n = {size}")
        expected, found = np.concatenate([outcome.curves["pairs"] for outcome in outcomes[size]], axis=1)
        right.plot(expected, found, **marks(number), markersize=3, label=f"n = {size}")
    left.set(yscale="log", xlabel=r"degree $\ell$", ylabel=r"eigenvalue $\mu_\ell$", ylim=(1e-7, None))
    left.set_title("spectrum on the sphere in three dimensions")
    left.legend(fontsize=9)
    right.plot([0, 0.5], [0, 0.5], color="black", linewidth=0.8)
    right.set(xlabel=r"probability from $M = L(1+L)^{-1}$", ylabel="share of sampled subsets")
    right.set_title("determinantal point process: points and pairs")
    right.legend()
