"""`advise`: verdicts, numbers, forms and code."""

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import widthwise as ww
from widthwise.criticality.advice import advise_on_network as advise
from widthwise.criticality.critical import critical
from widthwise.criticality.snippets import numbers_of, snippets
from widthwise.errors import InvalidInput

X = np.random.default_rng(5).normal(size=(30, 4))


def deep(activation, depth=30, width=64, **hyper):
    return ww.MLP([4, *[width] * (depth - 1), 1], activation, **hyper)


@pytest.mark.parametrize(
    ("net", "verdict"),
    [
        (deep("tanh", C_W=1.0), "critical"),
        (deep("tanh", C_W=3.0), "signals or gradients explode"),
        (deep("tanh", C_W=0.5), "signals or gradients vanish"),
        (deep("tanh", 5, C_W=1.1), "not critical, but harmless at this depth"),
        (deep("relu", C_W=2.0), "critical"),
        (deep("relu", C_W=1.0), "signals or gradients vanish"),
        (ww.MLP.torch_default([4, *[64] * 29, 1], "gelu"), "signals or gradients vanish"),
        (deep("step"), "cannot be trained by gradients"),
    ],
    ids=["tanh", "chaotic", "ordered", "mild", "relu", "relu shrinking", "torch gelu", "step"],
)
def test_verdicts(net, verdict):
    report = advise(net)
    assert report.verdict == verdict
    assert verdict in report.text.splitlines()[0]
    json.loads(report.json)


def test_numbers_of_the_report_are_those_of_the_kernels():
    net, few = deep("gelu", 8, C_b=0.1, C_W=1.3), X[:6]
    report = advise(net, few)
    K = np.einsum("laa->la", ww.theory(net, few)["K"].values)
    assert report.signal == pytest.approx(np.mean(np.log10(K[-1] / K[0])), rel=1e-9)
    # the share of the biases of the first layer is the product of all χ_⊥
    only_first = net.replace(lambda_b=[1.0] + [0.0] * 7, lambda_W=0.0)
    Theta = np.diag(ww.theory(only_first, few)["Theta"].values[-1])
    assert report.gradient == pytest.approx(np.mean(np.log10(Theta)), rel=1e-9)
    assert report.learning_rate == pytest.approx(0.5 * ww.max_learning_rate(report.rates.network, few), rel=1e-9)


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
def test_the_recommended_network_is_critical_and_its_layers_learn_equally(activation):
    report = advise(deep(activation, 20, C_W=1.4), X)
    point, better = critical(activation), report.recommended
    assert set(better.C_W[1:]) == {point.C_W}
    assert set(better.C_b) == {point.C_b}
    assert advise(better, X).verdict == "critical"
    assert np.ptp(report.rates.after.layers) < 1e-12 < np.ptp(report.rates.before.layers)
    if activation == "gelu":
        K_1 = better.C_b[0] + better.C_W[0] * np.mean(np.einsum("ai,ai->a", X, X)) / 4
        assert pytest.approx(point.K_star, rel=1e-12) == K_1
        assert abs(report.recommended_gradient) < 0.2 < abs(report.gradient)


def test_an_activation_without_a_critical_point_is_reported_with_its_reason():
    report = advise(deep("softplus", 6), X)
    assert (report.critical, report.recommended, report.code) == (None, None, {})
    assert "⟨σσ''⟩ is positive at every kernel" in report.text
    assert report.to_dict()["recommended"] is None


def test_a_kernel_that_explodes_is_reported_not_raised():
    report = advise(deep("swish", 300, width=20, C_W=3.0))
    assert report.verdict == "signals or gradients explode"
    assert "cannot be followed" in report.text
    assert report.recommended is not None
    assert report.to_dict()["signal_log10"] is None
    unknown = advise(deep(jnp.sinh, 60, C_W=2.0))
    assert "No critical initialisation" in unknown.text
    assert "repels" in unknown.text


