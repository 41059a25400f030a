"""What a first call costs after `import widthwise`: with nothing compiled, and with programs kept from before.

    python benchmarks/first_calls.py [--before PATH]

Each call is made in a process of its own, three times; the best is shown, in seconds by the clock and of the processor.
`--before` is the `src` folder of an older version, timed in the same run. "README" is theory, measurement, prediction
and posterior of one network. The goals are a third of what the calls took in version 0948c3a, and 3 s for that block.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import describe_machine

HERE = Path(__file__).resolve()
GOALS = {"theory": 0.70, "measure": 0.77, "measure all": 2.4, "train": 2.7, "README": 3.0}
X = [[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [0.6, -0.2, 0.4]]


def run_one(call: str) -> None:
    """One first call, in this process; prints a JSON object."""
    import widthwise as ww

    width = 256 if call == "README" else 64
    net = ww.MLP([3, width, width, 1], "tanh", C_b=0.05, C_W=1.5, lambda_b=0.1, lambda_W=1.0)
    clock, processor = time.perf_counter(), time.process_time()
    if call == "theory":
        ww.theory(net, X)
    elif call == "measure":
        ww.measure(net, X, networks=500)
    elif call == "measure all":
        ww.measure(net, X, networks=500, statistics="all")
    elif call == "train":
        ww.train(net, X[:2], [1.0, -1.0], X[2:], networks=200)
    else:
        theory, _ = ww.theory(net, X), ww.theory(net, X, order=1)
        str(ww.compare(theory, ww.measure(net, X, networks=500, seed=0)))
        ww.predict(net, X[:2], [1.0, -1.0], X[2:], algorithm=ww.GradientFlow(), order=1)
        ww.posterior(net, X[:2], [1.0, -1.0], X[2:], noise=0.01)
    print(json.dumps([time.perf_counter() - clock, time.process_time() - processor]))


def best(call: str, programs: str, source: str | None = None, times: int = 3) -> str:
    """The best of some processes: seconds by the clock, and of the processor."""
    settings = {"WIDTHWISE_PROGRAMS": programs} | ({"PYTHONPATH": source} if source else {})
    command, found = [sys.executable, str(HERE), "--one", call], []
    for _ in range(times):
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return "{:8.2f} {:8.2f}".format(*(min(column) for column in zip(*found, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="src of an older version")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_one(given.one)
        return
    describe_machine()
    print(f"{'first call':<12} {'goal':>6} {'before':>17} {'nothing compiled':>17} {'programs kept':>17}")
    with tempfile.TemporaryDirectory() as programs:
        for call, goal in GOALS.items():
            before = best(call, "off", given.before) if given.before else f"{'':17}"
            cold = best(call, "off")
            best(call, programs, times=1)
            print(f"{call:<12} {goal:6.2f} {before} {cold} {best(call, programs)}", flush=True)


if __name__ == "__main__":
    main()
