"""Flow, descent, Newton step and their control variates against independent references, one network at a time."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trained_networks import DATA, TEST, Y_ONE, Y_TWO, X, reference_network, start_of

import widthwise as ww
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tally import Chunks, merged
from widthwise.experiments.tangent import gradient, kernel, outputs, pull, push, tangent
from widthwise.experiments.training.control import linearised
from widthwise.experiments.training.descent import descend
from widthwise.experiments.training.ensemble import Ensemble
from widthwise.experiments.training.flows import flow, newton_step, phi
from widthwise.experiments.training.output_cumulants import estimates
from widthwise.network.algorithms import SGD, Adam, GradientDescent, GradientFlow, Momentum


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
            Weights(w / n, b) for w, n, b in zip(self.net.lambda_W, self.net.widths, self.net.lambda_b, strict=False)
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
        return [Weights(weight / fan_in, bias) for weight, fan_in, bias in pairs]

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

    def test_a_batch_holds_different_inputs_and_is_drawn_anew_at_every_step(self):
        """For a model that is linear and inputs that are orthogonal, a step moves the weights of its batch alone."""
        net, data = ww.MLP([3, 1], "linear", lambda_b=0.0), jnp.eye(3)
        y, layers = jnp.array([[1.0, -2.0, 0.5]]), start_of(ww.MLP([3, 1], "linear", lambda_b=0.0))
        full = descend(net, layers, data, y, GradientDescent(0.15, 1), network_key(0, 0), 1e-6, 1)
        batches = set()
        for k in range(20):
            end = descend(net, layers, data, y, SGD(0.1, 2, 1), network_key(0, k), 1e-6, 1)
            moved = ~np.isclose(end.layers[0].W[0], layers[0].W[0])
            assert moved.sum() == 2
            assert np.allclose(end.layers[0].W[0, moved], full.layers[0].W[0, moved], atol=1e-14)
            batches.add(tuple(moved.tolist()))
        assert len(batches) == 3
        three = descend(net, layers, data, y, SGD(0.1, 2, 3), network_key(0, 0), 1e-6, 1)
        assert int(three.steps) == 3

    def test_nesterov(self):
        def update(memory, i, g, rate, step):
            memory[i] = 0.8 * memory.get(i, 0.0) + g
            return -0.1 * rate * (g + 0.8 * memory[i])

        found, _ = self.by_library(Momentum(0.1, 0.8, 6, nesterov=True))
        assert np.allclose(found, self.by_loop(update, 6), atol=1e-12)

    def test_rates_that_change(self):
        rates = (0.3, 0.1, 0.4, 0.2)
        expected = self.by_loop(lambda _, i, g, rate, step: -rates[step] * rate * g, 4)
        assert np.allclose(self.by_library(GradientDescent(rates))[0], expected, atol=1e-12)
        assert not np.allclose(self.by_library(GradientDescent(rates[::-1]))[0], expected, atol=1e-5)

    @pytest.mark.parametrize("target", ["initialisation", "zero"])
    def test_weight_decay(self, target):
        start = [np.asarray(leaf) for leaf in jax.tree.leaves(start_of(self.net))]

        def update(memory, i, g, rate, step):
            p = memory.setdefault(i, start[i])
            away = p - start[i] if target == "initialisation" else p
            # groups that do not learn do not decay
            move = -0.2 * (rate * g + (0.3 * away if rate > 0 else 0.0))
            memory[i] = p + move
            return move

        found, _ = self.by_library(GradientDescent(0.2, 5, 0.3, target))
        assert np.allclose(found, self.by_loop(update, 5), atol=1e-12)

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
        reflected = [*layers[:-1], Weights(-layers[-1].W, -layers[-1].b)]
        for algorithm in (GradientFlow(), GradientFlow(0.7), GradientDescent(0.3, 4)):
            one, other = (
                linearised(net, algorithm, p, at, kernel(at), data, y)
                for p in (layers, reflected)
                for at in [tangent(net, p, data)]
            )
            assert np.allclose(one.odd, -other.odd, atol=1e-12)
            assert np.allclose(one.drift, -other.drift, atol=1e-12)
            assert np.allclose(one.even, other.even, atol=1e-12)
            assert np.abs(one.odd).max() > 1e-2
            assert np.abs(one.even).max() > 1e-2

    @pytest.mark.parametrize("inputs", ["few", "many"])
    def test_the_same_moments_with_less_noise(self, inputs):
        """Few inputs use the conditional means of `fluctuations`, many do not."""
        tests = TEST if inputs == "few" else np.random.default_rng(0).normal(size=(8, 3))
        net = reference_network("tanh", 2, 32)
        how = {"seed": 3, "tolerance": 1e-6, "accuracy": 1e-5, "max_steps": 2000, "batch": 128}
        ensemble = Ensemble.of(net, GradientFlow(), DATA, Y_ONE.T, tests, **how)
        sums = None
        for chunk in Chunks.of(ensemble, 1024):
            sums = merged(sums, ensemble(chunk))
        found = estimates(sums, net.n)
        for name in ("mean", "cov", "kernel", "change"):
            value, error = found[name]
            plain, plain_error = found["plain_" + name]
            assert np.all(np.abs(value - plain) < 4 * np.sqrt(error**2 + plain_error**2))
            assert np.median(error / plain_error) < {"mean": 0.3, "cov": 0.6, "kernel": 1.05, "change": 0.95}[name]
