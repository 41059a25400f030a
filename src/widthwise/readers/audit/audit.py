"""`audit`: any model, a batch, and what its initialisation looks like; as text, HTML and JSON."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput, one_line
from widthwise.extras import need
from widthwise.network import MLP, Network, check_integer, check_seed
from widthwise.network.validation import refuse_mask
from widthwise.readers.audit.jax_signals import layer_sizes
from widthwise.readers.audit.model_checks import AuditFinding, all_findings, optimiser_findings
from widthwise.readers.audit.observations import (
    LayerSize,
    Observations,
    TensorFacts,
    observe_module,
    prepared_for_signals,
    tensor_facts,
)
from widthwise.readers.empirical.model_functions import function_of, has_values, package_names, unwrapped
from widthwise.readers.empirical.model_kernels import readable_network
from widthwise.readers.empirical.redraws import EntriesLaw
from widthwise.results.theory import theory
from widthwise.text import text_table

#: Rows of a batch on which theory is computed.
_ROWS_OF_THEORY = 32
#: Fresh draws of a model, each of which is run forward and back.
MOST_DRAWS = 1000
#: Kinds of findings that only say what could not be looked at.
_NOT_SEEN = {"forward": "warning", "no_output": "warning", "backward": "warning", "no_gradient": "warning"}


@dataclass(frozen=True)
class Audit:
    """What was found in a model. `text`, `html` and `json` are the same report in three forms.

    `findings` are ranked, errors first; each has `tensor`, `kind`, `severity` ("error", "warning", "note"), `message`
    and `remedy`, the line of code that mends it. `tensors` says of every parameter how it is used, its fans, its mean
    and variance, the C_W or C_b that they mean and its share of the NTK; `layers` gives the size of signals and
    gradients, with standard errors of their logarithms over `draws` fresh draws. `net` is the network the model is,
    where that can be read, and for a plain one `expected` has (layer, mean square of signals, K of
    theory). Numbers that could not be measured are NaN in `tensors` and `layers`, and null in `json`.
    """

    model: str
    parameters: int
    findings: tuple[AuditFinding, ...]
    tensors: tuple[TensorFacts, ...]
    layers: tuple[LayerSize, ...] = ()
    draws: int = 0
    net: Network | None = None
    expected: tuple[tuple[int, float, float], ...] = field(default=(), repr=False)

    @property
    def verdict(self) -> str:
        counts = {kind: sum(one.severity == kind for one in self.findings) for kind in ("error", "warning")}
        if not any(counts.values()):
            return "nothing wrong was found"
        return " and ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count)

    @cached_property
    def text(self) -> str:
        parts = [f"{self.model}, {self.parameters:,} parameters: {self.verdict}."]
        parts += ["\n".join(map(str, self.findings))] if self.findings else []
        parts.append(text_table(_TENSOR_COLUMNS, map(_tensor_row, self.tensors)))
        if self.layers:
            said = (
                f"Sizes by layer, with the spread of their logarithm over {self.draws} fresh draws"
                if self.draws
                else "Sizes by layer"
            )
            rows = [
                (s.name, s.kind, s.signal, _none(s.signal_se), s.gradient, _none(s.gradient_se)) for s in self.layers
            ]
            parts.append(f"{said}:\n" + text_table(("layer", "kind", "signal", "spread", "gradient", "spread"), rows))
        if self.expected:
            rows = [
                (layer, own, expected, own / expected if expected else None) for layer, own, expected in self.expected
            ]
            parts.append(
                "Mean square of signals against theory:\n" + text_table(("layer", "model", "theory", "ratio"), rows)
            )
        return "\n\n".join(parts)

    @cached_property
    def html(self) -> str:
        rows = "".join(
            f"<tr class={one.severity}>"
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in vars(one).values())
            + "</tr>"
            for one in self.findings
        )
        head = "".join(f"<th>{name}</th>" for name in ("tensor", "kind", "severity", "message", "remedy"))
        tensors = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_cell(cell))}</td>" for cell in _tensor_row(one)) + "</tr>"
            for one in self.tensors
        )
        return (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Audit</title><style>body{font:15px/1.5 "
            "sans-serif;max-width:80em;margin:2em auto;padding:0 1em}td,th{padding:2px 10px;text-align:left;"
            "border-bottom:1px solid #ddd}.error td{color:#a00}.warning td{color:#850}</style></head><body>"
            f"<h1>{html.escape(self.model)}: {html.escape(self.verdict)}</h1><table><tr>{head}</tr>{rows}</table>"
            f"<h2>Tensors</h2><table><tr>{''.join(f'<th>{c}</th>' for c in _TENSOR_COLUMNS)}</tr>{tensors}</table>"
            f"<pre>{html.escape(self.text)}</pre></body></html>"
        )

    @property
    def json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, indent=2)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists; None where a number is not finite."""
        found = {
            "model": self.model,
            "parameters": self.parameters,
            "verdict": self.verdict,
            "draws": self.draws,
            "findings": [asdict(one) for one in self.findings],
            "tensors": [asdict(one) for one in self.tensors],
            "layers": [asdict(one) for one in self.layers],
            "network": None if self.net is None else repr(self.net),
            "expected": [list(row) for row in self.expected],
        }
        return plain_numbers(found)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


