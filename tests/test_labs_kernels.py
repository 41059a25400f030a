"""Tools and predictions behind the labs on kernels, learning rates, convergence, scaling and quadratic models."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate as quadrature

from widthwise.errors import InvalidInput
from widthwise.experiments.sampler import forward, network_key, sample_parameters
from widthwise.experiments.tangent import added, gradient, kernel, scaled, tangent
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.labs import kernels, lazy_vs_rich, learning_rate, ntk_convergence
from widthwise.labs.estimates import extrapolated
from widthwise.labs.tools import mercer_spectra
from widthwise.labs.tools.expansion import expand, free_at, integrate, perturbative
from widthwise.network import MLP


class TestSphere:
    @pytest.mark.parametrize("dimension", [2, 3, 5, 8])
    def test_multiplicities_count_polynomials(self, dimension):
        """Harmonics up to degree ℓ span the polynomials of degree ≤ ℓ restricted to the sphere."""
        for degree in range(1, 6):
            harmonics = sum(mercer_spectra.multiplicity(dimension, k) for k in range(degree + 1))
            restricted = (
                math.comb(dimension + degree, degree) - math.comb(dimension + degree - 2, degree - 2)
                if degree > 1
                else dimension + 1
            )
            assert harmonics == restricted

    @pytest.mark.parametrize("dimension", [3, 4, 7])
    def test_powers_have_the_eigenvalues_that_integration_gives(self, dimension):
        def density(t):
            return (1.0 - t * t) ** (0.5 * (dimension - 3))

        total = quadrature.quad(density, -1, 1)[0]
        for power, degree in [(0, 0), (3, 1), (4, 2), (5, 5), (9, 3)]:
            found = quadrature.quad(
                lambda t, p=power, d=degree: t**p * mercer_spectra.polynomial(dimension, d, t) * density(t), -1, 1
            )[0]
            assert mercer_spectra.power_eigenvalue(dimension, power, degree) == pytest.approx(found / total, rel=1e-9)

    def test_eigenvalues_with_multiplicities_add_up_to_the_kernel_at_one_point(self):
        t, _ = mercer_spectra.cosines(4, 64)
        values = mercer_spectra.eigenvalues(4, np.exp(t), 20)
        total = sum(mercer_spectra.multiplicity(4, degree) * value for degree, value in enumerate(values))
        assert total == pytest.approx(math.e, rel=1e-12)

    def test_random_points_on_the_sphere_have_the_same_spectrum(self):
        rng = np.random.default_rng(1)
        X = rng.standard_normal((600, 3))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        t, _ = mercer_spectra.cosines(3, 40)
        expected = mercer_spectra.eigenvalues(3, np.exp(t), 2)
        found = np.linalg.eigvalsh(np.exp(X @ X.T) / len(X))[::-1]
        # relative scatter of a sample eigenvalue is about √(2/points), and its square of the next order
        assert found[0] == pytest.approx(expected[0], rel=4 * math.sqrt(2 / 600))
        assert found[1:4].mean() == pytest.approx(expected[1], rel=4 * math.sqrt(2 / 600))

    def test_too_many_degrees_are_refused(self):
        with pytest.raises(InvalidInput, match="half the number of nodes"):
            mercer_spectra.eigenvalues(3, np.ones(8), 5)


class TestSpectra:
    @pytest.mark.parametrize(("activation", "dimension"), [("tanh", 3), ("swish", 2), ("gelu", 6)])
    def test_hermite_series_and_quadrature_of_the_kernel_agree(self, activation, dimension):
        net = MLP(
            [dimension, 16, 1], activation, C_b=[0.0, 0.2], C_W=[1.5, 2.0], lambda_b=[0.3, 0.1], lambda_W=[1.0, 0.7]
        )
        point, others = kernels._nodes(dimension, 48)
        flow = kernel_flow(net, point, others, last_only=True)
        expected = [mercer_spectra.eigenvalues(dimension, kernel[-1][0], 6) for kernel in (flow.K, flow.Theta)]
        np.testing.assert_allclose(kernels.hermite_spectrum(net, 6), expected, atol=1e-11)

    def test_odd_degrees_above_one_vanish_for_swish(self):
        K, _ = kernels.hermite_spectrum(kernels.network(8), 8)
        assert np.abs(K[[3, 5, 7]]).max() < 1e-14 < np.abs(K[[2, 4, 6]]).min()


class TestHilbert:
    def test_decomposition_gives_back_the_kernel_on_any_measure(self):
        rng = np.random.default_rng(0)
        root = rng.standard_normal((6, 9))
        K, weights = root @ root.T, rng.random(6)
        found = mercer_spectra.mercer(K, weights)
        np.testing.assert_allclose((found.functions * found.values) @ found.functions.T, K, atol=1e-12)
        np.testing.assert_allclose((found.functions.T * weights) @ found.functions, np.eye(6), atol=1e-12)

    def test_the_inner_product_does_not_depend_on_the_measure(self):
        rng = np.random.default_rng(0)
        root = rng.standard_normal((6, 9))
        K, f, g = root @ root.T, rng.standard_normal(6), rng.standard_normal(6)
        found = [mercer_spectra.mercer(K, rng.random(6)).inner(f, g) for _ in range(2)]
        assert found == pytest.approx([f @ np.linalg.solve(K, g)] * 2)

    def test_weights_must_be_positive(self):
        with pytest.raises(InvalidInput, match="weights: got an array"):
            mercer_spectra.mercer(np.eye(2), np.array([1.0, 0.0]))


class TestPointProcess:
    L = np.array([[1.0, 1.1, 0.1], [1.1, 1.5, 0.2], [0.1, 0.2, 0.5]])

    def test_marginals_are_sums_over_all_subsets(self):
        def weight(subset):
            return np.linalg.det(self.L[np.ix_(subset, subset)]) if subset else 1.0

        subsets = [s for size in range(4) for s in itertools.combinations(range(3), size)]
        total = sum(weight(list(s)) for s in subsets)
        assert total == pytest.approx(np.linalg.det(np.eye(3) + self.L))
        M = mercer_spectra.marginal_kernel(self.L)
        for pair in ((0, 1), (0, 2), (1, 2)):
            expected = sum(weight(list(s)) for s in subsets if set(pair) <= set(s)) / total
            assert np.linalg.det(M[np.ix_(pair, pair)]) == pytest.approx(expected)

    def test_sampled_subsets_have_their_probabilities(self):
        count = 6000
        found = mercer_spectra.sample_subsets(self.L, count, seed=3)
        normal = np.linalg.det(np.eye(3) + self.L)
        for size in range(4):
            for subset in itertools.combinations(range(3), size):
                inside = np.isin(np.arange(3), subset)
                p = (np.linalg.det(self.L[np.ix_(subset, subset)]) if size else 1.0) / normal
                share = np.mean(np.all(found == inside, axis=1))
                assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / count)
        # control: independent points would be together more often
        M = mercer_spectra.marginal_kernel(self.L)
        together, alone = np.mean(found[:, 0] & found[:, 1]), M[0, 0] * M[1, 1]
        assert abs(together - alone) > 5 * math.sqrt(alone * (1 - alone) / count)

    def test_a_negative_matrix_is_refused(self):
        with pytest.raises(InvalidInput, match="positive semi-definite"):
            mercer_spectra.sample_subsets(-np.eye(2), 3, seed=0)


@pytest.fixture(scope="module")
def model():
    X = jnp.array([[1.0, 0.3], [0.2, -0.9], [0.6, -0.2]])
    net = MLP([2, 4, 1], "tanh", C_b=0.1, C_W=2.0, lambda_b=0.2)
    return expand(net, sample_parameters(net, network_key(0, 0)), X, jnp.array([1.0, -0.5]))


class TestQuadraticModel:
    def test_theta_at_first_order_is_the_derivative_of_the_integrated_flow(self, model):
        step, time = 0.01, 40.0 / float(jnp.linalg.eigvalsh(model.training.phi @ model.training.phi.T)[0])
        plus, minus = jax.vmap(lambda e: integrate(model, e, time))(jnp.array([step, -step]))
        found = perturbative(model)
        slope = (plus - minus) / (2 * step)
        np.testing.assert_allclose(slope, found.interacting, atol=3e-4 * float(jnp.abs(slope).max()))
        # control: neither part alone
        for part in (found.on_span, found.off_span):
            assert float(jnp.abs(slope - part).max()) > 0.05 * float(jnp.abs(slope).max())

    def test_the_parts_are_on_and_off_the_span(self, model):
        found, phi = perturbative(model), model.training.phi
        assert float(jnp.abs(phi @ found.off_span).max()) < 1e-12
        inside = phi.T @ jnp.linalg.lstsq(phi.T, found.on_span)[0]
        np.testing.assert_allclose(inside, found.on_span, atol=1e-12)

    def test_the_linear_flow_ends_at_the_free_solution(self, model):
        np.testing.assert_allclose(free_at(model, 1e6), perturbative(model).free, atol=1e-12)

    def test_features_are_the_gradient_of_the_outputs(self, model):
        theta = 0.1 * jnp.arange(model.phi.shape[1])
        np.testing.assert_allclose(
            jax.jacrev(lambda t: model.outputs(t, 0.7))(theta), model.features(theta, 0.7), atol=1e-12
        )


class TestPredictions:
    def test_the_spread_of_the_kernel_is_that_of_one_neuron(self):
        X, _ = ntk_convergence.unit_vectors(3)
        w = np.random.default_rng(5).standard_normal((200_000, X.shape[1]))
        slope = 1.0 - np.tanh(w @ X.T) ** 2
        one = (X @ X.T) * slope[:, :, None] * slope[:, None, :]
        assert one.var(axis=0).sum() == pytest.approx(
            ntk_convergence.neuron_spread(ntk_convergence.network(4), X), rel=0.02
        )

    def test_two_lemmas_give_the_sufficient_width(self):
        """At n = 256 m⁴L/λ⁴ the travel 2m√L/(λ√n) is λ/(8m)."""
        m, loss, least = 5, 1.7, 0.3
        n = ntk_convergence.sufficient_width(m, loss, least)
        assert 2 * m * math.sqrt(loss) / (least * math.sqrt(n)) == pytest.approx(least / (8 * m))

    def test_the_largest_eigenvalue_shifts_as_in_sampled_kernels(self):
        """Second-order perturbation against kernels of one hidden layer, whose mean is Θ at every width."""
        net = learning_rate.network(128)
        largest, shift, u = learning_rate.largest_eigenvalue(net)
        grown, control = map(np.asarray, learning_rate._grown(net, 7, learning_rate.NETWORKS, 4.0 / largest, u))
        excess = 128 * (grown - control)
        error = excess.std() / math.sqrt(len(excess))
        # O(1/n) leaves a relative 5/128 or so
        assert abs(excess.mean() - shift) < 4 * error + 0.05 * shift
        assert excess.mean() > 5 * error

    def test_mean_field_descent_is_that_of_a_very_wide_network(self):
        width = 20_000
        net, inputs, y = lazy_vs_rich.rich_network(width), jnp.asarray(lazy_vs_rich.X), jnp.asarray(lazy_vs_rich.Y)
        start = sample_parameters(net, network_key(0, 0))

        @jax.jit
        def train(layers):
            def step(_, now):
                return added(now, scaled(net, gradient(net, now, inputs, y)[0]), -1.0)

            return jax.lax.fori_loop(0, lazy_vs_rich.STEPS, step, layers)

        end, limit = train(start), lazy_vs_rich.mean_field()
        before, after = (float(kernel(tangent(net, layers, inputs))[0, 0, 0, 0]) for layers in (start, end))
        moved = float(jnp.mean((forward(net, end, inputs)[0][-1] - forward(net, start, inputs)[0][-1]) ** 2))
        # means over neurons scatter by a few times 1/√n
        found, expected = (before, after, moved), (limit.before, limit.after, limit.features)
        assert found == pytest.approx(expected, rel=5 / math.sqrt(width))
        assert after < 0.7 * before

    def test_sparse_rows_have_the_fourth_cumulant_that_the_lab_uses(self):
        """Σ w_j s_j with a quarter of the w at random places: 9(Σs⁴/n² − (Σs²)²/n³) + O(1/n²) beyond the Gaussian part."""
        n = 16
        s2 = np.linspace(0.2, 1.5, n) ** 2
        pair = 16 * (n // 4) * (n // 4 - 1) / (n * (n - 1))
        exact = (12 * np.sum(s2**2) + 3 * pair * (s2.sum() ** 2 - np.sum(s2**2))) / n**2 - 3 * (s2.sum() / n) ** 2
        leading = 9 * (np.mean(s2**2) - np.mean(s2) ** 2) / n
        assert exact == pytest.approx(leading, rel=1.5 / n)


def test_extrapolation_is_exact_for_a_term_in_one_over_n():
    value, error, *_ = extrapolated(np.tile([1.5, 2.5], 30), np.tile([1.0, 2.0], 30))
    assert value == pytest.approx(1.0)
    assert error >= 0.0
