"""Infinite-width kernels: references, laws and limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import load_cases, network
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import widthwise as ww
from widthwise.flow.kernels import kernel_flow as infinite
from widthwise.flow.kernels.kernel_flow import kernel_flow

ELU = ww.activation(lambda z: jnp.where(z > 0, z, jnp.expm1(jnp.minimum(z, 0))), kinks=[0.0], name="elu")
ACTIVATIONS = ("tanh", "gelu", "relu", "sin", "swish", "erf", "softplus", "leaky_relu(0.2)")

inputs = arrays(float, st.tuples(st.integers(2, 5), st.just(3)), elements=st.floats(-3, 3, width=32))


def kernels(net, X, X2=None, **options):
    ds = ww.theory(net, X, X2, **options)
    return ds["K"].values, ds["Theta"].values


def deep(activation, depth=3, **more):
    defaults = {"C_b": 0.1, "C_W": 1.6, "lambda_b": 0.3, "lambda_W": 0.9}
    return ww.MLP([3, *[32] * (depth - 1), 2], activation, **(defaults | more))


@pytest.mark.parametrize("case", load_cases("flow"), ids=lambda c: c["name"])
def test_every_layer_of_the_reference_cases(case):
    K, Theta = kernels(network(case), case["X"])
    for layer, reference in enumerate(case["layers"]):
        assert np.allclose(K[layer], reference["K"], rtol=1e-9, atol=0)
        assert np.allclose(Theta[layer], reference["Theta"], rtol=1e-9, atol=0)


@pytest.mark.parametrize("case", load_cases("flow"), ids=lambda c: c["name"])
def test_the_references_tell_a_wrong_recursion(case):
    # negative control: dropping the last term of Θ, or a factor two in C_W, is seen at 1e-9
    last = case["layers"][-1]
    K, _ = kernels(network(case).replace(C_W=2 * case["C_W"]), case["X"])
    assert not np.allclose(K[-1], last["K"], rtol=1e-2)
    without = network(case).replace(lambda_b=[0.0] * (len(case["widths"]) - 2) + [case["lambda_b"]],
                                    lambda_W=[0.0] * (len(case["widths"]) - 2) + [case["lambda_W"]])  # fmt: skip
    assert not np.allclose(kernels(without, case["X"])[1][-1], last["Theta"], rtol=1e-2)


@given(inputs, st.sampled_from(ACTIVATIONS))
def test_kernels_are_symmetric_and_positive_semidefinite(X, activation):
    for kernel in kernels(deep(activation), X):
        for layer in kernel:
            assert np.array_equal(layer, layer.T)
            values = np.linalg.eigvalsh(layer)
            assert values.min() > -1e-7 * max(values.max(), 1e-12)


@given(inputs, st.sampled_from(ACTIVATIONS), st.integers(0, 2**31))
def test_rotating_the_inputs_changes_nothing(X, activation, seed):
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    for before, after in zip(kernels(deep(activation), X), kernels(deep(activation), X @ rotation), strict=True):
        assert np.allclose(before, after, rtol=1e-6, atol=1e-7)


@given(inputs, st.sampled_from(["relu", "linear", "leaky_relu(0.2)", "leaky_relu(-1)"]), st.floats(1e-3, 1e3))
def test_the_relu_family_is_scale_covariant_without_biases(X, activation, factor):
    net = deep(activation, C_b=0.0, lambda_b=0.0)
    for before, after in zip(kernels(net, X), kernels(net, factor * X), strict=True):
        assert np.allclose(factor**2 * before, after, rtol=1e-9, atol=1e-9 * factor**2)


@given(inputs, st.sampled_from(ACTIVATIONS), st.integers(2, 4))
def test_layers_compose(X, activation, cut):
    # the first layers of a deep network are a shallow network
    net = deep(activation, depth=5)
    shallow = ww.MLP(
        net.widths[: cut + 1], activation, net.C_b[:cut], net.C_W[:cut], net.lambda_b[:cut], net.lambda_W[:cut]
    )
    for whole, part in zip(kernels(net, X), kernels(shallow, X), strict=True):
        assert np.allclose(whole[:cut], part, rtol=1e-12, atol=1e-14)


@given(inputs)
def test_without_hidden_layers_the_kernels_are_those_of_linear_regression(X):
    K, Theta = kernels(ww.MLP([3, 2], "tanh", 0.2, 1.5, 0.7, 0.4), X)
    assert np.allclose(K[0], 0.2 + 1.5 * X @ X.T / 3)
    assert np.allclose(Theta[0], 0.7 + 0.4 * X @ X.T / 3)


@given(inputs, st.integers(1, 6))
def test_a_linear_network_with_equal_rates_and_variances_has_theta_equal_depth_times_k(X, depth):
    net = ww.MLP([3, *[8] * (depth - 1), 1], "linear", C_b=0.0, C_W=1.3, lambda_b=0.0, lambda_W=1.3)
    K, Theta = kernels(net, X)
    for layer in range(depth):
        assert np.allclose(Theta[layer], (layer + 1) * K[layer], rtol=1e-12, atol=1e-12)


@settings(max_examples=8)
@given(inputs, inputs, st.sampled_from([*ACTIVATIONS, ELU]))
def test_the_rectangle_is_the_corner_of_the_square(X, X2, activation):
    together = kernels(deep(activation), np.vstack([X, X2]))
    apart = kernels(deep(activation), X, X2)
    for square, rectangle in zip(together, apart, strict=True):
        assert np.allclose(square[:, : len(X), len(X) :], rectangle, rtol=2e-7, atol=1e-9)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, ELU, "step", "cubic"], ids=lambda a: getattr(a, "name", a))
def test_closed_form_and_series_flow_alike(activation):
    """The two kinds of tiles, on data with duplicates, opposites, nearly parallel rows and a zero row."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(8, 3))
    X[1], X[2], X[3], X[4] = X[0], -X[0], X[0] * (1 + 1e-9) + 1e-9, 0.0
    net = deep(activation)
    theta = activation != "step"
    closed = kernel_flow(net, X, with_theta=theta)
    generic = ww.activation(lambda z: net.activation(z), kinks=net.activation.kinks, name="same")
    series = kernel_flow(net.replace(activation=generic), X, with_theta=theta)
    for name in ("K", "Theta") if theta else ("K",):
        assert np.allclose(getattr(closed, name), getattr(series, name), rtol=1e-7, atol=1e-10)


