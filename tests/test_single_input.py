"""One input through very deep networks: against the route of all inputs, known laws, and sizes past float64."""

import math
import time

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import widthwise as ww
from widthwise.errors import DivergentMoment, InvalidInput, NotDifferentiable, UnknownName
from widthwise.flow.one_input.deep_flow import existing
from widthwise.flow.one_input.single_expectations import ladder, pair, single_moments
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.results.theory import single_input
from widthwise.tensors import CORRECTIONS, TENSORS

DEPTH = 100_000
X = [0.7, -1.2, 0.4]
VARIED = {
    "C_b": [0.1, 0.0, 0.2, 0.05, 0.1, 0.3],
    "C_W": [1.0, 1.6, 1.1, 1.9, 0.8, 1.4],
    "lambda_b": [0.2, 0.4, 0.0, 0.1, 0.3, 0.5],
    "lambda_W": [1.0, 0.3, 0.7, 0.0, 0.5, 0.2],
}
WIDTHS = [3, 7, 11, 6, 13, 9, 2]


def deep(activation, depth=DEPTH, **hyper) -> ww.MLP:
    return ww.MLP([3] + [100] * (depth - 1) + [1], activation, **hyper)


def of_K(K: float, features: int = 3) -> np.ndarray:
    """An input with x·x/n_0 = K."""
    return np.full(features, math.sqrt(K))


def distance(net: ww.MLP, x, omit=frozenset()) -> float:
    """The largest difference from the route of all inputs, of K, Θ and every ratio, beside max(1, largest ratio)."""
    ds, wanted = single_input(net, x), existing(net.activation)
    reference = finite_flow(net, np.atleast_2d(np.asarray(x, float)), wanted, omit=omit)
    K, Theta = reference.K[:, 0, 0], reference.Theta[:, 0, 0]
    worst = max(np.abs(ds["K"] / K - 1.0).max().item(), np.abs(ds["Theta"] / Theta - 1.0).max().item())
    for name in wanted:
        i, j = TENSORS[name].scale
        expected = reference.tensors[name].reshape(net.depth) / (K**i * Theta**j)
        found = ds[f"{name}_ratio"].values
        worst = max(worst, float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max())))
    return worst


@pytest.mark.parametrize("activation", ["tanh", "gelu", "sin", "swish", "erf", "relu", "leaky_relu(0.3)", "linear"])
def test_the_deep_route_equals_the_route_of_all_inputs(activation):
    net = ww.MLP(WIDTHS, activation, **VARIED)
    assert distance(net, X) < 1e-12
    if activation == "tanh":  # a reference with one term left out, or another C_W, is told apart
        for term in (("V", "V"), ("T", "Q mirrored")):
            assert distance(net, X, omit=frozenset([term])) > 1e-6
        assert np.abs(single_input(net.replace(C_W=1.5), X)["K"] / single_input(net, X)["K"] - 1.0).max() > 0.01


@pytest.mark.parametrize(
    ("function", "kinks", "missing"),
    [
        (lambda z: z / (1 + jnp.abs(z)), [0.0], "R"),
        pytest.param(lambda z: jnp.clip(z, -1.0, 1.0), [-1.0, 1.0], "PQRSTU", marks=pytest.mark.full),
    ],
    ids=["softsign", "hard tanh"],
)
def test_kinks_that_leave_some_derivatives_are_integrated_by_panels(function, kinks, missing):
    net = ww.MLP([3, 7, 11, 6], ww.activation(function, kinks=kinks), C_b=0.1, C_W=1.4)
    assert distance(net, X) < 1e-12
    assert {name for name in CORRECTIONS if f"{name}_ratio" not in single_input(net, X)} == set(missing)


def test_a_saturated_activation_agrees_with_multiple_precision():
    net = ww.MLP([3, 8, 8, 1], "tanh", C_b=0.1, C_W=1e4)
    ds = single_input(net, X, tensors=["V", "S"])
    K, Theta = mpmath.mpf(ds["K"].values[0]), mpmath.mpf(ds["Theta"].values[0])

    def mean(f):
        ends = [2.0**k for k in range(-1, 12)]
        density = 2 / mpmath.sqrt(2 * mpmath.pi * K)
        return density * mpmath.quad(lambda z: f(mpmath.tanh(z)) * mpmath.exp(-z * z / (2 * K)), [0, *ends])

    V = 1e8 * (mean(lambda t: t**4) - mean(lambda t: t**2) ** 2)
    S = 1e8 * Theta**3 * mean(lambda t: 4 * t**2 * (1 - t * t) ** 4) + 1e4 * Theta**2 * mean(lambda t: (1 - t * t) ** 4)
    assert ds["V_ratio"].values[1] == pytest.approx(float(V) / ds["K"].values[1] ** 2, rel=1e-11)
    assert ds["S_ratio"].values[1] == pytest.approx(
        float(S) * ds["K"].values[1] / ds["Theta"].values[1] ** 3, rel=1e-11
    )


