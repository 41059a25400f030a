"""Report and documentation in real Chromium: axe-core finds nothing serious, light and dark, on a desk and on a telephone."""

import os
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from accessibility import axe, violations

import widthwise as ww
from widthwise.report import write_report
from widthwise.study import Data, Study

ROOT = Path(__file__).parent.parent
#: One page of each kind: words, formulas, code with output, tables, a lab, the interface, a notebook.
DOCS = ("", "theory/", "tutorials/command_line/", "labs/catapult/", "api/", "notebooks/start/", "gallery/", "book/")


class Silent(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for every request."""

    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    study = Study(
        ww.MLP([1, 8, 1], "tanh", C_b=0.1, C_W=1.5), Data([[1.0], [-0.5]], [0.5, -0.5], [[0.2]]),
        ww.GradientDescent(0.5, 4), networks=64, trained=16, seed=3,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(study, path)
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the documentation, built without running its code."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "WIDTHWISE_DOCS": "text"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def opened(browser):
    """Opens an address; what goes wrong in its console fails the test."""
    contexts, errors = [], []

    def look(address: str, width: int = 1280, scheme: str = "light"):
        contexts.append(browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address, wait_until="load", timeout=120_000)
        return page

    yield look
    for context in contexts:
        context.close()
    assert errors == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_has_no_serious_violation_and_is_no_wider_than_the_window(report, opened, scheme, width):
    script, page = axe(), opened(report.as_uri(), width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert violations(page, script) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_violations_are_found(report, opened):
    script, page = axe(), opened(report.as_uri())
    page.evaluate("document.querySelector('figure img').removeAttribute('alt'); document.body.style.color = '#ddd'")
    assert {one.split(":")[0] for one in violations(page, script)} == {"image-alt", "color-contrast"}


def test_the_report_and_its_figures_are_light_or_dark_as_the_system_or_the_switch_says(report, opened):
    def darkness(page) -> list[bool]:
        """Whether the page, and the corner of its first figure, are darker than half grey."""
        page.locator("figure img").first.scroll_into_view_if_needed()
        corner = page.locator("figure img").first.bounding_box() | {"width": 4, "height": 4}
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
        shot = page.screenshot(clip=corner)
        return [shade < 128, brightness(shot) < 128]

    page = opened(report.as_uri(), scheme="dark")
    assert darkness(page) == [True, True]
    page.get_by_label("light", exact=True).check()
    assert darkness(page) == [False, False]
    page.get_by_label("as the system").check()
    assert darkness(page) == [True, True]
    page = opened(report.as_uri())
    assert darkness(page) == [False, False]
    page.get_by_label("dark", exact=True).check()
    assert darkness(page) == [True, True]


def brightness(png: bytes) -> float:
    """Of a picture, from 0 to 255."""
    import io

    from matplotlib.image import imread

    return 255 * float(imread(io.BytesIO(png), format="png")[..., :3].mean())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", DOCS, ids=lambda name: name.strip("/") or "index")
def test_the_documentation_has_no_serious_violation_and_no_error_in_the_console(site, opened, page, scheme):
    script, shown = axe(), opened(site + page, scheme=scheme)
    assert violations(shown, script) == []


@pytest.mark.parametrize("page", DOCS, ids=lambda name: name.strip("/") or "index")
def test_the_documentation_is_no_wider_than_a_telephone(site, opened, page):
    assert opened(site + page, 390).evaluate("document.documentElement.scrollWidth") <= 390
