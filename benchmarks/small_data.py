"""Kernels of 50 data sets of different sizes, as in cross-validation over many small tables, against a numpy loop.

    python benchmarks/small_data.py [--sets 50] [--rounds 5] [--seed 0]

Data sets have 20 to 600 rows of 5 to 50 features; networks are relu of 1 to 5 hidden layers, both drawn by the seed.
The loop is what one writes by hand: the arc-cosine formula on the whole square, layer by layer, without checks, labels
or error estimates. Both go through all sets in turn, in the same process; the first pass, which compiles, is shown
apart. Errors are the largest difference between the two over the largest entry.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from common import peak_mb

import widthwise as ww


def numpy_loop(net: ww.MLP, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """K and Θ of the last layer of a relu network."""
    product = X @ X.T / X.shape[1]
    K, Theta = net.C_b[0] + net.C_W[0] * product, net.lambda_b[0] + net.lambda_W[0] * product
    for C_b, C_W, lambda_b, lambda_W in list(zip(net.C_b, net.C_W, net.lambda_b, net.lambda_W, strict=True))[1:]:
        size = np.sqrt(np.outer(K.diagonal(), K.diagonal()))
        cosine = np.clip(K / size, -1.0, 1.0)
        turned = np.pi - np.arccos(cosine)
        Q = size * (np.sqrt(1.0 - cosine * cosine) + cosine * turned) / (2.0 * np.pi)
        K, Theta = C_b + C_W * Q, lambda_b + lambda_W * Q + C_W * Theta * turned / (2.0 * np.pi)
    return K, Theta


def draw(sets: int, seed: int) -> list[tuple[ww.MLP, np.ndarray]]:
    rng, found = np.random.default_rng(seed), []
    for _ in range(sets):
        rows, features, hidden = int(rng.integers(20, 601)), int(rng.integers(5, 51)), int(rng.integers(1, 6))
        net = ww.MLP([features, *[256] * hidden, 1], "relu", C_b=0.05, C_W=2.0)
        found.append((net, rng.normal(size=(rows, features))))
    return found


def seconds_of(function: Callable[[ww.MLP, np.ndarray], object], cases: list[tuple[ww.MLP, np.ndarray]]) -> np.ndarray:
    """Of every call."""
    times = []
    for net, X in cases:
        start = time.perf_counter()
        function(net, X)
        times.append(time.perf_counter() - start)
    return np.array(times)


def ours(net: ww.MLP, X: np.ndarray) -> object:
    return ww.theory(net, X, layers="last")


def largest_difference(net: ww.MLP, X: np.ndarray) -> float:
    ds = ww.theory(net, X, layers="last")
    both = zip((ds["K"].values[0], ds["Theta"].values[0]), numpy_loop(net, X), strict=True)
    return max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cases = draw(arguments.sets, arguments.seed)
    before = peak_mb()
    print(f"{arguments.sets} data sets of 20 to 600 rows, relu, 1 to 5 hidden layers, seed {arguments.seed}")
    print("pass".rjust(8), "ours s".rjust(10), "loop s".rjust(10), "ours/loop".rjust(10))
    best = [np.full(len(cases), np.inf) for _ in range(2)]
    for number in range(1 + arguments.rounds):
        passed = [seconds_of(function, cases) for function in (ours, numpy_loop)]
        if number:
            best = [np.minimum(*pair) for pair in zip(best, passed, strict=True)]
        totals = [float(times.sum()) for times in passed]
        print(
            f"{number + 1}".rjust(8), *(f"{t:.4f}".rjust(10) for t in totals), f"{totals[0] / totals[1]:.2f}".rjust(10)
        )
    totals = [float(times.sum()) for times in best]
    print("best".rjust(8), *(f"{t:.4f}".rjust(10) for t in totals), f"{totals[0] / totals[1]:.2f}".rjust(10))
    ratios, rows = best[0] / best[1], np.array([len(X) for _, X in cases])
    for low, high in ((20, 50), (50, 110), (110, 300), (300, 601)):
        some = (rows >= low) & (rows < high)
        if some.any():
            print(f"  {low} to {high - 1} rows: {some.sum()} sets, median ratio {np.median(ratios[some]):.2f}, "
                  f"worst {ratios[some].max():.2f}")  # fmt: skip
    print(f"peak {peak_mb() - before:.0f} MB; difference {max(largest_difference(*case) for case in cases):.1e}")


if __name__ == "__main__":
    main()
