"""The page: sections in order, and the study inside it from which the page can be made again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from html import escape
from pathlib import Path

from widthwise.errors import InvalidInput
from widthwise.report.findings import Findings, find
from widthwise.report.html import STYLE
from widthwise.report.method import method
from widthwise.report.sections import criticality, finite_width, head, kernels, measurement, network, training
from widthwise.study import Study
from widthwise.version import __version__

_SECTIONS = (
    ("network", "The network and the data", network),
    ("criticality", "Criticality and advice", criticality),
    ("kernels", "Kernels", kernels),
    ("finite-width", "What the finite width changes", finite_width),
    ("training", "After training", training),
    ("measurement", "Theory against measurement", measurement),
    ("method", "How each number was obtained", method),
)
_STUDY = re.compile(r"<script type=\"application/json\" id=\"widthwise-study\">(.*?)</script>", re.S)

_SLIM = "<p class='slim'>Tables wider than this page scroll sideways; a shadow shows where there is more.</p>"


def write_report(
    study: Study, path: str | os.PathLike[str], tell: Callable[[str], None] = lambda text: None
) -> Findings:
    """Compute a study and write its page. The same study gives the same file; the findings are returned.

    >>> import tempfile
    >>> from widthwise.network import MLP
    >>> from widthwise.study import Data
    >>> small = Study(MLP([1, 4, 1], "step"), Data([[1.0]]), networks=0, trained=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_report(small, folder + "/report.html")
    ...     study_of(folder + "/report.html").to_json() == small.to_json()
    True
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InvalidInput("path", f"'{target}'", f"an existing folder '{target.parent}'", "Create it first.")
    found = find(study, tell)
    tell("report: figures")
    target.write_text(page(found), encoding="utf-8")
    return found


def page(found: Findings) -> str:
    """The page as one string."""
    links = "".join(f"<a href='#{key}'>{escape(title)}</a>" for key, title, _ in _SECTIONS)
    body = "".join(
        f"<section id='{key}'><h2>{escape(title)}</h2>{make(found)}</section>" for key, title, make in _SECTIONS
    )
    # "<" would let a string inside the data end the script
    data = json.dumps({"version": __version__, "study": found.study.to_dict()}).replace("<", "\\u003c")
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>widthwise report</title><style>{STYLE}</style></head><body>"
        f"{head(found)}<nav aria-label='sections'>{links}</nav>{_SLIM}{body}"
        f'<script type="application/json" id="widthwise-study">{data}</script></body></html>\n'
    )


def study_of(path: str | os.PathLike[str]) -> Study:
    """The study inside a report."""
    source = Path(path)
    if not source.is_file():
        raise InvalidInput("report", f"'{source}', which is not there", "an existing report")
    found = _STUDY.search(source.read_text(encoding="utf-8", errors="replace"))
    if found is None:
        raise InvalidInput("report", f"'{source}' without a study inside", "a page that widthwise report wrote")
    try:
        return Study.from_dict(json.loads(found.group(1))["study"])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidInput("report", f"'{source}', whose study is damaged", "a page as it was written") from error
