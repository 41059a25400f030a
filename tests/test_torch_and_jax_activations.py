"""Every activation of torch.nn and of jax.nn: which are treated, to which order, and why the others are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import widthwise as ww
from widthwise.activations import ACTIVATION_NAMES, resolve
from widthwise.tensors import CORRECTIONS, KERNELS

SMOOTH, KINKED, JUMPING, REFUSED, OTHER = "all tensors", "some tensors", "K alone", "refused", "no activation"
#: All of `torch.nn.modules.activation.__all__`.
OF_TORCH = {
    "Sigmoid": SMOOTH, "Tanh": SMOOTH, "SiLU": SMOOTH, "Mish": SMOOTH, "GELU": SMOOTH, "LogSigmoid": SMOOTH,
    "Softplus": SMOOTH, "Tanhshrink": SMOOTH, "ReLU": KINKED, "ReLU6": KINKED, "Hardtanh": KINKED,
    "Hardsigmoid": KINKED, "Hardswish": KINKED, "ELU": KINKED, "CELU": KINKED, "SELU": KINKED, "LeakyReLU": KINKED,
    "Softshrink": KINKED, "Softsign": KINKED, "Hardshrink": JUMPING, "Threshold": JUMPING, "RReLU": REFUSED,
    "GLU": REFUSED, "MultiheadAttention": REFUSED, "PReLU": REFUSED, "Softmin": REFUSED, "Softmax": REFUSED,
    "Softmax2d": REFUSED, "LogSoftmax": REFUSED,
}  # fmt: skip
#: All public names of `jax.nn`.
OF_JAX = {
    "gelu": SMOOTH, "identity": SMOOTH, "log_sigmoid": SMOOTH, "mish": SMOOTH, "sigmoid": SMOOTH, "silu": SMOOTH,
    "softplus": SMOOTH, "squareplus": SMOOTH, "swish": SMOOTH, "tanh": SMOOTH, "celu": KINKED, "elu": KINKED,
    "hard_sigmoid": KINKED, "hard_silu": KINKED, "hard_swish": KINKED, "hard_tanh": KINKED, "leaky_relu": KINKED,
    "relu": KINKED, "relu6": KINKED, "selu": KINKED, "soft_sign": KINKED, "sparse_plus": KINKED,
    "sparse_sigmoid": KINKED, "glu": REFUSED, "softmax": REFUSED, "log_softmax": REFUSED,
    "dot_product_attention": OTHER, "get_scaled_dot_general_config": OTHER, "initializers": OTHER, "log1mexp": OTHER,
    "logmeanexp": OTHER, "logsumexp": OTHER, "one_hot": OTHER, "scaled_dot_general": OTHER, "scaled_matmul": OTHER,
    "standardize": OTHER,
}  # fmt: skip
WITH_ARGUMENTS = {"Threshold": (0.1, 0.7), "MultiheadAttention": (2, 1)}
Z = np.linspace(-7.3, 7.1, 401)
X = [[0.9, 0.4], [-0.3, 1.1]]


def test_the_lists_are_those_of_the_installed_packages():
    assert set(OF_TORCH) == set(nn.modules.activation.__all__)
    assert set(OF_JAX) == {name for name in dir(jax.nn) if not name.startswith("_")}


@pytest.mark.parametrize("name", [name for name, kind in OF_TORCH.items() if kind != REFUSED])
def test_an_activation_of_torch_has_its_name_and_its_values_here(name):
    parameters = WITH_ARGUMENTS.get(name, ())
    layer = getattr(nn, name)(*parameters)
    sigma = resolve(name + (str(parameters) if parameters else ""))
    assert sigma == ww.from_torch(nn.Sequential(nn.Linear(2, 4), layer, nn.Linear(4, 1))).activation
    np.testing.assert_allclose(sigma(Z), layer(torch.tensor(Z)).numpy(), rtol=1e-12, atol=3e-9)


@pytest.mark.parametrize("name", [name for name, kind in OF_JAX.items() if kind not in (REFUSED, OTHER)])
def test_an_activation_of_jax_is_the_same_by_name_and_as_a_function(name):
    function = getattr(jax.nn, name)
    assert resolve(function) == resolve("gelu_tanh" if name == "gelu" else name)
    np.testing.assert_allclose(resolve(function)(Z), function(Z), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", [name for name, kind in OF_TORCH.items() if kind == REFUSED])
def test_what_is_no_function_of_one_number_is_refused_by_name_with_the_reason(name):
    with pytest.raises(ww.errors.NoRule, match="Reason: (it lets the neurons|its slope)"):
        ww.MLP([2, 4, 1], name)
    layer = getattr(nn, name)(*WITH_ARGUMENTS.get(name, ()))
    if name != "MultiheadAttention":  # its forward takes three arguments, so that no sequence holds it
        with pytest.raises(ww.WidthwiseError, match=rf"\({name}, '1'\).*Reason: "):
            ww.from_torch(nn.Sequential(nn.Linear(2, 4), layer, nn.Linear(4, 1)))


@pytest.mark.parametrize("name", [name for name, kind in OF_JAX.items() if kind == REFUSED])
def test_what_is_no_function_of_one_number_is_refused_as_a_function(name):
    with pytest.raises(ww.errors.BadActivation, match=r"depends on the other entries|returned shape|failed"):
        ww.MLP([2, 4, 1], getattr(jax.nn, name))


KINDS = {resolve("threshold(0.1, 0.7)" if n == "Threshold" else n).name: k for n, k in OF_TORCH.items() if k != REFUSED}
KINDS |= {resolve(getattr(jax.nn, n)).name: k for n, k in OF_JAX.items() if k not in (REFUSED, OTHER)}
#: Beyond both lists.
KINDS |= {"step": JUMPING, "sin": SMOOTH, "erf": SMOOTH, "quadratic": SMOOTH, "cubic": SMOOTH, "gelu": SMOOTH}


def test_every_name_has_its_kind():
    assert set(KINDS) == set(ACTIVATION_NAMES)


OF_PLAIN_NETWORKS = {*KERNELS, *CORRECTIONS}


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_tensors_exist_as_far_as_the_kinks_allow(name):
    """The tables of one layer hold every expectation; a second layer would compile nothing new."""
    net = ww.MLP([2, 16, 16, 1], "threshold(0.1, 0.7)" if name == "threshold" else name, C_W=1.2)
    ds = ww.theory(net, X[:1], order=1)
    missing = {SMOOTH: set(), JUMPING: OF_PLAIN_NETWORKS - {"K"}}.get(KINDS[name])
    kept = set(ds.data_vars)
    assert all(np.isfinite(ds[tensor]).all() for tensor in kept)
    assert ds.attrs["numerical_error"] < 1e-7
    if missing is None:
        assert {"K", "Theta", "V", "A", "B", "D", "F", "G1"} - {"G1"} <= kept < OF_PLAIN_NETWORKS
    else:
        assert OF_PLAIN_NETWORKS - missing <= kept


def hand_written(z):
    return 0.5 * z * (1 + jnp.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("function", [hand_written, lambda z: jax.nn.gelu(z, approximate=True)])
def test_the_tanh_form_of_gelu_is_not_refused_for_its_rounding(function, scale):
    inputs = scale * np.asarray(X)
    known, own = (ww.theory(ww.MLP([2, 16, 16, 1], f, C_W=2.0), inputs, order=1) for f in ("gelu_tanh", function))
    for name in known:
        np.testing.assert_allclose(own[name], known[name], rtol=0, atol=1e-5 * float(abs(known[name]).max()))
