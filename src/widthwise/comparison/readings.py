"""What a measurement says about one variable at one layer: at one width, or extrapolated from several."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from widthwise.errors import InvalidInput
from widthwise.experiments.symmetries import distinct_entries
from widthwise.network import widths_from_json
from widthwise.tensors import TENSORS

Measurement = xr.Dataset | tuple[xr.Dataset, xr.Dataset]


class Reading(NamedTuple):
    """Values and standard errors.

    `n` is the width below the layer, infinite where extrapolated, and None where no width enters: at the first layer.
    """

    value: np.ndarray
    error: np.ndarray
    n: float | None


class Measured(NamedTuple):
    """A reading to be compared, how its entries are correlated, and where it is extrapolated what it comes from.

    `widest` is the reading at the largest width, `slope` the coefficient of 1/n from the smallest width to that, and
    `widths` the n of all readings.
    """

    reading: Reading
    traces: np.ndarray | None
    freedom: int
    widest: Reading | None = None
    slope: Reading | None = None
    widths: tuple[float, ...] = ()


def check_measurement(measurement: Any) -> Measurement:
    """A Dataset, or two of one network at two widths, the narrower one first."""
    several = measurement if isinstance(measurement, list | tuple) else [measurement]
    for one in several:
        if not isinstance(one, xr.Dataset):
            raise InvalidInput(
                "measurement", type(one).__name__, "a Dataset made by widthwise, or two of them at two widths"
            )
    if len(several) == 1:
        return several[0]
    if len(several) != 2:
        raise InvalidInput("measurement", f"{len(several)} Datasets", "one, or two of one network at two widths")
    if any("widths" in one.attrs for one in several):
        raise InvalidInput(
            "measurement", "two Datasets, of which one is extrapolated", "two at one width each", "Pass that one alone."
        )
    narrow, wide = sorted(several, key=lambda one: one.attrs.get("n", 0))
    _check_same_network(narrow, wide)
    if narrow.attrs.get("seed") == wide.attrs.get("seed"):
        raise InvalidInput(
            "measurement",
            f"two Datasets of seed {wide.attrs.get('seed')}",
            "two of different seeds, whose errors are independent",
            "Networks of one seed share numbers across widths: measure one of them with another seed.",
        )
    return narrow, wide


def read(measurement: Measurement, name: str, layer: int | None) -> Measured:
    """The variable at this layer."""
    if isinstance(measurement, tuple):
        return _from_two(*measurement, name, layer)
    if "widths" in measurement.attrs:
        return _extrapolated(measurement, name, layer)
    return Measured(_reading(measurement, name, layer), _traces(measurement, name, layer), _freedom(measurement))


def distinct(name: str, values: np.ndarray) -> np.ndarray:
    """Entries that are not equal by definition (theory §3); all of a variable whose symmetries are not known."""
    flat = np.ravel(values)
    return flat[distinct_entries(name, values.shape[0])] if name in TENSORS else flat


def _from_two(narrow: xr.Dataset, wide: xr.Dataset, name: str, layer: int | None) -> Measured:
    """A straight line in 1/n through both."""
    low, high = (_reading(one, name, layer) for one in (narrow, wide))
    traces, freedom = _traces(wide, name, layer), min(_freedom(narrow), _freedom(wide))
    if low.n is None or high.n is None:
        return Measured(high, traces, freedom)
    step = high.n - low.n
    value = (high.n * high.value - low.n * low.value) / step
    error = np.hypot(high.n * high.error, low.n * low.error) / step
    return Measured(Reading(value, error, np.inf), traces, freedom, high, _slope(low, high), (low.n, high.n))


def _slope(low: Reading, high: Reading) -> Reading:
    assert low.n is not None
    assert high.n is not None
    scale = low.n * high.n / (high.n - low.n)
    return Reading(scale * (low.value - high.value), scale * np.hypot(low.error, high.error), None)


def _extrapolated(measurement: xr.Dataset, name: str, layer: int | None) -> Measured:
    ratio = _below(measurement, layer)
    infinite = Reading(*_values(measurement, name, layer), None if ratio is None else np.inf)
    traces, freedom = _traces(measurement, name, layer), _freedom(measurement)
    if ratio is None or f"{name}_by_width" not in measurement:
        return Measured(infinite, traces, freedom)
    scale = ratio / float(measurement.attrs["n"])  # widths of this layer over those of the last hidden one
    widths = tuple(scale * float(width) for width in measurement["width"].values)
    narrow, wide = (Reading(*_values(measurement.isel(width=i), f"{name}_by_width", layer), widths[i]) for i in (0, -1))
    return Measured(infinite, traces, freedom, wide, _slope(narrow, wide), widths)


def _reading(dataset: xr.Dataset, name: str, layer: int | None) -> Reading:
    return Reading(*_values(dataset, name, layer), _below(dataset, layer))


def _values(dataset: xr.Dataset, name: str, layer: int | None) -> tuple[np.ndarray, np.ndarray]:
    at = {} if layer is None else {"layer": layer}
    return dataset[name].sel(at).values, dataset[f"{name}_se"].sel(at).values


def _traces(dataset: xr.Dataset, name: str, layer: int | None) -> np.ndarray | None:
    if f"{name}_traces" not in dataset:
        return None
    return dataset[f"{name}_traces"].sel(layer=layer).values


def _freedom(dataset: xr.Dataset) -> int:
    """Degrees of freedom of a standard error from blocks of networks."""
    return int(dataset.attrs.get("blocks", min(64, dataset.attrs.get("networks", 64)))) - 1


def _below(dataset: xr.Dataset, layer: int | None) -> float | None:
    """The width below a layer, which the 1/n of its tensors refers to; None at the first, where nothing fluctuates."""
    if layer is None:
        return float(dataset.attrs["n"])
    return None if layer == 1 else float(_widths(dataset)[layer - 1])


def _widths(dataset: xr.Dataset) -> list[int]:
    if "network" not in dataset.attrs:
        raise InvalidInput("measurement", "a Dataset without the attribute 'network'", "one made by widthwise")
    return list(widths_from_json(dataset.attrs["network"]))


def _without_widths(network: dict[str, Any]) -> dict[str, Any]:
    """The text form of a network with its widths taken out."""

    def stripped(layer: Any) -> Any:
        return layer | {"inputs": None, "outputs": None} if isinstance(layer, dict) else layer

    return network | {"widths": None, "layers": [stripped(layer) for layer in network.get("layers", ())]}


def _check_same_network(narrow: xr.Dataset, wide: xr.Dataset) -> None:
    """Equal but for the hidden widths, which are in proportion."""
    low, high = _widths(narrow), _widths(wide)
    rest = [_without_widths(json.loads(one.attrs["network"])) for one in (narrow, wide)]
    same = rest[0] == rest[1] and len(low) == len(high) and (low[0], low[-1]) == (high[0], high[-1])
    initialisations = {one.attrs.get("initialisation") for one in (narrow, wide)}
    if not same or len(initialisations) > 1:
        raise InvalidInput(
            "measurement", f"networks {rest[0]} and {rest[1]}", "two of one network that differ in hidden widths only"
        )
    ratios = [b / a for a, b in zip(low[1:-1], high[1:-1], strict=True)]
    if not ratios or ratios[-1] == 1.0 or max(abs(ratio / ratios[-1] - 1.0) for ratio in ratios) > 0.05:
        raise InvalidInput(
            "measurement", f"widths {low} and {high}", "two different hidden widths, all in the same proportion"
        )
