"""The last section: where each number comes from, what was not computed, and the study itself."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from widthwise.report.findings import Findings
from widthwise.report.html import details, table
from widthwise.version import __version__

_SYMBOLS = (
    ("n", "width of the last hidden layer; in a layer's own 1/n, the width of the layer below it"),
    ("L", "number of weight layers"),
    ("z, σ", "value of a neuron before its activation, and the activation"),
    ("K", "covariance of z over random networks, between inputs"),
    ("Θ", "neural tangent kernel at infinite width; Ĥ is that of one network"),
    ("χ∥, χ⊥", "factors that a layer puts on small changes of size, and on squared gradients"),
    ("± s.e.", "standard error: how far a mean over the sampled networks scatters"),
)


def method(found: Findings) -> str:
    """Route, accuracy, networks and seed of every number; notes; warnings; symbols; the study."""
    notes = [*found.notes, *(f"warning: {text}" for text in found.warnings)]
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    study = json.dumps(found.study.to_dict(), indent=1)
    return "".join(
        (
            table(("quantity", "how", "accuracy"), _rows(found)),
            f"<h3>Notes</h3><ul>{listed}</ul>" if notes else "",
            "<h3>Symbols</h3>" + table(("symbol", "meaning"), _SYMBOLS),
            "<h3>Make it again</h3><p>The study below is inside this file. The same version makes the same page from "
            "it:</p><pre>widthwise report --from report.html --out again.html</pre>"
            f"<p>Made by widthwise {__version__}.</p>",
            details("The study", f"<pre>{escape(study)}</pre>"),
        )
    )


def _rows(found: Findings) -> list[tuple[Any, ...]]:
    study = found.study
    rows: list[tuple[Any, ...]] = []
    if found.theory is not None:
        attrs = found.theory.attrs
        rows.append(("K, Θ, tensors of order 1/n", f"recursions of theory §2, §4, §5; {attrs['route']}", _error(attrs)))
        if "missing" in attrs:
            rows.append(("tensors left out", attrs["missing"], ""))
    if found.single is not None:
        rows.append(
            ("ratios with depth", f"recursions at one input; {found.single.attrs['route']}", _error(found.single.attrs))
        )
    if found.advice is not None:
        rows.append(("critical point, phases, rates", f"theory §7 on {found.advice.measured_on}", "rounding"))
    if found.measured is not None:
        attrs = found.measured.attrs
        widths = f", extrapolated in 1/n from widths {list(attrs['widths'])}" if "widths" in attrs else ""
        rows.append(
            (
                "measured tensors",
                f"{attrs['networks']} sampled networks a width, seed {attrs['seed']}{widths}",
                "± s.e. in the table",
            )
        )
    if found.predicted is not None:
        attrs = found.predicted.attrs
        how = f"theory §8, order {attrs['order']} in 1/n, {attrs['algorithm']}"
        rows.append(("trained mean and covariance", how, _error(attrs) if attrs["order"] else "rounding"))
    if found.trained is not None:
        attrs = found.trained.attrs
        how = f"{attrs['networks']} networks trained, seed {study.seed}, {attrs['algorithm']}"
        how += f"; {attrs['unconverged']} did not converge"
        rows.append(("measured trained outputs", how, "± s.e. in the table"))
    if found.curves is not None:
        paths = found.curves[1]
        how = f"{paths.sizes['network']} networks, seed {study.seed}, learning rate {paths.attrs['learning_rate']:.6g}"
        rows.append(("learning curves", how, "scatter in the figure"))
    return rows


def _error(attrs: dict[Any, Any]) -> str:
    return f"relative error about {attrs['numerical_error']:.0e}"
