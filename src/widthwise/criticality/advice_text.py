"""The report of `advise` as sentences and as HTML."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

import numpy as np

from widthwise.criticality.critical import HALF_STABLE, K_ZERO, MARGINAL
from widthwise.criticality.depth_width import REGIMES, DepthWidth
from widthwise.criticality.kernel_fixed_points import FixedPoint
from widthwise.network import MLP, Dense

if TYPE_CHECKING:
    from widthwise.criticality.advice import Advice

#: Layers of a network with skips or normalisation of which the text has K and χ_⊥.
_LAYERS_SHOWN = 8


def text_report(advice: Advice) -> str:
    """Every sentence of the report, by paragraph."""
    return "\n\n".join("\n".join(lines) for lines in (_headline(advice), *_paragraphs(advice)) if lines)


def html_report(advice: Advice) -> str:
    """A page of its own: the text, a table of layers, and the code."""
    parts = ["<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Advice</title><style>",
             "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}",
             "table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}",
             "pre{background:#f6f6f6;padding:1em;overflow:auto}</style></head><body>",
             f"<h1>{html.escape(_headline(advice)[0])}</h1>"]  # fmt: skip
    for lines in _paragraphs(advice):
        parts.append("<p>" + "<br>".join(html.escape(line.strip()) for line in lines) + "</p>")
    parts.append(_layer_table(advice))
    for framework, code in advice.code.items():
        parts.append(f"<h2>{html.escape(framework)}</h2><pre>{html.escape(code)}</pre>")
    return "\n".join([*parts, "</body></html>"])


def _headline(advice: Advice) -> list[str]:
    net = advice.net
    sigma = ", ".join(dict.fromkeys(one.spec for one in net.activations)) or "linear"
    hidden = sorted(set(net.widths[1:-1]))
    width = "no hidden layer" if not hidden else f"width {hidden[0]}" if len(hidden) == 1 else (
        f"widths {hidden[0]} to {hidden[-1]}")  # fmt: skip
    if isinstance(net, MLP):
        return [f"{net.depth} layers of {width}, {net.activation_text}: {advice.verdict}."]
    more = "" if advice.design is None else advice.design.text
    return [f"{net.depth} layers of {width}, {sigma}{more}: {advice.verdict}."]


def _paragraphs(advice: Advice) -> list[list[str]]:
    parts = (
        _depth_lines,
        _layer_lines,
        _growth_lines,
        _fixed_point_lines,
        _target_lines,
        _rate_lines,
        _depth_width_lines,
    )
    return [lines for part in parts if (lines := part(advice))]


def _fold(log10: float) -> str:
    """How much something grows or shrinks.

    >>> _fold(3.824), _fold(-0.3), _fold(0.0), _fold(12.34), _fold(math.inf)
    ('grow 6,670-fold', 'shrink 2-fold', 'do not change', 'grow by a factor 10^12.3', 'grow beyond measure')
    """
    if abs(log10) < 5e-3:
        return "do not change"
    verb = "grow" if log10 > 0 else "shrink"
    if not math.isfinite(log10):
        return f"{verb} beyond measure"
    size = float(f"{10.0 ** min(abs(log10), 6.0):.3g}")
    return f"{verb} by a factor 10^{abs(log10):.1f}" if abs(log10) >= 5 else f"{verb} {size:,.10g}-fold"


def _depth_lines(advice: Advice) -> list[str]:
    if advice.flow is None:
        return ["The kernel cannot be followed through the layers: " + advice.trouble]
    return [
        f"Effect of depth ({advice.measured_on}): squared signals (the kernel K) {_fold(advice.signal)} from the first "
        f"layer to the output; squared gradients {_fold(advice.gradient)} from the last layer to the first."
    ]


def _layer_lines(advice: Advice) -> list[str]:
    """K and χ_⊥ of some layers of a network with skips or normalisation."""
    if advice.design is None or advice.flow is None:
        return []
    K, chi = advice.flow.K.mean(axis=1), np.exp(advice.flow.log_chi_perp).mean(axis=1)
    some = np.unique(np.linspace(0, len(K) - 1, min(len(K), _LAYERS_SHOWN)).round().astype(int))
    rows = [f"{at + 1}: {K[at]:.4g}" + (f", {chi[at - 1]:.4g}" if at else "") for at in some]
    return [f"Layer: K, χ_⊥ of the step to it. {'; '.join(rows)}."]


def _growth_lines(advice: Advice) -> list[str]:
    """The law of growth of blocks like the last one."""
    growth, design = advice.growth, advice.design
    if growth is None or design is None:
        return []
    first = f"With more blocks like the last one (skip {design.block.skip:g}) K {growth.kernel}; the squared gradient "
    return [f"{first}{growth.gradient}."]


def _length_lines(point: FixedPoint) -> str:
    """Correlation lengths in words."""
    norms = "settle" if point.xi_parallel > 0 else "run away"
    gradients = "shrink" if point.xi_perp > 0 else "grow"
    found = [
        "norms change by powers of depth at most" if math.isinf(point.xi_parallel)
        else f"norms {norms} within {abs(point.xi_parallel):.3g} layers",
        "gradients change by powers of depth at most" if math.isinf(point.xi_perp)
        else f"gradients {gradients} e-fold every {abs(point.xi_perp):.3g} layers",
    ]  # fmt: skip
    return f"{'; '.join(found)}.".capitalize()


def _fixed_point_lines(advice: Advice) -> list[str]:
    point = advice.fixed_point
    if point is None:
        return []
    phase = "critical" if abs(point.chi_perp - 1.0) < 1e-9 else "ordered" if point.chi_perp < 1.0 else "chaotic"
    return [
        f"If more layers like the last one were added, K would tend to {point.K:.6g} ({point.stability}), where χ_∥ = "
        f"{point.chi_parallel:.6g} and χ_⊥ = {point.chi_perp:.6g}: {phase}.",
        _length_lines(point),
    ]


def _target_lines(advice: Advice) -> list[str]:
    point = advice.critical
    if advice.design is not None:
        return [*advice.design.lines, *_gradient_line(advice)]
    if point is None:
        return ["No critical initialisation: " + advice.reason] if advice.reason else []
    lines = [f"Critical for this activation: C_b = {point.C_b:.10g}, C_W = {point.C_W:.10g} ({point.universality})."]
    if point.universality in (HALF_STABLE, MARGINAL) and isinstance(advice.recommended, MLP):
        lines.append(
            f"Inputs should enter at K* = {point.K_star:.10g}: for inputs of this size the first layer takes C_W = "
            f"{advice.recommended.C_W[0]:.6g}. Kernels approach K* slowly, and from {point.stable_side} only."
        )
    if point.universality == K_ZERO:
        lines.append(
            f"There K falls with depth l like l^{point.exponents['K']:g} and squared gradients like "
            f"l^−{point.details['p']:.4g}: powers of depth, not exponentials."
        )
    return [*lines, *_gradient_line(advice)]


def _gradient_line(advice: Advice) -> list[str]:
    if not math.isfinite(advice.recommended_gradient):
        return []
    return [
        f"With it, squared gradients {_fold(advice.recommended_gradient)} from the last layer to the first, before "
        "learning rates are equalised."
    ]


def _rate_lines(advice: Advice) -> list[str]:
    rates = advice.rates
    if rates is None:
        return []
    dense = [isinstance(layer, Dense) for layer in rates.network.learned]
    before, after = rates.before.layers[dense], rates.after.layers[dense]
    kind = "every layer" if all(dense) else "every layer's weights and biases"
    inputs = "one input" if advice.inputs == 1 else f"the {advice.inputs} inputs given"
    ratio, equalised = before.max() / max(before.min(), 1e-300), after.max() / after.min()
    given = (
        "contributes equally to the neural tangent kernel with the learning rates given (λ_b, λ_W)."
        if ratio < 1.005
        else f"contributes to the neural tangent kernel by amounts that differ up to {ratio:,.3g}-fold with the "
        "learning rates given (λ_b, λ_W)"
        + (", and equally" if equalised < 1.005 else f", and up to {equalised:.3g}-fold")
        + " with those below."
    )
    return [
        f"Learning rates: at that initialisation {kind} {given}",
        f"λ_b from {rates.lambda_b[0]:.4g} (first layer) to {rates.lambda_b[-1]:.4g} (last), λ_W from "
        f"{rates.lambda_W[0]:.4g} to {rates.lambda_W[-1]:.4g}; global step {advice.learning_rate:.4g}, half of the "
        f"largest stable step for the loss ½Σ(z−y)² summed over {inputs}.",
        f"Targets: outputs start with variance {advice.output_kernel:.4g}. Centre the targets and give them at "
        "least this mean square; with much smaller targets the network first has to unlearn its initial outputs.",
    ]


_MEANING = dict(zip(REGIMES.values(), (
    "little feature learning is to be expected.",
    "corrections of order 1/n matter and are reliable.",
    "the expansion in 1/n is only a rough guide. Make the network wider or shallower, or measure it.",
    "the corrections are as large as the leading terms. Make the network wider or shallower.",
), strict=True))  # fmt: skip


def _depth_width_lines(advice: Advice) -> list[str]:
    dw, better = advice.depth_width, advice.recommended_depth_width
    lines = []
    if dw is not None:
        lines = [f"Depth/width = {dw.aspect_ratio:.2g}. As given: {_fluctuations(dw)}"]
    if better is not None and advice.verdict != "critical":
        start = "" if lines else f"Depth/width = {better.aspect_ratio:.2g}. "
        lines.append(f"{start}As recommended: {_fluctuations(better)}")
    return lines


def _fluctuations(dw: DepthWidth) -> str:
    known = math.isfinite(dw.ntk_variance)
    ntk = f", and their neural tangent kernels by {100 * dw.ntk_fluctuation:.3g}%" if known else ""
    end = (
        f" At this width the expansion in 1/n fails beyond about {dw.fails_at} layers."
        if dw.fails_at is not None
        else ""
    )
    return (
        f"{dw.regime}: the output kernels of individual networks differ by {100 * dw.kernel_fluctuation:.3g}%{ntk}; "
        f"{_MEANING[dw.regime]}{end}"
    )


def _layer_table(advice: Advice) -> str:
    if advice.flow is None or advice.rates is None or not isinstance(advice.recommended, MLP):
        return ""
    head = ["layer", "K", "C_W recommended", "share of Θ before", "share after", "λ_b", "λ_W"]
    K = advice.flow.K.mean(axis=1)
    rates = advice.rates
    rows = zip(range(1, len(K) + 1), K, advice.recommended.C_W, rates.before.layers, rates.after.layers, rates.lambda_b,
               rates.lambda_W, strict=True)  # fmt: skip
    body = "".join("<tr>" + "".join(f"<td>{x:.5g}</td>" for x in row) + "</tr>" for row in rows)
    return "<table><tr>" + "".join(f"<th>{h}</th>" for h in head) + f"</tr>{body}</table>"
