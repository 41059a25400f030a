"""One visitor's page: its state, its widgets, its tabs. Nothing of it is shared with other visitors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import panel as pn
from bokeh.document import Document

from widthwise.errors import WidthwiseError
from widthwise.explorer.fields import Fields
from widthwise.explorer.jobs import Latest, explain
from widthwise.explorer.layout import STYLE, complaint, message, symbols
from widthwise.explorer.sampling_tab import SamplingTab
from widthwise.explorer.settings import Settings
from widthwise.explorer.theory import Phases, Theory, advice_of, exact_density, pair_of, phases_of, theory_of
from widthwise.explorer.theory_tab import TheoryTab
from widthwise.explorer.training_tab import TrainingTab

_NETWORK = ("activation", "C_W", "C_b", "depth", "width", "size_a", "size_b", "angle", "lambda_b", "lambda_W")
#: Milliseconds in which further movements of a slider are gathered into one answer.
_GATHER = 10


class Page:
    """The page of one visitor, for the query of its link."""

    def __init__(self, query: Mapping[str, str], document: Document):
        self.document, self._open, self._waiting = document, True, False
        self.problem = message()
        self._latest = Latest()
        self.settings, problems = Settings.restored(query)
        if problems:
            self.problem.object = complaint("Part of the link is not valid. " + " ".join(problems))
        self.fields = Fields(_NETWORK, self.settings, self.change)
        self.theory = TheoryTab()
        self.link = pn.pane.HTML("", sizing_mode="stretch_width", margin=(4, 10))
        self.took = pn.pane.HTML(
            "<small>Computing the first curves …</small>", sizing_mode="stretch_width", margin=(0, 10)
        )
        self.notice = message()
        sampling = Fields(("networks", "seed"), self.settings, self.change)
        training = Fields(("data", "points", "algorithm", "trained"), self.settings, self.change)
        self.groups = (self.fields, sampling, training)
        self.sampling = SamplingTab(sampling, lambda: self.settings, self.post)
        self.training = TrainingTab(training, lambda: self.settings, self.post)
        self.view = self._layout()
        self.refresh()

    def change(self, name: str, value: Any) -> None:
        """A widget has a new value: take it over, or say what is wrong with it."""
        try:
            after = self.settings.changed(name, value)
        except WidthwiseError as error:
            self.problem.object = complaint(str(error))
            return
        self.problem.object = ""
        if after == self.settings:
            return
        self.settings = after
        for group in self.groups:
            group.show(after)
        if not self._waiting:
            self._waiting = True
            self.document.add_timeout_callback(self.refresh, _GATHER)

    def refresh(self) -> None:
        """Ask for everything that follows from the state."""
        self._waiting = False
        settings, begun = self.settings, time.perf_counter()
        self._say(settings)
        self._latest.ask(lambda: self._answers(settings, begun), lambda show: self.post(show))

    def _answers(self, settings: Settings, begun: float) -> Iterator[Callable[[], None]]:
        """What there is to show, first the curves, then the slower parts; each as a function that shows it."""
        try:
            found = theory_of(settings)
            phases = phases_of(settings.activation)
            yield lambda: self._show(found, phases, begun)
            pair = pair_of(found)
            yield lambda: self.theory.show_pair(pair)
            if found.exploded is None:
                exact = exact_density(found)
                yield lambda: self.theory.show_exact(found, exact)
            advice = advice_of(settings)
            yield lambda: self.theory.show_advice(advice)
        except Exception as error:
            text = complaint(explain(error))
            yield lambda: setattr(self.problem, "object", text)

    def _show(self, found: Theory, phases: Phases, begun: float) -> None:
        self.theory.show(found, phases)
        self.notice.object = "" if found.exploded is None else complaint(
            f"The kernel explodes: beyond 10,000 at layer {found.exploded}. Curves end before it, and the output has "
            "no density to show. Take a smaller C_W or fewer layers."
        )  # fmt: skip
        self.took.object = f"<small>Theory in {1e3 * (time.perf_counter() - begun):.0f} ms</small>"

    def to_criticality(self) -> None:
        """Set C_W and C_b to the critical point of the activation."""
        point = phases_of(self.settings.activation).point
        if point is None:
            self.problem.object = complaint(f"{self.settings.activation} has no critical initialisation.")
            return
        for name in ("C_W", "C_b"):
            self.change(name, getattr(point, name))

    def post(self, function: Callable[[], None]) -> None:
        """Have a function called by this page's own thread, as long as the page is open."""
        if self._open:
            self.document.add_next_tick_callback(function)

    def close(self) -> None:
        """The visitor has gone: stop what runs."""
        self._open = False
        self._latest.leave()
        self.sampling.close()
        self.training.close()

    def _say(self, settings: Settings) -> None:
        """The link of a state, on the page and in the address bar."""
        query = settings.query
        self.link.object = f"<a href='{query}'>Link to this state</a>"
        if pn.state.location is not None:
            pn.state.location.search = query if query != "?" else ""

    def _layout(self) -> pn.FlexBox:
        button = pn.widgets.Button(label="Go to the critical point", sizing_mode="stretch_width")
        button.on_click(lambda _: self.to_criticality())
        side = pn.Column(
            pn.pane.HTML("<h2 style='margin:6px 0'>widthwise explorer</h2>", margin=(0, 10)),
            *self.fields.rows, button, self.link, self.took,
            styles={"flex": "1 1 270px", "max-width": "420px"}, margin=0,
        )  # fmt: skip
        tabs = pn.Tabs(
            ("Theory", self.theory.view), ("Sampled networks", self.sampling.view),
            ("Trained networks", self.training.view), sizing_mode="stretch_width", dynamic=True,
        )  # fmt: skip
        main = pn.Column(
            self.problem, self.notice, tabs, symbols(), styles={"flex": "1000 1 330px", "min-width": "0"}, margin=0
        )
        return pn.FlexBox(side, main, sizing_mode="stretch_width", align_items="flex-start", stylesheets=[STYLE])
