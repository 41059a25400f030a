"""Ensembles of really trained networks against theory §8: mean, covariance, change of the kernel, and the interaction.

Every comparison is of the coefficient of 1/n, from widths n and 2n, in standard errors; theories with a tensor left out
must fail on the same measurement.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trained_networks import POINTS, TARGETS, TEST, Y_LARGE, Y_ONE, Y_TWO, reference_network

import widthwise as ww
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tally import jackknife, leaving_one_out
from widthwise.experiments.tangent import kernel, outputs, tangent
from widthwise.experiments.training.control import response
from widthwise.experiments.training.ensemble import train_one
from widthwise.experiments.training.train import train
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.inference.corrections import TRAINING_TENSORS, at_output
from widthwise.inference.infinite_width import Spectrum
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.trained_moments import Basis, mean_kernel_change, moments_at_tests
from widthwise.network.algorithms import GradientDescent, GradientFlow, NewtonStep

DDNTK, DNTK = frozenset("RSTU"), frozenset("PQ")


@cache
def tensors_at_output(net, points):
    found = finite_flow(net, np.concatenate([POINTS[:points], TEST]), TRAINING_TENSORS, last_only=True)
    return at_output(found), found.Theta[-1]


def prediction(net, algorithm, y, left_out=frozenset()):
    """Coefficients of 1/n of mean, cov and change at the test input, with some tensors set to zero."""
    points = len(y)
    tensors, Theta = tensors_at_output(net, points)
    tensors = {k: np.zeros_like(v) if k in left_out else v for k, v in tensors.items()}
    basis = Basis.of(Spectrum.of(Theta[:points, :points]), Theta, tensors, y)
    _, first = moments_at_tests(basis, Clock.of(algorithm))
    change = mean_kernel_change(basis, Clock.of(algorithm))[:, points:, :, points:]
    return {"mean": first.mean, "cov": first.covariance, "change": change}


def coefficients(net, algorithm, y, networks, seed):
    """n (measured − infinite width) with its standard error."""
    data = POINTS[: len(y)], y, TEST
    t, p = train(net, *data, networks, algorithm, seed=seed), ww.predict(net, *data, algorithm)
    assert t.attrs["unconverged"] == t.attrs["nonfinite"] == 0
    leading = {"mean": p["mean0"], "cov": p["cov0"], "change": 0.0}
    return {name: (net.n * (t[name] - zero).values, net.n * t[name + "_se"].values) for name, zero in leading.items()}


def extrapolated(measure, activation, depth, y, algorithm, width, networks, seed=10):
    """The coefficients from widths n and 2n: 2 c(2n) − c(n), with a remainder of order 1/n²."""
    nets = [reference_network(activation, depth, scale * width, y.shape[1]) for scale in (1, 2)]
    narrow, wide = (measure(net, algorithm, y, networks, seed + i) for i, net in enumerate(nets, start=1))
    return nets[1], {
        name: (2 * wide[name][0] - narrow[name][0], np.hypot(2 * wide[name][1], narrow[name][1])) for name in narrow
    }


def worst_pull(measured, predicted, less=None):
    """The largest |measured − predicted|/s.e., where `less` is taken off the prediction."""
    return max(
        np.abs((value - predicted[name] + (0.0 if less is None else less[name])) / error).max()
        for name, (value, error) in measured.items()
    )


def check(case, wrong=()):
    """Agrees with the theory and with none that lacks one of the sets of tensors `wrong`."""
    activation, depth, y, algorithm, width, networks = case
    net, measured = extrapolated(coefficients, activation, depth, y, algorithm, width, networks)
    pulls = [worst_pull(measured, prediction(net, algorithm, y, left_out)) for left_out in (frozenset(), *wrong)]
    print(case_name(case), *(f"{pull:.2f}" for pull in pulls))
    assert pulls[0] < 4
    assert min(pulls[1:], default=np.inf) > 5


def case_name(case):
    return f"{case[0]}-{case[1]}-{'x'.join(map(str, case[2].shape))}-{case[3]!r}"


CASES = [
    (("swish", 2, Y_ONE, GradientDescent(0.918), 48, 16_384), ({"B"}, DNTK, DDNTK)),
]
FULL = [
    ("swish", 2, Y_ONE, GradientFlow(), 64, 40_000),
    ("swish", 2, Y_ONE, GradientDescent(0.918), 128, 40_000),
    ("tanh", 3, Y_TWO, GradientFlow(), 64, 16_000),
    ("gelu", 3, np.array([[1.5], [0.5]]), GradientFlow(), 64, 16_000),
    ("gelu", 3, Y_TWO, GradientDescent(0.3), 64, 10_000),
    ("tanh", 2, Y_TWO, GradientFlow(1.0), 64, 20_000),
    ("gelu", 2, Y_TWO, NewtonStep(), 64, 20_000),
    ("swish", 3, Y_TWO, GradientDescent(0.2, 6), 64, 10_000),
]


def matrix():
    """Every activation at every depth; between them one and two outputs, two to four points, flow and descent."""
    for i, activation in enumerate(("tanh", "gelu", "sin", "swish")):
        for depth in (2, 3, 4):
            points, outputs = 2 + (i + depth) % 3, 1 + (i + depth) % 2
            algorithm = GradientFlow() if (i // 2 + depth) % 2 else GradientDescent(0.2)
            yield activation, depth, TARGETS[:points, :outputs], algorithm, 64, {2: 24_000, 3: 12_000, 4: 8000}[depth]


@pytest.mark.parametrize(("case", "wrong"), CASES, ids=lambda value: case_name(value) if len(value) == 6 else "")
def test_agrees_within_four_standard_errors(case, wrong):
    check(case, wrong)


@pytest.mark.full
@pytest.mark.parametrize(
    "case",
    [("swish", 2, Y_ONE, GradientFlow(), 48, 2048), ("tanh", 3, Y_LARGE, GradientFlow(), 32, 1024)],
    ids=case_name,
)
def test_flow_agrees_and_shows_the_interaction(case):
    check(case, (DNTK, DDNTK))


@pytest.mark.full
@pytest.mark.parametrize("case", FULL, ids=case_name)
def test_agrees_with_many_networks(case):
    # small parts that are not missed: A of what tanh at depth 2 learns until time 1, B of one output of gelu at depth 3
    small = {("tanh", 2, GradientFlow(1.0)): {"A"}, ("gelu", 3, GradientFlow()): {"B"}}.get((*case[:2], case[3]))
    check(case, tuple(out for out in ({"A"}, {"B"}, DDNTK, DNTK) if out != small))


@pytest.mark.full
@pytest.mark.parametrize("case", [*matrix()], ids=case_name)
def test_agrees_for_every_activation_and_depth(case):
    """Of these targets some leave a tensor too small a part to be missed: CASES and FULL hold the controls."""
    check(case)


@partial(jax.jit, static_argnums=(0, 1))
def trained_and_linear(net, algorithm, y, seed, indices):
    """Outputs at the test input of networks and their reflections, trained and linearised: each (network, 2, i)."""
    data, test, how = jnp.asarray(POINTS[: y.shape[1]]), jnp.asarray(TEST), (1e-6, 1e-5, 100_000)

    def one(layers):
        at = tangent(net, layers, jnp.concatenate([data, test]))
        H, train = kernel(at), y.shape[1]
        G = response(H[:, :train, :, :train].reshape(y.size, y.size), algorithm)
        fit = (G @ (at.z[:, :train] - y).ravel()).reshape(y.shape)
        end = train_one(net, algorithm, layers, data, y, jax.random.key(0), how)
        linear = at.z[:, train:] - jnp.einsum("ixja,ja->ix", H[:, train:, :, :train], fit)
        return outputs(net, end.layers, test)[:, 0], linear[:, 0]

    def both(index):
        layers = sample_parameters(net, network_key(seed, index))
        reflected = [*layers[:-1], Weights(-layers[-1].W, -layers[-1].b)]
        return jax.vmap(one)(jax.tree.map(lambda *pair: jnp.stack(pair), layers, reflected))

    return jax.vmap(both)(indices)


def interaction(net, algorithm, y, networks, seed):
    """n times what training adds to mean and covariance beyond the linearised network, with standard errors.

    Reflecting the last layer turns z and dĤ into −z and −dĤ: averaged over both, most of the noise of order 1/√n goes.
    """
    blocks, size = 64, 256
    sums = [0.0, 0.0, 0.0]
    for start in range(0, networks, size):
        indices = jnp.arange(start, start + size)
        z, linear = map(np.asarray, trained_and_linear(net, algorithm, jnp.asarray(y.T), seed, indices))
        outer = [np.einsum("nri,nrj->nij", v, v) / 2 for v in (z, linear)]
        for i, value in enumerate(((z - linear).mean(axis=1), linear.mean(axis=1), outer[0] - outer[1])):
            sums[i] = sums[i] + value.reshape(size // blocks, blocks, *value.shape[1:]).sum(axis=0)
    left = networks // blocks * np.array([blocks, *[blocks - 1] * blocks])
    gap, linear, square = (leaving_one_out(s) / left.reshape(-1, *[1] * (s.ndim - 1)) for s in sums)
    means = np.einsum("ri,rj->rij", gap, linear)
    cov = square - means - means.transpose(0, 2, 1) - np.einsum("ri,rj->rij", gap, gap)
    found = {"mean": jackknife(gap[:, :, None]), "cov": jackknife(cov[:, :, None, :, None])}
    return {name: (net.n * value, net.n * error) for name, (value, error) in found.items()}


def check_interaction(case):
    """The difference from the linearised network is what dNTK and ddNTK add, and neither alone."""
    activation, depth, y, algorithm, width, networks = case
    net, measured = extrapolated(interaction, activation, depth, y, algorithm, width, networks, seed=20)
    without = prediction(net, algorithm, y, DNTK | DDNTK)
    pulls = [worst_pull(measured, prediction(net, algorithm, y, out), without) for out in (frozenset(), DNTK, DDNTK)]
    print(case_name(case), *(f"{pull:.2f}" for pull in pulls))
    assert pulls[0] < 4
    assert min(pulls[1:]) > 5


def test_the_difference_from_the_linearised_network_is_the_interaction():
    check_interaction(("tanh", 2, Y_ONE, GradientDescent(0.4), 64, 8192))


@pytest.mark.full
@pytest.mark.parametrize("case", [*matrix()], ids=case_name)
def test_the_difference_from_the_linearised_network_is_the_interaction_for_every_activation_and_depth(case):
    check_interaction((*case[:5], 8192))
