"""Path sums, tangent kernels and eigenvalue bounds of ReLU networks: brute force, networks, limits."""

import itertools
import math
from functools import cache

import numpy as np
import pytest

import widthwise as ww
from widthwise.errors import InvalidInput
from widthwise.flow.exact.deep_linear import deep_linear
from widthwise.special.relu_paths import log_normal_exponent

UNIFORM = 1.8
NET = ww.MLP([3, 5, 4, 6, 1], "relu", C_b=0.3, C_W=[1.5, 2.0, 2.2, 1.7], lambda_b=0.4, lambda_W=[1.0, 0.7, 2.0, 1.3])
X = np.array([0.4, -1.2, 0.7])


@cache
def networks(uniform, count=40_000):
    """∂z/∂x_2 carried forward and Ĥ carried backward through networks like NET, all weights drawn."""
    rng, root = np.random.default_rng(3), math.sqrt(3.0)
    weights, below, gates = [], [np.broadcast_to(X, (count, 3))], []
    slope = np.broadcast_to([0.0, 1.0, 0.0], (count, 3))
    for layer, (n, m) in enumerate(itertools.pairwise(NET.widths)):
        draws = [rng.uniform(-root, root, s) if uniform else rng.normal(size=s) for s in ((count, m, n), (count, m))]
        weights.append(math.sqrt(NET.C_W[layer] / n) * draws[0])
        z = np.einsum("kij,kj->ki", weights[-1], below[-1]) + math.sqrt(NET.C_b[layer]) * draws[1]
        gates.append(z > 0.0 if layer < NET.depth - 1 else np.ones_like(z))
        slope = gates[-1] * np.einsum("kij,kj->ki", weights[-1], slope)
        below.append(gates[-1] * z)
    kernel, signal = np.zeros(count), np.ones((count, 1))
    for layer in reversed(range(NET.depth)):
        features = NET.lambda_b[layer] + NET.lambda_W[layer] / NET.widths[layer] * np.sum(below[layer] ** 2, axis=1)
        kernel = kernel + features * np.sum(signal**2, axis=1)
        if layer:
            signal = np.einsum("ki,kij->kj", signal, weights[layer]) * gates[layer - 1]
    return slope[:, 0], kernel


def pull(samples, expected):
    return (np.mean(samples) - expected) / (np.std(samples) / math.sqrt(len(samples)))


@pytest.mark.parametrize(("uniform", "kurtosis"), [(False, 3.0), (True, UNIFORM)], ids=["gaussian", "uniform"])
def test_moments_of_derivatives_are_those_of_networks_with_biases(uniform, kurtosis):
    slopes, _ = networks(uniform)
    moments = ww.special.relu_path_moments(NET, 1, kurtosis)
    assert abs(pull(slopes**2, moments.second[-1])) < 4
    assert abs(pull(slopes**4, moments.fourth[-1])) < 4
    # negative controls: all gates open in one layer, and the fourth moment of the other distribution
    assert abs(pull(slopes**2, 2 * moments.second[-1])) > 20
    if uniform:
        assert abs(pull(slopes**4, ww.special.relu_path_moments(NET, 1).fourth[-1])) > 6


def test_moments_are_the_sum_over_all_paths_and_gates():
    """Every gate a fair coin: E d⁴ = Σ over quadruples of paths, by enumeration for weights ±1/√fan-in times signs."""
    net = ww.MLP([1, 2, 2, 1], "relu", C_W=[1.0, 2.0, 3.0])
    paths = list(itertools.product(range(2), range(2)))
    second = fourth = 0.0
    scale = math.prod(C / n for C, n in zip(net.C_W, net.widths[:-1], strict=True))
    for gates in itertools.product((0, 1), repeat=4):
        open_paths = [p for p in paths if gates[p[0]] and gates[2 + p[1]]]
        second += scale * len(open_paths) / 16
        for four in itertools.product(open_paths, repeat=4):
            fourth += scale**2 * _average([(("a", p[0]), ("b", *p), ("c", p[1])) for p in four]) / 16
    moments = ww.special.relu_path_moments(net)
    assert moments.second[-1] == pytest.approx(second, rel=1e-13)
    assert moments.fourth[-1] == pytest.approx(fourth, rel=1e-13)
    assert ww.special.relu_path_moments(net, kurtosis=UNIFORM).fourth[-1] != pytest.approx(fourth, rel=0.05)


def _average(products):
    """E of a product of standard normal weights, named by their places."""
    powers: dict = {}
    for weights in products:
        for weight in weights:
            powers[weight] = powers.get(weight, 0) + 1
    return math.prod(0 if power % 2 else math.prod(range(1, power, 2)) for power in powers.values())


def test_the_second_moment_is_two_over_the_input_dimension():
    for widths in ([5, 3, 1], [5, 8, 2, 9, 1]):
        assert ww.special.relu_path_moments(ww.MLP(widths, "relu", C_W=2.0)).second == pytest.approx(
            [0.4] * (len(widths) - 1)
        )


