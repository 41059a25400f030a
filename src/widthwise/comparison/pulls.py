"""`compare`: pulls (measured − predicted)/standard error, one row a variable and layer, the worst entry named."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import xarray as xr

from widthwise.errors import InvalidInput


@dataclass(frozen=True)
class Row:
    """One variable at one layer: how many entries, the root mean square pull, and the worst entry."""

    variable: str
    layer: int
    entries: int
    rms_pull: float
    worst_pull: float
    worst_entry: str
    predicted: float
    measured: float
    standard_error: float


@dataclass(frozen=True)
class Comparison:
    """Rows of pulls. `print` it for a table; `to_csv` writes it; `worst` is the largest pull of all."""

    rows: tuple[Row, ...]

    @property
    def worst(self) -> float:
        return max((abs(row.worst_pull) for row in self.rows), default=0.0)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __str__(self) -> str:
        head = ("variable", "layer", "entries", "rms pull", "worst pull", "at", "predicted", "measured", "± s.e.")
        body = [
            tuple(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in astuple(row)) for row in self.rows
        ]
        widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *body)
        )

    def to_csv(self, path: str | Path) -> Path:
        """Write the rows to a CSV file."""
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(field.name for field in fields(Row))
            writer.writerows(astuple(row) for row in self.rows)
        return Path(path)


def compare(theory: xr.Dataset, measurement: xr.Dataset) -> Comparison:
    """Pulls of every variable that both Datasets hold, at every layer they share.

    >>> import widthwise as ww
    >>> net, X = ww.MLP([2, 256, 1], "tanh", C_W=1.5), [[1.0, 0.5], [-0.3, 0.8]]
    >>> result = ww.compare(ww.theory(net, X, order=0), ww.measure(net, X, networks=100, seed=3))
    >>> [row.variable for row in result], result.worst < 4
    (['K', 'Theta'], True)
    """
    for name, dataset in (("theory", theory), ("measurement", measurement)):
        if not isinstance(dataset, xr.Dataset):
            raise InvalidInput(name, type(dataset).__name__, "a Dataset made by widthwise")
    shared = [str(v) for v in theory.data_vars if v in measurement and f"{v}_se" in measurement]
    if not shared:
        raise InvalidInput(
            "measurement", f"variables {list(measurement.data_vars)}", "some variable of the theory, with _se"
        )
    rows = []
    for name in shared:
        for layer in measurement["layer"].values:
            if layer in theory["layer"].values:
                rows.append(_row(name, int(layer), theory, measurement))
    return Comparison(tuple(rows))


def _row(name: str, layer: int, theory: xr.Dataset, measurement: xr.Dataset) -> Row:
    predicted = theory[name].sel(layer=layer).values
    measured = measurement[name].sel(layer=layer).values
    error = measurement[name + "_se"].sel(layer=layer).values
    if predicted.shape != measured.shape:
        raise InvalidInput(
            "measurement", f"{name} of shape {measured.shape}", f"shape {predicted.shape} as in the theory"
        )
    difference = measured - predicted
    # without scatter an entry is exact: it agrees or it does not, to rounding of the tensor's size
    exact = np.where(
        np.abs(difference) <= 1e-9 * np.abs(predicted).max(initial=0.0), 0.0, np.copysign(math.inf, difference)
    )
    pull = np.where(error > 0.0, difference / np.where(error > 0.0, error, 1.0), exact)
    worst = np.unravel_index(np.argmax(np.abs(pull)), pull.shape)
    return Row(
        name,
        layer,
        pull.size,
        float(np.sqrt(np.mean(pull**2))),
        float(pull[worst]),
        ",".join(map(str, worst)),
        float(predicted[worst]),
        float(measured[worst]),
        float(error[worst]),
    )
