"""What the figures of several labs share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def only_ticks(axis: Any, values: Iterable[Any], form: str = "{:g}") -> None:
    """Ticks of a logarithmic horizontal axis at these values and nowhere else."""
    values = list(values)
    axis.set_xticks(values, [form.format(value) for value in values])
    axis.minorticks_off()
