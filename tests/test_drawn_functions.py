"""Functions drawn at order 1/n, and the law of one kernel step, against real networks."""

from itertools import combinations_with_replacement

import numpy as np
import pytest

import widthwise as ww
from widthwise.errors import ExpansionWarning, InvalidInput
from widthwise.inference.random_kernel import RandomKernel

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [-0.7, 0.5, 0.6]])
#: With half as many the infinite-width draw was off by 4.6 to 8 standard errors, by the seed: too close to the bounds.
DRAWS = 400_000


def relu(n, outputs=1):
    return ww.MLP([3, n, n, outputs], "relu", C_b=0.1, C_W=1.8)


def network_outputs(net, inputs, networks, seed):
    """Outputs (networks, inputs) of ReLU networks, layer by layer: given a layer, the next is Gaussian exactly."""
    rng, found = np.random.default_rng(seed), []
    first = net.C_b[0] + net.C_W[0] * inputs @ inputs.T / inputs.shape[1]
    for _ in range(networks // 2000):
        kernel = np.broadcast_to(first, (2000, *first.shape))
        for layer in range(1, net.depth):
            root = np.linalg.cholesky(kernel + 1e-13 * np.eye(len(first)))
            neurons = np.maximum(rng.standard_normal((2000, net.widths[layer], len(first))) @ root.swapaxes(1, 2), 0.0)
            kernel = net.C_b[layer] + net.C_W[layer] / net.widths[layer] * neurons.swapaxes(1, 2) @ neurons
        root = np.linalg.cholesky(kernel + 1e-13 * np.eye(len(first)))
        found.append(np.einsum("rab,rb->ra", root, rng.standard_normal((2000, len(first)))))
    return np.concatenate(found)


def moments(z):
    """All moments up to the fourth over the inputs, with standard errors."""
    values, errors = [], []
    for order in (1, 2, 3, 4):
        for chosen in combinations_with_replacement(range(z.shape[1]), order):
            product = np.prod(z[:, chosen], axis=1)
            values.append(product.mean())
            errors.append(product.std() / np.sqrt(len(z)))
    return np.array(values), np.array(errors)


def worst_pull(one, other):
    (value, error), (value_, error_) = moments(one), moments(other)
    return np.abs((value - value_) / np.hypot(error, error_)).max()


class TestPrior:
    """34 moments; one is off by more than 4.5 standard errors once in 4,000 tests."""

    def test_the_first_four_moments_are_those_of_networks(self):
        net = relu(128)
        real = network_outputs(net, X, DRAWS, seed=1)
        drawn = ww.sample_prior(net, X, draws=DRAWS, seed=2, order=1).values[:, 0]
        infinite = ww.sample_prior(net, X, draws=DRAWS, seed=2).values[:, 0]
        assert worst_pull(real, drawn) < 4.5
        assert worst_pull(real, infinite) > 6.0

    def test_outputs_of_one_function_share_their_kernel(self):
        z = ww.sample_prior(relu(64, 2), X[:1], draws=50_000, seed=3, order=1).values[:, :, 0]
        squares = np.corrcoef(z[:, 0] ** 2, z[:, 1] ** 2)[0, 1]
        assert squares > 5.0 / np.sqrt(50_000)
        assert abs(np.corrcoef(z.T)[0, 1]) < 5.0 / np.sqrt(50_000)

    def test_kernels_are_positive_definite_however_narrow_the_network(self):
        flow = ww.theory(relu(2), X, order=1)
        parts = {name: flow[name].values[-1] for name in ("K", "G1", "V")}
        kernels = RandomKernel.of(**parts, n=2).draw(5000, np.random.default_rng(0))
        assert np.linalg.eigvalsh(kernels).min() > 0.0
        with pytest.warns(ExpansionWarning, match="kernels vary by"):
            ww.sample_prior(relu(2), X, draws=3, order=1)

    def test_their_mean_and_covariance_to_order_one(self):
        """The remainder falls like 1/n: n times the difference at two widths."""
        flow = ww.theory(relu(64), X, order=1)
        parts = {name: flow[name].values[-1] for name in ("K", "G1", "V")}
        n, rng = 2000, np.random.default_rng(0)
        kernels = RandomKernel.of(**parts, n=n).draw(40_000, rng)
        centred = kernels - parts["K"]
        covariance = n * np.einsum("rab,rcd->abcd", centred, centred) / len(kernels)
        assert np.allclose(covariance, parts["V"], rtol=0.1, atol=0.03 * np.abs(parts["V"]).max())
        error = np.sqrt(np.einsum("abab->ab", parts["V"]) / n / len(kernels))
        assert np.abs((centred.mean(axis=0) - parts["G1"] / n) / error).max() < 4.5


class TestPosterior:
    def test_moments_are_those_of_the_expansion(self):
        """20,000 draws; a remainder of order 1/n² and 4.5 standard errors."""
        net, y = relu(256), np.array([1.0, -0.5])
        p = ww.posterior(net, X[:2], y, X[2:], order=1, noise=0.05)
        s = ww.sample_posterior(net, X[:2], y, X[2:], draws=20_000, seed=1, order=1, noise=0.05)
        z = s.values[:, 0, 0]
        assert abs(z.mean() - p["mean"].item()) < 4.5 * z.std() / np.sqrt(len(z)) + abs(p["mean1"].item()) / 256**1.5
        assert abs(z.var() / p["cov"].item() - 1.0) < 4.5 * np.sqrt(2.0 / len(z)) + 0.01
        assert s.attrs["effective"] > 0.5 * s.attrs["candidates"]

    def test_the_covariance_of_an_observation_has_the_noise(self):
        p = ww.posterior(relu(64, 2), X[:2], [[1.0, 0.0], [0.5, 0.2]], X, order=1, noise=0.3)
        assert np.allclose(p["cov_y"] - p["cov"], 0.3 * np.einsum("ij,xy->ixjy", np.eye(2), np.eye(3)))
        assert p["cov"].attrs["long_name"] == "posterior covariance of the function, without the noise of observations"
        assert p["cov_y"].attrs["long_name"].startswith("posterior covariance of an observation y*")
        trained = ww.predict(relu(64, 2), X[:2], [[1.0, 0.0], [0.5, 0.2]], X)
        assert trained["cov"].attrs["long_name"] == "covariance over initialisations"


class TestKernelStep:
    def test_draws_have_the_exact_mean_and_covariance(self):
        net = ww.MLP([3, 20, 20, 1], "tanh", C_b=0.1, C_W=1.5)
        K = ww.theory(net, X, order=0)["K"].values
        step = ww.exact.kernel_step(net, K[1], layer=3)
        assert np.allclose(step.mean, K[2], atol=1e-9)
        kernels = step.sample(40_000, seed=5)
        centred = kernels - step.mean
        error = np.sqrt(np.einsum("abab->ab", step.covariance) / len(kernels))
        assert np.abs(centred.mean(axis=0) / error).max() < 4.5
        covariance = np.einsum("rab,rcd->abcd", centred, centred) / len(kernels)
        assert np.allclose(covariance, step.covariance, atol=0.04 * np.abs(step.covariance).max())
        assert not np.allclose(covariance, 1.1 * step.covariance, atol=0.04 * np.abs(step.covariance).max())
        assert np.linalg.eigvalsh(kernels).min() > 0.0

    @pytest.mark.parametrize(
        ("kernel", "layer", "message"),
        [
            ([[1.0, 2.0], [2.0, 1.0]], 2, "eigenvalue -1; expected a covariance matrix. Add to its diagonal"),
            ([[1.0, 0.2], [0.1, 1.0]], 2, "expected a symmetric matrix, inputs by inputs. For example `theory"),
            ([[1.0]], 4, "layer: got 4; expected a layer from 2 to 3"),
        ],
    )
    def test_words_for_bad_kernels(self, kernel, layer, message):
        with pytest.raises(InvalidInput, match=message):
            ww.exact.kernel_step(relu(8), kernel, layer)


def test_the_former_name_of_draws_still_works():
    with pytest.warns(DeprecationWarning, match="samples= is now called draws="):
        assert ww.sample_prior(relu(8), X, samples=2).shape == (2, 1, 3)


class TestTrainedDensity:
    net = ww.MLP([3, 64, 64, 1], "tanh", C_b=0.1, C_W=1.5, lambda_b=0.2)

    def test_it_is_made_of_the_predicted_cumulants(self):
        p = ww.predict(self.net, X[:2], [1.0, -0.5], X[2:], order=1, cumulants=4)
        d = ww.trained_density(self.net, X[:2], [1.0, -0.5], X[2])
        centred = d["z"] - d["mean"]
        third, fourth = (float((d["density"] * centred**power).integrate("z")) for power in (3, 4))
        variance = float(d["variance"])
        assert third == pytest.approx(p["kappa3"].item() / 64, abs=2e-3 * variance**1.5)
        assert fourth - 3 * variance**2 == pytest.approx(p["kappa4"].item() / 64, abs=1e-2 * variance**2)
        assert np.allclose(d["quantile"].sel(probability=0.5), d["mean"], atol=0.1)
        assert bool((d["quantile"].diff("probability") > 0).all())

    def test_every_variable_says_what_it_is(self):
        data = self.net, X[:2], [1.0, -0.5]
        found = (
            ww.trained_density(*data, X[2]),
            ww.trained_skewness(*data, X[2:]),
            ww.predict(*data, X[2:], ww.GradientFlow(1.0), loss="huber", draws=64),
            ww.predict(*data, X[2:], order=1, cumulants=4),
            ww.posterior(*data, X[2:], order=1, noise=0.1),
        )
        assert [name for one in found for name in one.data_vars if "long_name" not in one[name].attrs] == []

    def test_skewness_at_several_inputs_is_symmetric(self):
        s = ww.trained_skewness(self.net, X[:1], [1.0], X[1:])["kappa3_joint"].values
        assert np.allclose(s, s.transpose(0, 2, 1, 3))
        assert np.allclose(s, s.transpose(0, 3, 2, 1))
        assert np.abs(s).max() > 1e-3

    def test_words_for_what_cannot_be(self):
        with pytest.raises(InvalidInput, match="one at which trained outputs scatter"):
            ww.trained_density(self.net, X[:2], [1.0, -0.5], X[0])
        with pytest.raises(InvalidInput, match="probabilities: got .* expected numbers between 0 and 1"):
            ww.trained_density(self.net, X[:2], [1.0, -0.5], X[2], probabilities=[0.0, 0.5])
