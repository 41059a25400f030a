"""Whether jax computes on a processor or on an accelerator, and what is sized by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import jax

Size = TypeVar("Size")


def on_accelerator() -> bool:
    """Whether arrays of jax live on an accelerator by default."""
    return jax.default_backend() != "cpu"


def by_device(sizes: Mapping[str, Size]) -> Size:
    """The size for a processor, "cpu", or for an accelerator, "gpu".

    >>> by_device({"cpu": 1, "gpu": 8}) in (1, 8)
    True
    """
    return sizes["gpu" if on_accelerator() else "cpu"]
