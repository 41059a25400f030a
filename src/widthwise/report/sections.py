"""The sections of the page, each from the findings to HTML."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import numpy as np

from widthwise.plots import (
    plot_agreement,
    plot_depth,
    plot_flow,
    plot_learning_curves,
    plot_learning_rates,
    plot_output_density,
    plot_phase,
    plot_predictions,
    plot_running,
    plot_spectrum,
)
from widthwise.report.findings import Findings
from widthwise.report.html import details, equations, figure, paragraphs, table
from widthwise.report.words import EQUATIONS, FIGURES, TEXT
from widthwise.results.labels import MEANING

_MISSING = "<p class='note'>Not computed: the last section says why.</p>"
#: Rows of data and of predictions that are shown.
_ROWS = 12
#: Fields of a comparison's rows, and their heads.
_COLUMNS = {
    "variable": "variable",
    "verdict": "verdict",
    "entries": "entries",
    "rms_pull": "rms pull",
    "worst_pull": "worst pull",
    "worst_entry": "at",
    "predicted": "predicted",
    "measured": "measured",
    "standard_error": "± s.e.",
    "chi2": "χ²",
    "independent": "independent",
    "probability": "probability",
}


def head(found: Findings) -> str:
    """Title, one line, and what matters most in four boxes."""
    net, advice = found.study.net, found.advice
    cards = [("Initialisation", advice.verdict if advice else "not followed")]
    if advice is not None and advice.depth_width is not None:
        size = advice.depth_width
        cards.append(("Depth against width", f"Σ 1/n = {size.aspect_ratio:.3g}: {size.regime}"))
    if found.comparison is not None:
        rows = list(found.comparison)
        agreeing, nearly = (sum(row.verdict == verdict for row in rows) for verdict in ("agrees", "n too small"))
        text = f"{agreeing + nearly} of {len(rows)} variables agree"
        text += f", {nearly} of them up to a remainder that falls with the width" if nearly else ""
        cards.append(("Theory against sampled networks", text))
    if found.training is not None:
        cards.append(("Theory against trained networks", found.training.verdict))
    boxes = "".join(f"<div class='card'><b>{escape(name)}</b>{escape(text)}</div>" for name, text in cards)
    line = f"{net.depth} weight layers, widths {', '.join(map(str, net.widths))}, activation {net.activation_text}"
    title = "<h1>A network, before anyone trains it</h1>"
    return f"<header>{title}<p>{escape(line)}.</p><div class='cards'>{boxes}</div></header>"


def network(found: Findings) -> str:
    """The specification, layer by layer, and the data."""
    net, data = found.study.net, found.study.data
    rows = [
        (layer, net.widths[layer - 1], net.widths[layer], net.C_b[i], net.C_W[i], net.lambda_b[i], net.lambda_W[i])
        for i, layer in enumerate(range(1, net.depth + 1))
    ]
    columns = ("layer", "fan-in", "neurons", "C<sub>b</sub>", "C<sub>W</sub>", "λ<sub>b</sub>", "λ<sub>W</sub>")
    parts = [_text("network"), table(columns, rows)]
    targets = data.y_train is not None
    shown = data.X_train[:_ROWS]
    numbers = [
        (f"input {a}", *row.tolist()[:8], *(data.y_train[a].tolist() if data.y_train is not None else ()))
        for a, row in enumerate(shown)
    ]
    tests = () if data.X_test is None else data.X_test[:_ROWS]
    blank = [None] * (data.outputs if targets else 0)
    numbers += [(f"test {a}", *row.tolist()[:8], *blank) for a, row in enumerate(tests)]
    heads = [f"x<sub>{i + 1}</sub>" for i in range(min(data.features, 8))]
    heads += [f"y<sub>{i + 1}</sub>" for i in range(data.outputs)] if targets else []
    size = f"{len(data.X_train)} inputs of {data.features} features" + (
        f", {len(tests)} test inputs" if len(tests) else ""
    )
    caption = f"Data: {escape(data.name)}; {size}" + (", the first of each" if len(data.X_train) > _ROWS else "")
    return "".join([*parts, table(["", *heads], numbers, caption)])


def criticality(found: Findings) -> str:
    """The verdict in words, the phase diagram, learning rates and code."""
    if found.advice is None:
        return _MISSING
    advice, net, phases = found.advice, found.study.net, found.phases
    parts = [_text("criticality"), _equation("criticality"), _text("susceptibilities"), paragraphs(advice.text)]
    if phases is not None:
        parts.append(_figure("phase", lambda: plot_phase(phases, net)))
    rates = advice.rates
    if rates is not None:
        parts.append(_figure("rates", lambda: plot_learning_rates(rates)))
    code = (details(f"Code for {name}", f"<pre>{escape(text)}</pre>") for name, text in advice.code.items())
    return "".join([*parts, *code])


def kernels(found: Findings) -> str:
    """K and Θ at the output, their flow through the layers and their spectrum."""
    theory = found.theory
    if theory is None:
        return _MISSING
    parts = [_equation("kernels"), _text("kernels")]
    for name, symbol in (("K", "K"), ("Theta", "Θ")):
        if name in theory:
            last = theory[name].values[-1]
            rows = [(f"input {a}", *row.tolist()) for a, row in enumerate(last)]
            parts.append(table(["", *(f"input {b}" for b in range(len(last)))], rows, f"{symbol} at the output"))
    parts.append(_figure("flow", lambda: plot_flow(theory, found.measured)))
    if "Theta" in theory and len(found.X) > 1:
        parts.append(_figure("spectrum", lambda: plot_spectrum(theory)))
    return "".join(parts)


def finite_width(found: Findings) -> str:
    """The tensors of order 1/n, their ratios with depth, the density of the output, couplings."""
    net, single, x, seed = found.study.net, found.single, found.X[0], found.study.seed
    parts = [_text("finite width"), _equation("finite width")]
    if single is None:
        return "".join([*parts, _MISSING])
    parts += [_ratios(found), _figure("depth", lambda: plot_depth(single))]
    sampled = 10_000 if found.study.networks else 0
    parts.append(_figure("density", lambda: plot_output_density(net, x, sampled, seed)))
    if net.depth > 1:
        parts.append(_figure("running", lambda: plot_running(net, x)))
    return "".join(parts)


def _ratios(found: Findings) -> str:
    single, n = found.single, found.study.net.n
    assert single is not None
    names = [str(v).removesuffix("_ratio") for v in single.data_vars if str(v).endswith("_ratio")]
    rows = [
        (name, MEANING[name].split(" (theory")[0], float(ratio := single[f"{name}_ratio"].values[-1]), float(ratio) / n)
        for name in names
    ]
    return table(("tensor", "meaning", "over its scale", f"and over n = {n}"), rows, "Input 0 at the output")


def training(found: Findings) -> str:
    """Prediction for the trained ensemble, beside trained networks, and learning curves."""
    predicted, curves = found.predicted, found.curves
    if predicted is None:
        return _MISSING
    algorithm = escape(predicted.attrs["algorithm"])
    parts = [
        f"<p>Loss ½Σ(z − y)², algorithm <code>{algorithm}</code>. At infinite width the ensemble has</p>",
        _equation("training"),
        _text("training"),
        _predictions(found),
        _figure("predictions", lambda: plot_predictions(predicted, found.trained)),
    ]
    if curves is not None:
        parts.append(_figure("curves", lambda: plot_learning_curves(*curves)))
    return "".join(parts)


def _predictions(found: Findings) -> str:
    """One row an output and test input."""
    predicted, n = found.predicted, found.study.net.n
    assert predicted is not None
    rows = []
    for i in range(predicted.sizes["output"]):
        for t in range(min(predicted.sizes["test"], _ROWS)):
            shift = float(predicted["mean1"][i, t]) / n if predicted.attrs["order"] else None
            deviation = float(np.sqrt(max(float(predicted["cov"][i, t, i, t]), 0.0)))
            numbers = (float(predicted["mean0"][i, t]), shift, float(predicted["mean"][i, t]), deviation)
            rows.append((f"output {i + 1}, test {t}", *numbers, *_trained(found, i, t)))
    heads = ["", "mean, infinite width", "shift of order 1/n", "mean", "standard deviation"]
    return table(heads + (["measured mean", "± s.e."] if found.trained is not None else []), rows)


def _trained(found: Findings, i: int, t: int) -> tuple[float, ...]:
    if found.trained is None:
        return ()
    return float(found.trained["mean"][i, t]), float(found.trained["mean_se"][i, t])


def measurement(found: Findings) -> str:
    """Pulls of every variable, and the figure of differences."""
    theory, measured = found.theory, found.measured
    if found.comparison is None and found.training is None:
        return _MISSING
    parts = [_text("measurement")]
    for name, comparison in (("sampled networks", found.comparison), ("trained networks", found.training)):
        if comparison is not None:
            rows = [[getattr(row, key) for key in _COLUMNS] for row in comparison]
            sentence = f"<p>{escape(comparison.sentence)}</p>"
            parts.append(f"<h3>At the output, against {name}</h3>{table(list(_COLUMNS.values()), rows)}{sentence}")
    if theory is not None and measured is not None:
        parts.append(_figure("agreement", lambda: plot_agreement(theory, measured)))
    return "".join(parts)


def _figure(key: str, draw: Callable[[], Any]) -> str:
    return figure(draw, *FIGURES[key])


def _equation(key: str) -> str:
    return equations(EQUATIONS[key])


def _text(key: str) -> str:
    return f"<p>{TEXT[key]}</p>"
