"""Theory §7: susceptibilities, fixed points, critical points, exponents, learning rates, phases."""

import math
import pickle
import re
import subprocess
import sys
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widthwise as ww
from widthwise.criticality.asymptotics import asymptotics, exact_flow
from widthwise.criticality.critical import critical
from widthwise.criticality.depth_width import depth_width, mutual_information, optimal_aspect_ratio
from widthwise.criticality.exponents import growth_laws
from widthwise.criticality.fixed_points import fixed_points
from widthwise.criticality.labelled import phase_diagram
from widthwise.criticality.learning_rates import equalise, largest_stable_step, layer_shares, power_law_rates
from widthwise.criticality.phase_diagram import critical_line, phase_grid
from widthwise.criticality.susceptibilities import correlation_length, kernel_map, susceptibilities
from widthwise.criticality.tuning import make_critical, shaped
from widthwise.errors import DivergentMoment, InvalidInput, NotCritical, NotDifferentiable
from widthwise.results.single_input import single_input

DEEP = 100_000
softsign = ww.activation(lambda z: z / (1 + jnp.abs(z)), kinks=[0.0], name="softsign")
elu = ww.activation(jax.nn.elu, kinks=[0.0], name="elu")


def mish(z):
    return z * jnp.tanh(jax.nn.softplus(z))


def defect(activation, point) -> float:
    """How far a point is from K = g(K), χ_∥ = χ_⊥ = 1, by the library's other route to Gaussian expectations."""
    K = point.K_star

    def mean(p, q):
        return float(ww.expectation(activation, K, orders=(p, q)).value)

    g = point.C_b + point.C_W * mean(0, 0)
    chi_perp = point.C_W * mean(1, 1)
    chi_parallel = chi_perp + point.C_W * mean(0, 2)
    return max(abs(g / K - 1.0), abs(chi_perp - 1.0), abs(chi_parallel - 1.0))


# --- susceptibilities and fixed points -------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "gelu", "swish", softsign, mish])
def test_susceptibilities_agree_with_two_point_expectations(activation):
    K = np.array([0.01, 0.7, 5.0, 60.0])
    chi = susceptibilities(activation, K, C_W=1.7)
    slope = ww.expectation(activation, K, orders=(1, 1)).value
    curvature = ww.expectation(activation, K, orders=(0, 2)).value
    assert np.abs(chi.chi_perp - 1.7 * slope).max() < 1e-12
    assert np.abs(chi.chi_parallel - 1.7 * (slope + curvature)).max() < 1e-11
    step = 1e-4 * K
    upper, lower = (susceptibilities(activation, K + s, C_W=1.7).chi_perp for s in (step, -step))
    assert np.abs(chi.h / (0.25 * (upper - lower) / step) - 1.0).max() < 1e-5
    assert np.abs(chi.h / (0.5 * (upper - lower) / step) - 1.0).max() > 0.4  # without the ½ of h it does not agree


def test_derivative_of_the_flow_is_chi_parallel():
    K, step = np.geomspace(1e-3, 100, 9), 1e-5
    g = [kernel_map("gelu", K * (1 + s), 0.3, 1.4) for s in (step, -step)]
    assert np.allclose((g[0] - g[1]) / (2 * step * K), susceptibilities("gelu", K, 1.4).chi_parallel, rtol=1e-8)


def test_limits_at_zero_are_continuous():
    for activation in ("tanh", "swish", "softplus"):
        at, near = (susceptibilities(activation, K) for K in (0.0, 1e-9))
        assert all(abs(a - b) < 1e-6 for a, b in zip(at, near, strict=True))


