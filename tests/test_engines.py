"""Engines: results in order from this process, several, and a real Dask cluster; workers and main processes that die."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import widthwise as ww
from widthwise.errors import InvalidInput
from widthwise.experiments import checkpoints, engine_dask, programme
from widthwise.experiments.engines import run_chunks

NET = ww.MLP([2, 16, 1], "tanh", C_b=0.1, C_W=1.5)
X = np.array([[1.0, 0.3]])
#: 60 chunks of 64, and a piece of another.
RUN = {"networks": 3900, "seed": 4, "statistics": ["K", "V"]}


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


def sums_of(path):
    """Everything in a checkpoint, as bytes."""
    with np.load(path) as file:
        return {name: file[name].tobytes() for name in file.files}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The run in this process: its Dataset and its partial sums."""
    path = tmp_path_factory.mktemp("here") / "sums.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programme, "CHUNK_OPERATIONS", 1)
        return ww.measure(NET, X, checkpoint=path, **RUN), sums_of(path)


def test_results_come_in_order_and_ctrl_c_keeps_those_that_are_complete():
    seen = []
    results = run_chunks(square, [(0, 2), (2, 4)], "local", lambda chunk, result: seen.append(chunk))
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


def test_a_real_cluster_of_1_2_and_4_workers_gives_the_sums_of_this_process(here, small_chunks, tmp_path):
    """Also while a worker is killed in the middle of a run."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for workers in (1, 2, 4):
            cluster.scale(workers)
            client.wait_for_workers(workers, timeout=120)
            path = tmp_path / f"{workers}.npz"
            found = ww.measure(NET, X, engine=client, checkpoint=path, **RUN)
            assert found.identical(here[0])
            assert sums_of(path) == here[1]
        pids = client.run(os.getpid)
        assert len(set(pids.values())) == 4
        path = tmp_path / "killed.npz"
        killer = threading.Thread(target=kill_when_written, args=(path, next(iter(pids.values()))))
        killer.start()
        found = ww.measure(NET, X, engine=client, checkpoint=path, **RUN)
        killer.join()
        assert found.identical(here[0])
        assert sums_of(path) == here[1]
        assert next(iter(pids.values())) not in client.run(os.getpid).values()


def kill_when_written(path, pid):
    while not path.exists():
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)


def test_scheduler_and_workers_started_as_commands(here, small_chunks, tmp_path):
    dask, address = Path(sys.executable).with_name("dask"), tmp_path / "scheduler.json"
    common = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    scheduler = subprocess.Popen(
        [dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", address],
        **common,
    )
    worker = subprocess.Popen(
        [dask, "worker", "--scheduler-file", address, "--nworkers", "2", "--nthreads", "1", "--no-dashboard"], **common
    )
    try:
        while not address.exists():
            assert scheduler.poll() is None
            time.sleep(0.05)
        time.sleep(0.2)
        path = tmp_path / "sums.npz"
        found = ww.measure(NET, X, engine=json.loads(address.read_text())["address"], checkpoint=path, **RUN)
        assert found.identical(here[0])
        assert sums_of(path) == here[1]
    finally:
        for process in (worker, scheduler):
            process.terminate()
            process.wait(30)


SCRIPT = """
import sys, time, warnings
import numpy as np
import widthwise as ww
from widthwise.experiments import checkpoints, programme
programme.CHUNK_OPERATIONS, checkpoints.INTERVAL = 1, 0.0
save = checkpoints.Checkpoint.save
def slowly(*args, **options):
    save(*args, **options)
    time.sleep(0.1)
checkpoints.Checkpoint.save = slowly
if __name__ == "__main__":
    warnings.simplefilter("ignore")
    net = ww.MLP([2, 16, 1], "tanh", C_b=0.1, C_W=1.5)
    ms = ww.measure(net, [[1.0, 0.3]], 3900, 4, statistics=["K", "V"], checkpoint=sys.argv[1], engine=eval(sys.argv[2]))
    assert 0 < ms["V_se"].item() < 1
    print(ms.attrs["interrupted"], ms.attrs["networks"])
"""


def started(tmp_path, engine):
    """The run above in a process of its own, stopped by nothing yet; some of its sums are on disk."""
    script, path = tmp_path / "script.py", tmp_path / "sums.npz"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, script, path, engine], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.25)
    return process, path


def test_a_run_killed_by_sigkill_goes_on_to_identical_sums(here, small_chunks, tmp_path):
    process, path = started(tmp_path, "None")
    process.kill()
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert 0 < int(np.load(path)["position"]) < 60
    assert sums_of(path) != here[1]
    assert ww.measure(NET, X, checkpoint=path, **RUN).identical(here[0])
    assert sums_of(path) == here[1]


def test_ctrl_c_returns_what_is_done_with_error_bars_and_it_can_be_resumed(here, small_chunks, tmp_path):
    process, path = started(tmp_path, "2")
    os.killpg(process.pid, signal.SIGINT)  # a terminal interrupts the workers too
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    interrupted, networks = map(int, out.split())
    assert interrupted == 1
    assert 64 <= networks < 3900
    assert ww.measure(NET, X, checkpoint=path, **RUN).identical(here[0])


@pytest.mark.parametrize("engine", ["procs", 0, -1, 2.5, True, "processes:none", [2]])
def test_engines_that_are_none(engine):
    with pytest.raises(InvalidInput, match=r"engine: got .*; expected None or \"local\" for this process, a number"):
        ww.measure(NET, X, networks=2, engine=engine)


def test_no_scheduler_at_the_address(monkeypatch):
    monkeypatch.setattr(engine_dask, "PATIENCE", 0.3)
    with pytest.raises(
        InvalidInput,
        match=r"'tcp://127.0.0.1:9', where no Dask scheduler answered within 0.3 s .*`dask worker tcp://127.0.0.1:9`",
    ):
        ww.measure(NET, X, networks=2, engine="tcp://127.0.0.1:9")


def test_dask_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InvalidInput, match=r"the package `distributed` is not installed.*widthwise\[distributed\]"):
        ww.measure(NET, X, networks=2, engine="tcp://127.0.0.1:9")


def test_functions_that_cannot_be_sent():
    own = ww.MLP([2, 4, 1], lambda z: z)
    with pytest.raises(InvalidInput, match="work that cannot be sent to them .*Define your own activation at the top"):
        ww.measure(own, X, networks=2, engine=2)
