"""Numbers and data coming in: converted where that is harmless, refused with a reason where it is not."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable, Mapping, Set
from typing import Any

import jax
import numpy as np

from widthwise.errors import InvalidInput, UnknownName, one_line, shown

#: Bounds of a positive number, of a finite one, and of one below 1.
LEAST, LARGEST, BELOW_ONE = math.ulp(0.0), sys.float_info.max, math.nextafter(1.0, 0.0)
#: Integers of which products can be represented as floating-point numbers.
LARGEST_INTEGER = 10**100
#: Targets whose fourth powers, which the cumulants of trained outputs hold, leave room for kernels of any size.
LARGEST_TARGET = 1e30


def check_integer(
    name: str, value: Any, least: int, largest: int | None = None, expected: str = "", remedy: str = ""
) -> int:
    """An integer from `least` to `largest`, or to 1e100; anything else is refused by name.

    >>> check_integer("networks", 5, least=2)
    5
    """
    expected = expected or f"an integer of at least {least}"
    try:
        number = operator.index(value)
    except Exception:  # what an object of the caller's raises is its own
        number = least - 1
    if isinstance(value, bool) or number < least or (largest is not None and number > largest):
        raise InvalidInput(name, shown(value), expected, remedy)
    if number > LARGEST_INTEGER:
        raise InvalidInput(name, shown(value), f"{expected}, and at most {LARGEST_INTEGER:.0e}", remedy)
    return number


def is_one_of(value: Any, known: Iterable[Any]) -> bool:
    """Whether a text or an integer is among the known ones; nothing else is, whatever `==` says of it.

    >>> is_one_of(1, (0, 1)), is_one_of(True, (0, 1)), is_one_of(np.ones(2), (0, 1))
    (True, False, False)
    """
    return isinstance(value, str | int) and not isinstance(value, bool) and value in known


def check_names(argument: str, names: Any, known: Iterable[str], also: str = "") -> list[str]:
    """A list of known names from one or several; refused by the first that is not known.

    >>> check_names("tensors", "V", ("V", "A"))
    ['V']
    """
    known = list(known)
    try:
        given = [names] if isinstance(names, str) else list(names)
    except Exception:  # no list, or an object of the caller's that raises
        raise InvalidInput(argument, shown(names), f"some of {', '.join(known)}{also}") from None
    for name in given:
        if not is_one_of(name, known):
            raise UnknownName.of(argument, name, known, also)
    if not given:
        raise InvalidInput(argument, "an empty list", f"some of {', '.join(known)}")
    return given


def check_flag(name: str, value: Any) -> bool:
    """True or False; nothing else says which it means."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInput(name, shown(value), "True or False")
    return bool(value)


def check_networks(networks: Any, least: int = 2, name: str = "networks") -> int:
    """How many networks: each has a number of 32 bits, which its random key is made of."""
    largest = 2**32 - 1
    return check_integer(name, networks, least, largest, f"an integer of at least {least}, at most {largest}")


def check_seed(seed: Any, name: str = "seed") -> int:
    """A seed that fits into the 63 bits that random keys are made of."""
    return check_integer(name, seed, 0, 2**63 - 1, f"an integer of at least 0, at most {2**63 - 1}")


def check_real(
    name: str, value: Any, expected: str, remedy: str = "", *, least: float = 0.0, largest: float = LARGEST
) -> float:
    """A number from `least` to `largest`, non-negative and finite unless they are given; else an error by name.

    >>> check_real("tolerance", "1e-3", "a positive number", least=LEAST)
    0.001
    """
    try:
        number = float(plain_values(value, name))
    except Exception:  # of the caller's object; an integer beyond the range of floats is an OverflowError
        number = math.nan
    if not least <= number <= largest:
        raise InvalidInput(name, shown(value), expected, remedy)
    return number


