"""The specification: validation, equality, text forms, conventions."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import widthwise as ww
from widthwise.activations import ACTIVATION_NAMES

positive = st.floats(0.0, 1e6, allow_nan=False)


@st.composite
def networks(draw):
    depth = draw(st.integers(1, 5))
    widths = draw(st.lists(st.integers(1, 4096), min_size=depth + 1, max_size=depth + 1))
    activation = draw(
        st.sampled_from([*(set(ACTIVATION_NAMES) - {"threshold"}), "leaky_relu(0.37)", "leaky_relu(-0.1234567890123)"])
    )
    values = [draw(st.one_of(positive, st.lists(positive, min_size=depth, max_size=depth))) for _ in range(4)]
    return ww.MLP(widths, activation, *values)


@given(networks())
def test_text_forms_give_the_same_network_back(net):
    assert ww.MLP.from_json(net.to_json()) == net
    assert ww.MLP.from_toml(net.to_toml()) == net
    assert ww.MLP.from_dict(net.to_dict()) == net
    assert eval(repr(net), {"MLP": ww.MLP}) == net
    assert hash(ww.MLP.from_json(net.to_json())) == hash(net)


def test_networks_that_differ_anywhere_are_unequal():
    net = ww.MLP([3, 8, 1], "tanh", 0.1, 1.5, 0.2, 1.0)
    for change in (
        {"widths": [3, 9, 1]}, {"activation": "sin"}, {"C_b": 0.2}, {"C_W": [1.5, 1.6]}, {"lambda_b": 0}, {"lambda_W": 2},
    ):  # fmt: skip
        assert net.replace(**change) != net
    assert ww.MLP([3, 8, 1], "leaky_relu(0.1)") != ww.MLP([3, 8, 1], "leaky_relu(0.2)")
    assert ww.MLP([3, 8, 1], "silu") == ww.MLP([3, 8, 1], "swish")


def test_a_network_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ww.MLP([3, 8, 1], "tanh").widths = (3, 9, 1)


def test_numpy_numbers_are_accepted():
    net = ww.MLP(np.array([3, 8, 1]), "tanh", C_W=np.array([1.0, 2.0]), C_b=np.float32(0.5))
    assert net.widths == (3, 8, 1)
    assert net.C_W == (1.0, 2.0)
    json.loads(net.to_json())


def test_jax_functions_that_are_builtins_are_recognised():
    assert ww.MLP([1, 2, 1], jnp.tanh) == ww.MLP([1, 2, 1], "tanh")


def test_ones_own_activation_is_given_back_by_name():
    def mine(z):
        return z * jnp.tanh(jnp.logaddexp(z, 0.0))

    net = ww.MLP([1, 2, 1], mine)
    assert ww.MLP.from_json(net.to_json(), activations={"mine": mine}) == net
    with pytest.raises(ValueError, match="got 'mine'; expected one of"):
        ww.MLP.from_json(net.to_json())


class TestConventions:
    """Each against the variances and learning rates that the convention's definition states."""

    widths = (5, 64, 32, 2)

    def check(self, net, weight_variance, bias_variance, weight_rate, bias_rate):
        for layer, (fan_in, fan_out) in enumerate(zip(self.widths[:-1], self.widths[1:], strict=True)):
            assert net.C_W[layer] / fan_in == pytest.approx(weight_variance(fan_in, fan_out))
            assert net.C_b[layer] == pytest.approx(bias_variance(fan_in, fan_out))
            assert net.lambda_W[layer] / fan_in == pytest.approx(weight_rate(fan_in, fan_out))
            assert net.lambda_b[layer] == pytest.approx(bias_rate(fan_in, fan_out))

    def test_he(self):
        self.check(ww.MLP.he(self.widths, learning_rate=0.1), lambda i, o: 2 / i, lambda i, o: 0,
                   lambda i, o: 0.1, lambda i, o: 0.1)  # fmt: skip
        assert ww.MLP.he(self.widths, "leaky_relu(0.5)").C_W[0] == pytest.approx(2 / 1.25)

    def test_lecun(self):
        self.check(ww.MLP.lecun(self.widths), lambda i, o: 1 / i, lambda i, o: 0, lambda i, o: 1, lambda i, o: 1)

    def test_glorot(self):
        self.check(ww.MLP.glorot(self.widths), lambda i, o: 2 / (i + o), lambda i, o: 0, lambda i, o: 1, lambda i, o: 1)

    def test_torch_default(self):
        # uniform on ±1/√fan_in has variance 1/(3 fan_in), for weights and for biases
        self.check(ww.MLP.torch_default(self.widths), lambda i, o: 1 / (3 * i), lambda i, o: 1 / (3 * i),
                   lambda i, o: 1, lambda i, o: 1)  # fmt: skip

    def test_ntk(self):
        # gradient descent on ω with W = √(C_W/n) ω moves W by C_W/n times the gradient of W
        net = ww.MLP.ntk(self.widths, "tanh", C_b=0.3, C_W=1.7, learning_rate=0.5)
        self.check(net, lambda i, o: 1.7 / i, lambda i, o: 0.3, lambda i, o: 0.5 * 1.7 / i, lambda i, o: 0.15)

    def test_standard(self):
        net = ww.MLP.standard(self.widths, "tanh", C_b=0.3, C_W=1.7, learning_rate=0.5)
        self.check(net, lambda i, o: 1.7 / i, lambda i, o: 0.3, lambda i, o: 0.5, lambda i, o: 0.5)

    def test_mup(self):
        net = ww.MLP.mup(self.widths, "tanh", learning_rate=0.5)
        n = self.widths
        assert [c / i for c, i in zip(net.C_W, n[:-1], strict=True)] == pytest.approx([1 / 5, 1 / 64, 1 / 32**2])
        assert [w / i for w, i in zip(net.lambda_W, n[:-1], strict=True)] == pytest.approx([0.5 * 64, 0.5, 0.5 / 32])
        assert net.lambda_b == pytest.approx((0.5 * 64, 0.5 * 32, 0.5))
        with pytest.raises(ValueError, match="at least one hidden layer"):
            ww.MLP.mup([3, 1], "tanh")

    def test_the_kernel_of_mup_has_a_limit_and_that_of_the_standard_parameterisation_grows(self):
        X = [[0.3, -1.0, 0.5]]
        theta = {
            make: [
                float(ww.theory(getattr(ww.MLP, make)([3, n, n, 1], "tanh"), X)["Theta"][-1, 0, 0]) for n in (64, 4096)
            ]
            for make in ("mup", "standard")
        }
        assert theta["mup"][1] == pytest.approx(theta["mup"][0], rel=0.05)
        assert theta["standard"][1] == pytest.approx(64 * theta["standard"][0], rel=0.15)
