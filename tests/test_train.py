"""Trained ensembles: theory to order 1/n, exact laws, independent references for every algorithm, bad input."""

import warnings
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widthwise as ww
from widthwise.experiments.labelled import NonFiniteWarning
from widthwise.experiments.sampler import Layer, network_key, sample_parameters
from widthwise.experiments.training.descent import descend
from widthwise.experiments.training.ensemble import Ensemble, train_chunk
from widthwise.experiments.training.flows import flow, phi
from widthwise.experiments.training.labelled import train
from widthwise.experiments.training.linearised import linearised
from widthwise.experiments.training.moments import estimates, merged
from widthwise.experiments.training.newton import newton_step
from widthwise.experiments.training.tangent import gradient, kernel, outputs, pull, push, tangent
from widthwise.flow.finite import finite_flow
from widthwise.inference.clock import Clock
from widthwise.inference.corrections import TRAINING, at_output
from widthwise.inference.trained_kernel import mean_kernel_change
from widthwise.inference.trained_moments import Basis, moments_at_tests
from widthwise.inference.training_kernel import Spectrum
from widthwise.network.algorithms import SGD, Adam, GradientDescent, GradientFlow, Momentum, NewtonStep

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [0.6, -0.2, 0.4]])
DATA, TEST = X[:2], X[2:]
Y_ONE, Y_TWO = np.array([[2.0], [2.0]]), np.array([[1.5, 0.3], [0.5, -0.4]])
Y_LARGE = np.array([[2.0, -1.0], [2.0, 1.0]])


def reference_network(activation, depth, width, outputs=1):
    widths = [3, *[width] * (depth - 1), outputs]
    return ww.MLP(widths, activation, C_b=0.1, C_W=2.0, lambda_b=0.2, lambda_W=1.0)


def start_of(net, index=0, seed=0):
    return sample_parameters(net, network_key(seed, index))


def autodiff_loss(net, X, y):
    """½Σ(z − y)² written from scratch."""

    def loss(layers):
        s = jnp.asarray(X)
        for number, layer in enumerate(layers):
            s = s @ layer.W.T + layer.b
            s = net.activation(s) if number < len(layers) - 1 else s
        return 0.5 * jnp.sum((s.T - y) ** 2)

    return loss


class TestTangent:
    net = ww.MLP([3, 5, 4, 2], "gelu", C_b=0.1, C_W=1.5, lambda_b=[0.3, 0.0, 0.7], lambda_W=[1.0, 0.8, 1.2])

    def test_push_pull_and_kernel_are_the_jacobian_of_autodiff(self):
        layers = start_of(self.net)
        at = tangent(self.net, layers, jnp.asarray(X))
        J = jax.jacrev(lambda p: outputs(self.net, p, jnp.asarray(X)))(layers)
        rates = [
            Layer(w / n, b) for w, n, b in zip(self.net.lambda_W, self.net.widths, self.net.lambda_b, strict=False)
        ]
        H = sum(
            rate * np.tensordot(j.reshape(2, 3, -1), j.reshape(2, 3, -1), (2, 2))
            for rate, j in zip(jax.tree.leaves(rates), jax.tree.leaves(J), strict=True)
        )
        assert np.allclose(kernel(at), H, atol=1e-12)
        move = pull(self.net, at, at.z)
        assert np.allclose(push(at, move), np.einsum("iajb,jb->ia", H, at.z), atol=1e-12)

    def test_the_gradient_is_that_of_autodiff(self):
        layers, y = start_of(self.net), jnp.asarray(np.arange(6.0).reshape(2, 3))
        found, error = gradient(self.net, layers, jnp.asarray(X), y)
        expected = jax.grad(autodiff_loss(self.net, X, y))(layers)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert np.allclose(one, other, atol=1e-12)
        assert np.allclose(error, outputs(self.net, layers, jnp.asarray(X)) - y)