@pytest.mark.parametrize(
    ("activation", "C_b", "C_W"),
    [("tanh", 0.0, 2.0), ("tanh", 0.05, 1.5), ("gelu", 0.1, 1.8), ("swish", 0.5, 1.99), ("softplus", 0.0, 1.5),
     (softsign, 0.0, 3.0), ("leaky_relu(0.3)", 0.4, 1.2)],
)  # fmt: skip
def test_iterating_the_flow_ends_at_the_fixed_point_that_is_predicted(activation, C_b, C_W):
    points = fixed_points(activation, C_b, C_W)
    assert len(points) >= 1
    for point in points:
        assert abs(float(kernel_map(activation, point.K, C_b, C_W)) - point.K) <= 1e-12 * max(point.K, 1e-300)
    for start in (0.03, 30.0):
        K, end = start, points.reached_from(start)
        assert end is not None
        for _ in range(4000):
            K = float(kernel_map(activation, K, C_b, C_W))
        assert pytest.approx(end.K, rel=1e-3) == K
        wrong = [p.K for p in points if p is not end]
        assert all(abs(K / other - 1.0) > 0.01 for other in wrong if other)


def test_every_fixed_point_is_found_and_half_stable_ones_are_recognised():
    point = critical("gelu")
    stabilities = [p.stability for p in fixed_points("gelu", point.C_b, point.C_W)]
    assert stabilities == ["stable", "half-stable from above"]
    found = fixed_points("swish", *_values(critical("swish")))  # two fixed points two per cent apart
    assert [p.stability for p in found] == ["half-stable from below", "stable"]
    # a little more bias and the pair is gone or parted: it is a tangency
    assert "half-stable" not in str(fixed_points("gelu", point.C_b * 1.001, point.C_W))
    assert fixed_points("relu", 0.0, 2.0).every_K
    assert not fixed_points("relu", 0.1, 2.0).points
    assert fixed_points("relu", 0.1, 2.0).runaway
    assert pytest.approx(0.2) == fixed_points("relu", 0.1, 1.0)[0].K
    assert fixed_points("relu", 0.0, 2.1)[0].stability == "unstable"
    assert correlation_length(math.exp(-0.25)) == pytest.approx(4.0)


def _values(point):
    return point.C_b, point.C_W


@pytest.mark.parametrize(("C_b", "C_W", "layer"), [(0.1, 1.2, 60), (0.3, 0.9, 10)])
def test_nearby_inputs_approach_each_other_at_the_predicted_rate(C_b, C_W, layer):
    """Off critical, in the ordered phase, 1 − ρ of two inputs falls like e^(−l/ξ_⊥)."""
    net = ww.MLP([2, *[8] * 79, 1], "erf", C_b=C_b, C_W=C_W)
    K = ww.theory(net, [[1.0, 0.2], [0.7, 0.9]], tensors=["K"])["K"].values
    apart = 1.0 - K[:, 0, 1] / np.sqrt(K[:, 0, 0] * K[:, 1, 1])
    point = fixed_points("erf", C_b, C_W).reached_from(1.0)
    length = 10 / math.log(apart[layer - 1] / apart[layer + 9])
    assert length == pytest.approx(point.xi_perp, rel=0.02)
    assert abs(length / point.xi_parallel - 1.0) > 0.1
    assert abs(length / fixed_points("erf", C_b, 1.05 * C_W).reached_from(1.0).xi_perp - 1.0) > 0.02


# --- critical points -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "C_b", "C_W", "K_star", "universality"),
    [
        ("gelu", 0.17292239, 1.98305826, (3 + math.sqrt(17)) / 2, "half-stable K*>0"),
        ("swish", 0.55514317, 1.98800468, 14.32017362, "half-stable K*>0"),
        ("tanh", 0.0, 1.0, 0.0, "K*=0"),
        ("sin", 0.0, 1.0, 0.0, "K*=0"),
        ("erf", 0.0, math.pi / 4, 0.0, "K*=0"),
        ("relu", 0.0, 2.0, math.nan, "scale-invariant"),
        ("leaky_relu(0.1)", 0.0, 2 / 1.01, math.nan, "scale-invariant"),
        ("leaky_relu(0.7)", 0.0, 2 / 1.49, math.nan, "scale-invariant"),
        ("leaky_relu(-1)", 0.0, 1.0, math.nan, "scale-invariant"),
        ("linear", 0.0, 1.0, math.nan, "scale-invariant"),
    ],
)
def test_critical_points_are_those_of_the_theory(activation, C_b, C_W, K_star, universality):
    point = critical(activation)
    assert point.universality == universality
    for found, known in ((point.C_b, C_b), (point.C_W, C_W), (point.K_star, K_star)):
        assert found == pytest.approx(known, abs=6e-9, nan_ok=True)


