"""Compiled programs kept on disk, so that a first call waits for a compiler once a machine and not once a process.

jax keeps them; here is where, and what makes that safe. A folder belongs to one version of jax and one processor. jax
writes entries in place: what a process that was killed has written since it began may not be whole, and is removed when
the next one starts. Nothing is said where entries cannot be read or written: programs are then compiled as usual.
`WIDTHWISE_PROGRAMS` names another folder, or is "off"; a folder that jax was given stays as it is.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import sys
import warnings
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import jax

from widthwise.files import is_running

SWITCH = "WIDTHWISE_PROGRAMS"
#: Bytes of all entries, beyond which the oldest are removed.
MOST_BYTES = 1 << 29
#: Seconds of compiling from which on a program is kept.
LEAST_SECONDS = 0.03
_MARK = "running-"


def folder() -> Path | None:
    """Where programs of this jax and this processor are kept; None where they are not."""
    asked = os.environ.get(SWITCH, "")
    if asked == "off" or os.environ.get("JAX_COMPILATION_CACHE_DIR") or (not asked and _user_caches() is None):
        return None
    place = Path(asked) if asked else _user_caches()
    assert place is not None
    known = f"{jax.__version__} {version('jaxlib')} {sys.version_info[:2]} {_processor()}"
    return place / f"jax-{jax.__version__}-{hashlib.sha256(known.encode()).hexdigest()[:12]}"


def _user_caches() -> Path | None:
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "widthwise"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "widthwise" / "programs"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "widthwise"


def _processor() -> str:
    """What compiled code depends on: the instructions of the processor, and options for the compiler."""
    told = platform.machine() + platform.processor() + os.environ.get("XLA_FLAGS", "")
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        told += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return told


def keep_programs() -> Path | None:
    """Have jax keep what it compiles; the folder, or None where there is none that can be written to."""
    place = folder()
    if place is None or jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    mark = place / f"{_MARK}{os.getpid()}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        _remove_doubtful(place)
        _remove_oldest(place)
        mark.touch()
    except OSError:
        return None
    atexit.register(_unmark, mark, os.getpid())
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    return place


def _unmark(mark: Path, process: int) -> None:
    if os.getpid() == process:  # not in processes that were forked
        mark.unlink(missing_ok=True)


def _remove_doubtful(place: Path) -> None:
    """Remove entries that processes which did not end by themselves may have been writing."""
    for mark in place.glob(f"{_MARK}*"):
        number = mark.name.removeprefix(_MARK)
        if not number.isdigit() or (int(number) != os.getpid() and is_running(int(number))):
            continue
        began = mark.stat().st_mtime
        for entry in place.glob("*-cache"):
            if entry.stat().st_mtime >= began - 1.0:
                entry.unlink(missing_ok=True)
        mark.unlink(missing_ok=True)


def _remove_oldest(place: Path) -> None:
    entries = [(entry.stat().st_mtime, entry.stat().st_size, entry) for entry in place.glob("*-cache")]
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries, key=lambda one: one[0]):
        if total <= MOST_BYTES:
            break
        entry.unlink(missing_ok=True)
        total -= size
