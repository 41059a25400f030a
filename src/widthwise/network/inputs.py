"""Data coming in: converted where that is harmless, refused with a reason where it is not."""

from __future__ import annotations

import numpy as np

from widthwise.errors import InvalidInput


def check_inputs(X: object, features: int | None = None, name: str = "X") -> np.ndarray:
    """X as a float64 array (inputs, features); lists and integers are converted.

    >>> check_inputs([[1, 2], [3, 4]]).dtype
    dtype('float64')
    """
    array = real_array(X, name)
    if array.ndim != 2:
        remedy = ""
        if array.ndim == 1:
            remedy = f"Write {name}[None, :] for one input or {name}[:, None] for one feature."
        raise InvalidInput(name, f"an array of shape {array.shape}", "shape (inputs, features)", remedy)
    if array.size == 0:
        raise InvalidInput(name, f"an empty array of shape {array.shape}", "at least one input and one feature")
    if features is not None and array.shape[1] != features:
        raise InvalidInput(
            name,
            f"{array.shape[1]} features per input (shape {array.shape})",
            f"{features}, the first of the network's widths",
            "Change widths[0], or transpose the data." if array.shape[0] == features else "Change widths[0].",
        )
    return array


def check_one_input(x: object, features: int, name: str = "x") -> np.ndarray:
    """One input as (features,); a single row (1, features) will do."""
    array = real_array(x, name)
    expected = f"one input, shape ({features},)"
    if array.ndim not in (1, 2):
        raise InvalidInput(name, f"an array of shape {array.shape}", expected)
    if array.ndim == 2 and len(array) > 1:
        raise InvalidInput(
            name,
            f"{len(array)} inputs (shape {array.shape})",
            expected,
            "Take one row at a time, or use widthwise.theory for several inputs.",
        )
    return check_inputs(array[None, :] if array.ndim == 1 else array, features, name)[0]


def check_targets(y: object, inputs: int, outputs: int, name: str = "y_train") -> np.ndarray:
    """Targets as (inputs, outputs); a flat array counts as one output."""
    array = real_array(y, name)
    given = array.shape
    if array.ndim == 1 and outputs == 1:
        array = array[:, None]
    if array.shape != (inputs, outputs):
        kind = "test" if name == "y_test" else "training"
        shape = f"({inputs}, {outputs})" + (f" or ({inputs},)" if outputs == 1 else "")
        raise InvalidInput(
            name, f"shape {given}", f"shape {shape}: one row per {kind} input, one column per network output"
        )
    return array


def real_array(values: object, name: str) -> np.ndarray:
    """A finite float64 array, or an error that says which entry is not."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InvalidInput(name, "rows of unequal length", "a rectangular array of numbers") from error
    if np.iscomplexobj(array):
        raise InvalidInput(
            name, f"complex numbers ({array.dtype})", "real numbers", f"Pass {name}.real if that is meant."
        )
    if array.dtype.kind not in "fiub":
        raise InvalidInput(name, f"an array of {array.dtype}", "an array of numbers")
    array = array.astype(np.float64)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        where = ", ".join(map(str, bad[0]))
        raise InvalidInput(
            name,
            f"{array[tuple(bad[0])]} at index ({where}), and {len(bad)} non-finite of {array.size} entries in all",
            "finite numbers",
            "Drop or impute those rows.",
        )
    return array
