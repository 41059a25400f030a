"""Serve the page, one for every visitor. Nothing of it is shared with other visitors.

Everything it needs comes from this process: it works without any other network.
"""

from __future__ import annotations

import asyncio
import atexit
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import matplotlib
import panel as pn
from bokeh.document import Document
from bokeh.events import DocumentReady
from panel.io.resources import LOCAL_DIST
from panel.io.server import get_server

from widthwise.errors import InvalidInput, WidthwiseError
from widthwise.explorer.door import LARGEST_BODY, LARGEST_MESSAGE, guard
from widthwise.explorer.ensembles import functions_along
from widthwise.explorer.frame import FRAME, PageDesign
from widthwise.explorer.jobs import ANSWER_TURNS, HOUSEKEEPER, Latest, Share, explain
from widthwise.explorer.lab_tab import LabsTab
from widthwise.explorer.settings import PAGE_ACTIVATIONS, PRESETS, TABS, Settings
from widthwise.explorer.tabs import SamplingTab, TheoryTab, TrainingTab
from widthwise.explorer.theory import Phases, Theory, advice_of, exact_density, pair_of, phases_of, theory_of
from widthwise.explorer.widgets import EXPLORER_STYLE, SHRINKING, Fields, complaint, symbols, text_pane, wrapping
from widthwise.memory import share_free_memory
from widthwise.network import MLP, check_integer

_NETWORK = (
    "activation", "skip", "gamma", "C_W", "C_b", "depth", "width", "size_a", "size_b", "angle", "lambda_b", "lambda_W",
)  # fmt: skip
#: Settings of which the theory does not know.
_BESIDE = ("lab", "tab")
#: Milliseconds in which further movements of a slider are gathered into one answer.
_GATHER = 10
#: States that between them compile what the sliders of one activation need.
_WARM_UP = (
    {},
    {"C_W": 4.0, "C_b": 2.0, "size_a": 10.0, "size_b": 10.0, "width": 16},
    {"C_W": 3.0, "size_a": 4.0, "depth": 30, "angle": 10.0, "width": 256},
    {"C_W": 0.3, "C_b": 0.0, "depth": 30, "width": 1024},
    {"angle": 1.0},
    {"angle": 0.0, "size_b": 1.0, "depth": 30},
    {"angle": 179.0, "C_b": 1.0, "size_a": 0.05},
)


def serve(
    port: int = 5006,
    address: str = "127.0.0.1",
    show: bool = True,
    *,
    warm_up: bool = True,
    origins: tuple[str, ...] = (),
    visitors: int = 20,
    **options: Any,
) -> None:
    """Serve the explorer until interrupted.

    Parameters
    ----------
    port : where to listen; 0 takes a free port.
    address : the loopback interface unless given: nobody else can reach the page. The page starts computations for
        whoever opens it, so give another address only on a network that you trust.
    show : open a browser.
    warm_up : compile what every activation needs beforehand, in the background.
    origins : further HOST:PORT under which browsers reach the page, for another address than the loopback one. Requests
        under other names are refused.
    visitors : pages open at once; whoever comes then is told to try again later.
    options : passed on to `panel.io.server.get_server`.
    """
    port = check_integer("port", port, 0, 65535, "a port from 1 to 65535, or 0 for a free one")
    visitors = check_integer("visitors", visitors, 1, 1000, "a whole number of visitors from 1 to 1000")
    _check_hosts(address, origins)
    port = _listening_port(address, port)
    matplotlib.use("Agg")
    share_free_memory()
    if warm_up:
        ending = threading.Event()
        warming = threading.Thread(target=warm, kwargs={"ending": ending}, daemon=True)
        warming.start()
        # an interpreter that ends while it compiles ends in a crash
        atexit.register(lambda: (ending.set(), warming.join()))
    how: dict[str, Any] = {"port": port, "address": address, "show": show, "title": "widthwise explorer"}
    how |= {"websocket_max_message_size": LARGEST_MESSAGE, "http_server_kwargs": {"max_body_size": LARGEST_BODY}}
    allowed = [f"{host}:{port}" for host in dict.fromkeys(("127.0.0.1", "localhost", address))]
    server = get_server({"/": visit}, websocket_origin=[*allowed, *origins], verbose=True, **how, **options)
    guard(server._tornado, visitors)  # panel and bokeh offer no way to it before
    server.start()
    try:
        asyncio.get_running_loop()  # that of a notebook, which serves from now on
    except RuntimeError:
        server.io_loop.start()


