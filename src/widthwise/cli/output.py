"""Results as a table, JSON, CSV or NetCDF, on standard output or in a file, and figures beside them."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from textwrap import fill
from typing import TYPE_CHECKING, Any

from widthwise import files
from widthwise.cli.options import FORMATS, FigureOptions, OutputOptions
from widthwise.cli.streams import put
from widthwise.errors import InvalidInput, NotWritten, UnknownName
from widthwise.extras import require_extra
from widthwise.text import TERMINAL, columns_that_fit

if TYPE_CHECKING:
    import xarray as xr

_FIGURES = (".svg", ".pdf", ".png")
_BY_SUFFIX = {".json": "json", ".csv": "csv", ".nc": "netcdf", ".txt": "table"}
#: Rows of a printed table; the other formats hold everything.
MOST_ROWS = 60
#: Columns between those of a table.
_GAP = 3


@dataclass(frozen=True)
class Records:
    """A result that is a list of rows, with remarks to print below a table, or with a table of its own as text.

    The first `keys` columns say what a row is about: a table wider than a terminal is printed in parts, each with them
    and with the rows that have something to say there.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    remarks: tuple[str, ...] = ()
    text: str = ""
    keys: int = 1


def network_lines(net: Any) -> list[str]:
    """A network in words, with every number that a result depends on, defaults too.

    >>> from widthwise.network import MLP
    >>> network_lines(MLP([3, 64, 64, 1], "relu", C_W=2.0))
    ['network: widths 3,2x64,1, relu, C_b 0, C_W 2, lambda_b 1, lambda_W 1']
    """
    if not hasattr(net, "lambda_W"):
        return [f"network: {net!r}"]
    runs = [(width, len(list(run))) for width, run in itertools.groupby(net.widths)]
    widths = ",".join(f"{count}x{width}" if count > 1 else str(width) for width, count in runs)

    def value(name: str) -> str:
        numbers = getattr(net, name)
        return f"{numbers[0]:.6g}" if len(set(numbers)) == 1 else ",".join(f"{number:.6g}" for number in numbers)

    numbers = ", ".join(f"{name} {value(name)}" for name in ("C_b", "C_W", "lambda_b", "lambda_W"))
    return [f"network: widths {widths}, {net.activation_text}, {numbers}"]


def tell_network(net: Any, output: OutputOptions, *more: str) -> None:
    """The network behind a table on the screen, and other lines; files hold them themselves."""
    if output.out is None and check_output(output) == "table":
        for line in (*network_lines(net), *more):
            remark(output, fill(line, TERMINAL))


def remark(output: OutputOptions, text: str) -> None:
    """A line for people, on standard error."""
    if not output.quiet:
        print(text, file=sys.stderr)


def check_output(output: OutputOptions) -> str:
    """The format that is meant; what cannot be written is refused before anything is computed."""
    if output.format is not None and output.format not in FORMATS:
        raise UnknownName.of("--format", output.format, FORMATS)
    suffix = "" if output.out is None else output.out.suffix
    if output.out is not None:
        require_folder("--out", output.out)
        if output.format is None and suffix not in _BY_SUFFIX:
            raise InvalidInput("--out", f"'{output.out}'", "a name ending in " + ", ".join(_BY_SUFFIX))
    chosen = output.format or _BY_SUFFIX.get(suffix, "table")
    if chosen == "netcdf" and output.out is None:
        raise InvalidInput("--format", "'netcdf' without a file", "a file for binary data", "Add --out FILE.nc.")
    if isinstance(output, FigureOptions) and output.figure is not None:
        if output.figure.suffix not in _FIGURES:
            raise InvalidInput("--figure", f"'{output.figure}'", "a name ending in " + ", ".join(_FIGURES))
        require_folder("--figure", output.figure)
        require_extra("plots", "--figure")
    return chosen


def require_folder(name: str, path: Path) -> None:
    if not path.parent.is_dir():
        raise InvalidInput(name, f"'{path}'", f"an existing folder '{path.parent}'", "Create it first.")
    if path.is_dir():
        raise InvalidInput(name, f"'{path}', which is a folder", "the name of a file")
    if not os.access(path if path.exists() and not path.is_file() else path.parent, os.W_OK):
        raise InvalidInput(name, f"'{path}'", "a folder in which files can be written")


