"""`audit`: any model, a batch, and what its initialisation looks like; as text, HTML and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from widthwise.errors import InvalidInput, one_line
from widthwise.experiments.sampler import mean_squares
from widthwise.extras import need
from widthwise.network import Network, check_integer, check_seed
from widthwise.network.validation import refuse_mask
from widthwise.readers.audit.audit_report import Audit
from widthwise.readers.audit.jax_signals import layer_sizes
from widthwise.readers.audit.model_checks import AuditFinding, all_findings, optimiser_findings
from widthwise.readers.audit.observations import (
    Observations,
    observe_module,
    prepared_for_signals,
    tensor_facts,
)
from widthwise.readers.audit.remedies import Remedies, attribute
from widthwise.readers.audit.tensor_uses import TensorUse
from widthwise.readers.empirical.model_functions import function_of, has_values, package_names, unwrapped
from widthwise.readers.empirical.model_kernels import too_much_work
from widthwise.readers.empirical.redraws import EntriesLaw
from widthwise.readers.jax_shapes import StoredShape, stored_shapes
from widthwise.readers.models import evaluated_reading, read_parameters
from widthwise.results.theory import theory

#: Rows of a batch on which theory is computed.
_ROWS_OF_THEORY, _IMAGES_OF_THEORY = 32, 4
#: Expectations at pairs of positions that this may take, about a second.
_WORK_OF_THEORY = 2e8
#: Fresh draws of a model, each of which is run forward and back.
MOST_DRAWS = 1000
#: Kinds of findings that only say what could not be looked at.
_NOT_SEEN = {"forward": "warning", "no_output": "warning", "backward": "warning", "no_gradient": "warning"}


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
    named = {name: value for name, value in every.items() if has_values(value) and not value.is_complex()}
    laws = {name: EntriesLaw.of(_entries_of(torch, value)) for name, value in named.items()}
    values = {name: law.entries for name, law in laws.items()}
    seen = _signals_on(torch, model, batch, laws, draws, seed)
    of_gradients = {name: None if g is None else g.detach().cpu().numpy() for name, g in seen.gradients.items()}
    trained = {name: value.requires_grad for name, value in named.items()}
    seen.tensors = [
        tensor_facts(name, law, seen.uses.tensors, trained[name], of_gradients.get(name)) for name, law in laws.items()
    ]
    _add_shares(seen, of_gradients)
    extra = [_unseen(kind, said, type(model).__name__) for kind, said in seen.problems]
    for name, value in every.items():
        if not has_values(value):
            said = "has no values: a lazy layer that was not called, or the meta device"
            remedy = "model(batch)  # or model.to_empty(device='cpu')"
            extra.append(AuditFinding(name, "no_values", "warning", said, remedy))
        elif value.is_complex():
            extra.append(AuditFinding(name, "complex", "note", "has complex entries, which were not looked at", ""))
    extra += _buffers_that_are_no_numbers(torch, model)
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
    return _assembled(model, seen, values, _tied_names(model), extra, *_read(model, batch))


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
        each = [v for v in (*arguments[0], *arguments[1].values()) if isinstance(v, torch.Tensor)]
        floats = [v for v in each if v.is_floating_point()]
        if any(not v.numel() for v in each):
            said = "signals were not measured: the batch has no entries"
            return Observations(problems=[("forward", said), *remarks])
        if any(not bool(torch.isfinite(v).all()) for v in floats):
            said = "signals were not measured: the batch has NaN or infinite entries"
            return Observations(problems=[("forward", said), *remarks])
        with torch.random.fork_rng():
            seen = observe_module(torch, module, arguments, laws, draws, seed)
    except Exception as error:  # what cannot be copied or watched, or is no batch
        return Observations(problems=[("forward", f"signals were not measured ({one_line(error)})")])
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
        if "forward raises" in said or "not measured (" in said
        else ""
    )
    return AuditFinding(model, kind, severity, said, remedy)


def _buffers_that_are_no_numbers(torch: Any, model: Any) -> Iterator[AuditFinding]:
    """NaN in running statistics and their like; infinite entries are those of masks."""
    for name, value in model.named_buffers():
        floats = value.is_floating_point() and value.device.type != "meta"
        bad = int(torch.isnan(value).sum()) if floats else 0
        if bad:
            message = f"{bad} of {value.numel()} entries of this buffer are NaN"
            remedy = f"{attribute(name)}.nan_to_num_()  # or load the buffer again"
            yield AuditFinding(name, "not_finite", "error", message, remedy)


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


def _read(model: Any, batch: Any) -> tuple[Network | None, tuple[tuple[int, float, float], ...]]:
    """The network that the model is, and mean squares of its signals by layer beside K (theory §2)."""
    try:
        reading = evaluated_reading(model)
    except InvalidInput:
        return None, ()
    net = reading.net
    if batch is None or isinstance(batch, tuple | Mapping):
        return net, ()
    try:
        rows = np.asarray(batch.detach().cpu() if hasattr(batch, "detach") else batch, float)
        if rows.ndim < 2:
            return net, ()
        rows = rows[: _ROWS_OF_THEORY if rows.ndim == 2 else _IMAGES_OF_THEORY]
        X = net.check_inputs(reading.chain.images(rows))
        if too_much_work(net, X, _WORK_OF_THEORY):
            return net, ()
        K = np.einsum("laa->l", theory(net, X, order=0)["K"].values) / len(X)
    except (InvalidInput, TypeError, ValueError, OverflowError, OSError):  # no rows that the network takes
        return net, ()
    own = mean_squares(net, read_parameters(reading), X)
    return net, tuple((i + 1, one, float(expected)) for i, (one, expected) in enumerate(zip(own, K, strict=True)))


def _audit_jax(model: Any, batch: Any, draws: int, seed: int) -> Audit:
    """Parameters, and signals and gradients where the model can be called; fans from shapes, features last in Flax."""
    seen, extra, name = Observations(), [], type(model).__name__
    try:
        f = function_of(model, "model")
    except InvalidInput as error:
        if "NaN" not in error.got:
            raise
        remedy = f"model = {name}(...)  # initialise the module again"
        finding = AuditFinding(name, "not_finite", "error", error.got, remedy)
        return Audit(name, 0, (finding,), ())
    values = {key: np.asarray(value, float) for key, value in f.parameters.items()}
    stored = stored_shapes(model, {key: value.shape for key, value in values.items()})
    uses = {key: [_use_by_shape(one)] for key, one in stored.items() if len(one.shape) >= 2}
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
    return _assembled(model, seen, values, {}, extra, *_read(model, batch))


def _use_by_shape(stored: StoredShape) -> TensorUse:
    fan_out, fan_in, *kernel = stored.shape
    if stored.table:
        return TensorUse("embedding", 1.0, float(fan_out))
    return TensorUse("product", float(fan_in * math.prod(kernel)), float(fan_out * math.prod(kernel)))


def _assembled(
    model: Any,
    seen: Observations,
    values: Mapping[str, np.ndarray],
    tied: Mapping[str, list[str]],
    extra: list[AuditFinding],
    net: Network | None,
    expected: tuple[tuple[int, float, float], ...],
) -> Audit:
    package = next((name for name in ("flax", "equinox") if name in package_names(model)), "torch")
    found = [*all_findings(seen, values, tied, Remedies(package)), *extra]
    found.sort(key=lambda one: ("error", "warning", "note").index(one.severity))
    count = sum(facts.entries for facts in seen.tensors)
    return Audit(
        type(model).__name__, count, tuple(found), tuple(seen.tensors), tuple(seen.layers), seen.draws, net, expected
    )