class TestFlow:
    def test_phi_functions(self):
        """φ_k(−x) = ∫₀¹ e^{−x(1−t)} t^{k−1}/(k−1)! dt, across the switch from the series to the recurrence."""
        t, weights = np.polynomial.legendre.leggauss(60)
        t, weights = (t + 1) / 2, weights / 2
        for x in (0.0, 1e-9, 0.3, 1 - 1e-9, 1 + 1e-9, 4.0, 30.0):
            for k, found in enumerate(phi(jnp.asarray(x)), start=1):
                exact = np.sum(weights * np.exp(-x * (1 - t)) * t ** (k - 1)) / np.prod(np.arange(1, k))
                assert float(found) == pytest.approx(exact, rel=1e-11)

    def test_two_linear_layers_keep_their_conservation_law(self):
        """One datum: H² − 4z²/n does not change, and H stays positive: H at the end is known for every network."""
        net, x, y = ww.MLP([1, 8, 1], "linear", lambda_b=0.0), jnp.ones((1, 1)), jnp.array([[3.0]])
        end = jax.jit(jax.vmap(lambda p: flow(net, p, x, y, None, 1e-10, 1e-7, 5000)))
        starts = jax.vmap(partial(sample_parameters, net))(jax.vmap(partial(network_key, 0))(jnp.arange(6)))
        found = end(starts)
        assert np.all(found.converged)
        see = jax.vmap(lambda p: (tangent(net, p, x).z[0, 0], kernel(tangent(net, p, x))[0, 0, 0, 0]))
        (z, H), (z_end, H_end) = see(starts), see(found.layers)
        assert np.allclose(z_end, 3.0, atol=1e-9)
        assert np.allclose(H_end, np.sqrt(H**2 + (9.0 - z**2) * 4 / 8), rtol=1e-6)
        # negative control: the kernel really moved
        assert np.all(np.abs(H_end / H - 1) > 1e-2)

    def test_flow_is_the_limit_of_small_steps_on_the_same_networks(self):
        """The difference from descent is proportional to the step; extrapolated to zero steps, it is gone."""
        net, y = reference_network("swish", 3, 16, 2), jnp.asarray(Y_TWO.T)
        starts = jax.vmap(partial(sample_parameters, net))(jax.vmap(partial(network_key, 1))(jnp.arange(6)))
        time, data = 8.0, jnp.asarray(DATA)

        def by_steps(steps):
            how = GradientDescent(time / steps, steps)
            run = jax.vmap(lambda p: outputs(net, descend(net, p, data, y, how, None, 1e-6, 1).layers, jnp.asarray(X)))
            return jax.jit(run)(starts)

        exact = jax.jit(
            jax.vmap(lambda p: outputs(net, flow(net, p, data, y, time, 1e-6, 1e-7, 5000).layers, jnp.asarray(X)))
        )(starts)
        one, two = by_steps(500), by_steps(1000)
        first, second = np.abs(one - exact).max(), np.abs(two - exact).max()
        assert 1.9 < first / second < 2.1
        assert np.abs(2 * two - one - exact).max() < 0.02 * second
        assert second > 1e-4

    def test_accuracy_follows_what_is_asked(self):
        net, y, data = reference_network("gelu", 3, 24), jnp.asarray([[1.5, 0.5]]), jnp.asarray(DATA)
        starts = jax.vmap(partial(sample_parameters, net))(jax.vmap(partial(network_key, 0))(jnp.arange(4)))

        @jax.jit
        def ends(accuracy):
            return jax.vmap(
                lambda p: outputs(net, flow(net, p, data, y, None, 1e-9, accuracy, 5000).layers, jnp.asarray(TEST))
            )(starts)

        exact = ends(1e-8)
        errors = [float(jnp.abs(ends(accuracy) - exact).max()) for accuracy in (1e-3, 1e-5, 1e-6)]
        assert errors[1] < 1e-5
        assert errors[2] < 1e-6
        assert errors[0] > errors[2]

    def test_a_stiff_kernel_costs_few_steps(self):
        """Nearly equal inputs: the eigenvalues of Ĥ are three decades apart."""
        net = reference_network("tanh", 2, 64)
        close, y = jnp.asarray([[1.0, 0.3, -0.5], [1.0, 0.3, -0.45]]), jnp.array([[0.5, 0.51]])
        layers = start_of(net)
        values = np.linalg.eigvalsh(kernel(tangent(net, layers, close)).reshape(2, 2))
        assert values[1] / values[0] > 1e3
        end = jax.jit(lambda p: flow(net, p, close, y, None, 1e-6, 1e-5, 2000))(layers)
        assert bool(end.converged)
        assert int(end.steps) < 150


