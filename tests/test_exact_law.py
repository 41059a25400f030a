"""The exact law of one input at finite width: closed forms, real networks, limits, and laws of probability."""

import itertools
import math

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import integrate, special, stats

import widthwise as ww
from widthwise.errors import DivergentMoment, InvalidInput
from widthwise.flow.exact import exact_law, kurtosis_by_depth, scale_free_moments
from widthwise.flow.exact.lattice import LATTICE_MARGIN, add, prefilter, refine, spread_masses
from widthwise.flow.tensors.tensor_flow import finite_flow

X = np.array([1.0, 0.3, -0.5])
ONE = np.ones(2)  # |x|²/n_0 = 1
RELU = ww.activation(lambda z: jnp.maximum(z, 0.0), kinks=[0.0], name="relu by hand")
LINEAR = ww.activation(lambda z: 1.0 * z, name="linear by hand")
SHRINK = ww.activation(lambda z: jnp.where(jnp.abs(z) > 0.5, z - 0.5 * jnp.sign(z), 0.0), kinks=[-0.5, 0.5])
NUMPY = {
    "tanh": np.tanh,
    "relu": lambda z: np.maximum(z, 0),
    "gelu": lambda z: z * special.ndtr(z),
    "sin": np.sin,
    "sigmoid": special.expit,
    "softplus": lambda z: np.logaddexp(0, z),
    "cubic": lambda z: z**3,
    "step": lambda z: (z >= 0).astype(np.float32),
    "leaky_relu(0.1)": lambda z: np.where(z > 0, z, 0.1 * z),
}


# ---- real networks -------------------------------------------------------------------------------------------------


def sampled(net, x, networks, seed, sigma):
    """First output of networks with real weight matrices, and the kernel of their last layer."""
    rng, outputs, kernels = np.random.default_rng(seed), [], []
    for start in range(0, networks, 20_000):
        count = min(20_000, networks - start)
        below = np.broadcast_to(x.astype(np.float32), (count, len(x)))
        z = below
        for layer in range(net.depth):
            fan_in, fan_out = net.widths[layer], net.widths[layer + 1]
            if layer == net.depth - 1:
                kernels.append(net.C_b[layer] + net.C_W[layer] * np.mean(below.astype(float) ** 2, axis=1))
            weights = rng.standard_normal((count, fan_out, fan_in), dtype=np.float32)
            bias = rng.standard_normal((count, fan_out), dtype=np.float32)
            z = np.einsum("nij,nj->ni", weights, below) * np.float32(math.sqrt(net.C_W[layer] / fan_in))
            z = z + bias * np.float32(math.sqrt(net.C_b[layer]))
            below = sigma(z)
        outputs.append(z[:, 0].astype(float))
    return np.concatenate(outputs), np.concatenate(kernels)


def kolmogorov(sample, cdf, points=4001):
    """√N times the largest distance between distribution functions, over quantiles of the sample."""
    values, count = np.sort(sample), len(sample)
    index = np.linspace(0, count - 1, points).astype(int)
    return math.sqrt(count) * np.abs(cdf(values[index]) - (index + 0.5) / count).max()


CRITICAL = stats.kstwobign.ppf(0.999)


def test_a_million_networks_follow_the_exact_law_and_no_other():
    net = ww.MLP([3, 8, 8, 8, 1], "tanh", C_b=0.05, C_W=1.6)
    law = exact_law(net, X)
    outputs, kernels = sampled(net, X, 1_000_000, 11, NUMPY["tanh"])
    assert law.error < 1e-12
    assert kolmogorov(outputs, law.cdf) < CRITICAL
    assert kolmogorov(kernels, law.kernel_cdf) < CRITICAL
    # negative controls: two per cent in C_W, a Gaussian of the same variance, a network one neuron narrower
    other = exact_law(net.replace(C_W=1.6 * 1.02), X)
    assert kolmogorov(outputs, other.cdf) > 2 * CRITICAL
    assert kolmogorov(kernels, other.kernel_cdf) > 2 * CRITICAL
    assert kolmogorov(outputs, stats.norm(scale=math.sqrt(law.variance)).cdf) > 2 * CRITICAL
    narrower = exact_law(net.replace(widths=[3, 7, 7, 7, 1]), X)
    assert kolmogorov(kernels, narrower.kernel_cdf) > 2 * CRITICAL
    # tails and moments, in standard errors
    for q in (1e-2, 1e-3, 1e-4):
        hits = np.mean(np.abs(outputs) > law.isf(q / 2))
        assert abs(hits - q) < 4 * math.sqrt(q / len(outputs))
    for k in (2, 4, 6):
        assert abs(np.mean(outputs**k) - law.moment(k)) < 4 * np.std(outputs**k) / 1e3


