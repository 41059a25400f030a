"""Kernels of convolutional networks on images of 16 × 16 × 3 beside neural-tangents: time, peak memory, difference.

Time is by the clock, and the processor's of all threads, which is what to compare on a machine that others use.

    .venv/bin/python benchmarks/images.py --peer .venv-peer/bin/python
    .venv/bin/python benchmarks/images.py --large                         # 1,000 and 2,000 images, hours

Each case runs in a process of its own, the two libraries one after the other. Memory is what the calls take beyond
what the process holds before: packages are imported, and a first small program is compiled, in both.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from common import peak_mb

#: Activation, convolutions, images, how positions are joined.
CASES = [("relu", 10, 20, "mean"), ("gelu", 10, 20, "mean"), ("relu", 5, 200, "flatten"), ("gelu", 5, 200, "flatten"),
         ("tanh", 5, 100, "flatten"), ("tanh", 3, 4, "mean")]  # fmt: skip
LARGE = [("relu", 5, 2000, "flatten"), ("relu", 10, 100, "mean"), ("gelu", 10, 100, "mean"), ("relu", 10, 1000, "mean")]


def ours(activation: str, depth: int, images: int, end: str, repeats: int) -> dict:
    """Seconds of every call by the clock and of the processor, peak memory, and a corner of both kernels."""
    import jax
    import jax.numpy as jnp

    import widthwise as ww

    weights = {"C_W": 1.44, "C_b": 0.09, "lambda_W": 1.44, "lambda_b": 0.09}
    layers = [part for i in range(depth) for part in (ww.Conv(8 if i else 3, 8, (3, 3), **weights), activation)]
    last = {"C_W": 1.0, "lambda_W": 1.0, "lambda_b": 0.0}
    layers += (
        [ww.GlobalAvgPool(), ww.Dense(8, 1, **last)] if end == "mean" else [ww.Flatten(), ww.Dense(2048, 1, **last)]
    )
    net, X = ww.Network(layers), np.random.default_rng(0).normal(size=(images, 16, 16, 3))
    _ = ww.theory(ww.MLP([3, 8, 1], "relu"), np.ones((2, 3))), jax.jit(lambda x: jnp.sin(x) + x * x)(jnp.ones(5))
    before, times = peak_mb(), []
    for _ in range(repeats + 1):
        start = time.perf_counter(), time.process_time()
        result = ww.theory(net, X, layers="last")
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    corner = {"nngp": result["K"].values[0, :4, :4].tolist(), "ntk": result["Theta"].values[0, :4, :4].tolist()}
    peaks = {"peak_mb": peak_mb() - before, "process_mb": peak_mb()}
    return {"times": times, **peaks, **corner}


def in_a_process(*command: str) -> dict:
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    return json.loads(run.stdout.splitlines()[-1])


def _best(case: dict) -> list[float]:
    """Seconds by the clock and of the processor: the least of all calls but the first where there are others."""
    return [min(column) for column in zip(*(case["times"][1:] or case["times"]), strict=True)]


def _told(case: dict) -> str:
    clock, processor = _best(case)
    return (
        f"{clock:8.2f} s, of the processor {processor:8.2f} (first {case['times'][0][0]:6.2f}) "
        f"{case['peak_mb']:6.0f} of {case['process_mb']:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="the interpreter of an environment with neural-tangents")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--cases", type=int, nargs="*", help="numbers of the cases to run, from 0")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        activation, depth, images, end = chosen.one
        print(json.dumps(ours(activation, int(depth), int(images), end, chosen.repeats)))
        return
    cases = LARGE if chosen.large else CASES
    for case in [cases[number] for number in chosen.cases] if chosen.cases else cases:
        words = [str(word) for word in case]
        here = in_a_process(sys.executable, __file__, "--repeats", str(chosen.repeats), "--one", *words)
        line = f"{' '.join(words):24s} widthwise {_told(here)}"
        if chosen.peer:
            peer = in_a_process(str(Path(chosen.peer).absolute()), "peer_images.py", *words, str(chosen.repeats))
            off = max(np.abs(np.array(here[name]) / np.array(peer[name]) - 1).max() for name in ("nngp", "ntk"))
            clock, processor = (theirs / own for theirs, own in zip(_best(peer), _best(here), strict=True))
            smaller = peer["peak_mb"] / max(here["peak_mb"], 1.0)
            line += (
                f"   peer {_told(peer)}   {clock:.1f}× the time, {processor:.1f}× the processor's, "
                f"{smaller:.1f}× the memory, differ by {off:.1e}"
            )
        print(line, flush=True)


if __name__ == "__main__":
    main()
