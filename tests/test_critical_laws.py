"""Theory §7: exponents, learning rates, depth against width, phases, tuning."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from user_activations import defect, softsign

import widthwise as ww
from widthwise.criticality.asymptotic_laws import asymptotics, exact_flow
from widthwise.criticality.critical import critical, growth_laws
from widthwise.criticality.depth_width import depth_width, mutual_information, optimal_aspect_ratio
from widthwise.criticality.kernel_fixed_points import fixed_points
from widthwise.criticality.learning_rates import equalise, largest_stable_step, layer_shares, power_law_rates
from widthwise.criticality.phase_diagram import critical_line, phase_diagram, phase_grid
from widthwise.criticality.tuning import make_critical, shaped
from widthwise.errors import InvalidInput, NotCritical
from widthwise.results.theory import single_input

DEEP = 100_000

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
    assert asymptotics("leaky_relu(0.5)").corrected([1, 9], x_square=5.0) == pytest.approx([8.0, 8.0])
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
    with pytest.raises(InvalidInput, match="outputs: got 1"):
        optimal_aspect_ratio("tanh", outputs=1)
    with pytest.raises(InvalidInput, match="kappa: got -1"):
        mutual_information(-1.0)


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


def test_a_large_phase_diagram_has_the_two_phases_on_their_sides():
    ds = phase_diagram("tanh", np.linspace(0.1, 3.0, 200), np.linspace(0.0, 1.0, 200))
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