@pytest.mark.parametrize(
    ("activation", "widths", "C_b", "C_W"),
    [
        ("gelu", [2, 3, 5], 0.1, 1.5),
        ("sin", [3, 12], 0.1, 1.5),
        ("sigmoid", [8, 4], [0.1, 0.3, 0.2], [1.5, 2.0, 0.7]),
        ("softplus", [1, 2], 0.1, 1.0),
        ("cubic", [12, 6], 0.1, 0.3),
        ("leaky_relu(0.1)", [5, 2], 0.0, 1.8),
    ],
)
def test_networks_of_small_unequal_widths_follow_the_exact_law(activation, widths, C_b, C_W):
    net = ww.MLP([3, *widths, 1], activation, C_b=C_b, C_W=C_W)
    law = exact_law(net, X)
    outputs, kernels = sampled(net, X, 100_000, 5, NUMPY[activation])
    assert law.error < 1e-8
    assert kolmogorov(outputs, law.cdf) < CRITICAL
    assert kolmogorov(kernels, law.kernel_cdf) < CRITICAL
    # negative control: one neuron more in the first layer and five per cent in the last C_W
    other = exact_law(
        net.replace(widths=[3, widths[0] + 1, *widths[1:], 1], C_W=[*net.C_W[:-1], 1.05 * net.C_W[-1]]), X
    )
    assert kolmogorov(kernels, other.kernel_cdf) > CRITICAL


@pytest.mark.parametrize(("activation", "sigma"), [("relu", NUMPY["relu"]), (SHRINK, SHRINK), ("step", NUMPY["step"])])
def test_point_masses_are_those_of_sampled_networks(activation, sigma):
    net = ww.MLP([3, 3, 4, 1], activation, C_W=1.7)
    law = exact_law(net, X)
    outputs, kernels = sampled(net, X, 100_000, 9, lambda z: np.asarray(sigma(z), np.float32))
    silent = np.mean(outputs == 0.0)
    assert law.dead > 0.005
    assert abs(silent - law.dead) < 4 * math.sqrt(law.dead / len(outputs))
    places = np.quantile(outputs, np.linspace(0.02, 0.98, 25))
    shares = np.array([np.mean(outputs <= z) for z in places])
    assert np.abs(law.cdf(places) - shares).max() < 4 * 0.5 / math.sqrt(len(outputs))
    for g in np.quantile(kernels, [0.3, 0.6, 0.9]) * 1.0001:
        assert abs(law.kernel_cdf(g) - np.mean(kernels <= g)) < 4 * 0.5 / math.sqrt(len(outputs))


# ---- closed forms ----------------------------------------------------------------------------------------------------


def meijer(z, widths):
    """P(output > z) and the density of a linear network with K = 1: z² is a product of independent χ² (mpmath)."""
    half = mpmath.mpf(1) / 2
    shapes = [half, *(half * n for n in widths)]
    scale = mpmath.fprod([half, *(half * n for n in widths)]) * mpmath.mpf(z) ** 2
    norm = mpmath.fprod(mpmath.gamma(shape) for shape in shapes)
    above = mpmath.meijerg([[], [1]], [[0, *shapes], []], scale) / (2 * norm)
    return float(above), float(mpmath.meijerg([[], []], [shapes, []], scale) / (norm * z))


@pytest.mark.parametrize("widths", [[1], [2, 2], [3, 1, 4], [8, 8, 8], [64, 64]])
@pytest.mark.parametrize("activation", ["linear", LINEAR], ids=["closed form", "lattice"])
def test_linear_networks_have_the_meijer_law(widths, activation):
    law = exact_law(ww.MLP([2, *widths, 1], activation), ONE)
    for z, tolerance in ((1e-3, 1e-12), (0.5, 1e-12), (3.0, 1e-12), (7.0, 1e-8)):
        above, density = meijer(z, widths)
        assert law.sf(z) == pytest.approx(above, rel=tolerance)
        assert law.density(z) == pytest.approx(density, rel=tolerance)


