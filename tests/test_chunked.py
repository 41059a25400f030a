"""Kernels in blocks of Dask, written to Zarr piece by piece, on a cluster that loses a worker."""

import os
import signal

import numpy as np
import pytest

import widthwise as ww
from widthwise.errors import InvalidInput
from widthwise.results import chunked

X = np.random.default_rng(0).normal(size=(40, 5))
NET = ww.MLP([5, 8, 8, 1], "relu", C_W=2.0)


def test_blocks_are_the_kernel(tmp_path):
    whole, lazy = ww.theory(NET, X), ww.theory(NET, X, chunks=16)
    assert lazy["K"].data.chunksize[1:] == (16, 16)
    stored = ww.load(ww.save(lazy, tmp_path / "kernels.zarr"))
    assert ww.network_of(stored) == NET
    for name in ("K", "Theta"):
        np.testing.assert_allclose(stored[name].values, whole[name].values, rtol=1e-13)
        np.testing.assert_array_equal(stored[name].values, np.swapaxes(stored[name].values, 1, 2))
    rectangle = ww.theory(NET, X[:10], X[10:], chunks=7, tensors=["K"], layers="last")
    np.testing.assert_allclose(rectangle["K"].values[0], whole["K"].values[-1, :10, 10:], rtol=1e-13)


def test_a_run_that_was_ended_goes_on_where_it_was(tmp_path, monkeypatch):
    path, written, real = tmp_path / "kernels.zarr", [], chunked._store_written

    def ending(dataset, target, region):
        written.append(region)
        if len(written) == 4:
            raise KeyboardInterrupt
        return real(dataset, target, region)

    monkeypatch.setattr(chunked, "_store_written", ending)
    with pytest.raises(KeyboardInterrupt):
        ww.save(ww.theory(NET, X, chunks=10), path)
    before = len(written)
    ww.save(ww.theory(NET, X, chunks=10), path)
    assert len(written) - before == 5  # pieces 2 and 3 with their mirrored ones, and the last
    np.testing.assert_allclose(ww.load(path)["K"].values, ww.theory(NET, X)["K"].values, rtol=1e-13)
    with pytest.raises(InvalidInput, match="holds other kernels"):
        ww.save(ww.theory(NET, X + 1.0, chunks=10), path)


@pytest.mark.parametrize("bad", [0, -1, 2.5, "many"])
def test_a_side_that_is_no_number_of_inputs_is_refused(bad):
    with pytest.raises(InvalidInput, match="chunks: got"):
        ww.theory(NET, X, chunks=bad)
    with pytest.raises(InvalidInput, match="chunks: got 8 with order=1"):
        ww.theory(NET, X, order=1, chunks=8)


@pytest.mark.full
def test_a_cluster_that_loses_a_worker_gives_the_same_kernel(tmp_path):
    from distributed import Client, LocalCluster

    inputs = np.random.default_rng(1).normal(size=(3000, 5))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        pids = list(client.run(os.getpid).values())
        future = client.submit(lambda: None)
        future.result()
        os.kill(pids[0], signal.SIGKILL)
        stored = ww.load(ww.save(ww.theory(NET, inputs, chunks=500, layers="last"), tmp_path / "kernels.zarr"))
    whole = ww.theory(NET, inputs, layers="last")
    for name in ("K", "Theta"):
        np.testing.assert_allclose(stored[name].values, whole[name].values, rtol=1e-12)