def check_widths(widths: Any, least: int = 2) -> tuple[int, ...]:
    """Positive integers, at least two of them unless fewer will do."""
    expected = "at least two positive integers: input dimension, hidden widths, outputs"
    expected = expected if least == 2 else "a list of positive integers"
    try:
        if isinstance(widths, str | bytes | bytearray | memoryview | Set | Mapping):  # without an order, or no numbers
            raise TypeError
        values = list(widths)
    except Exception:  # of the caller's object
        raise InvalidInput("widths", shown(widths), expected, "For example [3, 64, 64, 1].") from None
    if len(values) < least:
        raise InvalidInput("widths", shown(values), expected, "For example [3, 64, 64, 1].")
    result = []
    for position, value in enumerate(values):
        try:
            if isinstance(value, bool):
                raise TypeError
            width = operator.index(value)
        except Exception:  # of the caller's object
            raise InvalidInput("widths", f"{shown(value)} at position {position}", expected) from None
        if not 1 <= width <= LARGEST_INTEGER:
            bound = f", of at most {LARGEST_INTEGER:.0e}" if width > 0 else ""
            raise InvalidInput("widths", f"{shown(width)} at position {position}", expected + bound)
        result.append(width)
    return tuple(result)


def check_per_layer(name: str, value: Any, depth: int) -> tuple[float, ...]:
    """One finite non-negative number per weight layer; a single number is repeated."""
    expected = f"a finite non-negative number, or {depth} of them, one per weight layer"
    if isinstance(value, str) or value is None or isinstance(value, bool):
        raise InvalidInput(name, shown(value), expected)
    try:
        values = (
            [value] * depth if not hasattr(value, "__len__") or getattr(value, "shape", None) == () else list(value)
        )
        numbers = [float(v) for v in plain_values(values, name)]
    except InvalidInput:
        raise
    except Exception:  # of the caller's object; an integer beyond the range of floats is an OverflowError
        raise InvalidInput(name, shown(value), expected) from None
    if len(numbers) != depth:
        raise InvalidInput(name, f"{len(numbers)} values", expected)
    for layer, number in enumerate(numbers, start=1):
        if not math.isfinite(number) or number < 0:
            raise InvalidInput(name, f"{number:g} for layer {layer}", expected)
    return tuple(numbers)


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
        labels = array.size == inputs and bool(np.isin(array, np.arange(outputs)).all())
        raise InvalidInput(
            name, f"shape {given}", f"shape {shape}: one row per {kind} input, one column per network output",
            f"np.eye({outputs})[labels] makes them from labels 0, 1, …" if labels else "",
        )  # fmt: skip
    return check_size_of_targets(array, name)


def check_size_of_targets(y: np.ndarray, name: str) -> np.ndarray:
    """Targets whose powers can be represented; larger ones are refused."""
    largest = np.abs(y).max(initial=0.0)
    if largest > LARGEST_TARGET:
        raise InvalidInput(name, f"numbers up to {largest:.3g}", f"at most {LARGEST_TARGET:g}", "Scale the targets.")
    return y


def check_covariances(values: Any, name: str) -> np.ndarray:
    """A symmetric matrix in which no covariance is beyond what its variances allow; asymmetric by rounding will do.

    >>> check_covariances([[1.0, 0.5], [0.5, 1.0]], "K").shape
    (2, 2)
    """
    K, expected = real_array(values, name), "a symmetric matrix of covariances (inputs, inputs)"
    if K.ndim != 2 or not K.size or K.shape[0] != K.shape[1]:
        raise InvalidInput(name, f"an array of shape {K.shape}", expected)
    largest, apart, variances = np.abs(K).max(), np.abs(K - K.T).max(), np.diag(K)
    # entries that are zero but for rounding need not agree in any digit
    if apart > 1e-8 * largest:
        raise InvalidInput(name, f"an array of shape {K.shape} with |K − Kᵀ| up to {apart:.3g}", expected)
    if (variances < 0.0).any():
        raise InvalidInput(name, f"a variance of {variances.min():.3g}", f"{expected}, none negative on the diagonal")
    size = np.sqrt(variances)
    a, b = np.unravel_index(np.argmax(np.abs(K) - np.outer(size, size)), K.shape)
    if abs(K[a, b]) - size[a] * size[b] > 1e-8 * largest:
        got = f"a covariance of {K[a, b]:.3g} between variances {K[a, a]:.3g} and {K[b, b]:.3g}"
        raise InvalidInput(name, got, f"{expected}, positive semidefinite")
    return K


