"""How long the explorer takes to answer a slider, against its limit of 200 ms.

Random positions of all sliders and activations, drawn before anything is timed; everything that the Theory tab shows
for one position is computed as the page does it, part by part. Times of the first answers contain no compilation: the
server's warm-up has run. Wall time is what a visitor waits for; processor time is given beside it, because other
programs on the machine lengthen the one and not the other.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from widthwise.explorer.server import warm
from widthwise.explorer.settings import CONTROLS, PAGE_ACTIVATIONS, Settings
from widthwise.explorer.theory import Theory, advice_of, exact_density, pair_of, phases_of, theory_of

LIMIT = 0.2
SLIDERS = ("C_W", "C_b", "depth", "width", "size_a", "size_b", "angle", "lambda_b", "lambda_W")
PARTS: dict[str, Callable[[Theory], object]] = {
    "phase diagram": lambda found: phases_of(found.settings.activation),
    "correlation": pair_of,
    "exact density": lambda found: exact_density(found) if found.exploded is None else None,
    "advice": lambda found: advice_of(found.settings),
}


def position(rng: np.random.Generator, activation: str) -> Settings:
    """One stop of every slider, each as likely as the others."""
    values = {}
    for name in SLIDERS:
        control = CONTROLS[name]
        stop = control.low + control.step * rng.integers(round((control.high - control.low) / control.step) + 1)
        values[name] = int(stop) if control.whole else round(float(stop), 6)
    if values["lambda_b"] == values["lambda_W"] == 0.0:
        values["lambda_W"] = 1.0
    return replace(Settings(), activation=activation, **values)


def clocked(call: Callable[[], Any]) -> tuple[np.ndarray, Any]:
    """(wall, processor) seconds of a call, and its result."""
    start = np.array([time.perf_counter(), time.process_time()])
    result = call()
    return np.array([time.perf_counter(), time.process_time()]) - start, result


def answer(settings: Settings) -> np.ndarray:
    """(parts, 2) seconds for one position: curves first, then the parts in the order in which the page shows them."""
    first, found = clocked(lambda: theory_of(settings))
    return np.array([first, *(clocked(lambda part=part: part(found))[0] for part in PARTS.values())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--activations", nargs="+", default=list(PAGE_ACTIVATIONS), choices=PAGE_ACTIVATIONS)
    chosen = parser.parse_args()
    rng = np.random.default_rng(chosen.seed)
    positions = [position(rng, chosen.activations[i % len(chosen.activations)]) for i in range(chosen.positions)]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; limit {1e3 * LIMIT:.0f} ms")
    seconds, _ = clocked(lambda: warm(tuple(chosen.activations)))
    print(
        f"warm-up of {len(chosen.activations)} activations: {seconds[0]:.0f} s, of which processor {seconds[1]:.0f} s"
    )
    taken = np.array([answer(settings) for settings in positions])
    rows = dict(zip(("curves", *PARTS), taken.swapaxes(0, 1), strict=True)) | {"everything": taken.sum(axis=1)}
    print(f"{len(positions)} positions, ms: wall median, 95 %, worst | processor median, 95 %, worst | worst/limit")
    for name, row in rows.items():
        wall, processor = (np.percentile(1e3 * column, [50, 95, 100]) for column in row.T)
        print(
            f"  {name:14}" + "".join(f"{x:8.1f}" for x in (*wall, *processor)) + f"{processor[-1] / 1e3 / LIMIT:8.2f}"
        )
    late = rows["everything"] > LIMIT
    print(
        f"answered within the limit: {1 - late[:, 0].mean():.1%} by wall time, {1 - late[:, 1].mean():.1%} by processor"
    )
    for settings, (wall, processor) in zip(positions, rows["everything"], strict=True):
        if processor > LIMIT:
            print(f"  beyond it: {1e3 * wall:.0f} ms, processor {1e3 * processor:.0f} ms, {settings}")


if __name__ == "__main__":
    main()
