"""Gaussian expectations: closed form, generic route and 30-digit references agree, degenerate kernels included."""

import itertools
import json
from collections import defaultdict

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import DATA

import widthwise as ww
from widthwise.activations import resolve
from widthwise.gaussian.hermite import hermite_table

#: Relative to √(⟨f²⟩⟨g²⟩), the size an expectation can have; kinked activations feel the rounding of the angle.
SMOOTH, KINKED = 1e-9, 1e-7
CLOSED = ("linear", "quadratic", "cubic", "relu", "leaky_relu(0.3)", "step", "erf", "gelu", "sin")
ORDERS = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1), (2, 2), (3, 1), (4, 0), (3, 3))


def tolerance(name: str) -> float:
    return KINKED if resolve(name).kinks else SMOOTH


def scale(name: str, p: int, q: int, K_aa, K_bb, value):
    sigma = resolve(name)
    if all(sigma.exists_at_one_input(o, o) for o in (p, q)):
        norms = [ww.expectation(name, K, orders=(o, o)).value for K, o in ((K_aa, p), (K_bb, q))]
        return np.maximum(np.sqrt(np.abs(norms[0] * norms[1])), np.abs(value))
    uncorrelated = ww.expectation(name, K_aa, 0.0, K_bb, orders=(p, q)).value
    return np.maximum(np.abs(uncorrelated), np.abs(value))


def kernels(parallel: bool = True):
    """Variances from 1e-12 to 1e6, correlations up to ±(1 − 1e-8); where a limit exists, 1 − 1e-12 and exactly parallel."""
    correlations = [0.0, 0.3, -0.7, 0.95, 1 - 1e-4, 1 - 1e-8, -1 + 1e-8] + [1 - 1e-12, 1.0, -1.0] * parallel
    rows = []
    for K, ratio, rho in itertools.product((1e-12, 1e-3, 1.0, 30.0, 1e6), (1.0, 4.0), correlations):
        rows.append((K, rho * K * np.sqrt(ratio), K * ratio))
    return np.array(rows).T


def reference_groups():
    groups = defaultdict(list)
    for case in json.loads((DATA / "expectations.json").read_text()):
        groups[case["activation"], *case["orders"]].append((*case["kernel"], float(case["value"])))
    return groups


REFERENCES = reference_groups()


@pytest.mark.parametrize(
    ("group", "method"),
    [(g, m) for g in REFERENCES for m in ("closed", "generic") if m == "generic" or resolve(g[0]).closed],
    ids=lambda v: v if isinstance(v, str) else f"{v[0]}-{v[1]}{v[2]}",
)
def test_both_routes_agree_with_thirty_digit_references(group, method):
    name, p, q = group
    K_aa, K_ab, K_bb, value = np.array(REFERENCES[group]).T
    result = ww.expectation(name, K_aa, K_ab, K_bb, orders=(p, q), method=method)
    error = np.abs(result.value - value) / np.maximum(scale(name, p, q, K_aa, K_bb, value), 1e-300)
    assert len(value) >= 7
    assert error.max() < tolerance(name)


def test_there_are_enough_references_and_they_include_degenerate_kernels():
    cases = [row for rows in REFERENCES.values() for row in rows]
    assert len(cases) > 300
    assert sum(abs(ab) >= (1 - 1e-7) * np.sqrt(aa * bb) for aa, ab, bb, _ in cases) > 20


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_closed_form_and_generic_route_agree(name, orders):
    sigma, (p, q) = resolve(name), orders
    K_aa, K_ab, K_bb = kernels(parallel=sigma.exists_at_one_input(p, q))
    if name == "sin":  # thousands of oscillations: the generic route does a few of them, see below
        K_aa, K_ab, K_bb = (K[K_aa < 1e3] for K in (K_aa, K_ab, K_bb))
    closed = ww.expectation(name, K_aa, K_ab, K_bb, orders=orders, method="closed")
    generic = ww.expectation(name, K_aa, K_ab, K_bb, orders=orders, method="generic")
    error = np.abs(closed.value - generic.value) / np.maximum(scale(name, p, q, K_aa, K_bb, closed.value), 1e-300)
    assert np.all(np.isfinite(generic.error))
    assert error.max() < tolerance(name)


@pytest.mark.full
def test_the_generic_route_follows_a_thousand_oscillations():
    K = 1e6
    for rho, tolerance in ((0.5, 1e-12), (1 - 1e-6, 1e-9), (1.0, 1e-9)):
        generic = ww.expectation("sin", K, rho * K, K, method="generic")
        closed = ww.expectation("sin", K, rho * K, K)
        assert abs(float(generic.value - closed.value)) < tolerance
        assert float(generic.error) < 1e-9


def test_the_error_estimate_is_honest_where_the_route_gives_up():
    K = 1e6
    generic = ww.expectation("sin", K, 0.99 * K, K, method="generic")
    assert float(generic.error) > 1e-6  # it says that it does not know better
    assert abs(float(generic.value - ww.expectation("sin", K, 0.99 * K, K).value)) < float(generic.error)


@pytest.mark.parametrize("name", [*CLOSED, "tanh", "swish", "sigmoid", "softplus"])
def test_estimated_errors_cover_the_differences_between_routes(name):
    K_aa, K_ab, K_bb = np.array([[0.7, 1.3, 2.0], [0.2, -1.0, 1.9], [1.0, 1.0, 2.0]])
    generic = ww.expectation(name, K_aa, K_ab, K_bb, method="generic")
    other = ww.expectation(name, K_aa, K_ab, K_bb)
    assert np.all(np.abs(generic.value - other.value) <= generic.error + other.error + 1e-14)


