"""What a model does on a batch: sizes of signals and gradients layer by layer, shares of the NTK, over fresh draws."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from widthwise.readers.audit.tensor_uses import ForwardUses, watched_call
from widthwise.readers.empirical.model_functions import first_output
from widthwise.readers.empirical.redraws import EntriesLaw


@dataclass
class LayerSize:
    """Root mean square of what leaves a layer, and norm of the gradient there; standard errors of their logarithms."""

    name: str
    kind: str
    signal: float
    gradient: float
    signal_se: float = math.nan
    gradient_se: float = math.nan


@dataclass
class TensorFacts:
    """One parameter tensor: how it is used, its entries, the C_W or C_b that they mean, and what it adds to the NTK.

    `C` is fan-in × variance for weights and the mean square for biases and gains. `share` is the tensor's part of the
    trace of the NTK, `gradient` the root mean square of the gradient of a random combination of outputs.
    """

    name: str
    shape: tuple[int, ...]
    use: str
    fan_in: float | None
    fan_out: float | None
    pieces: int
    mean: float
    variance: float
    distribution: str
    C: float
    trained: bool = True
    share: float = math.nan
    gradient: float = math.nan
    uses: int = 1

    @property
    def entries(self) -> int:
        return int(np.prod(self.shape)) if self.shape else 1

    @property
    def is_weight(self) -> bool:
        """Whether it stands in a product."""
        return self.use not in ("", "embedding", "vector")


@dataclass
class Observations:
    """Everything that was seen; `problems` says what could not be looked at."""

    tensors: list[TensorFacts] = field(default_factory=list)
    layers: list[LayerSize] = field(default_factory=list)
    uses: ForwardUses = field(default_factory=ForwardUses)
    outputs: float = math.nan
    inputs: float = math.nan
    draws: int = 0
    gradients: dict[str, Any] = field(default_factory=dict, repr=False)
    problems: list[tuple[str, str]] = field(default_factory=list)


def prepared_for_signals(torch: ModuleType, model: Any, rows: int) -> tuple[Any, list[tuple[str, str]]]:
    """A copy that behaves as in the first step of training but without dropout, and what had to be changed for it."""
    module, remarks = copy.deepcopy(model), []
    if any(value.dtype in (torch.float16, torch.bfloat16) for value in module.parameters()):
        module = module.float()
        remarks.append(("half_precision", "weights are in half precision; signals were measured in single precision"))
    module.train()
    norms = [part for part in module.modules() if "BatchNorm" in type(part).__name__]
    for part in module.modules():
        if "Dropout" in type(part).__name__ or (isinstance(getattr(part, "dropout", None), float)):
            part.eval()
        if getattr(part, "inplace", False):
            part.inplace = False
    if norms and rows < 2:
        for part in norms:
            part.eval()
        said = "a batch of one has no variance: batch normalisation used its running statistics. Give more inputs."
        remarks.append(("batch_of_one", said))
    return module, remarks


def observe_module(
    torch: ModuleType,
    module: Any,
    arguments: tuple[tuple, dict],
    laws: Mapping[str, EntriesLaw],
    draws: int,
    seed: int,
) -> Observations:
    """One forward pass that is watched, backward passes, and as many again of fresh draws for standard errors."""
    seen, generator, entries = Observations(), torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    first = _pass(torch, module, arguments, generator, seen)
    if first is None:
        return seen
    again: list[list[LayerSize]] = []
    for _ in range(draws):
        _redraw(torch, module, laws, entries)
        layers = _pass(torch, module, arguments, generator, None)
        if layers is None or len(layers) != len(first):
            break
        again.append(layers)
    seen.draws, seen.layers = len(again), with_spreads(first, again)
    return seen


def with_spreads(first: list[LayerSize], again: list[list[LayerSize]]) -> list[LayerSize]:
    """Sizes with the standard deviation of their logarithm over fresh draws."""
    for number, layer in enumerate(first):
        for what in ("signal", "gradient"):
            values = np.array([getattr(one[number], what) for one in (*again, first)])
            if len(values) > 2 and (values > 0).all():
                setattr(layer, f"{what}_se", float(np.std(np.log(values), ddof=1)))
    return first


def _pass(torch: ModuleType, module: Any, arguments: Any, generator: Any, seen: Observations | None) -> Any:
    """Sizes by layer of one forward and one backward pass; with `seen`, everything else that is to be known."""
    outgoing: list[tuple[str, Any, Any]] = []
    handles = [
        part.register_forward_hook(_recording(outgoing, name, part))
        for name, part in module.named_modules()
        if any(value is not None for value in part._parameters.values())
    ]
    positional = tuple(_copied(torch, value) for value in arguments[0])
    named = {name: _copied(torch, value) for name, value in arguments[1].items()}
    try:
        with torch.enable_grad():
            if seen is None:
                found = module(*positional, **named)
            else:
                found, seen.uses = watched_call(module, lambda: module(*positional, **named))
    except Exception as error:  # whatever a model may raise
        if seen is not None:
            reason = (str(error).splitlines() or [""])[0]
            seen.problems.append(("forward", f"forward raises {type(error).__name__} on this batch: {reason}"))
        return None
    finally:
        for handle in handles:
            handle.remove()
    return _backward(torch, module, first_output(found), outgoing, generator, seen)


def _copied(torch: ModuleType, value: Any) -> Any:
    """A tensor of one's own: a forward pass may change its arguments in place."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def _recording(outgoing: list[tuple[str, Any, Any]], name: str, part: Any) -> Callable[..., None]:
    def hook(module: Any, positional: Any, result: Any) -> None:
        tensor = first_output(result)
        if hasattr(tensor, "is_floating_point") and tensor.is_floating_point():
            outgoing.append((name, part, tensor))

    return hook


