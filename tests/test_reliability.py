"""Hostile values for every argument of every public function: a line that names it, or an answer; nothing else."""

import inspect
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from namespace_calls import EVERY_CALL, MORE
from public_calls import HOSTILE, NET, X, Y
from reliability import NAN_IS_DOCUMENTED, OUTCOMES, has_nan, hostile_outcomes, table_rows
from soak import SLOW, WRONG, drawn, made, soak, somewhere_else

import widthwise as ww
from widthwise.criticality.depth_width import DepthWidth
from widthwise.readers.model_advice import StableStep

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
#: Layers of `stax` that stand in the calls of others.
PARTS_OF_OTHERS = {"FanInProd", "FanInSum", "serial", "repeat", "parallel", "FanOut", "FanInConcat"}
#: Methods by which layers take part in networks: written, not called, by users.
METHODS_OF_LAYERS = {"outgoing", "steps_on", "of_chain"}
#: What scikit-learn adds to estimators.
OF_SCIKIT_LEARN = {"set_predict_request", "set_score_request", "set_fit_request"}
#: Methods that the calls of estimators and layers make, and one that makes a law without its network.
MADE_ELSEWHERE = {
    *(f"FiniteWidthRegressor.{name}" for name in ("fit", "predict")),
    *(f"NTKClassifier.{name}" for name in ("fit", "decision_function", "predict", "predict_proba")),
    "KernelLaw.certain", "Parallel.from_dict", "Residual.from_dict", "Parametrisation.torch_optimisers",
}  # fmt: skip
#: One function of each kind in the ordinary run; `make test-full` takes all.
QUICK = ("ResMLP", "theory", "critical", "compare", "special.chernoff_bound")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in EVERY_CALL]
)
def test_hostile_values_are_named_or_answered(name):
    counts, wrong = hostile_outcomes(name)
    assert not wrong, "\n".join(wrong)
    assert counts[OUTCOMES[0]] > 0 or not EVERY_CALL[name][1]()


@pytest.mark.parametrize("space", ["", "criticality", "exact", "special", "readers", "plots", "gaussian", "stax"])
def test_every_public_function_is_called(space):
    module = getattr(ww, space) if space else ww
    called = {part for name in EVERY_CALL for part in name.replace(",", "").replace("stax.", "").split()}
    called |= {name.rpartition(".")[2] for name in called}
    public = {name for name in module.__all__ if inspect.isfunction(getattr(module, name))}
    classes = {name for name in ww.__all__ if inspect.isclass(getattr(ww, name))} if not space else set()
    assert (public | classes) - ELSEWHERE - (PARTS_OF_OTHERS if space == "stax" else set()) <= called


@pytest.mark.parametrize("space", ["", "criticality", "exact", "special", "readers", "plots", "gaussian"])
def test_every_public_method_is_called(space):
    module = getattr(ww, space) if space else ww
    classes = [one for name in module.__all__ if inspect.isclass(one := getattr(module, name))]
    not_called = {
        f"{owner.__name__}.{name}"
        for owner in classes
        for name in set(vars(owner)) - METHODS_OF_LAYERS - OF_SCIKIT_LEARN
        if not name.startswith("_") and takes_arguments(getattr(owner, name))
    } - set(EVERY_CALL)
    assert not_called <= MADE_ELSEWHERE


def takes_arguments(method):
    """Whether something is a method that takes anything but itself."""
    bound = inspect.ismethod(method)
    return (bound or inspect.isfunction(method)) and len(inspect.signature(method).parameters) > (0 if bound else 1)


def test_the_table_of_hostile_values_has_every_call():
    rows = table_rows(Path(__file__).parents[1] / "docs" / "reliability.md")
    assert {name: sum(counts.values()) for name, counts in rows.items()} == {
        name: len(HOSTILE) * len(arguments()) for name, (_, arguments) in EVERY_CALL.items()
    }
    assert not any(counts[outcome] for counts in rows.values() for outcome in OUTCOMES[3:])


