"""What a measurement says about one variable at one layer: at one width, or extrapolated from several."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from widthwise.errors import InvalidInput
from widthwise.network import widths_from_json
from widthwise.results.labels import check_dataset
from widthwise.tensors import TENSORS, distinct_entries


class WidthReading(NamedTuple):
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

    reading: WidthReading
    traces: np.ndarray | None
    freedom: int
    widest: WidthReading | None = None
    slope: WidthReading | None = None
    widths: tuple[float, ...] = ()


def check_measurement(measurement: Any) -> tuple[xr.Dataset, ...]:
    """One Dataset, or two of one network at two widths, the narrower one first."""
    several = measurement if isinstance(measurement, list | tuple) else [measurement]
    for one in several:
        check_dataset("measurement", one, "a Dataset made by widthwise, or two of them at two widths")
    if len(several) == 1:
        return (several[0],)
    if len(several) != 2:
        raise InvalidInput("measurement", f"{len(several)} Datasets", "one, or two of one network at two widths")
    if any("widths" in one.attrs for one in several):
        got = "two Datasets, of which one is extrapolated"
        raise InvalidInput("measurement", got, "two at one width each", "Pass that one alone.")
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


def read(several: tuple[xr.Dataset, ...], name: str, layer: int | None) -> Measured:
    """The variable at this layer, extrapolated where there are several widths and it depends on them."""
    wide = several[-1]
    traces = _at(wide, f"{name}_traces", layer) if f"{name}_traces" in wide else None
    # degrees of freedom of a standard error from blocks of networks
    blocks = (int(one.attrs.get("blocks", min(64, one.attrs.get("networks", 64)))) for one in several)
    found = Measured(_reading(wide, name, layer), traces, min(blocks) - 1)
    if found.reading.n is None:
        return found
    if len(several) == 2:
        return _through_two(found, _reading(several[0], name, layer))
    return _from_fit(found, wide, name, layer) if "widths" in wide.attrs else found


def distinct(name: str, values: np.ndarray) -> np.ndarray:
    """Entries that are not equal by definition (theory §3); all of a variable whose symmetries are not known."""
    flat = np.ravel(values)
    return flat[distinct_entries(name, values.shape[0])] if name in TENSORS else flat


def _through_two(found: Measured, low: WidthReading) -> Measured:
    """A straight line in 1/n through a narrower and the wider reading."""
    high = found.reading
    assert low.n is not None
    assert high.n is not None
    step = high.n - low.n
    value = (high.n * high.value - low.n * low.value) / step
    error = np.hypot(high.n * high.error, low.n * low.error) / step
    found = found._replace(reading=WidthReading(value, error, np.inf))
    return _with_slope(found, low, high, (low.n, high.n))


def _from_fit(found: Measured, measurement: xr.Dataset, name: str, layer: int | None) -> Measured:
    """What `measure` has fitted through several widths."""
    below, found = found.reading.n, found._replace(reading=found.reading._replace(n=np.inf))
    if f"{name}_by_width" not in measurement:
        return found
    assert below is not None
    scale = below / float(measurement.attrs["n"])  # widths of this layer over those of the last hidden one
    widths = tuple(scale * float(width) for width in measurement["width"].values)
    narrow, wide = (_reading(measurement.isel(width=i), f"{name}_by_width", layer) for i in (0, -1))
    return _with_slope(found, narrow, wide._replace(n=widths[-1]), widths)


def _with_slope(found: Measured, narrow: WidthReading, wide: WidthReading, widths: tuple[float, ...]) -> Measured:
    scale = widths[0] * widths[-1] / (widths[-1] - widths[0])
    slope = WidthReading(scale * (narrow.value - wide.value), scale * np.hypot(narrow.error, wide.error), None)
    return found._replace(widest=wide, slope=slope, widths=widths)


def _reading(dataset: xr.Dataset, name: str, layer: int | None) -> WidthReading:
    # 1/n of a tensor refers to the width below its layer; at the first, where nothing fluctuates, there is none
    n = dataset.attrs["n"] if layer is None else None if layer == 1 else _widths(dataset)[layer - 1]
    value, error = _at(dataset, name, layer), _at(dataset, f"{name}_se", layer)
    return WidthReading(value, error, None if n is None else float(n))


def _at(dataset: xr.Dataset, name: str, layer: int | None) -> np.ndarray:
    return dataset[name].sel({} if layer is None else {"layer": layer}).values


def _widths(dataset: xr.Dataset) -> list[int]:
    if "network" not in dataset.attrs:
        raise InvalidInput("measurement", "a Dataset without the attribute 'network'", "one made by widthwise")
    return list(widths_from_json(dataset.attrs["network"]))


def _without_widths(form: Any) -> Any:
    """The text form of a network, or a part of it, with all widths taken out: those within residual bodies too."""
    if isinstance(form, dict):
        widths = ("widths", "inputs", "outputs")
        return {key: None if key in widths else _without_widths(part) for key, part in form.items()}
    return [_without_widths(part) for part in form] if isinstance(form, list) else form


def _check_same_network(narrow: xr.Dataset, wide: xr.Dataset) -> None:
    """Equal but for the hidden widths, which are in proportion."""
    low, high = _widths(narrow), _widths(wide)
    rest = [_without_widths(json.loads(one.attrs["network"])) for one in (narrow, wide)]
    # a residual network that ends on its stream is as wide at its end as before it
    stream = (low[-1], high[-1]) == (low[-2], high[-2])
    same = rest[0] == rest[1] and len(low) == len(high) and low[0] == high[0] and (stream or low[-1] == high[-1])
    initialisations = {one.attrs.get("initialisation") for one in (narrow, wide)}
    if not same or len(initialisations) > 1:
        got = f"networks {rest[0]} and {rest[1]}"
        raise InvalidInput("measurement", got, "two of one network that differ in hidden widths only")
    ratios = [b / a for a, b in zip(low[1:-1], high[1:-1], strict=True)]
    if not ratios or ratios[-1] == 1.0 or max(abs(ratio / ratios[-1] - 1.0) for ratio in ratios) > 0.05:
        expected = "two different hidden widths, all in the same proportion"
        raise InvalidInput("measurement", f"widths {low} and {high}", expected)
