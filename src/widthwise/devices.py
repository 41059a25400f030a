"""Whether jax computes on a processor or on an accelerator, what is sized by it, and how cores are filled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.errors import one_line

Size = TypeVar("Size")
Arguments = ParamSpec("Arguments")
Item = TypeVar("Item")
Result = TypeVar("Result")


def on_accelerator() -> bool:
    """Whether arrays of jax live on an accelerator by default."""
    return jax.default_backend() != "cpu"


def missing_device() -> str:
    """Why jax has no device to compute on, in one line; empty where it has one.

    >>> missing_device()
    ''
    """
    try:
        jax.devices()
    except (
        Exception
    ) as error:  # a RuntimeError or, where the driver of an asked platform is not there, an AssertionError
        platforms = os.environ.get("JAX_PLATFORMS", "")
        return f"JAX_PLATFORMS={platforms} ({one_line(error)})"
    return ""


def library(*arrays: Any) -> Any:
    """jax.numpy where one of the arrays is jax's, or traced; numpy for plain ones, which need no compiling."""
    for array in arrays:
        if isinstance(array, jax.Array):
            return jnp
    return np


def by_device(sizes: Mapping[str, Size]) -> Size:
    """The size for a processor, "cpu", or for an accelerator, "gpu".

    >>> by_device({"cpu": 1, "gpu": 8}) in (1, 8)
    True
    """
    return sizes["gpu" if on_accelerator() else "cpu"]


def power_of_two(value: float, least: int, most: int) -> int:
    """The largest power of two up to a value, within bounds: sizes that serve many, so that few programs are compiled.

    >>> power_of_two(100.0, 1, 4096), power_of_two(0.1, 16, 4096)
    (64, 16)
    """
    return int(np.clip(2 ** np.floor(np.log2(max(value, 1.0))), least, most))


def usable_cores() -> int:
    """Cores that this process may use; OMP_NUM_THREADS, which numpy obeys too, can ask for fewer.

    >>> usable_cores() >= 1
    True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(asked) if asked.isdigit() and int(asked) else cores)


def on_all_cores(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """`map` for compiled calls too small to fill more than one core: as many at a time as this process has cores.

    Results come in order. On an accelerator, which is filled by one call, they are made one after the other.

    >>> list(on_all_cores(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    workers = min(usable_cores(), len(items))
    if workers < 2 or on_accelerator():
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(workers)
    try:
        yield from pool.map(function, items)
    finally:
        # after an error or an interrupt what has not begun is not wanted
        pool.shutdown(cancel_futures=True)
