"""Inputs, targets and test inputs that belong together: given, built in by name, or from files.

Built-in sets of two and one features are made here, the others come with scikit-learn. What is wrong with a file is
said with its line and column.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput, UnknownName, one_line
from widthwise.extras import need
from widthwise.memory import require_memory
from widthwise.network import check_inputs, check_integer, real_array
from widthwise.network.validation import is_one_of

#: A training point and a test point of a curve while they are made.
_BYTES_OF_A_POINT = 160
#: Every name, with what it is.
BUILT_IN = {
    "circle": "points on a circle with x·x/n_0 = 1, target sin φ",
    "diabetes": "442 patients, 10 features, target disease progression (scikit-learn)",
    "digits": "1797 pictures of 8×8 pixels, target +1 for even digits and −1 for odd ones (scikit-learn)",
    "iris": "150 flowers, 4 features, target −1, 0, 1 for the species (scikit-learn)",
    "sine": "points on a line from −1 to 1, target sin πx",
    "spiral": "points on half a turn of a spiral, target cos 2φ",
    "xor": "the four corners (±1, ±1), target the product of the coordinates",
}


@dataclass(frozen=True, eq=False)
class Data:
    """X_train (inputs, features), y_train (inputs, outputs) or None, X_test (tests, features) or None, and a name.

    >>> Data([[1.0, 0.0]], [0.5]).y_train.shape
    (1, 1)
    """

    X_train: np.ndarray
    y_train: np.ndarray | None = None
    X_test: np.ndarray | None = None
    name: str = "given"

    def __post_init__(self) -> None:
        X = check_inputs(self.X_train, name="X_train")
        object.__setattr__(self, "X_train", X)
        if self.y_train is not None:
            y = real_array(self.y_train, "y_train")
            y = y[:, None] if y.ndim == 1 else y
            if y.ndim != 2 or len(y) != len(X):
                raise InvalidInput("y_train", f"shape {y.shape}", f"one row for each of the {len(X)} training inputs")
            object.__setattr__(self, "y_train", y)
        if self.X_test is not None:
            object.__setattr__(self, "X_test", check_inputs(self.X_test, X.shape[1], "X_test"))

    @property
    def features(self) -> int:
        return self.X_train.shape[1]

    @property
    def outputs(self) -> int:
        return 1 if self.y_train is None else self.y_train.shape[1]

    def for_training(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """X_train, y_train, X_test, or an error that says which of them is missing."""
        for name in ("y_train", "X_test"):
            if getattr(self, name) is None:
                raise InvalidInput(
                    "data",
                    f"{self.name!r} without {name}",
                    "targets and test inputs",
                    "Use an .npz file with X_train, y_train and X_test, a .csv file with a column y in which the test "
                    "rows are empty, or a built-in set.",
                )
        assert self.y_train is not None
        assert self.X_test is not None
        return self.X_train, self.y_train, self.X_test

    def to_dict(self) -> dict[str, Any]:
        """Name and numbers, as lists."""
        arrays = {"X_train": self.X_train, "y_train": self.y_train, "X_test": self.X_test}
        return {"name": self.name} | {key: value.tolist() for key, value in arrays.items() if value is not None}


def dataset(name: str, points: int = 4) -> Data:
    """A data set by name, with so many training inputs, and test inputs between or beside them.

    Returns
    -------
    Data with X_train, y_train, X_test. Features of the measured sets have mean zero and variance one.

    >>> data = dataset("spiral", points=4)
    >>> data.X_train.shape, data.y_train.round(6).ravel().tolist(), data.X_test.shape
    ((4, 2), [1.0, -0.5, -0.5, 1.0], (3, 2))
    """
    points = check_integer("points", points, 2)
    if not is_one_of(name, BUILT_IN):
        raise UnknownName.of("data", name, BUILT_IN)
    if name == "xor":
        corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        return Data(corners, corners.prod(axis=1), np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]), name)
    if name in ("diabetes", "digits", "iris"):
        return _from_scikit_learn(name, points)
    what, each = f"a data set of {points} points", _BYTES_OF_A_POINT
    require_memory(each * points, what, lambda limit: f"What would fit: {limit // each} points.")
    at = np.linspace(0.0, 1.0, points, endpoint=name != "circle")
    between = at[:-1] + 0.5 * at[1] if name != "circle" else at + 0.5 / points
    # twelve digits: what should be zero is
    (X_train, y_train), (X_test, _) = ([np.round(v, 12) + 0.0 for v in _curve(name, t)] for t in (at, between))
    return Data(X_train, y_train, X_test, name)


def _curve(name: str, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets at positions 0 … 1 along the curve."""
    if name == "sine":
        x = 2.0 * at - 1.0
        return x[:, None], np.sin(np.pi * x)
    angle = np.pi * at * (1.0 if name == "spiral" else 2.0)
    radius = 0.7 + 1.5 * at if name == "spiral" else np.sqrt(2.0)
    X = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return X, np.cos(2.0 * angle) if name == "spiral" else np.sin(angle)


