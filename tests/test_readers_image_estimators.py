"""scikit-learn estimators on images, by a network of the user's own."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score

import widthwise as ww
from widthwise.errors import InvalidInput

WEIGHTS = {"C_W": 2.0, "C_b": 0.01, "lambda_W": 2.0, "lambda_b": 0.01}
PIXELS, LABELS = (part[:130] for part in load_digits(return_X_y=True))
IMAGES = PIXELS.reshape(-1, 8, 8, 1)[:, ::2, ::2] / 8.0 - 1.0


def network(*end):
    return ww.Network([ww.Conv(1, 64, (3, 3), **WEIGHTS), "relu", ww.Conv(64, 64, (3, 3), **WEIGHTS), "relu", *end])


FLAT = network(ww.Flatten(), ww.Dense(64 * 16, 1, **WEIGHTS))
POOLED = network(ww.GlobalAvgPool(), ww.Dense(64, 1, **WEIGHTS))


@pytest.mark.parametrize("net", [FLAT, POOLED], ids=["flatten", "mean"])
def test_images_are_classified_by_their_kernel(net):
    model = ww.NTKClassifier(net=net, noise=0.01).fit(IMAGES[:100], LABELS[:100])
    Theta = ww.theory(net, IMAGES[:100], layers="last")["Theta"].values[0]
    targets = 2.0 * (LABELS[:100, None] == np.arange(10)) - 1.0
    solved = np.linalg.solve(Theta + 0.01 * np.eye(100), targets - targets.mean(axis=0))
    np.testing.assert_allclose(model.dual_coef_, solved, rtol=1e-6, atol=1e-8)
    assert model.score(IMAGES[100:], LABELS[100:]) > 0.4  # one in ten by chance
    np.testing.assert_allclose(model.predict_proba(IMAGES[100:103]).sum(axis=1), 1.0)


def test_images_go_through_the_tools_of_scikit_learn():
    scores = cross_val_score(ww.NTKClassifier(net=FLAT), IMAGES[:60], LABELS[:60], cv=2)
    assert scores.mean() > 0.3
    mean, std = ww.NNGPRegressor(net=FLAT, noise=1e-6).fit(IMAGES[:20], LABELS[:20]).predict(IMAGES[:5], True)
    np.testing.assert_allclose(mean, LABELS[:5], atol=1e-3)
    assert (std < 0.1).all()


@pytest.mark.parametrize(
    ("model", "X", "message"),
    [
        (ww.NTKClassifier(net=FLAT), IMAGES[:10, ..., 0], r"X\[\.\.\., None\]"),
        (ww.NTKClassifier(net=FLAT), IMAGES[:10, :2, :2], r"64 .*features|expected the 1024 inputs"),
        (ww.NTKClassifier(net=FLAT, choose="evidence"), IMAGES[:10], "None with a net of your own"),
        (ww.NTKClassifier(net="conv"), IMAGES[:10], "net: got str"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(model, X, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        model.fit(X, LABELS[:10])
    assert "\n" not in str(caught.value)


def test_fluctuations_of_images_are_measured_without_theory():
    """Kurtosis of outputs and variance of kernels over networks fall like 1/width: by about a half at twice the width."""
    images = np.random.default_rng(0).normal(size=(2, 4, 4, 1))
    found = {}
    for width in (8, 16):
        net = ww.Network(
            [ww.Conv(1, width, (3, 3), **WEIGHTS), "relu", ww.GlobalAvgPool(), ww.Dense(width, 4, **WEIGHTS)]
        )
        found[width] = ww.measure(net, images, networks=3000, seed=1, statistics=["V", "A"])
    for name in ("V", "A"):  # coefficients of 1/n
        a, b = (found[width][name].values.ravel()[0] for width in (8, 16))
        errors = [found[width][name + "_se"].values.ravel()[0] for width in (8, 16)]
        assert a > 6 * errors[0]
        assert abs(a - b) < 4.5 * np.hypot(*errors) + 0.3 * a