class TestDescent:
    """Every algorithm against a plain loop around autodiff."""

    net = ww.MLP([3, 6, 2], "tanh", C_b=0.1, C_W=1.5, lambda_b=[0.3, 0.0], lambda_W=[1.0, 0.8])
    y = np.array([[0.4, -0.3, 0.2], [0.1, 0.5, -0.2]])

    def rates(self):
        pairs = zip(self.net.lambda_W, self.net.widths, self.net.lambda_b, strict=False)
        return [Layer(weight / fan_in, bias) for weight, fan_in, bias in pairs]

    def by_loop(self, update, steps):
        layers, memory = start_of(self.net), {}
        slope = jax.grad(autodiff_loss(self.net, X, self.y))
        for step in range(steps):
            flat, tree = jax.tree.flatten(layers)
            slopes, rates = jax.tree.leaves(slope(layers)), jax.tree.leaves(self.rates())
            moved = [
                p + update(memory, i, g, r, step) for i, (p, g, r) in enumerate(zip(flat, slopes, rates, strict=True))
            ]
            layers = jax.tree.unflatten(tree, moved)
        return outputs(self.net, layers, jnp.asarray(X))

    def by_library(self, algorithm, **options):
        layers, key = start_of(self.net), network_key(0, 0)
        data, y = jnp.asarray(X), jnp.asarray(self.y)
        end = descend(self.net, layers, data, y, algorithm, key, options.get("tolerance", 1e-6), 10_000)
        return outputs(self.net, end.layers, data), end

    def test_gradient_descent(self):
        expected = self.by_loop(lambda _, i, g, rate, step: -0.3 * rate * g, 4)
        assert np.allclose(self.by_library(GradientDescent(0.3, 4))[0], expected, atol=1e-12)
        assert not np.allclose(self.by_library(GradientDescent(0.3, 5))[0], expected, atol=1e-4)

    def test_momentum(self):
        def update(memory, i, g, rate, step):
            memory[i] = 0.8 * memory.get(i, 0.0) + g
            return -0.1 * rate * memory[i]

        assert np.allclose(self.by_library(Momentum(0.1, 0.8, 6))[0], self.by_loop(update, 6), atol=1e-12)

    def test_adam_in_units_of_the_learning_rate_tensor(self):
        def update(memory, i, g, rate, step):
            m, v = memory.get(i, (0.0, 0.0))
            g = np.sqrt(rate) * g
            memory[i] = m, v = 0.7 * m + 0.3 * g, 0.9 * v + 0.1 * g**2
            step += 1
            return -0.05 * np.sqrt(rate) * (m / (1 - 0.7**step)) / (np.sqrt(v / (1 - 0.9**step)) + 1e-6)

        found, _ = self.by_library(Adam(0.05, 0.7, 0.9, 1e-6, steps=5))
        assert np.allclose(found, self.by_loop(update, 5), atol=1e-12)

    def test_batches_of_one_pass_use_every_input_once(self):
        """For a model that is linear and inputs that are orthogonal, one pass is one full step with N times the rate."""
        net, data = ww.MLP([3, 1], "linear", lambda_b=0.0), jnp.eye(3)
        y, layers = jnp.array([[1.0, -2.0, 0.5]]), start_of(ww.MLP([3, 1], "linear", lambda_b=0.0))
        one = descend(net, layers, data, y, SGD(0.1, 1, 3), network_key(0, 0), 1e-6, 1)
        full = descend(net, layers, data, y, GradientDescent(0.3, 1), network_key(0, 0), 1e-6, 1)
        assert np.allclose(one.layers[0].W, full.layers[0].W, atol=1e-14)
        assert int(one.steps) == 3
        cut_short = descend(net, layers, data, y, SGD(0.1, 1, 2), network_key(0, 0), 1e-6, 1)
        assert int(cut_short.steps) == 2
        assert np.sum(~np.isclose(cut_short.layers[0].W, layers[0].W)) == 2

    @pytest.mark.parametrize("algorithm", [SGD(0.2, 2), Momentum(0.1), GradientDescent(0.4)], ids=repr)
    def test_to_convergence(self, algorithm):
        found, end = self.by_library(algorithm, tolerance=1e-5)
        assert bool(end.converged)
        assert np.abs(found - self.y).max() < 1e-5

    def test_the_order_of_batches_belongs_to_the_network(self):
        layers, data, y = start_of(self.net), jnp.asarray(X), jnp.asarray(self.y)
        ends = [descend(self.net, layers, data, y, SGD(0.2, 1, 3), network_key(0, i), 1e-6, 1) for i in (0, 0, 1)]
        one, again, other = (np.asarray(end.layers[0].W) for end in ends)
        assert np.array_equal(one, again)
        assert not np.allclose(one, other)

    def test_a_newton_step_is_one_step_along_the_first_jacobian(self):
        layers, data, y = start_of(self.net), jnp.asarray(DATA), jnp.asarray(self.y[:, :2])
        net = self.net
        end = newton_step(net, layers, data, y, 1e-10, 200)
        assert bool(end.converged)
        assert np.allclose(outputs(net, end.layers, data), y, atol=1e-9)
        moved = jnp.concatenate(
            [(e - s).ravel() for e, s in zip(*map(jax.tree.leaves, (end.layers, layers)), strict=True)]
        )
        at = tangent(net, layers, data)
        units = jnp.eye(4).reshape(4, 2, 2)
        span = jnp.stack([jnp.concatenate([p.ravel() for p in jax.tree.leaves(pull(net, at, e))]) for e in units])
        a, *_ = np.linalg.lstsq(span.T, moved, rcond=None)
        assert np.allclose(span.T @ a, moved, atol=1e-10)


