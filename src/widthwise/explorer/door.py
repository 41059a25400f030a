"""Limits before the page: names that the server answers to, links, visitors, messages, and what browsers may load."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from bokeh.server.tornado import BokehTornado
from bokeh.server.util import check_allowlist
from bokeh.util.token import get_session_id
from panel.io.server import WSHandler
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.routing import Matcher, Rule
from tornado.web import OutputTransform, RequestHandler

from widthwise.errors import InvalidInput
from widthwise.explorer.settings import CONTROLS, LONGEST_VALUE
from widthwise.explorer.widgets import complaint

#: Bytes of one message from a browser, and of the body of a request, which has none.
LARGEST_MESSAGE, LARGEST_BODY = 256 * 1024, 64 * 1024
#: Fragments a second from one browser, of which a message has three or more; a slider that is dragged sends up to 200.
MOST_FRAGMENTS = 400
#: Connections of one page: the one in use and, after a broken line, its successor.
_MOST_CONNECTIONS = 2
#: Names in a query that bokeh and panel would obey.
_OF_THE_SERVER = ("bokeh-", "theme")
#: Styles are set in place by bokeh and panel; scripts are files of the server, or those of the page itself, by nonce.
_POLICY = (
    "default-src 'none'; script-src 'self'{}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def guard(app: BokehTornado, visitors: int) -> None:
    """Put the limits of this module before a server that has not started."""
    app.default_router.rules.insert(0, Rule(Door(app, visitors), Refused))
    app.add_transform(PageHeaders)
    for rule in app.wildcard_router.rules:
        if rule.target is WSHandler:
            rule.target = PacedSocket


class Door(Matcher):
    """Matches the requests that are refused, with the status and the sentence of the answer."""

    def __init__(self, app: BokehTornado, visitors: int):
        self.app, self.visitors = app, visitors

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        reason = self._reason(request)
        return None if reason is None else {"target_kwargs": dict(zip(("status", "text"), reason, strict=True))}

    def _reason(self, request: HTTPServerRequest) -> tuple[int, str] | None:
        # else a page elsewhere, whose name is made to lead to this machine, could read along
        if not check_allowlist(request.host.lower(), list(self.app.websocket_origins)):
            return 403, "This server does not answer under that name; see origins= of widthwise.explorer.serve."
        place = request.path.removeprefix(self.app.prefix).strip("/")
        if place in ("autoload.js", "metadata"):
            return 403, "This page cannot be part of another one."
        if place not in ("", "ws"):
            return None
        problem = query_problem(request.arguments)
        if problem is not None:
            return 400, f"The link is not valid. {problem}"
        # without the protocol that a page names bokeh fills the log with a traceback
        if place == "ws" and request.headers.get("Sec-WebSocket-Protocol", "").partition(",")[0].strip() != "bokeh":
            return 400, "This is no connection of a page of this server."
        if not self._has_room(request.headers if place == "ws" else HTTPHeaders()):
            return 503, f"All {self.visitors} places of this server are taken. Try again in a few minutes."
        return None

    def _has_room(self, headers: HTTPHeaders) -> bool:
        """Room for another visitor, or for the connection of a page that is there already."""
        sessions = self.app.get_sessions("/")
        if "Sec-WebSocket-Protocol" in headers:
            try:
                known = get_session_id(headers["Sec-WebSocket-Protocol"].rsplit(",", 1)[-1].strip())
            except ValueError:
                return False
            for session in sessions:
                if session.id == known:
                    return session.connection_count < _MOST_CONNECTIONS
        return len(sessions) < self.visitors


def query_problem(arguments: dict[str, list[bytes]]) -> InvalidInput | None:
    """What keeps the query of a link from being read at all; single values are the page's to judge.

    >>> query_problem({"C_W": [b"1.5"], "colour": [b"red"]})
    >>> print(query_problem({"seed": [b"9" * 5000]}))
    seed: got a value of 5,000 bytes; expected at most 40.
    >>> print(query_problem({"seed": [b"1", b"2"]}))
    seed: got 2 values; expected one.
    """
    if len(arguments) > len(CONTROLS):
        return InvalidInput("link", f"{len(arguments)} names", f"at most {len(CONTROLS)}")
    for name, values in arguments.items():
        shown, size = name[:LONGEST_VALUE], max(map(len, values))
        if name != shown:
            return InvalidInput("link", f"a name of {len(name):,} characters", f"at most {LONGEST_VALUE}")
        if name.startswith(_OF_THE_SERVER):
            return InvalidInput("link", repr(name), "one of " + ", ".join(CONTROLS))
        if len(values) > 1:
            return InvalidInput(name, f"{len(values)} values", "one")
        if size > LONGEST_VALUE:
            return InvalidInput(name, f"a value of {size:,} bytes", f"at most {LONGEST_VALUE}")
        try:
            values[0].decode()
        except UnicodeDecodeError:
            return InvalidInput(name, "bytes that are not UTF-8", "text")
    return None


class Refused(RequestHandler):
    """One sentence instead of what was asked for, by any method."""

    def initialize(self, status: int, text: str) -> None:
        self.status, self.text = status, text

    def prepare(self) -> None:
        self.set_status(self.status)
        self.finish(
            "<!DOCTYPE html><html lang='en'><meta charset='utf-8'><title>widthwise explorer</title>"
            f"<body style='font-family:system-ui,sans-serif'>{complaint(self.text)}</body></html>"
        )


class PageHeaders(OutputTransform):
    """What a browser may load and tell others, in every answer."""

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        source = ""
        if headers.get("Content-Type", "").startswith("text/html"):
            nonce = secrets.token_urlsafe(16)
            # no text of a visitor is in it: that comes later, by the websocket
            chunk = chunk.replace(b"<script", f'<script nonce="{nonce}"'.encode())
            headers["Content-Length"], source = str(len(chunk)), f" 'nonce-{nonce}'"
        headers["Content-Security-Policy"] = _POLICY.format(source)
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "no-referrer"
        return status_code, headers, chunk


class PacedSocket(WSHandler):
    """Reads at most `MOST_FRAGMENTS` a second; a browser that sends more is read later, and others notice nothing."""

    _due = 0.0

    async def on_message(self, fragment: str | bytes) -> None:
        now = time.monotonic()
        # a second's worth may come at once
        self._due = max(self._due, now - 1.0) + 1.0 / MOST_FRAGMENTS
        if self._due > now:
            await asyncio.sleep(self._due - now)
        await super().on_message(fragment)