@pytest.mark.parametrize("widths", [[1], [2], [4], [16, 16, 16]])
def test_tails_are_right_in_relative_terms_down_to_1e_12(widths):
    law = exact_law(ww.MLP([2, *widths, 1], "linear"), ONE)
    for q in (1e-6, 1e-9, 1e-12):
        assert meijer(float(law.isf(q)), widths)[0] == pytest.approx(q, rel=1e-5)


def test_one_linear_neuron_gives_the_product_of_two_normals():
    law = exact_law(ww.MLP([2, 1, 1], "linear"), ONE)
    z = np.array([1e-6, 0.1, 1.0, 5.0, 15.0, 25.0])
    assert np.allclose(law.density(z), special.k0(z) / np.pi, rtol=1e-7)
    assert law.density(0.0) == np.inf
    assert np.allclose(law.log_density(z), np.log(special.k0(z) / np.pi), rtol=1e-8)


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_one_relu_layer_is_a_binomial_mixture_of_gamma_laws(n):
    law = exact_law(ww.MLP([2, n, 1], "relu", C_b=[0.0, 0.2], C_W=[1.0, 2.0]), ONE)
    g = 0.2 + np.array([1e-3, 0.1, 0.5, 1.0, 3.0, 8.0])
    k = np.arange(n + 1)
    share = stats.binom(n, 0.5).pmf(k)
    active = [stats.gamma(j / 2, scale=4 / n) for j in k[1:]]
    cdf = share[0] + sum(p * law_k.cdf(g - 0.2) for p, law_k in zip(share[1:], active, strict=True))
    density = sum(p * law_k.pdf(g - 0.2) for p, law_k in zip(share[1:], active, strict=True))
    assert np.allclose(law.kernel_cdf(g), cdf, rtol=0, atol=1e-9)
    assert np.allclose(law.kernel_density(g), density, rtol=1e-7)
    assert law.kernel_cdf(0.2) == pytest.approx(0.5**n, abs=1e-9)
    assert law.dead == 0.0


