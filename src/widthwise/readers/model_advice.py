"""`advise` for any model: what is wrong by tensor, parameter groups, coupling γ, proxy width and largest stable step.

What can be read as a network is advised on by theory; of everything else the empirical kernel is looked at: its largest
eigenvalue by Lanczos, and how that differs between fresh draws of the weights.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from textwrap import fill
from typing import Any, overload

import numpy as np

from widthwise.criticality.advice import Advice, advise_on_network
from widthwise.criticality.learning_rates import largest_stable_step
from widthwise.errors import InvalidInput
from widthwise.extras import need
from widthwise.inference.transfer_error import ProxyWidth, proxy_width
from widthwise.network import MLP, Network, check_integer, check_seed
from widthwise.network.validation import check_real
from widthwise.progress import DelayedProgress
from widthwise.readers.audit.audit import MOST_DRAWS, audit
from widthwise.readers.audit.audit_report import Audit, plain_numbers
from widthwise.readers.empirical.model_functions import PACKAGES, CallArguments, function_of, package_names
from widthwise.readers.empirical.model_kernels import TangentOperator, readable_network
from widthwise.readers.empirical.redraws import FreshDraws
from widthwise.readers.empirical.tangent_kernels import TangentRows
from widthwise.readers.transfer.parametrisation import Parametrisation, parametrisation
from widthwise.text import TERMINAL, NumbersTable

#: Inputs on which tensors of order 1/n are computed (inputs⁴ numbers), and on which fresh draws are compared.
_ROWS_OF_TENSORS, _ROWS_OF_DRAWS = 6, 4
#: Relative errors of the largest eigenvalue of the kernel, of the model and of fresh draws, and products at most.
_TOLERANCE, _TOLERANCE_OF_DRAWS, _MOST_STEPS_OF_LANCZOS = 1e-3, 1e-2, 40


@dataclass(frozen=True)
class StableStep(NumbersTable):
    """The largest stable step of gradient descent on ½Σ(z−y)² over `inputs` inputs, all tensors at one rate.

    `of_model` is 2/λ_max of the model's own kernel, by Lanczos; `of_theory` that of infinite width, NaN without theory.
    For the mean squared error over inputs and outputs multiply by inputs·outputs/2. `spread` is the standard deviation
    of its logarithm over `draws` fresh draws of the weights, NaN with fewer than three. `error` is the relative error
    of `of_model`, by which it may be too large.
    """

    of_model: float
    of_theory: float
    inputs: int
    outputs: int
    spread: float = math.nan
    draws: int = 0
    error: float = 0.0

    @property
    def of_mean(self) -> float:
        """For the mean squared error, `nn.MSELoss()`."""
        return self.of_model * self.inputs * self.outputs / 2.0


@dataclass(frozen=True)
class ModelAdvice:
    """A report on a model. `text`, `html` and `json` are the same in three forms.

    `audit` says what is wrong, by tensor; `network` is the advice on the network that the model is, or None with
    `no_theory` saying why it cannot be read. `parametrisation` has `param_groups` for the optimiser. `gamma` is the
    coupling L/n^(1−s) of the rule and `regime` what it means; `ntk_variation` the relative standard deviation of the
    neural tangent kernel from network to network, to order 1/n, and `ntk_shift` the relative shift of its mean: NaN
    where there is no theory. `step` is the largest stable step, None without a batch. `proxy` is the smallest width
    worth trusting by theory; `proxy_width` that, or the estimate from fresh draws; `unknown` what could not be said.
    """

    model: str
    audit: Audit
    parametrisation: Parametrisation
    gamma: float
    regime: str
    width: float
    factor: float
    network: Advice | None = None
    no_theory: str = ""
    ntk_variation: float = math.nan
    ntk_shift: float = math.nan
    step: StableStep | None = None
    proxy: ProxyWidth | None = None
    unknown: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> str:
        return self.audit.verdict

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.parametrisation.param_groups

    @property
    def proxy_width(self) -> int | None:
        """By theory, else the width from which fresh draws differ by less than the factor; None if neither is known."""
        if self.proxy is not None:
            return self.proxy.width_of_one
        if self.step is None or not math.isfinite(self.step.spread):
            return None
        return max(1, math.ceil(self.width * (self.step.spread / math.log(self.factor)) ** 2))

    @cached_property
    def text(self) -> str:
        head = [f"{self.model}, {self.audit.parameters:,} parameters: {self.verdict}."]
        parts = [head, _coupling_lines(self), _step_lines(self), _proxy_lines(self)]
        parts.append([f"Not known: {said}" for said in self.unknown])
        said = ["\n".join(fill(line, TERMINAL) for line in lines) for lines in parts if lines]
        said[0] = "\n".join([said[0], *map(str, self.audit.findings)])
        body = "\n\n".join(said)
        groups = "Parameter groups: advice.param_groups, or\n" + str(self.parametrisation)
        lines = [] if self.network is None else ["Read as a network:", *self.network.text.split("\n")]
        network = ["\n".join(fill(line, TERMINAL) for line in lines)] if lines else []
        return "\n\n".join([body, groups, *network])

    @property
    def html(self) -> str:
        return (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Advice</title></head><body>"
            f"<h1>{html.escape(self.model)}: {html.escape(self.verdict)}</h1><pre>{html.escape(self.text)}</pre>"
            "</body></html>"
        )

    @property
    def json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, indent=2)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists; None where a number is not finite."""
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        return plain_numbers({
            "model": self.model, "verdict": self.verdict, "audit": self.audit.to_dict(),
            "network": None if self.network is None else self.network.to_dict(), "no_theory": self.no_theory,
            "gamma": self.gamma, "regime": self.regime,
            "ntk_variation": self.ntk_variation, "ntk_shift": self.ntk_shift,
            "largest_step": None if self.step is None else asdict(self.step), "proxy_width": self.proxy_width,
            "factor": self.factor, "rule": self.parametrisation.rule, "optimiser": self.parametrisation.optimiser,
            "multipliers": self.parametrisation.multipliers, "param_groups": groups, "unknown": list(self.unknown),
        })  # fmt: skip

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def _coupling_lines(found: ModelAdvice) -> list[str]:
    lines = [f"Coupling γ = {found.gamma:.3g} ({found.regime}), by the {found.parametrisation.rule} rule."]
    if math.isfinite(found.ntk_variation):
        shift = (
            f", and their mean by {100 * found.ntk_shift:+.2g}% from infinite width"
            if math.isfinite(found.ntk_shift)
            else ""
        )
        lines.append(
            f"By theory to order 1/n, the neural tangent kernels of individual networks differ by "
            f"{100 * found.ntk_variation:.2g}%{shift}."
        )
    return lines


