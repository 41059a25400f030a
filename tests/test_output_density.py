"""The density to order 1/n: exact moments and marginals, the action, where it is negative, and sampled networks."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.stats import chi2, multivariate_normal, norm

import widthwise as ww
from widthwise.flow.action.couplings import couplings
from widthwise.flow.action.output_density import OutputDensity, output_density

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8]])
NET = ww.MLP([3, 32, 32, 8], "tanh", C_b=0.1, C_W=1.5)


@pytest.fixture(scope="module")
def layer():
    return couplings(NET, X)


@pytest.fixture(scope="module", params=["K", "G"])
def two_by_two(request, layer):
    """Two neurons at two inputs."""
    return OutputDensity(layer.keep(2), request.param)


def expectation(p, f, nodes=6):
    """∫ p f for a polynomial f, by Gauss–Hermite with respect to the central Gaussian: exact."""
    c = p.couplings
    centre = c.K if p.about == "K" else c.G
    size = c.m * c.inputs
    u, w = hermegauss(nodes)
    points = np.array(list(product(u, repeat=size))).reshape(-1, c.m, c.inputs) @ np.linalg.cholesky(centre).T
    weights = np.prod(np.array(list(product(w / w.sum(), repeat=size))), axis=1)
    gauss = np.prod([multivariate_normal(np.zeros(c.inputs), centre).pdf(points[:, i]) for i in range(c.m)], axis=0)
    z = points[:, 0, 0] if size == 1 else points
    return np.tensordot(weights * p.density(z) / gauss, f(points), 1)


def test_one_neuron_at_one_input_has_the_moments_of_section_3(layer):
    one = layer.keep(1).marginal([0])
    K, G1, V, n = one.K[0, 0], one.G1[0, 0], one.V[0, 0, 0, 0], one.n
    for about in ("K", "G"):
        p = OutputDensity(one, about)
        moments = [expectation(p, lambda z, k=k: z[:, 0, 0] ** k) for k in range(6)]
        assert moments[0] == pytest.approx(1.0, abs=1e-13)
        assert np.allclose(moments[1::2], 0.0, atol=1e-13)
        assert moments[2] == pytest.approx(K + G1 / n, rel=1e-12)
        connected = 3 * V / n - (3 * (G1 / n) ** 2 if about == "K" else 0.0)
        assert moments[4] - 3 * moments[2] ** 2 == pytest.approx(connected, rel=1e-9)


def test_many_neurons_and_inputs_have_the_correlators_of_section_3(two_by_two):
    c = two_by_two.couplings
    assert expectation(two_by_two, lambda z: np.ones(len(z))) == pytest.approx(1.0, abs=1e-12)
    two = expectation(two_by_two, lambda z: np.einsum("pia,pjb->pijab", z, z))
    for i, j, a, b in product(range(2), repeat=4):
        assert two[i, j, a, b] == pytest.approx(c.two_point((i, j), (a, b)), abs=1e-12)
    four = expectation(two_by_two, lambda z: np.einsum("pia,pjb,pkc,pld->pijklabcd", z, z, z, z))
    shift = c.G1 / c.n if two_by_two.about == "K" else np.zeros((2, 2))
    for index in product(range(2), repeat=8):
        (i, j, k, w), (a, b, d, e) = index[:4], index[4:]
        pairs = [((i, a), (j, b), (k, d), (w, e)), ((i, a), (k, d), (j, b), (w, e)), ((i, a), (w, e), (j, b), (k, d))]
        wick = sum(two[p[0], q[0], p[1], q[1]] * two[r[0], s[0], r[1], s[1]] for p, q, r, s in pairs)
        # about K the product of the two shifts, of order 1/n², is not in the density
        missing = sum((p[0] == q[0]) * (r[0] == s[0]) * shift[p[1], q[1]] * shift[r[1], s[1]] for p, q, r, s in pairs)
        expected = c.four_point((i, j, k, w), (a, b, d, e)) - missing
        assert four[index] - wick == pytest.approx(expected, abs=1e-12)


def test_marginals_over_neurons_and_inputs_are_exact(two_by_two):
    u, w = np.polynomial.legendre.leggauss(120)
    u, w = 6.0 * u, 6.0 * w
    at = np.array([[0.3, -0.4], [1.1, 0.9], [-2.0, 0.1]])
    # the second neuron integrated over both of its inputs
    z = np.empty((3, 120, 120, 2, 2))
    z[..., 0, :] = at[:, None, None]
    z[..., 1, 0], z[..., 1, 1] = u[:, None], u
    kept = np.einsum("pxy,x,y->p", two_by_two.density(z), w, w)
    assert np.allclose(kept, two_by_two.keep(1).density(at[:, None, :]), rtol=1e-9)
    # and then the second input of the first
    one = two_by_two.keep(1)
    z = np.stack(np.broadcast_arrays(at[:, :1], u), axis=-1)[:, :, None, :]
    assert np.allclose(one.density(z) @ w, one.marginal([0]).density(at[:, 0]), rtol=1e-9)


def test_the_logarithm_is_minus_the_action_of_section_6(layer):
    """About G the two have the same couplings; about K they differ by order 1/n² at most."""
    c = layer.keep(2)
    z = np.random.default_rng(0).normal(size=(40, 2, 2))
    constant = OutputDensity(c, "G").log_density(z) + c.action_at(z)
    assert np.ptp(constant) < 1e-10
    off = []
    for n in (100, 1000, 10_000):
        wide = replace(c, n=n)
        off.append(np.abs(OutputDensity(wide).log_density(z) - OutputDensity(wide, "G").log_density(z)).max())
    assert np.polyfit(np.log([100, 1000, 10_000]), np.log(off), 1)[0] == pytest.approx(-2.0, abs=0.05)


def test_density_and_log_density_differ_by_order_one_over_n_squared(layer):
    z = np.random.default_rng(1).normal(size=(40, 8, 2))
    widths = 10_000 * 2 ** np.arange(4)
    off = []
    for n in widths:
        p = OutputDensity(replace(layer, n=int(n)))
        off.append(np.abs(np.log(p.density(z)) - p.log_density(z)).max())
    assert np.polyfit(np.log(widths), np.log(off), 1)[0] == pytest.approx(-2.0, abs=0.05)


def test_the_first_layer_has_a_gaussian_density():
    p = output_density(NET, X, layer=1, neurons=1)
    z = np.random.default_rng(2).normal(size=(10, 1, 2))
    exact = multivariate_normal(np.zeros(2), p.couplings.K).pdf(z[:, 0])
    assert np.allclose(p.density(z), exact, rtol=1e-12)
    assert p.floor == 1.0


def test_the_distribution_function_is_the_integral_of_the_density(layer):
    for about in ("K", "G"):
        p = OutputDensity(layer.keep(1).marginal([1]), about)
        z = np.linspace(-4.0, 4.0, 4001)
        slope = np.gradient(p.cdf(z), z, edge_order=2)
        assert np.allclose(slope[2:-2], p.density(z)[2:-2], atol=1e-5)
        assert p.cdf(0.0) == pytest.approx(0.5)
        assert p.cdf(np.array([-40.0, 40.0])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("n", [2, 4, 64])
def test_one_input_says_where_the_density_is_negative(m, n):
    """relu, V = 10K² at layer 3 and G1 = 0: negative in a band around Σz² = (m+2)K when V/(nK²) > 4/(m+2)."""
    p = output_density(ww.MLP([3, n, n, m], "relu", C_W=2.0), X[:1])
    K, ratio = p.couplings.K[0, 0], 10.0 / n
    assert p.floor == pytest.approx(1.0 - (m + 2) / 4 * ratio, rel=1e-7)
    z = np.zeros((4000, m, 1))
    z[:, 0, 0] = np.linspace(0.0, 8.0 * np.sqrt(K), 4000)
    negative = z[p.density(z if m > 1 else z[:, 0, 0]) < 0, 0, 0]
    band = p.negative_band()
    if p.floor >= 0.0:
        assert band is None
        assert not len(negative)
    else:
        assert band[0] ** 2 < (m + 2) * K < band[1] ** 2
        assert np.allclose([negative[0], negative[-1]], band, atol=0.01)


def test_along_rays_the_band_is_where_the_density_changes_sign(layer):
    narrow = OutputDensity(replace(layer.keep(2), n=1))
    assert narrow.floor < 0.0
    t = np.linspace(0.0, 6.0, 6001)
    bands = 0
    for direction in np.random.default_rng(3).normal(size=(12, 2, 2)):
        sign = narrow.density(t[:, None, None] * direction)
        band = narrow.negative_band(direction)
        if band is None:
            assert sign.min() >= 0.0
        else:
            bands += 1
            assert np.allclose([t[sign < 0][0], t[sign < 0][-1]], np.minimum(band, 6.0), atol=2e-3)
        z = t[:, None, None] * direction
        gauss = narrow.density(z) / (1.0 + narrow._correction(z))
        assert (sign / gauss).min() >= narrow.floor
    assert bands
    assert OutputDensity(layer.keep(2)).floor > 0.5


def binned(z, edges):
    """Frequencies of the bins over the outputs of every network (networks, bins)."""
    place = np.searchsorted(edges, z)
    return np.stack([(place == j).mean(axis=1) for j in range(len(edges) + 1)], axis=1)


def chi_squared(frequencies, expected):
    """Probability of the distance between mean frequencies and expected ones; networks are independent."""
    off = (frequencies.mean(axis=0) - expected)[:-1]
    cov = np.cov(frequencies[:, :-1].T) / len(frequencies)
    return chi2.sf(off @ np.linalg.solve(cov, off), len(off))


@pytest.fixture(scope="module")
def outputs():
    """Outputs (networks, 8) at the first input of real networks of width 32 and depth 3."""
    rng, chunk, found = np.random.default_rng(0), 5000, []
    for _ in range(40):
        z, signal = None, np.broadcast_to(X[:1].T, (chunk, 3, 1))
        for fan_in, fan_out, C_b, C_W in zip(NET.widths[:-1], NET.widths[1:], NET.C_b, NET.C_W, strict=True):
            W = np.sqrt(C_W / fan_in) * rng.standard_normal((chunk, fan_out, fan_in), dtype=np.float32)
            z = W @ signal + np.sqrt(C_b) * rng.standard_normal((chunk, fan_out, 1))
            signal = np.tanh(z)
        found.append(z[:, :, 0])
    return np.concatenate(found)


def test_sampled_networks_follow_the_density_and_not_a_gaussian(outputs, layer):
    K, G = layer.K[0, 0], layer.G[0, 0]
    edges = np.sqrt(K) * np.linspace(-3.2, 3.2, 24)
    frequencies = binned(outputs, edges)

    def probability(cdf):
        return chi_squared(frequencies, np.diff(np.concatenate([[0.0], cdf(edges), [1.0]])))

    one = layer.keep(1).marginal([0])
    assert probability(OutputDensity(one, "K").cdf) > 1e-3
    assert probability(OutputDensity(one, "G").cdf) > 1e-3
    for variance in (K, G, outputs.var()):
        assert probability(norm(scale=np.sqrt(variance)).cdf) < 1e-8


def test_two_neurons_of_sampled_networks_follow_the_joint_density_and_not_the_product(outputs, layer):
    """Cells in |z_0|, |z_1|: neurons of one layer are uncorrelated but not independent."""
    edges = np.sqrt(layer.K[0, 0]) * np.array([0.0, 0.5, 1.0, 1.6, 9.0])
    place = np.searchsorted(edges, np.abs(outputs)) - 1
    # all 28 pairs of the eight neurons: with four of them the product was rejected on four seeds of ten only
    first, second = np.triu_indices(outputs.shape[1], 1)
    cell = place[:, first] * 4 + place[:, second]
    frequencies = np.stack([(cell == j).mean(axis=1) for j in range(16)], axis=1)
    u, w = np.polynomial.legendre.leggauss(40)
    half = np.diff(edges)[:, None] / 2
    node, weight = edges[:-1, None] + half * (1 + u), half * w
    z = np.stack(np.broadcast_arrays(node[:, None, :, None], node[None, :, None, :]), axis=-1)[..., None]
    one = OutputDensity(layer.marginal([0]).keep(1))
    joint = 4 * np.einsum("ijxy,ix,jy->ij", OutputDensity(layer.marginal([0]).keep(2)).density(z), weight, weight)
    single = 2 * np.einsum("ix,ix->i", one.density(node), weight)
    assert chi_squared(frequencies, joint.ravel()) > 1e-3
    assert chi_squared(frequencies, np.outer(single, single).ravel()) < 1e-8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: OutputDensity(c, "V"), "about: got 'V'; expected one of G, K"),
        (lambda c: OutputDensity(c).cdf(0.0), "cdf: got 8 neurons at 2 inputs; expected one neuron at one input"),
        (lambda c: OutputDensity(c).density(np.zeros((2, 8))), r"z: got shape \(2, 8\); expected shape \(…, 8, 2\)"),
        (lambda c: OutputDensity(c).density("zero"), "z: got an array of"),
        (lambda c: OutputDensity(c).keep(9), "neurons: got 9"),
        (lambda c: OutputDensity(c).marginal([0, 0]), "none twice"),
        (lambda c: OutputDensity(c).negative_band(), r"direction: got none for 2 inputs; expected an array of shape \(8, 2\)"),
        (lambda c: OutputDensity(c).negative_band(np.zeros((8, 2))), "direction: got shape .* other than zero"),
        (lambda c: OutputDensity(c).negative_band(np.ones((3, 8, 2))), r"direction: got shape \(3, 8, 2\)"),
        (lambda c: OutputDensity(replace(c, n=1, G1=-2.0 * c.K), "G").density(np.zeros((8, 2))), "n: got 1; expected a width"),
        (lambda c: output_density(NET, X[[0, 0]]), "X: got rows 0 and 1, which coincide"),
        (lambda c: output_density(NET, X, neurons=0), "neurons: got 0; expected an integer from 1 to 8"),
    ],
)  # fmt: skip
def test_bad_requests_say_what_was_expected(layer, call, message):
    with pytest.raises(ww.WidthwiseError, match=message):
        call(layer)
