"""Arrays, numbers and functions that come in as people have them: taken as meant, or refused in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import widthwise as ww

X = np.array([[1.0, 0.5], [0.3, -1.0]])
Y = [0.5, 0.7]
NET, SMOOTH = ww.MLP([2, 8, 8, 1], "relu", C_W=2.0), ww.MLP([2, 8, 8, 1], "tanh", C_b=0.1, C_W=1.2)


#: Functions of inputs on their several ways in.
WAYS_IN = {
    "theory": lambda X: ww.theory(NET, X)["K"],
    "an estimator": lambda X: ww.NTKRegressor().fit(X, Y).predict(np.ones((1, 2))),
    "model_ntk": lambda X: ww.model_ntk(torch.nn.Linear(2, 1), X)["Theta"],
    "model_kernels": lambda X: ww.readers.model_kernels(torch.nn.Linear(2, 1), X)["K"],
    "audit": lambda X: ww.audit(torch.nn.Linear(2, 1), X, draws=0).tensors[0].fan_in,
}
TENSOR = torch.tensor(X, requires_grad=True)


@pytest.mark.parametrize("way", WAYS_IN)
def test_a_masked_array_is_refused(way):
    masked = np.ma.masked_array(X, mask=[[0, 0], [1, 0]])
    with pytest.raises(ww.WidthwiseError, match="X|batch: got a masked array; expected .*without a mask"):
        WAYS_IN[way](masked)


def test_a_mask_in_a_list_or_a_number_is_refused():
    masked = np.ma.masked_array(X, mask=[[0, 0], [1, 0]])
    with pytest.raises(ww.WidthwiseError, match="X: got a masked array"):
        ww.theory(NET, list(masked))
    with pytest.raises(ww.WidthwiseError, match="C_W: got .*masked"):
        ww.MLP([2, 8, 1], "tanh", C_W=list(np.ma.masked_array([1.0, 2.0], mask=[0, 1])))


@pytest.mark.parametrize("way", WAYS_IN)
def test_tensors_of_torch_are_detached(way):
    assert np.array_equal(WAYS_IN[way](TENSOR), WAYS_IN[way](X))


@pytest.mark.parametrize("given", [list(TENSOR), TENSOR.bfloat16().double(), TENSOR.bfloat16()])
def test_tensors_in_lists_and_of_half_precision_are_taken(given):
    expected = X if isinstance(given, list) else TENSOR.detach().bfloat16().double().numpy()
    assert np.array_equal(ww.theory(NET, given)["K"], ww.theory(NET, expected)["K"])


def test_numbers_that_are_tensors_are_detached():
    rate = torch.tensor(0.5, requires_grad=True)
    assert ww.MLP([2, 8, 1], "tanh", C_W=[rate, rate]) == ww.MLP([2, 8, 1], "tanh", C_W=rate)
    assert ww.GradientDescent(rate) == ww.GradientDescent(0.5)


@pytest.mark.parametrize("given", [torch.empty(2, 2, device="meta"), torch.tensor(X).to_sparse()])
def test_tensors_without_numbers_are_refused(given):
    with pytest.raises(ww.WidthwiseError, match="X: got Tensor; expected an array of numbers"):
        ww.theory(NET, given)


def test_a_call_within_a_transform_of_jax_is_refused_with_the_reason():
    with pytest.raises(ww.WidthwiseError, match=r"X: got \w+Tracer; .*Call it outside of jax.jit"):
        jax.jit(lambda X: ww.theory(NET, X))(X)


@pytest.mark.parametrize("scale", [1e80, 1e154])
@pytest.mark.parametrize(
    "call",
    [
        lambda y: ww.predict(SMOOTH, X, y, [[0.2, 0.1]], order=1),
        lambda y: ww.posterior(SMOOTH, X, y, [[0.2, 0.1]], order=1),
        lambda y: ww.trained_density(SMOOTH, X, y, [0.2, 0.1]),
        lambda y: ww.expected_error(SMOOTH, X, Y, [[0.2, 0.1]], y[:1], order=1),
        lambda y: ww.NTKRegressor().fit(X, y),
    ],
    ids=["predict", "posterior", "trained_density", "expected_error", "NTKRegressor"],
)
def test_targets_whose_powers_overflow_are_refused(call, scale):
    with pytest.raises(ww.WidthwiseError, match=r"^y\w*: got numbers up to \S+; expected at most 1e\+30"):
        call(scale * np.array(Y))


@pytest.mark.parametrize("size", [1e-36, 1e-40, 1e-60])
def test_kernels_of_kinked_activations_that_cannot_be_divided_by_are_refused(size):
    """Means of order 1/n were NaN from 1e-40 on, without a word."""
    net = ww.MLP([2, 8, 8, 8, 1], "relu", C_W=2.0, lambda_b=0.0)
    if size < 1e-37:
        with pytest.raises(ww.WidthwiseError, match=r"X: got input \d, whose kernel K is .*at least 1e-75"):
            ww.theory(net, size * X, order=1)
    else:
        here, there = ww.theory(net, size * X, order=1)["H1"], ww.theory(net, X, order=1)["H1"]
        np.testing.assert_allclose(here / size**2, there, rtol=1e-9, atol=1e-9 * np.abs(there).max())


@pytest.mark.parametrize(
    "widths", [{2, 8, 1}, {2: 1, 8: 1, 1: 1}, b"281", bytearray(b"281"), memoryview(b"281"), "281"]
)
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


class OfAClosedFile:
    """Raises its own error whatever is asked of it, as data of a file that is closed do."""

    def fails(self, *_, **__):
        raise OSError("closed")

    __array__ = __float__ = __index__ = __len__ = __getitem__ = __iter__ = __repr__ = fails


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda value: ww.theory(NET, value), "X"),
        (lambda value: ww.theory(NET, [value, value]), "X"),
        (lambda value: ww.MLP([2, value, 1], "tanh"), "widths"),
        (lambda value: ww.MLP(value, "tanh"), "widths"),
        (lambda value: ww.MLP([2, 8, 1], "tanh", C_W=value), "C_W"),
        (lambda value: ww.MLP([2, 8, 1], "tanh", C_b=[value, 0.0]), "C_b"),
        (lambda value: ww.GradientFlow(value), "time"),
        (lambda value: ww.measure(NET, X, networks=value), "networks"),
        (lambda value: NET.with_width(value), "width"),
        (lambda value: ww.posterior(NET, X, Y, X, noise=value), "noise"),
        (lambda value: ww.NTKRegressor(noise=value).fit(X, [1.0, -1.0]), "noise"),
        (lambda value: ww.exact.marchenko_pastur(value), "alpha"),
        (lambda value: ww.exact.marchenko_pastur(0.5).largest(value), "P"),
        (lambda value: ww.activation(jnp.tanh, kinks=value), "kinks"),
        (lambda value: ww.measure(NET, X, networks=4, widths=value), "widths"),
        (lambda value: ww.measure(NET, X, networks=4, statistics=value), "statistics"),
        (lambda value: ww.measure(NET, X, networks=4, engine=value), "engine"),
        (lambda value: ww.expectation("tanh", 1.0, 0.3, orders=value), "orders"),
        (lambda value: ww.evidence_grid("tanh", X, Y, depth=2, width=value, order=0), "width"),
    ],
)
@pytest.mark.parametrize(
    "value", [OfAClosedFile(), 10**400, 10**5000, -(10**5000)], ids=["broken", "400", "5000", "-5000"]
)
def test_objects_that_raise_and_integers_beyond_all_numbers_are_refused(call, argument, value):
    """The errors of `float` and of `repr`, which prints no integer of more than 4,300 digits, came out as they were."""
    with pytest.raises(ww.WidthwiseError, match=rf"^{argument}: got [^\n]{{1,900}}; expected "):
        call(value)


def test_a_kernel_that_is_asymmetric_by_rounding_is_accepted():
    K = np.array([[1.0, 1e-17], [0.0, 1.0]])
    assert ww.special.largest_eigenvalue_bounds(K).row == 1.0
    with pytest.raises(ww.WidthwiseError, match=r"\|K − Kᵀ\| up to 0.1; expected a symmetric matrix"):
        ww.special.largest_eigenvalue_bounds([[1.0, 0.1], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("K", "words"),
    [
        ([[1.0, 0.4], [0.5, 1.0]], r"\|K − Kᵀ\| up to 0.1"),
        ([[1.0, 3.0], [3.0, 1.0]], "a covariance of 3 between variances 1 and 1"),
        ([[-1.0, 0.0], [0.0, 1.0]], "a variance of -1"),
        (np.eye(3) - 0.6 * (1 - np.eye(3)), "eigenvalues from -0.2 to 1.6"),
    ],
    ids=["asymmetric", "correlated beyond 1", "negative", "indefinite"],
)
def test_a_matrix_of_no_gaussian_is_refused(K, words):
    """Four-point expectations of such were NaN, or those of another matrix."""
    with pytest.raises(ww.WidthwiseError, match=rf"K: got .*{words}.*; expected a .*matrix of covariances"):
        ww.gaussian.four_point("tanh", np.array(K))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("name", ["tanh", "relu"])
@pytest.mark.parametrize("huge", [{"X": 1e200}, {"X": 1e150}] + [{key: 1e300} for key in ("C_W", "C_b", "lambda_W", "lambda_b")])  # fmt: skip
def test_numbers_beyond_what_can_be_computed_are_refused(huge, name, order):
    net = ww.MLP([2, 8, 8, 1], name, **{key: value for key, value in huge.items() if key != "X"})
    with pytest.raises(ww.WidthwiseError, match=r"of (inf|\S+e\+\d+) at layer \d; expected at most 1e\+\d+"):
        ww.theory(net, huge.get("X", 1.0) * X, order=order)
