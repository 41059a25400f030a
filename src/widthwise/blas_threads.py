"""Small products of numpy on one thread.

OpenBLAS, which numpy's wheels bring along, shares out products from some ten thousand multiplications on, and its
threads wait for each other by spinning: with another process on one of two cores, kernels of 1,000 inputs took 0.86 s
on two threads and 0.14 s on one, on idle cores as long on either. Where another library does numpy's products nothing
is changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from threading import Lock

import numpy as np

from widthwise.devices import Arguments, Result

_NAMES = (("scipy_openblas_", "64_"), ("scipy_openblas_", ""), ("openblas_", "64_"), ("openblas_", ""))


class _Limit:
    """How many blocks of code want one thread, and how many threads there were before the first."""

    lock, blocks, threads = Lock(), 0, 1


@cache
def _controls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """What gets and sets the number of threads of the OpenBLAS in numpy's wheel."""
    package = Path(np.__file__).parent
    for folder in (package.with_name("numpy.libs"), package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")) if folder.is_dir() else ():
            library = ctypes.CDLL(str(path))
            for start, end in _NAMES:
                found = [getattr(library, f"{start}{verb}_num_threads{end}", None) for verb in ("get", "set")]
                if all(found):
                    return found[0], found[1]  # pyright: ignore[reportReturnType]
    return None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Products of numpy within it are not shared out; blocks may lie within each other, and in several threads."""
    controls = _controls()
    if controls is None:
        yield
        return
    get, set_ = controls
    with _Limit.lock:
        if not _Limit.blocks:
            _Limit.threads = get()
            set_(1)
        _Limit.blocks += 1
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.blocks -= 1
            if not _Limit.blocks:
                set_(_Limit.threads)


def with_one_blas_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A function whose products of numpy are small."""

    @wraps(function)
    def limited(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with one_blas_thread():
            return function(*args, **kwargs)

    return limited
