"""What every benchmark needs: a clock, peak memory, the machine's own limits, and processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def peak_mb() -> float:
    """Largest resident size of this process since it began, in MB (getrusage would count its parent's too)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def best_time(call: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The fastest of some calls, in seconds of a clock."""
    times = []
    for _ in range(repeats):
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def first_and_best(call: Callable[[], Any], repeats: int = 1) -> tuple[float, float]:
    """Seconds of a first call, and of the best later one, each until its arrays are there."""
    import jax  # not every benchmark has it

    def finished() -> None:
        jax.block_until_ready(call())

    return best_time(finished, 1), best_time(finished, repeats)


def machine_limits() -> dict[str, float]:
    """Multiply-adds per second of a large matrix product, and bytes per second of a large copy."""
    square = np.random.default_rng(0).normal(size=(2000, 2000))
    block = np.ones(20_000_000)
    target = np.empty_like(block)
    multiply_adds = 2000**3 / best_time(lambda: square @ square, 4)
    bandwidth = 2 * block.nbytes / best_time(lambda: np.copyto(target, block), 6)
    return {"multiply_adds": multiply_adds, "bandwidth": bandwidth}


def describe_machine() -> dict[str, float]:
    """Print and return the limits of the machine."""
    limits = machine_limits()
    print(f"{os.cpu_count()} cores; matrix product {limits['multiply_adds'] / 1e9:.1f} G multiply-adds/s, "
          f"copy {limits['bandwidth'] / 1e9:.1f} GB/s")  # fmt: skip
    return limits


def run_apart(python: str, script: Path, *arguments: object, timeout: float = 3600.0) -> dict[str, Any] | None:
    """Run a script in a process of its own; its last line of output is a JSON object. None if it failed."""
    command = [python, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        print(f"  failed: {' '.join(command)}\n  {done.stderr.strip().splitlines()[-1] if done.stderr else ''}")
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def scaling_exponent(sizes: list[int], times: list[float]) -> float:
    """Slope of log time against log size over the two largest sizes."""
    return float(np.log(times[-1] / times[-2]) / np.log(sizes[-1] / sizes[-2]))