def emit(result: xr.Dataset | Records, output: OutputOptions) -> None:
    """Write a result where and how the options say."""
    chosen = check_output(output)
    if chosen != "netcdf":
        write_result({"table": _as_table, "json": _as_json, "csv": _as_csv}[chosen](result), output)
        return
    from widthwise.results.store import save

    if isinstance(result, Records) or output.out is None:
        raise InvalidInput("--format", "'netcdf'", "table, json or csv: this result is no Dataset")
    keep(partial(save, result), output.out)
    remark(output, f"written: {output.out}")


def keep(write: Callable[[Path], object], path: Path) -> None:
    """Write to a path; where that cannot be, a result that took long to compute is kept elsewhere."""
    try:
        write(path)
    except NotWritten as error:
        reason = error.reason
        with suppress(OSError):
            elsewhere = Path(mkdtemp(prefix="widthwise-")) / path.name
            write(elsewhere)
            reason += f"; the result is in '{elsewhere}'"
        raise NotWritten(path, reason) from error


def write_result(text: str, output: OutputOptions) -> None:
    """To the file that is named, or to standard output."""
    if output.out is None:
        put(text)
        return
    keep(lambda path: files.write_text(path, text), output.out)
    remark(output, f"written: {output.out}")


def emit_with_figure(result: xr.Dataset | Records, output: FigureOptions, name: str, *arguments: Any) -> None:
    """Write a result, and draw the figure `plot_NAME` of the arguments if a file for it is named."""
    emit(result, output)
    if output.figure is None:
        return
    import_module("matplotlib").use("Agg")
    plots = import_module("widthwise.plots")
    plots.save_figure(getattr(plots, f"plot_{name}")(*arguments), output.figure)
    remark(output, f"written: {output.figure}")


def _labels(dataset: xr.Dataset, dims: Iterable[Any]) -> list[list[Any]]:
    """The coordinates of some dimensions, or numbers from 0 where there are none."""
    return [dataset[d].values.tolist() if d in dataset.coords else list(range(dataset.sizes[d])) for d in dims]


def _names_and_errors(dataset: xr.Dataset) -> dict[str, Any]:
    """The standard error of every variable, or None."""
    names = [name for name in map(str, dataset.data_vars) if not name.endswith("_se")]
    return {name: dataset[f"{name}_se"].values if f"{name}_se" in dataset else None for name in names}


def long_form(dataset: xr.Dataset) -> Records:
    """One row an entry: variable, its indices, value, and the standard error where there is one."""
    dims, errors = [str(d) for d in dataset.sizes], _names_and_errors(dataset)
    with_error = any(error is not None for error in errors.values())
    rows: list[tuple[Any, ...]] = []
    for name, error in errors.items():
        own = [str(d) for d in dataset[name].dims]
        values = dataset[name].values.ravel().tolist()
        ends = [""] * len(values) if error is None else error.ravel().tolist()
        for place, value, end in zip(itertools.product(*_labels(dataset, own)), values, ends, strict=True):
            at = dict(zip(own, place, strict=True))
            row = (name, *(at.get(d, "") for d in dims), value)
            rows.append((*row, end) if with_error else row)
    return Records(("variable", *dims, "value", *(("standard_error",) if with_error else ())), rows)


def matrices(dataset: xr.Dataset) -> list[Records]:
    """Tables for people: variables of the same dimensions in one table, their last dimension across."""
    errors = _names_and_errors(dataset)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in errors:
        groups.setdefault(tuple(map(str, dataset[name].dims)), []).append(name)
    found = []
    for dims, names in groups.items():
        down, across = dims[:-1], dims[-1:]
        heads = [f"{across[0]}={label}" for label in _labels(dataset, across)[0]] if across else ["value"]
        rows = []
        for name in names:
            cells = [_shown(value) for value in dataset[name].values.ravel().tolist()]
            if errors[name] is not None:
                cells = [f"{cell} ± {error:.2g}" for cell, error in zip(cells, errors[name].ravel(), strict=True)]
            for i, place in enumerate(itertools.product(*_labels(dataset, down))):
                rows.append((name, *place, *cells[i * len(heads) : (i + 1) * len(heads)]))
        found.append(Records(("variable", *down, *heads), rows, keys=1 + len(down)))
    return found


