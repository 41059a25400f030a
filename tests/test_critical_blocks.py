"""Criticality and advice for residual and normalised networks (theory §7, §11, §12)."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import widthwise as ww
from widthwise.activations import resolve
from widthwise.criticality import depth_growth, equalise, fixed_points, optimal_aspect_ratio
from widthwise.criticality.blocks import BlockForm
from widthwise.criticality.critical import critical
from widthwise.criticality.deep_fluctuations import deep_fluctuations, variance_growth
from widthwise.criticality.depth_width import depth_width
from widthwise.criticality.learning_rates import layer_shares, network_flow
from widthwise.criticality.moments import profile
from widthwise.criticality.phase_diagram import critical_line, phase_grid
from widthwise.errors import InvalidInput, NoRule, NotCritical
from widthwise.flow.one_input.deep_flow import single_flow
from widthwise.flow.tensors.tensor_flow import finite_flow

GAMMAS = (0.0, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)
#: Growth of V/K² a block of relu on the critical line, from the closed form of cov(σ², σ²).
RELU = (5.00, 6.30, 6.50, 5.51, 2.54, 1.37, 0.29)


def relu_covariance(rho):
    """cov(σ(u)², σ(v)²) of relu at correlation ρ (theory §11)."""
    angle = np.arccos(np.clip(rho, -1.0, 1.0))
    mixed = 3.0 * np.sin(angle) * np.cos(angle) + (np.pi - angle) * (1.0 + 2.0 * np.cos(angle) ** 2)
    return mixed / (2.0 * np.pi) - 0.25


# --- critical points, phases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu"])
def test_without_a_skip_everything_is_as_it_was(activation):
    point, other = critical(activation), critical(activation, skip=0.0, norm=None)
    assert point.laws() == other.laws()
    assert point.details == other.details
    C_W, C_b = [0.8, 1.9, 2.3], [0.0, 0.1]
    one, two = phase_grid(activation, C_W, C_b), phase_grid(activation, C_W, C_b, skip=0.0)
    assert np.array_equal(one.K_star, two.K_star)
    assert np.array_equal(one.chi_perp, two.chi_perp)
    assert fixed_points(activation, 0.1, 0.7) == fixed_points(activation, 0.1, 0.7, skip=0.0)
    # the law of V that memory gives is the plain one where there is no memory
    tiny = critical(activation, skip=1e-9).laws().coefficient
    assert tiny["V"] == pytest.approx(point.laws().coefficient["V"], rel=1e-8)
    assert tiny["B"] == pytest.approx(point.laws().coefficient["B"], rel=1e-8)


def test_kernels_and_gradients_stay_on_the_critical_line_of_a_skip():
    point, gamma, blocks = critical("gelu", skip=0.9), 0.9, 6
    first = (point.K_star - 0.1) / 1.0
    rates = {"lambda_b": [1.0] + [0.0] * (blocks + 1), "lambda_W": 0.0}

    def followed(factor):
        C_W = [first, *[factor * point.C_W] * blocks, 1.0]
        net = ww.ResMLP(
            [1, *[8] * (blocks + 1), 1], "gelu", gamma, [0.1, *[factor * point.C_b] * blocks, 0.0], C_W, **rates
        )
        th = ww.theory(net, [[1.0]])
        return th["K"].values.ravel()[:-1], th["Theta"].values.ravel()[:-1]

    K, Theta = followed(1.0)
    assert np.abs(K / point.K_star - 1.0).max() < 1e-11
    assert np.abs(Theta - 1.0).max() < 1e-11
    # with the C's of a plain network they do not
    K, Theta = followed(1.0 / (1.0 - gamma**2))
    assert K[-1] > 2.0 * point.K_star
    assert Theta[-1] > 2.0


def test_normalised_critical_points_keep_gradients():
    for norm in (("rms", "pre", 1e-5), ("ln", "post", 1e-3)):
        point = critical("gelu", norm=norm)
        rates = {"lambda_b": [1.0, 0.0, 0.0, 0.0], "lambda_W": 0.0}
        net = ww.NormMLP([1, 8, 8, 8, 1], "gelu", [norm] * 3, [0.0, *[point.C_b] * 3], [1.0, *[point.C_W] * 3], **rates)
        th = ww.theory(net, [[1.0]])
        assert np.abs(th["K"].values - 1.0).max() < 1e-9
        assert np.abs(th["Theta"].values - 1.0).max() < 1e-9
    # C_b = C_W(⟨σ'²⟩ − ⟨σ²⟩) at unit variance
    point, m = critical("tanh", norm=("rms", "pre", 0.0)), profile(resolve("tanh")).moments(1.0)
    assert point.C_b == pytest.approx(point.C_W * float(m.slope - m.square), rel=1e-12)


def test_fixed_points_and_phases_of_a_skip_are_those_that_iteration_reaches():
    gamma, C_b, C_W = 0.8, 0.05, 0.6
    grid = phase_grid("tanh", [C_W], [C_b], skip=gamma)
    net = ww.ResMLP([1, *[8] * 61, 1], "tanh", gamma, C_b, C_W)
    flow = network_flow(net, np.ones((1, 1)))
    assert flow.K[60, 0] == pytest.approx(grid.K_star.item(), rel=1e-6)
    assert math.exp(flow.log_chi_perp[59, 0]) == pytest.approx(grid.chi_perp.item(), rel=1e-6)
    point = fixed_points("tanh", C_b, C_W, skip=gamma).reached_from(0.65)
    assert point.chi_perp == pytest.approx(grid.chi_perp.item(), rel=1e-8)
    ds = ww.phase_diagram("tanh", [C_W], [C_b], skip=gamma)
    assert ds["phase"].item() == grid.names.item() == "ordered"
    assert ds.attrs["skip"] == gamma


def test_critical_lines_of_skips_and_norms():
    K, C_W, C_b = critical_line("tanh", 50)
    _, with_skip, biases = critical_line("tanh", 50, skip=0.6)
    assert np.allclose(with_skip, 0.64 * C_W, rtol=1e-13)
    assert np.allclose(biases, 0.64 * C_b, rtol=1e-13)
    K, C_W, C_b = critical_line("gelu", 50, norm=("rms", "pre", 0.0))
    assert np.ptp(C_b / C_W) < 1e-12
    assert len(K) == 50
    found = phase_grid("gelu", C_W[[30]], C_b[[30]], norm=("rms", "pre", 0.0))
    assert found.chi_perp.item() == pytest.approx(1.0, abs=1e-9)
    assert found.K_star.item() == pytest.approx(K[30], rel=1e-8)


# --- growth of fluctuations ------------------------------------------------------------------------------------------


def test_growth_of_V_with_a_skip():
    for gamma, printed in zip(GAMMAS, RELU, strict=True):
        found = critical("relu", skip=gamma).laws().coefficient["V"]
        assert round(found, 2) == printed
        far = np.arange(1, 4000)
        summed = (2.0 * (1.0 - gamma**2)) ** 2 * (1.25 + 2.0 * relu_covariance(gamma**far).sum())
        assert found == pytest.approx(summed, rel=2e-6)
        linear = critical("linear", skip=gamma).laws().coefficient["V"]
        assert linear == pytest.approx(2.0 * (1.0 - gamma**4), rel=1e-12)
        # without the memory of neurons, a growth that real networks do not have
        assert gamma == 0.0 or abs(found / ((1.0 - gamma**2) * (5.0 - gamma**2)) - 1.0) > 0.3
    # (12 + 4 ln 2)(1 − γ²) as γ → 1
    close = 1.0 - 0.9999**2
    assert critical("relu", skip=0.9999).laws().coefficient["V"] / close == pytest.approx(
        12 + 4 * math.log(2), rel=3e-3
    )


def test_V_of_relu_after_l_blocks_is_the_double_sum():
    gamma, blocks = 0.7, 12
    C_W = 2.0 * (1.0 - gamma**2)
    net = ww.ResMLP([1, *[50] * (blocks + 1), 1], "relu", gamma, C_W=[2.0, *[C_W] * blocks, 2.0])
    place = np.arange(blocks)
    distance = np.abs(place[:, None] - place)
    assert deep_fluctuations(net).V[blocks] == pytest.approx(C_W**2 * relu_covariance(gamma**distance).sum(), rel=1e-6)


NETWORKS = {
    "residual": ww.ResMLP([1, *[64] * 4, 1], "gelu", [1.0, 0.7, 0.9], 0.1, 1.2, 0.3),
    "pre-norm": ww.ResMLP([1, *[64] * 4, 1], "gelu", [1.0, 0.7, 0.9], 0.1, 1.2, 0.3, norm="ln"),
    "normalised": ww.NormMLP([1, 64, 32, 32, 1], "gelu", [("rms", "post", 0.1), ("ln", "pre", 0.05), ("ln", "post", 0.1)],
                             0.1, 1.2, 0.3),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_fluctuations_are_those_of_order_one(name):
    net, one = NETWORKS[name], np.ones((1, 1))
    found, flow = deep_fluctuations(net), finite_flow(net, one, ("V", "A", "B"), last_only=True)
    scale = {"V": found.K[-1] ** 2, "A": found.Theta[-1] ** 2, "B": found.Theta[-1] ** 2}
    for tensor, size in scale.items():
        assert getattr(found, tensor)[-1] * size == pytest.approx(flow.tensors[tensor].item(), rel=1e-9)
    if name != "normalised":
        without = finite_flow(net, one, ("A",), last_only=True, omit=frozenset(("memory",)))
        assert abs(found.A[-1] * scale["A"] / without.tensors["A"].item() - 1.0) > 0.05


def test_a_plain_network_has_the_fluctuations_of_its_own_recursion():
    net = ww.MLP([1, 30, 60, 60, 1], "tanh", 0.1, 1.3)
    found, flow = deep_fluctuations(net), single_flow(net, np.ones(1), ("V", "A", "B"), True)
    for name in ("V", "A", "B"):
        assert np.allclose(getattr(found, name), flow.ratios[name], rtol=1e-11)


def test_branches_of_one_over_the_root_of_depth_keep_fluctuations_finite():
    def kernel_variance(blocks, branch):
        widths = [1, *[100] * (blocks + 1), 1]
        return depth_width(ww.ResMLP(widths, "relu", C_W=[1.0, *[2.0] * (blocks + 1)], branch=branch)).kernel_variance

    few, more, many = (kernel_variance(blocks, "1/sqrt(L)") for blocks in (8, 32, 128))
    assert abs(many - more) < 0.4 * abs(more - few) < 0.04 * many  # corrections of order 1/L
    assert kernel_variance(32, 1.0) > 3.0 * kernel_variance(8, 1.0)


def test_normalisation_tames_the_kernel_but_not_its_tangent_kernel():
    point = critical("gelu", norm="rms")
    net = ww.NormMLP([1, *[64] * 32, 1], "gelu", [("rms", "pre", 1e-5)] * 32, [0.0, *[point.C_b] * 32],
                     [1.0, *[point.C_W] * 32], 1 / 32, 1 / 32)  # fmt: skip
    found = deep_fluctuations(net)
    assert found.V[1:] == pytest.approx(point.laws().coefficient["V"], rel=1e-3)
    assert found.V[-1] == pytest.approx(3.1, abs=0.05)
    assert found.A[31] == pytest.approx(40.0, rel=0.04)  # table of theory: K¹ differs
    # B ≈ ⟨σ'⁴⟩/⟨σ'²⟩² l/3
    assert (found.B[32] - found.B[16]) / 16 == pytest.approx(point.laws().coefficient["B"], rel=0.03)
    assert point.exponents["V"] == 0.0
    assert point.exponents["A"] == 1.0


def test_the_aspect_ratio_grows_as_the_skip_approaches_one():
    assert optimal_aspect_ratio("relu", skip=0.0) == optimal_aspect_ratio("relu")
    ratio = [optimal_aspect_ratio("relu", skip=math.sqrt(1.0 - share)) * share for share in (0.01, 0.001)]
    assert ratio[1] == pytest.approx(4.0 / 26.0 / (12 + 4 * math.log(2)), rel=0.02)
    assert variance_growth(resolve("relu"), 2.0, 1.0, BlockForm()) == pytest.approx(5.0, rel=1e-9)


# --- laws of growth --------------------------------------------------------------------------------------------------


def test_exponential_growth_of_relu_is_that_of_the_flow():
    net = ww.ResMLP([1, *[4] * 9, 1], "relu", C_W=0.8)
    K = ww.theory(net, [[1.0]])["K"].values.ravel()
    law = depth_growth("relu", C_W=0.8)
    assert K[8] / K[7] == pytest.approx(math.exp(1.0 / law.kernel.length), rel=1e-12)
    assert law.gradient.length == law.kernel.length


def test_power_laws_are_those_of_the_flow():
    l, half = 400, 200  # noqa: E741
    flows = {
        name: network_flow(ww.ResMLP([1, *[4] * l, 1], name, C_W=0.5, norm=norm), np.ones((1, 1)))
        for name, norm in (("tanh", None), ("gelu", "rms"))
    }
    tanh, gelu = depth_growth("tanh", C_W=0.5), depth_growth("gelu", C_W=0.5, norm="rms")
    slope = (flows["tanh"].K[l - 1, 0] - flows["tanh"].K[half - 1, 0]) / half
    assert tanh.kernel.kind == "power"
    assert tanh.kernel.exponent == 1.0
    assert slope == pytest.approx(tanh.kernel.value, rel=0.1)  # the rest falls like 1/√K
    logs = np.cumsum(flows["tanh"].log_chi_perp[:, 0])
    grown = logs[l - 2] - logs[half - 2]
    assert tanh.gradient.kind == "stretched exponential"
    assert tanh.gradient.exponent == pytest.approx(0.5, abs=1e-6)
    assert grown == pytest.approx(tanh.gradient.value * (math.sqrt(l) - math.sqrt(half)), rel=0.1)
    assert grown != pytest.approx(tanh.gradient.value * math.log(l / half), rel=0.5)  # no power law
    logs = np.cumsum(flows["gelu"].log_chi_perp[:, 0])
    assert gelu.gradient.kind == "power"
    assert (logs[l - 2] - logs[half - 2]) / math.log(2.0) == pytest.approx(gelu.gradient.exponent, rel=0.02)


@pytest.mark.parametrize(
    ("activation", "numbers", "text"),
    [
        ("tanh", {"C_W": 0.36, "skip": 0.8}, "K falls like 1.389 l^-1; the squared gradient falls like l^-1"),
        ("tanh", {"C_W": 0.1, "skip": 0.8}, "K falls e-fold every 3.32 layers; the squared gradient falls e-fold every 3.32 layers"),
        ("sin", {}, "K grows like 0.5 l^1; the squared gradient grows e-fold every 2.47 layers"),
        ("quadratic", {"C_W": 0.1}, "K grows faster than any exponential; the squared gradient grows faster than any exponential"),
        ("tanh", {"skip": 1.1}, "K grows e-fold every 5.25 layers; the squared gradient grows e-fold every 5.25 layers"),
        ("tanh", {"C_W": 0.0}, "K tends to 0; the squared gradient stays of the same size"),
        ("relu", {"norm": "rms", "branch": 0.1}, "K grows like 0.005 l^1; the squared gradient grows like l^1"),
    ],
)  # fmt: skip
def test_laws_of_growth_in_words(activation, numbers, text):
    assert str(depth_growth(activation, **numbers)) == text


# --- learning rates and advice ---------------------------------------------------------------------------------------


def test_shares_of_all_parameters_add_up_to_theta():
    X = np.random.default_rng(0).normal(size=(4, 3))
    net = ww.ResMLP([3, 8, 8, 8, 2], "gelu", [1.0, 0.8], 0.1, 1.2, 0.3, norm="ln", affine=(0.4, 0.2))
    Theta = np.diag(ww.theory(net, X)["Theta"].values[-1]).mean()
    assert layer_shares(net, X).total == pytest.approx(Theta, rel=1e-12)
    rates = equalise(net, X, 0.5, 1.5)
    dense = [isinstance(layer, ww.Dense) for layer in net.learned]
    assert np.ptp(rates.after.layers[dense]) < 1e-14
    assert rates.after.total == pytest.approx(2.0, rel=1e-12)
    assert np.diag(ww.theory(rates.network, X)["Theta"].values[-1]).mean() == pytest.approx(2.0, rel=1e-12)


class PreNorm(nn.Module):
    def __init__(self, blocks=6, n=32):
        super().__init__()
        self.first, self.last = nn.Linear(4, n), nn.Linear(n, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(n) for _ in range(blocks + 1))
        self.layers = nn.ModuleList(nn.Linear(n, n) for _ in range(blocks))

    def forward(self, x):
        x = self.first(x)
        for norm, layer in zip(self.norms[:-1], self.layers, strict=True):
            x = x + layer(nn.functional.gelu(norm(x)))
        return self.last(nn.functional.gelu(self.norms[-1](x)))


def test_printed_code_is_the_network_that_is_recommended():
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(20, 4))
    report = ww.advise(ww.from_torch(PreNorm()), X)
    names = {"X": X, "model": PreNorm()}
    exec(report.code["pytorch"], names)
    again = ww.from_torch(names["model"], optimizer=names["optimizer"], recognise=False)
    for one, other in zip(report.rates.network.learned, again.learned, strict=True):
        for rate in ("lambda_b", "lambda_W") if isinstance(one, ww.Dense) else ("lambda_gain", "lambda_shift"):
            assert getattr(other, rate) == pytest.approx(report.learning_rate * getattr(one, rate), rel=1e-6)
        if isinstance(one, ww.Dense):
            assert pytest.approx(one.C_W, rel=0.2) == other.C_W
    x, y = torch.tensor(X, dtype=torch.float32), torch.zeros(20, 2)
    before = names["loss"](names["model"], x, y).item()
    for _ in range(5):
        names["optimizer"].zero_grad()
        names["loss"](names["model"], x, y).backward()
        names["optimizer"].step()
    assert names["loss"](names["model"], x, y).item() < before
    own = {"X": X, "model": PreNorm()}
    exec(report.code["pytorch, your own model"], own)
    assert len(own["optimizer"].param_groups) == len(list(own["model"].parameters()))


def test_advice_for_residual_networks():
    exploding = ww.advise(ww.ResMLP([4, *[64] * 50, 1], "relu", C_W=2.0))
    assert exploding.verdict == "signals or gradients explode"
    assert exploding.growth.kernel.kind == "exponential"
    assert exploding.recommended_gradient < 0.5
    text = exploding.text
    assert "49 of them residual" in text
    assert "a factor 1/sqrt(49) on the branch" in text
    assert "χ_⊥" in text
    assert "K grows e-fold every 1.44 layers" in text
    json.loads(exploding.json)
    assert ww.advise(exploding.recommended).verdict == "critical"


def test_advice_for_normalised_networks_and_for_bodies_of_two_layers():
    normalised = ww.advise(ww.NormMLP([4, *[16] * 3, 1], "gelu", [("rms", "post", 1e-5)] * 3))
    assert normalised.recommended.layers[3].C_b > 0.0
    assert list(normalised.code) == ["pytorch"]
    body = [ww.LayerNorm(), ww.Dense(16, 32), "tanh", ww.Dense(32, 16)]
    net = ww.Network([ww.Dense(4, 16), *[ww.Residual(body)] * 4, ww.LayerNorm(), ww.Dense(16, 2)])
    report = ww.advise(net)
    assert report.depth_width is None
    assert abs(report.recommended_gradient) < 1.0
    assert report.recommended.layers[1].body[1].C_W == 1.0
    with pytest.raises(NoRule, match="layer 2 made of LayerNorm, Dense, Elementwise, Dense"):
        depth_width(net)
    none = ww.advise(ww.ResMLP([4, *[16] * 4, 1], "softplus"))
    assert none.recommended is None
    assert "No critical initialisation" in none.text
    assert none.code == {}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: critical("tanh", skip=1.0), InvalidInput, "skip: got 1; expected a number from 0 to below 1.*depth_growth"),
        (lambda: critical("tanh", skip=-0.1), InvalidInput, "skip: got -0.1"),
        (lambda: critical("tanh", skip=0.5, norm=("rms", "post", 0.1)), InvalidInput, "'post' with skip=0.5"),
        (lambda: critical("tanh", norm="batch"), InvalidInput, "joins the inputs of a batch"),
        (lambda: critical("tanh", norm=("ln", "between", 0.1)), InvalidInput, "norm: got 'between'"),
        (lambda: critical("tanh", norm=3), InvalidInput, "norm: got 3; expected 'rms', 'ln'"),
        (lambda: critical("softplus", norm="ln"), NotCritical, "needs C_b = -2.14 < 0.*χ_⊥ = 0.3185 whatever C_W"),
        (lambda: ww.phase_diagram("tanh", [1.0], [0.0], skip=1.0), InvalidInput, "there is no phase"),
        (lambda: critical_line("relu", skip=0.5), InvalidInput, "Use widthwise.critical"),
        (lambda: depth_growth("tanh", branch="1/L"), InvalidInput, "branch: got '1/L'"),
    ],
)  # fmt: skip
def test_what_has_no_answer_is_refused_in_one_line(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_shifts_of_the_means_are_those_of_theory():
    """G1/(nK) and H1/(nΘ) at one input, two blocks; kinked activations have no rule for them."""
    net, x = ww.ResMLP([3, 64, 64, 64, 1], "gelu", 0.9, 0.1, 1.2), np.array([1.0, -0.5, 0.3])
    right = ww.theory(net, x[None], order=1, layers="last", tensors=["K", "Theta", "G1", "H1"]).squeeze()
    found = depth_width(net, x, deepest=8)
    assert found.kernel_shift == pytest.approx(float(right["G1"] / right["K"]) / 64, rel=1e-9)
    assert found.ntk_shift == pytest.approx(float(right["H1"] / right["Theta"]) / 64, rel=1e-9)
    assert np.isnan(depth_width(ww.ResMLP([3, 64, 64, 1], "relu", 0.9), deepest=8).kernel_shift)
