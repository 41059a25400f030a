"""The common look: dark to light, distinct markers and line styles, no chart junk."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from widthwise.errors import InvalidInput
from widthwise.files import check_path, replacing
from widthwise.tensors import TENSORS

#: From dark to light, so that they differ in grey as well.
COLOURS = ("#1b3a57", "#b5532a", "#6fa36d", "#a3a3a3")
MARKERS = ("o", "s", "^", "D")
LINES = ("-", "--", "-.", ":")

#: How the variables are written.
SYMBOL = {name: f"${record.tex or name}$" for name, record in TENSORS.items()} | {"mean": "mean", "cov": "covariance"}

_SETTINGS: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
    "figure.dpi": 120,
    "font.size": 9,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "savefig.bbox": "tight",
    # the same file from the same numbers, and letters that look the same everywhere
    "svg.hashsalt": "widthwise",
    "svg.fonttype": "path",
}


@contextmanager
def look() -> Iterator[None]:
    """Draw with the library's settings and leave the user's alone."""
    with plt.rc_context(_SETTINGS):
        yield


_NARROW: ContextVar[bool] = ContextVar("narrow", default=False)


@contextmanager
def narrow() -> Iterator[None]:
    """Draw for a page that is as narrow as a telephone: panels below each other."""
    token = _NARROW.set(True)
    try:
        yield
    finally:
        _NARROW.reset(token)


def panels(count: int, across: int, width: float = 3.4, height: float = 2.8, **more: Any) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, at most so many in a row; what is left of the last row is empty."""
    if _NARROW.get():
        across, width = (1, min(width, 4.0)) if width > 3.0 else (2, min(width, 2.2))
    across = min(across, count)
    down = -(-count // across)
    figure, axes = plt.subplots(down, across, figsize=(width * across, height * down), squeeze=False, **more)
    flat = list(axes.flat)
    for axis in flat[count:]:
        axis.remove()
    return figure, flat[:count]


def style(number: int) -> dict[str, Any]:
    """Colour and line of the curve of that number; sixteen differ."""
    return {"color": COLOURS[number % 4], "linestyle": LINES[(number + number // 4) % 4]}


def marks(number: int) -> dict[str, Any]:
    """Colour and marker of the points of that number; sixteen differ."""
    return {"color": COLOURS[number % 4], "marker": MARKERS[(number + number // 4) % 4], "linestyle": "none"}


def lower_legend(figure: Figure, axis: Axes, across: int = 3, **more: Any) -> None:
    """The legend of an axis below the whole figure."""
    handles, labels = axis.get_legend_handles_labels()
    columns = 1 if _NARROW.get() and max(map(len, labels), default=0) > 12 else across
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, max(len(labels), 1)), **more)


def symbol(name: str) -> str:
    """A variable as mathematics."""
    return SYMBOL.get(name, f"${name}$" if len(name) == 1 else name)


def layer_ticks(axis: Axes, layers: Any) -> None:
    """Whole layers on the horizontal axis."""
    axis.set_xlabel("layer")
    if len(layers) <= 12:
        axis.set_xticks(layers)


def _check_figure(figure: Any) -> None:
    if not isinstance(figure, Figure):
        raise InvalidInput("figure", type(figure).__name__, "a figure of matplotlib")


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as .svg, .pdf or .png and close it; the same numbers give the same bytes.

    >>> import tempfile, widthwise as ww
    >>> from widthwise.plots import plot_flow
    >>> figure = plot_flow(ww.theory(ww.MLP([2, 8, 8, 1], "relu", C_W=2.0), [[0.5, 1.0]], order=0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_figure(figure, folder + "/flow.svg").read_text().startswith("<?xml")
    True
    """
    _check_figure(figure)
    target = check_path("path", path, "the path of a file that ends in .svg, .pdf or .png")
    known = figure.canvas.get_supported_filetypes()
    if target.suffix[1:] not in known:
        raise InvalidInput("path", f"'{target}'", f"a file that ends in one of {', '.join(known)}")
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(target.suffix, {})
    with look(), replacing(target) as part:
        figure.savefig(part, format=target.suffix[1:], dpi=160, metadata=dates)
    plt.close(figure)
    return target


def svg_text(figure: Figure) -> str:
    """The figure as SVG, and close it."""
    _check_figure(figure)
    text = io.StringIO()
    with look():
        figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()