class TestControls:
    def test_reflecting_the_last_layer_changes_the_sign_of_what_is_subtracted(self):
        net, y, data = reference_network("swish", 3, 12, 2), jnp.asarray(Y_TWO.T), jnp.asarray(X)
        layers = start_of(net)
        reflected = [*layers[:-1], Layer(-layers[-1].W, -layers[-1].b)]
        for algorithm in (GradientFlow(), GradientFlow(0.7), GradientDescent(0.3, 4)):
            one, other = (
                linearised(net, algorithm, p, at, kernel(at), data, y)
                for p in (layers, reflected)
                for at in [tangent(net, p, data)]
            )
            assert np.allclose(one.odd, -other.odd, atol=1e-12)
            assert np.allclose(one.drift, -other.drift, atol=1e-12)
            assert np.allclose(one.even, other.even, atol=1e-12)
            assert np.abs(one.odd).min() > 1e-3
            assert np.abs(one.even).min() > 1e-3

    @pytest.mark.parametrize("inputs", ["few", "many"])
    def test_the_same_moments_with_less_noise(self, inputs):
        """Few inputs use the conditional means of `fluctuations`, many do not."""
        tests = TEST if inputs == "few" else np.random.default_rng(0).normal(size=(8, 3))
        net = reference_network("tanh", 2, 32)
        how = {"seed": 3, "tolerance": 1e-6, "accuracy": 1e-5, "max_steps": 2000, "batch": 128}
        ensemble = Ensemble.of(net, GradientFlow(), DATA, Y_ONE.T, tests, **how)
        sums = None
        for chunk in ensemble.chunks(1024):
            sums = merged(sums, train_chunk(ensemble, chunk))
        found = estimates(sums)
        for name in ("mean", "cov", "kernel", "change"):
            value, error = found[name]
            plain, plain_error = found["plain_" + name]
            assert np.all(np.abs(value - plain) < 4 * np.sqrt(error**2 + plain_error**2))
            assert np.median(error / plain_error) < {"mean": 0.3, "cov": 0.6, "kernel": 1.05, "change": 0.95}[name]


