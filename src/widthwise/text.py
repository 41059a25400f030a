"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def text_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, left: bool | Collection[int] = False) -> str:
    """Columns as wide as they need to be, numbers to four digits, a dash for None, aligned to the right.

    `left` is True where all columns are aligned to the left, or the numbers of those that are.

    >>> print(text_table(["name", "value"], [["a", 1.23456], ["long", 2]]))
    name  value
       a  1.235
    long      2
    """
    lines = [[str(cell) for cell in head]]
    for row in rows:
        lines.append([f"{cell:.4g}" if isinstance(cell, float) else "-" if cell is None else str(cell) for cell in row])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    on_left = range(len(head)) if left is True else left or ()
    placed = []
    for line in lines:
        cells = zip(line, widths, range(len(head)), strict=True)
        placed.append([cell.ljust(width) if column in on_left else cell.rjust(width) for cell, width, column in cells])
    return "\n".join("  ".join(line).rstrip() for line in placed)
