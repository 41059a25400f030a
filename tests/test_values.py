"""Arrays, numbers and functions that come in as people have them: taken as meant, or refused in one line."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import widthwise as ww

X = np.array([[1.0, 0.5], [0.3, -1.0]])
NET = ww.MLP([2, 8, 8, 1], "relu", C_W=2.0)


def test_a_masked_array_is_refused():
    masked = np.ma.masked_array(X, mask=[[0, 0], [1, 0]])
    with pytest.raises(ww.WidthwiseError, match="X: got a masked array; expected .*without a mask"):
        ww.theory(NET, masked)


@pytest.mark.parametrize("given", [torch.tensor(X, requires_grad=True), list(torch.tensor(X, requires_grad=True))])
def test_tensors_of_torch_are_detached(given):
    assert np.array_equal(ww.theory(NET, given)["K"], ww.theory(NET, X)["K"])


@pytest.mark.parametrize("widths", [{2, 8, 1}, {2: 1, 8: 1, 1: 1}, b"281", bytearray(b"281"), "281"])
def test_widths_without_an_order_are_refused(widths):
    with pytest.raises(ww.WidthwiseError, match="widths: got .*; expected at least two positive integers"):
        ww.MLP(widths, "tanh")


@pytest.mark.parametrize("kinks", ["ab", 5, None, [None], ["0"], [[1, 2]], [True], {0.0: 1}, [1j], [[1], [2, 3]]])
def test_kinks_that_are_no_positions_are_refused(kinks):
    with pytest.raises(ww.WidthwiseError, match="kinks: got .*; expected finite positions, as a list"):
        ww.activation(jnp.abs, kinks=kinks)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128"])
def test_an_activation_that_changes_the_type_is_told_so(dtype):
    with pytest.raises(ww.WidthwiseError, match=f"returned {dtype} numbers for float64 input.*astype"):
        ww.MLP([2, 8, 1], lambda z: jnp.tanh(z).astype(dtype))


@pytest.mark.parametrize("order", [0, 1])
def test_an_undeclared_kink_is_refused_at_every_order(order):
    with pytest.raises(ww.errors.NotDifferentiable, match="not smooth near z = 0"):
        ww.theory(ww.MLP([2, 8, 1], lambda z: jnp.abs(z)), X, order=order)


def test_a_kernel_that_is_asymmetric_by_rounding_is_accepted():
    K = np.array([[1.0, 1e-17], [0.0, 1.0]])
    assert ww.special.largest_eigenvalue_bounds(K).row == 1.0
    with pytest.raises(ww.WidthwiseError, match=r"\|K − Kᵀ\| up to 0.1; expected a symmetric matrix"):
        ww.special.largest_eigenvalue_bounds([[1.0, 0.1], [0.0, 1.0]])


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("name", ["tanh", "relu"])
@pytest.mark.parametrize("huge", [{"X": 1e200}, {"X": 1e150}] + [{key: 1e300} for key in ("C_W", "C_b", "lambda_W", "lambda_b")])  # fmt: skip
def test_numbers_beyond_what_can_be_computed_are_refused(huge, name, order):
    net = ww.MLP([2, 8, 8, 1], name, **{key: value for key, value in huge.items() if key != "X"})
    with pytest.raises(ww.WidthwiseError, match=r"of (inf|\S+e\+\d+) at layer \d; expected at most 1e\+\d+"):
        ww.theory(net, huge.get("X", 1.0) * X, order=order)