@cache
def tensors_at_output(net):
    found = finite_flow(net, X, TRAINING, last_only=True)
    return at_output(found), found.Theta[-1]


def prediction(net, algorithm, y, left_out=()):
    """mean1, cov1, change1 at the test input, with some tensors set to zero."""
    tensors, Theta = tensors_at_output(net)
    tensors = {k: np.zeros_like(v) if k in left_out else v for k, v in tensors.items()}
    basis, clock = Basis.of(Spectrum.of(Theta[:2, :2]), Theta, tensors, y), Clock.of(algorithm)
    _, first = moments_at_tests(basis, clock)
    return {
        "mean": first.mean,
        "cov": first.covariance,
        "change": mean_kernel_change(basis, clock)[:, 2:, :, 2:],
    }


def coefficients(t, p):
    """n (measured − infinite width) with its standard error."""
    n, leading = t.attrs["n"], {"mean": p["mean0"], "cov": p["cov0"], "change": 0.0}
    return {name: (n * (t[name] - zero).values, n * t[name + "_se"].values) for name, zero in leading.items()}


def extrapolated(activation, depth, y, algorithm, width, networks):
    """Coefficients of 1/n from widths n and 2n: 2 c(2n) − c(n), with a remainder of order 1/n²."""
    found = []
    for scale in (1, 2):
        net = reference_network(activation, depth, scale * width, y.shape[1])
        t = train(net, DATA, y, TEST, networks, algorithm, seed=10 + scale)
        assert t.attrs["unconverged"] == t.attrs["nonfinite"] == 0
        found.append(coefficients(t, ww.predict(net, DATA, y, TEST, None)))
    narrow, wide = found
    return net, {
        name: (2 * wide[name][0] - narrow[name][0], np.hypot(2 * wide[name][1], narrow[name][1])) for name in narrow
    }


def worst_pull(measured, predicted):
    return max(np.abs((value - predicted[name]) / error).max() for name, (value, error) in measured.items())


CASES = [
    ("swish", 2, Y_ONE, GradientDescent(0.918), 48, 16_384, ({"B"}, {"P", "Q"}, {"R", "S", "T", "U"})),
    ("swish", 2, Y_ONE, GradientFlow(), 48, 2048, ({"P", "Q"}, {"R", "S", "T", "U"})),
    ("tanh", 3, Y_LARGE, GradientFlow(), 32, 1024, ({"P", "Q"}, {"R", "S", "T", "U"})),
]
FULL = [
    ("swish", 2, Y_ONE, GradientFlow(), 64, 40_000),
    ("swish", 2, Y_ONE, GradientDescent(0.918), 128, 40_000),
    ("tanh", 3, Y_TWO, GradientFlow(), 64, 10_000),
    ("gelu", 3, np.array([[1.5], [0.5]]), GradientFlow(), 64, 10_000),
    ("gelu", 3, Y_TWO, GradientDescent(0.3), 64, 10_000),
    ("tanh", 2, Y_TWO, GradientFlow(1.0), 64, 20_000),
    ("gelu", 2, Y_TWO, NewtonStep(), 64, 20_000),
    ("swish", 3, Y_TWO, GradientDescent(0.2, 6), 64, 10_000),
]


def case_name(case):
    return f"{case[0]}-{case[1]}-{case[2].shape[1]}-{case[3]!r}"


class TestTheory:
    """Mean, covariance and change of the kernel, extrapolated, against theory §8; wrong theories must fail."""

    @pytest.mark.parametrize("case", CASES, ids=case_name)
    def test_agrees_within_four_standard_errors(self, case):
        activation, depth, y, algorithm, width, networks, wrong = case
        net, measured = extrapolated(activation, depth, y, algorithm, width, networks)
        assert worst_pull(measured, prediction(net, algorithm, y)) < 4
        for left_out in wrong:
            assert worst_pull(measured, prediction(net, algorithm, y, left_out)) > 5

    @pytest.mark.full
    @pytest.mark.parametrize("case", FULL, ids=case_name)
    def test_agrees_with_many_networks(self, case):
        activation, depth, y, algorithm, width, networks = case
        net, measured = extrapolated(activation, depth, y, algorithm, width, networks)
        assert worst_pull(measured, prediction(net, algorithm, y)) < 4
        for left_out in ({"B"}, {"A"}, {"R", "S", "T", "U"}, {"P", "Q"}):
            assert worst_pull(measured, prediction(net, algorithm, y, left_out)) > 5


