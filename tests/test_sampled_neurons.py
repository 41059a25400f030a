"""Corrections to Bayesian inference from single neurons: those of full tensors, at N² cost and with standard errors.

Differences are in standard errors of sixteen scrambles, so they follow Student's distribution with 15 degrees of freedom:
above 6 in one of ten numbers with probability 2e-4.
"""

import numpy as np
import pytest

import widthwise as ww
from widthwise.errors import CostWarning
from widthwise.inference.cost import order_one_seconds, training_seconds, training_steps, warn_of_cost
from widthwise.inference.infinite_width import Spectrum

rng = np.random.default_rng(11)
X, Y, TESTS = rng.normal(size=(6, 3)), rng.normal(size=(6, 2)), rng.normal(size=(2, 3))
MOST = 6.0


def worst_pull(drawn, exact):
    """Of mean, evidence, and a covariance, whose entries are not all independent."""
    pulls = [abs((drawn[name] - exact[name]) / drawn[f"{name}_se"]) for name in ("mean1", "log_evidence1")]
    return max(float(pull.max()) for pull in pulls)


@pytest.mark.parametrize("activation", ["tanh", "relu", ["gelu", "relu", "erf"]])
def test_neurons_one_by_one_make_the_corrections_of_all_quadruples(activation):
    net = ww.MLP([3, 48, 96, 64, 2], activation, 0.1, [1.2, 1.5, 1.3, 1.1])
    exact = ww.posterior(net, X, Y, TESTS, order=1, noise=0.1, method="full")
    drawn = ww.posterior(net, X, Y, TESTS, order=1, noise=0.1, method="sampled", seed=7)
    assert worst_pull(drawn, exact) < MOST
    spread = abs((drawn["cov1"] - exact["cov1"]) / drawn["cov1_se"])
    assert float(spread.max()) < MOST + 1.0  # sixteen numbers more
    # without the neurons of the first layer: in 30 draws of other seeds at least 30
    other = ww.posterior(net.replace(widths=[3, 10**6, 96, 64, 2]), X, Y, TESTS, order=1, noise=0.1, method="full")
    assert worst_pull(drawn, other) > MOST
    assert drawn.attrs["method"] == "sampled"


def test_more_inputs_than_tensors_fit_on():
    """V of 154 inputs would take 72 GB; the error falls with the number of neurons, and seeds agree within it."""
    many = rng.normal(size=(150, 3))
    targets = np.tanh(many[:, 0])
    net = ww.MLP([3, 1000, 1000, 1], "tanh", 0.1, 1.5)
    first, second = (
        ww.posterior(net, many, targets, many[:4] + 0.1, order=1, noise=0.1, neurons=neurons, seed=seed)
        for neurons, seed in ((1024, 1), (8192, 2))
    )
    assert first.attrs["method"] == second.attrs["method"] == "sampled"
    assert second["log_evidence1_se"] < first["log_evidence1_se"]
    together = np.hypot(first["log_evidence1_se"], second["log_evidence1_se"])
    assert abs(first["log_evidence1"] - second["log_evidence1"]) < MOST * together


def test_a_grid_of_evidences_of_many_inputs_says_its_errors():
    many = np.random.default_rng(1).normal(size=(70, 2))
    found = ww.evidence_grid("tanh", many, many[:, 0], depth=[1, 2], width=[500], C_b=0.1, C_W=1.5, noise=0.1)
    assert found["log_evidence1_se"].sel(depth=2).item() > 0.0
    assert found["log_evidence1"].sel(depth=1).item() == 0.0
    one = ww.posterior(ww.MLP([2, 500, 1], "tanh", 0.1, 1.5), many, many[:, 0], many[:1], order=1, noise=0.1)
    error = np.hypot(found["log_evidence1_se"].sel(depth=2), one["log_evidence1_se"]).item()
    assert abs(found["log_evidence1"].sel(depth=2).item() - one["log_evidence1"].item()) < MOST * error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "sample"}, "method: got 'sample'"),
        ({"method": "sampled", "neurons": 1}, "neurons: got 1"),
        ({"method": "sampled", "neurons": 10**15}, "1000000000000000 neurons, which needs"),
        ({"method": "sampled", "seed": -1}, "seed: got -1"),
        ({"method": "sampled", "net": ww.ResMLP([3, 8, 8, 1], "tanh")}, "neurons have a memory"),
        ({"method": "sampled", "net": ww.MLP([3, 8, 8, 1], "hardtanh")}, "method: got 'sampled' for hardtanh"),
    ],
)
def test_what_cannot_be_sampled_is_refused_in_one_line(change, message):
    given = {"net": ww.MLP([3, 8, 1], "tanh")} | change
    with pytest.raises(ww.WidthwiseError, match=message) as refused:
        ww.posterior(given.pop("net"), X, Y[:, 0], TESTS, order=1, noise=0.1, **given)
    assert "\n" not in str(refused.value)


def test_a_long_prediction_says_what_training_would_cost():
    net, spectrum = ww.MLP([10, 64, 64, 1], "tanh", 0.1, 1.5), Spectrum.of(np.diag([0.1, 1.0]))
    with pytest.warns(CostWarning, match=r"predict\(order=1\) on 500 .* h here; train\(.*networks=1000\).*±0.0095"):
        warn_of_cost(net, 500, 4, ww.GradientDescent(1.0, steps=100), spectrum, variance=0.09)
    warn_of_cost(net, 8, 2, ww.GradientFlow(), spectrum, variance=0.09)  # a warning would be an error here
    # quadruples grow like N⁴, training like N
    assert 10 < order_one_seconds(net, 100, 0) / order_one_seconds(net, 50, 0) < 20
    assert training_seconds(net, 100, 10) / training_seconds(net, 50, 10) == pytest.approx(2.0)
    assert training_steps(ww.GradientDescent(0.5), spectrum) == pytest.approx(np.log(1e6) / 0.05)
