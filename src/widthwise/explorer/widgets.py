"""Blocks of the page: grid, messages, explanations, controls and files to download."""

from __future__ import annotations

import html
import io
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import panel as pn
import xarray as xr

from widthwise.explorer.settings import CONTROLS, Settings
from widthwise.results.store import save

EXPLORER_STYLE = """
.bk-root, :host { font-size: 14px; }
@media (max-width: 700px) { .controls { order: 2; } }
"""
#: Panel would have a row as wide as its cells together, and what is around it too.
SHRINKING = {"min-width": "0"}
#: Cells wrap: two beside each other on a desk, one on a telephone.
_CELL = {"flex": "1 1 400px", "min-width": "0", "overflow": "hidden"}
_MESSAGE = (
    "<div role='alert' style='border-left:4px solid #c1652f;background:var(--page-warning,#fbeee6);padding:8px 12px;"
    "overflow-wrap:anywhere'>{}</div>"
)
_MEANINGS = {
    "C_W, C_b": "variances: weights have variance C_W/(width below), biases C_b",
    "λ_W, λ_b": "learning rates of weights (divided by the width below) and of biases",
    "L, n": "depth (number of weight layers) and width (neurons of a hidden layer)",
    "a, b": "two inputs x; their size is x·x/n₀, with n₀ the number of features",
    "z": "preactivation; at the last layer, the output of the network",
    "K": "kernel: the covariance of z over random initialisations, as the width goes to infinity",
    "Θ": "neural tangent kernel at infinite width: how much a gradient step at one input changes the output at another",
    "χ⊥, χ∥": "factors by which a layer multiplies small differences of direction (and squared gradients), and of size",
    "G1, H1": "what finite width adds to the mean of the kernel and of the neural tangent kernel, times n",
    "V": "variance of a network's kernel from draw to draw, times n; the output has excess kurtosis 3V/(nK²)",
    "A, B": "variance of the neural tangent kernel, times n, in its two pairings; (A + 2B)/(nΘ²) for one output",
    "D, F": "covariance of the kernel with the neural tangent kernel, times n, in its two pairings",
    "±": "bars are one standard error",
}
#: Controls that get no slider: their range is too large for one.
_TYPED_ONLY = ("networks", "seed", "trained")


def wrapping(*cells: Any, **options: Any) -> pn.Row:
    """Cells beside each other as far as there is room. `panel.FlexBox` would have browsers run text as a program."""
    styles = SHRINKING | {"flex-flow": "row wrap", "align-items": "flex-start"}
    return pn.Row(*cells, sizing_mode="stretch_width", styles=styles, margin=0, **options)


def stacked(*cells: Any) -> pn.Column:
    """Cells below each other, as wide as there is room."""
    return pn.Column(*cells, sizing_mode="stretch_width", styles=SHRINKING)


def grid(*cells: Any) -> pn.Row:
    """Cells that wrap with the width of the window."""
    return wrapping(*(pn.Column(cell, styles=_CELL, margin=(4, 6)) for cell in cells))


def text_pane(text: str = "", above: int = 0) -> pn.pane.HTML:
    """A place for words, as wide as there is room."""
    return pn.pane.HTML(text, sizing_mode="stretch_width", margin=(above, 10))


def complaint(text: str) -> str:
    """A message as HTML; empty for no text.

    >>> complaint("")
    ''
    >>> "&lt;script&gt;" in complaint("<script>")
    True
    """
    return _MESSAGE.format(html.escape(text)) if text else ""


def advice_html(text: str, code: dict[str, str]) -> str:
    """Plain text as paragraphs, and code by framework, folded away."""
    paragraphs = [f"<p style='margin:0 0 8px'>{html.escape(part)}</p>" for part in text.split("\n\n")]
    blocks = [
        f"<details><summary>{html.escape(name)} code</summary>"
        "<pre style='overflow:auto;background:var(--page-band);padding:8px;font-size:12px' tabindex='0'>"
        f"{html.escape(lines)}</pre></details>"
        for name, lines in code.items()
    ]
    return "".join(paragraphs + blocks)


def symbols() -> pn.pane.HTML:
    """What the letters mean."""
    rows = "".join(
        f"<tr><td style='padding:2px 12px 2px 0;white-space:nowrap;vertical-align:top'><b>{name}</b></td>"
        f"<td>{meaning}</td></tr>"
        for name, meaning in _MEANINGS.items()
    )
    body = f"<details open><summary><b>Symbols</b></summary><table>{rows}</table></details>"
    return text_pane(body, 8)


