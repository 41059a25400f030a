"""Results as a table, JSON, CSV or NetCDF, on standard output or in a file."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widthwise.cli.options import FORMATS, OutputOptions
from widthwise.errors import InvalidInput, UnknownName

if TYPE_CHECKING:
    import xarray as xr

_BY_SUFFIX = {".json": "json", ".csv": "csv", ".nc": "netcdf", ".txt": "table"}
#: Rows of a printed table; the other formats hold everything.
SHOWN = 60


@dataclass(frozen=True)
class Records:
    """A result that is a list of rows, with remarks to print below a table."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    remarks: tuple[str, ...] = ()
    dataset: xr.Dataset | None = None


def remark(output: OutputOptions, text: str) -> None:
    """A line for people, on standard error."""
    if not output.quiet:
        print(text, file=sys.stderr)


def check_output(output: OutputOptions) -> str:
    """The format that is meant; refused before anything is computed."""
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
    return chosen


def require_folder(name: str, path: Path) -> None:
    if not path.parent.is_dir():
        raise InvalidInput(name, f"'{path}'", f"an existing folder '{path.parent}'", "Create it first.")
    if path.is_dir():
        raise InvalidInput(name, f"'{path}', which is a folder", "the name of a file")


def emit(result: xr.Dataset | Records, output: OutputOptions) -> None:
    """Write a result where and how the options say."""
    chosen = check_output(output)
    if chosen == "netcdf":
        _netcdf(result, output)
    else:
        text = {"table": _table, "json": _json, "csv": _csv}[chosen](result)
        if output.out is None:
            sys.stdout.write(text)
        else:
            output.out.write_text(text, encoding="utf-8")
    if output.out is not None:
        remark(output, f"written: {output.out}")


def _netcdf(result: xr.Dataset | Records, output: OutputOptions) -> None:
    from widthwise.results.store import save

    dataset = result.dataset if isinstance(result, Records) else result
    if dataset is None or output.out is None:
        raise InvalidInput("--format", "'netcdf'", "table, json or csv: this result is no Dataset")
    save(dataset, output.out)


def long_form(dataset: xr.Dataset) -> Records:
    """One row an entry: variable, its indices, value, and the standard error where there is one."""
    import numpy as np

    dims = [str(d) for d in dataset.sizes]
    names = [str(v) for v in dataset.data_vars if not str(v).endswith("_se")]
    with_error = any(f"{name}_se" in dataset for name in names)
    rows: list[tuple[Any, ...]] = []
    for name in names:
        values = dataset[name]
        error = dataset[f"{name}_se"].values if f"{name}_se" in dataset else None
        axes = [dataset[d].values if d in dataset.coords else np.arange(dataset.sizes[d]) for d in values.dims]
        for place in itertools.product(*(range(len(a)) for a in axes)):
            at = {str(d): a[i].item() for d, a, i in zip(values.dims, axes, place, strict=True)}
            row = (name, *(at.get(d, "") for d in dims), values.values[place].item())
            rows.append((*row, "" if error is None else error[place].item()) if with_error else row)
    return Records(("variable", *dims, "value", *(("standard_error",) if with_error else ())), rows)


def _table(result: xr.Dataset | Records) -> str:
    tables = [result] if isinstance(result, Records) else matrices(result)
    return "".join(_one_table(records) for records in tables)


def matrices(dataset: xr.Dataset) -> list[Records]:
    """Tables for people: variables of the same dimensions in one table, their last dimension across."""
    import numpy as np

    def labels(dim: Any) -> list[Any]:
        return (dataset[dim].values if dim in dataset.coords else np.arange(dataset.sizes[dim])).tolist()

    groups: dict[tuple[str, ...], list[str]] = {}
    for name in map(str, dataset.data_vars):
        if not name.endswith("_se"):
            groups.setdefault(tuple(map(str, dataset[name].dims)), []).append(name)
    found = []
    for dims, names in groups.items():
        down, across = dims[:-1], dims[-1:]
        heads = [f"{across[0]}={label}" for label in labels(across[0])] if across else ["value"]
        rows = []
        for name in names:
            values = dataset[name].values.reshape(-1, len(heads))
            error = dataset[f"{name}_se"].values.reshape(values.shape) if f"{name}_se" in dataset else None
            for i, place in enumerate(itertools.product(*(labels(d) for d in down))):
                cells = [_with_error(values[i, j], None if error is None else error[i, j]) for j in range(len(heads))]
                rows.append((name, *place, *cells))
        found.append(Records(("variable", *down, *heads), rows))
    return found


def _with_error(value: Any, error: Any) -> str:
    return _shown(value.item()) if error is None else f"{_shown(value.item())} ± {error:.2g}"


def _one_table(records: Records) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in records.columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in records.rows[:SHOWN]:
        table.add_row(*map(_shown, row))
    # a pipe has no width: nothing may be cut there
    to_terminal = sys.stdout.isatty()
    console = Console(file=io.StringIO(), width=None if to_terminal else 100_000, force_terminal=to_terminal)
    console.print(table)
    text = "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()).strip("\n") + "\n"  # pyright: ignore
    more = len(records.rows) - SHOWN
    notes = (f"… and {more} more rows: --format csv or --out FILE has them all",) if more > 0 else ()
    return text + "".join(f"{note}\n" for note in (*notes, *records.remarks))


def _shown(cell: Any) -> str:
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def _json(result: xr.Dataset | Records) -> str:
    if isinstance(result, Records):
        found: Any = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    else:
        parts = {
            kind: {str(name): {"dims": list(v.dims), "values": v.values.tolist()} for name, v in items.items()}
            for kind, items in (("coords", result.coords), ("variables", result.data_vars))
        }
        found = {"attrs": result.attrs, **parts}
    return json.dumps(plain(found), ensure_ascii=False, allow_nan=False) + "\n"


def _csv(result: xr.Dataset | Records) -> str:
    records = result if isinstance(result, Records) else long_form(result)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(records.columns)
    writer.writerows(records.rows)
    return text.getvalue()


def plain(value: Any) -> Any:
    """Python's own types, with null for numbers that JSON cannot write."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
