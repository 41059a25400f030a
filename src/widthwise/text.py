"""Tables as plain text, and results of single numbers as tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

#: Columns of a terminal.
TERMINAL = 80


def columns_that_fit(widths: Sequence[int], keys: int = 1, limit: int = TERMINAL) -> list[list[int]]:
    """The columns of a table in groups that are no wider than a terminal, each beginning with the first `keys`.

    >>> columns_that_fit([10, 40, 40, 20])
    [[0, 1], [0, 2, 3]]
    """
    groups = [list(range(keys))]
    for column in range(keys, len(widths)):
        if sum(widths[i] for i in groups[-1]) + widths[column] > limit and len(groups[-1]) > keys:
            groups.append(list(range(keys)))
        groups[-1].append(column)
    return groups


def text_table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    left: bool | Collection[int] = False,
    limit: int | None = TERMINAL,
) -> str:
    """Columns as wide as they need to be, numbers to four digits, a dash for None, aligned to the right.

    `left` is True where all columns are aligned to the left, or the numbers of those that are. A table wider than
    `limit` is written in parts, each with the first column.

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
    groups = [list(range(len(head)))] if limit is None else columns_that_fit([w + 2 for w in widths], 1, limit + 2)
    parts = ["\n".join("  ".join(line[i] for i in group).rstrip() for line in placed) for group in groups]
    return "\n\n".join(parts)


class NumbersTable:
    """A dataclass whose numbers and words are a table in a notebook, and a row for pandas."""

    def numbers(self) -> dict[str, Any]:
        """What the table shows, by name: the fields that are single numbers or words."""
        names = (field.name for field in fields(self) if not field.name.startswith("_"))  # pyright: ignore[reportArgumentType]
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if isinstance(value, str | int | float | None)}

    def _repr_html_(self) -> str:
        cells = {k: f"{value:.6g}" if isinstance(value, float) else str(value) for k, value in self.numbers().items()}
        rows = "".join(f"<tr><th scope='row'>{name}</th><td>{escape(cell)}</td></tr>" for name, cell in cells.items())
        return f"<table><caption>{type(self).__name__}</caption><tbody>{rows}</tbody></table>"

    def to_dataframe(self) -> pd.DataFrame:
        """One row for pandas.

        >>> from widthwise.criticality.critical import critical
        >>> critical("relu").to_dataframe()["C_W"].tolist()
        [2.0]
        """
        import pandas

        return pandas.DataFrame([self.numbers()])
