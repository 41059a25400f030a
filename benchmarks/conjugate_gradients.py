"""Kernel regression by conjugate gradients: blocks kept in memory, blocks computed again, and Cholesky beside them.

    python benchmarks/conjugate_gradients.py [--sizes 1500 3000] [--activations relu tanh] [--before SRC]

NTK regression of sin(x_1) on 20 features, 3 layers, noise 0.1, residual 1e-6. Each case runs in a process of its own:
seconds of the processor, compiling included, peak memory above the interpreter with the library imported, and the
largest difference of the solution from Cholesky's over its largest entry. `--before` is `src` of an older version,
whose conjugate gradients run in the same alternation.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from common import describe_machine, peak_mb, run_apart

HERE = Path(__file__).resolve()


def run_case(activation: str, inputs: int, how: str) -> None:
    """One case, in this process; prints a JSON object."""
    import jax

    import widthwise as ww
    from widthwise.readers import kernel_solvers

    X = np.random.default_rng(0).normal(size=(inputs, 20))
    kernel = kernel_solvers.Kernel(ww.MLP.ntk([20, 64, 64, 1], activation, 0.1, 2.0), "Theta")
    jax.block_until_ready(jax.numpy.ones(2) + 1.0)
    memory, start = peak_mb(), time.process_time()
    solver = kernel_solvers.make_solver(kernel, X, 0.1, "cholesky" if how == "Cholesky" else "cg")
    if isinstance(solver, kernel_solvers.Iterative) and how == "again":
        solver.kept = kernel_solvers.KeptBlocks(0)
    solution = solver.solve(np.sin(X[:, :1]))
    seconds, peak = time.process_time() - start, peak_mb() - memory
    found = {"seconds": seconds, "peak": peak, "iterations": solver.iterations, "values": solution[:, 0].tolist()}
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1500, 3000])
    parser.add_argument("--activations", nargs="*", default=["relu", "tanh"])
    parser.add_argument("--before", help="src of an older version")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        run_case(given.case[0], int(given.case[1]), given.case[2])
        return
    describe_machine()
    print(f"{'':>6} {'N':>6} {'blocks':>9} {'s':>8} {'peak MB':>8} {'iterations':>10} {'difference':>10}")
    own = os.environ.get("PYTHONPATH", "")
    for activation in given.activations:
        for inputs in given.sizes:
            known = None
            for how in ("Cholesky", "kept", "again", *(["before"] if given.before else [])):
                os.environ["PYTHONPATH"] = given.before if how == "before" else own
                found = run_apart(sys.executable, HERE, "--case", activation, inputs, how)
                if found is None:
                    continue
                values = np.array(found["values"])
                known = values if known is None else known
                row = f"{activation:>6} {inputs:6d} {how:>9} {found['seconds']:8.2f} {found['peak']:8.0f}"
                off = np.abs(values - known).max() / np.abs(known).max()
                print(f"{row} {found['iterations']:10d} {off:10.1e}", flush=True)


if __name__ == "__main__":
    main()