_TENSOR_COLUMNS = ("tensor", "shape", "used as", "fan in", "fan out", "law", "mean", "std", "C", "NTK share")


def _tensor_row(one: TensorFacts) -> tuple[Any, ...]:
    packed = f" ×{one.pieces}" if one.pieces > 1 else ""
    shape = "×".join(map(str, one.shape)) or "1"
    fans = [None if fan is None else f"{fan:g}" for fan in (one.fan_in, one.fan_out)]
    return (
        one.name,
        shape,
        (one.use or "-") + packed,
        *fans,
        one.distribution,
        one.mean,
        math.sqrt(one.variance),
        one.C,
        _none(one.share),
    )


def _none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def plain_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(item) for item in value]
    return _none(value) if isinstance(value, float) else value


def audit(model: Any, batch: Any = None, *, optimizer: Any = None, draws: int = 2, seed: int = 0) -> Audit:
    """What is wrong with a model's initialisation: fans, variances, copies, units, signals and gradients.

    Parameters
    ----------
    model : any torch module; or a Flax (nnx) or Equinox module, whose fans are taken from shapes and whose units are
        not looked at. Compiled and parallel modules are unwrapped. The model is not changed.
    batch : inputs to call it on, (inputs, …): an array, a tuple of arguments, or a dict of named ones. Without it
        only parameters are looked at.
    optimizer : a `torch.optim` optimiser, whose groups are then looked at as well.
    draws : fresh draws of all weights, each of the law its entries have, for the spread of sizes.

    Returns
    -------
    An `Audit`. What could not be looked at is said among its findings; bad models are audited as far as possible.

    >>> from torch import nn
    >>> layer = nn.Linear(8, 8)
    >>> import copy
    >>> report = audit(nn.Sequential(layer, nn.ReLU(), copy.deepcopy(layer)), np.ones((4, 8)))
    >>> [(one.kind, one.severity, one.tensor) for one in report.findings]
    [('copied_layers', 'error', '2.weight')]
    """
    most = f"an integer from 0 to {MOST_DRAWS}"
    draws, seed = check_integer("draws", draws, 0, MOST_DRAWS, most), check_seed(seed)
    refuse_mask(batch, "batch")
    kinds = package_names(model)
    if "torch" in kinds:
        return _audit_torch(unwrapped(model), batch, optimizer, draws, seed)
    if optimizer is not None:
        raise InvalidInput("optimizer", type(optimizer).__name__, "None, except with a PyTorch model")
    if not kinds & {"flax", "equinox"}:
        raise InvalidInput("model", type(model).__name__, "a torch.nn.Module, flax.nnx.Module or equinox.Module")
    return _audit_jax(model, batch, draws, seed)


