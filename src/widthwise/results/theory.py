"""`theory` and `single_input`: what the network's theory says about given inputs, or one, as a labelled Dataset."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from widthwise.activations import require_derivatives
from widthwise.errors import (
    AccuracyWarning,
    CostWarning,
    ExpansionWarning,
    InvalidInput,
    NotDifferentiable,
    UnknownName,
)
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.one_input.deep_blocks import single_block_flow
from widthwise.flow.one_input.deep_flow import existing, single_flow
from widthwise.flow.one_input.scaled_numbers import log_of, value_of
from widthwise.flow.tensors.block_flow import with_order_one
from widthwise.flow.tensors.pair_flow import PairFlow, pair_flow
from widthwise.flow.tensors.tensor_flow import READS, RULES, check_existence, finite_flow, required
from widthwise.memory import available_bytes, readable, require_layers, require_memory
from widthwise.network import MLP, Network, Residual, check_network, check_one_input, check_real
from widthwise.network.validation import check_names, is_one_of
from widthwise.progress import DelayedProgress
from widthwise.results.chunked import chunked_kernels
from widthwise.results.labels import label, layer_coordinate
from widthwise.tensors import (
    CORRECTIONS,
    FOURS,
    KERNELS,
    MEANS,
    SCALE_TEXT,
    SINGLE_LEGS,
    TENSORS,
    WITHOUT_THETA,
    dimensions,
)

#: Estimated relative errors above this are worth a warning.
NOTABLE_ERROR = 1e-9
#: float64 arithmetic gives no more than this.
_FINEST = 1e-13
#: Kernels by series: what a layer takes on one busy core, and from when on that is said before it starts.
_SECONDS_OF_A_LAYER, _NOTABLE_SECONDS = 3e-3, 60.0


def theory(
    net: Network,
    X: Any,
    X2: Any = None,
    *,
    order: int = 0,
    tensors: Sequence[str] | None = None,
    layers: str = "all",
    inputs: str = "all",
    tolerance: float = 1e-9,
    dtype: str = "float64",
    device: bool = False,
    chunks: int | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """The network's kernels, and its corrections of order 1/width, on given inputs (theory §2 to §5).

    Parameters
    ----------
    net : the network.
    X : array (inputs, features); for networks with positions (inputs, positions…, channels), where K and Theta of
        layers that have positions are means over equal ones (theory §13).
    X2 : other inputs (inputs', features); then a, b run over X and X2, and only that rectangle is computed: of K and
        Theta, and of order=1 of whatever is asked for at pairs.
    order : 0 for the infinite-width kernels K and Theta; 1 for those and G1, H1, V, A, B, D, F, P, Q, R, S, T, U, and
        at layers on a residual stream v3, d3, f3, q3 (theory §11).
    tensors : which variables, for example ["K", "V"]; by default all of the order that exist for the activation
        (`attrs["missing"]` then says why others do not). v3, d3, f3, q3 vanish at every layer that does not end with a
        residual connection: by default they are there if one of the layers kept does, and asked for by name they are
        zero at the others, in plain networks everywhere.
    layers : "all", or "last" for the output layer alone.
    inputs : at which inputs tensors of order=1 are computed. "all": every slot runs over all inputs, N⁴ entries for
        most. "pairs": entries between two inputs, which are closed under their own two and cost N²: tensors of four
        slots on (layer, entry, a, b), where `entry` says which of the two stands in each slot, "aabb" for example.
        "diagonal": one input in all slots, on (layer, a). Both need plain networks, and activations without kinks or
        of the relu family, for which G1 and H1 alone cost N² in any case.
    tolerance : relative accuracy of the four-point expectations of order=1, from 1e-13 to 0.01.
    dtype : "float64", or "float32" for half the memory and about six digits.
    device : leave K and Theta of order=0 as arrays of jax where it computes, which on an accelerator saves the way to
        the host; solve with them there (`jax.scipy.linalg`).
    chunks : of order=0, for kernels larger than memory: arrays of Dask in blocks of so many inputs each way, which
        nothing computes before they are asked for; `save` to a path that ends with ".zarr" writes them piece by piece,
        on a cluster if a `distributed.Client` is there, and goes on where a run was ended.
    progress : draw a progress bar after two seconds; by default when standard error is a terminal.

    Returns
    -------
    Dataset with K, Theta, G1, H1 on (layer, a, b), v3, d3, f3, q3 on (layer, a, b, c) and the other tensors on
    (layer, a, b, c, d) in the index order of theory §3 and §11, layers counted from 1. At layer l the physical
    correction is the tensor over n, the width of layer l−1. `attrs` hold the network, the route taken and an estimate
    of the relative numerical error.

    >>> import widthwise as ww
    >>> net = ww.MLP(widths=[2, 32, 32, 1], activation="relu", C_W=2.0)
    >>> ds = ww.theory(net, [[1.0, 0.0], [0.0, 1.0]], order=0)
    >>> ds["K"].sel(layer=2).values.round(6).tolist()
    [[1.0, 0.31831], [0.31831, 1.0]]
    >>> ww.theory(net, [[1.0, 0.0]], order=1, tensors=["V"])["V"].values.ravel().round(9).tolist()   # 5(l−1)K²
    [0.0, 5.0, 10.0]
    >>> net = net.replace(activation="gelu")
    >>> ds = ww.theory(net, [[1.0, 0.0], [0.0, 1.0]], order=1, tensors=["V"], inputs="pairs")
    >>> bool(ds["V"].sel(entry="aabb", a=0, b=1, layer=3) > 0)
    True
    """
    check_network(net)
    if not is_one_of(order, (0, 1)):
        raise InvalidInput("order", repr(order), "0 or 1: the expansion in 1/width ends at its first order")
    for argument, value, known in (("layers", layers, ("all", "last")), ("inputs", inputs, tuple(_PAIR_ENTRIES))):
        if not is_one_of(value, known):
            raise UnknownName.of(argument, value, known)
    X, number = net.check_inputs(X), _number_type(dtype)
    if not isinstance(device, bool) or (device and order == 1):
        raise InvalidInput("device", f"{device!r} with order={order}", "True or False, with order=0")
    accuracy = f"a number from {_FINEST:g}, about the best that float64 can give, to 0.01"
    remedy = "Leave it at its default of 1e-9 unless time matters."
    tolerance = check_real("tolerance", tolerance, accuracy, remedy, least=_FINEST, largest=1e-2)
    if order == 0:
        if inputs != "all":
            raise InvalidInput("inputs", f"{inputs!r} with order=0", "'all'", "K and Theta stand on pairs of inputs.")
        names, missing = KERNELS if tensors is None else names_in_order(tensors, KERNELS), ""
    else:
        net = with_order_one(net, "theory(order=1)")
        names, missing = _names_that_exist(net, tensors, layers)
    if chunks is not None:
        if order == 1 or device:
            raise InvalidInput("chunks", f"{chunks!r} with order={order}, device={device}", "order=0, device=False")
        other = _others(net, X, X2)
        return chunked_kernels(net, X, other, names, layers, number, chunks)
    two = _at_pairs(net, X, X2, names, layers, inputs, number, tolerance, progress) if order == 1 else None
    if two is not None:
        return _labelled_pairs(net, two, names, inputs, number, missing, max(10.0 * tolerance, NOTABLE_ERROR))
    if order == 1 and X2 is not None and not set(names) <= set(KERNELS):
        raise InvalidInput("X2", "an array with order=1", "None", "Stack X and X2: tensors need all inputs together.")
    if set(names) <= set(KERNELS):
        flow, level = _infinite(net, X, X2, names, layers, number, device, progress), NOTABLE_ERROR
        corrections = {}
    else:
        flow = _to_order_one(net, X, names, layers, number, tolerance, progress)
        level, corrections = max(10.0 * tolerance, NOTABLE_ERROR), flow.tensors
    details = _details(flow, order, number, missing, level)
    found = {name: getattr(flow, name) for name in names if name in KERNELS}
    found = {name: kernel if device else kernel.astype(number, copy=False) for name, kernel in found.items()}
    found |= corrections
    variables = {name: (("layer", *dimensions(name)), found[name]) for name in names}
    return label(variables, net, flow.layers, **details)


#: The patterns of x and y that are computed, by the number of slots, for each choice of inputs.
_PAIR_ENTRIES: dict[str, dict[int, tuple[str, ...]]] = {
    "all": {2: ("xy",)},
    "pairs": {2: ("xy",), 4: tuple("".join(letters) for letters in product("xy", repeat=4))},
    "diagonal": {2: ("xx",), 4: ("xxxx",)},
}


def _at_pairs(
    net: Network, X, X2, names: tuple[str, ...], layers: str, inputs: str, number: np.dtype, tolerance: float, bar
) -> PairFlow | None:
    """What is asked for, pair by pair; None where it is asked for at all inputs, or has to be computed so."""
    if inputs == "all" and (not set(names) & set(MEANS) or not set(names) <= {*KERNELS, *MEANS}):
        return None
    if isinstance(net, MLP):
        single = [name for name in names if name in SINGLE_LEGS]
        if single:
            raise InvalidInput(
                "tensors", f"{single} with inputs={inputs!r}", "tensors of two or four slots", "Take inputs='all'."
            )
        _warn_of_narrow_layers(net)
        wanted = {name: _PAIR_ENTRIES[inputs][TENSORS[name].slots] for name in names}
        X2 = _others(net, X, X2)
        with DelayedProgress("tensors at pairs of inputs", bar) as progress:
            flow = pair_flow(
                net, X, X2, wanted, last_only=layers == "last", tolerance=tolerance, dtype=number, progress=progress
            )
        if flow is not None or inputs == "all":
            return flow
        kinked = [sigma.name for sigma in net.activations if sigma.kinks]
        reason = f"{kinked[0]}, which has a kink" if kinked else "an activation that is too sharp for its kernel"
    else:
        reason = "a network that is no stack of dense layers"
        if inputs == "all":
            return None
    raise InvalidInput("inputs", f"{inputs!r} for {reason}", "'all'", "For one input take single_input.")


def _labelled_pairs(
    net: Network, flow: PairFlow, names: tuple[str, ...], inputs: str, number: np.dtype, missing: str, level: float
) -> xr.Dataset:
    details, variables = _details(flow, 1, number, missing, level), {}
    for name in names:
        entries = flow.entries[name]
        if len(entries) == 1:
            dims = ("layer", "a") if inputs == "diagonal" else ("layer", "a", "b")
            variables[name] = (dims, next(iter(entries.values())))
        else:
            variables[name] = (("layer", "entry", "a", "b"), np.stack(list(entries.values()), axis=1))
    coords = layer_coordinate(flow.layers)
    if any("entry" in dims for dims, _ in variables.values()):
        letters = [p.translate(str.maketrans("xy", "ab")) for p in _PAIR_ENTRIES["pairs"][4]]
        coords = coords.assign(entry=letters)
    return label(variables, net, coords, **details)


def _details(flow: Any, order: int, number: np.dtype, missing: str, level: float) -> dict[str, Any]:
    """Attributes that say how and how well; with a warning where that is not well."""
    if flow.error > level:
        warnings.warn(
            f"theory: estimated relative error {flow.error:.1e}, above {level:.0e}, in some entries: a kinked "
            "activation of your own, or nearly parallel inputs at a kernel so large that the activation oscillates "
            "or saturates within it",
            AccuracyWarning,
            stacklevel=3,
        )
    error = max(flow.error, float(np.finfo(number).eps))
    details = {"kind": "theory", "order": order, "route": flow.route, "numerical_error": error}
    return details | ({"missing": missing} if missing else {})


def single_input(net: Network, x: Any, *, tensors: Sequence[str] | None = None, layers: str = "all") -> xr.Dataset:
    """K, Theta and every tensor of order 1/n over its natural scale, for one input and any depth (theory §2, §4, §5).

    Residual connections and normalisation may be there (theory §11, §12), as far as `theory(order=1)` has rules for
    them. The memory that a skip gives to neurons is carried as a vector: values of the functionals of §11 on the
    Hermite polynomials he_k(z/√K), which one step multiplies by ρ^k, ρ = γ√(K/K'), so that no pairs of layers are
    needed. It ends at a degree that `attrs["route"]` tells, and half of the degrees give the error that is reported; on
    long streams of large K, as of tanh with C_W = 1, functionals are sums over points instead, of half the number for
    the error.

    Parameters
    ----------
    net : the network, of a hundred layers or a hundred thousand.
    x : array (features,), or a single row (1, features).
    tensors : which quantities, for example ["Theta", "V"]; by default all that exist for the activation.
    layers : "all", or "last" for the output layer alone.

    Returns
    -------
    Dataset on `layer`, counted from 1, with the coordinate `width` = n_{l−1}, the n of a layer's 1/n. `log_K` and
    `log_Theta` are natural logarithms, finite for every kernel that is not zero; `K` and `Theta` are the same as
    numbers, infinity above 1.8e308 and zero below 2.2e-308. `V_ratio` and its like are tensors over their scale
    K^i Θ^j: V/K², G1/K, H1/Θ, D and F over KΘ, A, B, P, Q over Θ², R, S, T, U over Θ³/K; i and j are the attributes
    `K_power` and `Theta_power`. A ratio is NaN only where its scale needs a K or Θ that is exactly zero: an output
    layer with C_W = C_b = 0, or learning rates that are all zero up to there. Where a ratio is much smaller than one,
    its error is absolute, about 1e-15 a layer.

    >>> import widthwise as ww
    >>> net = ww.MLP([2] + [100] * 1999 + [1], "relu", C_W=2.0)
    >>> ds = single_input(net, [1.0, 1.0], tensors=["V"])
    >>> ds["V_ratio"].sel(layer=[1, 2, 2000]).values.round(9).tolist()      # 5 more a layer
    [0.0, 5.0, 9995.0]
    >>> ds = single_input(net.replace(C_W=1.0), [1.0, 1.0], layers="last")
    >>> float(ds["K"][0]), float(ds["log_K"][0] / np.log(2.0))
    (0.0, -1999.0)
    >>> stream = ww.ResMLP([2] + [100] * 33 + [1], "linear", C_W=[1.0] + [1 / 32] * 32 + [1.0])   # z' = z + Wσ(z)
    >>> single_input(stream, [1.0, 1.0], tensors=["V"])["V_ratio"].sel(layer=33).round(4).item()     # tends to 4
    3.82
    """
    net = with_order_one(net, "single_input")
    if not is_one_of(layers, ("all", "last")):
        raise UnknownName.of("layers", layers, ("all", "last"))
    if tensors is None:
        wanted = existing(*net.activations)
        with_theta = all(sigma.exists_at_one_input(1, 1) for sigma in net.activations)
    else:
        names = names_in_order(tensors, KERNELS + CORRECTIONS)
        wanted = tuple(name for name in RULES if name in names)
        with_theta = "Theta" in names or bool(set(wanted) - set(WITHOUT_THETA))
    require_layers(net.depth)
    x = check_one_input(x, net.widths[0])
    if isinstance(net, MLP):
        flow = single_flow(net, x, wanted, with_theta)
    else:
        flow = single_block_flow(net, x, wanted, with_theta)
    if flow.error > NOTABLE_ERROR:
        warnings.warn(
            f"single_input: estimated relative error {flow.error:.1e}, above {NOTABLE_ERROR:.0e}, in some Gaussian "
            "expectations: the activation varies too fast at the largest kernel on the way",
            AccuracyWarning,
            stacklevel=2,
        )
    kept = slice(-1, None) if layers == "last" else slice(None)
    width = xr.DataArray(np.asarray(net.widths[:-1])[kept], dims="layer")
    coords = layer_coordinate(tuple(range(1, net.depth + 1))[kept]).assign(width=width)
    columns = {"K": value_of(flow.K), "log_K": log_of(flow.K)}
    if flow.Theta is not None:
        columns |= {"Theta": value_of(flow.Theta), "log_Theta": log_of(flow.Theta)}
    columns |= {f"{name}_ratio": values for name, values in flow.ratios.items()}
    variables = {name: (("layer",), values[kept]) for name, values in columns.items()}
    ds = label(variables, net, coords, kind="single input", order=1, route=flow.route, numerical_error=flow.error)
    for name in ("log_K", "log_Theta"):
        if name in ds:
            ds[name].attrs["long_name"] = f"natural logarithm of {name.removeprefix('log_')}"
    for name in flow.ratios:
        K_power, Theta_power = scale = TENSORS[name].scale
        section = "§5" if name in MEANS else "§4"
        ds[f"{name}_ratio"].attrs |= {
            "long_name": f"{name}/{SCALE_TEXT[scale]} at one input (theory {section})",
            "K_power": K_power,
            "Theta_power": Theta_power,
        }
    ds["width"].attrs["long_name"] = "n of the layer's 1/n: the width of the layer below"
    return ds


def _others(net: Network, X: np.ndarray, X2: Any) -> np.ndarray | None:
    """The other inputs, if there are some, with as many positions as the first."""
    others = None if X2 is None else net.check_inputs(X2, "X2")
    if others is not None and others.shape[1:] != X.shape[1:]:
        raise InvalidInput("X2", f"inputs of shape {others.shape[1:]}", f"{X.shape[1:]}, as those of X")
    return others


def _infinite(
    net: Network, X, X2, names: tuple[str, ...], layers: str, number: np.dtype, device: bool, bar: bool | None
):  # fmt: skip
    X2 = _others(net, X, X2)
    entries, kept = (len(X), len(X if X2 is None else X2)), 1 if layers == "last" else net.depth

    def remedy(_: int) -> str:
        options = {
            "layers='last'": layers == "all" and net.depth > 1,
            "tensors=['K']": len(names) > 1,
            "dtype='float32'": number == np.dtype("float64"),
            "fewer inputs, or X2= for one rectangle at a time": True,
        }
        return "Use " + ", ".join(text for text, helps in options.items() if helps) + "."

    require_memory(
        entries[0] * entries[1] * len(names) * kept * number.itemsize * (not device),
        lambda: f"{entries[0]} × {entries[1]} entries, {len(names)} kernels, {kept} layers in {number}",
        remedy,
    )
    _warn_of_many_layers(net)
    with DelayedProgress("kernels", bar) as progress:
        return kernel_flow(
            net, X, X2, with_theta="Theta" in names, last_only=layers == "last", dtype=number, progress=progress,
            device=device,
        )  # fmt: skip


def _warn_of_many_layers(net: Network) -> None:
    """A word before kernels of so many layers by series, which are made layer by layer, take minutes."""
    layers = sum(sigma.closed is None for sigma in net.activations)
    seconds = layers * _SECONDS_OF_A_LAYER
    if seconds > _NOTABLE_SECONDS:
        warnings.warn(
            f"theory: kernels of {layers} layers without a closed form take up to {seconds / 60:.0f} minutes for a few "
            "inputs; single_input takes seconds for one",
            CostWarning,
            stacklevel=4,
        )


def _warn_of_narrow_layers(net: Network) -> None:
    narrow = [layer for layer, width in enumerate(net.widths[1:-1], 1) if width == 1]
    if narrow:  # it is a network, but 1/n = 1 is no small number to expand in
        warnings.warn(
            f"theory: width 1 at hidden layer {narrow[0]}: 1/n is not small there, and the expansion in it need not "
            "be close to the network; exact_law is exact at any width for one input",
            ExpansionWarning,
            stacklevel=4,
        )


def _to_order_one(net: Network, X, names: tuple[str, ...], layers: str, number: np.dtype, tolerance: float, bar):
    _warn_of_narrow_layers(net)
    _require_tensor_room(net, len(X), names, layers, number)
    with DelayedProgress("tensors of order 1/n", bar) as progress:
        return finite_flow(
            net, X, tuple(name for name in names if name not in KERNELS), with_theta="Theta" in names,
            last_only=layers == "last", tolerance=tolerance, dtype=number, progress=progress,
        )  # fmt: skip


def _number_type(dtype: Any) -> np.dtype:
    for name in ("float64", "float32"):
        if is_one_of(dtype, (name,)) or dtype is getattr(np, name) or (isinstance(dtype, np.dtype) and dtype == name):
            return np.dtype(name)
    raise InvalidInput("dtype", repr(dtype), "'float64' or 'float32'")


def names_in_order(tensors: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    """The asked-for names in the library's own order."""
    names = check_names("tensors", tensors, known)
    return tuple(name for name in known if name in names)


def _names_that_exist(net: Network, tensors: Any, layers: str) -> tuple[tuple[str, ...], str]:
    """Names to compute, and why the others of the default are left out ("" if none is).

    Tensors that are asked for by name and do not exist for the activation raise; by default all that exist are taken.
    """
    if tensors is not None:
        names = names_in_order(tensors, tuple(TENSORS))
        check_existence(net.activations, tuple(name for name in names if name not in KERNELS))
        return names, ""
    for sigma in dict.fromkeys(net.activations):
        require_derivatives(sigma, max(record.derivatives for record in TENSORS.values()), "tensors of order 1/n")
    found, reason = [], ""
    stream = any(isinstance(layer, Residual) for layer in (net.layers[-1:] if layers == "last" else net.layers))
    for name in TENSORS if stream else KERNELS + CORRECTIONS:
        try:
            check_existence(net.activations, () if name == "K" else ("H1",) if name == "Theta" else (name,))
            found.append(name)
        except NotDifferentiable as error:
            reason = reason or str(error)
    return tuple(found), reason


def _require_tensor_room(net: Network, inputs: int, names: tuple[str, ...], layers: str, number: np.dtype) -> None:
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


def estimate_bytes(net: Network, inputs: int, names: tuple[str, ...], layers: str, number: np.dtype) -> int:
    """What is kept, and what the step from one layer to the next holds besides."""
    full = inputs**4
    entries = sum(inputs ** TENSORS[name].slots for name in names if name in FOURS + SINGLE_LEGS)
    carried = [name for name in required(tuple(n for n in names if n not in KERNELS)) if name in FOURS]
    reads = max((len(READS[name]) for name in carried), default=0)
    kept = entries * (1 if layers == "last" else net.depth) * number.itemsize
    # tensors below and above, what one rule reads, its temporaries, the lookup of sorted quadruples, their values
    working = (2 * len(carried) + reads + 4) * full * 8 + 5 * full + 60 * 8 * full // 24
    return kept + (working if carried else 0)
