"""Data from .npy, .npz and .csv files; what is wrong with one is said with its line and column."""

from __future__ import annotations

import csv
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.study.builtin import NAMES, dataset
from widthwise.study.data import Data

_KEYS = ("X_train", "y_train", "X_test")


def load_data(source: str | Path, points: int = 4) -> Data:
    """Data by the name of a built-in set, or from a file.

    Parameters
    ----------
    source : a name out of `widthwise.study.builtin.NAMES`; a .npy file with an array (inputs, features); a .npz file
        with X_train (or X), y_train (or y) and X_test, the latter two optional; a .csv file with one input a row, whose
        columns called y, y1, y2 … hold targets, and whose rows without a target are test inputs.
    points : training inputs of a built-in set.

    Returns
    -------
    Data.

    >>> load_data("xor").y_train.ravel().tolist()
    [1.0, -1.0, -1.0, 1.0]
    """
    path = Path(source)
    readers = {".npy": _npy, ".npz": _npz, ".csv": _csv}
    if path.suffix not in readers:
        if path.suffix or path.exists() or "/" in str(source):
            raise InvalidInput("data", f"'{source}'", "a file that ends in .npy, .npz or .csv, or " + _known())
        return dataset(str(source), points)
    if not path.is_file():
        raise InvalidInput("data", f"'{path}', which is not there", "an existing file, or " + _known())
    return readers[path.suffix](path)


def _known() -> str:
    return "one of the built-in sets " + ", ".join(sorted(NAMES))


def _open(path: Path):
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput("data", f"'{path}', which cannot be read ({reason})", "a file written by numpy") from error


def _npy(path: Path) -> Data:
    found = _open(path)
    if not isinstance(found, np.ndarray):
        raise InvalidInput("data", f"'{path}' with several arrays", "a single array", "Name the file .npz.")
    return Data(found, name=path.name)


def _npz(path: Path) -> Data:
    found = _open(path)
    if isinstance(found, np.ndarray):
        raise InvalidInput("data", f"'{path}' with a single array", "named arrays", "Name the file .npy.")
    with found:
        arrays = {{"X": "X_train", "y": "y_train"}.get(key, str(key)): found[key] for key in map(str, found.files)}
    unknown = sorted(set(arrays) - set(_KEYS))
    if unknown or "X_train" not in arrays:
        problem = f"an array {unknown[0]!r}" if unknown else "no X_train"
        raise InvalidInput("data", f"'{path}' with {problem}", "X_train, and if there are any y_train and X_test")
    return Data(**arrays, name=path.name)


def _csv(path: Path) -> Data:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [(number, row) for number, row in enumerate(csv.reader(file), 1) if any(c.strip() for c in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput("data", f"'{path}', which is no text ({error})", "a .csv file") from error
    if not lines:
        raise InvalidInput("data", f"'{path}', which is empty", "one input a row")
    head, body = _header(lines)
    target = [name == "y" or (name[:1] == "y" and name[1:].isdigit()) for name in head]
    if not body or all(target):
        raise InvalidInput("data", f"'{path}' without inputs", "at least one row and one feature")
    table = np.array([[_cell(path, line, head, row, i, target[i]) for i in range(len(head))] for line, row in body])
    X, y = table[:, np.flatnonzero(~np.array(target))], table[:, np.flatnonzero(target)]
    if not any(target):
        return Data(X, name=path.name)
    known = np.isfinite(y).all(axis=1)
    part = np.isfinite(y).any(axis=1) & ~known
    if part.any() or not known.any():
        line = body[int(np.argmax(part))][0]
        problem = f"line {line}: some targets but not all" if part.any() else "no row with a target"
        raise InvalidInput("data", f"'{path}', {problem}", "every target in a training row, none in a test row")
    return Data(X[known], y[known], X[~known] if (~known).any() else None, path.name)


def _header(lines: list[tuple[int, list[str]]]) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Column names and the rows below; a first row of numbers is data, and its columns are x1, x2, …"""
    first = [cell.strip() for cell in lines[0][1]]
    if all(_number(cell) is not None for cell in first):
        return [f"x{i + 1}" for i in range(len(first))], lines
    return first, lines[1:]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _cell(path: Path, line: int, head: list[str], row: list[str], column: int, may_be_empty: bool) -> float:
    if len(row) != len(head):
        raise InvalidInput("data", f"'{path}', line {line}: {len(row)} cells", f"{len(head)}, as in the first row")
    text = row[column].strip()
    if may_be_empty and not text:
        return float("nan")
    number = _number(text)
    if number is None or not np.isfinite(number):
        where = f"'{path}', line {line}, column {head[column]!r}: {text!r}"
        raise InvalidInput("data", where, "a finite number")
    return number