def check_function(function: Any, points: np.ndarray, name: str = "function") -> np.ndarray:
    """Values (…, points) of a caller's function of arrays, which has to give a finite real number for each point.

    >>> check_function(np.sqrt, np.array([1.0, 4.0]))
    array([1., 2.])
    """
    if not callable(function):
        raise InvalidInput(name, shown(function), "a function of arrays, such as np.exp")
    try:
        values = real_array(function(points), name)
    except InvalidInput:
        raise
    except Exception as error:  # the caller's own code
        raise InvalidInput(name, f"one that raises {one_line(error)}", "a function of arrays") from error
    if values.shape[-1:] != points.shape:
        got = f"one with values of shape {values.shape} at {len(points)} points"
        raise InvalidInput(name, got, "a function of arrays with a number for each point")
    return values


def refuse_mask(values: Any, name: str) -> None:
    """Refuse a masked array, alone or among arguments of a model: numpy would take it without its mask."""
    parts = values.values() if isinstance(values, Mapping) else values if isinstance(values, tuple) else (values,)
    if any(map(np.ma.isMaskedArray, parts)):
        remedy = f"Drop or impute what is masked, or pass {name}.data if the mask does not matter."
        raise InvalidInput(name, "a masked array", "an array of numbers without a mask", remedy)


def plain_values(values: Any, name: str, levels: int = 3) -> Any:
    """Tensors of torch without their gradients and on the host, alone or in lists of so many levels; all else as it is.

    Masked arrays are refused.
    """
    if isinstance(values, list | tuple):
        if not levels:
            return values
        special = any(
            hasattr(value, "detach") or isinstance(value, list | tuple | np.ma.MaskedArray) for value in values
        )
        return [plain_values(value, name, levels - 1) for value in values] if special else values
    refuse_mask(values, name)
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    return tensor.double() if str(tensor.dtype) == "torch.bfloat16" else tensor  # which numpy does not know


def real_array(values: object, name: str) -> np.ndarray:
    """A finite float64 array, or an error that says which entry is not."""
    try:
        array = np.asarray(plain_values(values, name))
    except InvalidInput:
        raise
    except (TypeError, NotImplementedError) as error:
        remedy = "Call it outside of jax.jit, jax.grad and jax.vmap." if isinstance(values, jax.core.Tracer) else ""  # pyright: ignore[reportAttributeAccessIssue]
        raise InvalidInput(name, type(values).__name__, "an array of numbers", remedy) from error
    except Exception as error:
        if isinstance(error, ValueError) and isinstance(values, list | tuple):
            raise InvalidInput(name, "rows of unequal length", "a rectangular array of numbers") from error
        # of the caller's object: data of a file that is closed, for example
        got = f"{type(values).__name__} that raises {one_line(error)}"
        raise InvalidInput(name, got, "an array of numbers") from error
    if np.iscomplexobj(array):
        raise InvalidInput(
            name, f"complex numbers ({array.dtype})", "real numbers", f"Pass {name}.real if that is meant."
        )
    if array.dtype.kind not in "fiub":
        raise InvalidInput(name, f"an array of {array.dtype}", "an array of numbers")
    array = array.astype(np.float64)
    finite = np.isfinite(array)
    if not finite.all():
        bad = np.argwhere(~finite)
        where = ", ".join(map(str, bad[0]))
        raise InvalidInput(
            name,
            f"{array[tuple(bad[0])]} at index ({where}), and {len(bad)} non-finite of {array.size} entries in all",
            "finite numbers",
            "Drop or impute those rows.",
        )
    return array
