"""Checks of a network's numbers."""

from __future__ import annotations

import math
import operator
from typing import Any

from widthwise.errors import InvalidInput


def check_integer(name: str, value: Any, least: int, largest: int | None = None, expected: str = "") -> int:
    """An integer from `least` to `largest`; anything else is refused by name.

    >>> check_integer("networks", 5, least=2)
    5
    """
    expected = expected or f"an integer of at least {least}"
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidInput(name, repr(value), expected) from None
    if isinstance(value, bool) or number < least or (largest is not None and number > largest):
        raise InvalidInput(name, repr(value), expected)
    return number


def check_widths(widths: Any) -> tuple[int, ...]:
    """Positive integers, at least two of them."""
    expected = "at least two positive integers: input dimension, hidden widths, outputs"
    try:
        values = list(widths)
    except TypeError:
        raise InvalidInput("widths", repr(widths), expected, "For example [3, 64, 64, 1].") from None
    if len(values) < 2:
        raise InvalidInput("widths", repr(values), expected, "For example [3, 64, 64, 1].")
    result = []
    for position, value in enumerate(values):
        try:
            if isinstance(value, bool):
                raise TypeError
            width = operator.index(value)
        except TypeError:
            raise InvalidInput("widths", f"{value!r} at position {position}", expected) from None
        if width < 1:
            raise InvalidInput("widths", f"{width} at position {position}", expected)
        result.append(width)
    return tuple(result)


def check_per_layer(name: str, value: Any, depth: int) -> tuple[float, ...]:
    """One finite non-negative number per weight layer; a single number is repeated."""
    expected = f"a finite non-negative number, or {depth} of them, one per weight layer"
    if isinstance(value, str) or value is None or isinstance(value, bool):
        raise InvalidInput(name, repr(value), expected)
    try:
        values = (
            [value] * depth if not hasattr(value, "__len__") or getattr(value, "shape", None) == () else list(value)
        )
        numbers = [float(v) for v in values]
    except (TypeError, ValueError):
        raise InvalidInput(name, repr(value), expected) from None
    if len(numbers) != depth:
        raise InvalidInput(name, f"{len(numbers)} values", expected)
    for layer, number in enumerate(numbers, start=1):
        if not math.isfinite(number) or number < 0:
            raise InvalidInput(name, f"{number:g} for layer {layer}", expected)
    return tuple(numbers)
