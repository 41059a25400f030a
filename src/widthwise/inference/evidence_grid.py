"""`evidence_grid`: the log evidence over depths, widths, initialisations and noises, as a labelled Dataset."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from widthwise.activations import Activation
from widthwise.errors import InvalidInput
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.inference.arguments import check_noise, check_order
from widthwise.inference.corrections import PRIOR_TENSORS, require_tensors
from widthwise.inference.posterior import condition
from widthwise.inference.posterior_corrections import posterior_corrections
from widthwise.network import MLP, check_inputs
from widthwise.network.inputs import check_targets, real_array
from widthwise.network.validation import check_integer
from widthwise.progress import DelayedProgress
from widthwise.results.labels import label

_DIMS = ("C_b", "C_W", "noise", "depth")


def evidence_grid(
    activation: str | Activation | Any,
    X_train: Any,
    y_train: Any,
    *,
    depth: Any,
    width: Any,
    C_b: Any = 0.0,
    C_W: Any = 1.0,
    noise: Any = 0.0,
    order: int = 1,
) -> xr.Dataset:
    """Log evidence of the training targets for every network of a grid, to order 1/n (theory §9).

    Networks have equal hidden layers, and one C_b and C_W in all layers. `posterior` gives the evidence of any other.

    Parameters
    ----------
    X_train, y_train : (inputs, features), and (inputs, outputs) or (inputs,) for one output.
    depth : numbers of weight layers, at least 1; one number or several, as for all that follow.
    width : hidden widths n.
    C_b, C_W : variances at initialisation.
    noise : variances of the observation noise.
    order : 0, infinite width, where `width` changes nothing; 1, with the correction of order 1/n.

    Returns
    -------
    Dataset with log_evidence0 and, with order=1, its coefficient of 1/n, log_evidence1, on (C_b, C_W, noise, depth),
    and log_evidence = log_evidence0 + log_evidence1/n on (C_b, C_W, noise, depth, width). One run of the recursions to
    the greatest depth serves all depths, widths and noises.

    >>> import widthwise as ww
    >>> data = [[-1.0], [1.0]], [0.5, -0.3]
    >>> e = evidence_grid("erf", *data, depth=[2, 3], width=[32, 64], C_b=0.1, C_W=1.5, noise=0.01)
    >>> same = ww.posterior(ww.MLP([1, 64, 64, 1], "erf", C_b=0.1, C_W=1.5), *data, [[0.0]], noise=0.01, order=1)
    >>> bool(np.isclose(e["log_evidence"].sel(depth=3, width=64).item(), same["log_evidence"].item()))
    True
    """
    check_order(order)
    X = check_inputs(X_train, None, "X_train")
    y = real_array(y_train, "y_train")
    y = check_targets(y, len(X), y.shape[1] if y.ndim == 2 else 1)
    depths, widths = _whole_numbers("depth", depth), _whole_numbers("width", width)
    grid = {"C_b": _axis_numbers("C_b", C_b), "C_W": _axis_numbers("C_W", C_W)}
    noises = [check_noise(value) for value in _axis_numbers("noise", noise)]
    shape = (*(len(values) for values in grid.values()), len(noises), len(depths))
    found = np.zeros((1 + order, *shape))
    deepest = MLP([X.shape[1], *[max(widths)] * (max(depths) - 1), y.shape[1]], activation)
    if order == 1:
        require_tensors(deepest, len(X), PRIOR_TENSORS)
    points = list(product(*(range(len(values)) for values in grid.values())))
    with DelayedProgress("evidence", None) as progress:
        for done, (b, w) in enumerate(points, start=1):
            net = deepest.replace(C_b=grid["C_b"][b], C_W=grid["C_W"][w])
            found[:, b, w] = _over_depths(net, X, y, depths, noises, order)
            progress(done, len(points))
    variables: dict[str, Any] = {f"log_evidence{power}": (_DIMS, values) for power, values in enumerate(found)}
    powers = np.asarray(widths, dtype=float) ** -np.arange(1 + order)[:, None]
    variables["log_evidence"] = ((*_DIMS, "width"), np.einsum("p...,pn->...n", found, powers))
    coords = grid | {"noise": noises, "depth": depths, "width": widths}
    result = label(variables, deepest, coords, kind="evidence_grid", order=order, activation=deepest.activation.name)
    for one_network in ("network", "n"):
        del result.attrs[one_network]
    return result


def _over_depths(net: MLP, X: np.ndarray, y: np.ndarray, depths: list[int], noises: list[float], order: int):
    """Coefficients of powers of 1/n on (power, noise, depth)."""
    if order == 1:
        flow = finite_flow(net, X, PRIOR_TENSORS, with_theta=False)
        K, G1, V = flow.K, flow.tensors["G1"], flow.tensors["V"]
    else:
        K = G1 = V = kernel_flow(net, X, with_theta=False).K
    found = np.zeros((1 + order, len(noises), len(depths)))
    for (i, noise), (j, depth) in product(enumerate(noises), enumerate(depths)):
        found[0, i, j] = condition(K[depth - 1], noise, X).log_evidence(y)
        if order == 1:
            found[1, i, j] = posterior_corrections(K[depth - 1], G1[depth - 1], V[depth - 1], y, noise).log_evidence
    return found


def _axis_numbers(name: str, values: Any) -> list[float]:
    array = np.atleast_1d(real_array(values, name))
    if array.ndim != 1 or array.size == 0:
        raise InvalidInput(name, f"an array of shape {array.shape}", "one number, or a list of them")
    return [float(value) for value in array]


def _whole_numbers(name: str, values: Any) -> list[int]:
    array, expected = np.atleast_1d(np.asarray(values)), "one positive integer, or a list of them"
    if array.ndim != 1 or array.size == 0:
        raise InvalidInput(name, f"an array of shape {array.shape}", expected)
    return [check_integer(name, value, 1, expected=expected) for value in array.tolist()]
