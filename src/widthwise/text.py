"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def text_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, left: bool = False) -> str:
    """Columns as wide as they need to be, numbers to four digits, a dash for None, aligned to the right or the left.

    >>> print(text_table(["name", "value"], [["a", 1.23456], ["long", 2]]))
    name  value
       a  1.235
    long      2
    """
    lines = [[str(cell) for cell in head]]
    for row in rows:
        lines.append([f"{cell:.4g}" if isinstance(cell, float) else "-" if cell is None else str(cell) for cell in row])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    place = str.ljust if left else str.rjust
    return "\n".join("  ".join(map(place, line, widths)).rstrip() for line in lines)