def _step_lines(found: ModelAdvice) -> list[str]:
    step = found.step
    if step is None:
        return []
    theory = f"; {step.of_theory:.4g} at infinite width" if math.isfinite(step.of_theory) else ""
    error = max(100 * step.error, 1e-4)
    lines = [
        f"Largest stable step of gradient descent: {step.of_model:.4g} (to {error:.1g}%) for ½Σ(z−y)² "
        f"summed over {step.inputs} inputs{theory}; {step.of_mean:.4g} for nn.MSELoss()."
    ]
    if math.isfinite(step.spread):
        lines.append(f"It varies by {100 * step.spread:.2g}% between {step.draws} fresh draws of the weights.")
    if found.parametrisation.optimiser not in ("sgd", "momentum"):
        lines.append(f"{found.parametrisation.optimiser} rescales gradients, so this bound does not apply to it.")
    return lines


def _proxy_lines(found: ModelAdvice) -> list[str]:
    if found.proxy is not None:
        drift = found.proxy.step_drift
        return [
            f"Smallest proxy worth trusting: width {found.proxy_width:,}, from which on the largest stable step is "
            f"within a factor {found.factor:g} of its limit: {found.proxy.direction}. The logarithm of the step "
            f"shifts by {drift:+.3g}/n and varies by {found.proxy.step_spread:.3g}/√n from network to network."
        ]
    if found.proxy_width is not None:
        return [
            f"Smallest proxy worth trusting: width {found.proxy_width:,} where this model has {found.width:,.0f}, "
            "judged by fresh draws: from there on the largest steps of single networks agree within a factor "
            f"{found.factor:g}. The direction of the drift is not known."
        ]
    return []


