"""Refusing requests that would not fit before anything is allocated, and forgetting compiled programs before they use
up the maps of memory that a process may have.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import jax

from widthwise.errors import TooLarge

#: Requests below this are not worth asking the system about.
_NO_MATTER = 1 << 20
#: Maps of memory from which on compiled programs are forgotten. Linux gives a process 65,530.
MOST_MAPS = 20_000
_MAPS = Path("/proc/self/maps")


def available_bytes() -> int:
    """Memory that can still be taken, the least that the system, its control group or limits of the process leave."""
    limits = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
    else:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    group = Path("/sys/fs/cgroup")
    try:
        ceiling = (group / "memory.max").read_text().strip()
        if ceiling != "max":
            limits.append(int(ceiling) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0, min([*limits, *_left_to_the_process()]))


def _left_to_the_process() -> list[int]:
    """What `ulimit -v` and `ulimit -d` leave, where they are set."""
    status = Path("/proc/self/status")
    if not status.exists():
        return []
    import resource  # which Windows lacks

    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    kinds = {"VmSize": resource.RLIMIT_AS, "VmData": resource.RLIMIT_DATA}
    limits = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    return [
        limit - 1024 * int(fields[name].split()[0])
        for name, limit in limits.items()
        if limit != resource.RLIM_INFINITY and name in fields
    ]


def require_memory(needed: int, what: str | Callable[[], str], remedy: str | Callable[[int], str]) -> None:
    """Raise `TooLarge` if `needed` bytes are not there, with a remedy, which may depend on how many there are."""
    if needed < _NO_MATTER:
        return
    limit = available_bytes()
    if needed > limit:
        what = what if isinstance(what, str) else what()
        got, expected = f"{what}, which needs {readable(needed)}", f"at most {readable(limit)}, what is available"
        raise TooLarge("memory", got, expected, remedy if isinstance(remedy, str) else remedy(limit))


def device_bytes() -> int | None:
    """Memory that can still be taken on the device that jax computes on; None where it does not tell."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0) if "bytes_limit" in stats else None


def require_device_memory(needed: int, what: str) -> None:
    """`require_memory` for the device that jax computes on."""
    limit = device_bytes()
    if limit is not None and needed > limit:
        got, expected = (
            f"{what}, which needs {readable(needed)}",
            f"at most {readable(limit)}, what the device has left",
        )
        raise TooLarge("device", got, expected, "Take fewer inputs, X2= for one rectangle at a time, or device=False.")


#: What a layer of a network for one input takes: its numbers, and the expectations of all tensors' rules.
_BYTES_OF_A_LAYER = 4096


def require_layers(depth: int) -> None:
    """Raise `TooLarge` if so many layers do not fit."""
    require_memory(
        _BYTES_OF_A_LAYER * depth,
        f"{depth} layers",
        lambda limit: f"What would fit: {limit // _BYTES_OF_A_LAYER} layers.",
    )


def readable(count: float) -> str:
    """>>> readable(3 * 2**30)
    '3.0 GiB'
    """
    count = float(min(count, 10**300))
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.1f} {unit}" if unit != "bytes" else f"{count:.0f} bytes"
        count /= 1024
    return f"{count:.1f} TiB" if count < 1e6 else f"{count:.0e} TiB"


def forget_programs(anyway: bool = False) -> bool:
    """Have jax forget all compiled programs if there are many, or anyway; whether it did. For processes that live long.

    Each takes several maps of memory, and jax ends in a segmentation fault when they are used up.
    """
    if not anyway and (not _MAPS.exists() or _MAPS.read_bytes().count(b"\n") <= MOST_MAPS):
        return False
    jax.clear_caches()
    return True


def resident_bytes() -> int:
    """Memory that this process holds now; 0 where the system does not tell."""
    held = Path("/proc/self/statm")
    return int(held.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if held.exists() else 0


def give_back_memory() -> None:
    """Have the C library return what is free to the system, where it can; it keeps it otherwise."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def share_free_memory() -> None:
    """Have all threads take memory from two places of the C library, where it can be told; each would keep its own."""
    arenas_at_most = -8
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(arenas_at_most, 2)
