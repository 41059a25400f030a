"""Small data sets by name. Those of two and one features are made here, the others come with scikit-learn."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from widthwise.errors import InvalidInput, MissingPackage, UnknownName
from widthwise.network.validation import check_integer
from widthwise.study.data import Data

_MEASURED = ("diabetes", "digits", "iris")
#: Every name, with what it is.
NAMES = {
    "circle": "points on a circle with x·x/n_0 = 1, target sin φ",
    "diabetes": "442 patients, 10 features, target disease progression (scikit-learn)",
    "digits": "1797 pictures of 8×8 pixels, target +1 for even digits and −1 for odd ones (scikit-learn)",
    "iris": "150 flowers, 4 features, target −1, 0, 1 for the species (scikit-learn)",
    "sine": "points on a line from −1 to 1, target sin πx",
    "spiral": "points on half a turn of a spiral, target cos 2φ",
    "xor": "the four corners (±1, ±1), target the product of the coordinates",
}


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
    if name not in NAMES:
        raise UnknownName.of("data", name, NAMES)
    if name == "xor":
        corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        return Data(corners, corners.prod(axis=1), np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]), name)
    if name in _MEASURED:
        return _from_scikit_learn(name, points)
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
    try:
        found = getattr(import_module("sklearn.datasets"), f"load_{name}")()
    except ImportError:
        raise MissingPackage(
            f"data: {name!r} comes with scikit-learn, which is not installed: pip install 'widthwise[interop]', or use "
            "a set that is made here, such as spiral"
        ) from None
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
