"""Σ_i Ĥ_ii;ab of a torch model, layer by layer: memory of one layer's gradients, time of one backward pass an output.

What a layer adds for one output follows from what enters it, s_a, and from the signal δ_a that comes back to it: the
gradient by its weights is Σ_p δ_ap s_apᵀ over positions p. A Linear or Conv layer's part is
    Σ_pq (δ_ap·δ_bq)(s_ap·s_bq)      where positions are few, or
    (Σ_p δ_ap s_apᵀ)·(Σ_q δ_bq s_bqᵀ)   in chunks of input channels,
whichever takes fewer multiplications; other layers are differentiated by themselves. Tensors of layers that are called
not once, or not with the inputs first, are left to rows of the Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from widthwise.errors import InvalidInput
from widthwise.progress import DelayedProgress
from widthwise.readers.empirical.model_functions import ModelFunction

if TYPE_CHECKING:
    from widthwise.readers.empirical.tangent_kernels import TangentRows

#: Bytes of one layer's gradients that are held at once, and of its products s_ap·s_bq, which serve every output.
CHUNK_BYTES, OVERLAP_BYTES = 1 << 25, 1 << 28


@dataclass(eq=False)
class CalledLayer:
    """A module with parameters of its own, in one forward pass: names of its tensors, what came in and what left."""

    module: Any
    names: dict[str, str]  # of the module's tensors, in the whole model
    calls: int = 0
    incoming: Any = None
    version: int = 0
    outgoing: Any = None
    overlap: Any = None  # s_ap·s_bq, the same for every output
    total: dict[str, Any] = field(default_factory=dict)


def traced_by_layers(rows: TangentRows) -> np.ndarray:
    """Σ_i Ĥ_ii;ab on (a, b)."""
    f, torch = rows.function, rows.function.library
    n, outputs = rows.outputs.shape
    layers = _candidates(f)
    leaves = {name: value.detach().requires_grad_() for name, value in f.parameters.items()}
    handles = [layer.module.register_forward_hook(_recorder(layer)) for layer in layers]
    try:
        z = f.call(leaves, rows.arguments)
    finally:
        for handle in handles:
            handle.remove()
    if not z.requires_grad:  # nothing that is trained reaches the outputs
        return np.zeros((n, n))
    layers = [layer for layer in layers if _usable(torch, layer, n)]
    layers = _separated(torch, z, layers)
    total = torch.zeros((n, n), dtype=torch.float64, device=z.device)
    with DelayedProgress("outputs of the model") as bar:
        for i in range(outputs):
            signals = _layer_signals(torch, z[:, i].sum(), layers, last=0 < i == outputs - 1)
            if i == 0:
                layers, signals = _confirmed(rows, layers, signals, leaves, z)
            for layer, delta in zip(layers, signals, strict=True):
                total += _contribution(torch, layer, delta, rows).double()
            bar(i + 1, outputs)
        covered = {name for layer in layers for name in layer.names.values()}
        rest = [name for name in f.parameters if name not in covered]
        found = total.cpu().numpy()
        if rest:
            for i in range(outputs):
                found += rows.gram(slice(i, i + 1), rest)
    return found


def _candidates(f: ModelFunction) -> list[CalledLayer]:
    """Modules with parameters of their own, all trained and none shared."""
    owners: dict[int, int] = {}
    for module in f.module.modules():
        for value in module._parameters.values():
            if value is not None:
                owners[id(value)] = owners.get(id(value), 0) + 1
    layers = []
    for prefix, module in f.module.named_modules():
        own = {name: value for name, value in module._parameters.items() if value is not None}
        names = {name: f"{prefix}.{name}" if prefix else name for name in own}
        alone = all(owners[id(value)] == 1 and names[name] in f.parameters for name, value in own.items())
        if own and alone:
            layers.append(CalledLayer(module, names))
    return layers


def _recorder(layer: CalledLayer) -> Callable[..., None]:
    def hook(module: Any, positional: tuple[Any, ...], result: Any) -> None:
        layer.calls += 1
        one_tensor = len(positional) == 1 and hasattr(positional[0], "shape") and hasattr(result, "shape")
        if layer.calls == 1 and one_tensor:
            layer.incoming, layer.outgoing = positional[0], result
            layer.version = positional[0]._version

    return hook


def _usable(torch: Any, layer: CalledLayer, n: int) -> bool:
    """Called once, on one tensor with a row for each input that has not been overwritten since."""
    x, out = layer.incoming, layer.outgoing
    if layer.calls != 1 or x is None or x._version != layer.version or not out.requires_grad:
        return False
    return x.dim() >= 2 and out.dim() >= 2 and len(x) == n and len(out) == n


def _layer_signals(torch: Any, of: Any, layers: list[CalledLayer], last: bool = False) -> list[Any]:
    if not layers:
        return []
    found = torch.autograd.grad(of, [layer.outgoing for layer in layers], retain_graph=not last, allow_unused=True)
    return [
        torch.zeros_like(layer.outgoing) if delta is None else delta for layer, delta in zip(layers, found, strict=True)
    ]


def _separated(torch: Any, z: Any, layers: list[CalledLayer]) -> list[CalledLayer]:
    """Layers in which row a belongs to input a: the signal of the first input must stand in the first row alone."""
    signals = _layer_signals(torch, z[0].sum(), layers)
    return [layer for layer, delta in zip(layers, signals, strict=True) if not bool(delta[1:].any())]


def _confirmed(rows: TangentRows, layers: list[CalledLayer], signals: list[Any], leaves: dict[str, Any], z: Any):
    """Layers whose gradients, summed over inputs, are those of the whole model: nothing else reads their tensors."""
    torch = rows.function.library
    names = list(leaves)
    whole = torch.autograd.grad(z[:, 0].sum(), list(leaves.values()), retain_graph=True, allow_unused=True)
    expected = dict(zip(names, whole, strict=True))
    kept = []
    for layer, delta in zip(layers, signals, strict=True):
        found = _local_gradient(layer, delta, rows)
        sound = True
        for own, name in layer.names.items():
            other = torch.zeros_like(found[own]) if expected[name] is None else expected[name]
            scale = float(other.abs().max()) + float(found[own].abs().max()) + 1e-30
            sound &= float((found[own] - other).abs().max()) <= 1e-4 * scale
        if sound:
            kept.append((layer, delta))
    return [layer for layer, _ in kept], [delta for _, delta in kept]


def _local_gradient(layer: CalledLayer, delta: Any, rows: TangentRows) -> dict[str, Any]:
    """The gradient of Σ_a δ_a·out_a by the layer's tensors."""
    torch = rows.function.library
    own = {name: rows.function.parameters[full] for name, full in layer.names.items()}
    call = torch.func.functional_call
    _, back = torch.func.vjp(lambda p: call(layer.module, p, (layer.incoming.detach(),)), own)
    return back(delta)[0]


