"""Pictures of every page and tab, at 1280 and 390 pixels, light and dark: `python docs_tools/screens.py SITE [PART …]`.

SITE is the built documentation; parts are explorer, report and docs. The first screen of each tab of the explorer, of
the report and of some pages is kept on its own in docs/figures/screens, all pages of the documentation on sheets.
What is wider than its window, or printed in the console of the browser as an error, is listed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from explorer_session import ARGUMENTS, Visitor, chromium, running_server

TARGET = ROOT / "docs" / "figures" / "screens"
SIZES, SCHEMES = {1280: 900, 390: 844}, ("light", "dark")
#: One page of each kind, kept on its own.
KEPT = {
    "home": "", "theory": "theory", "tutorial": "tutorials/finite_width", "lab": "labs/catapult", "api": "api",
    "gallery": "gallery",
}  # fmt: skip
#: Pages beside each other on a sheet, and their width there.
_COLUMNS, _SHEET_WIDTH = 8, 260


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        pass


def keep(picture: bytes | Image.Image, name: str, quality: int = 50) -> None:
    image = Image.open(BytesIO(picture)) if isinstance(picture, bytes) else picture
    image.convert("RGB").save(TARGET / f"{name}.webp", quality=quality, method=6)


def sheet(pictures: list[bytes]) -> Image.Image:
    """Pictures of one size beside and below each other."""
    images = [Image.open(BytesIO(picture)).convert("RGB") for picture in pictures]
    height = round(_SHEET_WIDTH * images[0].height / images[0].width)
    rows = -(-len(images) // _COLUMNS)
    made = Image.new("RGB", (_COLUMNS * _SHEET_WIDTH, rows * height), "#888888")
    for k, image in enumerate(images):
        made.paste(image.resize((_SHEET_WIDTH, height)), (k % _COLUMNS * _SHEET_WIDTH, k // _COLUMNS * height))
    return made


@contextmanager
def opened(browser: Browser, width: int, scheme: Any) -> Iterator[Page]:
    """A page that tells errors, and at its end whether it was wider than its window."""
    context = browser.new_context(viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme)
    page = context.new_page()
    page.on("console", lambda line: print(page.url, line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: print(page.url, error))
    yield page
    context.close()


def look(page: Page, address: str) -> bytes:
    page.goto(address, wait_until="load", timeout=120_000)
    page.wait_for_timeout(200)
    if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
        print(address, "is wider than its window")
    return page.screenshot()


def documentation(browser: Browser, site: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/"
    pages = sorted(str(file.parent.relative_to(site)).removeprefix(".") for file in site.rglob("index.html"))
    for width in SIZES:
        for scheme in SCHEMES:
            with opened(browser, width, scheme) as page:
                shots = {name: look(page, f"{base}{name}/" if name else base) for name in pages}
            keep(sheet(list(shots.values())), f"docs-all-{width}-{scheme}", 40)
            for short, name in KEPT.items():
                keep(shots[name], f"docs-{short}-{width}-{scheme}")
    server.shutdown()


def report(browser: Browser) -> None:
    from widthwise.report import write_report
    from widthwise.study import Study, default_study

    before: Study = default_study()
    with tempfile.TemporaryDirectory() as folder:
        write_report(before, Path(folder) / "report.html")
        for width in SIZES:
            for scheme in SCHEMES:
                with opened(browser, width, scheme) as page:
                    keep(look(page, (Path(folder) / "report.html").as_uri()), f"report-{width}-{scheme}")


def explorer(browser: Browser) -> None:
    with running_server() as (address, _):
        for tab in ("theory", "sampled", "trained", "labs"):
            more = "&lab=marchenko-pastur" if tab == "labs" else ""
            for width in SIZES:
                for scheme in SCHEMES:
                    visitor = Visitor(browser, address, f"?tab={tab}{more}", width, scheme)
                    if tab != "theory":
                        visitor.button("Run").click()
                        # a lab that has run already is there without a run
                        visitor.page.get_by_text("verdict:" if tab == "labs" else "Done.").first.wait_for()
                    visitor.page.wait_for_timeout(1500)
                    keep(visitor.page.screenshot(), f"explorer-{tab}-{width}-{scheme}")
                    print(*visitor.errors, sep="\n", end="")
                    visitor.close()


if __name__ == "__main__":
    parts = sys.argv[2:] or ["explorer", "report", "docs"]
    with sync_playwright() as playwright:
        chromium_browser = playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        if "docs" in parts:
            documentation(chromium_browser, Path(sys.argv[1]))
        if "report" in parts:
            report(chromium_browser)
        if "explorer" in parts:
            explorer(chromium_browser)
        chromium_browser.close()
