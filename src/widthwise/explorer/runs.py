"""A tab with a run: fields, start and stop, progress, and charts that fill while it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import panel as pn

from widthwise.errors import WidthwiseError
from widthwise.explorer.fields import Fields
from widthwise.explorer.jobs import Job
from widthwise.explorer.layout import complaint, message
from widthwise.explorer.settings import Settings

#: Seconds between two drawings of a run.
_INTERVAL = 0.3
Post = Callable[[Callable[[], None]], None]


class RunTab:
    """What sampling and training have in common; `total` names the setting with the number of networks.

    Subclasses say what a run yields (`items`) and show it (`draw`). `post` has a function called by the page's own
    thread.
    """

    total = ""
    verb = ""

    def __init__(self, fields: Fields, settings: Callable[[], Settings], post: Post):
        self.fields, self.settings, self.post = fields, settings, post
        self.job: Job | None = None
        self.started: Settings | None = None
        self._lock, self._unseen, self._asked, self._next = threading.Lock(), [], False, 0.0
        self._summary = ""
        self.start = pn.widgets.Button(label="Run", color="primary", width=100, margin=(26, 6, 4, 10))
        self.stop = pn.widgets.Button(label="Stop", disabled=True, width=100, margin=(26, 6, 4, 6))
        self.bar = pn.indicators.Progress(value=0, max=100, sizing_mode="stretch_width", margin=(8, 10))
        self.status = pn.pane.HTML("Not started.", sizing_mode="stretch_width", margin=(0, 10))
        self.problem = message()
        self.start.on_click(lambda _: self.begin())
        self.stop.on_click(lambda _: self.halt())
        boxes = [pn.Column(row, width=165, margin=0) for row in fields.rows]
        self.head = pn.Column(
            pn.FlexBox(*boxes, self.start, self.stop, sizing_mode="stretch_width"),
            self.bar, self.status, self.problem, sizing_mode="stretch_width",
        )  # fmt: skip

    def items(self, settings: Settings) -> Iterator[Any]:
        raise NotImplementedError

    def draw(self, item: Any) -> str:
        """Show an item; the number of networks in it, and a remark."""
        raise NotImplementedError

    def begin(self) -> None:
        """Start a run with the page's state."""
        settings = self.settings()
        self.problem.object = ""
        try:
            items = self.items(settings)
            self.started, self._summary = settings, ""
            self.job = Job(items, self._tell, self._fail, self._end)
        except WidthwiseError as error:
            self.problem.object = complaint(str(error))
            return
        self.start.disabled, self.stop.disabled = True, False
        self.bar.value, self.status.object = 0, "Compiling …"

    def halt(self) -> None:
        if self.job is not None:
            self.job.stop()
            self.status.object = "Stopping …"

    def close(self) -> None:
        """The visitor has gone."""
        if self.job is not None:
            self.job.stop()

    def _tell(self, item: Any) -> None:
        """From the job: keep the item, and have it shown unless the page is still busy with the one before."""
        with self._lock:
            self._unseen.append(item)
            due = not self._asked and time.monotonic() > self._next
            self._asked = self._asked or due
        if due:
            self.post(self._catch_up)

    def _catch_up(self) -> None:
        """Show what came since the last time: the newest item of each kind."""
        with self._lock:
            newest = {type(item): item for item in self._unseen}
            self._unseen.clear()
        for item in newest.values():
            self._show(item)
        with self._lock:
            self._asked, self._next = False, time.monotonic() + _INTERVAL

    def _show(self, item: Any) -> None:
        assert self.started is not None
        remark = self.draw(item)
        networks = getattr(item, "networks", 0)  # what comes before the first network has none
        wanted = getattr(self.started, self.total)
        self.bar.value = min(100, round(100 * networks / wanted))
        self._summary = f"{networks:,} of {wanted:,} networks {self.verb}. {remark}"
        self.status.object = self._summary

    def _fail(self, text: str) -> None:
        self.post(lambda: setattr(self.problem, "object", complaint(text)))

    def _end(self, stopped: bool) -> None:
        self.post(lambda: self._ended(stopped))

    def _ended(self, stopped: bool) -> None:
        self._catch_up()
        self.start.disabled, self.stop.disabled = False, True
        self.status.object = f"{'Stopped.' if stopped else 'Done.'} {self._summary}"
