"""Blocks of the page that carry no state: style, grid, messages, downloads, explanations."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from typing import Any

import panel as pn

STYLE = """
body { margin: 0; background: #ffffff; color: #1d2530; font-family: system-ui, sans-serif; }
.bk-root, :host { font-size: 14px; }
"""
#: Cells wrap: two beside each other on a desk, one on a telephone.
CELL = {"flex": "1 1 400px", "min-width": "0", "overflow": "hidden"}
_MESSAGE = (
    "<div role='alert' style='border-left:4px solid #c1652f;background:#fbeee6;padding:8px 12px;"
    "overflow-wrap:anywhere'>{}</div>"
)
SYMBOLS = {
    "C_W, C_b": "variances: weights have variance C_W/(width below), biases C_b",
    "λ_W, λ_b": "learning rates of weights (divided by the width below) and of biases",
    "L, n": "depth (number of weight layers) and width (neurons of a hidden layer)",
    "a, b": "two inputs x; their size is x·x/n₀, with n₀ the number of features",
    "z": "preactivation; at the last layer, the output of the network. It has no unit",
    "K": "kernel: the covariance of z over random initialisations, as the width goes to infinity",
    "Θ": "neural tangent kernel at infinite width: how fast training moves the output at one input for the other",
    "χ⊥, χ∥": "growth, in a layer, of a small difference of direction (and of a squared gradient), and of size",
    "G1, H1": "what finite width adds to the mean of the kernel and of the neural tangent kernel, times n",
    "V": "variance of a network's kernel from draw to draw, times n; the output has excess kurtosis 3V/(nK²)",
    "A, B": "variance of the neural tangent kernel, times n, in its two pairings; (A + 2B)/(nΘ²) for one output",
    "D, F": "covariance of the kernel with the neural tangent kernel, times n, in its two pairings",
    "±": "bars are one standard error",
}


def grid(*cells: Any) -> pn.FlexBox:
    """Cells that wrap with the width of the window."""
    boxes = [pn.Column(cell, styles=CELL, margin=(4, 6)) for cell in cells]
    return pn.FlexBox(*boxes, sizing_mode="stretch_width", align_items="flex-start", margin=0)


def message() -> pn.pane.HTML:
    """A place for what is wrong; empty at first."""
    return pn.pane.HTML("", sizing_mode="stretch_width", margin=(0, 10))


def complaint(text: str) -> str:
    """A message as HTML; empty for no text.

    >>> complaint("")
    ''
    >>> "&lt;script&gt;" in complaint("<script>")
    True
    """
    return _MESSAGE.format(html.escape(text)) if text else ""


def paragraphs(text: str) -> str:
    """Plain text as HTML paragraphs."""
    return "".join(f"<p style='margin:0 0 8px'>{html.escape(part)}</p>" for part in text.split("\n\n"))


def code_blocks(code: dict[str, str]) -> str:
    """Code by framework, folded away."""
    return "".join(
        f"<details><summary>{html.escape(name)} code</summary>"
        f"<pre style='overflow:auto;background:#f6f6f6;padding:8px;font-size:12px'>{html.escape(text)}</pre></details>"
        for name, text in code.items()
    )


def symbols() -> pn.pane.HTML:
    """What the letters mean."""
    rows = "".join(
        f"<tr><td style='padding:2px 12px 2px 0;white-space:nowrap;vertical-align:top'><b>{name}</b></td>"
        f"<td>{meaning}</td></tr>"
        for name, meaning in SYMBOLS.items()
    )
    body = f"<details open><summary><b>Symbols</b></summary><table>{rows}</table></details>"
    return pn.pane.HTML(body, sizing_mode="stretch_width", margin=(8, 10))


def download(label: str, filename: str, make: Callable[[], Any]) -> pn.widgets.FileDownload:
    """A button that makes its file when it is pressed; off until `allow`."""
    return pn.widgets.FileDownload(
        callback=make, filename=filename, label=label, width=165, margin=(4, 6), disabled=True
    )


def allow(buttons: Iterable[pn.widgets.FileDownload]) -> None:
    """There is something to download now."""
    for button in buttons:
        button.disabled = False
