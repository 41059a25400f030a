"""Activations: derivatives, kinks, and what they refuse."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widthwise as ww
from widthwise.activations import ACTIVATION_NAMES, intervals, resolve
from widthwise.activations.closed_forms import right_angle, upper_angle


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives_agree_with_finite_differences(name, order):
    sigma = resolve("threshold(0.1, 0.7)" if name == "threshold" else name)
    z = jnp.array([-2.3, -0.7, 0.4, 1.9])
    h = 1e-5
    below = sigma.derivative(order - 1)
    difference = (below(z + h) - below(z - h)) / (2 * h)
    assert np.allclose(sigma.derivative(order)(z), difference, atol=1e-7)


@pytest.mark.parametrize(
    ("sigma", "first_jump"),
    [
        ("step", 0),
        ("relu", 1),
        ("leaky_relu(0.2)", 1),
        ("tanh", math.inf),
        (ww.activation(lambda z: jnp.where(z > 0, z, jnp.expm1(jnp.minimum(z, 0))), kinks=[0.0]), 2),
        (ww.activation(lambda z: jnp.clip(z, -1, 1), kinks=[-1, 1]), 1),
    ],
)
def test_the_first_jump_is_found(sigma, first_jump):
    assert resolve(sigma).first_jump == first_jump


def test_a_derivative_past_a_kink_carries_point_masses():
    hat = ww.activation(lambda z: jnp.clip(z, -1, 1), kinks=[-1, 1])
    assert [(a.position, a.order, round(a.weight, 9)) for a in hat.atoms(2)] == [(-1.0, 0, 1.0), (1.0, 0, -1.0)]
    assert hat.atoms(1) == ()


@pytest.mark.parametrize(
    ("name", "exist", "missing"),
    [
        ("step", [(0, 0)], [(1, 0), (1, 1)]),
        ("relu", [(1, 1), (2, 0)], [(2, 1), (2, 2), (3, 0)]),
        ("tanh", [(5, 5)], []),
    ],
)
def test_products_at_one_input_exist_as_theory_says(name, exist, missing):
    sigma = resolve(name)
    assert all(sigma.exists_at_one_input(*orders) for orders in exist)
    assert not any(sigma.exists_at_one_input(*orders) for orders in missing)


@pytest.mark.parametrize(
    ("function", "order", "place"),
    [
        (jnp.abs, 1, "0"),
        (lambda z: jnp.maximum(z, 0.3), 1, "0.3"),
        (lambda z: z / (1 + jnp.abs(z)), 1, "0"),
        (lambda z: jnp.clip(z, -1, 1), 1, "-1, 1"),
    ],
)
def test_an_undeclared_kink_is_refused_where_a_derivative_is_needed(function, order, place):
    with pytest.raises(ValueError, match=rf"not smooth near z = {place}; .*kinks=\({place},\)"):
        ww.theory(ww.MLP([1, 8, 1], function), [[1.0]])
    ww.theory(ww.MLP([1, 8, 1], function), [[1.0]], tensors=["K"])  # values alone need no derivative


def test_smooth_functions_are_not_taken_for_kinked_ones():
    for function in (jnp.arctan, lambda z: z * jnp.tanh(jnp.logaddexp(z, 0.0)), lambda z: jnp.tanh(40 * z)):
        ww.theory(ww.MLP([1, 8, 1], function), [[1.0]])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z: jnp.sum(z), r"returned shape \(\) for an array of shape \(10,\)"),
        (lambda z: jnp.log(z), "returned NaN or infinity at z = -7.3"),
        (lambda z: (z > 0).astype(int), "returned int64 numbers"),
        (lambda z: np.tanh(z), "failed on an array of numbers with TracerArrayConversionError"),
        (lambda z: jax.nn.softmax(z), "depends on the other entries"),
        (lambda z: z.nonsense, "failed on an array of numbers with AttributeError"),
    ],
)
def test_functions_that_are_no_activation_are_refused(function, message):
    with pytest.raises(ValueError, match=message):
        ww.MLP([1, 8, 1], function)


def test_a_derivative_that_is_nan_is_named():
    @jax.custom_jvp
    def ramp(z):
        return jnp.tanh(z)

    @ramp.defjvp
    def ramp_slope(primals, tangents):
        return ramp(*primals), jnp.where(primals[0] > 3.0, jnp.nan, 1.0) * tangents[0]

    with pytest.raises(
        ValueError, match=r"ramp, for which its derivative of order 1 \(by jax\) is not finite at z = 3"
    ):
        ww.theory(ww.MLP([1, 8, 1], ramp), [[1.0]])


def test_an_activation_that_outgrows_the_gaussian_is_refused():
    with pytest.raises(ValueError, match="does not converge at kernel K = 1"):
        ww.theory(ww.MLP([1, 8, 1], lambda z: jnp.exp(z * z / 3)), [[1.0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tahn", "Did you mean 'tanh'?"),
        ("reluu", "Did you mean 'relu'?"),
        ("tanh(3)", "takes no parameter"),
        ("leaky_relu(x)", r"leaky_relu\(slope\) with finite numbers"),
        ("leaky_relu(1, 2)", r"leaky_relu\(slope\) with finite numbers"),
        ("", "expected one of"),
    ],
)
def test_unknown_names_get_a_suggestion(text, message):
    with pytest.raises(ValueError, match=message):
        ww.MLP([1, 8, 1], text)


def test_things_that_are_neither_name_nor_function_are_refused():
    with pytest.raises(ValueError, match=r"activation: got 3 \(int\); expected a name, or a function"):
        ww.MLP([1, 8, 1], 3)
    with pytest.raises(ValueError, match="kinks: got .*; expected finite positions"):
        ww.activation(jnp.abs, kinks=[math.nan])
    with pytest.raises(ValueError, match="kinks and name only with a function"):
        ww.activation("relu", kinks=[0.0])


def test_intervals_contain_the_kinks_and_reach_far_enough():
    hat = ww.activation(lambda z: jnp.clip(z, -1.25, 1.5), kinks=[-1.25, 1.5])
    edges = intervals(hat, (0, 1), 20.0)
    assert {-1.25, 1.5} <= set(edges)
    assert edges[0] <= -20
    assert edges[-1] >= 20


def test_angles_are_right_to_the_last_digits():
    rng = np.random.default_rng(0)
    y = np.concatenate([10.0 ** rng.uniform(-12, 6, 2000), [0.0, 0.0, 1.0, 1.0]])
    x = np.concatenate([rng.choice([-1, 1], 2000) * 10.0 ** rng.uniform(-12, 6, 2000), [1.0, -1.0, 0.0, 1.0]])
    assert np.allclose(upper_angle(y, x), np.arctan2(y, x), rtol=5e-16, atol=0)
    assert np.allclose(right_angle(x, y + 1), np.arctan(x / (y + 1)), rtol=5e-16, atol=0)
    slope = jax.grad(right_angle)(0.0, 2.0)
    assert float(slope) == 0.5