@pytest.mark.parametrize(
    ("activation", "C_W", "slope"),
    [("relu", 2.0, 5.0), ("linear", 1.0, 2.0), ("leaky_relu(0.3)", 2 / 1.09, 3 * 0.5 * (1 + 0.3**4) / 0.545**2 - 1)],
)
def test_scale_invariant_fluctuations_grow_by_the_same_amount_a_layer(activation, C_W, slope):
    """Theory §7: V = (l−1)(3A_4/A_2² − 1)K² at equal widths, and K stays where it is."""
    ds = single_input(deep(activation, C_W=C_W), X)
    layer = ds["layer"].values
    assert np.all(np.abs(ds["V_ratio"] - slope * (layer - 1)) <= 1e-12 * layer * slope * np.maximum(layer - 1, 1))
    assert np.abs(ds["K"] / ds["K"][0] - 1.0).max() < 1e-10
    assert all(np.isfinite(ds[name]).all() for name in ds.data_vars)
    # one layer of another width shows up: r is not one there
    widths = [3] + [100] * 9 + [200] + [100] * 9 + [1]
    other = single_input(ww.MLP(widths, activation, C_W=C_W), X, tensors="V")["V_ratio"]
    assert abs(other[-1].item() - slope * 19) > 0.1


def test_tanh_at_criticality_follows_its_power_laws_to_a_hundred_thousand_layers():
    """K ≈ 1/(2l); with K' = K(1−2K), χ_∥ = 1−4K the ratio v = V/K² obeys v' = 2 + v(1−4K), so v ≈ 2l/3."""
    net = deep("tanh", C_W=1.0)
    single_input(net, X)  # compiles
    start = time.process_time()
    ds = single_input(net, X)
    assert time.process_time() - start < 20.0
    assert 2 * DEPTH * ds["K"].values[-1] == pytest.approx(1.0, abs=1e-3)
    assert ds["V_ratio"].values[-1] / DEPTH == pytest.approx(2 / 3, abs=1e-3)
    assert ds["G1_ratio"].values[-1] / DEPTH == pytest.approx(-1 / 3, abs=1e-3)
    assert all(np.isfinite(ds[name]).all() for name in ds.data_vars)
    assert set(ds.data_vars) == {"K", "log_K", "Theta", "log_Theta"} | {f"{name}_ratio" for name in CORRECTIONS}
    wrong = single_input(net.replace(C_W=1.001), X, tensors="K")
    assert abs(2 * DEPTH * wrong["K"].values[-1] - 1.0) > 1.0


def test_a_kernel_far_below_the_smallest_float_keeps_its_ratios():
    """tanh at C_W = ½: past the first layers K halves each time and the network is linear, V/K² growing by two."""
    ds = single_input(deep("tanh", C_W=0.5), X)
    assert ds["K"].values[-1] == 0.0
    assert np.all(np.isfinite(ds["log_K"]))
    assert np.diff(ds["log_K"].values)[1000:] == pytest.approx(-math.log(2.0), abs=1e-10)
    assert np.diff(ds["V_ratio"].values)[1000:] == pytest.approx(2.0, rel=1e-9)
    assert all(np.isfinite(ds[name]).all() for name in ds.data_vars)
    assert ds["Theta"].values[-1] == pytest.approx(2.0)
    assert ds["B_ratio"].values[-1] == pytest.approx(1 / 3)  # B' = ¼(Θ² + B) with Θ = 2


def test_a_kernel_far_above_the_largest_float_keeps_its_ratios():
    """relu without biases does not know its own scale: V/K² is the same at C_W = 3 as at 2."""
    ds = single_input(deep("relu", C_W=3.0, lambda_b=0.0), X)
    layer = ds["layer"].values
    assert np.isinf(ds["K"].values[-1])
    expected = math.log(3.0 * np.dot(X, X) / 3) + (DEPTH - 1) * math.log(1.5)
    assert ds["log_K"].values[-1] == pytest.approx(expected, rel=1e-13)
    assert ds["V_ratio"].values == pytest.approx(5.0 * (layer - 1), rel=1e-12)
    assert ds["log_Theta"].values - ds["log_K"].values == pytest.approx(np.log(layer / 3.0), abs=1e-9)
    assert all(np.isfinite(ds[name]).all() for name in ds.data_vars if name not in ("K", "Theta"))


