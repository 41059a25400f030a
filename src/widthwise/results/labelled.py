"""`theory`: what the network's theory says about given inputs, as a labelled Dataset."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from widthwise.errors import AccuracyWarning, InvalidInput, UnknownName
from widthwise.flow import kernel_flow
from widthwise.memory import require_memory
from widthwise.network import MLP, check_inputs
from widthwise.progress import DelayedProgress
from widthwise.results.labels import label, layer_coordinate

#: Estimated relative errors above this are worth a warning.
WORTH_A_WARNING = 1e-9


def theory(
    net: MLP,
    X: Any,
    X2: Any = None,
    *,
    order: int = 0,
    tensors: Sequence[str] | None = None,
    layers: str = "all",
    dtype: str = "float64",
    progress: bool | None = None,
) -> xr.Dataset:
    """Kernels of the network on given inputs (theory §2).

    Parameters
    ----------
    net : the network.
    X : array (inputs, features).
    X2 : other inputs (inputs', features); then a, b run over X and X2, and only that rectangle is computed.
    order : 0, the infinite-width kernels K and Theta.
    tensors : which variables, for example ["K"]; all of the order by default.
    layers : "all", or "last" for the output layer alone.
    dtype : "float64", or "float32" for half the memory and about six digits.
    progress : draw a progress bar after two seconds; by default when standard error is a terminal.

    Returns
    -------
    Dataset with K and Theta on (layer, a, b), layers counted from 1; `attrs` hold the network, the route taken and
    an estimate of the relative numerical error.

    >>> import widthwise as ww
    >>> net = ww.MLP(widths=[2, 32, 1], activation="relu", C_W=2.0)
    >>> ds = ww.theory(net, [[1.0, 0.0], [0.0, 1.0]], order=0)
    >>> ds["K"].sel(layer=2).values.round(6).tolist()
    [[1.0, 0.31831], [0.31831, 1.0]]
    """
    if not isinstance(net, MLP):
        raise InvalidInput("net", type(net).__name__, "a widthwise.MLP")
    if order != 0:
        raise InvalidInput("order", repr(order), "0: corrections in 1/n are not part of this version")
    if layers not in ("all", "last"):
        raise UnknownName.of("layers", layers, ("all", "last"))
    wanted = _wanted(tensors)
    X = check_inputs(X, net.widths[0])
    X2 = None if X2 is None else check_inputs(X2, net.widths[0], "X2")
    number = _number_type(dtype)
    _check_size(net, X, X2, wanted, layers, number)
    with DelayedProgress("kernels", progress) as bar:
        flow = kernel_flow(
            net, X, X2, with_theta="Theta" in wanted, last_only=layers == "last", dtype=number, progress=bar
        )
    error = max(flow.error, float(np.finfo(number).eps))
    if flow.error > WORTH_A_WARNING:
        warnings.warn(
            f"theory: estimated relative error {flow.error:.1e}, above {WORTH_A_WARNING:.0e}, in some kernel entries: "
            "nearly parallel inputs at a kernel so large that the activation oscillates or saturates within it",
            AccuracyWarning,
            stacklevel=2,
        )
    dims = ("layer", "a", "b")
    variables = {name: (dims, getattr(flow, name)) for name in wanted}
    return label(
        variables, net, layer_coordinate(flow.layers), kind="theory", order=0, route=flow.route, numerical_error=error
    )


def _wanted(tensors: Sequence[str] | None) -> tuple[str, ...]:
    known = ("K", "Theta")
    if tensors is None:
        return known
    names = [tensors] if isinstance(tensors, str) else list(tensors)
    for name in names:
        if name not in known:
            raise UnknownName.of("tensors", name, known)
    if not names:
        raise InvalidInput("tensors", "an empty list", f"some of {', '.join(known)}")
    return tuple(name for name in known if name in names)


def _number_type(dtype: Any) -> np.dtype:
    for name in ("float64", "float32"):
        if dtype == name or dtype is getattr(np, name) or dtype == np.dtype(name):
            return np.dtype(name)
    raise InvalidInput("dtype", repr(dtype), "'float64' or 'float32'")


def _check_size(net: MLP, X, X2, wanted, layers: str, number: np.dtype) -> None:
    entries = len(X) * len(X if X2 is None else X2) * len(wanted)
    kept = 1 if layers == "last" else net.depth
    shape = f"{len(X)} × {len(X if X2 is None else X2)} entries, {len(wanted)} kernels, {kept} layers in {number}"
    options = []
    if layers == "all" and net.depth > 1:
        options.append("layers='last'")
    if len(wanted) > 1:
        options.append("tensors=['K']")
    if number == np.dtype("float64"):
        options.append("dtype='float32'")
    options.append("fewer inputs, or X2= for one rectangle at a time")
    require_memory(entries * kept * number.itemsize, shape, "Use " + ", ".join(options) + ".")
