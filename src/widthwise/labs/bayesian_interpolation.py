"""deep linear networks infer their own prior scale

Without noise, evidence and posterior of a deep linear network are Meijer G-functions of |θ_*|², the squared norm of the
least-norm interpolant: the predictive mean is θ_*·x, the variance E[S | data]|x_⊥|². For many data the effective depth
P Σ 1/n_l decides: with C_W = 1 it takes S from the prior's value to ν = |θ_*|²/P, the variance of greatest evidence
(theory §10).
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.decompositions import one_by_one
from widthwise.experiments.sampler import conditional_kernel, forward, sample_parameters
from widthwise.labs.base import Outcome, Outcomes, over_networks
from widthwise.labs.claims import Claim
from widthwise.labs.estimates import mean_and_error, ratio_and_error
from widthwise.network import MLP
from widthwise.plots.style import COLOURS, marks, style
from widthwise.special.bayesian_interpolation import Interpolation, bayesian_interpolation, interpolation_scale_limit

SIZES = (6, 12, 24)
SIZE = "width"
FEATURES, HIDDEN = 6, 3
X = np.array([[1.0, 0.4, -0.8, 0.2, 0.0, 0.5], [-0.3, 1.2, 0.5, 0.0, -0.7, 0.1], [0.6, -0.2, 0.9, 1.1, 0.3, -0.4]])
Y = np.array([1.5, -0.9, 1.1])
NETWORKS, BLOCKS = 40_000, 40
#: Many data in wide layers, where the posterior scale concentrates: points per unit of size, and the effective depth.
POINTS_PER_SIZE, WIDTH_PER_POINT = 4, 50
LARGE_DEPTH = 50.0
#: Data sets with noisy targets, points over dimensions, and the deviation of the noise.
DRAWN_SETS, RATIO, NOISE = 200, 0.5, 0.5


def network(width: int, hidden: int = HIDDEN) -> MLP:
    return MLP([FEATURES, *[width] * hidden, 1], "linear")


@over_networks
def _weights_and_predictions(net: MLP, key, inputs):
    """p(y | hidden weights), and the mean and second moments of the outputs at the tests given them and the data.

    The last layer's weights are integrated, those of all hidden layers are drawn: the closed form does the opposite.
    """
    P = len(Y)
    G = conditional_kernel(net, forward(net, sample_parameters(net, key), inputs)[0])
    cholesky = one_by_one(jnp.linalg.cholesky)(G[:P, :P])
    both = jnp.concatenate([jnp.asarray(Y)[:, None], G[:P, P:]], 1)
    white = jax.scipy.linalg.solve_triangular(cholesky, both, lower=True)
    log_determinant = 2 * jnp.sum(jnp.log(jnp.diag(cholesky))) + P * math.log(2 * math.pi)
    mean = white[:, 1:].T @ white[:, 0]
    variance = jnp.diag(G)[P:] - jnp.sum(white[:, 1:] ** 2, axis=0)
    return jnp.exp(-0.5 * (jnp.sum(white[:, 0] ** 2) + log_determinant)), mean, mean**2 + variance


def experiment(width: int, seed: int) -> Outcome:
    fit = bayesian_interpolation(network(width), X, Y)
    # one test input in the span of the data and off it, then directions off the span
    off = np.linalg.svd(X)[2][len(X) :]
    tests = np.concatenate([[X[0] + X[1] + off[0]], off])
    inputs = np.concatenate([X, tests])
    weights, means, squares = _weights_and_predictions(network(width), seed, NETWORKS, inputs, blocks=BLOCKS)
    weighted = np.stack([weights, weights * means[:, 0], weights * squares[:, 1:].sum(axis=1)])
    evidence, mean, norm_squared = weighted.reshape(3, BLOCKS, -1).mean(axis=2)
    log_evidence = mean_and_error(evidence).logarithm()
    wide, shallow = (bayesian_interpolation(net, X, Y) for net in (network(10**9), network(width, HIDDEN - 2)))
    predicted = fit.predict(tests)[0][0]
    scales = {"infinite width": wide.scale_moment(1.0), "the prior's": fit.prior_scale}
    scales["two layers fewer"] = shallow.scale_moment(1.0)
    claims = (
        Claim("log evidence", fit.log_evidence, *log_evidence).rejects(
            {"infinite width": wide.log_evidence, "two layers fewer": shallow.log_evidence}
        ),
        Claim("predictive mean", predicted, *ratio_and_error(mean, evidence)).rejects(
            {"the prior's": 0.0, "half the least-norm interpolant": 0.5 * predicted}
        ),
        Claim(
            "E |θ_⊥|² given the data", len(off) * fit.scale_moment(1.0), *ratio_and_error(norm_squared, evidence)
        ).rejects({name: len(off) * scale for name, scale in scales.items()}),
        _deep_claim(width, seed),
        _norm_claim(width, seed),
    )
    return Outcome(claims)


def _deep_claim(size: int, seed: int) -> Claim:
    """E[S | data]/ν of a network with C_W = 1 and a large effective depth, by the closed form, against its limit."""
    P = POINTS_PER_SIZE * size
    fit = _synthetic(P, LARGE_DEPTH, seed)
    nu = fit.radius_squared / P
    limit = interpolation_scale_limit(fit.prior_scale, nu, fit.effective_depth)
    # the limit leaves out terms of order 1/P
    return Claim.exactly("E S/ν at effective depth 50", limit / nu, fit.scale_moment(1.0) / nu, 1.5 / P).rejects(
        {"the prior's": fit.prior_scale / nu}
    )


def _norm_claim(size: int, seed: int) -> Claim:
    """ν = |θ_*|²/P at P/n_0 = α for targets θ·x + noise: |θ|²/n_0 + s²/(n_0 − P − 1) on average, at every size.

    The first is the share α of |θ|² that P directions of n_0 catch, the second the mean of tr (XXᵀ)⁻¹: noise enters
    with 1/(1 − α), from the small eigenvalues of the law of Marchenko and Pastur.
    """
    P = POINTS_PER_SIZE * size
    n_0 = round(P / RATIO)
    rng = np.random.default_rng([seed, size])
    data = rng.normal(size=(DRAWN_SETS, P, n_0))
    targets = data @ np.full(n_0, n_0**-0.5) + NOISE * rng.normal(size=(DRAWN_SETS, P))
    solved = np.linalg.solve(data @ data.swapaxes(1, 2), targets[..., None])[..., 0]
    found = np.einsum("kp,kp->k", targets, solved) / P
    signal, noise = 1.0 / n_0, NOISE**2 / (n_0 - P - 1)
    return Claim.mean(f"n_0 × ν of noisy targets, P/n_0 = {RATIO:g}", n_0 * (signal + noise), n_0 * found).rejects(
        {"noise without 1/(1 − α)": n_0 * signal + NOISE**2, "all of θ": n_0 * (signal / RATIO + noise)}
    )


def _synthetic(P: int, effective_depth: float, seed: int) -> Interpolation:
    """P points in 2P dimensions with targets of size three, layers 50 times as wide as there are points, C_W = 1."""
    rng = np.random.default_rng(seed)
    width = WIDTH_PER_POINT * P
    hidden = max(1, round(effective_depth * width / P))
    net = MLP([2 * P, *[width] * hidden, 1], "linear")
    return bayesian_interpolation(net, rng.normal(size=(P, 2 * P)), 3.0 * rng.normal(size=P))


def _effective_depths() -> dict[str, Any]:
    """E S/ν over effective depths for two numbers of points, and the limit."""
    depths = np.geomspace(0.02, 100.0, 12)
    curves: dict[str, Any] = {}
    for P in (10, 100):
        fits = [_synthetic(P, depth, 0) for depth in depths]
        nu = fits[0].radius_squared / P
        curves[f"P = {P}"] = [[fit.effective_depth for fit in fits], [fit.scale_moment(1.0) / nu for fit in fits]]
        grid = np.geomspace(0.02, 100.0, 200)
        curves[f"limit, P = {P}"] = [grid, [interpolation_scale_limit(fits[0].prior_scale, nu, d) / nu for d in grid]]
    return curves


def draw(figure: Any, outcomes: Outcomes) -> None:
    left, right = figure.subplots(1, 2)
    sizes = list(outcomes)
    rho = np.linspace(0.02, 4.0, 120)
    for number, size in enumerate([*sizes, 10**9]):
        fit = bayesian_interpolation(network(size), X, Y)
        left.plot(rho, fit.norm_density(rho), label=f"n = {size}" if size < 10**9 else "n = ∞", **style(number))
    left.set(xlabel=r"$|\theta_\perp|$", ylabel="posterior density", title="the part of θ that the data do not fix")
    left.legend()
    curves = _effective_depths()
    for number, P in enumerate((10, 100)):
        right.plot(*curves[f"limit, P = {P}"], **style(number), label=f"limit, P = {P}")
        right.plot(*curves[f"P = {P}"], **marks(number), label=f"P = {P}")
    right.axhline(1.0, color=COLOURS[3], linewidth=0.8)
    right.set(xscale="log", xlabel=r"effective depth $P\,\Sigma 1/n_l$", ylabel=r"$\mathbf{E}[S\,|\,data]\;/\;\nu$")
    right.set_title("deep networks find the best prior variance ν")
    right.legend(loc="lower right")
