"""The order-1/n part of `theory`: which tensors, whether they fit into memory, and their labels."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from widthwise.errors import ExpansionWarning, InvalidInput, NotDifferentiable, UnknownName
from widthwise.flow.tensors.rules import READS
from widthwise.flow.tensors.tensor_flow import check_existence, finite_flow, required
from widthwise.memory import available_bytes, readable, require_memory
from widthwise.network import MLP
from widthwise.progress import DelayedProgress
from widthwise.tensors import FOURS, KERNELS, TENSORS, dimensions

#: float64 arithmetic gives no more than this.
FINEST = 1e-13


def wanted_tensors(net: MLP, tensors: Any) -> tuple[tuple[str, ...], str]:
    """Names to compute, and why the others of the default are left out ("" if none is).

    Tensors that are asked for by name and do not exist for the activation raise; by default all that exist are taken.
    """
    if tensors is not None:
        names = check_names(tensors, tuple(TENSORS))
        check_existence(net.activations, tuple(name for name in names if name not in KERNELS))
        return names, ""
    found, reason = [], ""
    for name in TENSORS:
        try:
            check_existence(net.activations, () if name == "K" else ("H1",) if name == "Theta" else (name,))
            found.append(name)
        except NotDifferentiable as error:
            reason = reason or str(error)
    return tuple(found), reason


def check_names(tensors: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    """The asked-for names in the library's own order."""
    names = [tensors] if isinstance(tensors, str) else list(tensors)
    for name in names:
        if name not in known:
            raise UnknownName.of("tensors", name, known)
    if not names:
        raise InvalidInput("tensors", "an empty list", f"some of {', '.join(known)}")
    return tuple(name for name in known if name in names)


def check_tolerance(tolerance: Any) -> float:
    try:
        value = float(tolerance)
    except (TypeError, ValueError):
        value = float("nan")
    if not FINEST <= value <= 1e-2:
        raise InvalidInput(
            "tolerance",
            repr(tolerance),
            f"a number from {FINEST:g}, about the best that float64 can give, to 0.01",
            "Leave it at its default of 1e-9 unless time matters.",
        )
    return value


def warn_if_narrow(net: MLP) -> None:
    """A hidden width of one is a network, but 1/n = 1 is no small number to expand in."""
    narrow = [layer for layer, width in enumerate(net.widths[1:-1], 1) if width == 1]
    if narrow:
        warnings.warn(
            f"theory: width 1 at hidden layer {narrow[0]}: 1/n is not small there, and the expansion in it need not "
            "be close to the network; exact_law is exact at any width for one input",
            ExpansionWarning,
            stacklevel=4,
        )


def require_room(net: MLP, inputs: int, names: tuple[str, ...], layers: str, number: np.dtype) -> None:
    """Refuse before allocation, with what would fit."""
    needed, limit = estimate_bytes(net, inputs, names, layers, number), available_bytes()
    single = np.dtype("float32")
    choices = {
        "layers='last'": (names, "last", number),
        "dtype='float32'": (names, layers, single),
        "layers='last', dtype='float32'": (names, "last", single),
        "tensors=['V'], layers='last'": (("V",), "last", number),
    }
    sizes = {text: estimate_bytes(net, inputs, *choice) for text, choice in choices.items()}
    fitting = [f"{text} ({readable(size)})" for text, size in sizes.items() if size <= limit and size < needed]
    most = int(inputs * (limit / needed) ** 0.25)
    kept = 1 if layers == "last" else net.depth
    require_memory(
        needed,
        f"{len(names)} tensors of {inputs} inputs, up to {inputs}⁴ entries each, {kept} layers in {number}",
        "What would fit: " + ", or ".join([*fitting, f"up to {most} inputs"]) + ".",
    )


def estimate_bytes(net: MLP, inputs: int, names: tuple[str, ...], layers: str, number: np.dtype) -> int:
    """What is kept, and what the step from one layer to the next holds besides."""
    full = inputs**4
    fours = tuple(name for name in names if name in FOURS)
    carried = [name for name in required(tuple(n for n in names if n not in KERNELS)) if name in FOURS]
    reads = max((len(READS[name]) for name in carried), default=0)
    kept = len(fours) * (1 if layers == "last" else net.depth) * full * number.itemsize
    # tensors below and above, what one rule reads, its temporaries, the lookup of sorted quadruples, their values
    working = (2 * len(carried) + reads + 4) * full * 8 + 5 * full + 60 * 8 * full // 24
    return kept + (working if carried else 0)


def finite_variables(net: MLP, X: np.ndarray, names: tuple[str, ...], layers: str, number: np.dtype, tolerance, bar):
    """Variables {name: (dimensions, values)} of the wanted names, and the flow they come from."""
    warn_if_narrow(net)
    require_room(net, len(X), names, layers, number)
    tensors = tuple(name for name in names if name not in KERNELS)
    with DelayedProgress("tensors of order 1/n", bar) as progress:
        flow = finite_flow(
            net, X, tensors, with_theta="Theta" in names, last_only=layers == "last", tolerance=tolerance,
            dtype=number, progress=progress,
        )  # fmt: skip
    found = {name: getattr(flow, name).astype(number) for name in names if name in KERNELS} | flow.tensors
    return {name: (("layer", *dimensions(name)), found[name]) for name in names}, flow
