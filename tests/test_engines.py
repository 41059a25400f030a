"""Engines: results in order from this process, several, and a real Dask cluster; workers and main processes that die."""

import os
import signal
import sys
import threading
from collections import deque
from functools import partial

import numpy as np
import pytest
from engine_jobs import JOBS, NET, X, chunks_in, cluster_from_commands, kill_when_written, started, sums_of

import widthwise as ww
from widthwise.errors import InvalidInput, MissingPackage
from widthwise.experiments import checkpoints, engines, programme
from widthwise.experiments.engines import run_chunks


def square(chunk):
    return {"square": np.arange(*chunk) ** 2, "process": os.getpid()}


def once_fatal(folder, chunk):
    """Chunk (2, 3) kills its process the first time it is computed."""
    if chunk == (2, 3) and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return chunk[0]


def always_fatal(chunk):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(programme, "CHUNK_OPERATIONS", 1)
    monkeypatch.setattr(checkpoints, "INTERVAL", 0.0)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Each job in this process: its Dataset and its partial sums."""
    folder = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programme, "CHUNK_OPERATIONS", 1)
        return {name: (job(checkpoint=folder / name), sums_of(folder / name)) for name, job in JOBS.items()}


def assert_same(found, path, expected):
    """The same Dataset and the same partial sums, to the last bit."""
    assert found.identical(expected[0])
    assert sums_of(path) == expected[1]


def test_results_come_in_order_and_ctrl_c_keeps_those_that_are_complete():
    seen = []
    results = run_chunks(lambda chunk: seen.append(chunk) or square(chunk), [(0, 2), (2, 4)], "local")
    assert [r["square"].tolist() for r in results] == [[0, 1], [4, 9]]
    assert seen == [(0, 2), (2, 4)]

    def interrupted(chunk):
        if chunk == 3:
            raise KeyboardInterrupt
        return chunk

    kept = []
    with pytest.raises(KeyboardInterrupt):
        deque(map(kept.append, run_chunks(interrupted, range(6))))
    assert kept == [0, 1, 2]


def test_processes_give_results_in_order_and_one_that_dies_is_replaced(tmp_path):
    chunks = [(i, i + 1) for i in range(5)]
    assert list(run_chunks(partial(once_fatal, tmp_path), chunks, "processes:2")) == [0, 1, 2, 3, 4]
    assert (tmp_path / "died").exists()


def test_processes_that_cannot_start_are_reported():
    with pytest.raises(InvalidInput, match="engine: got 1 processes that ended 3 times in a row.*__main__"):
        list(run_chunks(always_fatal, [(0, 1)], 1))


@pytest.mark.parametrize("sizes", [(1, 2), pytest.param((1, 2, 4), marks=pytest.mark.full)], ids=str)
def test_a_real_cluster_of_several_workers_gives_the_sums_of_this_process(sizes, here, small_chunks, tmp_path):
    """Also while a worker is killed in the middle of a run."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for workers in sizes:
            cluster.scale(workers)
            client.wait_for_workers(workers, timeout=120)
            for name, job in JOBS.items():
                path = tmp_path / f"{name}-{workers}.npz"
                assert_same(job(engine=client, checkpoint=path), path, here[name])
        pids = client.run(os.getpid)
        assert len(set(pids.values())) == sizes[-1]
        # two workers: one job loses one of them; four: each job does
        for (name, job), pid in zip(JOBS.items(), list(pids.values())[: sizes[-1] // 2], strict=False):
            path = tmp_path / f"{name}-killed.npz"
            killer = threading.Thread(target=kill_when_written, args=(path, pid))
            killer.start()
            assert_same(job(engine=client, checkpoint=path), path, here[name])
            killer.join()
            assert pid not in client.run(os.getpid).values()


def test_scheduler_and_workers_started_as_commands_and_a_scheduler_that_dies(here, small_chunks, tmp_path):
    with cluster_from_commands(tmp_path) as (address, scheduler):
        for name, job in JOBS.items():
            path = tmp_path / f"{name}.npz"
            assert_same(job(engine=address, checkpoint=path), path, here[name])
        path = tmp_path / "killed.npz"
        threading.Thread(target=kill_when_written, args=(path, scheduler.pid)).start()
        with pytest.raises(
            InvalidInput, match="engine: got a Dask cluster that was lost .* with a checkpoint it goes on"
        ):
            JOBS["measure"](engine=address, checkpoint=path)
    assert 0 < chunks_in(path) < 60
    assert_same(JOBS["measure"](checkpoint=path), path, here["measure"])


@pytest.mark.parametrize(("name", "engine"), [("measure", "2"), ("train", "None")])
def test_a_run_killed_by_sigkill_goes_on_to_identical_sums(name, engine, here, small_chunks, tmp_path):
    process, path = started(tmp_path, name, engine)
    process.kill()
    process.communicate(timeout=30)  # its workers, which have its standard output, end too
    assert process.returncode == -signal.SIGKILL
    assert 0 < chunks_in(path) < 60
    assert sums_of(path) != here[name][1]
    assert_same(JOBS[name](checkpoint=path), path, here[name])


@pytest.mark.parametrize(("name", "engine"), [("measure", "2"), ("train", "None")])
def test_ctrl_c_returns_what_is_done_with_error_bars_and_it_can_be_resumed(name, engine, here, small_chunks, tmp_path):
    process, path = started(tmp_path, name, engine)
    os.killpg(process.pid, signal.SIGINT)  # a terminal interrupts the workers too
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    interrupted, networks = map(int, out.split())
    assert interrupted == 1
    assert 0 < chunks_in(path) < 60
    assert networks < here[name][0].attrs["networks"]
    assert_same(JOBS[name](checkpoint=path), path, here[name])


@pytest.mark.parametrize("engine", ["procs", 0, -1, 2.5, True, "processes:none", [2]])
def test_engines_that_are_none(engine):
    with pytest.raises(InvalidInput, match=r"engine: got .*; expected None or \"local\" for this process, a number"):
        ww.measure(NET, X, networks=2, engine=engine)


def test_no_scheduler_at_the_address(monkeypatch):
    monkeypatch.setattr(engines, "CLUSTER_PATIENCE", 0.3)
    with pytest.raises(
        InvalidInput,
        match=r"'tcp://127.0.0.1:9', where no Dask scheduler answered within 0.3 s .*`dask worker tcp://127.0.0.1:9`",
    ):
        ww.measure(NET, X, networks=2, engine="tcp://127.0.0.1:9")


def test_dask_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(
        MissingPackage, match=r"the package distributed, which is not installed.*widthwise\[distributed\]"
    ):
        ww.measure(NET, X, networks=2, engine="tcp://127.0.0.1:9")


def test_functions_that_cannot_be_sent():
    own = ww.MLP([2, 4, 1], lambda z: z)
    with pytest.raises(InvalidInput, match="work that cannot be sent to them .*Define your own activation at the top"):
        ww.measure(own, X, networks=2, engine=2)
