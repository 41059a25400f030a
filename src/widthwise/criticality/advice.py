"""`advise`: is this initialisation critical, what happens with depth, and what to use instead (theory §7)."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from widthwise.criticality import learning_rates
from widthwise.criticality.block_advice import BlockDesign, block_design
from widthwise.criticality.critical import HALF_STABLE, K_ZERO, MARGINAL, Critical, critical
from widthwise.criticality.depth_laws import DepthGrowth
from widthwise.criticality.depth_width import DepthWidth, check_deepest, depth_width
from widthwise.criticality.kernel_fixed_points import FixedPoint, fixed_points
from widthwise.criticality.snippets import snippets
from widthwise.errors import DivergentMoment, InvalidInput, NotDifferentiable
from widthwise.network import MLP, Dense, Network, simplified


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


def _factor(log10: float) -> str:
    if not math.isfinite(log10):
        return "beyond measure"
    return f"a factor {10.0**log10:.3g}" if abs(log10) < 5 else f"a factor 10^{log10:.1f}"


def _depth_lines(advice: Advice) -> list[str]:
    if advice.flow is None:
        return ["The kernel cannot be followed through the layers: " + advice.trouble]
    return [
        f"Depth ({advice.measured_on}): from the first layer to the output the kernel K changes by "
        f"{_factor(advice.signal)}; the squared gradient that reaches the first layer is that of the last times "
        f"{_factor(advice.gradient).removeprefix('a factor ')}."
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
    first = f"With more blocks like the last one (skip {design.block.skip:g}) K {growth.kernel}; squared gradients: "
    return [f"{first}{growth.gradient}."]


def _length(xi: float) -> str:
    if math.isinf(xi):
        return "infinite"
    return f"{xi:.3g} layers" if xi > 0 else f"{-xi:.3g} layers, growing"


def _fixed_point_lines(advice: Advice) -> list[str]:
    point = advice.fixed_point
    if point is None:
        return []
    phase = "critical" if abs(point.chi_perp - 1.0) < 1e-9 else "ordered" if point.chi_perp < 1.0 else "chaotic"
    return [
        f"With more layers like the last one K tends to {point.K:.6g} ({point.stability}), where χ_∥ = "
        f"{point.chi_parallel:.6g} and χ_⊥ = {point.chi_perp:.6g}: {phase}.",
        f"Correlation lengths: sizes {_length(point.xi_parallel)}, directions and gradients {_length(point.xi_perp)}.",
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
            f"Inputs should enter at K* = {point.K_star:.10g}: the first layer takes C_W = "
            f"{advice.recommended.C_W[0]:.6g} for inputs of this size. Kernels are drawn to K* from "
            f"{point.stable_side} only, and slowly."
        )
    if point.universality == K_ZERO:
        lines.append(
            f"There K falls like l^{point.exponents['K']:g} and squared gradients like l^−{point.details['p']:.4g}: "
            "powers of depth, not exponentials."
        )
    return [*lines, *_gradient_line(advice)]


def _gradient_line(advice: Advice) -> list[str]:
    if not math.isfinite(advice.recommended_gradient):
        return []
    return [
        f"With it the squared gradient at the first layer is that of the last times "
        f"{_factor(advice.recommended_gradient).removeprefix('a factor ')}, before learning rates are equalised."
    ]


def _rate_lines(advice: Advice) -> list[str]:
    rates = advice.rates
    if rates is None:
        return []
    dense = [isinstance(layer, Dense) for layer in rates.network.learned]
    before, after = rates.before.layers[dense], rates.after.layers[dense]
    kind = "a layer" if all(dense) else "the weights and biases of a layer"
    inputs = "one input" if advice.inputs == 1 else f"the {advice.inputs} inputs given"
    return [
        f"Learning rates: with the λ given, at that initialisation, the largest and smallest contribution of {kind} to "
        f"the neural tangent kernel differ by a factor {before.max() / max(before.min(), 1e-300):.3g}; with the λ_b "
        f"and λ_W below by {after.max() / after.min():.3g}.",
        f"λ_b from {rates.lambda_b[0]:.4g} (first layer) to {rates.lambda_b[-1]:.4g} (last), λ_W from "
        f"{rates.lambda_W[0]:.4g} to {rates.lambda_W[-1]:.4g}; global step {advice.learning_rate:.4g}, half of the "
        f"largest stable one for the loss ½Σ(z−y)² summed over {inputs}.",
        f"Targets: outputs start with variance {advice.output_kernel:.4g}. Centre the targets and give them at "
        "least this mean square; with much smaller ones the network has to unlearn its own outputs first.",
    ]


_REGIMES = {
    "close to infinite width": "The network is close to its infinite-width limit: little feature learning.",
    "of finite width": "Corrections of order 1/n matter and are under control.",
    "beyond the expansion": "Corrections are as large as what they correct: networks differ wildly from draw to draw. "
    "Make it wider or shallower.",
}


def _depth_width_lines(advice: Advice) -> list[str]:
    dw, better = advice.depth_width, advice.recommended_depth_width
    lines = []
    if dw is not None:
        lines = [f"Depth against width: Σ 1/n = {dw.aspect_ratio:.4g}. As given: {_fluctuations(dw)}"]
    if better is not None and advice.verdict != "critical":
        start = "" if lines else f"Depth against width: Σ 1/n = {better.aspect_ratio:.4g}. "
        lines.append(f"{start}As recommended: {_fluctuations(better)}")
    return lines


def _fluctuations(dw: DepthWidth) -> str:
    ntk = f", the neural tangent kernel by {100 * dw.ntk_fluctuation:.3g}%" if math.isfinite(dw.ntk_variance) else ""
    end = f" At this width the expansion in 1/n ends at about {dw.fails_at} layers." if dw.fails_at is not None else ""
    return (
        f"from network to network the kernel of the outputs fluctuates by {100 * dw.kernel_fluctuation:.3g}%{ntk}. "
        f"{_REGIMES[dw.regime]}{end}"
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


#: Rows of X that are followed through the layers, and those on which Θ is diagonalised.
_ROWS_FOLLOWED, _DIAGONALISED = 128, 256
#: Layers of a network with skips or normalisation of which the text has K and χ_⊥.
_LAYERS_SHOWN = 8
#: C_b and C_W this close to their critical values, relatively, are critical.
_SAME = 1e-4


@dataclass(frozen=True)
class Advice:
    """A report on a network. `text`, `json` and `html` are the same in three forms; `code` is ready to paste.

    `verdict` is "critical" (C_b and C_W are), "not critical, but mild at this depth", "signals or gradients vanish",
    "signals or gradients explode" or "cannot be trained by gradients". `critical` is the critical point of the
    activation, or None with `reason` saying why there is none; `trouble` says why a kernel could not be followed.
    `signal` and `gradient` are log10 of K at the output over K at the first layer, and of the squared gradient at the
    first layer over that at the last. `recommended` is the network to use instead, `rates` its learning rates,
    `learning_rate` half of the largest stable step for ½Σ(z−y)² summed over `inputs` inputs: those of X, or one.
    `output_kernel` is the variance of its outputs, the least that targets should have; `recommended_depth_width` says
    what its depth means at its width. For networks with skips or normalisation `design` says what is recommended and
    why, `growth` what more blocks like the last one would do, and `code` is for PyTorch.

    NaN are `signal` and `gradient` of networks that cannot be trained by gradients, `signal` where K is zero, and
    `recommended_gradient`, `output_kernel` and `learning_rate` without a recommendation.
    """

    net: Network
    verdict: str
    critical: Critical | None = None
    reason: str = ""
    trouble: str = ""
    signal: float = math.nan
    gradient: float = math.nan
    fixed_point: FixedPoint | None = None
    flow: learning_rates.LayerFlow | learning_rates.NetworkFlow | None = field(default=None, repr=False)
    depth_width: DepthWidth | None = None
    recommended: Network | None = None
    recommended_gradient: float = math.nan
    recommended_depth_width: DepthWidth | None = None
    output_kernel: float = math.nan
    rates: learning_rates.LearningRates | None = field(default=None, repr=False)
    learning_rate: float = math.nan
    inputs: int = 1
    measured_on: str = ""
    design: BlockDesign | None = None
    growth: DepthGrowth | None = None

    @cached_property
    def code(self) -> dict[str, str]:
        """Code by framework: "pytorch", "flax", "equinox"; empty without a recommendation."""
        return {} if self.rates is None else snippets(self.rates.network, self.learning_rate, self.inputs)

    text = property(text_report)
    html = property(html_report)

    @property
    def json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, indent=2)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists; None where a number is not finite."""

        def own(part: str, *names: str) -> dict[str, Any] | None:
            value = getattr(self, part)
            return None if value is None else {name: getattr(value, name) for name in names}

        rates = self.rates
        depth_width = "depth", "width", "aspect_ratio", "regime", "kernel_fluctuation", "ntk_fluctuation", "fails_at"
        found = {
            "network": repr(self.net),
            "verdict": self.verdict,
            "reason": self.reason,
            "trouble": self.trouble,
            "inputs": self.measured_on,
            "signal_log10": self.signal,
            "gradient_log10": self.gradient,
            "kernel_per_layer": None if self.flow is None else self.flow.K.mean(axis=1).tolist(),
            "chi_perp_per_step": None if self.flow is None else np.exp(self.flow.log_chi_perp).mean(axis=1).tolist(),
            "fixed_point": own("fixed_point", "K", "chi_parallel", "chi_perp", "xi_parallel", "xi_perp", "stability"),
            "critical": own("critical", "C_b", "C_W", "K_star", "universality", "exponents"),
            "depth_width": own("depth_width", *depth_width),
            "growth": None if self.growth is None else str(self.growth),
            "recommended": None if rates is None else {
                "C_b": dense_numbers(rates.network, "C_b"), "C_W": dense_numbers(rates.network, "C_W"),
                "lambda_b": rates.lambda_b,
                "lambda_W": rates.lambda_W, "learning_rate": self.learning_rate, "inputs": self.inputs,
                "gradient_log10": self.recommended_gradient, "output_kernel": self.output_kernel,
                "depth_width": own("recommended_depth_width", *depth_width),
                "shares_before": rates.before.layers.tolist(), "shares_after": rates.after.layers.tolist(),
            },
            "code": self.code,
        }  # fmt: skip
        return _json_ready(found)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def advise(
    net: Network,
    X: Any = None,
    *,
    deepest: int | None = None,
    largest_step: Callable[[Network, np.ndarray], float] = learning_rates.largest_stable_step,
) -> Advice:
    """A report on an initialisation: critical or not, what depth does to it, what to use instead (theory §7).

    X (inputs, features), by default one input with x·x/n_0 = 1; of many rows, 128 are followed through the layers and
    256 used for the spectrum of Θ, evenly spaced, whose largest eigenvalue is scaled to all of them. `deepest` is that
    of `depth_width`; `largest_step(net, X)` may replace `largest_stable_step` by a faster function for the same number.

    Networks with skips or normalisation, such as `ResMLP` or what `from_torch` reads, are advised on as they are built:
    C_b, C_W and learning rates change, skips and normalisations stay.

    >>> report = advise(MLP([4] + [128] * 49 + [1], "tanh", C_W=3.0))
    >>> report.verdict
    'signals or gradients explode'
    >>> report.recommended.C_W[0], round(report.gradient, 1), round(report.recommended_gradient, 1)
    (1.0, 4.3, -1.8)
    >>> print(report.text.splitlines()[0])
    50 layers of width 128, tanh: signals or gradients explode.
    >>> from widthwise.network import ResMLP
    >>> report = advise(ResMLP([4] + [64] * 50 + [1], "relu", C_W=2.0))
    >>> print(report.growth)
    K grows e-fold every 1.44 layers; squared gradients: grows e-fold every 1.44 layers
    >>> round(report.gradient, 1), round(report.recommended_gradient, 1)
    (14.8, 0.4)
    """
    net, deepest = simplified(net), check_deepest(deepest)
    rows = learning_rates.checked_rows(net, X)
    few = _evenly_spaced(rows, _ROWS_FOLLOWED)
    where = "one input with x·x/n_0 = 1" if X is None else f"{len(few)} of {len(rows)} inputs"
    report = partial(Advice, net, inputs=len(rows), measured_on=where)
    flow, trouble = None, ""
    try:
        flow = learning_rates.flow_of(net, few)
    except NotDifferentiable as error:
        return report("cannot be trained by gradients", trouble=str(error))
    except DivergentMoment as error:
        trouble = str(error)
    aim = _critical_aim(net, few) if isinstance(net, MLP) else _block_aim(net, few)
    better, better_growth = _recommend(aim.network, few, rows, deepest, largest_step)
    report = partial(report, **aim.fields, **better)
    if flow is None:
        # the kernel leaves the range in which the activation is tabulated
        return report("signals or gradients explode", trouble=trouble, signal=math.inf, gradient=math.inf)
    signal, gradient = _growth(flow)
    return report(
        _verdict(net, aim.network, (signal, gradient), better_growth), signal=signal, gradient=gradient, flow=flow,
        fixed_point=aim.reached_from(float(flow.K[0].mean())),
        depth_width=_unless_refused(depth_width, net, few[len(few) // 2], deepest),
    )  # fmt: skip


def _mean_square(rows: np.ndarray) -> float:
    """x·x/n_0, averaged."""
    return float(np.mean(np.einsum("ai,ai->a", rows, rows)) / rows.shape[1])


@dataclass(frozen=True)
class _Aim:
    """The network to use instead, or None; fields of `Advice`; where a kernel goes with more layers like the last."""

    network: Network | None
    fields: dict[str, Any]
    reached_from: Callable[[float], FixedPoint | None]


def _critical_aim(net: MLP, few: np.ndarray) -> _Aim:
    """The network at its critical point; none without one, or without hidden layers."""
    points = _unless_refused(fixed_points, net.activation, net.C_b[-1], net.C_W[-1])
    reached = (lambda K: None) if points is None else points.reached_from
    try:
        point = critical(net.activation)
    except InvalidInput as error:
        return _Aim(None, {"reason": str(error)}, reached)
    if net.depth == 1:
        return _Aim(None, {"critical": point}, reached)
    C_W = [point.C_W] * net.depth
    if point.universality in (HALF_STABLE, MARGINAL):
        C_W[0] = (point.K_star - point.C_b) / _mean_square(few)
    return _Aim(net.replace(C_b=point.C_b, C_W=C_W), {"critical": point}, reached)


def _block_aim(net: Network, few: np.ndarray) -> _Aim:
    design = block_design(net, _mean_square(few))
    fields = {"critical": design.point, "reason": design.reason, "design": design, "growth": design.growth}
    return _Aim(design.network, fields, lambda K: None if design.growth is None else design.growth.fixed_point)


def _growth(flow: learning_rates.LayerFlow | learning_rates.NetworkFlow) -> tuple[float, float]:
    """log10 of K at the output over K at the first layer, and of Π χ_⊥; averages over inputs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        signal = float(np.mean(np.log10(flow.K[-1] / flow.K[0])))
    return signal, float(flow.log_chi_perp.sum(axis=0).mean() / math.log(10.0))


def _recommend(better: Network | None, few, rows, deepest, largest_step):
    """The fields of `Advice` from `recommended` to `learning_rate`, and the growth of K and gradients with them."""
    if better is None:
        return {}, (math.nan, math.nan)
    flow, theta = learning_rates.flow_of(better, few), (1.0, 1.0)
    if not isinstance(better, MLP):
        # biases, weights, gains and shifts each keep their share of Θ, which is two as well
        shares = learning_rates.layer_shares(better, few)
        theta = tuple(2.0 * float(part.sum()) / shares.total for part in (shares.biases, shares.weights))
    rates = learning_rates.equalise(better, few, *theta)
    sample = _evenly_spaced(rows, _DIAGONALISED)
    # eigenvalues of Θ on a sample of the inputs grow with its size
    rate = 0.5 * largest_step(rates.network, sample) * len(sample) / len(rows)
    growth = _growth(flow)
    fields = {
        "recommended": better, "recommended_gradient": growth[1], "output_kernel": float(flow.K[-1].mean()),
        "recommended_depth_width": _unless_refused(depth_width, rates.network, few[len(few) // 2], deepest),
        "rates": rates, "learning_rate": rate,
    }  # fmt: skip
    return fields, growth


def dense_numbers(net: Network, name: str) -> tuple[float, ...]:
    """C_b or C_W of every dense layer, in order."""
    return tuple(getattr(layer, name) for layer in net.learned if isinstance(layer, Dense))


def _verdict(net: Network, aimed: Network | None, growth: tuple[float, float], better: tuple[float, float]) -> str:
    """By C_b and C_W first, then by what happens at this depth, beyond the powers of depth of criticality itself."""
    if aimed is not None:
        off = (
            abs(got - target) > _SAME * max(abs(target), 1e-2)
            for name in ("C_b", "C_W")
            for got, target in list(zip(dense_numbers(net, name), dense_numbers(aimed, name), strict=True))[1:]
        )
        if not any(off):
            return "critical"
    # a factor of ten at most, beyond what the critical network itself does
    allowed = [(min(0.0, b) - 1.0, max(0.0, b) + 1.0) if math.isfinite(b) else (-1.0, 1.0) for b in better]
    if any(g > high for g, (_, high) in zip(growth, allowed, strict=True)):
        return "signals or gradients explode"
    if any(g < low for g, (low, _) in zip(growth, allowed, strict=True)):
        return "signals or gradients vanish"
    return "not critical, but mild at this depth"


def _unless_refused(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except InvalidInput:
        return None


def _evenly_spaced(rows: np.ndarray, most: int) -> np.ndarray:
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]


def _json_ready(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_ready(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
