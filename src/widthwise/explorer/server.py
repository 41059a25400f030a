"""Serve the page. Everything it needs comes from this process: it works without any other network."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import matplotlib
import panel as pn
from bokeh.document import Document
from panel.io.resources import LOCAL_DIST

from widthwise.criticality.advice import advise
from widthwise.errors import WidthwiseError
from widthwise.explorer.page import Page
from widthwise.explorer.settings import ACTIVATIONS, Settings
from widthwise.explorer.theory import exact_density, pair_of, phases_of, theory_of
from widthwise.network.validation import check_integer

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
    **options: Any,
) -> None:
    """Serve the explorer until interrupted.

    Parameters
    ----------
    port : where to listen.
    address : the loopback interface unless given: nobody else can reach the page. The page starts computations for
        whoever opens it, so give another address only on a network that you trust.
    show : open a browser.
    warm_up : compile what every activation needs beforehand, in the background.
    origins : further HOST:PORT under which browsers reach the page, for another address than the loopback one.
    options : passed on to `panel.serve`.
    """
    port = check_integer("port", port, 1, 65535, "a port from 1 to 65535")
    matplotlib.use("Agg")
    if warm_up:
        threading.Thread(target=warm, daemon=True).start()
    pn.serve(
        {"/": visit},
        port=port,
        address=address,
        show=show,
        title="widthwise explorer",
        websocket_origin=[f"{host}:{port}" for host in dict.fromkeys(("127.0.0.1", "localhost", address))] + [*origins],
        **options,
    )


def visit() -> Any:
    """A new page for a new visitor, with the state of its link."""
    document = pn.state.curdoc or Document()
    # without it panel would fetch the style of what it draws later from its makers' site
    document.template_variables["dist_url"] = LOCAL_DIST
    query = {name: values[0].decode(errors="replace") for name, values in pn.state.session_args.items()}
    page = Page(query, document)
    pn.state.on_session_destroyed(lambda _: page.close())
    return page.view


def warm(activations: tuple[str, ...] = ACTIVATIONS) -> None:
    """Run through states of the page, so that what they need is compiled.

    >>> warm(("linear",))
    """
    for activation in activations:
        phases_of(activation)
        for change in _WARM_UP:
            try:
                found = theory_of(replace(Settings(), activation=activation, **change))
                pair_of(found)
                exact_density(found)
                advise(found.settings.network(), found.settings.inputs)
            except WidthwiseError:
                continue
