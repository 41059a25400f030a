"""All tensors of order 1/n at depth 5, and their four-point expectations against four-dimensional quadrature.

    python benchmarks/finite.py [--sizes 2 4 8 16 32 48] [--activations tanh gelu] [--tolerance 1e-6]

Every size runs in a process of its own. Peak memory is counted above the interpreter with everything imported and one
small case computed, so that compiled code is not counted; the first call of a size, which compiles, is timed apart. An
entry is one expectation of four factors for one set of four inputs: 30 for each sorted quadruple and layer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from math import comb
from pathlib import Path

import numpy as np
from common import best_time, describe_machine, peak_mb, run_apart

HERE = Path(__file__).resolve()
SIZES = (2, 4, 8, 16, 32, 48)
DEPTH, ASSIGNMENTS, TENSORS = 5, 30, 11


def network(activation: str):
    from widthwise.network import MLP

    return MLP([10, *[64] * (DEPTH - 1), 1], activation, C_b=0.1, C_W=1.4, lambda_b=0.3, lambda_W=1.0)


def inputs_of(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 10))


def entries(count: int) -> int:
    return (DEPTH - 1) * ASSIGNMENTS * comb(count + 3, 4)


def run_one(activation: str, count: int, tolerance: float) -> None:
    """One size, in this process; prints a JSON object."""
    from widthwise.flow.tensors.tensor_flow import finite_flow

    net, X = network(activation), inputs_of(count)
    finite_flow(net, inputs_of(6), tolerance=tolerance)
    before = peak_mb()
    flows = []

    def call():
        flows[:] = []  # one result at a time, so that the peak is that of one call
        flows.append(finite_flow(net, X, tolerance=tolerance))

    first = best_time(call, 1)
    seconds = best_time(call, 3 if count <= 16 else 1)
    peak, flow = peak_mb() - before, flows[0]
    kept = sum(tensor.nbytes for tensor in flow.tensors.values()) / 1e6
    result = {"seconds": seconds, "first": first, "peak_mb": peak, "kept_mb": kept, "error": flow.error}
    print(json.dumps(result | {"route": flow.route}))


def by_quadrature(activation, K: np.ndarray, placed, nodes: int) -> np.ndarray:
    """⟨σ^(o_1)_0 σ^(o_2)_1 σ^(o_3)_2 σ^(o_4)_3⟩ for every assignment of orders, on a Gauss–Hermite grid in R⁴."""
    from widthwise.activations import evaluate

    u, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    root = np.linalg.cholesky(K)
    total = np.zeros(len(placed))
    rest = np.stack(np.meshgrid(u, u, u, indexing="ij")).reshape(3, -1)
    weight = np.einsum("i,j,k->ijk", w, w, w).ravel()
    for first, share in zip(u, w, strict=True):  # one slab at a time keeps memory at nodes³
        z = root[:, :1] * first + root[:, 1:] @ rest
        values = [evaluate(activation, order, z) for order in range(4)]
        total += share * np.array([weight @ np.prod([values[o][k] for k, o in enumerate(p)], axis=0) for p in placed])
    return total


def against_quadrature(activation_name: str, tolerance: float) -> None:
    """Time for one quadruple of distinct inputs at equal error: brute force, and its share of a whole layer of ours."""
    from widthwise.activations import resolve
    from widthwise.flow.kernels.kernel_flow import kernel_flow
    from widthwise.gaussian.four_points import FAMILIES, four_point
    from widthwise.gaussian.four_points.families import assignments, quadruples

    activation, placed = resolve(activation_name), assignments(FAMILIES)
    count = 24
    K = kernel_flow(network(activation_name), inputs_of(count)).K[1]
    row = next(k for k, q in enumerate(quadruples(count).sorted) if tuple(q) == (0, 1, 2, 3))
    exact = four_point(activation, K[:4, :4], FAMILIES, 1e-12).full
    exact = np.array([exact(*orders)[0, 1, 2, 3] for orders in placed])
    ours = four_point(activation, K, FAMILIES, tolerance)
    seconds = best_time(lambda: four_point(activation, K, FAMILIES, tolerance), 2) / len(ours.values)
    reached = _relative(ours.values[row], exact, placed)
    print(f"\nfour factors, {activation_name}: ours {seconds * 1e6:.0f} µs a quadruple, error {reached:.1e}")
    for nodes in itertools.chain(range(8, 40, 4), [48]):
        brute = by_quadrature(activation, K[:4, :4], placed, nodes)
        error = _relative(brute, exact, placed)
        if error <= max(reached, tolerance):
            break
    brute_seconds = best_time(lambda: by_quadrature(activation, K[:4, :4], placed, nodes), 1)
    print(f"  four-dimensional Gauss–Hermite, {nodes}⁴ points: {brute_seconds * 1e3:.0f} ms, error {error:.1e}: "
          f"ours is {brute_seconds / seconds:.0f} times faster")  # fmt: skip


def _relative(values: np.ndarray, exact: np.ndarray, placed) -> float:
    """Largest error, each family of orders relative to its largest value."""
    families: dict[tuple[int, ...], list[int]] = {}
    for column, orders in enumerate(placed):
        families.setdefault(tuple(sorted(orders)), []).append(column)
    groups = families.values()
    return float(max(np.abs(values[g] - exact[g]).max() / np.abs(exact[g]).max() for g in groups))


def report(activation: str, sizes: list[int], tolerance: float) -> None:
    print(f"\n{activation}, depth {DEPTH}, all tensors at all layers, tolerance {tolerance:g}")
    head = ("N", "seconds", "first s", "µs an entry", "peak MB", "kept MB", "peak/kept", "error")
    print("  ".join(h.rjust(11) for h in head))
    cost = {}
    for count in sizes:
        one = run_apart(sys.executable, HERE, "--one", activation, count, tolerance)
        if one is None:
            continue
        cost[count] = 1e6 * one["seconds"] / entries(count)
        ratio = one["peak_mb"] / one["kept_mb"]
        row = [str(count), f"{one['seconds']:.2f}", f"{one['first']:.2f}", f"{cost[count]:.2f}"]
        row += [f"{one['peak_mb']:.0f}", f"{one['kept_mb']:.1f}", f"{ratio:.1f}", f"{one['error']:.1e}"]
        print("  ".join(cell.rjust(11) for cell in row))
    flat = [value for count, value in cost.items() if count >= 8]
    if flat:
        print(f"  cost of an entry from N = 8 up: largest / smallest = {max(flat) / min(flat):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--activations", nargs="+", default=["tanh", "gelu"])
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--one", nargs=3, metavar=("ACTIVATION", "INPUTS", "TOLERANCE"), help="run one case here")
    arguments = parser.parse_args()
    if arguments.one:
        run_one(arguments.one[0], int(arguments.one[1]), float(arguments.one[2]))
        return
    describe_machine()
    for activation in arguments.activations:
        report(activation, arguments.sizes, arguments.tolerance)
        against_quadrature(activation, arguments.tolerance)


if __name__ == "__main__":
    main()
