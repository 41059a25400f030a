"""The common look: dark to light, distinct markers, no chart junk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt

COLOURS = ("#1b3a57", "#c1652f", "#5b8c5a", "#8a8a8a")
MARKERS = ("o", "s", "^", "D")
LINES = ("-", "--", "-.", ":")

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
    "lines.linewidth": 1.4,
    "savefig.bbox": "tight",
    "svg.fonttype": "none",
}


@contextmanager
def look() -> Iterator[None]:
    """Draw with the library's settings and leave the user's alone."""
    with plt.rc_context(_SETTINGS):
        yield