@pytest.mark.parametrize("space", ["", "criticality", "exact", "special", "readers", "plots", "gaussian", "stax"])
def test_every_argument_of_a_public_function_is_replaced(space):
    """Of classes, those that users make themselves."""
    module, missing = getattr(ww, space) if space else ww, {}
    for name in set(module.__all__) - ELSEWHERE:
        public = getattr(module, name)
        calls = [arguments for call, (_, arguments) in EVERY_CALL.items() if name in re.findall(r"\w+", call)]
        if not calls or not (inspect.isfunction(public) or (inspect.isclass(public) and name in EVERY_CALL)):
            continue
        own = inspect.signature(public).parameters.values()
        asked = {one.name for one in own if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
        missing |= {name: left} if (left := asked.difference(*(arguments() for arguments in calls))) else {}
    assert missing == {}


@pytest.mark.full
def test_valid_calls_are_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for get, arguments in (EVERY_CALL[name] for name in MORE):
        get()(**arguments())


def test_nan_is_documented_where_it_is_allowed():
    for result in (
        ww.Advice,
        ww.Audit,
        ww.CoordinateCheck,
        ww.Critical,
        ww.ModelAdvice,
        ww.ProxyWidth,
        StableStep,
        DepthWidth,
    ):
        text = str(inspect.getdoc(result))
        assert "NaN" in text
        assert all(f"`{field}`" in text for field in NAN_IS_DOCUMENTED[result.__name__])
    assert "NAME_order, NaN where" in str(inspect.getdoc(ww.measure))


@pytest.mark.parametrize(("field", "wrong"), [("kernel_shift", False), ("kernel_variance", True)])
def test_nan_is_found_in_fields_of_results(field, wrong):
    found = ww.depth_width(NET, X[0], deepest=4)
    assert has_nan({"found": [replace(found, **{field: math.nan})]}) == wrong


FLAT = "ww.Network([ww.Conv(2, 4, (1,)), 'relu', ww.Flatten(), ww.Dense(12, 1)])"
NO_FULL_RANK = {
    "noise": "0.0",
    "order": "1",
    "net": "ww.MLP([3, 63, 2], 'selu', C_b=0.0, C_W=0.991)",
    "X_train": "np.array([[1.884e-06, 1.818e-07, 1.227e-06], [-6.99e-07, 1.086e-06, 1.609e-07], [-5.906e-07, -2.098e-06, 1.556e-06], [3.472e-07, -1.983e-06, 1.074e-06]])",
    "y_train": "np.array([[-2.096, 1.73], [0.051, -0.028], [-0.755, -0.542], [0.143, 0.031]])",
    "X_test": "np.array([[1.467, -0.4021, 0.9672], [-0.302, -1.466, 1.177]])",
}
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
        ("Attention", {"mechanism": "np.array(['a', 'b'])"}),
        ("Attention", {"keys": "[]"}),
        ("Parallel", {"join": "np.zeros(2)"}),
        ("AvgPool", {"padding_counts": "np.nan"}),
        ("parametrisation", {"output": "np.array(['a', 'b'])"}),
        ("audit", {"batch": "np.zeros((0, 2))"}),
        ("audit", {"draws": "10**30"}),
        ("coordinate_check", {"make": "np.zeros(2)"}),
        ("coordinate_check", {"make": "len"}),
        ("coordinate_check", {"X": "'all'"}),
        ("coordinate_check", {"y": "np.zeros((3, 1))"}),
        ("coordinate_check", {"widths": "[4, 10**30]"}),
        ("coordinate_check", {"widths": "[4, 10**7]"}),
        ("coordinate_check", {"steps": "[[1], [1, 2]]"}),
        ("coordinate_check", {"seeds": "10**30"}),
        ("train", {"X_test": "1e200 * np.ones((2, 2))"}),
        ("train", {"checkpoint": "True"}),
        ("measure", {"checkpoint": "'a' * 10**5"}),
        ("measure", {"engine": "np.zeros(2)"}),
        ("theory", {"progress": "np.zeros(2)"}),
        ("theory", {"dtype": "np.zeros(2)"}),
        ("theory of images", {"X2": "np.zeros((2, 2, 2))"}),
        ("advise", {"largest_step": "len"}),
        ("readers.from_stax", {"parameterization": "np.zeros(2)"}),
        ("criticality.make_critical", {"unit": "np.zeros(2)"}),
        ("gaussian.four_point", {"families": "'text'"}),
        ("gaussian.four_point", {"K": "'text'"}),
        ("exact.interpolation_scale_limit", {"prior_scale": "None"}),
        ("special.catapult_map", {"residual": "np.inf"}),
        ("special.catapult_map", {"residual": "np.ones(2)", "target": "np.ones(3)"}),
        ("plots.plot_flow", {"theory": "X"}),
        ("plots.plot_phase", {"net": "'tanh'"}),
        ("plots.save_figure", {"path": "'figure.doc'"}),
        ("stax.Dense", {"W_std": "'text'"}),
        ("stax.Conv", {"filter_shape": "3"}),
        ("stax.Conv", {"s": "np.zeros(2)"}),
        ("stax.Hermite", {"degree": "10**30"}),
        ("stax.repeat", {"n": "10**30"}),
        ("stax.FanOut, FanInConcat, parallel", {"num": "10**30"}),
        ("stax init_fn, apply_fn", {"rng": "0"}),
        ("stax init_fn, apply_fn", {"input_shape": "'text'"}),
        ("stax init_fn, apply_fn", {"inputs": "np.array([[np.nan, 1.0]])"}),
        ("stax kernel_fn", {"x1": "np.zeros((0, 2))"}),
        ("ExactLaw.moment", {"k": "10**30"}),
        ("ExactLaw.kernel_cdf", {"g": "np.nan"}),
        ("ProductLaw.cdf", {"log_rho": "1e300"}),
        ("Interpolation.norm_density", {"rho": "-1.0"}),
        ("Critical.laws", {"K": "None"}),
        ("Comparison.to_csv", {"path": "None"}),
        ("MLP.up_to", {"layer": "0"}),
        ("MLP.replace", {"widths": "None"}),
        ("MLP.from_json", {"text": "None"}),
        ("MLP.from_dict", {"activations": "True"}),
        ("MLP.mup", {"C_W": "None"}),
        ("Study.from_dict", {"tables": "{'data': {}}"}),
        ("Study.from_toml", {"path": "None"}),
        ("special.linear_pieces_in_polygon", {"layers": "np.array(1.0)"}),
        ("measure of images", {"net": FLAT, "statistics": "['D']"}),
        ("exact.kurtosis_by_depth", {"net": "ww.ResMLP([2, 8, 1], 'linear')"}),
        ("sample_posterior", NO_FULL_RANK),
        ("trained_kernel", {"net": "ww.ResMLP([2, 8, 1], 'sin')", "by_layer": "True"}),
        ("model_nngp", {"draws": "10**30"}),
        ("model_nngp", {"make": "len"}),
        ("advise on a model", {"draws": "10**30"}),
        ("readers.from_flax", {"positions": "-1"}),
        ("readers.from_equinox", {"positions": "len"}),
        ("KernelLaw.expectation", {"function": "len"}),
        ("KernelLaw.expectation", {"function": "None"}),
        ("MarchenkoPastur.fluctuation", {"function": "lambda x: 1 / 0"}),
        ("FourPoint.full", {"o_1": "[]"}),
        ("FourPoint.full", {"o_1": "2"}),
        ("Network.up_to", {"layer": "10**30"}),
        ("Network.with_learned", {"layers": "[]"}),
        ("Network.with_learned", {"layers": "None"}),
        ("Network.with_learned", {"layers": "np.array(1.0)"}),
        ("evidence_grid", {"depth": "theory()"}),
        ("evidence_grid", {"activation": "[]", "depth": "1"}),
        ("evidence_grid", {"activation": "'quadratic'", "X_train": "1e-6 * X", "depth": "5", "order": "1"}),
        ("Network.shapes", {"shape": "[[]]"}),
        ("Network.check_inputs", {"X": "{1}", "name": "np.ones((2, 2))"}),
        ("Network.check_inputs", {"X": "np.ones((2, 4))", "name": "np.ones((2, 2))"}),
        ("gaussian.four_point", {"K": "np.eye(3) + 2.01", "progress": "np.zeros(2)"}),
        ("gaussian.four_point", {"K": "np.eye(3) + 0.07", "progress": "len"}),
        ("stax init_fn, apply_fn", {"input_shape": "[1, 2, 3]"}),
        ("special.hyperplane_regions", {"hyperplanes": "10**30", "dimension": "10**30"}),
        ("special.hyperplane_regions", {"hyperplanes": "10**30", "dimension": "10**8"}),
        ("plots.plot_output_density", {"net": "ww.MLP([2, *[64] * 6, 1], 'cubic', C_b=0.06, C_W=2.0)", "x": "X[0]"}),
        (
            "plots.trained_functions",
            {
                "net": "ww.MLP([1, 56, 13, 1, 11, 1], 'cubic', C_b=1.0, C_W=2.46)",
                "X_train": "np.array([[-0.895], [0.2326]])",
                "networks": "21",
            },
        ),
    ],
)
def test_what_the_soak_found_is_answered_or_refused(name, arguments):
    with somewhere_else():
        found = made(name, arguments)
    assert found[0] not in (*WRONG, SLOW), found


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

    monkeypatch.setitem(EVERY_CALL, "broken", (lambda: broken, lambda: {"K": 1.0, "C_W": 1.0, "C_b": 0.0}))
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
