"""The estimators obey scikit-learn's conventions and the theory's formulas."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import widthwise as ww
from widthwise.readers import kernel_solvers
from widthwise.readers.kernel_solvers import Kernel, make_solver

rng = np.random.default_rng(0)
X, x = rng.normal(size=(40, 3)), rng.normal(size=(5, 3))
Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
ALL = [ww.NNGPRegressor(), ww.NTKRegressor(), ww.NTKClassifier(), ww.FiniteWidthRegressor(order=0)]


def passes_the_checks(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_fail=None)
    assert {result["check_name"]: str(result["exception"]) for result in results if result["status"] == "failed"} == {}
    assert sum(result["status"] == "passed" for result in results) > 45


@pytest.mark.parametrize("estimator", ALL, ids=lambda e: type(e).__name__)
def test_scikit_learns_own_checks_pass(estimator):
    passes_the_checks(estimator)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_scikit_learns_own_checks_pass_with_corrections():
    passes_the_checks(ww.FiniteWidthRegressor(max_points=3))


def test_the_nngp_is_the_posterior_of_the_library():
    model = ww.NNGPRegressor(activation="erf", noise=0.05).fit(X, Y)
    mean, std = model.predict(x, return_std=True)
    scaled = (Y - Y.mean(axis=0)) / Y.std(axis=0)
    b = ww.posterior(model.net_, X, scaled, x, noise=0.05)
    np.testing.assert_allclose(mean, b["mean"].values.T * Y.std(axis=0) + Y.mean(axis=0), rtol=1e-8)
    np.testing.assert_allclose(std**2, np.einsum("ixix->xi", b["cov"].values) * Y.var(axis=0), rtol=1e-6)
    assert model.log_evidence_ == pytest.approx(float(b["log_evidence"]))


def test_without_hidden_layers_it_is_the_linear_process_of_scikit_learn():
    model = ww.NNGPRegressor(hidden_layers=0, C_b=0.5, C_W=3.0, noise=0.1).fit(X, Y[:, 0])
    y = (Y[:, 0] - Y[:, 0].mean()) / Y[:, 0].std()
    peer = GaussianProcessRegressor(ConstantKernel(1.0) * DotProduct(sigma_0=0.5**0.5), alpha=0.1, optimizer=None).fit(
        X, y
    )
    mean, std = peer.predict(x, return_std=True)
    ours, spread = model.predict(x, return_std=True)
    np.testing.assert_allclose(ours, mean * Y[:, 0].std() + Y[:, 0].mean(), rtol=1e-8)
    np.testing.assert_allclose(spread, std * Y[:, 0].std(), rtol=1e-6)


def test_ntk_and_finite_width_are_predict_of_the_library():
    few, targets = X[:4], Y[:4, :1]
    scaled = (targets - targets.mean(axis=0)) / targets.std(axis=0)
    model = ww.NTKRegressor(activation="gelu", hidden_layers=1, noise=0.0).fit(few, targets)
    finite = ww.FiniteWidthRegressor(width=64, max_points=4).fit(few, targets)
    assert finite.exact_
    p = ww.predict(finite.net_, few, scaled, x[:1], order=1)
    for estimator, kind in ((model, "0"), (finite, "")):
        mean, std = estimator.predict(x[:1], return_std=True)
        np.testing.assert_allclose(mean, p[f"mean{kind}"].values.T * targets.std() + targets.mean(), rtol=1e-7)
        np.testing.assert_allclose(std[:, 0] ** 2, np.diag(p[f"cov{kind}"].values[0, :, 0]) * targets.var(), rtol=1e-6)


def test_corrections_from_some_inputs_say_so_and_leave_the_leading_order_alone():
    leading = ww.FiniteWidthRegressor(width=10**9, order=0).fit(X, Y[:, :1])
    wide = ww.FiniteWidthRegressor(width=10**9, max_points=4).fit(X, Y[:, :1])
    assert not wide.exact_
    assert len(wide.points_) == 4
    np.testing.assert_allclose(wide.predict(x[:1]), leading.predict(x[:1]), rtol=1e-6)
    np.testing.assert_allclose(leading.predict(X), Y[:, :1], atol=1e-6)


@pytest.mark.parametrize("name", ["K", "Theta"])
def test_conjugate_gradients_agree_with_cholesky(name):
    """No eigenvalue is below the ridge, so a residual of `tolerance` leaves an error of at most tolerance |b|/ridge."""
    inputs = np.random.default_rng(2).normal(size=(600, 4))
    net = ww.MLP.ntk([4, 8, 8, 1], "relu", 0.1, 2.0)
    right = np.stack([np.sin(inputs[:, 0]), inputs[:, 1] ** 2], axis=1)
    exact, iterative = (make_solver(Kernel(net, name), inputs, 0.05, solver) for solver in ("cholesky", "cg"))
    found, known = iterative.solve(right), exact.solve(right)
    bound = 1e-6 * np.linalg.norm(right, axis=0) / 0.05
    assert (np.linalg.norm(found - known, axis=0) < bound).all()
    assert (np.linalg.norm(known, axis=0) > 100 * bound).all()
    assert 1 < iterative.iterations < 60


@pytest.mark.parametrize("kernel", ["infinite", "mean"])
@pytest.mark.parametrize(("room", "made"), [(0, 8), (8 * 64 * 64, 7), (8 * 64 * (64 + 128), 6), (1 << 30, 4)])
def test_blocks_that_are_kept_are_made_once_and_no_more_than_there_is_room_for(kernel, room, made, monkeypatch):
    """Two products of a kernel in four blocks; the blocks' sizes are 64 rows by 64, 128, 192 and 200 inputs."""
    monkeypatch.setitem(kernel_solvers.KERNEL_ROWS, "cpu", 64)
    inputs, vectors = (np.random.default_rng(seed).normal(size=(200, 3)) for seed in (1, 2))
    net = ww.MLP.ntk([3, 16, 16, 1], "tanh", 0.1, 2.0)
    whole = Kernel(net, "Theta", kernel)(inputs)
    shapes, call = [], Kernel.__call__

    def counted(self, X, X2, **how):
        shapes.append((len(X), len(X2)))
        return call(self, X, X2, **how)

    monkeypatch.setattr(Kernel, "__call__", counted)
    kept = kernel_solvers.KeptBlocks(room)
    for _ in range(2):
        product = Kernel(net, "Theta", kernel).times(inputs, vectors, kept)
        np.testing.assert_allclose(product, whole @ vectors, rtol=1e-11, atol=1e-11 * np.abs(product).max())
    assert len(shapes) == made
    assert shapes[:4] == [(64, 64), (64, 128), (64, 192), (8, 200)]  # a triangle: half of the pairs
    held = sum(block.nbytes for block in kept.blocks.values())
    assert held + kept.room == room
    again = pickle.loads(pickle.dumps(kept))
    assert (again.room, again.blocks) == (room, {})


