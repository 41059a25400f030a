"""Hostile values for every argument of every public function: a line that names it, or an answer; nothing else."""

import inspect
import math
import os
from dataclasses import replace

import pytest
from public_calls import CALLS, NET, X, Y
from reliability import NAN_IS_DOCUMENTED, OUTCOMES, has_nan, hostile_outcomes
from soak import WRONG, drawn, made, soak, somewhere_else

import widthwise as ww
from widthwise.criticality.depth_width import DepthWidth

#: Public names whose values are not calls: results and errors.
ELSEWHERE = {
    "Advice",
    "ModelAdvice",
    "ProxyWidth",
    "Audit",
    "Comparison",
    "CoordinateCheck",
    "Parametrisation",
    "Critical",
    "NewtonStep",
    "NotCritical",
    "WidthwiseError",
}
#: One function of each kind in the ordinary run; `make test-full` takes all.
QUICK = ("ResMLP", "theory", "critical", "compare", "special.chernoff_bound")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in CALLS]
)
def test_hostile_values_are_named_or_answered(name):
    counts, wrong = hostile_outcomes(name)
    assert not wrong, "\n".join(wrong)
    assert counts[OUTCOMES[0]] > 0


def test_every_public_function_is_called():
    public = {name for name in ww.__all__ if callable(getattr(ww, name)) and not inspect.ismodule(getattr(ww, name))}
    assert public - ELSEWHERE <= set(CALLS)


def test_nan_is_documented_where_it_is_allowed():
    for result in (ww.Advice, ww.Critical, DepthWidth):
        text = str(inspect.getdoc(result))
        assert "NaN" in text
        assert all(f"`{field}`" in text for field in NAN_IS_DOCUMENTED[result.__name__])
    assert "NAME_order, NaN where" in str(inspect.getdoc(ww.measure))


@pytest.mark.parametrize(("field", "wrong"), [("kernel_shift", False), ("kernel_variance", True)])
def test_nan_is_found_in_fields_of_results(field, wrong):
    found = ww.depth_width(NET, X[0], deepest=4)
    assert has_nan({"found": [replace(found, **{field: math.nan})]}) == wrong


LONE, RESIDUAL = "ww.Network([ww.Dense(2, 1)])", "ww.ResMLP([2, 8, 8, 1], 'tanh')"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("load", {"path": "HOSTILE['[[]]']()"}),
        ("load", {"path": "'a' * 10**5"}),
        ("load", {"path": "'a\\0'"}),
        ("save", {"path": "NET"}),
        ("save", {"path": "'a' * 10**5"}),
        ("save", {"dataset": "X"}),
        ("NTKClassifier", {"random_state": "np.array([1.0])"}),
        ("NTKRegressor", {"solver": "np.array(['a', 'b'])"}),
        ("NTKRegressor", {"solver": "'cg'", "tolerance": "Opaque"}),
        ("NNGPRegressor", {"choose": "np.array(['a', 'b'])"}),
        ("FiniteWidthRegressor", {"hidden_layers": "10**30"}),
        ("measure", {"net": RESIDUAL, "statistics": "['A']", "layers": "'all'"}),
        ("couplings", {"X": "theory()"}),
        ("expectation", {"activation": "'relu6'", "K_ab": "3.72e-06", "K_bb": "1.92e-06", "orders": "(0, 3)"}),
        ("exact.kurtosis_by_depth", {"net": "ww.MLP([2, 8, 8, 1], 'softshrink')", "x": "1e-6 * X[0]"}),
        ("NTKClassifier", {"y": "[0, 0, 0]"}),
        ("special.expected_relu_ntk", {"X": "np.zeros((2, 2))"}),
        ("theory", {"net": "RELU", "X": "np.array([[1.0, 0.3], [0.0, 0.0]])", "order": "1", "tensors": "['V']"}),
        ("train", {"net": "ww.MLP([2, 8, 8, 8, 1], 'quadratic')", "X_test": "np.array([[1e5, 1e5]])"}),
        ("theory at pairs", {"X": "X", "X2": "X", "tensors": "['K']"}),
        ("predict", {"order": "1", "method": "X"}),
        ("theory at pairs", {"tensors": "np.array(1.0)"}),
        ("NTKRegressor", {"X": "np.array([[27.9], [33.67]])", "y": "HOSTILE['array of text']()"}),
        ("exact.kurtosis_by_depth", {"net": "ww.MLP([1, 4, 4, 4, 1], 'cubic')", "x": "[1e-6]"}),
        ("advise", {"net": "ww.ResMLP([2, 4, 4, 1], 'tanh', norm='rms')", "X": "1e-200 * np.ones((2, 2))"}),
        ("advise", {"net": "ww.MLP([2, 4, 4, 1], 'gelu')", "X": "1e-200 * np.ones((2, 2))"}),
        ("advise", {"net": LONE}),
        ("criticality.equalise", {"net": LONE}),
        ("criticality.layer_shares", {"net": LONE}),
        ("exact.bayesian_interpolation", {"net": LONE}),
        ("exact.deep_linear", {"net": LONE}),
        ("exact.scale_free_moments", {"net": LONE}),
        ("special.expected_kinks", {"net": LONE}),
        ("special.relu_derivative_law", {"net": LONE}),
        ("special.relu_ntk_moments", {"net": LONE}),
        ("special.relu_path_moments", {"net": LONE}),
    ],
)
def test_what_the_soak_found_is_answered_or_refused(name, arguments):
    with somewhere_else():
        found = made(name, arguments)
    assert found[0] not in WRONG, found


