"""Kernels and trained ensembles in the conventions of neural-tangents, against numbers computed once with it."""

import json
from pathlib import Path

import numpy as np
import pytest

import widthwise as ww

DATA = json.loads((Path(__file__).parent / "data" / "neural_tangents.json").read_text())
ARGUMENTS = ("widths", "activation", "W_std", "b_std", "parameterization")


def network(case):
    return ww.readers.from_stax(*(case[name] for name in ARGUMENTS))


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: f"{case['activation']}-{case['parameterization']}-{len(case['widths'])}-{case['b_std']}")  # fmt: skip
def test_nngp_and_ntk_are_those_of_the_peer(case):
    square, cross = (
        ww.readers.stax_kernels(network(case), DATA["X"]),
        ww.readers.stax_kernels(network(case), DATA["X"], DATA["X2"]),
    )
    off = ~np.eye(4, dtype=bool)
    for name in ("nngp", "ntk"):
        peer = np.array(case[name])
        np.testing.assert_allclose(getattr(cross, name), case[f"{name}_cross"], rtol=1e-12)
        np.testing.assert_allclose(getattr(square, name)[off], peer[off], rtol=1e-12)
        # the peer takes an arc cosine of a rounded 1 on the diagonal of kinked activations
        np.testing.assert_allclose(np.diag(getattr(square, name)), np.diag(peer), rtol=3e-9)


def test_on_that_diagonal_ours_is_the_exact_one():
    case = DATA["cases"][0]
    ours = np.diag(ww.readers.stax_kernels(network(case), DATA["X"]).ntk)
    exact = 2 * 2 * (np.array(DATA["X"]) ** 2).sum(axis=1) / 3  # relu, W_std² = 2, no bias, L = 2: Θ = 2 · K
    np.testing.assert_allclose(ours, exact, rtol=1e-14)


def test_the_other_parameterisation_is_another_kernel():
    case = DATA["cases"][1] | {"parameterization": "standard"}
    assert not np.allclose(ww.readers.stax_kernels(network(case), DATA["X"]).ntk, DATA["cases"][1]["ntk"], rtol=0.1)


@pytest.mark.parametrize("trained", DATA["trained"], ids=lambda trained: f"t={trained['t']}")
def test_trained_ensembles_agree_once_time_is_divided_by_the_number_of_targets(trained):
    net = network(DATA["cases"][DATA["trained_case"]])
    time = None if trained["t"] is None else trained["t"] / np.size(DATA["y"])
    p = ww.predict(net, DATA["X"], DATA["y"], DATA["X2"], ww.GradientFlow(time=time))
    np.testing.assert_allclose(p["mean"].values.T, trained["mean"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(p["cov"].values[0, :, 0], trained["cov"], rtol=1e-9, atol=1e-12)


def test_an_unknown_parameterisation_is_refused():
    with pytest.raises(ww.WidthwiseError, match="parameterization: got 'mup'; expected one of ntk, standard"):
        ww.readers.from_stax([2, 8, 1], "relu", parameterization="mup")
