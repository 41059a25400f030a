"""Predictions to order 1/n in tiles on an accelerator, as far up in training inputs as memory and time allow.

    PYTHONPATH=src python benchmarks/predict_accelerator.py [--sizes 32 64 100 150] [--activation tanh] [--full 32]

Network, data and algorithm of predict.py. Needs jax, numpy and scipy alone, and runs on a processor too, where
JAX_PLATFORMS=cpu and `taskset` choose the cores. `compile s` is the part of a call that jax spends on compiling, which
a second call of the same shapes saves; `µs a quad` is the rest for one quadruple of inputs at one layer. Progress goes
to the standard error. The last line carries the cost of a quadruple over to more inputs.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

import jax
import numpy as np
from common import peak_mb
from predict import STEPS, TESTS, data, network

from widthwise.criticality.learning_rates import largest_stable_step
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.quadruple_flow import QuadrupleFlow
from widthwise.inference.corrections import TRAINING_TENSORS, at_output, joint_tensors
from widthwise.inference.infinite_width import Spectrum
from widthwise.inference.tiled.contracted_moments import contracted_moments
from widthwise.inference.tiled.quadruple_tiles import count_quadruples
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.trained_moments import Basis, OutputMoments, moments_at_tests, moments_at_training
from widthwise.network.algorithms import GradientDescent

AIM = 500
#: Seconds between lines of progress.
PAUSE = 20.0


class Compiling:
    """Seconds that jax spends on tracing and compiling."""

    def __init__(self):
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self)

    def __call__(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            self.seconds += duration_secs


class Progress:
    def __init__(self, total: int):
        self.total, self.start, self.said = total, time.perf_counter(), 0.0

    def __call__(self, done: int) -> None:
        now = time.perf_counter() - self.start
        if now > self.said + PAUSE:
            self.said = now
            print(f"{now:6.0f} s: {done} of {self.total} quadruples", file=sys.stderr, flush=True)


def moments(net, count: int, way: str) -> OutputMoments:
    """mean1 and cov1 at the tests, by tiles or from full tensors."""
    X, y, tests = data(count)
    inputs = np.concatenate([X, tests])
    clock = Clock.of(GradientDescent(0.5 * largest_stable_step(net, X), STEPS))
    spectrum = Spectrum.of(kernel_flow(net, X, last_only=True).Theta[-1])  # pyright: ignore[reportOptionalSubscript]
    if way == "tiles":
        flow = QuadrupleFlow(
            net, inputs, TRAINING_TENSORS, progress=Progress(count_quadruples(count, TESTS, net.depth))
        )
        return contracted_moments(flow, spectrum, y[:, None], clock)[0]
    flow = joint_tensors(net, inputs, TRAINING_TENSORS)
    assert flow.Theta is not None
    basis = Basis.of(spectrum, flow.Theta[-1], at_output(flow), y[:, None])
    moments_at_training(basis, clock)
    return moments_at_tests(basis, clock)[1]


def timed(call) -> tuple[float, OutputMoments]:
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 100, 150])
    parser.add_argument("--activation", default="tanh")
    parser.add_argument("--full", type=int, default=0, help="full tensors too, up to so many inputs")
    options = parser.parse_args()
    device, net, compiling = jax.devices()[0], network(options.activation), Compiling()
    print(f"{device.device_kind}, jax {jax.__version__}; {net}, {TESTS} tests, {STEPS} steps")
    head = ("N", "way", "seconds", "compile s", "µs a quad", "device GiB", "host GiB", "mean1[0]")
    print("  ".join(h.rjust(10) for h in head), flush=True)
    cost = 0.0
    for count in options.sizes:
        for way in ["tiles", *(["full"] if count <= options.full else [])]:
            call = partial(moments, net, count, way)
            before = compiling.seconds
            seconds, found = timed(call)
            spent = compiling.seconds - before
            each = (seconds - spent) / count_quadruples(count, TESTS, net.depth)
            cost = each if way == "tiles" else cost
            used = (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
            row = [str(count), way, f"{seconds:.1f}", f"{spent:.1f}", f"{1e6 * each:.2f}", f"{used:.1f}"]
            print(
                "  ".join(c.rjust(10) for c in (*row, f"{peak_mb() / 1024:.1f}", f"{found.mean[0, 0]:.6f}")), flush=True
            )
    hours = cost * count_quadruples(AIM, TESTS, net.depth) / 3600
    print(f"at the last cost of a quadruple N = {AIM} takes {hours:.1f} hours (not run)")


if __name__ == "__main__":
    main()
