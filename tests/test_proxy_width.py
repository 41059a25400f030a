"""How rates drift with width: closed forms, sampled kernels and trained networks, beside controls that must fail."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widthwise as ww

RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(3, 2)), np.array([0.9, -0.6, 0.4])
X_TEST, Y_TEST = RNG.normal(size=(2, 2)), np.array([0.5, -0.2])
C_B, C_W, STEPS = 0.1, 1.5, 3


def network(n, sigma="tanh"):
    return ww.MLP([2, n, n, 1], sigma, C_b=C_B, C_W=C_W)


def output(parameters, sigma, x):
    for layer, (W, b) in enumerate(parameters):
        x = x @ W / np.sqrt(W.shape[0]) + b
        x = x if layer == len(parameters) - 1 else sigma(x)
    return x[:, 0]


@partial(jax.jit, static_argnames=("n", "sigma", "count"))
def sampled(key, rates, n, sigma, count):
    """Errors of trained networks (count, rates) and log 2/λ_max (count,), by nothing of the library."""
    sizes = [(2, n), (n, n), (n, 1)]

    def one(key):
        keys = jax.random.split(key, 6)
        draw = jax.random.normal
        start = [(np.sqrt(C_W) * draw(keys[2 * k], s), np.sqrt(C_B) * draw(keys[2 * k + 1], s[1:])) for k, s in enumerate(sizes)]  # fmt: skip

        def error(p, x, y):
            return jnp.sum((output(p, sigma, x) - y) ** 2)

        def trained(rate):
            p = start
            for _ in range(STEPS):
                p = jax.tree.map(lambda v, g: v - 0.5 * rate * g, p, jax.grad(error)(p, X, Y))
            return error(p, X_TEST, Y_TEST) / len(X_TEST)

        J = [j.reshape(len(X), -1) for j in jax.tree.leaves(jax.jacrev(lambda p: output(p, sigma, X))(start))]
        return jax.vmap(trained)(rates), jnp.log(2.0 / jnp.linalg.eigvalsh(sum(j @ j.T for j in J))[-1])

    return jax.lax.map(one, jax.random.split(key, count), batch_size=100)


def test_the_largest_step_of_a_deep_linear_network_at_one_input_is_known():
    """Ĥ = Σ of L products: mean L, relative variance (1/n)·4(L−1)(2L−1)/(6L)·… checked against the tensors of one input."""
    for depth in (2, 4):
        net = ww.MLP([1, *[50] * (depth - 1), 1], "linear", lambda_b=0.0)
        found, th = ww.proxy_width(net, [[1.0]]), ww.theory(net, [[1.0]], order=1, layers="last")
        A, B, H1 = (float(th[name].values.ravel()[0]) for name in ("A", "B", "H1"))
        assert found.largest_step == pytest.approx(2 / depth)
        assert found.step_spread == pytest.approx(math.sqrt(A + 2 * B) / depth)
        assert found.step_drift == pytest.approx(-H1 / depth + (A + 2 * B) / 2 / depth**2)


@pytest.fixture(scope="module")
def networks():
    n, said = 48, ww.proxy_width(network(48), X, Y, X_TEST, Y_TEST, steps=STEPS)
    logs = np.log(said.best_rate) + np.linspace(-0.2, 0.15, 11)
    errors, steps = sampled(jax.random.key(3), jnp.exp(logs), n, jnp.tanh, 8_000)
    return n, said, logs, np.asarray(errors), np.asarray(steps)


def test_the_largest_step_drifts_and_spreads_as_predicted(networks):
    """Two-sided, a false alarm in 10⁴; what is left out is of order n^(−2), and of relative order 1/n in the spread."""
    n, said, _, _, steps = networks
    measured, error = steps.mean() - np.log(said.largest_step), steps.std() / math.sqrt(len(steps))
    assert abs(measured - said.step_drift / n) < 3.9 * error + 4 / n**2
    assert steps.std() == pytest.approx(said.step_spread / math.sqrt(n), rel=0.04 + 2 / n)
    wrong = said.step_drift - said.step_spread**2  # the curvature of the logarithm with the wrong sign
    assert abs(measured - wrong / n) > 3.9 * error + 4 / n**2


def test_the_best_rate_drifts_as_predicted(networks):
    n, said, logs, errors, _ = networks

    def best(values):
        fit = np.polynomial.Polynomial.fit(logs - logs.mean(), values, 4)
        fine = np.linspace(logs[0], logs[-1], 4001)
        return fine[np.argmin(fit(fine - logs.mean()))] - np.log(said.best_rate)

    groups = np.array_split(errors, 20)
    means = np.array([g.mean(0) for g in groups])
    error = math.sqrt(19 * np.var([best(np.delete(means, g, 0).mean(0)) for g in range(20)]))
    order, both = said.log_rate(n)
    low, high = sorted((order, both))
    measured = best(errors.mean(0))
    assert low - 3.9 * error < measured < high + 3.9 * error
    assert abs(measured) > 3.9 * error  # no drift is rejected


def test_the_best_rate_of_infinite_width_has_the_least_error_of_order_zero():
    said = ww.proxy_width(network(64, "gelu"), X, Y, X_TEST, Y_TEST, steps=STEPS)

    def error(rate, n):
        net = network(n, "gelu")
        e = ww.expected_error(net, X, Y, X_TEST, Y_TEST, ww.GradientDescent(rate, steps=STEPS), order=1)
        return float(e["error0"].mean()), float(e["error1"].mean())

    at = {k: error(said.best_rate * math.exp(0.02 * k), 64) for k in (-1, 0, 1)}
    slope0, slope1 = ((at[1][i] - at[-1][i]) / 0.04 for i in (0, 1))
    curvature = (at[1][0] - 2 * at[0][0] + at[-1][0]) / 0.02**2
    assert abs(slope0) < 1e-3 * curvature
    assert said.rate_drift == pytest.approx(-slope1 / curvature, rel=1e-2)
    assert said.width == math.ceil(abs(said.rate_drift) / math.log(1.1) - 1e-9)
    near = ww.proxy_width(network(64, "gelu"), X, Y, X_TEST, Y_TEST, steps=STEPS, target=2 * said.width)
    assert near.width == math.ceil(abs(said.rate_drift) / (math.log(1.1) + abs(said.rate_drift) / (2 * said.width)))
    assert "narrower" in str(near)


REFUSED = [
    (lambda: ww.proxy_width(network(8), X, factor=1.0), "factor: got 1"),
    (lambda: ww.proxy_width(network(8), X, target=0), "target: got 0"),
    (lambda: ww.proxy_width(network(8), X, Y, X_TEST), "y_test: got None"),
    (lambda: ww.proxy_width(network(8), X, X_test=X_TEST), "y_train: got None"),
    (lambda: ww.proxy_width(3, X), "net: got"),
    (lambda: ww.proxy_width(network(8), X * np.nan), "X_train: got"),
    (lambda: ww.proxy_width(ww.MLP([2, 8, 8, 1], "tanh", lambda_b=0.0, lambda_W=0.0), X), "kernel of zero"),
    (lambda: ww.proxy_width(network(8, "relu"), X, Y), "order=1"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_input_is_named(call, message):
    with pytest.raises(ww.WidthwiseError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