@pytest.mark.parametrize(
    ("blamed", "size", "learning_rate"),
    [("X_test", 1e25, 1e-3), pytest.param("algorithm", 1.0, 1e200, marks=pytest.mark.full)],
)
def test_training_blames_what_makes_numbers_not_finite(blamed, size, learning_rate):
    net, algorithm = ww.MLP([2, 4, 4, 1], "quadratic"), ww.GradientDescent(learning_rate, steps=3)
    with pytest.raises(ww.errors.InvalidInput, match=f"^{blamed}:") as refused:
        ww.train(net, X, Y, size * X, networks=4, algorithm=algorithm)
    assert ("before they are trained" in str(refused.value)) == (blamed == "X_test")


@pytest.mark.parametrize(
    ("argument", "value", "got"),
    [("net", "tanh", "str"), ("net", None, "NoneType"), ("data", X, "ndarray"), ("algorithm", "adam", "str")],
)
def test_a_study_names_what_does_not_belong(argument, value, got):
    with pytest.raises(ww.errors.InvalidInput, match=f"^{argument}: got {got}"):
        ww.Study(**{"net": NET, "data": ww.dataset("circle")} | {argument: value})


def test_the_soak_draws_the_same_calls_again():
    assert drawn(1, 5) == drawn(1, 5) != drawn(2, 5)


def test_the_soak_sees_and_shrinks_a_failure(monkeypatch, tmp_path):
    def broken(K, C_W, C_b):
        return {}[C_W] if C_W < 0 else K

    monkeypatch.setitem(CALLS, "broken", (lambda: broken, lambda: {"K": 1.0, "C_W": 1.0, "C_b": 0.0}))
    monkeypatch.setattr("soak.drawn", lambda seed, number: ("broken", {"K": "2.0", "C_W": "-1", "C_b": "3"}))
    record, failures = soak(0.2, 0, tmp_path / "log.jsonl")
    assert record.outcomes["foreign exception"] == record.calls > 1
    assert [failure["arguments"] for failure in failures] == [{"C_W": "-1"}]


@pytest.mark.parametrize(
    "seconds",
    [
        5.0,
        pytest.param(3600 * float(os.environ.get("SOAK_HOURS", 2)), marks=[pytest.mark.full, pytest.mark.timeout(0)]),
    ],
)
def test_random_calls_are_answered_or_refused(seconds, tmp_path):
    record, failures = soak(seconds, 7, tmp_path / "failures.jsonl")
    assert not failures, "\n".join(map(str, failures))
    assert record.flat(), record.growth()
