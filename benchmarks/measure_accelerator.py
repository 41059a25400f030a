"""Networks measured and trained a second on an accelerator, against width and batch, as fractions of its peak.

    PYTHONPATH=src python benchmarks/measure_accelerator.py [--quick] [--seconds 270]

Needs jax, numpy and scipy alone. The peak is a large float64 matrix product and a large copy in the same run.
`networks/s` is the device: parameters drawn and observed, after compilation. `summed/s` includes the sums, as `measure`
makes them on the device and brings them to the host, `on host/s` the same with sums made on the host, and `apart` the
largest difference of the two relative to the largest of its sums. Operations are those of the program before
optimisation, and of training 6 per parameter, input and step. No new row starts after `--seconds`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.experiments import programme
from widthwise.experiments.estimators import check_statistics, draw_batch, observe_drawn
from widthwise.experiments.programme import Part, Programme, observe_kernels
from widthwise.experiments.reference import reference
from widthwise.experiments.sampler import on_device
from widthwise.experiments.tally import Chunk
from widthwise.experiments.training.ensemble import Ensemble
from widthwise.network import MLP
from widthwise.network.algorithms import GradientDescent, GradientFlow
from widthwise.tensors import CORRECTIONS

INPUTS = np.random.default_rng(0).normal(size=(6, 3))
TARGETS = np.array([[0.8, -0.5, 0.3, 0.6]])
KINDS = {"Ĥ": (), "V A B D F": ("V", "A", "B", "D", "F"), "all": CORRECTIONS}
#: float64 numbers of a batch, above which a row is left out.
ROOM = 1 << 31
STEPS = 100
_COLUMNS = ("what", "width", "batch", "first s", "networks/s", "summed/s", "on host/s", "apart", "product", "copy")


def network(width: int) -> MLP:
    return MLP([3, width, width, 1], "tanh", C_b=0.1, C_W=1.6, lambda_b=0.3, lambda_W=0.9)


def seconds_of(call: Callable[[], Any], repeats: int = 3) -> tuple[float, float]:
    """(the first call, the fastest later one)."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return times[0], min(times[1:])


def peaks(side: int) -> tuple[float, float]:
    """Operations a second of a float64 matrix product, and bytes a second of a copy, read and written."""
    square, block = jnp.ones((side, side)), jnp.ones(side * side * 4)
    product, copy = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1.0)
    return 2 * side**3 / seconds_of(lambda: product(square))[1], 2 * block.nbytes / seconds_of(lambda: copy(block))[1]


def work(function: Any, *arguments: Any) -> tuple[float, float]:
    """Operations, and bytes of arguments and results, of one call of a compiled function."""
    # only the processor's compiler counts operations before optimisation; the two static settings come first
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), float), arguments[2:])
    with jax.default_device(jax.devices("cpu")[0]):
        lowered = jax.jit(function.__wrapped__, static_argnums=1).lower(*arguments[:2], *shapes)
    operations = (lowered.cost_analysis() or {})["flops"]
    # settings that are compiled in are no arrays
    moved = jax.tree.leaves((arguments[2:], lowered.out_info))
    return operations, sum(8.0 * np.prod(np.shape(leaf)) for leaf in moved)


