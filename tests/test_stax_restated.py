"""What the tests of neural-tangents assert of its layers, restated here: each names the test that it restates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf

from widthwise import stax

RNG = np.random.default_rng(0)
ROWS, IMAGES = RNG.normal(size=(4, 5)), RNG.normal(size=(3, 4, 4, 2))
DENSE = {"W_std": 1.3, "b_std": 0.2}


def dense():
    return stax.Dense(8, **DENSE)


def conv(window=(3, 3)):
    return stax.Conv(8, window, padding="SAME", **DENSE)


def kernels(*layers, X=ROWS, X2=None):
    found = stax.serial(*layers)[2](X, X2, ("nngp", "ntk"))
    return np.stack([np.asarray(found.nngp), np.asarray(found.ntk)])


def same(one, other, rtol=1e-12):
    np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-13)


@pytest.mark.parametrize(
    ("general", "special"),
    [
        (stax.ABRelu(0.0, 1.0), stax.Relu()),  # elementwise_test: ABReluTest.test_ab_relu_relu
        (stax.ABRelu(1.0, 1.0), stax.Identity()),  # elementwise_test: ABReluTest.test_ab_relu_id
        (stax.ABRelu(0.3, 1.0), stax.LeakyRelu(0.3)),  # elementwise_test: ABReluTest.test_leaky_relu
        (stax.ABRelu(-1.0, 1.0), stax.Abs()),  # elementwise_test: ABReluTest.test_abs
        (stax.Monomial(2), stax.Polynomial([0.0, 0.0, 1.0])),  # elementwise_test: ActivationTest.test_monomial
        (stax.Polynomial([0.0, 1.0]), stax.Identity()),  # elementwise_test: ActivationTest.test_polynomial
        (stax.RectifiedMonomial(1), stax.Relu()),  # elementwise_test: ActivationTest.test_monomial
    ],
)
@pytest.mark.parametrize("X2", [None, ROWS[:2] + 1.0], ids=["square", "rectangle"])
def test_general_activations_hold_the_special_ones(general, special, X2):
    same(kernels(dense(), general, dense(), X2=X2), kernels(dense(), special, dense(), X2=X2), 1e-9)


def test_a_layer_that_is_repeated_is_that_many_layers():
    """combinators_test: RepeatTest.test_repeat and test_repeat_conv."""
    block = stax.serial(dense(), stax.Erf())
    same(kernels(stax.repeat(block, 3), dense()), kernels(block, block, block, dense()))
    block = stax.serial(conv(), stax.Relu())
    ends = stax.Flatten(), dense()
    same(kernels(stax.repeat(block, 2), *ends, X=IMAGES), kernels(block, block, *ends, X=IMAGES))


@pytest.mark.parametrize("end", [stax.Flatten, stax.GlobalAvgPool])
def test_compositions_do_not_depend_on_their_brackets(end):
    """stax_test: StaxTest.test_composition_dense and test_composition_conv."""
    a, b = stax.serial(dense(), stax.Relu()), stax.serial(dense(), stax.Erf())
    same(kernels(stax.serial(a, b), dense()), kernels(a, stax.serial(b, dense())))
    a, b = stax.serial(conv(), stax.Relu()), stax.serial(conv(), stax.Erf())
    same(kernels(stax.serial(a, b), end(), dense(), X=IMAGES), kernels(a, b, end(), dense(), X=IMAGES))


def test_a_sum_over_a_window_is_its_size_times_the_mean():
    """stax_test: StaxTest.test_pool and test_avg_pool; kernels are quadratic in the signal."""
    plain = {"W_std": 1.0, "b_std": None}
    found = [
        kernels(conv(), stax.Relu(), pool((2, 2), (2, 2)), stax.Flatten(), stax.Dense(1, **plain), X=IMAGES)
        for pool in (stax.SumPool, stax.AvgPool)
    ]
    same(found[0], 16.0 * found[1])


def test_layernorm_makes_every_variance_one():
    """stax_test: StaxTest.test_layernorm."""
    found = kernels(dense(), stax.Relu(), stax.LayerNorm(), stax.Dense(1, W_std=1.0, b_std=None))
    np.testing.assert_allclose(np.diag(found[0]), 1.0, rtol=1e-9)


def test_dropout_changes_the_variances_alone():
    """stax_test: StaxTest.test_dropout; `rate` is the share that is kept."""
    plain = stax.Dense(1, W_std=1.0, b_std=None)
    kept, whole = (kernels(dense(), stax.Relu(), *drop, plain) for drop in ([stax.Dropout(0.8)], []))
    off = ~np.eye(len(ROWS), dtype=bool)
    same(kept[:, off], whole[:, off])
    same(np.diag(kept[0]), np.diag(whole[0]) / 0.8)


def branches(*joined):
    return stax.serial(stax.FanOut(2), stax.parallel(dense(), stax.Dense(8, W_std=0.7, b_std=0.1)), *joined)


def test_joined_branches_are_sums_products_and_means_of_kernels():
    """branching_test: FanInTest.test_fan_in_fc."""
    one, other = kernels(dense()), kernels(stax.Dense(8, W_std=0.7, b_std=0.1))
    after = stax.Dense(1, W_std=1.0, b_std=None)
    expected = {"sum": one[0] + other[0], "concat": 0.5 * (one[0] + other[0])}
    same(kernels(branches(stax.FanInSum()), after)[0], expected["sum"])
    same(kernels(branches(stax.FanInConcat()), after)[0], expected["concat"])
    same(kernels(branches(stax.FanInProd()), after)[0], one[0] * other[0])


def test_joined_branches_of_images_are_sums_products_and_means_at_every_pair_of_positions():
    """branching_test: FanInTest.test_fan_in_conv."""
    other = stax.Conv(8, (1, 1), W_std=0.7, b_std=0.1)
    end = stax.GlobalAvgPool(), stax.Dense(1, W_std=1.0, b_std=None)
    branches = stax.FanOut(2), stax.parallel(conv(), other)
    alone = [kernels(one, *end, X=IMAGES)[0] for one in (conv(), other)]
    same(kernels(*branches, stax.FanInSum(), *end, X=IMAGES)[0], alone[0] + alone[1])
    same(kernels(*branches, stax.FanInConcat(), *end, X=IMAGES)[0], 0.5 * (alone[0] + alone[1]))
    # without pooling the mean of products, which is not the product of means
    flat = stax.Flatten(), stax.Dense(1, W_std=1.0, b_std=None)
    pixels = IMAGES[:, 1:2, 1:2]
    ones = [kernels(one, *flat, X=pixels)[0] for one in (conv((1, 1)), other)]
    product = kernels(stax.FanOut(2), stax.parallel(conv((1, 1)), other), stax.FanInProd(), *flat, X=pixels)[0]
    same(product, ones[0] * ones[1])


def test_flat_images_are_rows():
    """linear_test: FlattenTest.test_flatten."""
    rows = IMAGES.reshape(len(IMAGES), -1)
    same(
        kernels(stax.Flatten(), dense(), stax.Relu(), dense(), X=IMAGES), kernels(dense(), stax.Relu(), dense(), X=rows)
    )


def test_windows_of_one_position_are_dense_layers_in_every_dimension():
    """linear_test: ConvNDTest.test_conv_nd."""
    for dimensions in (1, 2, 3):
        X = RNG.normal(size=(3, *(2,) * dimensions, 4))
        own = kernels(conv((1,) * dimensions), stax.Relu(), stax.Flatten(), dense(), X=X)
        at_each = [kernels(dense(), stax.Relu(), X=X.reshape(3, -1, 4)[:, p]) for p in range(2**dimensions)]
        mean = np.mean(at_each, axis=0)
        same(own[0], DENSE["b_std"] ** 2 + DENSE["W_std"] ** 2 * mean[0], 1e-10)


def test_standard_and_ntk_parameterisation_have_one_nngp():
    """stax_test: ParameterizationTest.test_linear and test_nonlinear."""
    found = [
        kernels(*(part for _ in range(2) for part in (stax.Dense(64, 1.2, 0.1, parameterization=kind), stax.Erf())), dense())
        for kind in ("ntk", "standard")
    ]  # fmt: skip
    # standard biases have variance b_std², weights W_std²/fan-in, as those of ntk have
    same(found[0][0], found[1][0])
    assert not np.allclose(found[0][1], found[1][1])


def by_quadrature(phi):
    """Kernels of `dense(), phi, dense()` on rows by the trapezoidal rule, which converges exponentially here."""
    nodes = np.linspace(-9.0, 9.0, 181)
    weights = 0.1 * np.exp(-0.5 * nodes**2)
    (K, Theta), grid = kernels(dense()), weights[:, None] * weights / (2 * np.pi)
    slope = jax.vmap(jax.grad(phi))
    mean, slopes = np.empty_like(K), np.empty_like(K)
    for a, b in np.ndindex(K.shape):
        rho = min(K[a, b] / np.sqrt(K[a, a] * K[b, b]), 1.0)
        z_a = np.sqrt(K[a, a]) * (nodes[:, None] + 0.0 * nodes)
        z_b = np.sqrt(K[b, b]) * (rho * nodes[:, None] + np.sqrt(1.0 - rho * rho) * nodes)
        mean[a, b], slopes[a, b] = (
            np.sum(grid * (np.asarray(f(z_a.ravel())) * np.asarray(f(z_b.ravel()))).reshape(grid.shape))
            for f in (phi, slope)
        )
    own = DENSE["b_std"] ** 2 + DENSE["W_std"] ** 2 * mean
    return np.stack([own, own + DENSE["W_std"] ** 2 * slopes * Theta])


@pytest.mark.parametrize(
    ("layer", "phi"),
    [
        # elementwise_test: ElementwiseNumericalTest.test_elementwise_numerical
        (stax.ElementwiseNumerical(jnp.tanh, deg=25), jnp.tanh),
        (stax.ElementwiseNumerical(erf, deg=25), erf),
        # elementwise_test: ActivationTest.test_nonparametric
        (stax.Gabor(), lambda x: jnp.exp(-x * x) * jnp.sin(x)),
        (stax.Sigmoid_like(), lambda x: 0.5 * (1.0 + erf(x / 2.4020563531719796))),
        # elementwise_test: ActivationTest.test_activation
        (stax.Sin(0.3, 1.5, -np.pi / 4), lambda x: 0.3 * jnp.sin(1.5 * x - np.pi / 4)),
        (stax.Cos(0.3, 1.5, -np.pi / 4), lambda x: 0.3 * jnp.cos(1.5 * x - np.pi / 4)),
        (stax.Erf(0.3, 1.5, -0.2), lambda x: 0.3 * erf(1.5 * x) - 0.2),
        (stax.Gelu(), lambda x: 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))),
        # elementwise_test: ActivationTest.test_nonlineariy
        (stax.Gaussian(a=0.25, b=-0.5), lambda x: 0.25 * jnp.exp(-0.5 * x * x)),
        (stax.Exp(a=-0.5, b=0.1), lambda x: -0.5 * jnp.exp(0.1 * x)),
        # elementwise_test: ElementwiseTest.test_elementwise
        (stax.Elementwise(jnp.sin), jnp.sin),
    ],
)
def test_kernels_of_an_activation_are_its_expectations(layer, phi):
    found = kernels(dense(), layer, dense())
    np.testing.assert_allclose(found, by_quadrature(phi), rtol=1e-7, atol=1e-9)
    assert not np.allclose(found, by_quadrature(lambda x: 1.05 * phi(x)), rtol=1e-3)


@pytest.mark.parametrize("gamma", [1e-6, 1e-2, 2.0])
def test_the_nngp_of_rbf_is_that_of_its_name(gamma):
    """elementwise_test: ActivationTest.test_rbf."""
    found = kernels(stax.Dense(8), stax.Rbf(gamma))[0]
    squares = ((ROWS[:, None] - ROWS[None]) ** 2).sum(axis=-1)
    same(found, np.exp(-gamma * squares / ROWS.shape[1]), 1e-11)


@pytest.mark.parametrize("degree", [1, 2, 3, 6])
def test_hermite_polynomials_have_powers_of_the_correlation(degree):
    """elementwise_test: ActivationTest.test_hermite; ⟨he_n(u) he_n(v)⟩ = ρⁿ of unit variances."""
    plain = stax.Dense(8, W_std=1.0, b_std=None)
    before = kernels(plain, stax.LayerNorm(), X=ROWS)[0]
    same(kernels(plain, stax.LayerNorm(), stax.Hermite(degree), X=ROWS)[0], before**degree, 1e-9)


def test_the_nngp_of_signs_is_an_angle():
    """elementwise_test: ActivationTest.test_activation, Sign."""
    K = kernels(dense())[0]
    rho = K / np.sqrt(np.outer(K.diagonal(), K.diagonal()))
    found = stax.serial(dense(), stax.Sign())[2](ROWS, None, "nngp")
    np.testing.assert_allclose(found, 2.0 / np.pi * np.arcsin(np.clip(rho, -1.0, 1.0)), rtol=1e-6)