def _audit_torch(model: Any, batch: Any, optimizer: Any, draws: int, seed: int) -> Audit:
    torch = need("torch", "torch", "auditing a PyTorch model")
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput("model", type(model).__name__, "a torch.nn.Module")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidInput("optimizer", type(optimizer).__name__, "a torch.optim optimiser, or None")
    every = dict(model.named_parameters())
    named = {name: value for name, value in every.items() if has_values(value)}
    laws = {name: EntriesLaw.of(_entries_of(torch, value)) for name, value in named.items()}
    values = {name: law.entries for name, law in laws.items()}
    seen = _signals_on(torch, model, batch, laws, draws, seed)
    of_gradients = {name: None if g is None else g.detach().cpu().numpy() for name, g in seen.gradients.items()}
    trained = {name: value.requires_grad for name, value in named.items()}
    seen.tensors = [
        tensor_facts(name, law, seen.uses.tensors, trained[name], of_gradients.get(name))
        for name, law in laws.items()
    ]
    _add_shares(seen, of_gradients)
    extra = [_unseen(kind, said, type(model).__name__) for kind, said in seen.problems]
    for name in (name for name in every if name not in named):
        said = "has no values: a lazy layer that was not called, or the meta device"
        extra.append(AuditFinding(name, "no_values", "warning", said, "model(batch), or model.to_empty(device='cpu')"))
    if not any(value.requires_grad for value in every.values()):
        extra.append(
            AuditFinding(
                "the model", "nothing_trained", "warning", "no parameter is trained", "model.requires_grad_(True)"
            )
        )
    if len({str(value.device) for value in every.values()}) > 1:
        extra.append(AuditFinding("the model", "devices", "note", "parameters lie on several devices", ""))
    if optimizer is not None:
        names = {id(value): name for name, value in named.items() if value.requires_grad}
        vectors = {name for name, value in named.items() if value.dim() < 2}
        extra += optimiser_findings(optimizer, names, vectors)
    return _assembled(model, seen, values, _tied_names(model), extra, *_read(model, batch, seen.layers))


def _signals_on(
    torch: Any, model: Any, batch: Any, laws: Mapping[str, EntriesLaw], draws: int, seed: int
) -> Observations:
    """Signals and gradients on a batch; where they cannot be had, an empty record that says why."""
    if batch is None:
        return Observations(problems=[("forward", "no batch was given: only parameters were looked at")])
    if any(value.device.type == "meta" for value in model.parameters()):
        return Observations(problems=[("forward", "signals were not measured: some tensors are on the meta device")])
    if any(law.name == "not finite" for law in laws.values()):
        return Observations(problems=[("forward", "signals were not measured: some weights are no numbers")])
    try:
        arguments = _torch_arguments(torch, batch, model)
        rows = next((len(v) for v in (*arguments[0], *arguments[1].values()) if hasattr(v, "shape") and v.dim()), 1)
        module, remarks = prepared_for_signals(torch, model, rows)
    except Exception as error:  # what cannot be copied, or is no batch
        return Observations(problems=[("forward", f"signals were not measured ({one_line(error)})")])
    devices = torch.random.fork_rng()
    with devices:
        seen = observe_module(torch, module, arguments, laws, draws, seed)
    floats = [
        v for v in (*arguments[0], *arguments[1].values()) if hasattr(v, "is_floating_point") and v.is_floating_point()
    ]
    if floats:
        seen.inputs = float(floats[0].double().square().mean().sqrt())
    seen.problems += remarks
    return seen


def _entries_of(torch: Any, value: Any) -> np.ndarray:
    """In their own precision, which numpy has none of for halves of it."""
    found = value.detach().cpu()
    return (found if found.dtype in (torch.float32, torch.float64) else found.double()).numpy()