def _check_hosts(address: str, origins: tuple[str, ...]) -> None:
    """Bokeh tells names from ports by the one colon between them, and so knows no addresses of IPv6."""
    hosts = [("address", address, "", "the name of this machine or an IPv4 address")]
    hosts += [("origins", origin, r"(:\d+)?", "HOST:PORT, the host by its name or IPv4 address") for origin in origins]
    for argument, host, port, expected in hosts:
        if not (isinstance(host, str) and re.fullmatch(rf"[^:\s]+{port}", host)):
            raise InvalidInput(argument, repr(host), expected, "Take 127.0.0.1 for this machine, 0.0.0.0 for all.")


def _listening_port(address: str, port: int) -> int:
    """The port, or a free one for 0; refused where nobody can listen."""
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((address, port))
            return tried.getsockname()[1]
    except OSError as error:
        raise InvalidInput(
            "address, port",
            f"{address}:{port}, where the server cannot listen ({error.strerror or error})",
            "an address of this machine and a port that is free",
            "Take another port; port 0 finds a free one.",
        ) from error


def visit() -> Any:
    """A new page for a new visitor, with the state of its link."""
    document = pn.state.curdoc or Document()
    # without it panel would fetch the style of what it draws later from its makers' site
    document.template_variables["dist_url"] = LOCAL_DIST
    document.template = FRAME
    query = {name: values[0].decode(errors="replace") for name, values in pn.state.session_args.items()}
    with pn.config.set(design=PageDesign):
        page = Page(query, document)
    pn.state.on_session_destroyed(lambda _: page.close())
    return page.view


def warm(activations: tuple[str, ...] = PAGE_ACTIVATIONS, ending: threading.Event | None = None) -> None:
    """Run through states of the page, so that what they need is compiled, until `ending` is set; visitors come first.

    >>> warm(("linear",))
    """
    for _ in ANSWER_TURNS.each(_warming(activations), Share(yields=True)):
        HOUSEKEEPER.tidy()
        if ending is not None and ending.is_set():
            return


def _warming(activations: tuple[str, ...]) -> Iterator[None]:
    """What visitors of every activation will ask, one part at a time."""
    parts = (pair_of, exact_density, lambda found: advice_of(found.settings))
    for activation in activations:
        phases_of(activation)
        yield
        for change in _WARM_UP:
            with suppress(WidthwiseError):
                found = theory_of(replace(Settings(), activation=activation, **change))
                yield
                for part in parts:
                    part(found)
                    yield