def test_the_exact_chain_has_these_moments_and_the_log_normal_limit():
    net = ww.MLP([2, 5, 8, 1], "relu", C_W=2.0)
    law, moments = ww.special.relu_derivative_law(net, [1.0, 0.5]), ww.special.relu_path_moments(net, [1.0, 0.5])
    assert law.variance == pytest.approx(moments.second[-1], rel=1e-10)
    assert law.moment(4) == pytest.approx(moments.fourth[-1], rel=1e-10)
    gaps = []
    for n in (50, 100, 200):
        net = ww.MLP([2, *[n] * (n // 10), 1], "relu", C_W=2.0)
        kernel = ww.special.relu_derivative_law(net, [1.0, 1.0]).kernel
        weights, beta = kernel.weights / kernel.weights.sum(), log_normal_exponent(net)
        mean = float(weights @ (kernel.log_g - math.log(kernel.mean)))
        gaps.append(abs(mean + beta / 2))
        assert beta == pytest.approx(0.5)
    assert gaps[2] < 0.6 * gaps[1] < 0.36 * gaps[0] * 1.1
    assert gaps[2] < 0.01


def test_the_tangent_kernel_has_these_moments():
    _, kernels = networks(False)
    moments = ww.special.relu_ntk_moments(NET, X)
    assert abs(pull(kernels, moments.mean[-1])) < 4
    assert abs(pull(kernels**2, moments.second[-1])) < 4
    assert abs(pull(kernels**2, moments.mean[-1] ** 2)) > 20
    theta = ww.theory(NET, X[None], layers="last")["Theta"].values[-1, 0, 0]
    assert moments.mean[-1] == pytest.approx(theta, rel=1e-12)


def test_for_linear_networks_it_is_the_exact_recursion_of_deep_linear():
    net = NET.replace(activation="linear")
    flow, moments = deep_linear(net, X[None]), ww.special.relu_ntk_moments(net, X)
    below = np.asarray(net.widths[:-1])
    second = (flow.tensors["A"] + 2 * flow.tensors["B"]).ravel() / below + flow.Theta.ravel() ** 2
    assert moments.second == pytest.approx(second, rel=1e-12)


def test_wide_layers_give_the_tensors_of_order_one_over_n():
    gaps = []
    for n in (200, 400):
        net = ww.MLP([3, n, n, n, 1], "relu", C_b=0.1, C_W=2.0, lambda_b=0.2)
        ds = ww.theory(net, X[None], order=1, tensors=["A", "B"], layers="last")
        leading = float(ds["A"].values.ravel()[0] + 2 * ds["B"].values.ravel()[0])
        moments = ww.special.relu_ntk_moments(net, X)
        gaps.append(abs(n * (moments.second[-1] - moments.mean[-1] ** 2) / leading - 1))
    assert gaps[1] < 0.02
    assert gaps[1] == pytest.approx(0.5 * gaps[0], rel=0.1)


def test_the_expected_kernel_has_one_share_per_weight_matrix():
    net = ww.MLP([4, 7, 3, 9, 1], "relu", C_W=2.0, lambda_b=0.0, lambda_W=2.0)
    inputs = np.array([[1.0, 2.0, 0.0, 2.0], [0.0, 1.0, 1.0, 0.5]])
    hidden, size = 3, np.sum(inputs**2, axis=1) / 4
    kernel = ww.special.expected_relu_ntk(net, inputs)
    assert np.diag(kernel) == pytest.approx(2 * (hidden + 1) * size, rel=1e-10)
    assert not np.allclose(np.diag(kernel), 2 * hidden * size, rtol=0.1)
    assert ww.special.relu_ntk_moments(net, inputs[0]).mean[-1] == pytest.approx(kernel[0, 0], rel=1e-12)


def test_bounds_hold_for_random_kernels_and_are_reached():
    rng = np.random.default_rng(0)
    for _ in range(20):
        A = rng.normal(size=(6, 9))
        K = A @ A.T
        top, bounds = np.linalg.eigvalsh(K)[-1], ww.special.largest_eigenvalue_bounds(K)
        assert bounds.mean_row <= top <= min(bounds.row, bounds.frobenius, bounds.trace)
    ones = ww.special.largest_eigenvalue_bounds(np.ones((5, 5)))
    assert (ones.row, ones.trace, ones.mean_row) == (5.0, 5.0, 5.0)
    assert ones.frobenius == pytest.approx(5.0)


def test_the_chernoff_bound_holds_and_solves_its_equation():
    bound = ww.special.chernoff_bound(2.0, 0.1, 7, 0.01)
    delta = bound / 2.0 - 1.0
    assert 7 * (math.exp(delta) / (1 + delta) ** (1 + delta)) ** (2.0 / 0.1) == pytest.approx(0.01, rel=1e-9)
    rng = np.random.default_rng(1)
    # sums of 60 projections on random directions of the plane: C_0 = 30, R = 1
    angles = rng.uniform(0, 2 * np.pi, size=(4000, 60))
    tops = 30 + 0.5 * np.hypot(np.cos(2 * angles).sum(1), np.sin(2 * angles).sum(1))
    assert np.mean(tops > ww.special.chernoff_bound(30.0, 1.0, 2, 0.05)) <= 0.05
    assert np.mean(tops > 30.0) > 0.9  # the expected matrix alone is no bound


def test_what_cannot_be_used_is_refused():
    with pytest.raises(InvalidInput, match="net: got activation tanh; expected relu, leaky_relu or linear"):
        ww.special.relu_path_moments(ww.MLP([2, 3, 1], "tanh"))
    with pytest.raises(InvalidInput, match="kurtosis: got 0.5; expected at least 1"):
        ww.special.relu_path_moments(ww.MLP([2, 3, 1], "relu"), kurtosis=0.5)
    with pytest.raises(InvalidInput, match="direction: got 2"):
        ww.special.relu_path_moments(ww.MLP([2, 3, 1], "relu"), 2)
    with pytest.raises(InvalidInput, match="kernel: got an array of shape"):
        ww.special.largest_eigenvalue_bounds([[1.0, 2.0], [0.0, 1.0]])
    with pytest.raises(InvalidInput, match="positive numbers"):
        ww.special.chernoff_bound(1.0, 0.0, 3, 0.1)
