"""Training runs that are long: memory, a full disk, work that cannot be sent. `test_engines.py` stops and resumes them."""

import resource

import jax.numpy as jnp
import numpy as np
import pytest
from engine_jobs import NET, TRAINED, X, trained
from peak_memory import growth

import widthwise as ww
from widthwise.errors import CheckpointWarning, InvalidInput
from widthwise.experiments import checkpoints
from widthwise.experiments.training.train import train


@pytest.fixture(autouse=True)
def _written_at_once(monkeypatch):
    monkeypatch.setattr(checkpoints, "INTERVAL", 0.0)


def test_memory_does_not_grow_with_the_number_of_networks():
    net, data = ww.MLP([2, 64, 1], "tanh", C_b=0.1, C_W=1.5), (X, [0.5], [[0.2, -0.4]])

    def run(networks):
        found = train(net, *data, networks, TRAINED["algorithm"])
        assert found.attrs["networks"] == networks

    run(1000)
    assert growth(lambda: run(50_000)) < 40  # MiB; the parameters alone are 2 KiB a network
    # negative control: the gauge shows what is kept
    assert growth(lambda: np.ones((50_000, 257))) > 90


def test_a_full_disk_is_warned_of_once_and_the_run_goes_on(tmp_path):
    expected, limits = trained(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.warns(CheckpointWarning, match=r"could not be written \(File too large\); the run goes on") as seen:
            found = trained(checkpoint=tmp_path / "sums.npz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(seen) == 1
    assert found.identical(expected)
    assert list(tmp_path.iterdir()) == []


def test_networks_that_are_not_finite_are_counted_and_named_in_a_resumed_run_too(tmp_path):
    net = ww.MLP([2, 8, 1], "linear")
    how = ww.GradientDescent(1.2 * ww.max_learning_rate(net, X))

    def run(networks, **options):
        with pytest.warns(
            ww.errors.NonFiniteWarning, match=r"of \d+ networks \(indices \[\d+.* of seed 0 end with numbers"
        ):
            return train(net, X, [0.5], X, networks, how, batch=16, **options)

    whole, path = run(160), tmp_path / "sums.npz"
    run(80, checkpoint=path)
    assert run(160, checkpoint=path).identical(whole)
    where = whole.attrs["nonfinite_networks"]
    assert 0 < whole.attrs["nonfinite"] < 158
    assert whole.attrs["nonfinite"] + whole.attrs["networks"] == 160
    assert where == sorted(set(where))


def test_functions_that_cannot_be_sent():
    own = ww.MLP([2, 4, 1], lambda z: jnp.tanh(z))
    with pytest.raises(InvalidInput, match="work that cannot be sent to them .*Define your own activation at the top"):
        train(own, X, [0.5], X, 4, engine=2)


def test_no_scheduler_at_the_address(monkeypatch):
    monkeypatch.setattr("widthwise.experiments.engines.CLUSTER_PATIENCE", 0.3)
    with pytest.raises(InvalidInput, match=r"'tcp://127.0.0.1:9', where no Dask scheduler answered within 0.3 s"):
        train(NET, X, [0.5], X, 4, engine="tcp://127.0.0.1:9")