def test_gelu_at_its_critical_point_stays_there():
    """At the fixed point with χ_∥ = χ_⊥ = 1, V/K² grows by C_W² cov(σσ, σσ)/K² a layer and Θ by λ_b + λ_W⟨σσ⟩."""
    K = (3 + math.sqrt(17)) / 2
    closed = ww.activation("gelu").closed
    values, slopes = (float(closed.pair(p, p, K, K, K)) for p in (0, 1))
    C_W = 1.0 / slopes
    net = deep("gelu", C_W=C_W, C_b=K - C_W * values, lambda_b=0.3, lambda_W=0.7)
    ds = single_input(net, of_K((K - net.C_b[0]) / C_W))
    layer = ds["layer"].values
    assert np.abs(ds["K"] / K - 1.0).max() < 1e-6  # half-stable: rounding is not forgotten
    one = ds["V_ratio"].values[1]
    assert ds["V_ratio"].values[1:] / (layer[1:] - 1) == pytest.approx(one, rel=1e-5)
    growth = 0.3 + 0.7 * values
    assert ds["Theta"].values == pytest.approx(ds["Theta"].values[0] + growth * (layer - 1), rel=1e-5)
    assert all(np.isfinite(ds[name]).all() for name in ds.data_vars)
    off = single_input(net.replace(C_b=net.C_b[0] * 0.9), X, tensors="K")["K"].values[-1]
    assert abs(off / K - 1.0) > 0.1


def test_hyperparameters_may_change_a_hundred_thousand_times():
    rng = np.random.default_rng(3)
    net = deep("relu", C_W=rng.uniform(1.5, 2.5, DEPTH), lambda_W=rng.uniform(0.0, 1.0, DEPTH))
    ds = single_input(net, X, tensors=["V", "B"], layers="last")
    assert ds.sizes == {"layer": 1}
    assert ds["layer"].item() == DEPTH
    expected = math.log(np.dot(X, X) / 3) + np.sum(np.log(net.C_W)) - (DEPTH - 1) * math.log(2.0)
    assert ds["log_K"].item() == pytest.approx(expected, abs=1e-8)


def test_small_inputs_are_seen_through_the_tangent_of_the_activation():
    for tiny in (1e-6, 1e-140, 1e-200):
        ds = single_input(deep("tanh", 6, C_W=1.0, lambda_b=0.0), np.array(X) * tiny)
        assert ds["V_ratio"].values == pytest.approx(2.0 * np.arange(6), abs=1e-9)
        assert all(np.isfinite(ds[name]).all() for name in ds.data_vars)
        expected = math.log(np.dot(X, X) / 3) + 2 * math.log(tiny)
        assert ds["log_K"].values == pytest.approx(expected, rel=1e-12)


def test_a_network_that_starts_from_nothing_is_defined_when_sigma_of_zero_is_not_zero():
    assert distance(ww.MLP([3, 7, 11, 6], "sigmoid", C_W=1.6), [1e-5, 0.0, 0.0]) < 1e-9
    small = single_input(ww.MLP([3, 7, 11, 6], "sigmoid", C_W=1.6), [1e-100, 0.0, 0.0])
    zero = single_input(ww.MLP([3, 7, 11, 6], "sigmoid", C_W=1.6), [0.0, 0.0, 0.0])
    for name in CORRECTIONS:
        assert zero[f"{name}_ratio"].values[1:] == pytest.approx(small[f"{name}_ratio"].values[1:], rel=1e-12)
    with pytest.raises(InvalidInput, match="zero at layer 1"):
        single_input(ww.MLP([3, 7, 11, 6], "tanh", C_W=1.6), [0.0, 0.0, 0.0])


def test_zero_output_weights_and_frozen_layers_have_their_limits():
    net = ww.MLP(WIDTHS, "tanh", C_W=[1, 1.5, 1.5, 1.1, 1.2, 0], C_b=[0, 0.1, 0.1, 0.2, 0.1, 0.3])
    assert distance(net, X) < 1e-12
    assert single_input(net, X)["T_ratio"].values[-1] > 0.01
    silent = single_input(net.replace(C_b=0.0), X)
    assert silent["K"].values[-1] == 0.0
    assert np.isnan(silent["V_ratio"].values[-1])
    assert np.isfinite(silent["B_ratio"]).all()
    frozen = single_input(net.replace(lambda_b=[0, 0, 0.3, 0.2, 0, 0], lambda_W=[0, 0, 0.2, 1, 0, 1]), X)
    assert np.isnan(frozen["A_ratio"].values).tolist() == [True, True, False, False, False, False]
    assert np.isfinite(frozen["V_ratio"]).all()


