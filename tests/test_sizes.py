"""Sizes that would not fit are refused in one line, before anything is allocated."""

import numpy as np
import pytest

import widthwise as ww
from widthwise.cli.main import main
from widthwise.experiments.outputs import descent_paths, sample_outputs
from widthwise.experiments.tally import Chunk, Chunks

X, Y, X_TEST = np.array([[1.0, 0.5], [0.3, -1.0]]), [0.5, 0.7], [[0.2, 0.1]]
NET = ww.MLP([2, 8, 1], "relu", C_W=2.0)
WIDE = ww.MLP([2, 10**6, 10**6, 1], "relu")
MANY = np.broadcast_to(np.ones(2), (3 * 10**6, 2))

IMAGES = np.ones((2, 4, 4, 3))


def convolution(*window, **how):
    return ww.Network([ww.Conv(3, 8, *window, **how), "relu", ww.GlobalAvgPool(), ww.Dense(8, 1)])


def test_a_window_beyond_the_image_costs_what_it_meets_of_it():
    """Zeros outside add nothing: with relu and no biases K is like 1/entries as soon as every window covers the image."""
    rows = IMAGES.shape[1]
    near, far = (ww.theory(convolution((size, 1)), IMAGES)["K"].values[-1] * size for size in (2 * rows + 1, 10**9))
    assert np.allclose(near, far, rtol=1e-12)
    centre, apart = (ww.theory(convolution((3, 3), **how), IMAGES)["K"].values[-1] for how in ({}, {"dilation": 10**9}))
    assert np.allclose(apart, ww.theory(convolution((1, 1)), IMAGES)["K"].values[-1] / 9)
    assert not np.allclose(apart, centre)


REFUSED = {
    "window": lambda: ww.theory(convolution((10**9, 1), padding="CIRCULAR"), IMAGES),
    "points": lambda: ww.dataset("circle", 10**9),
    "measure, width": lambda: ww.measure(WIDE, X, networks=4),
    "measure, widths": lambda: ww.measure(ww.MLP([2, 8, 8, 1], "relu"), X, networks=4, widths=[8, 10**7]),
    "measure, batch": lambda: ww.measure(NET, X, networks=4, batch=10**12),
    "measure, inputs": lambda: ww.measure(NET, MANY, networks=4),
    "train, width": lambda: ww.train(WIDE, X, Y, X_TEST, networks=4),
    "train, batch": lambda: ww.train(NET, X, Y, X_TEST, networks=4, batch=10**12),
    "train, inputs": lambda: ww.train(NET, MANY, MANY[:, 0], X_TEST, networks=4),
    "theory, inputs": lambda: ww.theory(NET, MANY),
    "predict, inputs": lambda: ww.predict(NET, MANY, MANY[:, 0], X_TEST),
    "posterior, inputs": lambda: ww.posterior(NET, MANY, MANY[:, 0], X_TEST),
    "predict, test inputs": lambda: ww.predict(NET, X, Y, MANY),
    "posterior, test inputs": lambda: ww.posterior(NET, X, Y, MANY),
    "max_learning_rate, inputs": lambda: ww.max_learning_rate(NET, MANY),
    "samples of the prior": lambda: ww.sample_prior(NET, X, draws=10**12),
    "samples, a hundred digits": lambda: ww.sample_prior(NET, X, draws=10**99),
    "samples of the posterior": lambda: ww.sample_posterior(NET, X, Y, X_TEST, draws=10**12),
    "evidence, depth": lambda: ww.evidence_grid("relu", X, Y, depth=10**9, width=8),
    "evidence, grid": lambda: ww.evidence_grid("relu", X, Y, depth=range(1, 10**5), width=range(1, 10**6)),
    "phase diagram": lambda: ww.phase_diagram("relu", np.linspace(1, 2, 10**6), np.linspace(0, 1, 10**6)),
    "critical line": lambda: ww.criticality.critical_line("tanh", 10**10),
    "learning rates": lambda: ww.criticality.power_law_rates("relu", 10**11),
    "depth_width": lambda: ww.depth_width(NET, deepest=10**12),
    "sawtooth": lambda: ww.special.sawtooth_network(10**9),
    "orbit": lambda: ww.special.catapult_orbit(1.0, 1.0, 0.1, 0.1, steps=10**12),
    "deep linear": lambda: ww.exact.deep_linear(ww.MLP([2, 8, 1], "linear"), np.ones((2000, 2))),
    "kernel step": lambda: ww.exact.kernel_step(NET, np.eye(500)),
    "exact law, relu": lambda: ww.exact_law(ww.MLP([2, 10**11, 1], "relu"), [1.0, 1.0]),
    "exact law, step": lambda: ww.exact_law(ww.MLP([2, 10**11, 1], "step"), [1.0, 1.0]),
    "outputs": lambda: sample_outputs(NET, X, networks=2**32 - 1),
    "paths": lambda: descent_paths(NET, X, Y, X_TEST, 0.1, [0, 1], networks=2**32 - 1),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_before_it_is_taken(name):
    with pytest.raises(
        ww.errors.TooLarge, match=r"^memory: got .*, which needs .*iB; expected at most .*\. \S"
    ) as caught:
        REFUSED[name]()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call", [ww.measure, lambda net, X, **more: ww.train(net, X, Y, X_TEST, **more)])
def test_networks_and_seeds_fit_into_random_keys(call):
    with pytest.raises(
        ww.WidthwiseError, match=r"networks: got 1000000000000; expected an integer of at least \d, at most 4294967295"
    ):
        call(NET, X, networks=10**12)
    with pytest.raises(
        ww.WidthwiseError, match="seed: got 1000000000000000000000; expected an integer of at least 0, at most"
    ):
        call(NET, X, networks=4, seed=10**21)
    with pytest.raises(ww.WidthwiseError, match="engine: got 10000000; expected .*a number of processes up to 1024"):
        call(NET, X, networks=4, engine=10**7)


def test_the_list_of_work_is_made_as_it_is_done():
    class Job:
        parts, chunk = (0, 1), 4

    chunks = Chunks.of(Job(), 10**15 + 1)
    assert len(chunks) == 2 * (10**15 // 4 + 1)
    assert list(chunks[:3]) == [Chunk(0, 0, 4), Chunk(1, 0, 4), Chunk(0, 4, 8)]
    assert chunks[-1] == chunks[5:][-1] == Chunk(1, 10**15, 10**15 + 1)


def test_points_on_the_command_line_are_asked_for_first(capsys):
    assert main(["theory", "--data", "circle", "--points", "1000000000", "--widths", "2,8,1"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "a data set of 1000000000 points, which needs" in error


def test_an_axis_on_the_command_line_is_asked_for_with_what_is_made_on_the_way(monkeypatch, capsys):
    monkeypatch.setattr("widthwise.memory.available_bytes", lambda: 2**30)
    assert main(["phase", "tanh", "--C_W", "1:2:100000000"]) == 2  # 0.75 GiB, three times over
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "100000000 values of --C_W, which needs 3.0 GiB; expected at most 1.0 GiB" in error
