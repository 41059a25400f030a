"""All tensors of order 1/n on an accelerator: as many inputs as its memory allows.

    PYTHONPATH=src python benchmarks/finite_accelerator.py [--sizes 32 64 96 128] [--activation tanh]

Depth 5, tensors of the last layer kept. Needs jax, numpy and scipy alone. Times are those of a second call; the peak
is the allocator's. The rate is that of the overlap of planes, the inner loop, against a large float64 matrix product.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from finite import DEPTH, entries, inputs_of, network

from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.gaussian.four_points.families import FAMILIES, assignments, layout, pair_types
from widthwise.gaussian.four_points.geometry import DEGREE_BLOCK, half_size
from widthwise.gaussian.four_points.planes import Where, add_block
from widthwise.gaussian.four_points.tables import Block

PLACED = assignments(FAMILIES)


def timed(call) -> float:
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def matrix_product_rate(side: int = 8192) -> float:
    """float64 multiply-adds a second of a large matrix product."""
    a = jnp.ones((side, side))
    product = jax.jit(lambda x: x @ x)
    return side**3 / timed(lambda: product(a).block_until_ready())


def overlap_rate(quadruples: int = 1 << 15, planes: int = 2080, start: int = 16) -> float:
    """Multiply-adds a second of one block of degrees for many quadruples of an activation without parity."""
    types, half = len(pair_types(PLACED)), half_size(start)
    random = np.random.default_rng(0)
    parts = [jnp.asarray(random.normal(size=(DEGREE_BLOCK, 1, planes, types, half))) for _ in range(2)]
    rows = [jnp.asarray(random.integers(0, planes, quadruples)) for _ in range(2)]
    angles = [jnp.asarray(random.uniform(0, 1, quadruples)) for _ in range(4)]
    where = Where(*rows, *angles, until=jnp.full(quadruples, start + DEGREE_BLOCK))
    laid, _ = layout(PLACED, False)
    values, block = jnp.zeros((quadruples, len(PLACED))), Block(start, *parts).given(jnp.asarray)
    added = jax.jit(add_block, static_argnums=0)

    def call():
        added(laid, values, values, block, block, float(start), where)[0].block_until_ready()

    work = quadruples * DEGREE_BLOCK * (2 * 2 * types * half**2 + 2 * types**2 * half)
    return work / timed(call)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 96, 128])
    parser.add_argument("--activation", default="tanh")
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--once", action="store_true", help="time the first call alone, compilation included")
    arguments = parser.parse_args()
    device = jax.devices()[0]
    peak, rate = matrix_product_rate(), overlap_rate()
    print(f"{device.device_kind}, jax {jax.__version__}; float64 matrix product {peak / 1e12:.2f} T multiply-adds/s; "
          f"overlap of planes {rate / 1e12:.3f} T, {rate / peak:.1%} of it", flush=True)  # fmt: skip
    print(f"{arguments.activation}, depth {DEPTH}, last layer, tolerance {arguments.tolerance:g}")
    print("  ".join(h.rjust(11) for h in ("N", "first s", "seconds", "µs an entry", "peak GiB", "kept GiB", "error")))
    for count in arguments.sizes:
        net, X = network(arguments.activation), inputs_of(count)
        times = []
        for _ in range(1 if arguments.once else 2):
            start = time.perf_counter()
            flow = finite_flow(net, X, last_only=True, tolerance=arguments.tolerance)
            times.append(time.perf_counter() - start)
        used = (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
        kept = sum(tensor.nbytes for tensor in flow.tensors.values()) / 2**30
        row = [str(count), f"{times[0]:.1f}", f"{times[-1]:.1f}", f"{1e6 * times[-1] / entries(count):.3f}"]
        row += [f"{used:.1f}", f"{kept:.1f}", f"{flow.error:.1e}"]
        print("  ".join(cell.rjust(11) for cell in row), flush=True)


if __name__ == "__main__":
    main()
