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


def test_more_blocks_than_can_be_listed_are_refused_with_what_would_do():
    """A list of 10¹⁰ blocks was begun."""
    with pytest.raises(InvalidInput, match=r"chunks: got 1, which makes 10,000,000,000 blocks; .*Take chunks=200\."):
        ww.theory(NET, np.ones((100_000, 5)), chunks=1)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (None, "x.zarr', which cannot be read"),
        ("zarr.json", "x.zarr', which cannot be read"),
        ("x.zarr.pieces.json", "x.zarr', whose 'x.zarr.pieces.json' cannot be read; .*Delete both"),
    ],
)
def test_a_store_that_is_none_or_damaged_is_refused(what, said, tmp_path):
    store = tmp_path / "x.zarr"
    if what is not None:
        store.mkdir()
        (store / what if what == "zarr.json" else tmp_path / what).write_text("{")
    with pytest.raises(InvalidInput, match=said):
        ww.save(ww.theory(NET, X, chunks=20), store) if "pieces" in str(what) else ww.load(store)


def test_only_kernels_between_inputs_and_no_links_to_nowhere_are_written_in_blocks(tmp_path):
    with pytest.raises(InvalidInput, match="dataset: got one on .*; expected kernels between inputs a and b"):
        ww.save(ww.predict(NET, X[:3], X[:3, 0], X[3:5]), tmp_path / "p.zarr")
    (tmp_path / "x.zarr").symlink_to("x.zarr")
    with pytest.raises(InvalidInput, match=r"x.zarr', which exists"):
        ww.save(ww.theory(NET, X, chunks=20), tmp_path / "x.zarr")


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
