"""Predictions to order 1/n in tiles, against full tensors and against training 1,000 networks; time and memory.

    python benchmarks/predict.py [--sizes 8 16 32 64 100] [--activation tanh] [--networks 1000] [--full-up-to 32]

Depth 3, width 64, four test inputs, 100 steps of gradient descent at half the stable bound. Every way of every size
runs in a process of its own; peak memory is what it adds to that of the imports, compiled code included. `s.e.` is the
standard error of the ensemble's mean over the correction mean1/n, both root mean squares over the tests; `as good` is
the time in which `train` would know that correction to a tenth, over the time of the prediction. `rms pull` compares
the two means: the theory leaves out order 1/n², so that it may exceed one when the ensemble is large. `said` is what
`predict` would estimate before it starts over what was measured: of itself (the quicker of both ways), and of `train`.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

import numpy as np
from common import best_time, describe_machine, peak_mb, run_apart, scaling_exponent

HERE = Path(__file__).resolve()
TESTS, WIDTH, STEPS, SHARE = 4, 64, 100, 0.1
HEAD = ("N", "tiles s", "first s", "MB", "full s", "MB", "full/tiles", "differ", "train s", "MB", "s.e.", "as good",
        "rms pull", "said", "said")  # fmt: skip


def network(activation: str, width: int = WIDTH):
    from widthwise.network import MLP

    return MLP([10, width, width, 1], activation, C_b=0.1, C_W=1.4, lambda_b=0.3, lambda_W=1.0)


def data(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training inputs and targets of a smooth function with noise, and test inputs."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(count + TESTS, 10))
    y = np.sin(X @ rng.normal(size=10) / 3.0) + 0.1 * rng.normal(size=count + TESTS)
    return X[:count], y[:count], X[count:]


def run_one(way: str, activation: str, count: int, networks: int) -> None:
    """One way at one size, in this process; prints a JSON object."""
    import widthwise as ww
    from widthwise.inference.cost import order_one_seconds, training_seconds

    warnings.simplefilter("ignore", ww.errors.ExpansionWarning)
    net, given = network(activation), data(count)
    how = ww.GradientDescent(0.5 * ww.max_learning_rate(net, given[0]), STEPS)
    before, made = peak_mb(), {}

    def call():
        made["out"] = (
            ww.train(net, *given, networks, how, progress=False)
            if way == "train"
            else ww.predict(net, *given, how, order=1, method=way)
        )

    first = best_time(call, 1)
    seconds = best_time(call, 1) if first < 120.0 else first
    said = order_one_seconds(net, count, TESTS)
    if way == "train":
        said = training_seconds(net, count + TESTS, STEPS, networks)
    out, kept = made["out"], {"mean": None, "mean_se": None, "mean1": None, "cov1": None}
    arrays = {name: out[name].values.ravel().tolist() for name in kept if name in out}
    print(json.dumps({"seconds": seconds, "first": first, "said": said, "peak_mb": peak_mb() - before, **arrays}))


def row_of(count: int, tiles: dict, full: dict | None, trained: dict | None) -> list[str]:
    cells = [str(count), f"{tiles['seconds']:.2f}", f"{tiles['first']:.1f}", f"{tiles['peak_mb']:.0f}"]
    if full is None:
        cells += ["-"] * 4
    else:
        differ = max(np.abs(np.subtract(tiles[k], full[k])).max() / np.abs(full[k]).max() for k in ("mean1", "cov1"))
        cells += [f"{full['seconds']:.2f}", f"{full['peak_mb']:.0f}", f"{full['seconds'] / tiles['seconds']:.2f}"]
        cells += [f"{differ:.0e}"]
    if trained is None:
        return [*cells, *["-"] * 7]
    error, correction = rms(trained["mean_se"]), rms(tiles["mean1"]) / WIDTH
    needed = trained["seconds"] * (error / (SHARE * correction)) ** 2
    pull = rms(np.subtract(trained["mean"], tiles["mean"]) / np.array(trained["mean_se"]))
    cells += [f"{trained['seconds']:.1f}", f"{trained['peak_mb']:.0f}", f"{error / correction:.2f}"]
    quicker = min(tiles["seconds"], full["seconds"] if full else np.inf)
    said = [f"{tiles['said'] / quicker:.2f}", f"{trained['said'] / trained['seconds']:.2f}"]
    return [*cells, f"{needed / tiles['seconds']:.1f}×", f"{pull:.1f}", *said]


def rms(values) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 32, 64, 100])
    parser.add_argument("--activation", default="tanh")
    parser.add_argument("--networks", type=int, default=1000)
    parser.add_argument("--full-up-to", type=int, default=32, help="largest N for full tensors")
    parser.add_argument("--one", nargs=4, metavar=("WAY", "ACTIVATION", "INPUTS", "NETWORKS"), help="run one case here")
    options = parser.parse_args()
    if options.one:
        way, activation, count, networks = options.one
        run_one(way, activation, int(count), int(networks))
        return
    describe_machine()
    print(f"{network(options.activation)}, {TESTS} tests, {STEPS} steps, {options.networks} networks")
    print("  ".join(h.rjust(10) for h in HEAD), flush=True)
    sizes, times = [], []
    for count in options.sizes:
        ways = {"tiles": True, "full": count <= options.full_up_to, "train": options.networks > 1}
        found = {
            way: run_apart(sys.executable, HERE, "--one", way, options.activation, count, options.networks)
            for way, wanted in ways.items()
            if wanted
        }
        if found["tiles"] is None:
            continue
        sizes, times = [*sizes, count], [*times, found["tiles"]["seconds"]]
        row = row_of(count, found["tiles"], found.get("full"), found.get("train"))
        print("  ".join(cell.rjust(10) for cell in row), flush=True)
    if len(sizes) > 1:
        print(f"time of tiles grows like N^{scaling_exponent(sizes, times):.1f} between the last two sizes")


if __name__ == "__main__":
    main()