@pytest.mark.parametrize(("n", "depth"), [(1, 3), (4, 3), (16, 40), (64, 500), (1024, 500)])
def test_deep_relu_networks_keep_the_exact_moments_and_die_at_the_exact_rate(n, depth):
    net = ww.MLP([2, *[n] * (depth - 1), 1], "relu", C_W=2.0)
    law = exact_law(net, ONE)
    moments = scale_free_moments(net, ONE, 2)
    assert law.variance == pytest.approx(2.0, rel=1e-8)
    assert law.kernel_moment(2) == pytest.approx(moments[-1, 2], rel=1e-8)
    assert moments[-1, 2] == pytest.approx(4.0 * (1 + 5 / n) ** (depth - 1), rel=1e-10)
    assert law.dead == pytest.approx(1 - (1 - 0.5**n) ** (depth - 1), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("C_b", [0.0, 0.1])
@pytest.mark.parametrize("widths", [[1], [2, 3], [4, 4, 4], [16, 48]])
def test_the_generic_route_agrees_with_the_closed_form_within_its_error(widths, C_b):
    z = np.array([0.01, 0.5, 3.0, 8.0])
    for known, generic in (("relu", RELU), ("linear", LINEAR)):
        one, other = (exact_law(ww.MLP([2, *widths, 1], a, C_b=C_b, C_W=1.8), ONE) for a in (known, generic))
        assert np.abs(one.cdf(z) - other.cdf(z)).max() < 1e-13 + 10 * other.error < 1e-11
        assert np.allclose(one.density(z), other.density(z), rtol=1e-8)
        assert other.dead == pytest.approx(one.dead, rel=1e-10)


def test_the_generic_route_agrees_with_the_closed_form_at_depth():
    z = np.array([1e-4, 0.05, 0.5, 3.0])
    one, other = (exact_law(ww.MLP([2, *[64] * 60, 1], a, C_b=0.05, C_W=0.95), ONE) for a in ("linear", LINEAR))
    assert np.abs(one.cdf(z) - other.cdf(z)).max() < other.error < 1e-11
    assert other.excess_kurtosis == pytest.approx(one.excess_kurtosis, rel=1e-10)


@pytest.mark.parametrize("activation", ["leaky_relu(0.2)", "relu", "linear"])
def test_high_moments_are_those_of_the_closed_recursion(activation):
    net = ww.MLP([2, 3, 5, 2, 1], activation, C_b=[0.1, 0.0, 0.3, 0.2], C_W=[1.0, 1.5, 0.8, 1.2])
    law, moments = exact_law(net, ONE), scale_free_moments(net, ONE, 4)
    for layer, kernel in enumerate(law.kernels):
        for k in (1, 2, 3, 4):
            assert kernel.moment(k) == pytest.approx(moments[layer, k], rel=1e-7)
    assert law.moment(6) == pytest.approx(15 * moments[-1, 3], rel=1e-7)


def test_a_step_makes_binomial_kernels():
    law = exact_law(ww.MLP([2, 7, 3, 1], "step", C_b=0.1, C_W=2.0), ONE)
    g = 0.1 + 2.0 * np.arange(4) / 3
    assert np.allclose(law.kernel_cdf(g + 1e-12), stats.binom(3, 0.5).cdf(range(4)), atol=1e-14)
    cdf = sum(p * stats.norm(scale=math.sqrt(v)).cdf(0.7) for p, v in zip([1 / 8, 3 / 8, 3 / 8, 1 / 8], g, strict=True))
    assert law.cdf(0.7) == pytest.approx(cdf, rel=1e-13)
    sign = exact_law(ww.MLP([2, 7, 3, 1], ww.activation(jnp.sign, kinks=[0.0]), C_W=2.0), ONE)
    assert sign.cdf(0.7) == pytest.approx(stats.norm(scale=math.sqrt(2.0)).cdf(0.7), rel=1e-13)


# ---- limits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "gelu", "sin", "relu"])
@pytest.mark.parametrize("n", [1, 3, 10, 200])
def test_one_hidden_layer_has_the_variance_of_a_mean_of_n_neurons(activation, n):
    net = ww.MLP([3, n, 1], activation, C_b=0.2, C_W=1.4)
    K = net.C_b[0] + net.C_W[0] * X @ X / 3
    sigma = NUMPY[activation]

    def mean(power):
        edges = [-14.0, 0.0, 14.0]
        parts = [integrate.quad(lambda u: sigma(math.sqrt(K) * u) ** power * stats.norm.pdf(u), *pair, epsabs=1e-13)[0]
                 for pair in itertools.pairwise(edges)]  # fmt: skip
        return sum(parts)

    law = exact_law(net, X)
    assert law.variance == pytest.approx(0.2 + 1.4 * mean(2), rel=1e-10)
    assert law.kernel.variance == pytest.approx(1.4**2 * (mean(4) - mean(2) ** 2) / n, rel=1e-8)


@pytest.mark.parametrize(("activation", "C_b", "C_W"), [("tanh", 0.05, 1.5), ("gelu", 0.17, 1.98), ("sin", 0.1, 1.2)])
def test_wide_networks_approach_the_order_one_tensors_at_the_right_rate(activation, C_b, C_W):
    widths, first, second = (64, 128, 256), [], []
    for n in widths:
        net = ww.MLP([3, n, n, n, 1], activation, C_b=C_b, C_W=C_W)
        flow, law = finite_flow(net, X[None], ("V", "G1"), last_only=True), exact_law(net, X)
        V, G1, K = flow.tensors["V"].item(), flow.tensors["G1"].item(), flow.K.item()
        first.append(abs(n * law.kernel.variance - V))
        second.append(abs(law.variance - K - G1 / n))
        assert first[-1] < 30 / n * V  # and without V/n nothing is left to compare with
    assert np.polyfit(np.log(widths), np.log(first), 1)[0] == pytest.approx(-1.0, abs=0.12)
    assert np.polyfit(np.log(widths), np.log(second), 1)[0] == pytest.approx(-2.0, abs=0.12)


def test_order_one_fails_as_depth_over_width_grows():
    n, depth = 16, 17
    net = ww.MLP([3, *[n] * (depth - 1), 1], "relu", C_W=2.0)
    table = kurtosis_by_depth(net, X)
    layers = np.arange(1, depth)
    assert np.allclose(table["depth_over_width"], layers / n)
    assert np.allclose(table["exact"], 3 * ((1 + 5 / n) ** layers - 1), rtol=1e-8)
    assert np.allclose(table["order1"], 15 * layers / n, rtol=1e-8)
    assert abs(table["gap"][0]) < 1e-9  # one hidden layer: order 1/n is all there is
    assert np.all(np.diff(table["gap"]) < 0.0)
    assert table["gap"][-1] < -0.8


def test_infinite_width_is_gaussian():
    net = ww.MLP([3, *[10**6] * 3, 1], "tanh", C_b=0.1, C_W=1.5)
    law = exact_law(net, X)
    K = finite_flow(net, X[None], ("V",), last_only=True).K.item()
    z = np.linspace(-3, 3, 7)
    assert np.abs(law.cdf(z) - stats.norm(scale=math.sqrt(K)).cdf(z)).max() < 1e-6


# ---- laws of probability ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["gelu narrow", "tanh", "relu", "relu biased"])
def law(request):
    nets = {
        "gelu narrow": ww.MLP([3, 1, 2, 1], "gelu", C_b=0.1, C_W=2.0),
        "tanh": ww.MLP([3, 10, 40, 2], "tanh", C_W=1.3),
        "relu": ww.MLP([3, 3, 2, 1], "relu", C_W=2.0),
        "relu biased": ww.MLP([3, 3, 6, 1], "relu", C_b=0.2, C_W=1.5),
    }
    return exact_law(nets[request.param], X)


def test_densities_integrate_to_what_is_not_a_point_mass(law):
    total = 2 * integrate.quad(lambda t: float(law.density(math.exp(t))) * math.exp(t), -60, 6, limit=400)[0]
    assert total == pytest.approx(1 - law.dead, abs=1e-8)
    assert law.kernel.mass == pytest.approx(1.0, abs=1e-12)


def test_distribution_functions_are_monotone_and_the_quantile_inverts_them(law):
    z = np.linspace(-12, 12, 2001)
    assert np.all(np.diff(law.cdf(z)) >= 0.0)
    assert np.allclose(law.cdf(z) + law.sf(z), 1.0, atol=1e-14)
    p = np.array([1e-10, 1e-3, 0.05, 0.2, 0.8, 0.999])
    p = p[np.abs(p - 0.5) > 0.5 * law.dead]
    assert np.allclose(law.cdf(law.quantile(p)), p, rtol=1e-10)
    assert law.quantile(0.5) == 0.0
    assert np.allclose(law.isf(p), law.quantile(1 - p), rtol=1e-4)
    assert law.cdf(0.0) == pytest.approx(0.5 * (1 + law.dead), abs=1e-12)


def test_the_density_is_the_slope_of_the_distribution_function(law):
    z, step = np.array([0.2, 0.9, 2.5]), 1e-4
    slope = (law.cdf(z + step) - law.cdf(z - step)) / (2 * step)
    assert np.allclose(law.density(z), slope, rtol=1e-6)
    assert np.array_equal(law.density(-z), law.density(z))


def test_joint_densities_marginalise(law):
    z = 0.8
    marginal = (
        2 * integrate.quad(lambda t: float(law.joint_density([z, math.exp(t)])) * math.exp(t), -40, 5, limit=200)[0]
    )
    assert marginal == pytest.approx(float(law.density(z)), rel=1e-7)
    assert law.joint_density([[z], [2 * z]]) == pytest.approx(law.density([z, 2 * z]), rel=1e-13)


def test_kernel_density_and_moments_belong_to_the_kernel_distribution(law):
    g = law.kernel_cdf
    spread_over = np.exp(np.linspace(-3, 2, 11)) * law.variance
    slope = (g(spread_over * 1.0001) - g(spread_over * 0.9999)) / (0.0002 * spread_over)
    assert np.allclose(law.kernel_density(spread_over), slope, rtol=1e-4, atol=1e-10)
    assert np.all(np.diff(g(np.linspace(0, 10 * law.variance, 500))) > -1e-3)
    assert law.moment(2) == law.variance
    assert law.moment(3) == 0.0
    assert law.excess_kurtosis == pytest.approx(law.moment(4) / law.moment(2) ** 2 - 3, rel=1e-9)


def test_certain_kernels():
    nothing = exact_law(ww.MLP([3, 4, 4, 1], "tanh"), np.zeros(3))
    assert nothing.dead == 1.0
    assert nothing.cdf([-0.1, 0.1]).tolist() == [0.0, 1.0]
    assert np.isnan(nothing.excess_kurtosis)
    gaussian = exact_law(ww.MLP([3, 1], "tanh", C_b=0.1, C_W=2.0), X)
    assert gaussian.cdf(0.4) == pytest.approx(stats.norm(scale=math.sqrt(0.1 + 2 * X @ X / 3)).cdf(0.4), rel=1e-14)
    cut = exact_law(ww.MLP([3, 4, 4, 1], "tanh", C_b=0.3, C_W=[1.0, 1.0, 0.0]), X)
    assert cut.variance == pytest.approx(0.3, rel=1e-14)
    assert exact_law(ww.MLP([3, 4, 1], "sigmoid"), np.zeros(3)).variance == pytest.approx(0.25, rel=1e-14)


# ---- the lattice ----------------------------------------------------------------------------------------------------------


def test_spreading_preserves_the_averages_of_smooth_functions():
    h, rng = 1 / 32, np.random.default_rng(0)
    x, weights = rng.uniform(-2, 1, (3, 50)), rng.dirichlet(np.ones(50), 3)
    first = math.floor(-2 / h) - LATTICE_MARGIN
    on = spread_masses(x, weights, h, first, 3 * 32 + 2 * LATTICE_MARGIN + 2)
    y = h * (first + np.arange(on.shape[1]))
    for f in (np.cos, np.exp, lambda t: np.exp(-3 * np.exp(-t))):
        assert np.allclose(on @ f(y), (weights * f(x)).sum(axis=1), rtol=0, atol=1e-14)
        finer = refine(on)
        assert np.allclose(finer @ f(0.5 * h * (2 * first + np.arange(finer.shape[1]))), on @ f(y), atol=1e-14)
    # negative control: the spline without its filter smooths
    smoothed = np.linalg.norm(on - prefilter(on))
    assert smoothed > 0.1 * np.linalg.norm(on)


def test_adding_two_laws_adds_the_variables():
    h, rng = 1 / 32, np.random.default_rng(1)
    a, b = rng.uniform(-3, 1, (1, 20)), rng.uniform(-1, 1, (1, 20))
    first = math.floor(-3 / h) - LATTICE_MARGIN
    u, v = (spread_masses(x, np.full((1, 20), 0.05), h, first, 5 * 32 + 2 * LATTICE_MARGIN) for x in (a, b))
    total = add(u, v, h)
    s = np.exp(h * (first + np.arange(total.shape[1])))
    sums = np.exp(a[0])[:, None] + np.exp(b[0])
    for rate in (0.1, 1.0, 5.0):
        assert total[0] @ np.exp(-rate * s) == pytest.approx(np.exp(-rate * sums).mean(), abs=1e-13)
    assert np.allclose(add(u, u, h)[0] @ s, 2 * np.exp(a).mean(), rtol=1e-12)


# ---- what is refused --------------------------------------------------------------------------------------------------------


def test_bad_input_is_named():
    net = ww.MLP([3, 4, 1], "tanh")
    with pytest.raises(InvalidInput, match=r"x: got 2 inputs \(shape \(2, 3\)\); expected one input"):
        exact_law(net, np.ones((2, 3)))
    with pytest.raises(InvalidInput, match="x: got nan at index"):
        exact_law(net, [1.0, np.nan, 0.0])
    with pytest.raises(InvalidInput, match="x: got 2 features per input"):
        exact_law(net, [1.0, 2.0])
    law = exact_law(net, X)
    assert np.array_equal(law.cdf([0.3]), exact_law(net, X[None, :]).cdf([0.3]))
    with pytest.raises(InvalidInput, match="p: got 1; expected probabilities between 0 and 1"):
        law.quantile([0.5, 1.0])
    with pytest.raises(InvalidInput, match="k: got -2; expected a whole number from 0 to 300"):
        law.moment(-2)
    with pytest.raises(InvalidInput, match="z: got nan"):
        law.density(np.nan)


def test_moments_out_of_reach_are_refused():
    law = exact_law(ww.MLP([2, *[2] * 60, 1], "relu", C_W=2.0), ONE)
    assert law.variance == pytest.approx(2.0, rel=1e-9)
    with pytest.raises(DivergentMoment, match="Ask for a lower moment"):
        law.kernel_moment(4)
