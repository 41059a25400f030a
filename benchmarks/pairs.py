"""G1 and H1 on pairs of inputs, against the route of all inputs: the version before, which carried all quadruples.

    python benchmarks/pairs.py [--sizes 20 50 100 1000] [--activations tanh gelu] [--all-up-to 20]

Output layer, depth 4. Every size runs in a process of its own; peak memory is counted above the interpreter with
everything imported and one small case computed. The error is the largest difference between H1 of three of the inputs
and that of the route of all inputs on those three alone, over its largest entry.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from common import best_time, describe_machine, peak_mb, run_apart

HERE = Path(__file__).resolve()


def run_one(activation: str, count: int, route: str) -> None:
    """One size, in this process; prints a JSON object."""
    from widthwise.flow.tensors.pair_flow import pair_flow
    from widthwise.flow.tensors.tensor_flow import finite_flow
    from widthwise.network import MLP

    net = MLP([20, 64, 64, 64, 1], activation, C_b=0.1, C_W=1.5, lambda_b=0.3, lambda_W=0.8)
    X, wanted = np.random.default_rng(0).normal(size=(count, 20)), {"G1": ("xy",), "H1": ("xy",)}

    def by_pairs(X):
        found = pair_flow(net, X, None, wanted, last_only=True)
        assert found is not None
        return found.entries["H1"]["xy"][0]

    def by_all(X):
        return finite_flow(net, X, ("G1", "H1"), last_only=True).tensors["H1"][0]

    call = by_pairs if route == "pairs" else by_all
    few = np.array([0, count // 2, count - 1])
    right = by_all(X[few])
    call(X[:4])
    before, found = peak_mb(), []
    first = best_time(lambda: found.append(call(X)), 1)
    peak = peak_mb() - before
    seconds = best_time(lambda: call(X), 2 if first < 20.0 else 1)
    error = float(np.abs(found[0][np.ix_(few, few)] - right).max() / np.abs(right).max())
    print(json.dumps({"first": first, "seconds": seconds, "peak_mb": peak, "error": error}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 50, 100, 1000])
    parser.add_argument("--activations", nargs="+", default=["tanh", "gelu"])
    parser.add_argument("--all-up-to", type=int, default=20, help="largest size of the route of all inputs")
    parser.add_argument("--one", nargs=3, metavar=("ACTIVATION", "INPUTS", "ROUTE"), help="run one case here")
    given = parser.parse_args()
    if given.one:
        run_one(given.one[0], int(given.one[1]), given.one[2])
        return
    describe_machine()
    for activation in given.activations:
        print(f"\n{activation}, G1 and H1 of the output, depth 4")
        print("  ".join(h.rjust(9) for h in ("N", "route", "first s", "seconds", "peak MB", "error", "ratio")))
        for count in given.sizes:
            seconds: dict[str, float] = {}
            for route in ("all", "pairs"):
                if route == "all" and count > given.all_up_to:
                    continue
                one = run_apart(sys.executable, HERE, "--one", activation, count, route)
                if one is None:
                    continue
                seconds[route] = one["seconds"]
                row = [str(count), route, f"{one['first']:.2f}", f"{one['seconds']:.2f}", f"{one['peak_mb']:.0f}"]
                row += [f"{one['error']:.1e}", f"{seconds['all'] / seconds['pairs']:.1f}" if len(seconds) == 2 else ""]
                print("  ".join(cell.rjust(9) for cell in row), flush=True)


if __name__ == "__main__":
    main()