@pytest.mark.parametrize("name", ["tanh", "gelu", "swish", "erf", "relu", "sin"])
@pytest.mark.parametrize("orders", [(0, 0), (1, 1), (1, 0)])
def test_kernel_derivatives_are_expectations_of_derivatives(name, orders):
    kernel = {"aa": 1.3, "ab": 0.4, "bb": 0.8}
    for wrt in kernel:
        step = 1e-4
        values = []
        for sign in (1, -1):
            moved = kernel | {wrt: kernel[wrt] + sign * step}
            values.append(float(ww.expectation(name, moved["aa"], moved["ab"], moved["bb"], orders=orders).value))
        factor, raised = ww.gaussian.kernel_derivative(orders, wrt)
        exact = factor * float(ww.expectation(name, kernel["aa"], kernel["ab"], kernel["bb"], orders=raised).value)
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(exact, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", ["relu", "leaky_relu(0.2)", "erf", "gelu", "sin", "cubic"])
def test_value_and_slope_together_are_those_apart(name):
    closed, rng = resolve(name).closed, np.random.default_rng(0)
    assert closed is not None
    K_aa, K_bb = rng.exponential(2.0, (2, 40))
    K_ab = rng.uniform(-1.0, 1.0, 40) * np.sqrt(K_aa * K_bb)
    for p, found in enumerate(closed.value_and_slope(K_aa, K_ab, K_bb)):
        assert np.array_equal(found, closed.pair(p, p, K_aa, K_ab, K_bb))


def test_one_input_is_the_diagonal_of_two():
    for name in ("tanh", "relu", "gelu"):
        alone = ww.expectation(name, 1.7, orders=(1, 1))
        assert float(alone.value) == pytest.approx(float(ww.expectation(name, 1.7, 1.7, 1.7, orders=(1, 1)).value))


def test_kinks_away_from_zero_are_integrated_exactly():
    # clip(z, −1, 1): ⟨σ'⟩² is the probability of |z| < 1, and ⟨σ''σ⟩ has a δ at each edge
    from scipy.stats import norm

    hat = ww.activation(lambda z: jnp.clip(z, -1, 1), kinks=[-1, 1])
    inside = norm.cdf(1 / np.sqrt(2.0)) - norm.cdf(-1 / np.sqrt(2.0))
    assert float(ww.expectation(hat, 2.0, orders=(1, 1)).value) == pytest.approx(inside, rel=1e-12)
    edge = norm.pdf(1 / np.sqrt(2.0)) / np.sqrt(2.0)
    assert float(ww.expectation(hat, 2.0, orders=(2, 0)).value) == pytest.approx(-2 * edge, rel=1e-9)
    series, near = (ww.expectation(hat, 2.0, rho * 2.0, 2.0, orders=(1, 1)) for rho in (0.5, 1 - 1e-9))
    assert "series" in series.route
    assert "plane" in near.route
    # Price's theorem ties the orders together: d⟨σσ⟩/dK_ab = ⟨σ'σ'⟩
    left, right = (float(ww.expectation(hat, 2.0, c, 2.0).value) for c in (1.0 - 1e-4, 1.0 + 1e-4))
    assert (right - left) / 2e-4 == pytest.approx(float(series.value), rel=1e-7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ww.expectation("tanh", -1.0), "K_aa: got -1; expected finite kernel entries"),
        (lambda: ww.expectation("tanh", 1.0, np.nan, 1.0), "K_ab: got nan"),
        (lambda: ww.expectation("tanh", 1.0, 2.0, 1.0), r"K_ab: got 2 with K_aa = 1, K_bb = 1; expected \|K_ab\|"),
        (lambda: ww.expectation("tanh", 1.0, orders=(0.5, 0)), "orders: got .* two non-negative integers"),
        (lambda: ww.expectation("tanh", 1.0, orders=(-1, 0)), "orders: got"),
        (lambda: ww.expectation("tanh", 1.0, method="colsed"), "Did you mean 'closed'?"),
        (lambda: ww.expectation("tanh", 1.0, method="closed"), "Use method='generic'"),
        (lambda: ww.expectation("relu", 1.0, orders=(2, 1)), r"σ\^\(1\) jumps at z = 0.*smooth activation such as gelu"),
        (lambda: ww.expectation("relu", 1.0, -1.0, 1.0, orders=(2, 2)), "coincident or parallel inputs"),
        (lambda: ww.gaussian.kernel_derivative((0, 0), "ba"), "with_respect_to: got 'ba'"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("function", ["tanh", "swish", lambda z: jnp.tanh(8.0 * z), lambda z: jnp.sin(9.0 * z) * z])
def test_coefficients_of_many_inputs_are_those_of_each(function, order):
    """Interpolated between a few kernels, where that is possible; a wrong kernel is seen."""
    sigma, K = resolve(function), 0.2 * np.exp(np.random.default_rng(3).normal(size=300))
    table, some = hermite_table(sigma, order, K, 128), slice(0, 300, 23)
    alone = [hermite_table(sigma, order, one, 128) for one in K[some, None]]
    for row, (coefficients, norm) in enumerate(zip(table.coefficients[some], table.norm[some], strict=True)):
        assert np.abs(coefficients - alone[row].coefficients[0]).max() < 1e-14 * np.sqrt(norm)
        assert abs(norm - alone[row].norm[0]) < 1e-14 * norm
    shifted = hermite_table(sigma, order, K[:1] * (1 + 1e-8), 128).coefficients
    assert np.abs(shifted - table.coefficients[:1]).max() > 1e-14 * np.sqrt(table.norm[0])
