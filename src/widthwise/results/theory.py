"""`theory`: what the network's theory says about given inputs, as a labelled Dataset."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from widthwise.errors import AccuracyWarning, InvalidInput, UnknownName
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.memory import require_memory
from widthwise.network import Network, check_inputs, check_network, plain
from widthwise.progress import DelayedProgress
from widthwise.results.finite_width import check_names, check_tolerance, finite_variables, wanted_tensors
from widthwise.results.labels import label, layer_coordinate
from widthwise.tensors import KERNELS

#: Estimated relative errors above this are worth a warning.
WORTH_A_WARNING = 1e-9


def theory(
    net: Network,
    X: Any,
    X2: Any = None,
    *,
    order: int = 0,
    tensors: Sequence[str] | None = None,
    layers: str = "all",
    tolerance: float = 1e-9,
    dtype: str = "float64",
    progress: bool | None = None,
) -> xr.Dataset:
    """The network's kernels, and its corrections of order 1/width, on given inputs (theory §2 to §5).

    Parameters
    ----------
    net : the network.
    X : array (inputs, features).
    X2 : other inputs (inputs', features); then a, b run over X and X2, and only that rectangle is computed. order=0.
    order : 0 for the infinite-width kernels K and Theta; 1 for those and G1, H1, V, A, B, D, F, P, Q, R, S, T, U.
    tensors : which variables, for example ["K", "V"]; by default all of the order that exist for the activation
        (`attrs["missing"]` then says why others do not).
    layers : "all", or "last" for the output layer alone.
    tolerance : relative accuracy of the four-point expectations of order=1, from 1e-13 to 0.01.
    dtype : "float64", or "float32" for half the memory and about six digits.
    progress : draw a progress bar after two seconds; by default when standard error is a terminal.

    Returns
    -------
    Dataset with K, Theta, G1, H1 on (layer, a, b) and the other tensors on (layer, a, b, c, d) in the index order of
    theory §3, layers counted from 1. At layer l the physical correction is the tensor over n, the width of layer l−1.
    `attrs` hold the network, the route taken and an estimate of the relative numerical error.

    >>> import widthwise as ww
    >>> net = ww.MLP(widths=[2, 32, 32, 1], activation="relu", C_W=2.0)
    >>> ds = ww.theory(net, [[1.0, 0.0], [0.0, 1.0]], order=0)
    >>> ds["K"].sel(layer=2).values.round(6).tolist()
    [[1.0, 0.31831], [0.31831, 1.0]]
    >>> ww.theory(net, [[1.0, 0.0]], order=1, tensors=["V"])["V"].values.ravel().round(9).tolist()   # 5(l−1)K²
    [0.0, 5.0, 10.0]
    """
    check_network(net)
    if isinstance(order, bool) or order not in (0, 1):
        raise InvalidInput("order", repr(order), "0 or 1: the expansion in 1/width ends at its first order")
    if layers not in ("all", "last"):
        raise UnknownName.of("layers", layers, ("all", "last"))
    X, number, tolerance = check_inputs(X, net.widths[0]), _number_type(dtype), check_tolerance(tolerance)
    if order == 0:
        names, missing = KERNELS if tensors is None else check_names(tensors, KERNELS), ""
    else:
        if X2 is not None:
            raise InvalidInput(
                "X2", "an array with order=1", "None", "Stack X and X2: tensors need all inputs together."
            )
        net = plain(net, "theory(order=1)")
        names, missing = wanted_tensors(net, tensors)
    if set(names) <= set(KERNELS):
        variables, flow = _infinite(net, X, X2, names, layers, number, progress)
        level = WORTH_A_WARNING
    else:
        variables, flow = finite_variables(plain(net, "theory(order=1)"), X, names, layers, number, tolerance, progress)
        level = max(10.0 * tolerance, WORTH_A_WARNING)
    if flow.error > level:
        warnings.warn(
            f"theory: estimated relative error {flow.error:.1e}, above {level:.0e}, in some entries: a kinked "
            "activation of your own, or nearly parallel inputs at a kernel so large that the activation oscillates "
            "or saturates within it",
            AccuracyWarning,
            stacklevel=2,
        )
    error = max(flow.error, float(np.finfo(number).eps))
    details = {"kind": "theory", "order": order, "route": flow.route, "numerical_error": error}
    if missing:
        details["missing"] = missing
    return label(variables, net, layer_coordinate(flow.layers), **details)


def _infinite(net: Network, X, X2, names: tuple[str, ...], layers: str, number: np.dtype, bar: bool | None):
    X2 = None if X2 is None else check_inputs(X2, net.widths[0], "X2")
    _check_size(net, X, X2, names, layers, number)
    with DelayedProgress("kernels", bar) as progress:
        flow = kernel_flow(
            net, X, X2, with_theta="Theta" in names, last_only=layers == "last", dtype=number, progress=progress
        )
    return {name: (("layer", "a", "b"), getattr(flow, name)) for name in names}, flow


def _number_type(dtype: Any) -> np.dtype:
    for name in ("float64", "float32"):
        if dtype == name or dtype is getattr(np, name) or dtype == np.dtype(name):
            return np.dtype(name)
    raise InvalidInput("dtype", repr(dtype), "'float64' or 'float32'")


def _check_size(net: Network, X, X2, wanted, layers: str, number: np.dtype) -> None:
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
