"""Bayesian corrections of order 1/n: V on all quadruples against single neurons; time, memory and error.

    python benchmarks/posterior.py [--sizes 16 32 64 150 300] [--full-up-to 64] [--activation tanh]

Depth 3, width 1024, four test inputs, noise 0.1. Every size and way runs in a process of its own; peak memory is what
it adds to that of the imports. `evidence` and `mean` are standard errors of the sampled coefficients of 1/n over the
coefficients (of the mean, root mean squares over the tests); `differ` is the difference of the evidences of the two
ways over the standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from common import describe_machine, peak_mb, run_apart
from predict import data

HERE = Path(__file__).resolve()
NAMES = ("log_evidence1", "mean1")


def run_one(method: str, count: int, activation: str) -> None:
    """One way at one size, in this process; prints a JSON object."""
    import widthwise as ww

    net, (X, y, tests) = ww.MLP([10, 1024, 1024, 1], activation, C_b=0.1, C_W=1.4), data(count)
    before, start = peak_mb(), time.perf_counter()
    found = ww.posterior(net, X, y, tests, order=1, noise=0.1, method=method)
    seconds = time.perf_counter() - start
    values = {name: np.ravel(found[name]).tolist() for name in map(str, found) if name.removesuffix("_se") in NAMES}
    print(json.dumps({"seconds": seconds, "MB": peak_mb() - before, **values}))


def root_mean_square(values: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 32, 64, 150, 300])
    parser.add_argument("--full-up-to", type=int, default=64)
    parser.add_argument("--activation", default="tanh")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_one(given.one[0], int(given.one[1]), given.activation)
        return
    describe_machine()
    print("".join(f"{head:>12}" for head in ("N", "full s", "MB", "sampled s", "MB", "evidence", "mean", "differ")))
    for count in given.sizes:
        ways = ("full", "sampled") if count <= given.full_up_to else ("sampled",)
        apart = (sys.executable, HERE, "--activation", given.activation, "--one")
        found = {way: run_apart(*apart, way, count) for way in ways}
        drawn, full, row = found["sampled"], found.get("full"), f"{count:12}"
        row += f"{full['seconds']:12.2f}{full['MB']:12.0f}" if full else f"{'-':>12}{'-':>12}"
        if drawn:
            errors = [root_mean_square(drawn[f"{name}_se"]) / root_mean_square(drawn[name]) for name in NAMES]
            row += f"{drawn['seconds']:12.2f}{drawn['MB']:12.0f}" + "".join(f"{error:12.1%}" for error in errors)
        if drawn and full:
            row += f"{abs(drawn[NAMES[0]][0] - full[NAMES[0]][0]) / drawn[NAMES[0] + '_se'][0]:12.1f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
