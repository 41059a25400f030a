"""One input through deep networks with skips and norms: against the route of all inputs, exact laws, and closures."""

import numpy as np
import pytest

import widthwise as ww
from widthwise.errors import InvalidInput, NoRule
from widthwise.flow.one_input import deep_blocks
from widthwise.flow.one_input.deep_blocks import single_block_flow
from widthwise.flow.one_input.deep_flow import single_flow
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.plots import plot_depth
from widthwise.tensors import CORRECTIONS, TENSORS

X = np.array([0.7, -1.2, 0.4])
VARIED = {
    "C_b": [0.1, 0.2, 0.05, 0.3, 0.1],
    "C_W": [1.3, 0.8, 1.1, 0.7, 1.2],
    "lambda_b": [0.2, 0.1, 0.3, 0.2, 0.1],
    "lambda_W": [1.0, 0.8, 1.2, 0.6, 0.9],
}
RMS, LN = ("rms", 0.05), ("ln", 0.1)
NETWORKS = {
    "tanh, skips": ww.ResMLP([3, 9, 9, 9, 9, 1], "tanh", [1.0, 0.7, 1.0], **VARIED),
    "gelu, skips and a plain layer that widens": ww.ResMLP([3, 9, 9, 18, 18, 1], "gelu", [1.0, 0.0, 0.5], **VARIED),
    "gelu, norms in residual blocks": ww.ResMLP(
        [3, 9, 9, 9, 9, 1], "gelu", [1.0, 0.8, 0.5], norm=[RMS, None, LN, LN], **VARIED
    ),
    "tanh, norms before and after": ww.NormMLP(
        [3, 9, 8, 7, 9, 1], "tanh", [("ln", "pre", 0.05), None, ("ln", "post", 0.1), ("rms", "post", 0.02)], **VARIED
    ),
    "swish, read on the stream": ww.Network(
        [ww.Dense(3, 9, 0.1, 1.2), *[ww.Residual(["swish", ww.Dense(9, 9, 0.2, 0.7)], g) for g in (0.9, 1.0, 0.8)]]
    ),
    "tanh and gelu apart": ww.Network(
        [ww.Dense(3, 9), ww.Residual(["tanh", ww.Dense(9, 9)]), "tanh", ww.Dense(9, 8), "gelu", ww.Dense(8, 1)]
    ),
}


def distances(net, x, wanted=CORRECTIONS) -> dict[str, float]:
    """How far each ratio is from the route of all inputs, beside the largest of the layers."""
    ds, reference = ww.single_input(net, x, tensors=["Theta", *wanted]), finite_flow(net, x[None], wanted)
    K, Theta = reference.K[:, 0, 0], reference.Theta[:, 0, 0]
    found = {"K": np.abs(ds["K"] / K - 1.0).max().item(), "Theta": np.abs(ds["Theta"] / Theta - 1.0).max().item()}
    for name in wanted:
        i, j = TENSORS[name].scale
        expected = reference.tensors[name].reshape(net.depth) / (K**i * Theta**j)
        found[name] = np.abs(ds[f"{name}_ratio"] - expected).max().item() / np.abs(expected).max()
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_every_tensor_equals_the_route_of_all_inputs(name):
    assert max(distances(NETWORKS[name], X).values()) < 1e-11


def test_memory_up_to_degree_two_is_the_local_closure_which_fails_at_six_blocks():
    net = ww.ResMLP([1, *[9] * 7, 1], "gelu", 1.0, C_b=0.1)
    for name, distance in distances(net, np.ones(1), ("V", "B", "G1")).items():
        assert distance < 1e-11, name
    whole, local = (single_block_flow(net, np.ones(1), ("V", "B", "G1"), True, degrees) for degrees in (None, 3))
    for name in ("V", "B", "G1"):
        assert abs(local.ratios[name][-1] / whole.ratios[name][-1] - 1.0) > 0.01, name
    assert whole.error < 1e-10 < 0.01 < local.error  # and it is reported


def test_without_skips_and_norms_it_is_the_plain_route():
    net = ww.MLP([3, 9, 18, 9, 9, 1], "gelu", **VARIED)
    plain, blocks = single_flow(net, X, CORRECTIONS, True), single_block_flow(net, X, CORRECTIONS, True)
    for name in CORRECTIONS:
        size = max(1.0, np.abs(plain.ratios[name]).max())
        assert np.abs(plain.ratios[name] - blocks.ratios[name]).max() < 1e-13 * size, name


