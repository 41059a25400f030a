"""`compare`: pulls (measured − predicted)/standard error, one row a variable and layer, the worst entry named."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, fields
from html import escape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    import pandas as pd

from widthwise.comparison.readings import check_measurement, read
from widthwise.comparison.verdicts import (
    AGREES,
    ONE_WIDTH,
    SOUND,
    TOO_NARROW,
    TOO_NOISY,
    VERDICTS,
    chi_square,
    effective_entries,
    probability,
    pulls,
    verdict,
)
from widthwise.errors import InvalidInput
from widthwise.files import check_path, replacing
from widthwise.network.validation import BELOW_ONE, LEAST, check_flag, check_real
from widthwise.results.labels import check_dataset
from widthwise.tensors import SHIFTS
from widthwise.text import text_table

_HEAD = (
    "variable", "layer", "entries", "rms pull", "worst pull", "at", "predicted", "measured", "± s.e.",
    "distinct", "χ²", "independent", "probability", "verdict",
)  # fmt: skip
_NARROW_HEAD = ("pull", "predicted", "measured", "prob.", "verdict")
#: Verdicts as a table of 80 columns has them.
_SHORT = {TOO_NARROW: "agrees at next order", ONE_WIDTH: "needs a second width", TOO_NOISY: "too few networks"}


@dataclass(frozen=True)
class ComparisonRow:
    """One variable at one layer: how many entries, the root mean square pull, the worst entry, and a verdict.

    `layer` is None for what has no layers, such as a trained network's outputs. `chi2` is Σ pull² over the `distinct`
    entries, those that are not equal by definition and do scatter; correlated as they are, they are worth
    `independent` ones. `probability` is that of a larger χ² if the theory is right.
    """

    variable: str
    layer: int | None
    entries: int
    rms_pull: float
    worst_pull: float
    worst_entry: str
    predicted: float
    measured: float
    standard_error: float
    distinct: int
    chi2: float
    independent: float
    probability: float
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """Rows of pulls. `print` it for a table of 80 columns, `table(wide=True)` has all; `to_csv` writes it.

    `worst` is the largest pull of all, `verdict` the worst of the rows' verdicts; `summary` counts them and `sentence`
    says which rows have which. `networks` is what was measured on, in words, `remark` what was predicted for others.
    """

    rows: tuple[ComparisonRow, ...]
    networks: str = "networks"
    remark: str = ""

    @property
    def worst(self) -> float:
        return max((abs(row.worst_pull) for row in self.rows), default=0.0)

    @property
    def verdict(self) -> str:
        return max((row.verdict for row in self.rows), key=list(VERDICTS).index, default=AGREES)

    @property
    def agrees(self) -> bool:
        """Whether every row agrees, at the next order in 1/n if not before."""
        return self.verdict in SOUND

    @property
    def summary(self) -> str:
        """How many rows agree with how many networks.

        >>> row = ComparisonRow("K", 2, 1, 0.5, 0.5, "0,0", 1.0, 1.1, 0.2, 1, 0.25, 1.0, 0.6, AGREES)
        >>> Comparison((row,), "4,000 sampled networks").summary
        '1 of 1 agrees with 4,000 sampled networks.'
        """
        sound, later = (sum(row.verdict in kinds for row in self.rows) for kinds in (SOUND, (TOO_NARROW,)))
        what = f"{sound} of {len(self.rows)} agree{'s' * (sound == 1)} with {self.networks}"
        return what + (f" ({later} after the next order in 1/n)." if later else ".")

    @property
    def sentence(self) -> str:
        """The summary, the rows that do not agree as they stand, and in what prediction and measurement differ."""
        found = [self.summary]
        for kind in reversed(VERDICTS):
            names = [_name(row) for row in self.rows if row.verdict == kind != AGREES]
            if names:
                found.append(f"{', '.join(names)}: {kind}{VERDICTS[kind]}.")
        return " ".join([*found, self.remark] if self.remark else found)

    def __iter__(self) -> Iterator[ComparisonRow]:
        return iter(self.rows)

    def table(self, wide: bool = False) -> str:
        """The rows as text: what a reader needs in 80 columns, or everything."""
        if check_flag("wide", wide):
            return text_table(_HEAD, [astuple(row) for row in self.rows], limit=None)
        layers = {row.layer for row in self.rows}
        one = f"layer {self.rows[0].layer}" if len(layers) == 1 and None not in layers else ""
        rows = [
            (row.variable if one or row.layer is None else f"{row.variable} l={row.layer}", f"{row.worst_pull:.2f}",
             row.predicted, f"{row.measured:.4g} ± {row.standard_error:.1g}", f"{row.probability:.2g}",
             _SHORT.get(row.verdict, row.verdict))
            for row in self.rows
        ]  # fmt: skip
        return text_table((one, *_NARROW_HEAD), rows, left=(0, 5))

    def __str__(self) -> str:
        return f"{self.table()}\n{fill(self.sentence, 80)}"

    def _repr_html_(self) -> str:
        """The summary and the rows, for a notebook."""
        cells = "".join(
            f"<tr><td>{escape(_name(row))}</td><td>{row.worst_pull:.2f}</td><td>{row.predicted:.4g}</td>"
            f"<td>{row.measured:.4g} ± {row.standard_error:.1g}</td><td>{row.probability:.2g}</td>"
            f"<td>{escape(row.verdict)}</td></tr>"
            for row in self.rows
        )
        heads = "".join(f"<th scope='col'>{escape(head)}</th>" for head in ("variable", *_NARROW_HEAD))
        return f"<p>{escape(self.sentence)}</p><table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table>"

    def to_dataframe(self) -> pd.DataFrame:
        """The rows as a pandas table.

        >>> row = ComparisonRow("K", 2, 1, 0.5, 0.5, "0,0", 1.0, 1.1, 0.2, 1, 0.25, 1.0, 0.6, AGREES)
        >>> Comparison((row,)).to_dataframe()["verdict"].tolist()
        ['agrees']
        """
        import pandas

        return pandas.DataFrame(
            [asdict(row) for row in self.rows], columns=[field.name for field in fields(ComparisonRow)]
        )

    def to_csv(self, path: str | Path) -> Path:
        """Write the rows to a CSV file."""
        path = check_path("path", path, "the path of a CSV file to write")
        with replacing(path) as part, open(part, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(field.name for field in fields(ComparisonRow))
            writer.writerows(astuple(row) for row in self.rows)
        return path


def compare(theory: xr.Dataset, measurement: Any, *, level: float = 0.001) -> Comparison:
    """Pulls of every variable that both hold, at every layer they share: `theory` against `measure`, or `predict`
    against `train`; with a χ², its probability and a verdict for each.

    Networks of width n have K + G1/n and Theta + H1/n: these are compared where the theory holds G1 and H1 and the
    measurement is one at finite width, otherwise K and Theta themselves. All else is compared as it stands, and
    differs by a remainder of relative order 1/n. A prediction over draws, such as a path under another loss, has errors
    of its own, which are added in squares. A last sentence says where loss or algorithm of the two differ. Verdicts:

    - "agrees": the probability is at least `level`;
    - "agrees after the next order in 1/n": the measurement at its largest width is off, and the difference falls with
      the width: extrapolated to infinite width it agrees, or is off by no more than the next remainder may be;
    - "disagrees": extrapolated to infinite width it is off by more;
    - "needs a second width to say", "too few networks to say": nobody can say which of the two it is.

    Parameters
    ----------
    theory : Dataset of `theory` or `predict`.
    measurement : Dataset of `measure` or `train`, or two of them: one network with its hidden widths in proportion, at
        two widths and with two seeds. A `measure(…, widths=…)` is extrapolated already. Two are extrapolated here, by
        a straight line in 1/n.
    level : probability below which a row does not agree.

    Returns
    -------
    Comparison. Rows show what is extrapolated where there are several widths.

    >>> import widthwise as ww
    >>> net, X = ww.MLP([2, 256, 1], "tanh", C_W=1.5), [[1.0, 0.5], [-0.3, 0.8]]
    >>> result = ww.compare(ww.theory(net, X, order=0), ww.measure(net, X, networks=100, seed=3))
    >>> [row.variable for row in result], result.worst < 4, result.verdict
    (['K', 'Theta'], True, 'agrees')
    """
    check_dataset("theory", theory)
    level = check_real("level", level, "a probability between 0 and 1, such as 0.001", least=LEAST, largest=BELOW_ONE)
    datasets = check_measurement(measurement)
    shared = [str(v) for v in theory.data_vars if all(v in one and f"{v}_se" in one for one in datasets)]
    if not shared:
        got = f"variables {list(datasets[-1].data_vars)}"
        raise InvalidInput("measurement", got, "some variable of the theory, with _se")
    rows = []
    for name in shared:
        layers = [None]
        if "layer" in datasets[-1][name].dims:
            common = set.intersection(*(set(one["layer"].values.tolist()) for one in (theory, *datasets)))
            layers = [layer for layer in datasets[-1]["layer"].values.tolist() if layer in common]
        rows += [_row_of(name, layer, theory, datasets, level) for layer in layers]
    return Comparison(tuple(rows), _measured_on(datasets), _trained_otherwise(theory, datasets[-1]))


def _trained_otherwise(theory: xr.Dataset, measurement: xr.Dataset) -> str:
    """How networks were trained, where that was predicted otherwise: at infinite width both may end alike."""
    names = [
        name
        for name in ("loss", "algorithm")
        if name in theory.attrs and measurement.attrs.get(name, theory.attrs[name]) != theory.attrs[name]
    ]
    if not names:
        return ""
    of_both = [", ".join(f"{name}={one.attrs[name]}" for name in names) for one in (theory, measurement)]
    return f"Predicted with {of_both[0]}, measured with {of_both[1]}."


def _measured_on(datasets: tuple[xr.Dataset, ...]) -> str:
    """What was measured on, in words: networks, and widths where there are several."""
    last = datasets[-1].attrs
    count = sum(int(one.attrs.get("networks", 0)) for one in datasets)
    widths = list(last["widths"]) if "widths" in last else [one.attrs["n"] for one in datasets[1:] and datasets]
    kind = "trained networks" if last.get("kind") == "train" else "sampled networks"
    if not count:
        return kind
    if len(widths) < 2:
        return f"{count:,} {kind}"
    each = f"{count:,} {kind} at each of" if "widths" in last else f"{count:,} {kind} at"
    return f"{each} the widths {', '.join(map(str, widths[:-1]))} and {widths[-1]}"


def _name(row: ComparisonRow) -> str:
    return row.variable if row.layer is None else f"{row.variable} (layer {row.layer})"


def _row_of(
    name: str, layer: int | None, theory: xr.Dataset, measured: tuple[xr.Dataset, ...], level: float
) -> ComparisonRow:
    found = read(measured, name, layer)
    if f"{name}_se" in theory:  # a prediction over draws scatters too
        scatter = predicted_at(theory, f"{name}_se", layer, None)
        found = found._replace(reading=found.reading._replace(error=np.hypot(found.reading.error, scatter)))
    value, error, n = found.reading
    predicted = predicted_at(theory, name, layer, n)
    if predicted.shape != value.shape:
        raise InvalidInput("measurement", f"{name} of shape {value.shape}", f"shape {predicted.shape} as in the theory")
    held = {("theory", name): predicted, ("measurement", name): value, ("measurement", f"{name}_se"): error}
    for (holder, what), numbers in held.items():
        if np.isnan(numbers).any():
            raise InvalidInput(holder, f"NaN in {what}", "numbers", "Drop the variable, or what made it NaN.")
    pull = pulls(predicted, found.reading)
    worst = np.unravel_index(np.argmax(np.abs(pull)), pull.shape)
    chi2, distinct = chi_square(name, pull, error)
    at_width = None if found.widest is None else predicted_at(theory, name, layer, found.widest.n)
    return ComparisonRow(
        name,
        layer,
        pull.size,
        float(np.sqrt(np.mean(pull**2))),
        float(pull[worst]),
        ",".join(map(str, worst)),
        float(predicted[worst]),
        float(value[worst]),
        float(error[worst]),
        distinct,
        chi2,
        effective_entries(found.traces)[0] if distinct else 0.0,
        probability(name, predicted, found.reading, found),
        verdict(name, predicted, at_width, found, level),
    )


def predicted_at(theory: xr.Dataset, name: str, layer: int | None, n: float | None) -> np.ndarray:
    """The theory's variable, means at width n where that is known."""
    at = {} if layer is None else {"layer": layer}
    value = theory[name].sel(at).values
    shift = SHIFTS.get(name)
    if shift not in theory or n is None:
        return value
    return value + theory[shift].sel(at).values / n