def test_json_and_html_say_what_the_text_says():
    report = advise(deep("gelu", 8, C_W=1.9), X)
    found = json.loads(report.json)
    assert found["critical"]["C_W"] == pytest.approx(1.98305826, abs=1e-8)
    assert found["depth_width"]["aspect_ratio"] == pytest.approx(7 / 64)
    assert len(found["recommended"]["lambda_W"]) == 8
    page = report.html
    assert page.startswith("<!doctype html>")
    assert page.count("<tr>") == 9
    assert "&lt;" not in report.text
    assert str(report) == report.text
    assert report._repr_html_() == page
    for sentence in report.text.splitlines():
        assert sentence.split(" (")[0][:40].replace("<", "&lt;") in page.replace("&#x27;", "'")


@pytest.mark.parametrize("activation", ["tanh", "gelu", "leaky_relu(0.2)", "sin", lambda z: z * jnp.tanh(z) + z])
def test_code_is_valid_and_carries_the_numbers(activation):
    net = ww.MLP([4, 8, 16, 2], activation, C_b=[0.1, 0.2, 0.3], C_W=[1.0, 2.0, 3.0], lambda_b=0.5, lambda_W=4.0)
    code = snippets(net, 0.1, inputs=30)
    assert set(code) == {"pytorch", "flax", "equinox"}
    for text in code.values():
        compile(text, "snippet", "exec")
        names: dict = {}
        exec("\n".join(line for line in text.splitlines() if line.split(" = ")[0] in numbers_of(net, 0.1, 30)), names)
        assert names["widths"] == [4, 8, 16, 2]
        assert names["weight_std"] == pytest.approx([math.sqrt(c / n) for c, n in ((1, 4), (2, 8), (3, 16))])
        assert names["bias_std"] == pytest.approx([math.sqrt(c) for c in (0.1, 0.2, 0.3)])
        assert names["weight_lr"] == pytest.approx([0.4 / n for n in (4, 8, 16)])
        assert names["bias_lr"] == pytest.approx([0.05] * 3)
        assert names["inputs"] == 30


WIDE = ww.MLP(
    [4, 40, 50, 60, 2],
    "gelu",
    C_b=0.3,
    C_W=[1.0, 2.0, 3.0, 1.5],
    lambda_b=[1.0, 0.5, 2.0, 3.0],
    lambda_W=[4.0, 3.0, 2.0, 1.0],
)
Y = np.random.default_rng(6).normal(size=(30, 2))


def flax_code(names):
    """Parameters before a step, gradients, and parameters after it, each a list of (weight, bias)."""
    model, optimizer = names["model"], names["optimizer"]

    def values(tree):
        return [
            (np.array(layer["kernel"][...]), np.array(layer["bias"][...]))
            for _, layer in sorted(tree["layers"].items())
        ]

    before = values(nnx.state(model, nnx.Param))
    gradients = nnx.grad(names["loss"])(model, jnp.asarray(X), jnp.asarray(Y))
    optimizer.update(model, gradients)
    return before, values(gradients), values(nnx.state(model, nnx.Param))


def equinox_code(names):
    def values(model):
        return [(np.array(layer.weight), np.array(layer.bias)) for layer in model.layers]

    model = names["model"]
    gradients = eqx.filter_grad(names["loss"])(model, jnp.asarray(X), jnp.asarray(Y))
    updates, _ = names["optimizer"].update(gradients, names["state"], names["params"])
    return values(model), values(gradients), values(eqx.apply_updates(model, updates))


def torch_code(names):
    def values(what):
        return [tuple(what(tensor).numpy().copy() for tensor in (layer.weight, layer.bias)) for layer in model.layers]

    model = names["model"]
    before = values(lambda tensor: tensor.detach())
    names["loss"](model, torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)).backward()
    names["optimizer"].step()
    return before, values(lambda tensor: tensor.grad), values(lambda tensor: tensor.detach())