def test_a_kernel_out_of_reach_is_named_with_its_layer():
    with pytest.raises(DivergentMoment, match=r"explodes, K = 10\^320 at layer 1 of 6, where tanh cannot"):
        single_input(deep("tanh", 6), np.array(X) * 1e160, tensors="K")
    with pytest.raises(DivergentMoment, match=r"collapses, K = 10\^-\d+ at layer \d+ of 30, where quadratic"):
        single_input(deep("quadratic", 30, C_W=0.1), X, tensors="K")
    with pytest.raises(DivergentMoment, match=r"does not converge at kernel"):
        single_input(deep(ww.activation(jnp.exp, name="exp"), 3, C_b=4.0, C_W=0.01), X, tensors="V")


@pytest.mark.full
def test_growth_past_every_ladder_is_named_with_its_layer():
    with pytest.raises(DivergentMoment, match=r"explodes, K = \d.\d+e\+24 at layer 81 of 200, where swish"):
        single_input(deep("swish", 200, C_W=4.0), X, tensors="K")


def test_a_grid_serves_every_kernel_of_its_band():
    """Oscillating activations could fool one test kernel; ⟨sin²⟩ = (1 − e^{−2K})/2 is known for all."""
    K = np.geomspace(1e-3, 600.0, 150)
    rungs = ladder(ww.activation("sin"), K[-1])
    exact = -0.5 * np.expm1(-2.0 * K)
    share = np.asarray(jax.jit(jax.vmap(rungs.square))(K))
    assert share * K == pytest.approx(exact, rel=1e-11)
    slopes, error = single_moments(rungs, (pair(1, 1),), K, share)
    assert slopes[:, 0] * exact / K == pytest.approx(1.0 - exact, rel=1e-11)
    assert error < 1e-11


def test_only_what_exists_is_given_and_what_does_not_is_refused():
    step = single_input(ww.MLP([3, 5, 5, 1], "step", C_W=2.0), X)
    assert set(step.data_vars) == {"K", "log_K", "V_ratio", "G1_ratio"}
    relu = ww.MLP([3, 5, 5, 1], "relu", C_W=2.0)
    assert set(existing(relu.activation)) == {"V", "D", "A", "B", "F", "G1", "H1"}
    for name in ("P", "Q", "R", "S", "T", "U"):
        with pytest.raises(NotDifferentiable, match=f"tensors: got {name}"):
            single_input(relu, X, tensors=[name])
    with pytest.raises(NotDifferentiable, match="Ask for K alone"):
        single_input(ww.MLP([3, 5, 1], "step"), X, tensors=["Theta"])
    with pytest.raises(NotDifferentiable, match="Declare the kinks"):
        single_input(ww.MLP([3, 5, 1], lambda z: jnp.abs(z - 0.5)), X)


def test_the_dataset_is_labelled_and_comes_back_from_a_file(tmp_path):
    net = ww.MLP(WIDTHS, "relu", **VARIED)
    ds = single_input(net, [X], tensors=["V", "B"])
    assert set(ds.data_vars) == {"K", "log_K", "Theta", "log_Theta", "V_ratio", "B_ratio"}
    assert ds["width"].values.tolist() == WIDTHS[:-1]
    assert (ds["V_ratio"].attrs["K_power"], ds["V_ratio"].attrs["Theta_power"]) == (2, 0)
    assert ds["V_ratio"].attrs["long_name"] == "V/K² at one input (theory §4)"
    assert ww.network_of(ds) == net
    assert ww.load(ww.save(ds, tmp_path / "deep.nc")).identical(ds)
    assert single_input(net, X, tensors="K", layers="last").sizes == {"layer": 1}
    assert "Theta" not in single_input(net, X, tensors="V")


@pytest.mark.parametrize(
    ("x", "options", "kind", "message"),
    [
        ([X, X], {}, InvalidInput, r"x: got 2 inputs \(shape \(2, 3\)\); expected one input.*widthwise.theory"),
        ([1.0, math.nan, 0.0], {}, InvalidInput, r"x: got nan at index \(1\)"),
        ([1.0, 2.0], {}, InvalidInput, "x: got 2 features.*expected 3"),
        (3.0, {}, InvalidInput, r"x: got an array of shape \(\)"),
        (X, {"tensors": ["W"]}, UnknownName, "tensors: got 'W'; expected one of"),
        (X, {"tensors": []}, InvalidInput, "tensors: got an empty list"),
        (X, {"layers": "lst"}, UnknownName, "Did you mean 'last'?"),
    ],
)
def test_bad_input_is_refused_with_a_reason(x, options, kind, message):
    net = ww.MLP(WIDTHS, "relu")
    with pytest.raises(kind, match=message):
        single_input(net, x, **options)
    with pytest.raises(InvalidInput, match="net: got str"):
        single_input("relu", X)