def test_tiles_are_an_implementation_detail(monkeypatch):
    X = np.random.default_rng(2).normal(size=(23, 3))
    whole = [kernel_flow(deep(a), X) for a in ("relu", "tanh")]
    monkeypatch.setattr(infinite, "SMALL_SQUARE", 0)
    monkeypatch.setattr(infinite, "MOST_PLAIN", 0)
    monkeypatch.setattr(infinite, "SIDES", {"cpu": (5, 6)})
    for before, after in zip(whole, (kernel_flow(deep(a), X) for a in ("relu", "tanh")), strict=True):
        assert np.allclose(before.K, after.K, rtol=1e-13)
        assert np.allclose(before.Theta, after.Theta, rtol=1e-13)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu(0.1)"])
def test_equal_inputs_are_parallel_in_tiles_too(activation, monkeypatch):
    """Their kernels are some ulps apart in a compiled program, and an angle is the root of that: Θ was off by 3e-8."""
    monkeypatch.setattr(infinite, "SMALL_SQUARE", 0)
    monkeypatch.setattr(infinite, "MOST_PLAIN", 0)
    monkeypatch.setattr(infinite, "SIDES", {"cpu": (8, 16)})
    X = np.random.default_rng(0).normal(size=(30, 3))
    flow = kernel_flow(ww.MLP([3, *[16] * 9, 1], activation, C_b=0.1, C_W=1.5), np.vstack([X, X]))
    own, row = np.arange(30), np.arange(30) + 30
    for kernel in (flow.K, flow.Theta):
        assert np.allclose(kernel[:, own, row], kernel[:, own, own], rtol=1e-13)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_last_layer_alone_and_single_precision(activation):
    X = np.random.default_rng(3).normal(size=(6, 3))
    full = ww.theory(deep(activation), X)
    last = ww.theory(deep(activation), X, layers="last")
    assert last["layer"].values.tolist() == [3]
    assert np.array_equal(last["K"].values[0], full["K"].values[-1])
    single = ww.theory(deep(activation), X, dtype="float32")
    assert single["Theta"].dtype == np.float32
    assert np.allclose(single["Theta"], full["Theta"], rtol=1e-4)


@pytest.mark.parametrize("size", [1e-6, 1e3])
@pytest.mark.parametrize("activation", ["tanh", "softplus", "gelu", "relu"])
def test_tiny_and_huge_inputs(activation, size):
    X = size * np.array([[1.0, 0.2, -0.3], [0.9, 0.3, -0.3], [-1.0, 0.5, 0.5]])
    ds = ww.theory(ww.MLP([3, 16, 16, 1], activation, C_b=0.0, C_W=1.5), X)
    assert np.isfinite(ds["K"]).all()
    assert np.isfinite(ds["Theta"]).all()
    assert ds.attrs["numerical_error"] < 1e-9


