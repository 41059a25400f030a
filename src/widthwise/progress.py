"""A progress bar that appears only when the work has taken a while."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

from widthwise.errors import InvalidInput


def _flag(show: object) -> bool:
    if not isinstance(show, bool):
        raise InvalidInput("progress", repr(show), "True, False, or None: a bar if standard error is a terminal")
    return show


class DelayedProgress:
    """Call it with (done, total) as often as you like; past `delay` seconds a bar with the time left is drawn.

    Nothing is drawn when standard error is not a terminal, unless `show` says so, nor while `silent` is set, which a
    program does for all its bars at once.
    """

    silent = False

    def __init__(self, description: str, show: bool | None = None, delay: float = 2.0):
        self.description, self.delay = description, delay
        self.wanted = sys.stderr.isatty() and not self.silent if show is None else _flag(show)
        self.started = time.monotonic()
        self.bar: Progress | None = None

    def __enter__(self) -> DelayedProgress:
        return self

    def __call__(self, done: int, total: int) -> None:
        if not self.wanted:
            return
        if self.bar is None:
            if time.monotonic() - self.started < self.delay:
                return
            # here, so that what draws no bar runs without rich
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task(self.description, total=total)
        self.bar.update(self.task, completed=done, total=total)

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()
