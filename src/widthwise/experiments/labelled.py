"""`measure`: the variables of `theory`, estimated on sampled networks, with standard errors."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from widthwise.activations import require_derivatives
from widthwise.errors import InvalidInput
from widthwise.experiments.sampler import observe
from widthwise.network import MLP, check_inputs
from widthwise.progress import DelayedProgress
from widthwise.results.labels import label, layer_coordinate

#: Parameters of the networks held at once.
_BATCH_PARAMETERS = 1 << 23


def measure(net: MLP, X: Any, networks: int = 1000, seed: int = 0, *, progress: bool | None = None) -> xr.Dataset:
    """K and Theta of the output layer on really sampled networks, each with a standard error.

    The mean over networks of width n is K + G1/n and Theta + H1/n, so it agrees with the infinite-width kernels up
    to the standard error and a difference that halves when the width doubles (theory §3).

    Parameters
    ----------
    X : array (inputs, features).
    networks : how many to sample, at least 2. Network i of a seed is always the same network.
    seed : non-negative integer.

    Returns
    -------
    Dataset with K, Theta and K_se, Theta_se on (layer, a, b).

    >>> import widthwise as ww
    >>> net = ww.MLP([2, 64, 1], "relu", C_W=2.0)
    >>> ms = ww.measure(net, [[1.0, 0.0]], networks=200, seed=1)
    >>> bool(abs(ms["K"] - 1.0) < 4 * ms["K_se"])
    True
    """
    if not isinstance(net, MLP):
        raise InvalidInput("net", type(net).__name__, "a widthwise.MLP")
    X = check_inputs(X, net.widths[0])
    networks, seed = _integer("networks", networks, 2), _integer("seed", seed, 0)
    if net.depth > 1:
        require_derivatives(net.activation, 1, "Theta")
    parameters = sum(a * b + b for a, b in zip(net.widths[:-1], net.widths[1:], strict=True))
    batch = max(1, min(networks, _BATCH_PARAMETERS // parameters))
    sums = {name: np.zeros((2, len(X), len(X))) for name in ("K", "Theta")}
    centre: dict[str, np.ndarray] = {}
    with DelayedProgress("networks", progress) as bar:
        for start in range(0, networks, batch):
            indices = np.arange(start, start + batch)
            values = _observe_batch(net, seed, indices, jnp.asarray(X))
            for name, value in values.items():
                kept = np.asarray(value)[: networks - start]
                shifted = kept - centre.setdefault(name, kept[0].copy())
                sums[name] += np.stack([shifted.sum(axis=0), (shifted**2).sum(axis=0)])
            bar(min(start + batch, networks), networks)
    variables = {}
    for name, (first, second) in sums.items():
        variance = np.maximum(second - first**2 / networks, 0.0) / (networks - 1)
        variables[name] = (("layer", "a", "b"), (centre[name] + first / networks)[None])
        variables[name + "_se"] = (("layer", "a", "b"), np.sqrt(variance / networks)[None])
    return label(variables, net, layer_coordinate((net.depth,)), kind="measure", networks=networks, seed=seed)


@partial(jax.jit, static_argnums=0)
def _observe_batch(net: MLP, seed, indices, X):
    return jax.vmap(lambda index: observe(net, seed, index, X))(indices)


def _integer(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise InvalidInput(name, repr(value), f"an integer of at least {least}")
    return number
