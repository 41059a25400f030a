"""Deep linear networks: exact tensors against exact integration over all weights, and against the expansion in 1/n."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widthwise as ww
from widthwise.errors import InvalidInput
from widthwise.flow.exact import exact_law, scale_free_moments
from widthwise.flow.exact.deep_linear import LINEAR_TENSORS, deep_linear
from widthwise.flow.tensors.tensor_flow import finite_flow

HYPER = {"C_W": [1.1, 0.9, 1.2], "lambda_b": [0.3, 0.1, 0.2], "lambda_W": [0.7, 0.8, 1.1]}


def parameters(net):
    """Standard deviations and learning rates of the flat parameter vector: biases then weights, layer by layer."""
    std, rate = [], []
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(net.widths)):
        std += [math.sqrt(net.C_b[layer])] * fan_out + [math.sqrt(net.C_W[layer] / fan_in)] * (fan_in * fan_out)
        rate += [net.lambda_b[layer]] * fan_out + [net.lambda_W[layer] / fan_in] * (fan_in * fan_out)
    return np.array(std), np.array(rate)


def output(net, theta, X):
    """z (outputs, inputs)."""
    z, used = X.T, 0
    for fan_in, fan_out in itertools.pairwise(net.widths):
        bias = theta[used : used + fan_out]
        weight = theta[used + fan_out : used + fan_out * (fan_in + 1)].reshape(fan_out, fan_in)
        z, used = bias[:, None] + weight @ z, used + fan_out * (fan_in + 1)
    return z


def products(net, theta, X, rate):
    """Everything that theory §3 averages, for one network."""
    z = output(net, theta, X)
    J, J2, J3 = (_nested(net, X, order)(theta) for order in (1, 2, 3))
    H = jnp.einsum("p,iap,jbp->ijab", rate, J, J)
    dH = jnp.einsum("p,q,iapq,jbp,kcq->ijkabc", rate, rate, J2, J, J)
    return {
        "zz": jnp.einsum("ia,jb->ijab", z, z),
        "H": H,
        "zzzz": jnp.einsum("ia,jb,kc,md->ijkmabcd", z, z, z, z),
        "zzH": jnp.einsum("ia,jb,kmcd->ijkmabcd", z, z, H),
        "HH": jnp.einsum("ijab,kmcd->ijkmabcd", H, H),
        "dHz": jnp.einsum("ijkabc,md->ijkmabcd", dH, z),
        "ddI": jnp.einsum("p,q,r,iapqr,jbp,kcq,mdr->ijkmabcd", rate, rate, rate, J3, J, J, J),
        "ddII": jnp.einsum("p,q,r,iapq,jbpr,kcq,mdr->ijkmabcd", rate, rate, rate, J2, J2, J, J),
    }


def _nested(net, X, order):
    function = lambda theta: output(net, theta, X)  # noqa: E731
    for _ in range(order):
        function = jax.jacfwd(function)
    return function


def exact_averages(net, X):
    """Averages over all parameters by a product of three-point Gauss–Hermite rules: exact up to degree five in each."""
    std, rate = parameters(net)
    live = np.nonzero(std)[0]
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    weights = weights / weights.sum()
    grid = np.array(list(itertools.product(range(3), repeat=len(live))))
    theta = np.zeros((len(grid), len(std)))
    theta[:, live] = nodes[grid] * std[live]
    share = np.prod(weights[grid], axis=1)

    def some(block):
        values, part = block
        each = jax.vmap(lambda t: products(net, t, jnp.asarray(X), jnp.asarray(rate)))(values)
        return {name: jnp.einsum("n,n...->...", part, value) for name, value in each.items()}

    size = 729
    blocks = (theta.reshape(-1, size, len(std)), share.reshape(-1, size))
    total = jax.jit(lambda b: jax.lax.map(some, b))(blocks)
    return {name: np.asarray(value.sum(axis=0)) for name, value in total.items()}


def predicted(flow, n):
    """The averages of theory §3 for two outputs, from the tensors of the output layer."""
    K, Theta = flow.K[-1], flow.Theta[-1]
    t = {name: flow.tensors[name][-1] / n for name in LINEAR_TENSORS}
    same = np.eye(2)

    def pairings(first, second, third):
        return (
            np.einsum("ij,km,abcd->ijkmabcd", same, same, first)
            + np.einsum("ik,jm,abcd->ijkmabcd", same, same, second)
            + np.einsum("im,jk,abcd->ijkmabcd", same, same, third)
        )

    def full(name, mean):
        return t[name] + np.einsum("ab,cd->abcd", *mean)

    M = full("V", (K, K))
    read = lambda name, order: np.einsum(f"{order}->abcd", t[name])  # noqa: E731
    return {
        "zz": np.einsum("ij,ab->ijab", same, K),
        "H": np.einsum("ij,ab->ijab", same, Theta),
        "zzzz": pairings(M, M.transpose(0, 2, 1, 3), M.transpose(0, 2, 3, 1)),
        "zzH": pairings(full("D", (K, Theta)), read("F", "acbd"), read("F", "adbc")),
        "HH": pairings(full("A", (Theta, Theta)), read("B", "acbd"), read("B", "adbc")),
        "dHz": pairings(read("Q", "abcd"), read("Q", "acbd"), read("P", "abcd")),
        "ddI": pairings(read("R", "abcd"), read("R", "acdb"), read("R", "adbc")),
        "ddII": pairings(read("S", "abcd"), read("T", "acdb"), read("U", "adbc")),
    }


@pytest.fixture(scope="module")
def small():
    """A network of hidden widths two and one, all averages integrated exactly."""
    net = ww.MLP([1, 2, 1, 2], "linear", C_b=[0.4, 0.3, 0.0], **HYPER)
    X = np.array([[1.0], [-0.7]])
    return net, X, exact_averages(net, X)


@pytest.mark.parametrize("name", ["zz", "H", "zzzz", "zzH", "HH", "dHz", "ddI", "ddII"])
def test_every_average_is_that_of_the_integral_over_all_weights(small, name):
    net, X, measured = small
    expected = predicted(deep_linear(net, X), net.n)[name]
    assert np.abs(measured[name]).max() > 1e-3
    assert np.allclose(measured[name], expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["zzzz", "zzH", "HH", "dHz", "ddI", "ddII"])
def test_the_leading_order_alone_is_not_the_integral(small, name):
    # negative control: order 1/n is far off at widths two and one
    net, X, measured = small
    assert not np.allclose(measured[name], predicted(finite_flow(net, X), net.n)[name], rtol=0.05)


def wide(n):
    return ww.MLP([3, n, 2 * n, n, 2], "linear", C_b=[0.1, 0.2, 0.3, 0.15], C_W=[1.1, 0.9, 1.2, 1.3],
                  lambda_b=[0.3, 0.1, 0.2, 0.4], lambda_W=[0.7, 0.8, 0.9, 1.1])  # fmt: skip


@pytest.fixture(scope="module")
def remainders():
    """Largest difference from the leading order, tensor by tensor, at doubling widths."""
    X = np.random.default_rng(3).normal(size=(2, 3))
    sizes, kept = (64, 128, 256, 512), {name: [] for name in LINEAR_TENSORS}
    for n in sizes:
        exact, leading = deep_linear(wide(n), X), finite_flow(wide(n), X)
        assert np.allclose(exact.K, leading.K, rtol=1e-13)
        assert np.allclose(exact.Theta, leading.Theta, rtol=1e-13)
        for name in LINEAR_TENSORS:
            kept[name].append(np.abs(exact.tensors[name] - leading.tensors[name]).max())
    return sizes, kept, finite_flow(wide(64), X)


@pytest.mark.parametrize("name", LINEAR_TENSORS)
def test_expanding_in_one_over_n_gives_the_recursions_of_order_one(remainders, name):
    sizes, kept, _ = remainders
    slope = np.polyfit(np.log(sizes), np.log(kept[name]), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.03)


def test_the_means_carry_no_correction(remainders):
    assert np.abs(remainders[2].tensors["G1"]).max() == 0.0
    assert np.abs(remainders[2].tensors["H1"]).max() == 0.0


def test_a_dropped_term_of_order_one_does_not_vanish():
    # negative control: without the contribution of F, Q tends to another number
    X = np.random.default_rng(3).normal(size=(2, 3))
    wrong = finite_flow(wide(4096), X, ("Q",), omit=frozenset({("Q", "F")})).tensors["Q"][-1]
    right = finite_flow(wide(4096), X, ("Q",)).tensors["Q"][-1]
    exact = deep_linear(wide(4096), X).tensors["Q"][-1]
    assert np.abs(exact - right).max() < 1e-3 * np.abs(exact).max() < 0.1 * np.abs(exact - wrong).max()


@pytest.mark.parametrize("C_b", [0.0, 0.3])
def test_the_variance_of_the_kernel_is_that_of_the_exact_law(C_b):
    net = ww.MLP([2, 3, 5, 2, 1], "linear", C_b=C_b, C_W=1.2)
    flow, law = deep_linear(net, [[0.8, -0.6]]), exact_law(net, [0.8, -0.6])
    moments = scale_free_moments(net, [0.8, -0.6], 4)
    for layer in range(1, net.depth):
        n = net.widths[layer]
        variance = flow.tensors["V"][layer, 0, 0, 0, 0] / n
        assert law.kernels[layer].variance == pytest.approx(variance, rel=1e-9)
        assert moments[layer, 2] - moments[layer, 1] ** 2 == pytest.approx(variance, rel=1e-12)


def test_all_moments_of_an_output_are_products_over_layers():
    # E z^(2k) = (2k−1)!! K^k Π_l Π_{i<k} (1 + 2i/n_l)
    widths = [4, 7, 3]
    net = ww.MLP([2, *widths, 1], "linear", C_W=1.3)
    moments = scale_free_moments(net, [1.0, -1.0], 6)[-1]
    for k in range(7):
        product = math.prod(1 + 2 * i / n for n in widths for i in range(k))
        assert moments[k] == pytest.approx((1.3 ** len(net.C_W)) ** k * product, rel=1e-12)


def test_one_layer_has_no_fluctuations():
    flow = deep_linear(ww.MLP([2, 3], "linear"), [[1.0, 2.0], [0.0, 1.0]])
    assert all(np.all(value == 0.0) for value in flow.tensors.values())


def test_other_activations_are_refused():
    with pytest.raises(InvalidInput, match="net: got a network with activation relu; expected activation 'linear'"):
        deep_linear(ww.MLP([2, 3, 1], "relu"), [[1.0, 2.0]])
    with pytest.raises(InvalidInput, match="expected linear, relu or leaky_relu"):
        scale_free_moments(ww.MLP([2, 3, 1], "tanh"), [1.0, 2.0], 2)
    with pytest.raises(InvalidInput, match="order: got -1"):
        scale_free_moments(ww.MLP([2, 3, 1], "relu"), [1.0, 2.0], -1)
    with pytest.raises(InvalidInput, match="features"):
        deep_linear(ww.MLP([2, 3, 1], "linear"), [[1.0, 2.0, 3.0]])