def _contribution(torch: Any, layer: CalledLayer, delta: Any, rows: TangentRows) -> Any:
    weight = layer.names.get("weight")
    if weight is None or not _is_product(torch, layer.module):
        return _by_vjp(torch, layer, delta, rows)
    rate = rows.rates.get(weight, 1.0)
    found = rate * _weight_part(torch, layer, delta) if rate else torch.zeros(len(delta), len(delta)).to(delta)
    if "bias" in layer.names:
        sums = _positions_last(torch, layer.module, delta).sum(2)
        found = found + rows.rates.get(layer.names["bias"], 1.0) * (sums @ sums.T)
    return found


def _is_product(torch: Any, module: Any) -> bool:
    nn = torch.nn
    if type(module) is nn.Linear:
        return True
    if type(module) not in (nn.Conv1d, nn.Conv2d) or module.groups != 1:
        return False
    return module.padding_mode == "zeros" and not isinstance(module.padding, str)


def _positions_last(torch: Any, module: Any, value: Any) -> Any:
    """(inputs, channels, positions)."""
    if isinstance(module, torch.nn.Linear):
        return value.reshape(len(value), -1, value.shape[-1]).transpose(1, 2)
    return value.flatten(2)


def _patches(torch: Any, module: Any, x: Any) -> Any:
    """What meets the weights, (inputs, entries of a row of W, positions)."""
    if isinstance(module, torch.nn.Linear):
        return _positions_last(torch, module, x)
    if isinstance(module, torch.nn.Conv1d):
        pad, step, hole = ((0, module.padding[0]), (1, module.stride[0]), (1, module.dilation[0]))
        return torch.nn.functional.unfold(x[:, :, None], (1, module.kernel_size[0]), hole, pad, step)
    how = module.dilation, module.padding, module.stride
    return torch.nn.functional.unfold(x, module.kernel_size, *how)


