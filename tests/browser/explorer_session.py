"""A server of the explorer and real headless Chromium: what the browser tests stand on."""

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from tempfile import TemporaryFile
from urllib.error import URLError
from urllib.request import urlopen

import pytest

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
#: Seconds for anything that may have to compile on a busy machine.
PATIENCE = 240
_PROGRAM = """
from widthwise.explorer import serve
serve(port={port}, show=False, warm_up={warm_up}, unused_session_lifetime_milliseconds=2000,
      check_unused_sessions_milliseconds=500)
"""


def chromium() -> str:
    """The path of Debian's Chromium; without it the test is skipped by name, or fails where CI=true."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        reason = "Chromium is not installed: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def running_server(warm_up: bool = False):
    """The explorer on a free loopback port, as (address, process)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with TemporaryFile("w+") as log:  # not a pipe: one that nobody reads would stop the server when it is full
        server = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(port=port, warm_up=warm_up)], stderr=log, text=True
        )
        try:
            address, end = f"http://127.0.0.1:{port}/", time.monotonic() + PATIENCE
            while True:
                assert server.poll() is None, (log.seek(0), log.read())[1]
                try:
                    urlopen(f"{address}static/js/bokeh.min.js", timeout=5).close()
                    break
                except (URLError, ConnectionError, TimeoutError):
                    assert time.monotonic() < end, "the explorer did not start"
                    time.sleep(0.2)
            yield address, server
        finally:
            server.terminate()
            server.wait(30)


class Visitor:
    """One page, with every request, console error and exception that it caused."""

    def __init__(self, browser, address: str, query: str = "", width: int = 1280, scheme: str = "light"):
        size = {"width": width, "height": 900 if width > 700 else 844}
        self.context = browser.new_context(viewport=size, color_scheme=scheme, accept_downloads=True)
        self.page = self.context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.requests, self.errors = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("websocket", lambda socket: self.requests.append(socket.url))
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(address + query)
        self.page.get_by_text("Theory in").wait_for()

    def data(self, name: str) -> dict[str, list[float]]:
        """The columns of a source of a chart, as the browser has them."""
        return self.page.evaluate(
            """name => {
                const found = [...Bokeh.documents[0]._all_models.values()].find(model => model.name === name);
                return Object.fromEntries(Object.entries(found.data).map(([key, value]) => [key, Array.from(value)]));
            }""",
            name,
        )

    def wait_for_data(self, name: str, condition: str) -> None:
        """Wait until a condition on `data`, in JavaScript, holds."""
        self.page.wait_for_function(
            f"""() => {{
                const found = [...Bokeh.documents[0]._all_models.values()].find(model => model.name === "{name}");
                if (!found) return false;
                const data = found.data;
                return {condition};
            }}"""
        )

    def type(self, label: str, text: str) -> None:
        self.box(label).fill(text)
        self.box(label).press("Enter")

    def box(self, label: str):
        """Where a number is typed."""
        return self.page.get_by_role("textbox", name=label)

    def button(self, name: str):
        return self.page.get_by_role("button", name=name, exact=True)

    def close(self) -> None:
        self.context.close()