def test_closed_forms_hold_to_ten_digits():
    assert critical("gelu").K_star == pytest.approx((3 + math.sqrt(17)) / 2, rel=1e-11)
    K = (3 + math.sqrt(17)) / 2
    slope = float(ww.expectation("gelu", K, orders=(1, 1), method="closed").value)
    assert pytest.approx(1 / slope, rel=1e-12) == critical("gelu").C_W
    assert pytest.approx(math.pi / 4, rel=1e-14) == critical("erf").C_W
    swish = critical("swish")  # reference: quadrature and root finding with 25 digits
    assert swish.K_star == pytest.approx(14.3201736180257988, rel=1e-12)
    assert pytest.approx(1.98800467826949201, rel=1e-13) == swish.C_W
    assert swish.C_b == pytest.approx(0.55514317072153040, rel=1e-12)


@pytest.mark.parametrize("activation", ["gelu", "swish", mish])
def test_conditions_of_criticality_hold_by_another_route(activation):
    point = critical(activation)
    assert defect(activation, point) < 1e-10
    assert defect(activation, replace(point, C_W=point.C_W * (1 + 1e-6))) > 1e-7


@pytest.mark.parametrize(
    ("activation", "a", "k", "p"),
    [
        (jnp.arctan, -2.0, 1.0, 1.0),
        (softsign, -4 * math.sqrt(2 / math.pi), 2.0, 2.0),  # K' = K − 4√(2/π) K^{3/2}
        (elu, -math.sqrt(2 / math.pi), 2.0, 2.0),
        (lambda z: jnp.tanh(z + 0.2) - jnp.tanh(0.2), None, 1.0, None),
        (lambda z: z - z**5 / 10, -3.0, 0.5, 0.5),  # a_1 = 0: the next order decides
    ],
    ids=["arctan", "softsign", "elu", "shifted tanh", "fifth order"],
)
def test_activations_of_the_user_are_classified(activation, a, k, p):
    point = critical(activation)
    assert point.universality == "K*=0"
    assert (point.C_b, point.exponents["K"]) == (0.0, -k)
    if a is not None:
        assert point.details["a"] == pytest.approx(a, rel=1e-10)
        assert point.exponents["p_perp"] == pytest.approx(p, rel=1e-10)


def test_scale_invariance_is_recognised_without_declared_kinks():
    point = critical(lambda z: jnp.maximum(z, 0.2 * z))
    assert (point.universality, point.C_W) == ("scale-invariant", pytest.approx(2 / 1.04, rel=1e-14))