def _backward(torch: ModuleType, module: Any, z: Any, outgoing: list, generator: Any, seen: Observations | None) -> Any:
    if not hasattr(z, "requires_grad") or not z.is_floating_point():
        if seen is not None:
            what = f"a tensor of {z.dtype}" if hasattr(z, "dtype") else type(z).__name__
            seen.problems.append(("no_output", f"the result is {what}: gradients need a tensor of real numbers"))
        return None
    sizes = [
        LayerSize(name or "the model", type(part).__name__, _rms(value.detach()), 0.0) for name, part, value in outgoing
    ]
    if seen is not None:
        seen.outputs = _rms(z.detach())
    parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
    if not z.requires_grad:
        if seen is not None:
            seen.problems.append(("no_gradient", "the output does not depend on a trained parameter through autograd"))
        return sizes
    wanted = [value for _, _, value in outgoing if value.requires_grad]
    signs = torch.randint(0, 2, z.shape, generator=generator).to(z) * 2 - 1
    try:
        # gradients by parameters are read once, of the weights that the model came with
        of_weights = [] if seen is None else list(parameters.values())
        found = torch.autograd.grad((signs * z).sum(), [*wanted, *of_weights], allow_unused=True)
    except RuntimeError as error:
        if seen is not None:
            seen.problems.append(("backward", f"the backward pass raises: {(str(error).splitlines() or [''])[0]}"))
        return sizes
    by_layer = iter(found[: len(wanted)])
    rows = max(1, z.shape[0]) if z.dim() else 1
    for size, (_, _, value) in zip(sizes, outgoing, strict=True):
        gradient = next(by_layer) if value.requires_grad else None
        size.gradient = 0.0 if gradient is None else float(gradient.norm()) / math.sqrt(rows)
    if seen is not None:
        seen.gradients = dict(zip(parameters, found[len(wanted) :], strict=True))
    return sizes


def _rms(value: Any) -> float:
    return float(value.norm()) / math.sqrt(value.numel()) if value.numel() else 0.0


def _redraw(torch: ModuleType, module: Any, laws: Mapping[str, EntriesLaw], generator: np.random.Generator) -> None:
    """Other entries of the same law for every tensor."""
    with torch.no_grad():
        for name, value in module.named_parameters():
            if value.is_floating_point():
                value.copy_(torch.from_numpy(np.asarray(laws[name].fresh(generator))))


def tensor_facts(name: str, law: EntriesLaw, uses: Mapping[str, list], trained: bool, gradient: Any) -> TensorFacts:
    """Everything about one tensor, from its entries, its uses in the forward pass and its gradient."""
    use = (uses.get(name) or [None])[0]
    shape = tuple(law.entries.shape)
    what = use.operation if use is not None else "vector" if len(shape) < 2 else ""
    mean, variance = law.mean, law.spread**2
    fan_in = use.fan_in if use is not None else None
    facts = TensorFacts(
        name,
        shape,
        what,
        fan_in,
        use.fan_out if use else None,
        use.pieces if use else 1,
        mean,
        variance,
        law.name,
        (fan_in or 1.0) * (variance + mean**2),
        trained,
        uses=len(uses.get(name) or []),
    )
    if gradient is not None:
        facts.gradient = math.sqrt(_sum_of_squares(gradient) / gradient.size) if gradient.size else 0.0
    return facts


def _sum_of_squares(values: np.ndarray) -> float:
    flat = np.asarray(values, float).ravel()
    return float(flat @ flat)