def _from_scikit_learn(name: str, points: int) -> Data:
    found = getattr(need("sklearn.datasets", "readers", f"the data set {name!r}"), f"load_{name}")()
    X, y = np.asarray(found.data, float), np.asarray(found.target, float)
    y = {"diabetes": (y - y.mean()) / y.std(), "digits": 1.0 - 2.0 * (y % 2), "iris": y - 1.0}[name]
    spread = X.std(axis=0)
    X = (X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    tests = min(points, len(X) - points)
    if tests < 1:
        raise InvalidInput("points", str(points), f"at most {len(X) - 1}, which leaves a test input")
    rows = np.linspace(0, len(X) - 1, points + tests).round().astype(int)
    # every second row is a test, so that both halves spread over the whole set
    train = np.zeros(len(rows), bool)
    train[np.linspace(0, len(rows) - 1, points).round().astype(int)] = True
    return Data(X[rows[train]], y[rows[train]], X[rows[~train]], name)


def load_data(source: str | Path, points: int = 4) -> Data:
    """Data by the name of a built-in set, or from a file.

    Parameters
    ----------
    source : a name out of `widthwise.study.data.BUILT_IN`; a .npy file with an array (inputs, features); a .npz file
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
    known = "one of the built-in sets " + ", ".join(sorted(BUILT_IN))
    if path.suffix not in (".npy", ".npz", ".csv"):
        if path.suffix or path.exists() or "/" in str(source):
            raise InvalidInput("data", f"'{source}'", f"a file that ends in .npy, .npz or .csv, or {known}")
        return dataset(str(source), points)
    if not path.is_file():
        raise InvalidInput("data", f"'{path}', which is not there", f"an existing file, or {known}")
    return _from_csv(path) if path.suffix == ".csv" else _from_numpy(path)


def _from_numpy(path: Path) -> Data:
    try:
        loaded, named = np.load(path, allow_pickle=False), {}
        if not (single := isinstance(loaded, np.ndarray)):
            with loaded as archive:
                named = {str(name): archive[name] for name in archive.files}
    except Exception as error:  # damage has as many kinds as zip, zlib and numpy have errors
        got = f"'{path}', which cannot be read ({one_line(error)})"
        raise InvalidInput("data", got, "a file of numbers written by numpy") from error
    if single and path.suffix == ".npz":
        raise InvalidInput("data", f"'{path}' with a single array", "named arrays", "Name the file .npy.")
    if not single and path.suffix == ".npy":
        raise InvalidInput("data", f"'{path}' with several arrays", "a single array", "Name the file .npz.")
    if single:
        return Data(loaded, name=path.name)
    arrays = {{"X": "X_train", "y": "y_train"}.get(name, name): array for name, array in named.items()}
    unknown = sorted(set(arrays) - {"X_train", "y_train", "X_test"})
    if unknown or "X_train" not in arrays:
        problem = f"an array {unknown[0]!r}" if unknown else "no X_train"
        raise InvalidInput("data", f"'{path}' with {problem}", "X_train, and if there are any y_train and X_test")
    return Data(**arrays, name=path.name)


def _from_csv(path: Path) -> Data:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [(number, row) for number, row in enumerate(csv.reader(file), 1) if any(c.strip() for c in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput("data", f"'{path}', which is no text ({error})", "a .csv file") from error
    if not lines:
        raise InvalidInput("data", f"'{path}', which is empty", "one input a row")
    first = [cell.strip() for cell in lines[0][1]]
    # a first row of numbers is data, and its columns are x1, x2, …
    nameless = all(_number(cell) is not None for cell in first)
    head, body = ([f"x{i + 1}" for i in range(len(first))], lines) if nameless else (first, lines[1:])
    target = [name == "y" or (name[:1] == "y" and name[1:].isdigit()) for name in head]
    if not body or all(target):
        raise InvalidInput("data", f"'{path}' without inputs", "at least one row and one feature")
    numbers = []
    for line, row in body:
        if len(row) != len(head):
            raise InvalidInput("data", f"'{path}', line {line}: {len(row)} cells", f"{len(head)}, as in the first row")
        columns = zip(head, row, target, strict=True)
        numbers.append([_csv_cell(f"'{path}', line {line}, column {name!r}", cell, y) for name, cell, y in columns])
    table = np.array(numbers)
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


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _csv_cell(where: str, cell: str, may_be_empty: bool) -> float:
    text = cell.strip()
    if may_be_empty and not text:
        return float("nan")
    number = _number(text)
    if number is None or not np.isfinite(number):
        raise InvalidInput("data", f"{where}: {text!r}", "a finite number")
    return number