class Fields:
    """Widgets for some controls. `change(name, value)` is called with what the visitor typed, chose or moved."""

    def __init__(self, names: tuple[str, ...], settings: Settings, change: Callable[[str, Any], None]):
        self.change, self._quiet = change, False
        self.sliders: dict[str, Any] = {}
        self.boxes: dict[str, Any] = {}
        self.rows = [self._field(name, getattr(settings, name)) for name in names]

    def show(self, settings: Settings) -> None:
        """Set every widget to the page's state, without calling `change`."""
        self._quiet = True
        try:
            for name, box in self.boxes.items():
                value = getattr(settings, name)
                box.value = value if CONTROLS[name].options else f"{value:.10g}"
                if name in self.sliders:
                    self.sliders[name].value = value
        finally:
            self._quiet = False

    def _field(self, name: str, value: Any) -> Any:
        label, options, *range_of_slider, whole = CONTROLS[name]
        if options:
            box = pn.widgets.Select(label=label, options=list(options), value=value, sizing_mode="stretch_width")
        else:
            box = pn.widgets.TextInput(label=label, value=f"{value:.10g}", sizing_mode="stretch_width")
        self.boxes[name] = self._watched(name, box)
        if options or name in _TYPED_ONLY:
            return box
        kind = pn.widgets.IntSlider if whole else pn.widgets.FloatSlider
        start, end, step = ((int(x) if whole else x) for x in range_of_slider)
        slider = kind(
            start=start, end=end, step=step, value=value, show_value=False, sizing_mode="stretch_width",
            margin=(0, 10, 4, 10), css_classes=[f"slider-{name}"],
        )  # fmt: skip
        self.sliders[name] = self._watched(name, slider)
        return pn.Column(box, slider, sizing_mode="stretch_width", margin=0)

    def _watched(self, name: str, widget: Any) -> Any:
        widget.param.watch(lambda event: None if self._quiet else self.change(name, event.new), "value")
        return widget


def download(label: str, filename: str, make: Callable[[], Any]) -> pn.widgets.FileDownload:
    """A button that makes its file when it is pressed; off until `allow`."""
    return pn.widgets.FileDownload(
        callback=make, filename=filename, label=label, width=165, margin=(4, 6), disabled=True
    )


def data_file(title: str, kind: str, dataset: Callable[[], xr.Dataset]) -> pn.widgets.FileDownload:
    """A button for the numbers of a Dataset, as CSV or NetCDF."""
    suffix, make = {"CSV": ("csv", comma_separated), "NetCDF": ("nc", netcdf)}[kind]
    return download(f"{title} ({kind})", f"{title.lower()}.{suffix}", lambda: make(dataset()))


def allow(buttons: Iterable[pn.widgets.FileDownload]) -> None:
    """There is something to download now."""
    for button in buttons:
        button.disabled = False


def handed_out(found: Any) -> Any:
    """What a button is about, which is there as soon as the button is on."""
    assert found is not None, "the buttons are off until then"
    return found


def netcdf(dataset: xr.Dataset) -> io.BytesIO:
    """A NetCDF file that `widthwise.load` reads."""
    with tempfile.TemporaryDirectory() as folder:
        return io.BytesIO(save(dataset, Path(folder) / "data.nc").read_bytes())


def comma_separated(dataset: xr.Dataset) -> io.StringIO:
    """Comma-separated: a row for each value, with its name and its coordinates; the network in a first line.

    >>> made = xr.Dataset({"K": (("layer", "a"), [[1.0, 2.0]])}, {"layer": [3]}, {"network": "N"})
    >>> print(comma_separated(made).getvalue())
    # network: N
    name,index,value
    K,layer=3 a=0,1.0
    K,layer=3 a=1,2.0
    <BLANKLINE>
    """
    lines = [f"# network: {dataset.attrs['network']}", "name,index,value"]
    for name, array in dataset.data_vars.items():
        axes = [array[dim].values if dim in array.coords else np.arange(size) for dim, size in array.sizes.items()]
        for place in np.ndindex(array.shape):
            where = " ".join(
                f"{dim}={axis[i].item():.10g}" for dim, axis, i in zip(array.dims, axes, place, strict=True)
            )
            lines.append(f"{name},{where},{array.values[place].item()!r}")
    return io.StringIO("\n".join(lines) + "\n")