@overload
def advise(
    net: Network,
    X: Any = None,
    *,
    deepest: int | None = None,
    largest_step: Callable[[Network, np.ndarray], float] = largest_stable_step,
) -> Advice: ...
@overload
def advise(
    net: Any,
    X: Any = None,
    *,
    base: Any = None,
    rule: str | None = None,
    optimiser: Any = None,
    learning_rate: float | None = None,
    factor: float | None = None,
    draws: int | None = None,
    seed: int | None = None,
) -> ModelAdvice: ...
def advise(net: Any, X: Any = None, **options: Any) -> Any:
    """A report on a network or on any model: what is wrong, what to use instead, and what its width means.

    For a widthwise network this is the report of `widthwise.criticality.advice.advise_on_network` (theory §7), which
    see for `deepest` and `largest_step`. The following is about a torch, Flax (nnx) or Equinox module.

    Parameters
    ----------
    net : the module; it need not be one that widthwise reads. It is not changed.
    X : a batch to call it on, as for `audit`; without it steps and proxies are not known.
    **options : for a module

        - base: a smaller model of the same kind, whose hyperparameters are to be transferred;
        - rule: of transfer, as for `parametrisation`; "mup" with a base, otherwise "standard";
        - optimiser: "sgd", "momentum", "adam" (default), "adamw" or "muon"; or your `torch.optim` optimiser, whose
          kind, learning rate, ε and weight decay are read;
        - learning_rate: that of the base; 0.001 unless an optimiser is given;
        - factor: by which a proxy's largest step may differ, 1.1;
        - draws: fresh draws of the weights for models without theory, 6; 0 for none. seed: of the draws.

    Returns
    -------
    `Advice` for a network, `ModelAdvice` for a module.

    Examples
    --------

    >>> import torch
    >>> torch.manual_seed(0)                                                        # doctest: +ELLIPSIS
    <torch...>
    >>> nn = torch.nn
    >>> model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> report = advise(model, torch.randn(8, 3), optimiser="sgd", learning_rate=0.1)
    >>> report.verdict, round(report.gamma, 4), report.regime
    ('nothing wrong was found', 0.0469, 'lazy')
    >>> 0.5 < report.step.of_model / report.step.of_theory < 2.0
    True
    >>> optimiser = torch.optim.SGD(report.param_groups)
    """
    if package_names(net) & PACKAGES:
        return _advise_model(net, X, **_checked_options(options, _MODEL_OPTIONS, "a module"))
    if not isinstance(net, Network):
        raise InvalidInput("net", type(net).__name__, "a widthwise network, or a torch, Flax (nnx) or Equinox module")
    return advise_on_network(net, X, **_checked_options(options, ("deepest", "largest_step"), "a network"))


_MODEL_OPTIONS = ("base", "rule", "optimiser", "learning_rate", "factor", "draws", "seed")


def _checked_options(options: dict[str, Any], known: tuple[str, ...], what: str) -> dict[str, Any]:
    for name in options:
        if name not in known:
            every = name in (*_MODEL_OPTIONS, "deepest", "largest_step")
            got = f"{name}= with {what}" if every else f"an unknown argument {name!r}"
            raise InvalidInput("advise", got, f"for {what} the arguments {', '.join(known)}")
    return options


def _advise_model(
    model: Any,
    batch: Any,
    base: Any = None,
    rule: str | None = None,
    optimiser: Any = None,
    learning_rate: float | None = None,
    factor: float | None = None,
    draws: int | None = None,
    seed: int | None = None,
) -> ModelAdvice:
    factor = check_real("factor", 1.1 if factor is None else factor, "a number above 1", least=math.nextafter(1.0, 2.0))
    most = f"an integer from 0 to {MOST_DRAWS}"
    draws = check_integer("draws", 6 if draws is None else draws, 0, MOST_DRAWS, most)
    seed = check_seed(0 if seed is None else seed)
    settings, given = _optimiser_settings(optimiser)
    if learning_rate is not None:
        settings["learning_rate"] = learning_rate
    rule = rule if rule is not None else "standard" if base is None else "mup"
    found = audit(model, batch, optimizer=given, seed=seed)
    groups = parametrisation(model, base, rule, **settings)
    net, reason = (found.net, "") if found.net is not None else readable_network(model)
    report: dict[str, Any] = {"no_theory": reason}
    unknown = [f"theory of this model: {reason}"] if net is None else []
    rows = None if net is None or batch is None else _theory_rows(net, batch)
    if net is not None:
        report |= _by_theory(net, rows, factor, unknown)
    step = None
    try:
        step = _stable_step(model, batch, net, rows, draws if report.get("proxy") is None else 0, seed)
    except InvalidInput as error:
        unknown.append(f"the largest stable step: {error}")
    if any(type(part).__name__.startswith("BatchNorm") for part in getattr(model, "modules", tuple)()):
        unknown.append("steps with statistics of the batch: batch normalisation was taken with its running ones")
    if report.get("proxy") is None and (step is None or step.draws < 3):
        unknown.append(
            "the smallest proxy: give a batch, and draws of at least 3 where there is no theory of order 1/n"
        )
    report |= {
        "gamma": groups.gamma,
        "regime": groups.regime,
        "width": groups.width,
        "step": step,
        "unknown": tuple(unknown),
    }
    return ModelAdvice(type(model).__name__, found, groups, factor=factor, **report)