def measured(kind: str, width: int, batch: int, peak: tuple[float, float]) -> list[str] | None:
    """A row: networks a second for one kind of statistics; None where the batch does not fit."""
    net, X = network(width), INPUTS[:4]
    names = check_statistics(net.activation, KINDS[kind]) if KINDS[kind] else ()
    ref = reference(net, X)
    kernels = () if names else ("Theta",)
    part = Part(net, 0, kernels, names, ref if names else None, ("gaussian",) * net.depth)
    if part.cost(len(X))[0] * batch > ROOM:
        return None
    indices, inputs = jnp.arange(batch), jnp.asarray(X)
    layers, signs, there = *draw_batch(net, 1, 0, indices), on_device(net)
    given: Any = (there, names, layers, signs, inputs, ref) if names else (there, kernels, layers, inputs)
    observe: Any = observe_drawn if names else observe_kernels
    operations, moved = work(observe, *given)

    def once():
        layers, signs = draw_batch(net, 1, 0, indices)
        return observe_drawn(there, names, layers, signs, inputs, ref) if names else observe(*given[:2], layers, inputs)

    first, each = seconds_of(once)
    seen = seconds_of(lambda: observe(*given))[1]
    sums = partial(Programme((part,), X, batch, batch), Chunk(0, 0, batch))
    summed, on_device_sums = seconds_of(sums)[1], sums()
    with mock.patch.object(programme, "on_accelerator", return_value=False):
        on_host, here = seconds_of(sums, 1)[1], sums()
    apart = max(float(np.abs(on_device_sums[name] - here[name]).max() / np.abs(here[name]).max()) for name in here
                if name.startswith(("sum:", "product:")))  # fmt: skip
    rates = (f"{batch / each:.0f}", f"{batch / summed:.0f}", f"{batch / on_host:.0f}", f"{apart:.0e}")
    shares = (f"{operations / seen / peak[0]:.1%}", f"{moved / seen / peak[1]:.1%}")
    return [kind, str(width), str(batch), f"{first:.1f}", *rates, *shares]


def trained(how: Any, width: int, batch: int, peak: tuple[float, float]) -> list[str] | None:
    """A row: networks trained a second, with their kernels and control variates."""
    net = network(width)
    parameters = sum(a * b + b for a, b in zip(net.widths[:-1], net.widths[1:], strict=True))
    if 32 * parameters * batch > ROOM:
        return None
    settings = {"seed": 0, "tolerance": 1e-6, "accuracy": 1e-5, "max_steps": 2000}
    ensemble = Ensemble.of(net, how, INPUTS[:4], TARGETS, INPUTS[4:], batch=batch, **settings)
    first, each = seconds_of(lambda: ensemble(Chunk(0, 0, batch)), 1)
    share = ""
    if isinstance(how, GradientDescent):
        share = f"{6 * parameters * TARGETS.size * STEPS * batch / each / peak[0]:.1%}"
    label = f"descent {STEPS}" if isinstance(how, GradientDescent) else "flow"
    return [label, str(width), str(batch), f"{first:.1f}", "", f"{batch / each:.0f}", "", "", share, ""]


def rows(quick: bool) -> Iterator[Callable[..., list[str] | None]]:
    """What is timed, the most wanted first."""
    widths, batches = ((16,), (8, 32)) if quick else ((64, 256, 1024), (64, 512, 4096))
    how = (GradientDescent(0.2, STEPS), GradientFlow())
    for kind in KINDS:
        yield partial(measured, kind, widths[0], batches[-1])
    for algorithm in how:
        yield partial(trained, algorithm, widths[0], batches[-1])
    for kind in KINDS:
        for batch in batches[:-1]:
            yield partial(measured, kind, widths[0], batch)
    for width, batch in zip(widths[1:], reversed(batches[:-1]), strict=False):
        for kind in KINDS:
            yield partial(measured, kind, width, batch)
        yield partial(trained, how[0], width, batch)
    for batch in batches[:-1]:
        yield partial(trained, how[0], widths[0], batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--seconds", type=float, default=270.0)
    options = parser.parse_args()
    begun, device = time.perf_counter(), jax.devices()[0]
    peak = peaks(512 if options.quick else 8192)
    print(f"{device.device_kind}, jax {jax.__version__}; float64 matrix product {peak[0] / 1e12:.2f} T operations/s, "
          f"copy {peak[1] / 1e9:.0f} GB/s; depth 3, 4 inputs, tanh", flush=True)  # fmt: skip
    print("  ".join(name.rjust(11) for name in _COLUMNS), flush=True)
    for row in rows(options.quick):
        if time.perf_counter() - begun > options.seconds:
            print("time is up", flush=True)
            break
        cells = row(peak=peak)
        if cells is not None:
            print("  ".join(cell.rjust(11) for cell in cells), flush=True)
    used = (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30
    print(f"peak {used:.1f} GiB of the device, {time.perf_counter() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
