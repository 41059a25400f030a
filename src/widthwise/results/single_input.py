"""`single_input`: everything the theory says about one input, to any depth, as a labelled Dataset."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from widthwise.errors import AccuracyWarning, UnknownName
from widthwise.flow.one_input.deep_flow import existing, single_flow
from widthwise.flow.one_input.scaled_numbers import log_of, value_of
from widthwise.flow.tensors.rules import RULES
from widthwise.network import Network, plain
from widthwise.network.validation import check_one_input
from widthwise.results.labels import label, layer_coordinate
from widthwise.results.theory import NOTABLE_ERROR, names_in_order
from widthwise.tensors import MEANS, SCALE_TEXT, TENSORS, WITHOUT_THETA


def single_input(net: Network, x: Any, *, tensors: Sequence[str] | None = None, layers: str = "all") -> xr.Dataset:
    """K, Theta and every tensor of order 1/n over its natural scale, for one input and any depth (theory §2, §4, §5).

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
    """
    net = plain(net, "single_input")
    if layers not in ("all", "last"):
        raise UnknownName.of("layers", layers, ("all", "last"))
    if tensors is None:
        wanted = existing(*net.activations)
        with_theta = all(sigma.exists_at_one_input(1, 1) for sigma in net.activations)
    else:
        names = names_in_order(tensors, tuple(TENSORS))
        wanted = tuple(name for name in RULES if name in names)
        with_theta = "Theta" in names or bool(set(wanted) - set(WITHOUT_THETA))
    flow = single_flow(net, check_one_input(x, net.widths[0]), wanted, with_theta)
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
