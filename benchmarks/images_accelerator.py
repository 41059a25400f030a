"""Kernels of convolutional networks on many images on an accelerator: 5 convolutions and Flatten, 16 × 16 × 3.

    PYTHONPATH=src python benchmarks/images_accelerator.py [--sizes 2000 10000] [--activations relu gelu]

Needs jax, numpy and scipy alone; times are those of a second call that leaves the result on the device. Rates count the
least that has to be done for every pair of images, position and layer: K and Θ read and written once, against a copy;
60 multiply-adds for ⟨σσ⟩ and ⟨σ'σ'⟩ and 8 additions for both windows, against a matrix product in the same numbers.
The error is that of a few entries against the same kernel of few images, by numpy in float64.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from common import first_and_best

from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.network import Conv, Dense, Flatten, Network

LAYERS, SIDE, CHANNELS = 5, 16, 3
WORK = 68


def network(activation: str) -> Network:
    weights = {"C_W": 1.44, "C_b": 0.09, "lambda_W": 1.44, "lambda_b": 0.09}
    layers = [part for i in range(LAYERS) for part in (Conv(8 if i else CHANNELS, 8, (3, 3), **weights), activation)]
    return Network([*layers, Flatten(), Dense(8 * SIDE**2, 1)])


def limits(dtype) -> tuple[float, float]:
    """Multiply-adds a second of a matrix product in these numbers, and bytes a second of a copy."""
    square, row = jnp.ones((8192, 8192), dtype), jnp.ones(2**28, dtype)
    product = jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))
    moved = jax.jit(lambda x: x + 1.0)
    rate = 8192**3 / first_and_best(lambda: product(square), 3)[1]
    return rate, 2 * row.nbytes / first_and_best(lambda: moved(row), 5)[1]


def error_of_a_corner(net: Network, X: np.ndarray, found) -> float:
    few = kernel_flow(net, X[:4], last_only=True)
    pairs = zip(found, (few.K, few.Theta), strict=True)
    return max(float(np.abs(np.asarray(got[0, :4, :4], float) / np.asarray(own[0]) - 1.0).max()) for got, own in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[2000, 10000])
    parser.add_argument("--activations", nargs="*", default=["relu", "gelu"])
    given = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}", flush=True)
    for dtype in (np.float32, np.float64):
        rate, bandwidth = limits(dtype)
        name = np.dtype(dtype).name
        print(f"{name}: product {rate / 1e12:.1f} T multiply-adds/s, copy {bandwidth / 1e12:.2f} TB/s", flush=True)
        for activation in given.activations:
            net = network(activation)
            for count in given.sizes:
                X = np.random.default_rng(0).normal(size=(count, SIDE, SIDE, CHANNELS))

                def call(net=net, X=X, dtype=dtype):
                    flow = kernel_flow(net, X, last_only=True, dtype=dtype, device=True)
                    return flow.K, flow.Theta

                first, seconds = first_and_best(call)
                entries = count**2 / 2 * SIDE**2 * LAYERS
                moved, work = 4 * np.dtype(dtype).itemsize * entries, WORK * entries
                peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
                print(
                    f"  {activation:<5} N = {count:<6} {seconds:8.2f} s  first {first:7.2f} s  {entries / seconds:.2e} "
                    f"pairs of sites and layers/s  {moved / seconds / bandwidth:6.1%} of the copy  "
                    f"{work / seconds / rate:6.1%} of the product  peak {peak:5.1f} GiB  "
                    f"error {error_of_a_corner(net, X, call()):.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
