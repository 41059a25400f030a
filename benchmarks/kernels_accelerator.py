"""Kernels of many inputs on an accelerator, on the host and left on the device, and what is solved with them there.

    PYTHONPATH=src python benchmarks/kernels_accelerator.py [--sizes 5000 20000] [--solve 20000] [--large 100000]

5 hidden layers, 100 features, last layer, float32 results. Needs jax, numpy and scipy alone; times are those of a
second call. Errors are those of 64 of the inputs against float64, relative to the largest entry. "copy" brings what
"device" leaves there to the host in one piece: what no way of computing it can fall below on the host. The rate counts
the multiply-adds of the Hermite sums, 64 terms an entry, layer and order, and 30 of a closed form, against a large
float64 matrix product. `--solve` conditions a Gaussian process on so many inputs by Cholesky, `--large` times two
products of a kernel with 10 vectors, of which conjugate gradients need one an iteration: the first makes the blocks,
half of the memory keeps some for the second.
With PYTHONPATH at the source of an older version, `--sizes` alone times that.
"""

from __future__ import annotations

import argparse
import inspect
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import first_and_best

from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.network import MLP

HIDDEN, FEATURES = 5, 100
#: Multiply-adds of one expectation.
WORK = {"relu": 30, "tanh": 64}


def network(activation: str) -> MLP:
    return MLP([FEATURES, *[512] * HIDDEN, 1], activation, C_b=0.1, C_W=1.5)


def matrix_product_rate(side: int = 8192) -> float:
    a, product = jnp.ones((side, side)), jax.jit(lambda x: x @ x)
    return side**3 / first_and_best(lambda: product(a), 2)[1]


def kernels(activation: str, count: int, rate: float) -> None:
    X, net = np.random.default_rng(0).normal(size=(count, FEATURES)), network(activation)
    ways = ("host", "device") if "device" in inspect.signature(kernel_flow).parameters else ("host",)
    for way in ways:
        options = {"device": True} if way == "device" else {}

        def call(options=options):
            flow = kernel_flow(net, X, last_only=True, dtype=np.float32, **options)
            return flow.K, flow.Theta

        first, seconds = first_and_best(call, 2 if count <= 20000 else 1)
        work = count**2 / 2 * HIDDEN * 2 * WORK[activation]
        peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
        found = call()
        print(
            f"  {activation:<5} N = {count:<7} {way:<6} {seconds:8.2f} s  first {first:7.2f} s"
            f"  {work / seconds / rate:7.1%} of the matrix product  peak {peak:6.1f} GiB"
            f"  error {error_of_some(net, X, found):.1e}",
            flush=True,
        )
        if way == "device":
            start = time.perf_counter()
            brought = [np.array(kernel) for kernel in found]
            seconds, size = time.perf_counter() - start, sum(kernel.nbytes for kernel in brought)
            print(f"  {activation:<5} N = {count:<7} {'copy':<6} {seconds:8.2f} s  {size / seconds / 1e9:.1f} GB/s")
            del brought
        del found


def error_of_some(net: MLP, X: np.ndarray, found: tuple[Any, Any]) -> float:
    """Of K and Θ between some of the inputs, against float64."""
    some = np.random.default_rng(1).choice(len(X), min(64, len(X)), replace=False)
    exact = kernel_flow(net, X[some], last_only=True)
    pairs = ((exact.K[0], found[0][0]), (exact.Theta[0], found[1][0]))
    return max(float(np.abs(np.asarray(b[some][:, some]) - a).max() / np.abs(a).max()) for a, b in pairs)


def solve(count: int) -> None:
    from widthwise.readers.kernel_solvers import Exact, Kernel

    X = np.random.default_rng(0).normal(size=(count, FEATURES))
    for activation in ("relu", "tanh"):
        kernel, y = Kernel(network(activation), "Theta"), np.sin(X[:, :1])

        def call(kernel=kernel, y=y):
            return Exact(kernel, X, 0.1).solve(y)

        first, seconds = first_and_best(call, 1)
        print(f"  {activation:<5} N = {count:<7} Cholesky {seconds:8.2f} s  first {first:7.2f} s", flush=True)


def large(count: int) -> None:
    from widthwise.readers.kernel_solvers import KeptBlocks, Kernel, free_bytes

    random = np.random.default_rng(0)
    X, vectors = random.normal(size=(count, FEATURES)), random.normal(size=(count, 10))
    kernel = Kernel(network("relu"), "K")
    kept = KeptBlocks(free_bytes() // 2)
    for which in ("computed", "kept"):
        start = time.perf_counter()
        kernel.times(X, vectors, kept)
        seconds = time.perf_counter() - start
        print(f"  relu  N = {count:<7} kernel times 10 vectors {seconds:8.2f} s, blocks {which}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[5000, 20000])
    parser.add_argument("--activations", nargs="*", default=["relu", "tanh"])
    parser.add_argument("--solve", type=int, default=0)
    parser.add_argument("--large", type=int, default=0)
    given = parser.parse_args()
    rate = matrix_product_rate()
    device = jax.devices()[0].device_kind
    print(f"{device}, jax {jax.__version__}; float64 matrix product {rate / 1e12:.1f} T multiply-adds/s", flush=True)
    for activation in given.activations:
        for count in given.sizes:
            kernels(activation, count, rate)
    if given.solve:
        solve(given.solve)
    if given.large:
        large(given.large)


if __name__ == "__main__":
    main()