class TestDataset:
    net, data = ww.MLP([3, 8, 2], "tanh", C_b=0.1, C_W=1.5), (DATA, Y_TWO, X[1:])

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls):
        return train(cls.net, *cls.data, 100, batch=20)

    def test_dimensions_and_attributes(self, trained):
        assert trained["mean"].dims == ("output", "test")
        assert trained["cov"].dims == trained["kernel"].dims == ("output", "test", "output_", "test_")
        assert {name + "_se" for name in ("mean", "cov", "kernel", "change")} <= set(trained)
        expected = {"networks": 100, "unconverged": 0, "nonfinite": 0, "seed": 0, "n": 8, "interrupted": 0}
        assert expected.items() <= trained.attrs.items()
        assert trained.attrs["algorithm"] == "GradientFlow(time=None)"
        assert trained.attrs["variance_reduction_mean"] > 2
        assert ww.network_of(trained) == self.net

    def test_a_training_input_is_fitted_by_every_network(self, trained):
        """The first test input is the second training input."""
        assert np.allclose(trained["mean"][:, 0], Y_TWO[1], atol=1e-5)
        assert np.abs(trained["cov"][:, 0]).max() < 1e-4
        assert np.diag(trained["cov"][:, 1, :, 1]).min() > 1e-2

    def test_batches_do_not_matter_beyond_rounding(self, trained):
        other = train(self.net, *self.data, 100, batch=7)
        for name in trained:
            assert np.allclose(other[name], trained[name], rtol=1e-7, atol=1e-9)
        # negative control: another seed is another ensemble
        assert not np.allclose(train(self.net, *self.data, 100, seed=1, batch=20)["mean"], trained["mean"], atol=1e-4)

    def test_a_run_cut_short_goes_on_to_the_same_numbers(self, trained, tmp_path):
        path = tmp_path / "run.npz"
        first = train(self.net, *self.data, 40, batch=20, checkpoint=path)
        assert first.attrs["networks"] == 40
        resumed = train(self.net, *self.data, 100, batch=20, checkpoint=path)
        for name in trained:
            assert np.array_equal(resumed[name], trained[name])
        with pytest.raises(ValueError, match="checkpoint: got .* written by a run with other targets; expected one of"):
            train(self.net, DATA, 2 * Y_TWO, X[1:], 100, batch=20, checkpoint=path)
        with pytest.raises(ValueError, match="checkpoint: got .* which holds 100 networks already"):
            train(self.net, *self.data, 60, batch=20, checkpoint=path)

    @pytest.mark.full
    def test_other_processes_give_the_same_bits(self, trained):
        other = train(self.net, *self.data, 100, batch=20, engine=2)
        for name in trained:
            assert np.array_equal(other[name], trained[name])

    def test_no_training_leaves_the_prior(self):
        t = train(self.net, *self.data, 400, GradientFlow(0.0), batch=20)
        assert np.allclose(t["change"], 0.0, atol=1e-12)
        assert np.allclose(t["mean"], 0.0, atol=1e-12)
        K = ww.measure(self.net, X[1:], networks=400)
        pulls = (t["cov"][0, :, 0].values - K["K"][0].values) / np.hypot(t["cov_se"][0, :, 0], K["K_se"][0])
        assert np.abs(pulls).max() < 4


