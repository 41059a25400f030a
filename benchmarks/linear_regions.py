"""Enumeration of linear pieces: a million on a segment and in a polygon, and pieces a second over depth and width.

    python benchmarks/linear_regions.py [--large]

CPU time of this process beside the time on the clock. `--large` adds the cases of a million pieces.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time

import numpy as np
from common import describe_machine, peak_mb

import widthwise as ww

SQUARE = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
POLYGONS = ([2, 100, 1], [2, 400, 1], [2, 32, 32, 32, 1], [2, 128, 128, 1], [2, 64, 64, 64, 64, 1])
LARGE = ([2, 1450, 1], [2, 320, 320, 320, 1])


def network(widths: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights of variance 2/fan-in, biases of variance one."""
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(m, n)) * math.sqrt(2.0 / n), rng.normal(size=m)) for n, m in itertools.pairwise(widths)]


def report(name: str, call) -> None:
    clock, cpu = time.perf_counter(), time.process_time()
    count = call().count
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    rate, peak = count / cpu, peak_mb()
    print(f"{name:38s} {count:9d} pieces {cpu:8.2f} s CPU {clock:8.2f} s {rate:10.0f} pieces/s, peak {peak:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="the cases of a million pieces")
    arguments = parser.parse_args()
    describe_machine()
    for depth in (10, 16, 20) if arguments.large else (10, 16):
        layers = ww.special.sawtooth_network(depth)
        report(
            f"segment, sawtooth of {depth}",
            lambda layers=layers: ww.special.linear_pieces_on_segment(layers, [0.0], [1.0]),
        )
    layers = network([2, 1000, 1000, 1000, 1])
    report("segment, 3 × 1000", lambda: ww.special.linear_pieces_on_segment(layers, 10 * SQUARE[0], 10 * SQUARE[2]))
    for widths in (*POLYGONS, *LARGE) if arguments.large else POLYGONS:
        drawn = network(widths)
        size = 1e3 if len(widths) == 3 else 6.0
        report(
            f"square, {widths}",
            lambda drawn=drawn, size=size: ww.special.linear_pieces_in_polygon(drawn, size * SQUARE),
        )


if __name__ == "__main__":
    main()
