"""Products of Gaussian matrices, the law of Marchenko and Pastur, and the labs about exactly solvable networks."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

import widthwise as ww
from widthwise.errors import InvalidInput
from widthwise.flow.exact import exact_law
from widthwise.labs.marchenko_pastur import _variance

# ---- products ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("widths", [[1], [3, 5, 2], [40] * 6], ids=str)
def test_density_and_moments_of_the_length_agree(widths):
    law = ww.exact.product_law(widths)
    deviation = math.sqrt(law.log_variance)
    y = np.linspace(law.log_mean - 22 * deviation, law.log_mean + 8 * deviation, 241)
    density = law.density(y)
    assert np.trapezoid(density, y) == pytest.approx(1.0, abs=1e-6)
    assert np.trapezoid(density * y, y) == pytest.approx(law.log_mean, abs=1e-5)
    assert np.trapezoid(density * (y - law.log_mean) ** 2, y) == pytest.approx(law.log_variance, rel=1e-4)
    assert np.trapezoid(density * np.exp(2 * y), y) == pytest.approx(math.exp(law.log_moment(1)), rel=1e-8)
    assert float(law.cdf(y[180])) == pytest.approx(integrate.simpson(density[:181], x=y[:181]), abs=1e-5)
    assert float(law.cdf(y[180]) + law.sf(y[180])) == pytest.approx(1.0, abs=1e-12)


def test_the_length_has_the_exact_law_of_the_chain():
    widths = [3, 6, 4]
    law, chain = ww.exact.product_law(widths), exact_law(ww.MLP([1, *widths, 1], "linear"), [1.0])
    for rho in (0.1, 0.7, 1.5, 3.0):
        assert float(law.cdf(math.log(rho))) == pytest.approx(float(chain.kernel_cdf(rho**2)), abs=1e-9)
    assert law.log_moment(2) == pytest.approx(math.log(chain.kernel_moment(2)), rel=1e-9)


def test_one_layer_is_a_chi_square():
    law, chi = ww.exact.product_law([7]), stats.chi2(7, scale=1 / 7)
    assert float(law.sf(0.3)) == pytest.approx(chi.sf(math.exp(0.6)), rel=1e-12)
    assert float(law.density(-0.2)) == pytest.approx(2 * math.exp(-0.4) * chi.pdf(math.exp(-0.4)), rel=1e-12)


def test_the_log_normal_limit_has_half_of_depth_over_width():
    gaps = []
    for n in (50, 100, 200):
        law = ww.exact.product_law([n] * n)
        gaps.append([n * (law.log_mean + 0.5), n * (law.log_variance - 0.5)])
    assert np.allclose(gaps[1], gaps[2], rtol=0.02)  # corrections of order 1/n
    assert abs(law.log_mean + 0.25) > 0.2  # not a quarter
    assert abs(law.log_variance - 0.25) > 0.2


def test_the_limits_do_not_commute():
    assert float(ww.exact.product_law([10**6]).cdf(math.log(0.9))) < 1e-12  # wide first: one
    deep = ww.exact.product_law([4] * 200)
    assert float(deep.cdf(math.log(0.1))) > 0.999  # deep first: zero,
    assert deep.log_moment(1) == pytest.approx(0.0, abs=1e-11)  # though the mean square is one


def test_moments_below_the_order_of_the_zero_are_infinite():
    assert ww.exact.product_law([2, 5]).log_moment(-1.0) == math.inf
    with pytest.raises(InvalidInput, match="widths: got no layers"):
        ww.exact.product_law([]).density(0.0)
    with pytest.raises(InvalidInput, match="widths: got 0"):
        ww.exact.product_law([3, 0])


@pytest.mark.parametrize("widths", [[1, 1], [1, 1, 1], [2, 1], [1, 2, 1], [3, 2, 4, 3]], ids=str)
def test_the_spectrum_has_its_moments(widths):
    spectrum = ww.exact.product_spectrum(widths)
    u = (np.arange(2000) + 0.5) / 2000
    x = spectrum.upper_edge * u**6
    weight = spectrum.density(x) * spectrum.upper_edge * 6 * u**5 / 2000
    for k, moment in enumerate(spectrum.moments(3)):
        expected = moment - spectrum.zero_mass * (k == 0)
        assert np.sum(weight * x**k) == pytest.approx(expected, rel=1e-4)
    assert np.all(spectrum.density(spectrum.upper_edge * np.array([1.01, 2.0])) < 1e-12)


def test_equal_widths_have_the_fuss_catalan_density_and_numbers():
    for layers in (1, 2, 3):
        spectrum = ww.exact.product_spectrum([1] * (layers + 1))
        phi = np.linspace(0.05, 0.95, 7) * math.pi / (layers + 1)
        s = layers
        x = np.sin((s + 1) * phi) ** (s + 1) / (np.sin(phi) * np.sin(s * phi) ** s)
        density = np.sin(phi) ** 2 * np.sin(s * phi) ** (s - 1) / (math.pi * np.sin((s + 1) * phi) ** s)
        assert spectrum.density(x) == pytest.approx(density, rel=1e-8)
        assert spectrum.upper_edge == pytest.approx((s + 1) ** (s + 1) / s**s, rel=1e-8)
        numbers = [math.comb((s + 1) * k, k) / (s * k + 1) for k in range(6)]
        assert spectrum.moments(5) == pytest.approx(numbers)


def test_the_exact_second_moment_is_that_of_drawn_matrices_and_tends_to_the_limit():
    rng, widths = np.random.default_rng(2), [4, 3, 6]
    A = rng.normal(size=(20_000, 6, 3)) / math.sqrt(3) @ (rng.normal(size=(20_000, 3, 4)) / 2)
    values = np.sum((A.swapaxes(1, 2) @ A) ** 2, axis=(1, 2)) / 4
    spectrum, error = ww.exact.product_spectrum(widths), np.std(values) / math.sqrt(len(values))
    assert abs(values.mean() - spectrum.exact_second_moment()) < 4 * error
    assert abs(values.mean() - spectrum.moments(2)[2]) > 6 * error  # negative control: the limit
    wide = ww.exact.product_spectrum([40_000, 30_000, 60_000])
    assert wide.exact_second_moment() == pytest.approx(wide.moments(2)[2], rel=1e-3)


# ---- Marchenko–Pastur ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.98, 1.0, 2.0, 5.0])
def test_the_distribution_function_integrates_the_density(alpha):
    law = ww.exact.marchenko_pastur(alpha)
    low, high = law.edges
    # x = middle + half cos φ makes the integrand smooth
    middle, half = 0.5 * (low + high), 0.5 * (high - low)

    def below(x, power):
        start = math.acos(max(-1.0, min(1.0, (x - middle) / half)))
        place = lambda phi: middle + half * math.cos(phi)  # noqa: E731
        value = integrate.quad(
            lambda phi: float(law.density(place(phi))) * place(phi) ** power * half * math.sin(phi), start, math.pi
        )
        return value[0]

    for x in np.linspace(low, high, 6)[1:]:
        assert float(law.cdf(x)) == pytest.approx(law.zero_mass + below(x, 0), abs=1e-9)
    assert float(law.cdf(high)) == pytest.approx(1.0, abs=1e-12)
    assert float(law.cdf(-1.0)) == 0.0
    for k in (1, 2, 3):
        assert law.moments(3)[k] == pytest.approx(below(high, k), rel=1e-8)


def test_it_is_the_spectrum_of_one_layer():
    # AᵀA of one layer n_1 × n_0 with entries of variance 1/n_0: XXᵀ/n_0 turned over, so times n_1/n_0
    law, spectrum = ww.exact.marchenko_pastur(0.5), ww.exact.product_spectrum([2, 1])
    x = np.linspace(0.1, 2.8, 9)
    assert 0.5 * law.density(x) == pytest.approx(spectrum.density(x), rel=1e-8)


def test_fluctuations_of_sums_are_those_of_finite_matrices():
    for alpha in (0.25, 2.0):
        law = ww.exact.marchenko_pastur(alpha)
        assert law.fluctuation(lambda x: x) ** 2 == pytest.approx(2 * alpha, rel=1e-12)
        exact = _variance(4_000_000, round(4_000_000 / alpha))
        assert law.fluctuation(np.square) ** 2 == pytest.approx(exact, rel=1e-5)
    # one point in n dimensions: S = χ²_n/n
    n = 5
    chi = stats.chi2(n)
    assert _variance(1, n) == pytest.approx((chi.moment(4) - chi.moment(2) ** 2) / n**4, rel=1e-12)


def test_counts_and_the_largest_eigenvalue_of_drawn_matrices():
    rng, P, n = np.random.default_rng(3), 40, 80
    X = rng.normal(size=(1500, P, n))
    values, law = np.linalg.eigvalsh(X @ X.swapaxes(1, 2) / n), ww.exact.marchenko_pastur(0.5)
    for x in (0.3, 0.8, 2.4):
        counts = np.sum(values <= x, axis=1)
        error = counts.std() / math.sqrt(len(counts))
        assert abs(counts.mean() - float(law.expected_count(x, P))) < 4 * error
    # negative control at the last x: without the term of order one
    assert abs(counts.mean() - P * float(law.cdf(2.4))) > 4 * error
    mean, deviation = law.largest(P)
    assert abs(values[:, -1].mean() - mean) < 4 * values[:, -1].std() / math.sqrt(1500)
    assert values[:, -1].std() == pytest.approx(deviation, rel=0.08)
    with pytest.raises(InvalidInput, match="alpha: got 0"):
        ww.exact.marchenko_pastur(0)