@pytest.mark.parametrize(
    ("activation", "condition", "nearest"),
    [
        ("sigmoid", r"needs C_b = −\(σ\(0\)/σ'\(0\)\)² = -4 < 0.*⟨σσ''⟩ is negative", "subtract σ"),
        ("softplus", r"= -1.9218.* < 0.*⟨σσ''⟩ is positive at every kernel", "C_b ≥ 0"),
        ("step", r"⟨σ'²⟩ is infinite at every kernel: σ is not continuous", "erf"),
        ("quadratic", r"needs σ'\(0\) ≠ 0", "Nearest: K ="),
        (jnp.sinh, r"repels: .* a_1 = 1 > 0", "about 1/K"),
        (lambda z: z + z**3, r"repels: .* a_1 = 6 > 0", "C_W = 1"),
        (lambda z: 0.0 * z, "identically zero", "give it a slope"),
        (lambda z: 0.0 * z + 2.0, "constant, 2", "give it a slope"),
        (
            ww.activation(lambda z: jnp.sign(z) * jnp.sqrt(jnp.abs(z)), kinks=[0.0], name="root"),
            "no finite slope, at z = 0",
            "relu",
        ),
    ],
    ids=["sigmoid", "softplus", "step", "quadratic", "sinh", "cubic term", "zero", "constant", "root"],
)
def test_activations_without_a_critical_point_are_told_why(activation, condition, nearest):
    with pytest.raises(NotCritical) as caught:
        critical(activation)
    error = caught.value
    assert re.search(condition, error.condition), error.condition
    assert nearest in error.nearest
    assert isinstance(error, ValueError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_bad_activations_and_numbers_are_refused():
    with pytest.raises(DivergentMoment, match="grows too fast"):
        critical(lambda z: z * jnp.exp(z**4 / 100))
    with pytest.raises(NotDifferentiable, match="Declare the kinks"):
        critical(lambda z: z / (1 + jnp.abs(z)))
    with pytest.raises(InvalidInput, match="K: got -1; expected finite kernels"):
        susceptibilities("tanh", [1.0, -1.0])
    with pytest.raises(InvalidInput, match="C_W: got -1.0"):
        fixed_points("tanh", 0.0, -1.0)
    with pytest.raises(InvalidInput, match="near: got"):
        critical("gelu", near=-1.0)
    for question in (asymptotics, optimal_aspect_ratio, lambda a: power_law_rates(a, 3)):
        with pytest.raises(NotCritical, match="softplus"):
            question("softplus")
    with pytest.raises(InvalidInput, match="depth: got 0"):
        power_law_rates("tanh", 0)


# --- exponents -------------------------------------------------------------------------------------------------


def last_over_law(point, net, x, laws, names=None):
    """Exact ratio at the output over its law, and the local exponent over the last factor of two in depth."""
    ds, L = single_input(net, x, tensors=names), net.depth
    found = {}
    for name, coefficient in laws.coefficient.items():
        if f"{name}_ratio" in ds:
            x_L, x_half = (ds[f"{name}_ratio"].values[layer - 1] for layer in (L, L // 2))
            found[name] = (x_L / (coefficient * L ** laws.exponent[name]), math.log2(x_L / x_half))
    return ds, found


def test_tanh_follows_every_law_to_a_hundred_thousand_layers():
    point, laws = critical("tanh"), critical("tanh").laws()
    net = ww.MLP([1, *[100] * (DEEP - 1), 1], "tanh", C_W=point.C_W)
    ds, found = last_over_law(point, net, [1.0], laws)
    assert set(found) == set("VDFABPQRT") | {"G1", "H1"}
    for name, (share, exponent) in found.items():
        assert share == pytest.approx(1.0, abs=2e-3), name
        assert exponent == pytest.approx(laws.exponent[name], abs=2e-3), name
    K = ds["K"].values
    assert 2 * DEEP * K[-1] == pytest.approx(1.0, abs=1e-3)  # K ≈ 1/(−a_1 l)
    assert math.log2(K[-1] / K[DEEP // 2 - 1]) == pytest.approx(point.exponents["K"], abs=1e-3)
    # a law with another exponent p_⊥ is told apart
    wrong = growth_laws({**point.details, "p": 1.2}, "uniform", 1.0, 1.0, 1.0).coefficient["B"]
    assert abs(found["B"][0] * laws.coefficient["B"] / wrong - 1.0) > 0.05


def test_a_kinked_second_derivative_makes_the_kernel_fall_with_the_square_of_depth():
    point = critical(softsign)
    net = ww.MLP([1, *[100] * 19_999, 1], softsign, C_W=point.C_W)
    ds, found = last_over_law(point, net, [1.0], point.laws(), ["V", "B", "F"])
    K = ds["K"].values
    assert K[-1] * (0.5 * 4 * math.sqrt(2 / math.pi) * 20_000) ** 2 == pytest.approx(1.0, abs=1e-3)
    assert math.log2(K[-1] / K[9_999]) == pytest.approx(-2.0, abs=2e-3)
    assert all(share == pytest.approx(1.0, abs=2e-3) for share, _ in found.values())


def test_equalised_rates_have_laws_of_their_own():
    point, L = critical("tanh"), 20_000
    layer = np.arange(1.0, L + 1)
    net = ww.MLP([1, *[100] * (L - 1), 1], "tanh", C_W=1.0, lambda_b=1 / layer, lambda_W=1.0)
    laws = point.laws("equal", K=0.5)  # weights of layer l see 1/(2l), biases 1/l
    _, found = last_over_law(point, net, [1.0], laws, ["B", "D", "A"])
    assert all(share == pytest.approx(1.0, abs=5e-3) for share, _ in found.values())
    assert laws.coefficient["B"] != pytest.approx(point.laws().coefficient["B"], rel=0.1)


@pytest.mark.full
@pytest.mark.parametrize("rates", ["uniform", "equal"])
def test_an_activation_without_symmetry_follows_every_law(rates):
    """σ''(0) ≠ 0: S grows and U tends to a constant, which both vanish for odd activations."""

    def sigma(z):
        return jnp.tanh(z + 0.2) - jnp.tanh(0.2)

    point, L = critical(sigma), 20_000
    p, a = point.details["p"], point.details["a"]
    layer = np.arange(1.0, L + 1)
    lambda_b, lambda_W = (layer**-p, layer ** (1 - p)) if rates == "equal" else (1.0, 1.0)
    net = ww.MLP([1, *[100] * (L - 1), 1], sigma, C_W=point.C_W, lambda_b=lambda_b, lambda_W=lambda_W)
    laws = point.laws(rates, K=-1 / a)
    _, found = last_over_law(point, net, [1.0], laws)
    assert set(found) == set("VDFABPQRSTU") | {"G1", "H1"}
    for name, (share, exponent) in found.items():
        assert share == pytest.approx(1.0, abs=5e-3), name
        assert exponent == pytest.approx(laws.exponent[name], abs=5e-3), name


def test_at_a_half_stable_point_some_tensors_outgrow_their_scale():
    """h ≠ 0 there: D/(KΘ) and G1/K grow like l², A/Θ² and H1/Θ like l³."""
    point, L = critical("gelu"), 20_000
    net = ww.MLP([1, *[100] * (L - 1), 1], "gelu", C_b=point.C_b, C_W=point.C_W)
    x = math.sqrt((point.K_star - point.C_b) / point.C_W)
    laws = point.laws()
    _, found = last_over_law(point, net, [x], laws)
    assert {"D", "A", "G1", "H1", "Q", "R", "S", "T", "U", "P", "V", "B", "F"} == set(found)
    for name, (share, exponent) in found.items():
        assert exponent == pytest.approx(laws.exponent[name], abs=0.02), name
        assert share == pytest.approx(1.0, abs=0.02), name
    assert (laws.exponent["D"], laws.exponent["A"], laws.exponent["G1"]) == (2.0, 3.0, 2.0)


def test_scale_invariant_laws_depend_on_the_learning_rates():
    net = ww.MLP([1, *[100] * 3999, 1], "relu", C_W=2.0, lambda_b=0.5, lambda_W=1.0)
    laws = critical("relu").laws(lambda_b=0.5, lambda_W=1.0, K=2.0)
    _, found = last_over_law(critical("relu"), net, [1.0], laws)
    assert all(share == pytest.approx(1.0, abs=2e-3) for share, _ in found.values())
    assert set(found) >= set("VDFAB")
    other = critical("relu").laws(lambda_b=0.0, lambda_W=1.0, K=2.0)
    assert other.coefficient["D"] != pytest.approx(laws.coefficient["D"], rel=0.05)


def test_the_logarithm_improves_the_law_of_K_by_orders_of_magnitude():
    assert asymptotics("sin").logarithm == pytest.approx(1 / 3, rel=1e-9)
    law = asymptotics("tanh")
    assert law.logarithm == pytest.approx(-5 / 6, rel=1e-9)
    constant = law.constant_of()
    K, _ = exact_flow(law, 1.0, 4000, ())
    layers = np.array([100, 1000])
    leading = np.abs(K[layers - 1] / law.leading(layers) - 1)
    corrected = np.abs(K[layers - 1] / law.corrected(layers, constant) - 1)
    assert np.all(corrected < 0.02 * leading)
    start = law.holds_from(0.01, max_depth=4000)
    off = np.abs(K / law.leading(np.arange(1, 4001)) - 1)
    assert np.all(off[start - 1 :] <= 0.01)
    assert off[start - 2] > 0.01
    with pytest.raises(InvalidInput, match="not reached by K within 60 layers"):
        law.holds_from(1e-4, max_depth=60)
    with pytest.raises(InvalidInput, match="accuracy: got 2"):
        law.holds_from(2)


# --- learning rates, depth and width ---------------------------------------------------------------------------


def test_shares_of_the_layers_sum_to_the_neural_tangent_kernel():
    X = np.random.default_rng(3).normal(size=(5, 3))
    net = ww.MLP([3, 40, 30, 20, 2], "swish", C_b=0.1, C_W=[1.0, 1.5, 1.2, 0.9], lambda_b=[0.1, 0.3, 0.2, 0.7],
                 lambda_W=[0.5, 1.5, 1.0, 0.3])  # fmt: skip
    Theta = ww.theory(net, X)["Theta"].values[-1]
    assert layer_shares(net, X).total == pytest.approx(np.trace(Theta) / 5, rel=1e-12)
    assert largest_stable_step(net, X) == pytest.approx(ww.max_learning_rate(net, X), rel=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "gelu", softsign])
def test_equalised_rates_are_the_power_laws_of_the_class_at_large_depth(activation):
    point, L = critical(activation), 400
    x = math.sqrt((point.K_star - point.C_b) / point.C_W) if point.K_star else 1.0
    net = ww.MLP([1, *[100] * (L - 1), 1], activation, C_b=point.C_b, C_W=point.C_W)
    rates = equalise(net, [[x]])
    assert np.ptp(rates.after.layers) < 1e-12
    assert rates.after.total == pytest.approx(2.0)
    for found, law in zip((rates.lambda_b, rates.lambda_W), power_law_rates(activation, L), strict=True):
        ratio = np.asarray(found)[100:] / law[100:]
        assert np.ptp(np.log(ratio)) < 0.06
    # five per cent less C_W and the same rates differ exponentially from layer to layer
    off = equalise(net.replace(C_W=0.95 * point.C_W), [[x]])
    ratio = np.asarray(off.lambda_b)[100:] / power_law_rates(activation, L)[0][100:]
    assert np.ptp(np.log(ratio)) > 1.0


def test_depth_and_width_give_the_fluctuations_of_single_input():
    net = ww.MLP([2, *[60] * 19, 1], "tanh", C_W=1.0)
    report = depth_width(net)
    ds = single_input(net, np.ones(2), layers="last")
    assert report.kernel_variance == pytest.approx(ds["V_ratio"].item() / 60, rel=1e-9)
    assert report.ntk_variance == pytest.approx((ds["A_ratio"] + 2 * ds["B_ratio"]).item() / 60, rel=1e-9)
    assert report.aspect_ratio == pytest.approx(19 / 60)
    assert report.fails_at == pytest.approx(1.5 * 60, rel=0.1)  # V/K² ≈ 2l/3


def information(kappa: float) -> float:
    """Mutual information of two outputs whose common variance is 1 ± √κ with probability ½ each, by quadrature."""
    z = np.linspace(-11, 11, 1401)
    densities = [np.exp(-0.5 * z * z / s) / np.sqrt(2 * np.pi * s) for s in (1 + kappa**0.5, 1 - kappa**0.5)]
    joint = 0.5 * sum(np.outer(p, p) for p in densities)
    marginal = 0.5 * sum(densities)
    return float(np.sum(joint * np.log(joint / np.outer(marginal, marginal)))) * (z[1] - z[0]) ** 2


def test_mutual_information_and_its_maximum_follow_from_the_fluctuating_kernel():
    third = [(information(k) / k**2 - 1 / 8) / k for k in (0.005, 0.01)]
    assert 2 * third[0] - third[1] == pytest.approx(-26 / 48, rel=0.02)  # −(20 + 3·2)/48
    assert abs((2 * third[0] - third[1]) / (-20 / 48) - 1) > 0.2
    best = 4 / 26
    assert mutual_information(best) > max(mutual_information(best * s) for s in (0.99, 1.01))
    assert optimal_aspect_ratio("tanh") == pytest.approx(best * 1.5, rel=1e-12)
    with pytest.raises(InvalidInput, match="at least two"):
        optimal_aspect_ratio("tanh", outputs=1)


# --- phases and tuning -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "gelu", "relu", softsign])
def test_phase_diagrams_agree_with_fixed_points_one_by_one(activation):
    grid = phase_grid(activation, np.linspace(0.3, 3.0, 5), np.linspace(0.0, 0.6, 4))
    for i, C_b in enumerate(grid.C_b):
        for j, C_W in enumerate(grid.C_W):
            end = fixed_points(activation, C_b, C_W).reached_from(C_b + C_W)
            if end is None:
                assert grid.names[i, j] == "divergent"
                continue
            assert grid.K_star[i, j] == pytest.approx(end.K, rel=1e-7, abs=1e-12)
            assert grid.chi_perp[i, j] == pytest.approx(end.chi_perp, abs=1e-7)
            assert grid.names[i, j] == ("ordered" if end.chi_perp < 1 else "chaotic")


def test_a_large_phase_diagram_takes_seconds():
    start = time.perf_counter()
    ds = phase_diagram("tanh", np.linspace(0.1, 3.0, 200), np.linspace(0.0, 1.0, 200))
    assert time.perf_counter() - start < 10.0
    assert ds["phase"].shape == (200, 200)
    assert set(np.unique(ds["phase"])) == {"ordered", "chaotic"}
    # without biases the phases meet at C_W = 1, and the ordered phase has K* = 0
    row = ds.sel(C_b=0.0)
    assert np.all((row["phase"] == "ordered") == (row["C_W"] < 1.0))
    assert np.all(row["K_star"].where(row["C_W"] < 1.0, 0.0) == 0.0)
    assert phase_grid("relu", [2.0], [0.0]).names.item() == "critical"


def test_the_critical_line_is_where_chi_perp_is_one():
    K, C_W, C_b = critical_line("gelu", 60)
    for k, w, b in list(zip(K, C_W, C_b, strict=True))[::20]:
        point = next(p for p in fixed_points("gelu", b, w) if abs(p.K / k - 1) < 1e-6)
        assert point.chi_perp == pytest.approx(1.0, abs=1e-9)
        assert point.stability == "stable"
    assert K.min() > critical("gelu").K_star  # the line ends at the critical point
    assert critical("gelu").K_star > 0.8 * K.min()


def test_shifts_and_leaks_make_activations_critical():
    shape = make_critical("sigmoid", unit=True)
    point = critical(shape.activation)
    assert (point.universality, point.C_W, point.details["a"]) == ("K*=0", pytest.approx(1.0), pytest.approx(-1.0))
    soft = make_critical("softplus", K_star=2.0, unit=True)
    again = critical(soft.activation, near=1.0)
    assert (again.C_W, again.K_star) == (pytest.approx(1.0, rel=1e-9), pytest.approx(1.0, rel=1e-9))
    assert again.C_b >= 0.0
    assert defect(soft.activation, again) < 1e-9
    leak = make_critical(jnp.sinh, vary="leak")
    assert critical(leak.activation).universality == "K*=0"
    with pytest.raises(NotCritical, match="no leak makes critical"):
        make_critical("softplus", vary="leak")
    with pytest.raises(InvalidInput, match="vary"):
        make_critical("tanh", vary="slope")
    assert shaped("relu", a=0.9, d=0.1)(jnp.asarray(-1.0)) == pytest.approx(-0.1)


def test_critical_is_quick_after_import():
    code = """
import time, widthwise as ww
from widthwise.criticality.critical import critical
start = time.perf_counter()
critical("swish")
print(time.perf_counter() - start)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert float(run.stdout) < 3.0  # under one on a machine of its own
