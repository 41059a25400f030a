"""`advise`: is this initialisation critical, what happens with depth, and what to use instead (theory §7)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from widthwise.criticality.advice_text import html_report, text_report
from widthwise.criticality.critical import HALF_STABLE, MARGINAL, Critical, critical
from widthwise.criticality.depth_width import DepthWidth, depth_width
from widthwise.criticality.kernel_fixed_points import FixedPoint, fixed_points
from widthwise.criticality.learning_rates import (
    LayerFlow,
    LearningRates,
    checked_rows,
    equalise,
    largest_stable_step,
    layer_flow,
)
from widthwise.criticality.snippets import snippets
from widthwise.errors import DivergentMoment, InvalidInput, NotDifferentiable
from widthwise.network import MLP

#: Rows of X that are followed through the layers, and those on which Θ is diagonalised.
_ROWS_FOLLOWED, _DIAGONALISED = 128, 256
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
    what its depth means at its width.
    """

    net: MLP
    verdict: str
    critical: Critical | None = None
    reason: str = ""
    trouble: str = ""
    signal: float = math.nan
    gradient: float = math.nan
    fixed_point: FixedPoint | None = None
    flow: LayerFlow | None = field(default=None, repr=False)
    depth_width: DepthWidth | None = None
    recommended: MLP | None = None
    recommended_gradient: float = math.nan
    recommended_depth_width: DepthWidth | None = None
    output_kernel: float = math.nan
    rates: LearningRates | None = field(default=None, repr=False)
    learning_rate: float = math.nan
    inputs: int = 1
    measured_on: str = ""

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
        rates, own = self.rates, partial(_chosen, self)
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
            "recommended": None if rates is None else {
                "C_b": rates.network.C_b, "C_W": rates.network.C_W, "lambda_b": rates.lambda_b,
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
    net: MLP,
    X: Any = None,
    *,
    deepest: int | None = None,
    largest_step: Callable[[MLP, np.ndarray], float] = largest_stable_step,
) -> Advice:
    """A report on an initialisation: critical or not, what depth does to it, what to use instead (theory §7).

    X (inputs, features), by default one input with x·x/n_0 = 1; of many rows, 128 are followed through the layers and
    256 used for the spectrum of Θ, evenly spaced, whose largest eigenvalue is scaled to all of them. `deepest` is that
    of `depth_width`; `largest_step(net, X)` may replace `largest_stable_step` by a faster function for the same number.

    >>> report = advise(MLP([4] + [128] * 49 + [1], "tanh", C_W=3.0))
    >>> report.verdict
    'signals or gradients explode'
    >>> report.recommended.C_W[0], round(report.gradient, 1), round(report.recommended_gradient, 1)
    (1.0, 4.3, -1.8)
    >>> print(report.text.splitlines()[0])
    50 layers of width 128, tanh: signals or gradients explode.
    """
    rows = checked_rows(net, X)
    few = _evenly_spaced(rows, _ROWS_FOLLOWED)
    where = "one input with x·x/n_0 = 1" if X is None else f"{len(few)} of {len(rows)} inputs"
    report = partial(Advice, net, inputs=len(rows), measured_on=where)
    flow, trouble = None, ""
    try:
        flow = layer_flow(net, few)
    except NotDifferentiable as error:
        return report("cannot be trained by gradients", trouble=str(error))
    except DivergentMoment as error:
        trouble = str(error)
    point, reason = _critical_or_reason(net)
    better = _recommend(net, point, few, rows, deepest, largest_step)
    report = partial(report, critical=point, reason=reason, **better.fields)
    if flow is None:
        # the kernel leaves the range in which the activation is tabulated
        return report("signals or gradients explode", trouble=trouble, signal=math.inf, gradient=math.inf)
    signal, gradient = _growth(flow)
    # where the kernel goes if layers like the last one are added
    points = _unless_refused(fixed_points, net.activation, net.C_b[-1], net.C_W[-1])
    return report(
        _verdict(net, point, (signal, gradient), better.growth), signal=signal, gradient=gradient, flow=flow,
        fixed_point=None if points is None else points.reached_from(float(flow.K[0].mean())),
        depth_width=_unless_refused(depth_width, net, few[len(few) // 2], deepest),
    )  # fmt: skip


class _Recommended(NamedTuple):
    """The fields of `Advice` from `recommended` to `learning_rate`, and the growth of K and gradients with them."""

    fields: dict[str, Any]
    growth: tuple[float, float]


def _critical_or_reason(net: MLP) -> tuple[Critical | None, str]:
    try:
        return critical(net.activation), ""
    except InvalidInput as error:
        return None, str(error)


def _growth(flow: LayerFlow) -> tuple[float, float]:
    """log10 of K at the output over K at the first layer, and of Π χ_⊥; averages over inputs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        signal = float(np.mean(np.log10(flow.K[-1] / flow.K[0])))
    return signal, float(flow.log_later_perp[0].mean() / math.log(10.0))


def _recommend(net: MLP, point: Critical | None, few, rows, deepest, largest_step) -> _Recommended:
    if point is None or net.depth == 1:
        return _Recommended({}, (math.nan, math.nan))
    C_W = [point.C_W] * net.depth
    if point.universality in (HALF_STABLE, MARGINAL):
        C_W[0] = (point.K_star - point.C_b) / float(np.mean(np.einsum("ai,ai->a", few, few)) / net.widths[0])
    better = net.replace(C_b=point.C_b, C_W=C_W)
    rates, flow = equalise(better, few), layer_flow(better, few)
    sample = _evenly_spaced(rows, _DIAGONALISED)
    # eigenvalues of Θ on a sample of the inputs grow with its size
    rate = 0.5 * largest_step(rates.network, sample) * len(sample) / len(rows)
    growth = _growth(flow)
    fields = {
        "recommended": better, "recommended_gradient": growth[1], "output_kernel": float(flow.K[-1].mean()),
        "recommended_depth_width": _unless_refused(depth_width, rates.network, few[len(few) // 2], deepest),
        "rates": rates, "learning_rate": rate,
    }  # fmt: skip
    return _Recommended(fields, growth)


def _verdict(net: MLP, point: Critical | None, growth: tuple[float, float], better: tuple[float, float]) -> str:
    """By C_b and C_W first, then by what happens at this depth, beyond the powers of depth of criticality itself."""
    if point is not None and net.depth > 1:
        off = (
            abs(got - target) > _SAME * max(abs(target), 1e-2)
            for given, target in ((net.C_b, point.C_b), (net.C_W, point.C_W))
            for got in given[1:]
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


def _chosen(advice: Advice, part: str, *names: str) -> dict[str, Any] | None:
    """Some attributes of a part of a report by name, None without that part."""
    value = getattr(advice, part)
    return None if value is None else {name: getattr(value, name) for name in names}


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
