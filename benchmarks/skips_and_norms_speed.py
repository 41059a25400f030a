"""What skips and normalisation cost: order 0 and order 1 beside plain networks of the same depth.

    python benchmarks/skips_and_norms_speed.py [--inputs 1000] [--sizes 2 4 6 10] [--depths 5 9]

Times are processor times of all threads. The networks of a row are called in turn in one process, so that what slows
one down slows the others too: the ratio is the median over rounds, with its standard error. The first call, which
compiles (by the clock), and peak memory above what a small case takes are those of a process of its own. A residual
network follows pairs of layers, so that the goal for its order 1 is 1.5 L/2 times the plain network, L the depth; at
order 0 it is 1.2. A skip makes kernels larger, and expectations of tanh over larger kernels take more terms: at order 0
the last line is a plain network whose kernels are as large.
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
#: Rounds by order.
ROUNDS = (21, 5)


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


def run_alone(kind: str, activation: str, depth: int, order: int, count: int) -> None:
    """One network in this process; prints a JSON object."""
    from widthwise.flow.kernels.kernel_flow import kernel_flow
    from widthwise.flow.tensors.tensor_flow import finite_flow

    flow = finite_flow if order else kernel_flow
    net, X = network(kind, activation, depth), np.random.default_rng(0).normal(size=(count, 10))
    flow(net, X[:2])
    before = peak_mb()
    print(json.dumps({"first": best_time(lambda: flow(net, X), 1), "peak_mb": peak_mb() - before}))


def run_in_turn(activation: str, depth: int, order: int, count: int) -> None:
    """All networks of a row in this process, round after round; prints a JSON object of seconds by kind."""
    from widthwise.flow.kernels.kernel_flow import kernel_flow
    from widthwise.flow.tensors.tensor_flow import finite_flow

    flow, X = finite_flow if order else kernel_flow, np.random.default_rng(0).normal(size=(count, 10))
    nets = {kind: network(kind, activation, depth) for kind in kinds(order)}
    seconds: dict[str, list[float]] = {kind: [] for kind in nets}
    for number in range(1 + ROUNDS[order]):
        for kind, net in nets.items():
            taken = best_time(lambda net=net: flow(net, X), 1, time.process_time)
            seconds[kind] += [taken] if number else []
    print(json.dumps(seconds))


def kinds(order: int) -> tuple[str, ...]:
    return KINDS if order else (*KINDS, AS_LARGE)


def compared(activation: str, depth: int, order: int, count: int, goal: float) -> None:
    """A line for each kind of network, beside the plain one."""
    seconds = run_apart(sys.executable, HERE, "--in-turn", activation, depth, order, count)
    if seconds is None:
        return
    for kind in kinds(order):
        alone = run_apart(sys.executable, HERE, "--alone", kind, activation, depth, order, count)
        if alone is None:
            continue
        ratios = np.divide(seconds[kind], seconds["plain"])
        # of a median: √(π/2) times that of the mean, with the scatter from the quartiles
        error = 1.2533 * np.subtract(*np.quantile(ratios, (0.75, 0.25))) / 1.349 / len(ratios) ** 0.5
        ratio = "" if kind == "plain" else f"{np.median(ratios):6.2f} ± {error:.2f} times plain, goal {goal:.2f}"
        numbers = f"{min(seconds[kind]):8.4f} s  first {alone['first']:6.2f} s  peak {alone['peak_mb']:5.0f} MB"
        print(f"  order {order}  {activation:<5} depth {depth}  N = {count:<5} {kind:<9} {numbers} {ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1000, help="inputs at order 0")
    parser.add_argument("--sizes", type=int, nargs="*", default=[2, 4, 6, 10], help="inputs at order 1")
    parser.add_argument("--depths", type=int, nargs="*", default=[5, 9])
    parser.add_argument("--alone", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--in-turn", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        run_alone(*given.alone[:2], *map(int, given.alone[2:]))
        return
    if given.in_turn:
        run_in_turn(given.in_turn[0], *map(int, given.in_turn[1:]))
        return
    describe_machine()
    for activation in ("tanh", "relu"):
        compared(activation, given.depths[0], 0, given.inputs, 1.2)
    for depth in given.depths:
        for count in given.sizes:
            compared("tanh", depth, 1, count, 1.5 * depth / 2)


if __name__ == "__main__":
    main()
