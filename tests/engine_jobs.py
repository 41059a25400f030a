"""Runs that the tests of engines send to workers and interrupt, and the clusters they run on."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import widthwise as ww
from widthwise.experiments import checkpoints, programme
from widthwise.experiments.training.train import train
from widthwise.network.algorithms import GradientDescent

NET = ww.MLP([2, 16, 1], "tanh", C_b=0.1, C_W=1.5)
X = np.array([[1.0, 0.3]])
#: 60 chunks of 64, and a piece of another; 60 chunks of 16, and a piece.
MEASURED = {"networks": 3900, "seed": 4, "statistics": ["K", "V"]}
TRAINED = {"networks": 970, "seed": 4, "algorithm": GradientDescent(0.4, 5), "batch": 16}


def measured(**options):
    return ww.measure(NET, X, **MEASURED, **options)


def trained(**options):
    return train(NET, X, [0.5], [[0.2, -0.4]], **TRAINED, **options)


JOBS = {"measure": measured, "train": trained}


def use_small_chunks():
    """Many chunks, with the sums of each written at once."""
    programme.CHUNK_OPERATIONS, checkpoints.INTERVAL = 1, 0.0


def sums_of(path):
    """Everything in a checkpoint, as bytes."""
    with np.load(path) as file:
        return {name: file[name].tobytes() for name in file.files}


def chunks_in(path):
    """How many chunks a checkpoint holds."""
    with np.load(path) as file:
        return int(file["position"]) if "position" in file.files else int(file["done"]) // TRAINED["batch"]


def kill_when_written(path, pid):
    """For a thread: kill a process as soon as a checkpoint is there."""
    while not path.exists():
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def cluster_from_commands(folder):
    """The address of `dask scheduler` with two processes of `dask worker`, and the process of the scheduler."""
    dask, about = Path(sys.executable).with_name("dask"), folder / "scheduler.json"
    common = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    # workers find these functions by name
    common["env"] = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    scheduler = subprocess.Popen(
        [dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", about], **common
    )
    worker = subprocess.Popen(
        [dask, "worker", "--scheduler-file", about, "--nworkers", "2", "--nthreads", "1", "--no-dashboard"], **common
    )
    try:
        while not about.exists():
            assert scheduler.poll() is None
            time.sleep(0.05)
        time.sleep(0.2)
        yield json.loads(about.read_text())["address"], scheduler
    finally:
        for process in (worker, scheduler):
            process.terminate()
            process.wait(30)


#: A job in a process of its own, slowed down so that it can be stopped in the middle.
SCRIPT = """
import signal, sys, time, warnings
from engine_jobs import JOBS, use_small_chunks
from widthwise.experiments import checkpoints
write = checkpoints.SavedRun.write
def slowly(*args):
    write(*args)
    time.sleep(0.1)
checkpoints.SavedRun.write = slowly
if __name__ == "__main__":
    # a test run in the background of a shell ignores interrupts, and so would its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    use_small_chunks()
    warnings.simplefilter("ignore")
    found = JOBS[sys.argv[1]](checkpoint=sys.argv[2], engine=eval(sys.argv[3]))
    errors = [found[name].values for name in found if name.endswith("_se")]
    assert errors and all((0 < error).all() and (error < 1).all() for error in errors)
    print(found.attrs["interrupted"], found.attrs["networks"])
"""


def start(folder, job, engine, path):
    """A job in a process of its own, with a checkpoint."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, script, job, path, engine],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )


def started(folder, job, engine):
    """A job that runs, with some of its sums on disk: (process, checkpoint)."""
    path = folder / "sums.npz"
    process = start(folder, job, engine, path)
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.25)
    return process, path
