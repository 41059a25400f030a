"""The tangent kernel after training, layer by layer: parts that add up, real networks, growth with L/n."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trained_networks import DATA, TEST, Y_LARGE, Y_ONE, X, reference_network

import widthwise as ww
from widthwise.experiments.layer_passes import Weights, features
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tangent import outputs, tangent
from widthwise.experiments.training.ensemble import train_one
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.inference.corrections import TRAINING_TENSORS, at_output, layer_flows
from widthwise.inference.infinite_width import Spectrum
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.cumulants import joint_cumulant, monomial
from widthwise.inference.trained.trained_moments import Basis, kernel_change, mean_kernel_change, trained_output

STEPS = ww.GradientDescent(0.25, 6)


def layer_kernels(net, layers):
    """Ĥ^(l) at the test input, (layer, i, a, j, b), by differentiating a real network."""
    at = tangent(net, layers, jnp.asarray(TEST))
    overlaps = [features(layer, s, s) for layer, s in zip(net.dense, at.incoming, strict=True)]
    return jnp.stack([jnp.einsum("ab,ian,jbn->iajb", f, d, d) for f, d in zip(overlaps, at.signals, strict=True)])


@partial(jax.jit, static_argnums=(0, 1))
def changes(net, algorithm, y, keys):
    """What training adds to Ĥ^(l), averaged over a network and the one with its last layer reflected."""

    def one(layers, key):
        end = train_one(net, algorithm, layers, jnp.asarray(DATA), y, key, (1e-6, 1e-5, 2000))
        return layer_kernels(net, end.layers) - layer_kernels(net, layers)

    def pair(key):
        layers = sample_parameters(net, key)
        mirrored = [*layers[:-1], Weights(-layers[-1].W, -layers[-1].b)]
        return 0.5 * (one(layers, key) + one(mirrored, key))

    return jax.vmap(pair)(keys)


def measured(net, algorithm, y, pairs, seed):
    """n times the mean change and its standard error."""
    keys = jax.vmap(partial(network_key, seed))(jnp.arange(pairs)).reshape(-1, 128)
    rows = np.concatenate([np.asarray(changes(net, algorithm, jnp.asarray(y.T), some)) for some in keys])
    return net.n * rows.mean(axis=0), net.n * rows.std(axis=0, ddof=1) / np.sqrt(pairs)


def extrapolated(activation, depth, width, algorithm, y, pairs):
    """The coefficient of 1/n from widths n and 2n."""
    nets = [reference_network(activation, depth, scale * width, y.shape[1]) for scale in (1, 2)]
    (narrow, narrow_error), (wide, wide_error) = (
        measured(net, algorithm, y, pairs, 40 + k) for k, net in enumerate(nets)
    )
    return nets[1], 2 * wide - narrow, np.hypot(2 * wide_error, narrow_error)


def predicted(net, algorithm, y, left_out=()):
    """change1 of every layer's kernel, with some tensors set to zero, and the layer's share of Θ."""
    found, shares = [], []
    for flow in layer_flows(net, X, 2):
        tensors = {name: np.zeros_like(t) if name in left_out else t for name, t in at_output(flow).items()}
        basis = Basis.of(Spectrum.of(flow.Theta[-1][:2, :2]), flow.Theta[-1], tensors, y)
        found.append(mean_kernel_change(basis, Clock.of(algorithm))[:, 2:, :, 2:])
        shares.append(flow.Theta[-1][2, 2])
    return np.array(found), np.array(shares) / np.sum(shares)


def worst_pull(value, error, expected):
    scattered = error > 1e-12
    assert np.allclose(value[~scattered], expected[~scattered], atol=1e-9)
    return np.abs((value - expected)[scattered] / error[scattered]).max()


def check(activation, depth, width, algorithm, y, pairs):
    net, value, error = extrapolated(activation, depth, width, algorithm, y, pairs)
    right, shares = predicted(net, algorithm, y)
    assert worst_pull(value, error, right) < 4
    # negative controls: a part that moves as the whole does; no first, no second differential of the kernel
    in_proportion = np.einsum("l,iajb->liajb", shares, right.sum(axis=0))
    in_proportion[:, error.max(axis=0) <= 1e-12] = 0.0
    diagonal = np.einsum("liaia->lia", error), np.einsum("liaia->lia", value)
    assert worst_pull(diagonal[1], diagonal[0], np.einsum("liaia->lia", in_proportion)) > 6
    for left_out in (("P", "Q"), ("R", "S", "T", "U")):
        assert worst_pull(value, error, predicted(net, algorithm, y, left_out)[0]) > 6


class TestRealNetworks:
    """Widths n and 2n extrapolated, in standard errors, layer by layer."""

    @pytest.mark.parametrize(
        ("activation", "depth", "y"),
        [("tanh", 3, Y_LARGE), pytest.param("swish", 2, Y_ONE, marks=pytest.mark.full)],
        ids=["tanh-3", "swish-2"],
    )
    def test_each_layers_kernel_changes_as_predicted(self, activation, depth, y):
        check(activation, depth, 32, STEPS, y, 2048)

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("activation", "depth", "algorithm", "y"),
        [("tanh", 3, ww.GradientFlow(), Y_LARGE), ("gelu", 4, ww.GradientDescent(0.1), Y_ONE)],
        ids=["tanh-3-flow", "gelu-4-descent"],
    )
    def test_trained_to_convergence(self, activation, depth, algorithm, y):
        check(activation, depth, 48, algorithm, y, 2048)


class TestDataset:
    net = ww.MLP([3, 48, 64, 2], "tanh", C_b=0.1, C_W=[1.5, 1.7, 1.4], lambda_b=[0.2, 0.1, 0.3], lambda_W=[1, 0.8, 1.2])

    @pytest.mark.parametrize("algorithm", [ww.GradientFlow(), STEPS, ww.NewtonStep()], ids=repr)
    def test_the_layers_add_up_to_the_whole(self, algorithm):
        k = ww.trained_kernel(self.net, DATA, Y_LARGE, X[1:], algorithm, by_layer=True)
        assert k["change1_by_layer"].dims == ("layer", "output", "test", "output_", "test_")
        for name in ("kernel0", "initial1", "change1"):
            assert np.allclose(k[f"{name}_by_layer"].sum("layer"), k[name], atol=1e-11)
            assert "long_name" in k[f"{name}_by_layer"].attrs
        # negative control: no layer is the whole
        assert all(np.abs(k["change1_by_layer"][layer] - k["change1"]).max() > 1e-2 for layer in range(3))

    def test_a_layer_that_does_not_learn_has_no_kernel_and_is_not_trained(self):
        frozen = self.net.replace(lambda_b=[0.2, 0.0, 0.3], lambda_W=[1.0, 0.0, 1.2])
        k = ww.trained_kernel(frozen, DATA, Y_LARGE, TEST, by_layer=True)
        assert np.all(k["kernel0_by_layer"][1] == 0.0)
        assert np.abs(k["change1_by_layer"][1]).max() == 0.0
        assert np.abs(k["change1_by_layer"][2]).max() > 1e-2

    def test_two_linear_layers_share_the_change_equally(self):
        """W² and U² obey the same equation: dU²/dt = dW²/dt for z = Σ W_j U_j x, equal rates and variances."""
        net = ww.MLP([1, 64, 1], "linear", lambda_b=0.0)
        k = ww.trained_kernel(net, [[1.0]], [2.0], [[1.0]], by_layer=True)
        assert np.allclose(k["change1_by_layer"].values.ravel(), [1.5, 1.5], atol=1e-9)

    def test_a_newton_step_on_one_input_is_a_step_of_descent(self):
        """With a single eigenvalue λ of Θ it is one step at the rate 1/λ; a step of half that rate is another one."""
        rate = 1.0 / float(ww.theory(self.net, DATA[:1]).Theta.values[-1].squeeze())
        newton, step, half = (
            ww.trained_kernel(self.net, DATA[:1], Y_LARGE[:1], X[1:], algorithm)["change1"].values
            for algorithm in (ww.NewtonStep(), ww.GradientDescent(rate, 1), ww.GradientDescent(0.5 * rate, 1))
        )
        assert np.abs(newton - step).max() < 1e-11 * np.abs(step).max()
        assert np.abs(newton - half).max() > 0.1 * np.abs(step).max()


class TestGrowth:
    def test_the_change_relative_to_the_kernel_is_a_function_of_depth_over_width(self):
        """At criticality with equal layers, change/kernel per unit of 1/n grows with depth; wide networks keep Θ."""
        rows = []
        for depth in (2, 3, 4, 6, 8):
            critical = ww.MLP([3, *[64] * (depth - 1), 1], "tanh", C_b=0.0, C_W=1.0, lambda_b=0.0, lambda_W=1.0 / depth)
            k = ww.trained_kernel(critical, DATA, Y_ONE, TEST)
            rows.append(float(k["change1"].squeeze() / k["kernel0"].squeeze()))
        assert all(b > a > 0 for a, b in pairwise(rows))

    def test_at_infinite_width_nothing_moves(self):
        sizes = []
        for n in (64, 640, 6400):
            k = ww.trained_kernel(reference_network("tanh", 3, n), DATA, Y_ONE, TEST)
            sizes.append(abs(float((k["kernel"] - k["kernel0"] - k["initial1"] / n).squeeze())))
        assert np.allclose(np.polyfit(np.log([64, 640, 6400]), np.log(sizes), 1)[0], -1.0, atol=1e-9)


def output_and_kernel(clock, rates, inputs):
    """z* less what is not random, and H*, as polynomials without a common index (theory §8)."""
    others = inputs - len(rates)
    renamed = str.maketrans("IJKMabqr", "ABCDcdst")
    start = monomial(np.ones((inputs, inputs)), "ab", ("H", "IJ", "ab"))
    kernel = [term.renamed(renamed) for term in (start, *kernel_change(clock, rates, inputs))]
    return trained_output(clock, rates, others), kernel


class TestAnObservableOfOnesOwn:
    """cov(z*_x, H*_xx): no function of the library, but two polynomials and `covariance`."""

    @staticmethod
    @partial(jax.jit, static_argnums=(0, 1))
    def products(net, algorithm, y, centre, keys):
        """(z* − centre) and (z* − centre) H* per network and its reflection, averaged."""

        def one(layers, key):
            end = train_one(net, algorithm, layers, jnp.asarray(DATA), y, key, (1e-6, 1e-5, 2000))
            z, H = (f.squeeze() for f in (outputs(net, end.layers, TEST), layer_kernels(net, end.layers).sum(axis=0)))
            return jnp.array([z - centre, H, (z - centre) * H])

        def pair(key):
            layers = sample_parameters(net, key)
            mirrored = [*layers[:-1], Weights(-layers[-1].W, -layers[-1].b)]
            return 0.5 * (one(layers, key) + one(mirrored, key))

        return jax.vmap(pair)(keys)

    def test_output_and_kernel_after_training_are_correlated_as_predicted(self):
        net = reference_network("swish", 2, 128)
        flow = finite_flow(net, X, TRAINING_TENSORS, last_only=True)
        Theta, clock = flow.Theta[-1], Clock.of(STEPS)
        basis = Basis.of(Spectrum.of(Theta[:2, :2]), Theta, at_output(flow), Y_ONE)
        found = joint_cumulant(output_and_kernel(clock, basis.rates, 3), "IaABcd", basis.cumulants)
        readout = np.append(-basis.Theta[2, :2], 1.0)
        expected = readout @ found.order1[0, :, 0, 0, 2, 2]
        assert np.abs(found.order0).max() == 0.0
        keys = jax.vmap(partial(network_key, 6))(jnp.arange(6144)).reshape(-1, 256)
        centre = ww.predict(net, DATA, Y_ONE, TEST, STEPS)["mean0"].item()
        rows = np.concatenate([self.products(net, STEPS, jnp.asarray(Y_ONE.T), centre, some) for some in keys])
        blocks = rows.reshape(24, -1, 3).mean(axis=1)
        values = net.n * (blocks[:, 2] - blocks[:, 0] * blocks[:, 1])
        value, error = values.mean(), values.std(ddof=1) / np.sqrt(len(values))
        assert abs(value - expected) < 4 * error
        # negative controls: uncorrelated; a kernel that does not move
        start = [monomial(np.ones((3, 3)), "cd", ("H", "AB", "cd"))]
        frozen = joint_cumulant([output_and_kernel(clock, basis.rates, 3)[0], start], "IaABcd", basis.cumulants)
        assert abs(value) > 6 * error
        assert abs(value - readout @ frozen.order1[0, :, 0, 0, 2, 2]) > 6 * error
