"""Serve the page. Everything it needs comes from this process: it works without any other network."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import Any

import matplotlib
import panel as pn
from bokeh.document import Document
from panel.io.resources import LOCAL_DIST

from widthwise.errors import InvalidInput, WidthwiseError
from widthwise.explorer.page import Page
from widthwise.explorer.settings import ACTIVATIONS, Settings
from widthwise.explorer.theory import advice_of, exact_density, pair_of, phases_of, theory_of
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
    port : where to listen; 0 takes a free port.
    address : the loopback interface unless given: nobody else can reach the page. The page starts computations for
        whoever opens it, so give another address only on a network that you trust.
    show : open a browser.
    warm_up : compile what every activation needs beforehand, in the background.
    origins : further HOST:PORT under which browsers reach the page, for another address than the loopback one.
    options : passed on to `panel.serve`.
    """
    port = check_integer("port", port, 0, 65535, "a port from 1 to 65535, or 0 for a free one")
    port = _listening_port(address, port)
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
                advice_of(found.settings)
            except WidthwiseError:
                continue