@pytest.mark.parametrize(
    ("framework", "one_step"), [("pytorch", torch_code), ("flax", flax_code), ("equinox", equinox_code)],
    ids=["pytorch", "flax", "equinox"],
)  # fmt: skip
def test_printed_code_runs_and_does_what_it_says(framework, one_step):
    """Initial variances C_W/n and C_b, and a step −ηλ_W/n ∂L/∂W, −ηλ_b ∂L/∂b in every tensor of its own."""
    names: dict = {}
    torch.manual_seed(3)
    exec(snippets(WIDE, 1e-4, inputs=len(X))[framework], names)
    before, gradients, after = one_step(names)
    assert len(before) == WIDE.depth
    for i, (n, C_W, C_b) in enumerate(zip(WIDE.widths[:-1], WIDE.C_W, WIDE.C_b, strict=True)):
        for values, variance in zip(before[i], (C_W / n, C_b), strict=True):
            error = variance * math.sqrt(2.0 / values.size)
            assert abs(np.mean(values.astype(float) ** 2) - variance) < 4.0 * error
        for rate, start, slope, end in zip(
            (WIDE.lambda_W[i] / n, WIDE.lambda_b[i]), before[i], gradients[i], after[i], strict=True
        ):
            assert np.abs(slope).max() > 0.0
            assert np.allclose(end - start, -1e-4 * rate * slope, rtol=1e-3, atol=1e-6)
            assert not np.allclose(end - start, -1.5e-4 * rate * slope, rtol=1e-3, atol=1e-6)


def test_the_printed_loss_of_a_part_of_the_inputs_stands_for_all():
    names: dict = {}
    exec(snippets(WIDE, 1e-4, inputs=len(X))["pytorch"], names)
    x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)
    halves = [names["loss"](names["model"], x[rows], y[rows]).item() for rows in (slice(0, 15), slice(15, 30))]
    assert names["loss"](names["model"], x, y).item() == pytest.approx(sum(halves) / 2, rel=1e-5)


def test_the_step_for_many_inputs_is_that_of_all_of_them():
    """The spectrum is taken on a sample of the rows and scaled."""
    many = np.random.default_rng(8).normal(size=(600, 4))
    report = advise(deep("erf", 4, C_W=1.0), many)
    assert report.inputs == 600
    assert report.learning_rate == pytest.approx(0.5 * ww.max_learning_rate(report.rates.network, many), rel=0.1)
    assert "summed over the 600 inputs given" in report.text


@pytest.mark.full
def test_deep_digits_learn_with_the_advice_and_not_without(tmp_path):
    script = Path(__file__).parent.parent / "examples" / "deep_digits.py"
    run = subprocess.run(
        [sys.executable, str(script), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, env={**os.environ, "MPLBACKEND": "Agg"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"curves.csv", "deep_digits.png"}
    with (tmp_path / "curves.csv").open() as stream:
        last = {row["initialisation"]: row for row in csv.DictReader(stream)}
    assert float(last["advice"]["accuracy"]) > 0.25 > 0.15 > float(last["default"]["accuracy"])
    assert float(last["advice"]["loss"]) < 0.95 < float(last["default"]["loss"])


def test_long_networks_have_short_code():
    code = advise(deep("tanh", 60, C_W=1.0)).code["pytorch"]
    compile(code, "snippet", "exec")
    assert len(code.splitlines()) < 80
    assert max(map(len, code.splitlines())) < 121


def test_bad_data_is_refused():
    with pytest.raises(InvalidInput, match="net: got str"):
        advise("tanh")
    with pytest.raises(InvalidInput, match=r"X: got an empty array of shape \(0, 4\)"):
        advise(deep("tanh", 3), np.empty((0, 4)))
    with pytest.raises(InvalidInput, match="1 rows of zeros, the first at index 2"):
        advise(deep("tanh", 3), [[1.0] * 4, [2.0] * 4, [0.0] * 4])
    with pytest.raises(InvalidInput, match="3 features"):
        advise(deep("tanh", 3), np.ones((2, 3)))
    # what depth means at this width was left out of the report
    with pytest.raises(InvalidInput, match=r"deepest: got 1000000000000.0; expected an integer of at least 1"):
        advise(deep("tanh", 3), deepest=1e12)
    with pytest.raises(
        InvalidInput, match=r"memory: got 1000000000000 layers, which needs .* What would fit: \d+ layers"
    ):
        advise(deep("tanh", 3), deepest=10**12)


def test_a_single_layer_has_nothing_to_tune():
    report = advise(ww.MLP([4, 1], "tanh"), X)
    assert report.recommended is None
    assert report.gradient == 0.0
    assert "no hidden layer" in report.text