class TestThingsThatGoWrong:
    net = ww.MLP([3, 8, 1], "linear")

    def test_networks_that_do_not_converge_are_counted_and_kept(self):
        with pytest.warns(ww.AccuracyWarning, match=r"train: 20 of 20 networks \(indices \[0, 1, 2,.* in 3 steps"):
            t = train(self.net, DATA, Y_ONE, TEST, 20, max_steps=3, batch=20)
        assert t.attrs["unconverged"] == t.attrs["networks"] == 20
        assert len(t.attrs["unconverged_networks"]) == 16
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert train(self.net, DATA, Y_ONE, TEST, 20, batch=20).attrs["unconverged"] == 0

    def test_networks_that_diverge_are_counted_and_named(self):
        how = GradientDescent(1.1 * ww.max_learning_rate(self.net, DATA))
        with pytest.warns(
            NonFiniteWarning, match=r"networks \(indices \[\d+.* of seed 0 end with numbers that are not"
        ):
            t = train(self.net, DATA, Y_ONE, TEST, 40, how, batch=20)
        assert 0 < t.attrs["nonfinite"] < 38
        assert t.attrs["networks"] + t.attrs["nonfinite"] == 40
        # the first one named diverges alone, too
        y = jnp.asarray(Y_ONE.T)
        alone = descend(
            self.net,
            start_of(self.net, t.attrs["nonfinite_networks"][0]),
            jnp.asarray(DATA),
            y,
            how,
            None,
            1e-6,
            100_000,
        )
        assert not np.all(np.isfinite(outputs(self.net, alone.layers, jnp.asarray(DATA))))
        with pytest.raises(ValueError, match="algorithm: got .*not finite .*expected at least 2 networks that stay"):
            train(self.net, DATA, Y_ONE, TEST, 40, GradientDescent(100.0), batch=20)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"networks": 1}, "networks: got 1; expected an integer of at least 2"),
            ({"networks": 2.5}, "networks: got 2.5"),
            ({"seed": -1}, "seed: got -1; expected an integer of at least 0"),
            ({"seed": "a"}, "seed: got 'a'"),
            ({"tolerance": 0.0}, "tolerance: got 0.0; expected a finite positive number"),
            ({"tolerance": "small"}, "tolerance: got 'small'"),
            ({"max_steps": 0}, "max_steps: got 0"),
            ({"batch": True}, "batch: got True"),
            ({"algorithm": "adam"}, r"algorithm: got 'adam'; expected GradientFlow\(\)"),
            ({"algorithm": SGD(0.1, 5)}, "algorithm: got batch_size=5; expected at most 2, the number of training"),
            ({"engine": "somewhere"}, "engine: got 'somewhere'"),
            ({"checkpoint": "/nowhere/at/all.npz"}, "checkpoint: got '/nowhere/at/all.npz'; expected the path"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_bad_arguments(self, changed, message):
        with pytest.raises(ValueError, match=message):
            train(self.net, DATA, Y_ONE, TEST, **({"networks": 10} | changed))

    def test_bad_data(self):
        with pytest.raises(ValueError, match=r"y_train: got shape \(3,\); expected shape \(2, 1\) or \(2,\)"):
            train(self.net, DATA, [1.0, 2.0, 3.0], TEST)
        with pytest.raises(ValueError, match="X_test: got 2 features"):
            train(self.net, DATA, Y_ONE, [[1.0, 2.0]])
        with pytest.raises(ValueError, match="net: got str; expected a widthwise.MLP"):
            train("net", DATA, Y_ONE, TEST)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: SGD(0.1, 0), "batch_size: got 0; expected a positive integer"),
            (lambda: SGD(0.1, None), "batch_size: got None.*Use GradientDescent for full batches"),
            (lambda: SGD(-1.0, 2), "learning_rate: got -1.0; expected a finite positive number"),
            (lambda: Momentum(0.1, 1.0), "momentum: got 1.0; expected a number from 0 up to"),
            (lambda: Momentum(0.1, steps=-2), "steps: got -2"),
            (lambda: Adam(0.1, beta2=1.5), "beta2: got 1.5"),
            (lambda: Adam(0.1, epsilon=-1.0), "epsilon: got -1.0"),
        ],
    )
    def test_bad_algorithms(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()
