"""What follows from trained moments: algorithms against each other, bias and variance, against trained networks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trained_networks import DATA, TEST, Y_ONE, Y_TWO, reference_network

import widthwise as ww
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tangent import outputs
from widthwise.experiments.training.ensemble import train_one

FLOW, DESCENT, NEWTON = ww.GradientFlow(), ww.GradientDescent(0.918), ww.NewtonStep()


def trained_pairs(net, algorithm, y, pairs, seed):
    """The trained output at the test input, averaged over a network and the one with its last layer reflected."""

    def one(layers, key):
        end = train_one(net, algorithm, layers, jnp.asarray(DATA), jnp.asarray(y.T), key, (1e-6, 1e-5, 2000))
        return outputs(net, end.layers, jnp.asarray(TEST))

    def pair(key):
        layers = sample_parameters(net, key)
        mirrored = [*layers[:-1], Weights(-layers[-1].W, -layers[-1].b)]
        return 0.5 * (one(layers, key) + one(mirrored, key))

    return np.asarray(jax.jit(jax.vmap(pair))(jax.vmap(partial(network_key, seed))(jnp.arange(pairs)))).ravel()


class TestAlgorithms:
    def test_each_is_what_predict_and_trained_kernel_say(self):
        net = ww.MLP([3, 48, 64, 2], "tanh", C_b=0.1, C_W=[1.5, 1.7, 1.4], lambda_b=0.2)
        algorithms = [ww.GradientDescent(0.1, 4), ww.GradientFlow(1.0)]
        c = ww.compare_algorithms(net, DATA, Y_TWO, TEST, algorithms)
        assert c["algorithm"].values.tolist() == list(map(repr, algorithms))
        for k, algorithm in enumerate(algorithms):
            p = ww.predict(net, DATA, Y_TWO, TEST, algorithm, order=1)
            for name in ("mean0", "mean1", "mean", "cov0", "cov1", "cov"):
                assert np.allclose(c[name][k], p[name], atol=1e-10)
            change = ww.trained_kernel(net, DATA, Y_TWO, TEST, algorithm)["change1"]
            assert np.allclose(c["change1"][k], change, atol=1e-10)
        assert np.allclose(c["mean_difference"][1], c["mean"][1] - c["mean"][0])
        assert np.all(c["cov_difference"][0] == 0.0)
        assert all("long_name" in variable.attrs for variable in c.data_vars.values())

    def test_small_steps_differ_from_flow_in_proportion_to_the_step(self):
        net, steps = reference_network("swish", 2, 128), 0.2 / 2.0 ** np.arange(6)
        c = ww.compare_algorithms(net, DATA, Y_ONE, TEST, [FLOW, *map(ww.GradientDescent, steps)])
        away = np.abs(c["mean_difference"].values.ravel()[1:])
        assert np.polyfit(np.log(steps[2:]), np.log(away[2:]), 1)[0] == pytest.approx(1.0, abs=0.02)
        assert np.allclose(c["mean0"], c["mean0"][0], atol=1e-10)

    def test_the_known_values_of_flow_and_descent(self):
        """theory §8: 0.9200/n and 0.4538/n for swish, and a step of Newton's kind apart from both."""
        c = ww.compare_algorithms(reference_network("swish", 2, 128), DATA, Y_ONE, TEST, [FLOW, DESCENT, NEWTON])
        flow, descent, newton = c["mean1"].values.ravel()
        assert (flow, descent) == (pytest.approx(0.9200, abs=1e-3), pytest.approx(0.4538, abs=1e-3))
        assert 0.05 < newton - descent < 0.3

    @pytest.mark.parametrize(
        "first", [ww.GradientDescent(0.2), pytest.param(FLOW, marks=pytest.mark.full)], ids=["small steps", "flow"]
    )
    def test_trained_networks_differ_by_as_much(self, first):
        """The same networks, and their reflections, trained in three ways at widths 64 and 128.

        What is left at width 64 is of the next order, 30% of the difference. Ten seeds: pulls up to 1.5, and of the
        controls from 4.7 and 10 on.
        """
        algorithms, coefficients = [first, DESCENT, NEWTON], []
        for n in (64, 128):
            ends = [trained_pairs(reference_network("swish", 2, n), how, Y_ONE, 256, seed=8) for how in algorithms]
            coefficients.append([n * (end - ends[0]) for end in ends])
        c = ww.compare_algorithms(reference_network("swish", 2, 64), DATA, Y_ONE, TEST, algorithms)
        for k in (1, 2):
            (low, low_error), (high, high_error) = (
                (rows[k].mean(), rows[k].std(ddof=1) / np.sqrt(len(rows[k]))) for rows in coefficients
            )
            measured, error = 2 * high - low, np.hypot(2 * high_error, low_error)
            predicted = 64 * float(c["mean_difference"][k].squeeze())
            assert abs(measured - predicted) < 4 * error
            # negative controls: algorithms that end at one place; the difference with its sign changed
            assert abs(measured) > 4 * error
            assert abs(measured + predicted) > 8 * error

    def test_bad_input(self):
        net = reference_network("tanh", 2, 32)
        for algorithms in (FLOW, [], "flow"):
            with pytest.raises(ValueError, match="algorithms: got .*expected a list of algorithms. Use `predict`"):
                ww.compare_algorithms(net, DATA, Y_ONE, TEST, algorithms)
        with pytest.raises(ValueError, match="algorithm: got 'adam'"):
            ww.compare_algorithms(net, DATA, Y_ONE, TEST, [FLOW, "adam"])
        with pytest.raises(ww.errors.UnstableLearningRate, match=r"less than 2/λ_max = \d.*the stable bound"):
            ww.compare_algorithms(net, DATA, Y_ONE, TEST, [FLOW, ww.GradientDescent(9.0)])


