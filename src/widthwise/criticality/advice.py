"""`advise`: is this initialisation critical, what happens with depth, and what to use instead (theory §7)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from widthwise.criticality import learning_rates
from widthwise.criticality.advice_text import html_report, text_report
from widthwise.criticality.block_advice import BlockDesign, block_design
from widthwise.criticality.critical import HALF_STABLE, MARGINAL, Critical, critical
from widthwise.criticality.depth_laws import DepthGrowth
from widthwise.criticality.depth_width import DepthWidth, check_deepest, depth_width
from widthwise.criticality.kernel_fixed_points import FixedPoint, fixed_points
from widthwise.criticality.snippets import snippets
from widthwise.errors import DivergentMoment, InvalidInput, NotDifferentiable, WidthwiseError, one_line
from widthwise.network import MLP, Dense, Network, check_real, simplified

#: Rows of X that are followed through the layers, and those on which Θ is diagonalised.
_ROWS_FOLLOWED, _DIAGONALISED = 128, 256
#: C_b and C_W this close to their critical values, relatively, are critical.
_SAME = 1e-4


@dataclass(frozen=True)
class Advice:
    """A report on a network. `text`, `json` and `html` are the same in three forms; `code` is ready to paste.

    `verdict` is "critical" (C_b and C_W are), "not critical, but harmless at this depth", "signals or gradients
    vanish", "signals or gradients explode" or "cannot be trained by gradients". `critical` is the critical point of the
    activation, or None with `reason` saying why there is none; `trouble` says why a kernel could not be followed.
    `signal` and `gradient` are log10 of K at the output over K at the first layer, and of the squared gradient at the
    first layer over that at the last. `recommended` is the network to use instead, `rates` its learning rates,
    `learning_rate` half of the largest stable step for ½Σ(z−y)² summed over `inputs` inputs: those of X, or one.
    `output_kernel` is the variance of its outputs, the least that targets should have; `recommended_depth_width` says
    what its depth means at its width. For networks with skips or normalisation `design` says what is recommended and
    why, `growth` what more blocks like the last one would do, and `code` is for PyTorch.

    `signal` and `gradient` are NaN for networks that cannot be trained by gradients, `signal` also if K is zero;
    `recommended_gradient`, `output_kernel` and `learning_rate` are NaN without a recommendation.
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


def advise_on_network(
    net: Network,
    X: Any = None,
    *,
    deepest: int | None = None,
    largest_step: Callable[[Network, np.ndarray], float] = learning_rates.largest_stable_step,
) -> Advice:
    """A report on an initialisation: is it critical, what does depth do to it, what to use instead (theory §7).

    X (inputs, features), by default one input with x·x/n_0 = 1; of many rows, 128 are followed through the layers and
    256 used for the spectrum of Θ, evenly spaced, whose largest eigenvalue is scaled to all of them. `deepest` is that
    of `depth_width`; `largest_step(net, X)` may replace `largest_stable_step` by a faster function for the same number.

    Networks with skips or normalisation, such as `ResMLP` or what `from_torch` reads, are advised on as they are built:
    C_b, C_W and learning rates change, skips and normalisations stay.

    >>> report = advise_on_network(MLP([4] + [128] * 49 + [1], "tanh", C_W=3.0))
    >>> report.verdict
    'signals or gradients explode'
    >>> report.recommended.C_W[0], round(report.gradient, 1), round(report.recommended_gradient, 1)
    (1.0, 4.3, -1.8)
    >>> print(report.text.splitlines()[0])
    50 layers of width 128, tanh: signals or gradients explode.
    >>> from widthwise.network import ResMLP
    >>> report = advise_on_network(ResMLP([4] + [64] * 50 + [1], "relu", C_W=2.0))
    >>> print(report.growth)
    K grows e-fold every 1.44 layers; the squared gradient grows e-fold every 1.44 layers
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
    try:
        step = check_real(
            "largest_step", largest_step(rates.network, sample), "a function that returns a positive number"
        )
    except WidthwiseError:
        raise
    except Exception as error:  # the caller's own function, or nothing that can be called
        expected = "a function of a network and inputs"
        raise InvalidInput("largest_step", f"{largest_step!r} ({one_line(error)})", expected) from error
    rate = 0.5 * step * len(sample) / len(rows)
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
    return "not critical, but harmless at this depth"


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
