"""Bayesian inference of deep linear networks in closed form: quadrature, the exact chain, sampling, limits, sizes."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import loggamma

import widthwise as ww
from widthwise.errors import InvalidInput, SingularKernel
from widthwise.flow.exact import exact_law
from widthwise.special.linear_products import log_meijer

X = np.array([[1.0, 0.4, -0.8, 0.2], [-0.3, 1.2, 0.5, 0.0]])
Y = np.array([1.5, -0.9])
NETS = [
    ww.MLP([4, 1], "linear", C_W=1.3),
    ww.MLP([4, 3, 1], "linear"),
    ww.MLP([4, 2, 5, 1], "linear", C_W=[1.2, 0.8, 1.5]),
    ww.MLP([4, 1, 1, 1, 1], "linear", C_W=2.0),
    ww.MLP([4, *[30] * 12, 1], "linear", C_W=1.1),
]
IDS = ["no hidden layer", "one", "two", "narrow", "twelve"]


def by_quadrature(net, k, r):
    """log E[S^k e^(−r/2S)] by Gauss–Legendre over log S, its density from the characteristic function of log χ²."""
    law = ww.exact.product_law(net.widths[1:-1])
    scale = math.prod(net.C_W) / net.widths[0]
    if not law.widths:
        return k * math.log(scale) - r / (2 * scale)
    tau = np.linspace(-200.0, 200.0, 20_001)
    half = 0.5 * np.asarray(law.widths)[:, None]
    phi = np.exp(np.sum(loggamma(half + 1j * tau) - loggamma(half) - 1j * tau * np.log(half), axis=0))
    t = np.linspace(-40.0, 12.0, 801)
    keep = np.abs(phi) > 1e-18
    density = np.real(np.exp(-1j * np.outer(t, tau[keep])) @ phi[keep]) * (tau[1] - tau[0]) / (2 * math.pi)
    log_S = t + math.log(scale)
    return math.log(np.trapezoid(density * np.exp(k * log_S - 0.5 * r * np.exp(-log_S)), t))


@pytest.mark.parametrize("net", NETS, ids=IDS)
def test_the_evidence_is_an_integral_over_the_law_of_the_scale(net):
    fit = ww.exact.bayesian_interpolation(net, X, Y)
    gram = X @ X.T
    theta = X.T @ np.linalg.solve(gram, Y)
    expected = (
        by_quadrature(net, -1.0, float(theta @ theta)) - math.log(2 * math.pi) - 0.5 * math.log(np.linalg.det(gram))
    )
    assert fit.log_evidence == pytest.approx(expected, abs=1e-7)
    assert fit.theta == pytest.approx(theta, rel=1e-12)


@pytest.mark.parametrize("net", NETS[1:], ids=IDS[1:])
def test_the_evidence_is_the_joint_density_of_the_exact_chain(net):
    # θ along two directions of the data's span has the law of two outputs of the transposed network
    fit = ww.exact.bayesian_interpolation(net, X, Y)
    law = exact_law(ww.MLP([1, *net.widths[-2:0:-1], 2], "linear"), [1.0])
    root = math.sqrt(fit.prior_scale)
    along = fit.basis.T @ fit.theta / root
    density = math.log(float(law.joint_density(along))) - 2 * math.log(root) - 0.5 * fit.log_determinant
    assert fit.log_evidence == pytest.approx(density, abs=1e-9)
    wrong = math.log(float(law.density(float(np.linalg.norm(along))))) - 2 * math.log(root) - 0.5 * fit.log_determinant
    assert fit.log_evidence != pytest.approx(wrong, abs=0.1)


def test_one_layer_is_bayesian_linear_regression():
    net = ww.MLP([4, 1], "linear", C_W=1.3)
    fit = ww.exact.bayesian_interpolation(net, X, Y)
    K = 1.3 / 4 * X @ X.T
    assert fit.log_evidence == pytest.approx(stats.multivariate_normal([0, 0], K).logpdf(Y), rel=1e-12)
    test = np.array([[0.3, -0.2, 1.0, 0.5], [1.0, 0.0, 0.0, 1.0]])
    cross = 1.3 / 4 * test @ X.T
    mean, covariance = fit.predict(test)
    assert mean == pytest.approx(cross @ np.linalg.solve(K, Y), rel=1e-12)
    assert covariance == pytest.approx(1.3 / 4 * test @ test.T - cross @ np.linalg.solve(K, cross.T), rel=1e-11)


def test_wide_layers_are_the_gaussian_process():
    net = ww.MLP([4, 10**6, 10**6, 1], "linear", C_W=1.2)
    ds = ww.posterior(ww.MLP([4, 64, 64, 1], "linear", C_W=1.2), X, Y, [[0.3, -0.2, 1.0, 0.5]], order=0)
    mean, covariance = ww.exact.bayesian_interpolation(net, X, Y).predict([[0.3, -0.2, 1.0, 0.5]])
    assert mean[0] == pytest.approx(float(ds["mean"].values.ravel()[0]), rel=1e-8)
    assert covariance[0, 0] == pytest.approx(float(ds["cov"].values.ravel()[0]), rel=1e-5)


def test_the_first_correction_is_that_of_order_one_over_n():
    test, remainders = [[0.3, -0.2, 1.0, 0.5]], []
    ds = ww.posterior(ww.MLP([4, 64, 64, 1], "linear", C_W=1.2), X, Y, test, order=1)
    leading, first = (float(ds[name].values.ravel()[0]) for name in ("cov0", "cov1"))
    for n in (1600, 3200):
        net = ww.MLP([4, n, n, 1], "linear", C_W=1.2)
        exact = float(ww.exact.bayesian_interpolation(net, X, Y).predict(test)[1][0, 0])
        remainders.append(n**2 * (exact - leading - first / n))
        assert n * (exact - leading) == pytest.approx(first, rel=1e-3)
    assert remainders[1] == pytest.approx(remainders[0], rel=0.05)  # what is left is of order 1/n²


@pytest.mark.parametrize("net", NETS[1:], ids=IDS[1:])
def test_posterior_densities_are_normalised_and_have_the_moments(net):
    fit = ww.exact.bayesian_interpolation(net, X, Y)
    t = np.linspace(-16.0, 14.0, 601)
    density = fit.log_scale_density(t)
    for k, tolerance in ((0.0, 1e-9), (-0.5, 1e-8), (0.5, 1e-8)):
        assert np.trapezoid(density * np.exp(k * t), t) == pytest.approx(fit.scale_moment(k), rel=tolerance)
    # |θ_⊥|² = S χ²_2 here, so that E|θ_⊥| = √(π/2) E √S
    u = np.linspace(-14.0, 8.0, 350)
    norm = fit.norm_density(np.exp(u)) * np.exp(u)
    assert np.trapezoid(norm, u) == pytest.approx(1.0, abs=1e-6)
    assert np.trapezoid(norm * np.exp(u), u) == pytest.approx(math.sqrt(math.pi / 2) * fit.scale_moment(0.5), rel=1e-5)


def test_importance_sampling_over_all_weights_agrees():
    """Real weight matrices; the last layer integrated instead of the first."""
    rng, net = np.random.default_rng(4), ww.MLP([4, 5, 6, 1], "linear", C_W=[1.2, 0.8, 1.5])
    fit = ww.exact.bayesian_interpolation(net, X, Y)
    test = np.array([0.3, -0.2, 1.0, 0.5])
    W1 = rng.normal(size=(40_000, 5, 4)) * math.sqrt(1.2 / 4)
    W2 = rng.normal(size=(40_000, 6, 5)) * math.sqrt(0.8 / 5)
    features = W2 @ W1 @ np.concatenate([X, test[None]]).T
    G = 1.5 / 6 * features.swapaxes(1, 2) @ features
    inverse = np.linalg.inv(G[:, :2, :2])
    weights = np.exp(-0.5 * np.einsum("a,nab,b->n", Y, inverse, Y)) / (2 * math.pi) * np.linalg.det(inverse) ** 0.5
    mean = np.einsum("na,nab,b->n", G[:, 2, :2], inverse, Y)
    second = mean**2 + G[:, 2, 2] - np.einsum("na,nab,nb->n", G[:, 2, :2], inverse, G[:, 2, :2])
    expected_mean, expected_covariance = fit.predict(test[None])
    error = np.std(weights) / math.sqrt(len(weights)) / weights.mean()
    assert abs(math.log(weights.mean()) - fit.log_evidence) < 4 * error
    for values, expected in ((mean, expected_mean[0]), (second, expected_covariance[0, 0] + expected_mean[0] ** 2)):
        ratio = weights @ values / weights.sum()
        scatter = np.std(weights * (values - ratio)) / math.sqrt(len(weights)) / weights.mean()
        assert abs(ratio - expected) < 4 * scatter
    # negative control: the prior's scale in place of the posterior's
    off = test - fit.basis @ (fit.basis.T @ test)
    assert abs(ratio - fit.prior_scale * off @ off - expected_mean[0] ** 2) > 6 * scatter


@pytest.mark.parametrize("net", NETS, ids=IDS)
def test_the_best_prior_scale_has_no_slope(net):
    fit = ww.exact.bayesian_interpolation(net, X, Y)
    best = fit.best_prior_scale()
    tuned = ww.exact.bayesian_interpolation(net.replace(C_W=[net.C_W[0] * best / fit.prior_scale, *net.C_W[1:]]), X, Y)
    assert tuned.prior_scale == pytest.approx(best, rel=1e-12)
    assert tuned.scale_moment(-1.0) == pytest.approx(fit.points / fit.radius_squared, rel=1e-5)
    assert tuned.log_evidence >= fit.log_evidence


def large(P, n, hidden, scale=1.0, features=None):
    rng, features = np.random.default_rng(0), features or 2 * P
    net = ww.MLP([features, *[n] * hidden, 1], "linear")
    return ww.exact.bayesian_interpolation(net, rng.normal(size=(P, features)), scale * rng.normal(size=P))


@pytest.mark.parametrize("depth", [0.3, 3.0, 30.0])
def test_many_data_concentrate_where_the_limit_says(depth):
    gaps = []
    for P in (20, 40, 80):
        n = 50 * P
        fit = large(P, n, round(depth * n / P), scale=3.0)
        limit = ww.exact.interpolation_scale_limit(fit.prior_scale, fit.radius_squared / P, fit.effective_depth)
        gaps.append(P * abs(fit.scale_moment(1.0) / limit - 1))
    assert max(gaps) < 2.0  # an error of order 1/P
    nu = fit.radius_squared / 80
    assert abs(limit / nu - 1) < 0.1 if depth == 30.0 else abs(limit / nu - 1) > 0.25


def test_infinite_effective_depth_matches_the_best_prior():
    """With C_W = 1 the evidence falls short of the best data-dependent Gaussian prior's by o(P) only.

    The likelihood is about Gaussian in log S, of variance 2/P around log ν, and so is the prior, of variance 2Σ1/n.
    """
    P = 60
    shallow, deep = large(P, 100 * P, 1, scale=3.0), large(P, 100 * P, 5000, scale=3.0)
    nu, total = shallow.radius_squared / P, deep.law.effective_depth
    best = -0.5 * P * (math.log(2 * math.pi * nu) + 1.0) - 0.5 * shallow.log_determinant
    away = math.log(nu / deep.prior_scale) + total
    short = away**2 / (4 * total + 4 / P) + 0.5 * math.log(1 + deep.effective_depth)
    assert best - deep.log_evidence == pytest.approx(short, rel=0.05)
    assert best - shallow.log_evidence > 10 * short
    assert deep.scale_moment(1.0) / nu == pytest.approx(1.0, abs=0.07)
    # another scale in every layer moves S by a power of the depth, and spoils it
    rng = np.random.default_rng(0)
    net = ww.MLP([2 * P, *[100 * P] * 5000, 1], "linear", C_W=1.1)
    spoiled = ww.exact.bayesian_interpolation(net, rng.normal(size=(P, 2 * P)), 3.0 * rng.normal(size=P))
    assert best - spoiled.log_evidence > 10 * short


@pytest.mark.parametrize(("P", "n", "hidden"), [(500, 10_000, 100), (500, 1, 100), (2, 10_000, 100)])
def test_the_evidence_is_finite_and_consistent_at_large_orders(P, n, hidden):
    fit = large(P, n, hidden, features=P + 20)
    assert math.isfinite(fit.log_evidence)
    moments = [fit.scale_moment(k) for k in (-1.0, 1.0, 2.0)]
    assert moments[0] * moments[1] >= 1.0
    assert moments[2] >= moments[1] ** 2
    # d log evidence/d log scale = −P/2 + (r/2) E[1/S], by a difference
    h = 1e-3
    slope = (fit._log_evidence(math.log(fit.prior_scale) + h) - fit._log_evidence(math.log(fit.prior_scale) - h)) / (
        2 * h
    )
    expected = -0.5 * P + 0.5 * fit.radius_squared * moments[0]
    assert slope == pytest.approx(expected, abs=1e-4 * P)


# ---- the special function ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "b", [[0.0], [1.0, 2.5], [0.0, -1.5, 3.0], [0.5] * 5, [0.0, -0.5, -0.5, -0.5], [4.0, 30.0]], ids=str
)
@pytest.mark.parametrize("log_z", [-8.0, 0.0, 3.0])
def test_the_contour_agrees_with_mpmath(b, log_z):
    assert log_meijer(log_z, b) == pytest.approx(log_meijer(log_z, b, method="mpmath"), abs=1e-12)
    if min(b) > 0:
        assert log_meijer(log_z, b, tail=True) == pytest.approx(
            log_meijer(log_z, b, tail=True, method="mpmath"), abs=1e-12
        )


@pytest.mark.parametrize("log_z", [19.0, 30.0, 300.0])
def test_far_tails_are_those_of_the_exponential_and_the_bessel_function(log_z):
    # G(z | 0) = e^(−z), G(z | 0, 0) = 2 K_0(2√z)
    assert log_meijer(log_z, [0.0]) == pytest.approx(-math.exp(log_z), rel=1e-11)
    root = 2 * math.exp(0.5 * log_z)
    bessel = math.log(2) - root + 0.5 * math.log(math.pi / (2 * root)) - 1 / (8 * root)
    assert log_meijer(log_z, [0.0, 0.0]) == pytest.approx(bessel, rel=1e-10)


def test_large_orders_are_those_of_the_log_normal_law():
    # E over 100 layers of width 10⁴, at the middle of the law
    law = ww.exact.product_law([10_000] * 100)
    grid = law.log_mean + math.sqrt(law.log_variance) * np.array([-2.0, 0.0, 1.0])
    normal = stats.norm(law.log_mean, math.sqrt(law.log_variance)).pdf(grid)
    assert law.density(grid) == pytest.approx(normal, rel=2e-3)


def test_bad_input_is_refused():
    net = ww.MLP([4, 3, 1], "linear")
    with pytest.raises(InvalidInput, match="net: got a network with biases; expected C_b = 0"):
        ww.exact.bayesian_interpolation(net.replace(C_b=0.1), X, Y)
    with pytest.raises(InvalidInput, match="expected activation 'linear'"):
        ww.exact.bayesian_interpolation(ww.MLP([4, 3, 1], "relu"), X, Y)
    with pytest.raises(InvalidInput, match="net: got 2 outputs"):
        ww.exact.bayesian_interpolation(ww.MLP([4, 3, 2], "linear"), X, Y)
    with pytest.raises(SingularKernel, match="X: got input 1 in the span of those before it"):
        ww.exact.bayesian_interpolation(net, [X[0], 2 * X[0]], Y)
    with pytest.raises(InvalidInput, match="X: got 5 inputs; expected at most 4"):
        ww.exact.bayesian_interpolation(net, np.random.default_rng(0).normal(size=(5, 4)), np.ones(5))
    with pytest.raises(InvalidInput, match="y: got zeros"):
        ww.exact.bayesian_interpolation(net, X, [0.0, 0.0]).best_prior_scale()
    with pytest.raises(InvalidInput, match="method: got 'series'"):
        log_meijer(0.0, [1.0], method="series")
    with pytest.raises(InvalidInput, match="b: got -1; expected positive shapes"):
        log_meijer(0.0, [-1.0], tail=True)