class TestBiasAndVariance:
    Y_TEST = np.array([[1.2]])

    def measured(self, depth, width, algorithm, networks):
        """n (quantity − infinite width) and standard errors, for the squared bias and the variance."""
        net = reference_network("tanh", depth, width)
        t = ww.train(net, DATA, Y_ONE, TEST, networks, algorithm, seed=width)
        e = ww.expected_error(net, DATA, Y_ONE, TEST, self.Y_TEST, algorithm)
        off, off_error = t["mean"].item() - 1.2, t["mean_se"].item()
        values = off**2 - e["bias0"].item(), t["cov"].item() - e["variance0"].item()
        return net.n * np.array(values), net.n * np.array([2 * abs(off) * off_error, t["cov_se"].item()])

    @pytest.mark.parametrize(
        ("depth", "steps"),
        [pytest.param(3, 12, marks=pytest.mark.full), (2, 3)],
        ids=["deeper and later", "early"],
    )
    def test_trained_networks_have_the_expected_error(self, depth, steps):
        """Width 128, after a number of steps."""
        algorithm = ww.GradientDescent(0.25, steps)
        value, error = self.measured(depth, 128, algorithm, 4096)
        e = ww.expected_error(reference_network("tanh", depth, 128), DATA, Y_ONE, TEST, self.Y_TEST, algorithm, order=1)
        expected = np.array([e["bias1"].item(), e["variance1"].item()])
        assert np.abs((value - expected) / error).max() < 4
        # negative controls: infinite width; bias and variance exchanged
        assert np.abs(value / error).max() > 6
        assert np.abs((value - expected[::-1]) / error).max() > 6

    def test_what_width_depth_initialisation_and_time_do(self):
        def error(depth=2, width=64, time=2.0, C_W=2.0):
            net = ww.MLP([3, *[width] * (depth - 1), 1], "tanh", C_b=0.1, C_W=C_W, lambda_b=0.2)
            return ww.expected_error(net, DATA, Y_ONE, TEST, self.Y_TEST, ww.GradientFlow(time), order=1)

        start, usual = error(time=0.0), error()
        assert start["bias"].item() == pytest.approx(1.2**2)
        assert start["variance1"].item() == 0.0  # one hidden layer: G1 = 0
        assert abs(error(width=6400)["error"] - usual["error0"]).item() < abs(usual["error"] - usual["error0"]).item()
        for changed in ({"depth": 3}, {"C_W": 1.0}, {"time": 8.0}):
            assert abs(error(**changed)["error1"] - usual["error1"]).item() > 1e-2


class TestBadInput:
    net = reference_network("tanh", 2, 32)

    @pytest.mark.parametrize("call", [ww.predict, ww.posterior], ids=["predict", "posterior"])
    @pytest.mark.parametrize("order", [0, 1])
    def test_data_that_cannot_be_used(self, call, order):
        more = r"y_train: got shape \(2, 2\); expected shape \(2, 1\) or \(2,\): one row per training input, one column per"
        with pytest.raises(ValueError, match=more):
            call(self.net, DATA, np.ones((2, 2)), TEST, order=order)
        with pytest.raises(ValueError, match=r"y_train: got shape \(3,\); expected shape \(2, 1\) or \(2,\)"):
            call(self.net, DATA, np.ones(3), TEST, order=order)
        with pytest.raises(ww.errors.SingularKernel, match="X_train: got rows 0 and 2; 1 and 3 that coincide"):
            call(self.net, DATA[[0, 1, 0, 1]], np.ones(4), TEST, order=order)

    @pytest.mark.parametrize("call", [ww.predict, ww.trained_kernel], ids=["predict", "trained_kernel"])
    def test_a_step_past_the_bound_is_told_the_bound(self, call):
        bound = ww.max_learning_rate(self.net, DATA)
        with pytest.raises(ww.errors.UnstableLearningRate, match=f"less than 2/λ_max = {bound:.6g}"):
            call(self.net, DATA, Y_ONE, TEST, ww.GradientDescent(1.01 * bound))
        call(self.net, DATA, Y_ONE, TEST, ww.GradientDescent(0.99 * bound))

    def test_a_narrow_network_is_warned_of_with_the_relative_size(self):
        narrow = reference_network("tanh", 3, 2)
        with pytest.warns(
            ww.errors.ExpansionWarning, match=r"at n = 2 the correction to the \w+ is [\d.]+ of the leading"
        ):
            ww.expected_error(narrow, DATA, Y_ONE, TEST, [[1.0]], order=1)