def _weight_part(torch: Any, layer: CalledLayer, delta: Any) -> Any:
    module, x = layer.module, layer.incoming.detach()
    signal = _positions_last(torch, module, delta)
    n, channels, positions = signal.shape
    entries = int(np.prod(module.weight.shape[1:]))
    by_pairs = (n * positions) ** 2 * channels
    by_gradients = n * channels * entries * (n + positions)
    if by_pairs < by_gradients and (n * positions) ** 2 * x.element_size() <= OVERLAP_BYTES:
        if layer.overlap is None:
            flat = _patches(torch, module, x).transpose(1, 2).reshape(n * positions, entries)
            layer.overlap = flat @ flat.T
        flat = signal.transpose(1, 2).reshape(n * positions, channels)
        return ((flat @ flat.T).mul_(layer.overlap)).reshape(n, positions, n, positions).sum((1, 3))
    return _by_gradients(torch, module, x, signal)


def _by_gradients(torch: Any, module: Any, x: Any, signal: Any) -> Any:
    """From the gradients by some input channels at a time, so that what meets the weights is laid out once."""
    n, channels, positions = signal.shape
    axis, inputs = (x.dim() - 1, x.shape[-1]) if isinstance(module, torch.nn.Linear) else (1, x.shape[1])
    kernel = int(np.prod(module.weight.shape[2:]))  # entries of W for each pair of channels
    size = x.element_size()
    width = max(1, CHUNK_BYTES // (n * channels * kernel * size))
    few = max(1, CHUNK_BYTES // (4 * min(width, inputs) * kernel * positions * size))
    total = torch.zeros((n, n), dtype=x.dtype, device=x.device)
    for start in range(0, inputs, width):
        some = x.narrow(axis, start, min(width, inputs - start))
        gradients = torch.empty((n, channels, some.shape[axis] * kernel), dtype=x.dtype, device=x.device)
        for a in range(0, n, few):
            torch.bmm(
                signal[a : a + few],
                _patches(torch, module, some[a : a + few]).transpose(1, 2),
                out=gradients[a : a + few],
            )
        flat = gradients.flatten(1)
        total.addmm_(flat, flat.T)
    return total


def _by_vjp(torch: Any, layer: CalledLayer, delta: Any, rows: TangentRows) -> Any:
    """The part of any layer, from its own gradients at each input."""
    own = {name: rows.function.parameters[full] for name, full in layer.names.items()}

    def gradient(x: Any, signal: Any) -> dict[str, Any]:
        _, back = torch.func.vjp(lambda p: torch.func.functional_call(layer.module, p, (x[None],))[0], own)
        return back(signal)[0]

    try:
        found = torch.func.vmap(gradient)(layer.incoming.detach(), delta)
    except Exception:  # an operation that cannot be mapped over inputs
        each = [gradient(x, signal) for x, signal in zip(layer.incoming.detach(), delta, strict=True)]
        found = {name: torch.stack([one[name] for one in each]) for name in own}
    parts = [rows.rates.get(layer.names[name], 1.0) * (g.flatten(1) @ g.flatten(1).T) for name, g in found.items()]
    if not parts:
        raise InvalidInput("model", type(layer.module).__name__, "a layer with parameters")
    return sum(parts[1:], parts[0])
