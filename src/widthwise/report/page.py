"""The page: its sections, each from the findings to HTML, and the study inside it from which it can be made again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from widthwise import plots
from widthwise.errors import InvalidInput, WidthwiseError
from widthwise.files import write_text
from widthwise.report.findings import Findings, find
from widthwise.report.html import LOOK_SWITCH, REPORT_STYLE, details, equations, figure, html_table, marked_up
from widthwise.report.words import CAPTIONS, EQUATIONS, REGIME_MEANS, TEXT, VERDICT_MEANS
from widthwise.results.labels import MEANING
from widthwise.study import Study
from widthwise.version import __version__

_STUDY = re.compile(r"<script type=\"application/json\" id=\"widthwise-study\">(.*?)</script>", re.S)
_SLIM = "<p class='slim'>Tables wider than this page scroll sideways; a shadow shows where there is more.</p>"
_MISSING = "<p class='note'>Not computed: the last section says why.</p>"
#: Rows of data and of predictions that are shown.
_MOST_ROWS = 12
#: Fields of a comparison's rows, and the heads of those that are not called so.
_COMPARED = (
    "variable", "verdict", "entries", "rms_pull", "worst_pull", "worst_entry", "predicted", "measured",
    "standard_error", "chi2", "independent", "probability",
)  # fmt: skip
_HEADS = {"worst_entry": "at", "standard_error": "± s.e.", "chi2": "χ²"}
_SYMBOLS = (
    ("n", "width of the last hidden layer; in a layer's own 1/n, the width of the layer below it"),
    ("L", "number of weight layers"),
    ("z, σ", "value of a neuron before its activation, and the activation"),
    ("K", "covariance of z over random networks, between inputs"),
    ("Θ", "neural tangent kernel at infinite width; Ĥ is that of one network"),
    ("χ∥, χ⊥", "factors that a layer puts on small changes of size, and on squared gradients"),
    ("± s.e.", "standard error: how far a mean over the sampled networks scatters"),
)


def head(found: Findings) -> str:
    """Title, one line, and what matters most in four boxes."""
    net, advice = found.study.net, found.advice
    cards = [("Initialisation", advice.verdict if advice else "not followed")]
    if advice is not None and advice.depth_width is not None:
        size = advice.depth_width
        cards.append(("Depth against width", f"depth/width = {size.aspect_ratio:.2g}: {size.regime}"))
    if found.comparison is not None:
        cards.append(("Theory against sampled networks", found.comparison.summary))
    if found.training is not None:
        cards.append(("Theory against trained networks", found.training.summary))
    boxes = "".join(f"<div class='card'><b>{escape(name)}</b>{escape(text)}</div>" for name, text in cards)
    line = f"{net.depth} weight layers, widths {', '.join(map(str, net.widths))}, activation {net.activation_text}"
    title = "<h1>A network, before anyone trains it</h1>"
    summary = escape(" ".join(plain_summary(found)))
    return f"<header>{title}<p>{escape(line)}.</p><p>{summary}</p><div class='cards'>{boxes}</div></header>"


def plain_summary(found: Findings) -> list[str]:
    """What to know about the network, in sentences without symbols."""
    advice = found.advice
    if advice is None:
        return []
    said, size = [VERDICT_MEANS[advice.verdict]], advice.depth_width
    if size is not None:
        said.append(REGIME_MEANS[size.regime].format(f"{size.kernel_fluctuation:.0%}"))
    checked = [one for one in (found.comparison, found.training) if one is not None]
    if checked:
        agree = all(one.agrees for one in checked)
        said.append(f"Real networks {'confirm' if agree else 'do not confirm all of'} the predictions on this page.")
    return said


def specification(found: Findings) -> str:
    """The network, layer by layer, and the data."""
    net, data = found.study.net, found.study.data
    layers = range(1, net.depth + 1)
    rows = zip(layers, net.widths[:-1], net.widths[1:], net.C_b, net.C_W, net.lambda_b, net.lambda_W, strict=True)
    columns = ("layer", "fan-in", "neurons", "C<sub>b</sub>", "C<sub>W</sub>", "λ<sub>b</sub>", "λ<sub>W</sub>")
    tests = () if data.X_test is None else data.X_test[:_MOST_ROWS]
    inputs = [(f"input {a}", *row.tolist()[:8]) for a, row in enumerate(data.X_train[:_MOST_ROWS])]
    inputs += [(f"test {a}", *row.tolist()[:8]) for a, row in enumerate(tests)]
    heads = ["", *(f"x<sub>{i + 1}</sub>" for i in range(min(data.features, 8)))]
    if data.y_train is not None:
        targets = [*data.y_train[:_MOST_ROWS].tolist(), *[[None] * data.outputs] * len(tests)]
        inputs = [(*row, *target) for row, target in zip(inputs, targets, strict=True)]
        heads += [f"y<sub>{i + 1}</sub>" for i in range(data.outputs)]
    caption = f"Data: {escape(data.name)}; {len(data.X_train)} inputs of "
    caption += "1 feature" if data.features == 1 else f"{data.features} features"
    caption += f", {len(tests)} test inputs" if len(tests) else ""
    caption += ", the first of each" if len(data.X_train) > _MOST_ROWS else ""
    return _words("network") + html_table(columns, rows) + html_table(heads, inputs, caption)


def criticality(found: Findings) -> str:
    """The verdict in words, the phase diagram, learning rates and code."""
    if found.advice is None:
        return _MISSING
    advice, net, phases = found.advice, found.study.net, found.phases
    parts = [_words("criticality"), equations(EQUATIONS["criticality"])]
    parts += [_words("susceptibilities"), marked_up(advice.text)]
    if phases is not None:
        parts.append(_figure("phase diagram", lambda: plots.plot_phase(phases, net)))
    rates = advice.rates
    if rates is not None:
        parts.append(_figure("learning rates by layer", lambda: plots.plot_learning_rates(rates)))
    code = (
        details(f"Code for {name}", f"<pre tabindex='0'>{escape(text)}</pre>") for name, text in advice.code.items()
    )
    return "".join([*parts, *code])


def kernels(found: Findings) -> str:
    """K and Θ at the output, their flow through the layers and their spectrum."""
    theory = found.theory
    if theory is None:
        return _MISSING
    parts = [equations(EQUATIONS["kernels"]), _words("kernels")]
    for name, symbol in (("K", "K"), ("Theta", "Θ")):
        if name in theory:
            last = theory[name].values[-1]
            rows = [(f"input {a}", *row.tolist()) for a, row in enumerate(last)]
            parts.append(html_table(["", *(f"input {b}" for b in range(len(last)))], rows, f"{symbol} at the output"))
    parts.append(_figure("kernels against the layer", lambda: plots.plot_flow(theory, found.measured)))
    if "Theta" in theory and len(found.X) > 1:
        parts.append(_figure("spectrum of the kernels", lambda: plots.plot_spectrum(theory)))
    return "".join(parts)


def finite_width(found: Findings) -> str:
    """The tensors of order 1/n, their ratios with depth, the density of the output, couplings."""
    net, single, x, seed = found.study.net, found.single, found.X[0], found.study.seed
    parts = [_words("finite width"), equations(EQUATIONS["finite width"])]
    if single is None:
        return "".join([*parts, _MISSING])
    rows = []
    for name in (str(v).removesuffix("_ratio") for v in single.data_vars if str(v).endswith("_ratio")):
        ratio = float(single[f"{name}_ratio"].values[-1])
        rows.append((name, MEANING[name].split(" (theory")[0], ratio, ratio / net.n))
    heads = ("tensor", "meaning", "over its scale", f"and over n = {net.n}")
    parts.append(details("All tensors at the output, for input 0", html_table(heads, rows)))
    parts.append(_figure("dimensionless ratios against depth", lambda: plots.plot_depth(single)))
    sampled = 10_000 if found.study.networks else 0
    parts.append(_figure("density of the output", lambda: plots.plot_output_density(net, x, sampled, seed)))
    if net.depth > 1:
        parts.append(_figure("running couplings", lambda: plots.plot_running(net, x)))
    return "".join(parts)


def training(found: Findings) -> str:
    """Prediction for the trained ensemble, beside trained networks, and learning curves."""
    predicted, trained, curves, n = found.predicted, found.trained, found.curves, found.study.net.n
    if predicted is None:
        return _MISSING
    rows = []
    for i in range(predicted.sizes["output"]):
        for t in range(min(predicted.sizes["test"], _MOST_ROWS)):
            shift = float(predicted["mean1"][i, t]) / n if predicted.attrs["order"] else None
            deviation = float(np.sqrt(max(float(predicted["cov"][i, t, i, t]), 0.0)))
            numbers = [float(predicted["mean0"][i, t]), shift, float(predicted["mean"][i, t]), deviation]
            numbers += [] if trained is None else [float(trained[name][i, t]) for name in ("mean", "mean_se")]
            rows.append((f"output {i + 1}, test {t}", *numbers))
    heads = ["", "mean, infinite width", "shift of order 1/n", "mean", "standard deviation"]
    heads += [] if trained is None else ["measured mean", "± s.e."]
    algorithm = escape(predicted.attrs["algorithm"])
    functions = found.functions
    parts = [] if functions is None else [_figure("trained functions", lambda: plots.plot_functions(functions))]
    parts += [
        f"<p>Loss ½Σ(z − y)², algorithm <code>{algorithm}</code>. At infinite width the ensemble has</p>",
        equations(EQUATIONS["training"]),
        _words("training"),
        html_table(heads, rows),
        _figure("trained outputs", lambda: plots.plot_predictions(predicted, trained)),
    ]
    if curves is not None:
        parts.append(_figure("learning curves", lambda: plots.plot_learning_curves(*curves)))
    return "".join(parts)


def measurement(found: Findings) -> str:
    """Pulls of every variable, and the figure of differences."""
    theory, measured = found.theory, found.measured
    if found.comparison is None and found.training is None:
        return _MISSING
    parts = [_words("measurement")]
    heads = [_HEADS.get(name, name.replace("_", " ")) for name in _COMPARED]
    for name, comparison in (("sampled networks", found.comparison), ("trained networks", found.training)):
        if comparison is not None:
            rows = [[getattr(row, key) for key in _COMPARED] for row in comparison]
            sentence = f"<p>{escape(comparison.sentence)}</p>"
            table = details("Every variable in numbers", html_table(heads, rows))
            parts.append(f"<h3>At the output, against {name}</h3>{sentence}{table}")
    if theory is not None and measured is not None:
        parts.append(_figure("measured minus predicted", lambda: plots.plot_agreement(theory, measured)))
    return "".join(parts)


def method(found: Findings) -> str:
    """Route, accuracy, networks and seed of every number; notes; warnings; symbols; the study."""
    notes = [*found.notes, *(f"warning: {text}" for text in found.warnings)]
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    study = json.dumps(found.study.to_dict(), indent=1)
    return (
        html_table(("quantity", "how", "accuracy"), _provenance(found))
        + (f"<h3>Notes</h3><ul>{listed}</ul>" if notes else "")
        + ("<h3>Symbols</h3>" + html_table(("symbol", "meaning"), _SYMBOLS))
        + "<h3>Make it again</h3><p>The study below is inside this file. The same version makes the same page from "
        "it:</p><pre tabindex='0'>widthwise report --from report.html --out again.html</pre>"
        f"<p>Made by widthwise {__version__}.</p>" + details("The study", f"<pre tabindex='0'>{escape(study)}</pre>")
    )


def _provenance(found: Findings) -> list[tuple[Any, ...]]:
    study = found.study
    rows: list[tuple[Any, ...]] = []
    if found.theory is not None:
        attrs = found.theory.attrs
        rows.append(("K, Θ, tensors of order 1/n", f"recursions of theory §2, §4, §5; {attrs['route']}", _error(attrs)))
        if "missing" in attrs:
            rows.append(("tensors left out", attrs["missing"], ""))
    if found.single is not None:
        attrs = found.single.attrs
        rows.append(("ratios with depth", f"recursions at one input; {attrs['route']}", _error(attrs)))
    if found.advice is not None:
        rows.append(("critical point, phases, rates", f"theory §7 on {found.advice.measured_on}", "rounding"))
    if found.measured is not None:
        attrs = found.measured.attrs
        widths = f", extrapolated in 1/n from widths {list(attrs['widths'])}" if "widths" in attrs else ""
        how = f"{attrs['networks']} sampled networks a width, seed {attrs['seed']}{widths}"
        rows.append(("measured tensors", how, "± s.e. in the table"))
    if found.predicted is not None:
        attrs = found.predicted.attrs
        how = f"theory §8, order {attrs['order']} in 1/n, {attrs['algorithm']}"
        rows.append(("trained mean and covariance", how, _error(attrs) if attrs["order"] else "rounding"))
    if found.trained is not None:
        attrs = found.trained.attrs
        how = f"{attrs['networks']} networks trained, seed {study.seed}, {attrs['algorithm']}"
        how += f"; {attrs['unconverged']} did not converge"
        rows.append(("measured trained outputs", how, "± s.e. in the table"))
    if found.functions is not None:
        how = f"{len(found.functions.networks)} networks, seed {study.seed}, {found.functions.steps} steps of descent"
        rows.append(("functions along the training inputs", how, "scatter in the figure"))
    if found.curves is not None:
        paths = found.curves[1]
        how = f"{paths.sizes['network']} networks, seed {study.seed}, learning rate {paths.attrs['learning_rate']:.6g}"
        rows.append(("learning curves", how, "scatter in the figure"))
    return rows


def _error(attrs: dict[Any, Any]) -> str:
    return f"relative error about {attrs['numerical_error']:.0e}"


def _figure(alt: str, draw: Callable[[], Any]) -> str:
    return figure(draw, CAPTIONS[alt], alt)


def _words(key: str) -> str:
    return f"<p>{TEXT[key]}</p>"


_SECTIONS = (
    ("network", "The network and the data", specification),
    ("criticality", "Criticality and advice", criticality),
    ("kernels", "Kernels", kernels),
    ("finite-width", "What the finite width changes", finite_width),
    ("training", "After training", training),
    ("measurement", "Theory against measurement", measurement),
    ("method", "How each number was obtained", method),
)


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
    write_text(target, page(found))
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
        f"<title>widthwise report</title><style>{REPORT_STYLE}</style></head><body>"
        f"{LOOK_SWITCH}{head(found)}<nav aria-label='sections'>{links}</nav>{_SLIM}{body}"
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
    except WidthwiseError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput("report", f"'{source}', whose study is damaged", "a page as it was written") from error