def test_layer_dependent_hyperparameters_enter_their_own_layer():
    # a hand-made two-layer computation for relu at one input: ⟨σσ⟩ = K/2, ⟨σ'σ'⟩ = 1/2
    net = ww.MLP([2, 8, 8, 1], "relu", C_b=[0.1, 0.2, 0.3], C_W=[1.0, 2.0, 3.0], lambda_b=[1, 2, 3], lambda_W=[4, 5, 6])
    K, Theta = kernels(net, [[1.0, 2.0]])
    K1, T1 = 0.1 + 2.5, 1 + 4 * 2.5
    K2, T2 = 0.2 + 2.0 * K1 / 2, 2 + 5 * K1 / 2 + 2.0 * T1 / 2
    K3, T3 = 0.3 + 3.0 * K2 / 2, 3 + 6 * K2 / 2 + 3.0 * T2 / 2
    assert K.ravel() == pytest.approx([K1, K2, K3])
    assert Theta.ravel() == pytest.approx([T1, T2, T3])


def test_the_step_has_k_but_no_theta():
    net = ww.MLP([2, 8, 1], "step")
    assert float(ww.theory(net, [[1.0, 1.0]], tensors=["K"])["K"][1, 0, 0]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"step, which jumps at z = 0.*tensors=\['K'\]"):
        ww.theory(net, [[1.0, 1.0]])


@pytest.mark.full
def test_a_warning_says_when_accuracy_is_not_reached():
    net = ww.MLP([2, 8, 1], lambda z: jnp.sin(1500 * z) + z)
    with pytest.warns(ww.errors.AccuracyWarning, match="estimated relative error"):
        ds = ww.theory(net, [[1.0, 0.0], [1.0, 0.15]])
    assert ds.attrs["numerical_error"] > 1e-9


@pytest.fixture
def accelerator(monkeypatch):
    """The route of an accelerator, on a processor."""
    for module in ("devices", "flow.kernels.kernel_flow", "experiments.programme", "readers.kernel_solvers"):
        monkeypatch.setattr(f"widthwise.{module}.on_accelerator", lambda: True)
    monkeypatch.setattr(infinite, "SIDES", {"gpu": (8, 16)})
    monkeypatch.setattr(infinite, "MANY_INPUTS", {"gpu": 16})


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh", ["relu", "tanh"]])
def test_an_accelerator_gives_the_same_kernels_on_the_host_or_left_there(activation, device, request):
    net = ww.MLP([3, 16, 16, 1], activation, C_b=0.1, C_W=1.5)
    X = np.random.default_rng(4).normal(size=(37, 3))
    X[7], X[9] = X[2], -3.0 * X[3]
    expected, cross = kernel_flow(net, X), kernel_flow(net, X[:5], X)
    request.getfixturevalue("accelerator")
    found, part = kernel_flow(net, X, device=device), kernel_flow(net, X[:5], X, last_only=True, device=device)
    for one, other in ((found.K, expected.K), (found.Theta, expected.Theta), (part.K, cross.K[-1:])):
        assert isinstance(one, jax.Array) == device
        assert np.abs(np.asarray(one) - other).max() < 1e-12 * np.abs(other).max()


def test_an_accelerator_sums_networks_where_it_observes_them(request):
    net, X = ww.MLP([3, 8, 8, 1], "tanh", C_W=1.5), np.random.default_rng(5).normal(size=(2, 3))
    expected = ww.measure(net, X, networks=90, statistics=["K", "V", "H1"], seed=3)
    request.getfixturevalue("accelerator")
    found = ww.measure(net, X, networks=90, statistics=["K", "V", "H1"], seed=3, batch=32)
    for name in expected:
        scale = np.abs(expected[name]).max()
        assert np.abs(found[name] - expected[name]).max() < 1e-9 * scale, name


def test_an_accelerator_solves_without_bringing_the_kernel_to_the_host(request):
    X = np.random.default_rng(6).normal(size=(40, 3))
    y = np.sin(X[:, :1])
    models = [ww.NNGPRegressor(activation="erf", noise=0.1, solver=solver) for solver in ("cholesky", "cg")]
    expected = [model.fit(X, y).predict(X[:7], return_std=True) for model in models]
    request.getfixturevalue("accelerator")
    for model, (mean, std) in zip(models, expected, strict=True):
        again = model.fit(X, y)
        assert np.allclose(again.predict(X[:7], return_std=True), (mean, std), rtol=1e-6)
    assert isinstance(models[0]._solver.process.factor, jax.Array)
    with pytest.raises(ww.errors.SingularKernel, match="rows 0 and 1 that coincide"):
        ww.NNGPRegressor(noise=0.0, solver="cholesky").fit(X[[0, 0, 1]], y[[0, 0, 1]])


def test_kernels_left_on_the_device_are_arrays_of_jax():
    X = np.random.default_rng(7).normal(size=(5, 3))
    there, here = (ww.theory(deep("relu"), X, device=device) for device in (True, False))
    assert isinstance(there["K"].data, jax.Array)
    assert np.allclose(there["Theta"], here["Theta"], rtol=1e-13)
    with pytest.raises(ww.errors.InvalidInput, match="device: got True with order=1; expected True or False"):
        ww.theory(deep("tanh"), X, order=1, device=True)