def _as_table(result: xr.Dataset | Records) -> str:
    if isinstance(result, Records) and result.text:
        return result.text
    tables = [result] if isinstance(result, Records) else matrices(result)
    return "".join(_one_table(part) for records in tables for part in parts_that_fit(records))


def parts_that_fit(records: Records) -> list[Records]:
    """The table, or several with some of its columns each, none wider than a terminal; words in the last are folded.

    Where it does not fit, columns without a word are left out.

    >>> wide = Records(("name", *"abcdef"), [("x", *[1234567890.0] * 6)])
    >>> [part.columns for part in parts_that_fit(wide)]
    [('name', 'a', 'b', 'c', 'd', 'e'), ('name', 'f')]
    """
    shown = [tuple(map(_shown, row)) for row in records.rows[:MOST_ROWS]]
    widths = [max(map(len, column)) + _GAP for column in zip(records.columns, *shown, strict=True)]
    if sum(widths) - _GAP + 1 <= TERMINAL:  # a table begins with a space
        return [records]
    filled = [i for i in range(len(widths)) if i < records.keys or any(row[i] for row in shown)]
    fitting = columns_that_fit([widths[i] for i in filled], records.keys, TERMINAL + _GAP - 1)
    parts = [[filled[i] for i in part] for part in fitting]
    room = max(TERMINAL - 1 - sum(widths[: records.keys]), 20)
    last = len(parts) - 1
    return [
        Records(
            tuple(records.columns[i] for i in part),
            [
                tuple(_folded_words(row[i], room) for i in part)
                for row in records.rows
                if any(row[i] != "" for i in part[records.keys :])
            ],
            records.remarks if number == last else (),
            keys=records.keys,
        )
        for number, part in enumerate(parts)
    ]


def _folded_words(cell: Any, width: int) -> Any:
    return fill(cell, width) if isinstance(cell, str) and len(cell) > width else cell


def _one_table(records: Records) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [tuple(map(_shown, row)) for row in records.rows[:MOST_ROWS]]
    for name, *cells in zip(records.columns, *shown, strict=True):
        table.add_column(name, justify="left" if any("\n" in cell for cell in cells) else "right", no_wrap=True)
    for row in shown:
        table.add_row(*row)
    # brackets and colons are text: 'widthwise[plots]' would lose what is in brackets
    how = {"force_terminal": sys.stdout.isatty(), "markup": False, "emoji": False}
    console = Console(file=io.StringIO(), width=100_000, **how)  # a narrow terminal folds lines, and cuts nothing
    console.print(table)
    text = "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()).strip("\n") + "\n"  # pyright: ignore
    more = len(records.rows) - MOST_ROWS
    notes = (f"… and {more} more rows: --format csv or --out FILE has them all",) if more > 0 else ()
    return text + "".join(f"{fill(note, TERMINAL)}\n" for note in (*notes, *records.remarks))


def _shown(cell: Any) -> str:
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def _as_json(result: xr.Dataset | Records) -> str:
    if isinstance(result, Records):
        found: Any = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    else:
        parts = {
            kind: {str(name): {"dims": list(v.dims), "values": v.values.tolist()} for name, v in items.items()}
            for kind, items in (("coords", result.coords), ("variables", result.data_vars))
        }
        found = {"attrs": result.attrs, **parts}
    return json.dumps(json_ready(found), ensure_ascii=False, allow_nan=False) + "\n"


def _as_csv(result: xr.Dataset | Records) -> str:
    records = result if isinstance(result, Records) else long_form(result)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(records.columns)
    writer.writerows(records.rows)
    return text.getvalue()


def json_ready(value: Any) -> Any:
    """Python's own types, with null for numbers that JSON cannot write."""
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if hasattr(value, "tolist"):
        return json_ready(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
