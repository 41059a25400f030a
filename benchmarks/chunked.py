"""A kernel larger than memory, block by block on a two-worker Dask cluster to Zarr, with a worker killed in the middle.

    .venv/bin/python benchmarks/chunked.py --inputs 50000 --store kernel.zarr

Prints time, the largest memory of a worker, and the difference from blocks that are computed again one by one.
"""

import argparse
import os
import signal
import threading
import time
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

import widthwise as ww


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--chunks", type=int, default=2_500)
    parser.add_argument("--store", default="kernel.zarr")
    parser.add_argument("--kill-after", type=float, default=20.0, help="seconds")
    chosen = parser.parse_args()
    net = ww.MLP([32, 512, 512, 1], "relu", C_W=2.0)
    X = np.random.default_rng(0).normal(size=(chosen.inputs, 32))
    with LocalCluster(n_workers=2, threads_per_worker=1, memory_limit="4GB") as cluster, Client(cluster) as client:
        pids: Any = client.run(os.getpid)
        peaks: list[float] = []

        def watch() -> None:
            killed, start = False, time.perf_counter()
            while not stop.is_set():
                peaks.append(max((_rss(pid) for pid in pids.values()), default=0.0))
                if not killed and time.perf_counter() - start > chosen.kill_after:
                    os.kill(next(iter(pids.values())), signal.SIGKILL)
                    killed = True
                    print("killed a worker")
                stop.wait(0.2)

        stop = threading.Event()
        watcher = threading.Thread(target=watch)
        watcher.start()
        begin = time.perf_counter()
        kernels = ww.theory(net, X, tensors=["K"], layers="last", dtype="float32", chunks=chosen.chunks)
        ww.save(kernels, chosen.store)
        seconds = time.perf_counter() - begin
        stop.set()
        watcher.join()
    print(f"{chosen.inputs} inputs: {seconds:.0f} s, largest worker {max(peaks):.0f} MB")
    stored, worst = ww.load(chosen.store)["K"], 0.0
    for row in range(0, chosen.inputs, chosen.chunks):
        for column in range(0, chosen.inputs, chosen.chunks):
            a, b = X[row : row + chosen.chunks], X[column : column + chosen.chunks]
            again = ww.theory(net, a, b, tensors=["K"], layers="last", dtype="float32")["K"].values[0]
            block = stored[0, row : row + chosen.chunks, column : column + chosen.chunks].values
            worst = max(worst, float(np.abs(block - again).max()))
    print(f"largest difference from blocks computed again: {worst:.1e}")


def _rss(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


if __name__ == "__main__":
    main()
