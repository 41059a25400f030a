"""The common look: large type, colours that the colour-blind tell apart, distinct markers and lines, light and dark."""

from __future__ import annotations

import io
import os
import threading
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

#: Apart for every kind of colour vision (a test simulates them); with lines and markers, in grey too.
COLOURS = ("#0b4f8a", "#d0560a", "#2fb3a3", "#4a0f3c")
INK, PAPER = "#1f2328", "#ffffff"
#: Pale areas behind curves: ordered, critical, chaotic, divergent phases.
AREA_COLOURS = ("#dfeaf4", "#fffffe", "#f8dfcd", "#d2d2d6")
#: What replaces them on a dark page.
DARK = {
    **dict(zip(COLOURS, ("#7cc0ff", "#f0843c", "#f2e14c", "#9f6cff"), strict=True)),
    **dict(zip(AREA_COLOURS, ("#22354a", "#1b1f25", "#4a3020", "#45454b"), strict=True)),
    INK: "#e6e8eb",
    "#000000": "#e7e9ec",
    PAPER: "#1b1f24",
}
MARKERS = ("o", "s", "^", "D")
LINES = ("-", "--", "-.", ":")

#: How the variables are written.
SYMBOL = {name: f"${record.tex or name}$" for name, record in TENSORS.items()} | {"mean": "mean", "cov": "covariance"}

_SETTINGS: Any = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": 12,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12.5,
    "figure.constrained_layout.use": True,
    "figure.dpi": 120,
    "figure.facecolor": PAPER,
    "figure.labelsize": 12,
    "figure.titlesize": 11.5,
    "font.size": 11.5,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "legend.title_fontsize": 11,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.5,
    "savefig.bbox": "tight",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    # the same file from the same numbers, and letters that look the same everywhere
    "svg.hashsalt": "widthwise",
    "svg.fonttype": "path",
}


_SETTINGS_IN_USE = threading.RLock()


@contextmanager
def look() -> Iterator[None]:
    """Draw with the library's settings and leave the user's alone; one thread at a time, as they are matplotlib's."""
    with _SETTINGS_IN_USE, plt.rc_context(_SETTINGS):
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


def panels(count: int, across: int, width: float = 4.2, height: float = 3.3, **more: Any) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, at most so many in a row; what is left of the last row is empty."""
    if _NARROW.get():
        across, width = (1, min(width, 4.4)) if width > 3.6 else (2, min(width, 2.6))
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


def web_svg(figure: Figure) -> str:
    """The figure as SVG for a page, and close it: its colours follow the reader's choice of light or dark."""
    return light_or_dark(svg_text(figure))


def light_or_dark(text: str) -> str:
    """An SVG in the colours of the look, which become those of a dark page where the reader has one.

    As an image it follows the `color-scheme` of the page around it. Inside a page its colours are variables of the
    page, `--ww-1f2328` for ink, which the page may set.
    """
    dark = "".join(f"--ww-{colour[1:]}:{other};" for colour, other in DARK.items())
    rule = f"<style>@media (prefers-color-scheme: dark){{:root{{{dark}}}}}</style>"
    for colour in DARK:
        text = text.replace(f": {colour}", f": var(--ww-{colour[1:]}, {colour})")
    return text.replace("<defs>", rule + "<defs>", 1)