class Page:
    """The page of one visitor, for the query of its link."""

    def __init__(self, query: Mapping[str, str], document: Document):
        self.document, self._open, self._waiting = document, True, False
        # what is sent while a browser still fetches the page is dropped there
        self._early: list[Callable[[], None]] | None = []
        self._arrival = threading.Lock()
        document.on_event(DocumentReady, lambda _: self._arrived())
        self.problem = text_pane()
        self._latest = Latest()
        self.settings, problems = Settings.restored(query)
        if problems:
            self.problem.object = complaint("Part of the link is not valid. " + " ".join(problems))
        self.fields = Fields(_NETWORK, self.settings, self.change)
        self.theory = TheoryTab()
        self.link = text_pane(above=4)
        self.took = text_pane("<small>Computing the first curves …</small>")
        self.notice = text_pane()
        sampling = Fields(("networks", "seed"), self.settings, self.change)
        training = Fields(("data", "points", "algorithm", "trained"), self.settings, self.change)
        labs = Fields(("lab",), self.settings, self.change)
        self.groups = (self.fields, sampling, training, labs)
        share = Share()
        self.sampling = SamplingTab(sampling, lambda: self.settings, self.post, share)
        self.training = TrainingTab(training, lambda: self.settings, self.post, share)
        self.labs = LabsTab(labs, lambda: self.settings, self.post, share)
        self.view = self._layout()
        self.refresh()

    def change(self, name: str, value: Any) -> None:
        """A widget has a new value: take it over, or say what is wrong with it."""
        self._arrived()
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
        if name in _BESIDE:
            self.labs.choose(after.lab)
            self._say(after)
            return
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
            phases = phases_of(settings.activation, *settings.block)
            yield lambda: self._show(found, phases, begun)
            pair = pair_of(found)
            yield lambda: self.theory.show_pair(pair)
            yield lambda: self.sampling.preview(pair)
            if found.exploded is None and isinstance(found.net, MLP):
                exact = exact_density(found)
                yield lambda: self.theory.density.set("exact", found.z, exact)
            advice = advice_of(settings)
            yield lambda: self.theory.show_advice(advice)
            with suppress(WidthwiseError):  # what cannot be trained is said when a run is asked for
                functions = functions_along(settings)
                yield lambda: self.training.show_functions(functions)
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
        point = phases_of(self.settings.activation, *self.settings.block).point
        if point is None:
            where = "" if self.settings.block[0] < 1.0 else " with γ = 1"
            self.problem.object = complaint(f"{self.settings.activation} has no critical initialisation{where}.")
            return
        for name in ("C_W", "C_b"):
            self.change(name, getattr(point, name))

    def post(self, function: Callable[[], None]) -> None:
        """Have a function called by this page's own thread, once the browser has the page and as long as it is open."""
        with self._arrival:
            if self._early is not None:
                self._early.append(function)
            elif self._open:
                self.document.add_next_tick_callback(function)

    def _arrived(self) -> None:
        """The browser has the page: show what there is."""
        with self._arrival:
            early, self._early = self._early or [], None
        for function in early:
            self.post(function)

    def close(self) -> None:
        """The visitor has gone: stop what runs."""
        self._open = False
        self._latest.leave()
        self.sampling.close()
        self.training.close()
        self.labs.close()

    def _say(self, settings: Settings) -> None:
        """The link of a state, on the page and in the address bar."""
        query = settings.query
        self.link.object = f"<a href='{query}'>Link to this state</a>"
        if pn.state.location is not None:
            pn.state.location.search = query if query != "?" else ""

    def _layout(self) -> pn.Row:
        button = pn.widgets.Button(label="Go to the critical point", sizing_mode="stretch_width")
        button.on_click(lambda _: self.to_criticality())
        presets = ", ".join(f"<a href='{query}'>{name}</a>" for name, query in PRESETS.items())
        side = pn.Column(
            text_pane(f"Examples: {presets}", 4), *self.fields.rows, button, self.link, self.took,
            styles={"flex": "1 1 270px", "max-width": "420px"}, margin=0, css_classes=["controls"],
        )  # fmt: skip
        tabs = pn.Tabs(
            ("Theory", self.theory.view), ("Sampled networks", self.sampling.view),
            ("Trained networks", self.training.view), ("Labs", self.labs.view), sizing_mode="stretch_width",
            dynamic=True, styles=SHRINKING, active=TABS.index(self.settings.tab),
        )  # fmt: skip
        tabs.param.watch(lambda event: self.change("tab", TABS[event.new]), "active")
        main = pn.Column(
            self.problem, self.notice, tabs, symbols(), styles={"flex": "1000 1 330px", "min-width": "0"}, margin=0
        )
        return wrapping(side, main, stylesheets=[EXPLORER_STYLE])
