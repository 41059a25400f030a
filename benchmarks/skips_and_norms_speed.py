"""What skips and normalisation cost: order 0 and order 1 beside plain networks of the same depth.

    python benchmarks/skips_and_norms_speed.py [--inputs 1000] [--sizes 2 4 6 10] [--depths 5 9]

Every number is that of a process of its own: processor time of all threads, which does not depend on what else runs on
the machine, the best of five calls after a first one, which compiles (timed by the clock); peak memory is counted above
what the process takes after a small case. A residual network follows pairs of layers, so that the goal for its order 1
is 1.5 L/2 times the plain network, L the depth; at order 0 it is 1.2. A skip makes kernels larger, and expectations of
tanh over larger kernels take more terms: at order 0 the last line is a plain network whose kernels are as large.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import best_time, describe_machine, peak_mb, run_apart

HERE = Path(__file__).resolve()
KINDS, AS_LARGE = ("plain", "residual", "pre-norm"), "as large"


def network(kind: str, activation: str, depth: int):
    from widthwise.network import MLP, ResMLP

    widths: list[int] = [10, *[64] * (depth - 1), 1]
    numbers: dict[str, Any] = {"C_b": 0.1, "C_W": 1.4, "lambda_b": 0.3, "lambda_W": 1.0}
    if kind == "plain":
        return MLP(widths, activation, **numbers)
    if kind == AS_LARGE:
        return _as_large(network("residual", activation, depth), MLP(widths, activation, **numbers))
    return ResMLP(
        widths, activation, 0.8, norm=[("rms", 0.05)] * (depth - 1) if kind == "pre-norm" else None, **numbers
    )


def _as_large(like, net):
    """The plain network with biases that give it the variances of another, layer by layer."""
    from widthwise.flow.kernels.kernel_flow import kernel_flow

    X = np.random.default_rng(0).normal(size=(100, 10))
    wanted, C_b = [float(np.diag(K).mean()) for K in kernel_flow(like, X).K], list(net.C_b)
    for layer in range(net.depth):
        own = float(np.diag(kernel_flow(net.replace(C_b=C_b), X).K[layer]).mean())
        C_b[layer] = max(C_b[layer] + wanted[layer] - own, 0.0)
    return net.replace(C_b=C_b)


def run_one(kind: str, activation: str, depth: int, order: int, count: int) -> None:
    """One case, in this process; prints a JSON object."""
    from widthwise.flow.kernels.kernel_flow import kernel_flow
    from widthwise.flow.tensors.tensor_flow import finite_flow

    flow = finite_flow if order else kernel_flow
    net, X = network(kind, activation, depth), np.random.default_rng(0).normal(size=(count, 10))
    flow(net, X[:2])
    before = peak_mb()
    first = best_time(lambda: flow(net, X), 1)
    seconds = best_time(lambda: flow(net, X), 5, time.process_time)
    print(json.dumps({"seconds": seconds, "first": first, "peak_mb": peak_mb() - before}))


def compared(activation: str, depth: int, order: int, count: int, goal: float) -> None:
    """A line for each kind of network, beside the plain one."""
    plain = None
    for kind in KINDS if order else (*KINDS, AS_LARGE):
        case = (kind, activation, depth, order, count)
        found = run_apart(sys.executable, HERE, "--one", *case)
        if found is None:
            continue
        plain = plain or found["seconds"]
        ratio = "" if kind == "plain" else f"{found['seconds'] / plain:8.2f} times plain, goal {goal:.2f}"
        numbers = f"{found['seconds']:9.4f} s  first {found['first']:7.2f} s  peak {found['peak_mb']:6.0f} MB"
        print(f"  order {order}  {activation:<5} depth {depth}  N = {count:<5} {kind:<9} {numbers} {ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1000, help="inputs at order 0")
    parser.add_argument("--sizes", type=int, nargs="*", default=[2, 4, 6, 10], help="inputs at order 1")
    parser.add_argument("--depths", type=int, nargs="*", default=[5, 9])
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_one(*given.one[:2], *map(int, given.one[2:]))
        return
    describe_machine()
    for activation in ("tanh", "relu"):
        compared(activation, given.depths[0], 0, given.inputs, 1.2)
    for depth in given.depths:
        for count in given.sizes:
            compared("tanh", depth, 1, count, 1.5 * depth / 2)


if __name__ == "__main__":
    main()