def test_a_linear_stream_has_the_law_of_products_of_matrices_at_any_depth():
    """V/K² = 2 [(1 + C)² − 1] L/(1 + C)² after L blocks (theory §11), where K overflows."""
    L, C = 2000, 0.5
    flow = ww.single_input(ww.ResMLP([1, *[9] * (L + 1), 1], "linear", C_W=[1.0, *[C] * L, 1.0]), [1.0], tensors=["V"])
    blocks = np.arange(L + 1)
    expected = 2.0 * ((1.0 + C) ** 2 - 1.0) / (1.0 + C) ** 2 * blocks
    assert np.allclose(flow["V_ratio"].values[:-1], expected, rtol=1e-10)
    assert np.isclose(flow["log_K"].values[-1], L * np.log1p(C), rtol=1e-12)
    assert np.isinf(flow["K"].values[-1])


@pytest.mark.parametrize(
    ("activation", "limits"), [("tanh", (0.4648, 0.5002, 0.5098)), ("gelu", (1.9514, 2.4831, 2.6607))]
)
def test_with_branches_of_variance_one_over_depth_fluctuations_tend_to_a_constant(activation, limits):
    """The table of theory §11, from an independent implementation."""
    for L, expected in zip((2, 8, 32), limits, strict=True):
        net = ww.ResMLP([1, *[9] * (L + 1), 1], activation, C_W=[1.0, *[1.0 / L] * L, 1.0])
        assert abs(ww.single_input(net, [1.0], tensors=["V"])["V_ratio"].values[-2] - expected) < 6e-5
    forgetful = single_block_flow(net, np.ones(1), ("V",), False, degrees=1).ratios["V"][-2]
    assert abs(forgetful - expected) > 0.01


def test_the_compiled_loop_does_what_numpy_does(monkeypatch):
    net = ww.ResMLP([1, *[9] * 70, 1], "tanh", 0.9, C_W=0.3)  # more layers than are held at once
    by_numpy = single_block_flow(net, np.ones(1), ("V", "G1"), False)
    monkeypatch.setattr(deep_blocks, "COMPILED_DEPTH", 1)
    compiled = single_block_flow(net, np.ones(1), ("V", "G1"), False)
    for name in ("V", "G1"):
        assert np.allclose(by_numpy.ratios[name], compiled.ratios[name], rtol=1e-11, atol=1e-13)


def test_memory_on_points_is_that_of_hermite_series(monkeypatch):
    monkeypatch.setattr(deep_blocks, "FEW_DEGREES", 1)
    net = NETWORKS["tanh, skips"]
    assert max(distances(net, X).values()) < 1e-10
    assert "memory as points" in ww.single_input(net, X, tensors=["V"]).attrs["route"]
    monkeypatch.setattr(deep_blocks, "NODE_STEP", 0.8)  # more than a step spreads a point over
    assert "memory as Hermite series" in ww.single_input(net, X, tensors=["V"]).attrs["route"]


def test_behind_norms_fluctuations_of_one_input_do_not_accumulate():
    """V/K² stays at its value of one layer (theory §12: 0.15 and 3.1 on the critical lines); the plain one grows."""
    depth = 1000
    for activation, C_b, expected in (("tanh", 0.0698, 0.15), ("gelu", 0.0307, 3.1)):
        norms, widths = [("rms", "pre", 0.0)] * (depth - 1), [1, *[9] * (depth - 1), 1]
        ds = ww.single_input(ww.NormMLP(widths, activation, norms, C_b=C_b), [1.0], tensors=["V"])
        assert np.ptp(ds["V_ratio"].values[1:]) < 1e-12
        assert abs(ds["V_ratio"].values[-1] / expected - 1.0) < 0.05


@pytest.mark.full
def test_all_tensors_of_a_hundred_thousand_normalised_layers():
    depth = 100_000
    net = ww.NormMLP([1, *[9] * (depth - 1), 1], "gelu", [("ln", "pre", 1e-5)] * (depth - 1), C_b=0.1)
    ds = ww.single_input(net, [1.0])
    assert all(np.all(np.isfinite(ds[f"{name}_ratio"])) for name in CORRECTIONS)
    assert ds.attrs["numerical_error"] < 1e-12


def test_what_has_no_rule_is_refused_by_name():
    with pytest.raises(NoRule, match=r"layers\[1\].*single_input.*relu has a kink"):
        ww.single_input(ww.ResMLP([3, 8, 8, 1], "relu"), X)
    with pytest.raises(NoRule, match=r"Affine"):
        ww.single_input(ww.ResMLP([3, 8, 8, 1], "tanh", norm="ln", affine=(1.0, 1.0)), X)
    with pytest.raises(InvalidInput, match="K that is zero at layer 1"):
        ww.single_input(ww.ResMLP([3, 8, 8, 1], "gelu"), 0.0 * X)


def test_depth_is_drawn_without_a_law():
    flow = ww.single_input(NETWORKS["tanh, skips"], X, tensors=["V"])
    assert "none is known with skips or norms" in plot_depth(flow).get_suptitle()
    assert "memory as Hermite series" in flow.attrs["route"]
