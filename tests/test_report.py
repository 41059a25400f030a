"""The report: one file that needs nothing else, says how its numbers were obtained, and can be made again."""

import re

import numpy as np
import pytest

import widthwise as ww
from widthwise.report import find, learning_curves, study_of, write_report
from widthwise.report.page import plain_summary
from widthwise.study import Data, Study, default_study

SECTIONS = ("network", "criticality", "kernels", "finite-width", "training", "measurement", "method")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    net = ww.MLP([1, 8, 1], "tanh", C_b=0.1, C_W=1.5)
    data = Data([[1.0], [-0.5]], [0.5, -0.5], [[0.2]], name="a <b> & c")
    study = Study(net, data, ww.GradientDescent(0.5, 4), networks=64, trained=16, seed=3)
    path = tmp_path_factory.mktemp("report") / "report.html"
    return study, write_report(study, path), path


def test_every_section_is_there_with_its_figures(made):
    _, found, path = made
    page = path.read_text()
    assert [key for key in SECTIONS if f"<section id='{key}'>" in page] == list(SECTIONS)
    assert page.count("<figure>") == 11
    assert "Not computed" not in page
    assert found.notes == []
    for row in found.comparison:
        assert f"<td class=word>{row.variable}</td>" in page
    assert {"V", "A", "T", "H1"} <= {row.variable for row in found.comparison}


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (ww.MLP([2, 1024, 1], "relu", C_W=2.0), ("initialisation needs no change", "almost alike")),
        (ww.MLP([2, *[32] * 12, 1], "relu", C_W=0.5), ("die out", "very differently|little in common")),
        (ww.MLP([2, *[32] * 12, 1], "relu", C_W=6.0), ("grow out of bounds", "very differently|little in common")),
        (ww.MLP([2, 128, 1], "tanh", C_b=0.1, C_W=1.5), ("not very deep", "behave")),
    ],
)
def test_the_summary_has_no_symbols_and_says_what_the_advice_says(net, words):
    study = Study(net, Data([[1.0, 0.5]]), networks=0, trained=0)
    summary = " ".join(plain_summary(find(study)))
    for part in words:
        assert re.search(part, summary), summary
    assert not re.search(r"[χΘλσ_²]|1/n", summary)


def test_the_file_needs_nothing_from_outside(made):
    page = made[2].read_text()
    assert len(page) < 5_000_000
    assert not re.search(r"<(?:link|iframe|object|embed)\b|@import|url\(", page)
    assert all(source.startswith("data:") for source in re.findall(r"(?:src|srcset)='([^']*)'", page))
    assert all(link.startswith("#") for link in re.findall(r"href='([^']*)'", page))
    assert re.findall(r"<script[^>]*>", page) == ['<script type="application/json" id="widthwise-study">']
    assert "a &lt;b&gt; &amp; c" in page
    assert "<b> & c" not in page.split("widthwise-study")[0]


def test_the_study_is_inside(made):
    study, _, path = made
    again = study_of(path)
    assert again.to_json() == study.to_json()
    assert again.algorithm == study.algorithm
    assert np.array_equal(again.data.X_train, study.data.X_train)


def test_the_same_study_makes_the_same_file(tmp_path):
    study = Study(ww.MLP([1, 4, 1], "step"), Data([[1.0]]), networks=0, trained=0)
    found = write_report(study, tmp_path / "one.html")
    write_report(study_of(tmp_path / "one.html"), tmp_path / "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert found.measured is None
    assert "measured: not computed, as the study asks for no networks" in (tmp_path / "one.html").read_text()


def test_what_cannot_be_computed_is_said(tmp_path):
    study = Study(ww.MLP([1, 4, 1], "step"), Data([[1.0]], [1.0], [[0.5]]), networks=0, trained=0)
    found = write_report(study, tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert found.predicted is None
    assert "cannot be trained by gradients" in page
    assert any(note.startswith("predicted: not computed.") for note in found.notes)
    assert "predicted: not computed." in page


def test_learning_curves_end_where_predict_says_and_networks_stay_in_the_band():
    net, X, y, tests = ww.MLP([1, 256, 1], "tanh", C_b=0.1, C_W=1.5), [[1.0], [-0.5]], [0.5, -0.5], [[0.2], [2.0]]
    predicted, measured = learning_curves(net, X, y, tests, 0.5, steps=[0, 3, 9], networks=256, seed=2)
    p = ww.predict(net, X, y, tests, ww.GradientDescent(0.5, 9), order=1)
    assert np.allclose(predicted["mean"].values[-1], p["mean"].values, atol=1e-12)
    assert np.allclose(predicted["cov"].values[-1], p["cov"].values, atol=1e-12)
    paths = measured["path"].values[:, :, 0]
    deviation = np.sqrt(np.einsum("sixix->six", predicted["cov"].values)[:, 0])
    pull = (paths.mean(axis=0) - predicted["mean"].values[:, 0]) / (deviation / 16)
    assert np.abs(pull).max() < 4.5
    frozen = (paths[:, :1].mean(axis=0) - predicted["mean"].values[:, 0]) / (deviation / 16)
    assert np.abs(frozen[1:]).max() > 5.0  # networks that do not learn are seen


@pytest.mark.full
def test_the_default_report_is_small_and_its_rows_agree(tmp_path):
    found = write_report(default_study(), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
    assert all(row.verdict != "disagrees" for row in (*found.comparison, *found.training))
