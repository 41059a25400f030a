"""Theory §7: susceptibilities, fixed points, critical points and why there may be none."""

import math
import pickle
import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from user_activations import defect, elu, mish, softsign

import widthwise as ww
from widthwise.criticality.asymptotic_laws import asymptotics
from widthwise.criticality.critical import critical
from widthwise.criticality.depth_width import optimal_aspect_ratio
from widthwise.criticality.kernel_fixed_points import correlation_length, fixed_points, kernel_map, susceptibilities
from widthwise.criticality.learning_rates import power_law_rates
from widthwise.errors import DivergentMoment, InvalidInput, NotCritical, NotDifferentiable

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
    assert correlation_length(-math.exp(-0.25)) == pytest.approx(4.0)


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
    assert point.every_K == math.isnan(point.K_star) == (universality == "scale-invariant")
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
        (
            ww.activation(lambda z: jnp.clip(z, -1, 1), kinks=[-1.0, 1.0], name="hard tanh"),
            r"K\* = 0 \(C_b = 0, C_W = 1\) is marginal to all orders",
            "C_W = 1, where χ_∥ = χ_⊥ = 1 for small kernels",
        ),
    ],
    ids=["sigmoid", "softplus", "step", "quadratic", "sinh", "cubic term", "zero", "constant", "root", "hard tanh"],
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
