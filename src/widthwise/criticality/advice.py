"""`advise`: is this initialisation critical, what happens with depth, and what to use instead (theory §7)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from widthwise.criticality.advice_text import html_report, text_report
from widthwise.criticality.critical import HALF_STABLE, MARGINAL, Critical, critical
from widthwise.criticality.depth_width import DepthWidth, depth_width
from widthwise.criticality.kernel_fixed_points import FixedPoint, fixed_points
from widthwise.criticality.learning_rates import LearningRates, equalise, largest_stable_step
from widthwise.criticality.single_layers import LayerFlow, checked_rows, layer_flow
from widthwise.criticality.snippets import snippets
from widthwise.errors import DivergentMoment, InvalidInput, NotDifferentiable
from widthwise.network import MLP

#: Rows of X that are followed through the layers, and those on which Θ is diagonalised.
_FOLLOWED, _DIAGONALISED = 128, 256
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
    critical: Critical | None
    reason: str
    trouble: str
    signal: float
    gradient: float
    fixed_point: FixedPoint | None
    flow: LayerFlow | None = field(repr=False)
    depth_width: DepthWidth | None
    recommended: MLP | None
    recommended_gradient: float
    recommended_depth_width: DepthWidth | None
    output_kernel: float
    rates: LearningRates | None = field(repr=False)
    learning_rate: float
    inputs: int
    measured_on: str

    @cached_property
    def code(self) -> dict[str, str]:
        """Code by framework: "pytorch", "flax", "equinox"; empty without a recommendation."""
        return {} if self.rates is None else snippets(self.rates.network, self.learning_rate, self.inputs)

    @property
    def text(self) -> str:
        return text_report(self)

    @property
    def html(self) -> str:
        return html_report(self)

    @property
    def json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, indent=2)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists; None where a number is not finite."""
        dw, point, rates, fixed = self.depth_width, self.critical, self.rates, self.fixed_point
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
            "fixed_point": None if fixed is None else {
                "K": fixed.K, "chi_parallel": fixed.chi_parallel, "chi_perp": fixed.chi_perp,
                "xi_parallel": fixed.xi_parallel, "xi_perp": fixed.xi_perp, "stability": fixed.stability,
            },
            "critical": None if point is None else {
                "C_b": point.C_b, "C_W": point.C_W, "K_star": point.K_star, "universality": point.universality,
                "exponents": point.exponents,
            },
            "depth_width": _depth_width_dict(dw),
            "recommended": None if rates is None else {
                "C_b": list(rates.network.C_b), "C_W": list(rates.network.C_W), "lambda_b": list(rates.lambda_b),
                "lambda_W": list(rates.lambda_W), "learning_rate": self.learning_rate, "inputs": self.inputs,
                "gradient_log10": self.recommended_gradient, "output_kernel": self.output_kernel,
                "depth_width": _depth_width_dict(self.recommended_depth_width),
                "shares_before": rates.before.layers.tolist(), "shares_after": rates.after.layers.tolist(),
            },
            "code": self.code,
        }  # fmt: skip
        return _plain(found)

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
    few = _spread(rows, _FOLLOWED)
    where = "one input with x·x/n_0 = 1" if X is None else f"{len(few)} of {len(rows)} inputs"
    try:
        flow = layer_flow(net, few)
    except NotDifferentiable as error:
        nothing = (None, math.nan, None, math.nan, None, math.nan)
        return Advice(net, "cannot be trained by gradients", None, "", str(error), math.nan, math.nan, None, None, None,
                      *nothing, len(rows), where)  # fmt: skip
    except DivergentMoment as error:
        return _without_flow(net, few, rows, where, str(error), deepest, largest_step)
    point, reason = _critical(net)
    signal, gradient = _growth(flow)
    recommendation, better = _recommend(net, point, few, rows, deepest, largest_step)
    verdict = _verdict(net, point, (signal, gradient), better)
    return Advice(net, verdict, point, reason, "", signal, gradient, _fixed_point(net, flow), flow,
                  _depth_width(net, few, deepest), *recommendation, len(rows), where)  # fmt: skip


