"""`advise`: verdicts, numbers, forms and code."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

import widthwise as ww
from widthwise.criticality.advice import advise
from widthwise.criticality.critical import critical
from widthwise.criticality.snippets import Numbers, snippets
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
        (deep("tanh", 5, C_W=1.1), "not critical, but mild at this depth"),
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
    code = snippets(net, 0.1)
    assert set(code) == {"pytorch", "flax", "equinox"}
    for text in code.values():
        compile(text, "snippet", "exec")
        names: dict = {}
        exec("\n".join(line for line in text.splitlines() if line.split(" = ")[0] in Numbers.__annotations__), names)
        assert names["widths"] == [4, 8, 16, 2]
        assert names["weight_std"] == pytest.approx([math.sqrt(c / n) for c, n in ((1, 4), (2, 8), (3, 16))])
        assert names["bias_std"] == pytest.approx([math.sqrt(c) for c in (0.1, 0.2, 0.3)])
        assert names["weight_lr"] == pytest.approx([0.4 / n for n in (4, 8, 16)])
        assert names["bias_lr"] == pytest.approx([0.05] * 3)


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


def test_a_single_layer_has_nothing_to_tune():
    report = advise(ww.MLP([4, 1], "tanh"), X)
    assert report.recommended is None
    assert report.gradient == 0.0
    assert "no hidden layer" in report.text