def _optimiser_settings(optimiser: Any) -> tuple[dict[str, Any], Any]:
    """Arguments of `parametrisation`, and the torch optimiser if one was given."""
    if optimiser is None or isinstance(optimiser, str):
        return {"optimiser": "adam" if optimiser is None else optimiser}, None
    if "torch" not in package_names(optimiser) or not hasattr(optimiser, "param_groups"):
        expected = "'sgd', 'momentum', 'adam', 'adamw', 'muon', or a torch.optim optimiser"
        raise InvalidInput("optimiser", type(optimiser).__name__, expected)
    need("torch", "torch", "reading a PyTorch optimiser")
    first, kind = optimiser.param_groups[0], type(optimiser).__name__.lower()
    kind = "momentum" if kind == "sgd" and first.get("momentum", 0.0) else kind
    settings = {"optimiser": kind, "learning_rate": float(first["lr"])}
    settings["weight_decay"] = float(first.get("weight_decay", 0.0))
    settings |= {"epsilon": float(first["eps"])} if kind in ("adam", "adamw") else {}
    return settings, optimiser


def _theory_rows(net: Network, batch: Any) -> np.ndarray | None:
    """The batch as inputs of the network, or None where it is not one array of them."""
    try:
        found = np.asarray(batch.detach().cpu() if hasattr(batch, "detach") else batch, float)
        return net.check_inputs(found.reshape(len(found), -1), "X")
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _by_theory(net: Network, rows: np.ndarray | None, factor: float, unknown: list[str]) -> dict[str, Any]:
    """Advice on the network, the 1/n error of γ, and the proxy."""
    found: dict[str, Any] = {}
    try:
        found["network"] = advise_on_network(net, rows)
        meaning = found["network"].depth_width
        if meaning is not None:
            found |= {"ntk_variation": meaning.ntk_fluctuation, "ntk_shift": meaning.ntk_shift}
    except InvalidInput as error:
        unknown.append(f"advice on the network: {error}")
    if rows is None:
        return found
    few = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _ROWS_OF_TENSORS)).round().astype(int))]
    try:
        one_output = net.replace(widths=[*net.widths[:-1], 1]) if isinstance(net, MLP) else net
        found["proxy"] = proxy_width(one_output, few, factor=factor)
    except InvalidInput as error:
        unknown.append(f"the proxy by theory: {error}")
    return found


def _stable_step(
    model: Any, batch: Any, net: Network | None, rows: np.ndarray | None, draws: int, seed: int
) -> StableStep | None:
    if batch is None:
        return None
    f = function_of(model, "model")  # whose own precision is enough for three digits, at half the cost
    arguments = f.read(batch, "X")
    operator = TangentOperator(TangentRows(f, arguments, {}))
    outputs, inputs = operator.shape
    generator = np.random.default_rng(seed)
    with DelayedProgress("kernels of the model") as bar:
        start = generator.normal(size=operator.shape)
        found = operator.top(start, _TOLERANCE, _MOST_STEPS_OF_LANCZOS, lambda: bar(0, 1 + draws))
        if not found.value > 0.0:
            got = "a neural tangent kernel of zero on this batch"
            raise InvalidInput("model", got, "outputs that weights can change")
        # kernels of other draws are much alike: the vector of one is near that of the next
        start = found.vector.reshape(operator.shape)[:, :_ROWS_OF_DRAWS]
        start = start + 0.1 * np.abs(start).max() * generator.normal(size=start.shape)
        few = f.part(arguments, slice(0, min(inputs, _ROWS_OF_DRAWS)))
        fresh = FreshDraws(f, seed) if draws else None
        logs = _logs_of_draws(fresh, few, start, draws, bar) if fresh is not None else []
    of_theory = largest_stable_step(net, rows) if net is not None and rows is not None else math.nan
    spread = float(np.std(logs, ddof=1)) if len(logs) > 2 else math.nan
    return StableStep(2.0 / found.value, of_theory, inputs, outputs, spread, len(logs), found.error / found.value)


def _logs_of_draws(
    fresh: FreshDraws, few: CallArguments, start: np.ndarray, draws: int, bar: DelayedProgress
) -> list[float]:
    """Logarithms of the largest eigenvalue of the kernel, of those draws that have a kernel."""
    logs = []
    for draw in range(draws):
        drawn = TangentOperator(TangentRows(fresh.function.at(fresh.draw()), few, {}))
        try:
            top = drawn.top(start, _TOLERANCE_OF_DRAWS, _MOST_STEPS_OF_LANCZOS, partial(bar, 1 + draw, 1 + draws))
        except InvalidInput:  # outputs or products that overflow
            continue
        if top.value > 0.0:
            start = top.vector
            logs.append(math.log(top.value))
    return logs
