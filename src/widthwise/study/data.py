"""Inputs, targets and test inputs that belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.network.inputs import check_inputs, real_array


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