def test_an_estimator_with_conjugate_gradients_predicts_the_same_and_survives_pickling():
    inputs = np.random.default_rng(2).normal(size=(384, 4))
    target = np.sin(inputs[:, 0])
    model, other = (ww.NTKRegressor(solver=solver, noise=0.05).fit(inputs, target) for solver in ("cg", "cholesky"))
    assert (model.solver_, other.solver_) == ("cg", "cholesky")
    for ours, exact in zip(model.predict(inputs[:7], True), other.predict(inputs[:7], True), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(inputs[:7]), model.predict(inputs[:7]))


def test_evidence_finds_the_noise_and_beats_its_starting_point():
    """Targets drawn from the prior of a known network with noise 0.1 of their variance."""
    net = ww.MLP.ntk([3, 8, 1], "erf", 0.3, 2.0)
    inputs = np.random.default_rng(5).normal(size=(150, 3))
    clean = ww.sample_prior(net, inputs, seed=3).values.ravel()
    y = clean + np.sqrt(0.1 * clean.var()) * np.random.default_rng(6).normal(size=150)
    chosen = ww.NNGPRegressor(hidden_layers=1, activation="erf", choose="evidence").fit(inputs, y)
    assert chosen.noise_ * y.var() == pytest.approx(0.1 * clean.var(), rel=0.5)
    for noise in (0.01, 0.1, 1.0):
        given = ww.NNGPRegressor(hidden_layers=1, activation="erf", C_b=0.3, noise=noise).fit(inputs, y)
        assert chosen.log_evidence_ > given.log_evidence_ - 0.5


def test_votes_of_the_ensemble_are_probabilities_and_match_sampled_networks():
    labels = np.array(["a", "b", "c"])[np.argmax(X[:, :3] + 0.3 * X[:, ::-1], axis=1)]
    model = ww.NTKClassifier(activation="erf", noise=0.2).fit(X, labels)
    shares = model.predict_proba(x)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (model.classes_[shares.argmax(axis=1)] == model.predict(x)).all()
    draws = model.decision_function(x)[None] + np.random.default_rng(1).normal(size=(40_000, 5, 3))
    counted = np.stack([(draws.argmax(axis=2) == k).mean(axis=0) for k in range(3)], axis=1)
    assert np.abs(counted - shares).max() < 5 * np.sqrt(0.25 / 40_000)


def test_pipelines_grid_search_and_cross_validation():
    data, target = load_diabetes(return_X_y=True)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), ww.NNGPRegressor(activation="erf")), {"nngpregressor__noise": [0.1, 1.0]}, cv=3
    ).fit(data[:200], target[:200])
    assert search.best_score_ > 0.3
    digits, labels = load_digits(return_X_y=True)
    scores = cross_val_score(ww.NTKClassifier(C_b=0.01, noise=0.01), digits[:500] / 16.0, labels[:500], cv=3)
    assert scores.mean() > 0.9


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({"solver": "lu"}, "solver: got 'lu'"), ({"choose": "luck"}, "choose: got 'luck'"), ({"noise": -1.0}, "noise: got -1.0"),
     ({"hidden_layers": -1}, "hidden_layers: got -1"), ({"activation": "rleu"}, "Did you mean 'relu'")],
    ids=range(5),
)  # fmt: skip
def test_bad_parameters_are_refused_by_name(parameters, said):
    with pytest.raises(ww.WidthwiseError, match=said):
        ww.NNGPRegressor(**parameters).fit(X, Y)
