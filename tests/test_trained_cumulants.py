"""Third and fourth cumulants of trained outputs: limits, laws, real networks, and the expansion of a density."""

import numpy as np
import pytest

import widthwise as ww
from widthwise.errors import InvalidInput
from widthwise.inference.trained.edgeworth import Edgeworth

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8]])
X_TEST = np.array([[0.6, -0.2, 0.4], [-0.3, 0.5, 0.9]])
NUMBERS = {"C_b": 0.1, "C_W": 2.0, "lambda_b": 0.2, "lambda_W": 1.0}


def swish(n, depth=2, outputs=1):
    return ww.MLP([3, *[n] * (depth - 1), outputs], "swish", **NUMBERS)


def kappas(*data, **options):
    p = ww.predict(*data, cumulants=4, **options)
    return p["kappa3"].values, p["kappa4"].values


class TestPrediction:
    def test_before_training_there_is_the_fourth_cumulant_of_the_prior_alone(self):
        net = swish(64, 3)
        third, fourth = kappas(net, X, [2.0, 2.0], X_TEST, algorithm=ww.GradientFlow(time=0.0))
        V = ww.theory(net, X_TEST, order=1)["V"].isel(layer=-1).values
        assert np.abs(third).max() < 1e-9
        assert np.allclose(fourth[0], 3.0 * np.einsum("aaaa->a", V), rtol=1e-8)

    @pytest.mark.parametrize(
        "algorithm", [ww.GradientFlow(), ww.GradientFlow(0.4), ww.GradientDescent(0.3, 3)], ids=repr
    )
    def test_the_third_is_linear_in_the_targets_and_the_fourth_does_not_depend_on_them(self, algorithm):
        """Reflecting the last layer and the targets reflects all outputs, and higher powers are of higher order."""
        net, targets = swish(64, 3), np.array([[2.0, 1.0], [-0.5, 3.0]])
        one, other, both = (kappas(net, X, y, X_TEST, algorithm=algorithm) for y in (*targets, targets.sum(axis=0)))
        assert np.allclose(one[0] + other[0], both[0], rtol=1e-8, atol=1e-10)
        assert np.allclose(one[1], both[1], rtol=1e-8)
        assert np.abs(one[0]).min() > 1e-3

    def test_training_inputs_do_not_scatter(self):
        third, fourth = kappas(swish(64), X, [2.0, 2.0], X)
        assert np.abs([third, fourth]).max() < 1e-8

    def test_other_outputs_change_neither(self):
        """They do change mean and covariance: no closed loop of outputs is left in a connected third cumulant."""
        alone = kappas(swish(64, 3), X, [2.0, 2.0], X_TEST)
        twice = kappas(swish(64, 3, 2), X, [[2.0, 0.0], [2.0, 0.0]], X_TEST)
        assert np.allclose(alone, [part[:1] for part in twice], rtol=1e-8)
        assert np.abs(twice[0][1]).max() < 1e-9
        assert np.allclose(twice[1][0], twice[1][1], rtol=1e-8)

    def test_order_0_has_them_too(self):
        p = ww.predict(swish(64), X, [2.0, 2.0], X_TEST, cumulants=3)
        assert "kappa3" in p
        assert "kappa4" not in p
        assert "mean1" not in p

    def test_words_for_what_cannot_be(self):
        with pytest.raises(InvalidInput, match="cumulants: got 5; expected 2, 3 or 4"):
            ww.predict(swish(64), X, [2.0, 2.0], X_TEST, cumulants=5)
        with pytest.raises(InvalidInput, match="'tiles' with cumulants=4; expected 'auto' or 'full'"):
            ww.predict(swish(64), X, [2.0, 2.0], X_TEST, order=1, method="tiles", cumulants=4)


class TestNetworks:
    """3000 networks. A pull above 4 comes by chance once in 16,000."""

    def pulls(self, theory, seed):
        t = ww.train(swish(64), X, [2.0, 2.0], X_TEST[:1], networks=3000, seed=seed, progress=False)
        return {name: ((t[name] - theory[name]) / t[f"{name}_se"]).item() for name in ("kappa3", "kappa4")}, t

    def test_cumulants_of_networks(self):
        theory = ww.predict(swish(64), X, [2.0, 2.0], X_TEST[:1], order=1, cumulants=4)
        pulls, t = self.pulls(theory, seed=1)
        assert max(map(abs, pulls.values())) < 4.0
        # a Gaussian has none, and the sign counts
        assert abs(t["kappa3"] / t["kappa3_se"]) > 4.5
        assert abs((t["kappa3"] + theory["kappa3"]) / t["kappa3_se"]) > 8.0
        assert {row.variable for row in ww.compare(theory, t)} >= {"kappa3", "kappa4"}

    def test_skewness_at_three_inputs(self):
        """Four distinct entries; one above 4.5 standard errors once in 30,000 runs."""
        data = swish(64), X, [2.0, 2.0], [X_TEST[0], [1.2, -0.4, 0.8]]
        theory, t = ww.trained_skewness(*data), ww.train(*data, networks=3000, seed=4, progress=False)
        found, error = t["kappa3_joint"], t["kappa3_joint_se"]
        assert np.abs((found - theory["kappa3_joint"]) / error).max() < 4.5
        # the sign counts, and so does which inputs are meant
        assert abs((found + theory["kappa3_joint"]) / error).values[0, 0, 0, 1] > 8.0
        assert np.abs((found - theory["kappa3_joint"][:, ::-1, ::-1, ::-1].values) / error).max() > 6.0
        assert np.allclose(np.einsum("iaaa->ia", found), t["kappa3"])
        assert [row.variable for row in ww.compare(theory, t)] == ["kappa3_joint"]

    def test_without_control_variates_the_same_with_more_noise(self):
        _, t = self.pulls(ww.predict(swish(64), X, [2.0, 2.0], X_TEST[:1], cumulants=4), seed=2)
        assert t.attrs["variance_reduction_kappa3"] > 5.0
        assert t.attrs["variance_reduction_kappa4"] > 5.0


class TestEdgeworth:
    def test_its_moments_are_those_it_was_made_of(self):
        law = Edgeworth(0.3, 2.0, 0.4, 0.5)
        z = np.linspace(-15.0, 15.0, 20_001)
        weights = law.density(z) * (z[1] - z[0])
        centred = z - 0.3
        moments = [np.sum(weights * centred**power) for power in range(5)]
        assert np.allclose(moments, [1.0, 0.0, 2.0, 0.4, 0.5 + 3 * 4.0], atol=1e-9)

    def test_the_distribution_integrates_the_density(self):
        law, z = Edgeworth(0.3, 2.0, 0.4, 0.5), np.linspace(-15.0, 2.0, 20_001)
        assert np.isclose(np.trapezoid(law.density(z), z), law.below(2.0), atol=1e-7)

    def test_quantiles_of_a_gamma_variable_up_to_the_next_order(self):
        """A gamma variable of shape k has cumulants k, k, 2k, 6k; errors fall like 1/k against a scale of √k."""
        from scipy.stats import gamma

        for shape in (50.0, 400.0):
            law = Edgeworth(shape, shape, 2.0 * shape, 6.0 * shape)
            for probability in (0.05, 0.3, 0.9):
                off = abs(law.quantile(probability) - gamma.ppf(probability, shape))
                assert off < 1.5 * law.quantile_error(probability) + 0.3 / shape
                gaussian = abs(
                    law._replace(third=0.0, fourth=0.0).quantile(probability) - gamma.ppf(probability, shape)
                )
                assert gaussian > 4.0 * off