def _torch_arguments(torch: Any, batch: Any, model: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    like = next(iter(model.parameters()), torch.zeros(1))
    half = like.dtype in (torch.float16, torch.bfloat16)

    def convert(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        tensor = value.detach() if isinstance(value, torch.Tensor) else torch.as_tensor(np.array(value))
        return (
            tensor.to(like.device, torch.float32 if half else like.dtype)
            if tensor.is_floating_point()
            else tensor.to(like.device)
        )

    if isinstance(batch, Mapping):
        return (), {name: convert(value) for name, value in batch.items()}
    return (tuple(map(convert, batch)), {}) if isinstance(batch, tuple) else ((convert(batch),), {})


def _unseen(kind: str, said: str, model: str) -> AuditFinding:
    severity = "note" if said.startswith("no batch") else _NOT_SEEN.get(kind, "note")
    remedy = (
        "audit(model, (x, mask))  # a tuple gives several arguments, a dict named ones"
        if "forward raises" in said
        else ""
    )
    return AuditFinding(model, kind, severity, said, remedy)


def _tied_names(model: Any) -> dict[str, list[str]]:
    names: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return {found[0]: found for found in names.values()}


def _add_shares(seen: Observations, gradients: Mapping[str, Any]) -> None:
    """Each tensor's part of Σ (∂z/∂θ)², estimated by the gradient of a combination with random signs."""
    squares = {one.name: one.entries * one.gradient**2 for one in seen.tensors if math.isfinite(one.gradient)}
    total = sum(squares.values())
    for facts in seen.tensors:
        if facts.name in gradients and total > 0.0:
            facts.share = squares.get(facts.name, 0.0) / total


def _read(
    model: Any, batch: Any, layers: Sequence[LayerSize]
) -> tuple[Network | None, tuple[tuple[int, float, float], ...]]:
    """The network that the model is, and mean squares of its signals by layer beside K, for plain networks."""
    net = readable_network(model)[0]
    linear = [layer for layer in layers if layer.kind == "Linear"]
    if not isinstance(net, MLP) or batch is None or isinstance(batch, tuple | Mapping) or len(linear) != net.depth:
        return net, ()
    rows = np.asarray(batch.detach().cpu() if hasattr(batch, "detach") else batch, float)[:_ROWS_OF_THEORY]
    if not rows.size:
        return net, ()
    K = np.einsum("laa->l", theory(net, rows.reshape(len(rows), -1), order=0)["K"].values) / len(rows)
    return net, tuple((i + 1, layer.signal**2, float(K[i])) for i, layer in enumerate(linear))


def _audit_jax(model: Any, batch: Any, draws: int, seed: int) -> Audit:
    """Parameters, and signals and gradients where the model can be called; fans from shapes, features last in Flax."""
    seen, extra, name = Observations(), [], type(model).__name__
    flax = "flax" in package_names(model)
    try:
        f = function_of(model, "model")
    except InvalidInput as error:
        if "NaN" not in error.got:
            raise
        finding = AuditFinding(name, "not_finite", "error", error.got, "initialise the module again")
        return Audit(name, 0, (finding,), ())
    values = {key: np.asarray(value, float) for key, value in f.parameters.items()}
    uses = {key: [_use_by_shape(value.shape, flax, key)] for key, value in values.items() if value.ndim >= 2}
    gradients: dict[str, Any] = {}
    if batch is not None:
        try:
            arguments = f.read(batch, "batch")
            z, back = f.transforms.vjp(lambda p: f.call(p, arguments), f.parameters)
            signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=z.shape)
            gradients = {key: np.asarray(g) for key, g in back(f.array(signs))[0].items()}
            seen.outputs = float(np.sqrt(np.mean(np.square(np.asarray(z, float)))))
            seen.layers, seen.draws = layer_sizes(f, arguments, draws, seed)
        except InvalidInput as error:
            extra.append(_unseen("forward", f"forward raises: {error.got}", name))
        except Exception as error:  # layers of which the calls cannot be watched
            reason = (str(error).splitlines() or [""])[0]
            said = f"signals between the layers were not measured ({type(error).__name__}: {reason})"
            extra.append(AuditFinding(name, "between_layers", "note", said, ""))
    seen.uses.tensors, seen.gradients = uses, gradients
    seen.tensors = [
        tensor_facts(key, EntriesLaw.of(value), uses, True, gradients.get(key)) for key, value in values.items()
    ]
    _add_shares(seen, gradients)
    return _assembled(model, seen, values, {}, extra, *_read(model, batch, seen.layers))


def _use_by_shape(shape: tuple[int, ...], flax: bool, name: str) -> Any:
    from widthwise.readers.audit.tensor_uses import TensorUse

    if "embed" in name.lower():
        return TensorUse("embedding", 1.0, float(shape[-1]))
    inner, outer = (shape[:-1], shape[-1:]) if flax else (shape[1:], shape[:1])
    kernel = float(np.prod(shape[:-2] if flax else shape[2:]))
    return TensorUse("product", float(np.prod(inner)), float(np.prod(outer)) * kernel)


def _assembled(
    model: Any,
    seen: Observations,
    values: Mapping[str, np.ndarray],
    tied: Mapping[str, list[str]],
    extra: list[AuditFinding],
    net: Network | None,
    expected: tuple[tuple[int, float, float], ...],
) -> Audit:
    found = [*all_findings(seen, values, tied), *extra]
    found.sort(key=lambda one: ("error", "warning", "note").index(one.severity))
    count = sum(facts.entries for facts in seen.tensors)
    return Audit(
        type(model).__name__, count, tuple(found), tuple(seen.tensors), tuple(seen.layers), seen.draws, net, expected
    )