def _without_flow(net: MLP, few, rows, where: str, why: str, deepest, largest_step) -> Advice:
    """The kernel leaves the range in which the activation is tabulated: it explodes."""
    point, reason = _critical(net)
    recommendation, _ = _recommend(net, point, few, rows, deepest, largest_step)
    return Advice(net, "signals or gradients explode", point, reason, why, math.inf, math.inf, None, None, None,
                  *recommendation, len(rows), where)  # fmt: skip


def _critical(net: MLP) -> tuple[Critical | None, str]:
    try:
        return critical(net.activation), ""
    except InvalidInput as error:
        return None, str(error)


def _growth(flow: LayerFlow) -> tuple[float, float]:
    """log10 of K at the output over K at the first layer, and of Π χ_⊥; averages over inputs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        signal = float(np.mean(np.log10(flow.K[-1] / flow.K[0])))
    return signal, float(flow.log_later_perp[0].mean() / math.log(10.0))


def _recommend(net: MLP, point: Critical | None, few: np.ndarray, rows: np.ndarray, deepest, largest_step):
    """The fields of `Advice` from `recommended` to `learning_rate`, and the growth of K and gradients with them."""
    if point is None or net.depth == 1:
        return (None, math.nan, None, math.nan, None, math.nan), (math.nan, math.nan)
    C_W = [point.C_W] * net.depth
    if point.universality in (HALF_STABLE, MARGINAL):
        C_W[0] = (point.K_star - point.C_b) / float(np.mean(np.einsum("ai,ai->a", few, few)) / net.widths[0])
    better = net.replace(C_b=point.C_b, C_W=C_W)
    rates, flow = equalise(better, few), layer_flow(better, few)
    sample = _spread(rows, _DIAGONALISED)
    # eigenvalues of Θ on a sample of the inputs grow with its size
    rate = 0.5 * largest_step(rates.network, sample) * len(sample) / len(rows)
    growth, output = _growth(flow), float(flow.K[-1].mean())
    return (better, growth[1], _depth_width(rates.network, few, deepest), output, rates, rate), growth


def _verdict(net: MLP, point: Critical | None, growth: tuple[float, float], better: tuple[float, float]) -> str:
    """By C_b and C_W first, then by what happens at this depth, beyond the powers of depth of criticality itself."""
    if point is not None and net.depth > 1:
        wanted = {"C_b": point.C_b, "C_W": point.C_W}
        close = [
            abs(got - target) <= _SAME * max(abs(target), 1e-2)
            for name, target in wanted.items()
            for got in getattr(net, name)[1:]
        ]
        if all(close):
            return "critical"
    # a factor of ten at most, beyond what the critical network itself does
    allowed = [(min(0.0, b) - 1.0, max(0.0, b) + 1.0) if math.isfinite(b) else (-1.0, 1.0) for b in better]
    if any(g > high for g, (_, high) in zip(growth, allowed, strict=True)):
        return "signals or gradients explode"
    if any(g < low for g, (low, _) in zip(growth, allowed, strict=True)):
        return "signals or gradients vanish"
    return "not critical, but mild at this depth"


def _fixed_point(net: MLP, flow: LayerFlow) -> FixedPoint | None:
    """Where the kernel goes if layers like the last one are added; None if it grows without bound."""
    try:
        return fixed_points(net.activation, net.C_b[-1], net.C_W[-1]).reached_from(float(flow.K[0].mean()))
    except InvalidInput:
        return None


def _depth_width(net: MLP, rows: np.ndarray, deepest: int | None) -> DepthWidth | None:
    try:
        return depth_width(net, rows[len(rows) // 2], deepest)
    except InvalidInput:
        return None


def _depth_width_dict(dw: DepthWidth | None) -> dict[str, Any] | None:
    if dw is None:
        return None
    names = ["depth", "width", "aspect_ratio", "regime", "kernel_fluctuation", "ntk_fluctuation", "fails_at"]
    return {name: getattr(dw, name) for name in names}


def _spread(rows: np.ndarray, most: int) -> np.ndarray:
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
