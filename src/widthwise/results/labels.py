"""Names and units of what the library returns, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from widthwise.errors import InvalidInput
from widthwise.network import Network, network_from_json
from widthwise.tensors import TENSORS
from widthwise.version import __version__

#: Dimensions of a covariance between outputs at test inputs.
TEST_PAIRS = ("output", "test", "output_", "test_")
#: Of a third cumulant of one output at three of them.
TEST_TRIPLES = ("output", "test", "test_", "test__")

MEANING = {
    **{name: record.meaning for name, record in TENSORS.items()},
    "mean0": "mean over initialisations at infinite width",
    "mean1": "coefficient of 1/n in the mean (theory §8, §9)",
    "mean": "mean over initialisations",
    "cov0": "covariance over initialisations at infinite width",
    "cov1": "coefficient of 1/n in the covariance (theory §8, §9)",
    "cov": "covariance over initialisations",
    "change": "mean change of the neural tangent kernel by training (theory §8)",
    "train_mean0": "mean at the training inputs at infinite width",
    "train_cov0": "covariance at the training inputs at infinite width",
    "train_mean1": "coefficient of 1/n in the mean at the training inputs",
    "train_cov1": "coefficient of 1/n in the covariance at the training inputs",
    "log_evidence0": "log probability of the training targets at infinite width",
    "log_evidence1": "coefficient of 1/n in the log probability of the training targets (theory §9)",
    "log_evidence": "log probability of the training targets",
    "kernel": "mean neural tangent kernel after training",
    "kernel0": "neural tangent kernel at infinite width (theory §2)",
    "initial1": "coefficient of 1/n in the mean neural tangent kernel at initialisation (theory §3)",
    "mean_difference": "mean less that of the first algorithm (theory §8)",
    "cov_difference": "covariance less that of the first algorithm (theory §8)",
    "change1": "coefficient of 1/n in the mean change of the neural tangent kernel by training (theory §8)",
    "kappa3": "n times the third cumulant over initialisations (theory §8)",
    "kappa3_joint": "n times the third cumulant over initialisations at three inputs (theory §8)",
    "kappa4": "n times the fourth cumulant over initialisations (theory §8)",
    "from_zero": "trained outputs that start at zero, at infinite width",
    "train_from_zero": "trained outputs that start at zero, at the training inputs and infinite width",
    "density": "density over initialisations, to order 1/n (theory §8)",
    "density_error": "next order in 1/n of the density, as far as these cumulants determine it",
    "gaussian": "density of a Gaussian of the same mean and variance",
    "below": "probability of less than z",
    "quantile": "value below which an output ends with this probability",
    "quantile_error": "next order in 1/n of the quantile, as far as these cumulants determine it",
    "skewness": "third cumulant over the standard deviations",
    "kurtosis": "fourth cumulant over the squared variance: the excess over a Gaussian's",
} | {
    f"{name}{power}": f"{meaning} {at}"
    for name, meaning in (("bias", "squared bias"), ("variance", "variance"), ("error", "expected squared error"))
    for power, at in (("", "over initialisations"), (0, "at infinite width"), (1, ": coefficient of 1/n"))
}
#: What a name means in the Dataset of one kind, where it is something else than in others.
OF_POSTERIOR = {
    "mean": "posterior mean of the function",
    "cov": "posterior covariance of the function, without the noise of observations",
    "cov_y": "posterior covariance of an observation y*: cov, and the noise on equal outputs and tests",
}
for _name in ("mean", "cov"):
    OF_POSTERIOR[f"{_name}0"] = f"{OF_POSTERIOR[_name]}, at infinite width"
    OF_POSTERIOR[f"{_name}1"] = f"{OF_POSTERIOR[_name]}: coefficient of 1/n (theory §9)"
MEANING |= {f"{name}_by_layer": f"{MEANING[name]}, part of one layer" for name in ("kernel0", "initial1", "change1")}


def label(
    variables: Mapping[str, tuple[tuple[str, ...], Any]],
    net: Network | None,
    coords: Mapping[Any, Any] | tuple[int, ...] | None = None,
    **attrs: Any,
) -> xr.Dataset:
    """A Dataset from {name: (dimensions, values)} that carries the network, if any, the version and how it was made.

    A tuple of layers in place of `coords` is the coordinate `layer` alone.
    """
    of_network = {} if net is None else {"network": net.to_json(), "n": net.n}
    attrs = {"widthwise_version": __version__} | of_network | attrs
    if not isinstance(coords, tuple):
        kind = attrs.get("kind", "")
        data = {name: _variable(dims, values, _meaning(name, kind)) for name, (dims, values) in variables.items()}
        return xr.Dataset(data, coords=coords or {}, attrs=attrs)
    shapes = tuple((name, dims, np.shape(values)) for name, (dims, values) in variables.items())
    made = _empty(coords, shapes).copy(data={name: values for name, (_, values) in variables.items()})
    made.attrs = attrs
    return made


def _variable(dims: tuple[str, ...], values: Any, attrs: dict[str, str]) -> xr.Variable:
    """An array as it is: to ask whether it is a chunked one, xarray would import dask where that is installed."""
    return xr.Variable(dims, values if hasattr(values, "dask") else np.asarray(values), attrs, fastpath=True)


@lru_cache(maxsize=64)
def _empty(layers: tuple[int, ...], shapes: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...]) -> xr.Dataset:
    """A Dataset of this form without values: to fill in a copy costs a fifth of making one (15 µs against 70)."""
    data = {name: (dims, np.broadcast_to(0.0, shape), _meaning(name)) for name, dims, shape in shapes}
    return xr.Dataset(data, coords=layer_coordinate(layers))


def _meaning(name: str, kind: str = "") -> dict[str, str]:
    stem = name.removesuffix("_se")
    meaning = (MEANING | OF_POSTERIOR if kind == "posterior" else MEANING).get(stem)
    if meaning is None:
        return {}
    return {"long_name": meaning if stem == name else "standard error of " + stem}


@lru_cache(maxsize=32)
def layer_coordinate(layers: tuple[int, ...]) -> xr.Coordinates:
    """The coordinate `layer`, whose index is made once."""
    return xr.Coordinates.from_xindex(xr.indexes.PandasIndex(pd.Index(layers, dtype=int), "layer"))


def check_dataset(argument: str, dataset: Any, expected: str = "a Dataset made by widthwise") -> xr.Dataset:
    """A Dataset; anything else is refused by the name of the argument."""
    if not isinstance(dataset, xr.Dataset):
        raise InvalidInput(argument, type(dataset).__name__, expected)
    return dataset


def network_of(dataset: xr.Dataset, activations: Mapping[str, Any] | None = None) -> Network:
    """The network a Dataset was computed for; `activations` maps the names of your own activations to functions.

    >>> import widthwise as ww
    >>> net = ww.MLP([2, 8, 1], "gelu", C_W=1.9)
    >>> ww.network_of(ww.theory(net, [[0.5, 1.0]], order=0)) == net
    True
    """
    check_dataset("dataset", dataset)
    if "network" not in dataset.attrs:
        raise InvalidInput("dataset", "a Dataset without the attribute 'network'", "one made by widthwise")
    return network_from_json(dataset.attrs["network"], activations)
