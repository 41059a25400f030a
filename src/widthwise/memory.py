"""How much memory there is, and refusing requests that would not fit before anything is allocated."""

from __future__ import annotations

import os
from pathlib import Path

from widthwise.errors import TooLarge

#: Requests below this are not worth asking the system about.
_NO_MATTER = 1 << 20


def available_bytes() -> int:
    """Memory that can still be taken, the smaller of what the system and its control group leave."""
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
    return max(0, min(limits))


def require_memory(needed: int, what: str, remedy: str) -> None:
    """Raise `TooLarge` if `needed` bytes are not there."""
    if needed < _NO_MATTER:
        return
    limit = available_bytes()
    if needed > limit:
        raise TooLarge(
            "memory", f"{what}, which needs {readable(needed)}", f"at most {readable(limit)}, what is available", remedy
        )


def readable(count: float) -> str:
    """>>> readable(3 * 2**30)
    '3.0 GiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.1f} {unit}" if unit != "bytes" else f"{count:.0f} bytes"
        count /= 1024
    return f"{count:.1f} TiB"
