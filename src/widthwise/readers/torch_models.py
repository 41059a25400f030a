"""PyTorch: read a module, initialise it, and give every tensor its learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from widthwise.activations import Activation, resolve
from widthwise.errors import InvalidInput
from widthwise.extras import need
from widthwise.network import AvgPool, Conv, Dropout, GlobalAvgPool, Network, WeightLayer, check_seed
from widthwise.network.validation import check_real
from widthwise.readers.chains import (
    LayerChain,
    Value,
    chain_of,
    check_factor,
    check_fits,
    model_rates,
    summed,
    unsupported,
    unsupported_part,
)
from widthwise.readers.empirical.model_functions import check_has_values, unwrapped
from widthwise.readers.read_steps import ReadActivation, ReadDense, ReadFactor, ReadHead, ReadLayer, read_norm
from widthwise.readers.specification import net_or_warning, read_chain
from widthwise.readers.torch_positions import MeanOver, Permute, Reshape, at_positions

if TYPE_CHECKING:
    import torch

#: Attributes of activation layers that are their parameters, in the order of the activation's own.
_ACTIVATIONS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("Tanh", "ReLU", "SiLU", "Sigmoid", "GELU", "SELU", "Mish", "Softsign", "ReLU6", "Hardsigmoid", "Hardswish",
     "LogSigmoid", "Tanhshrink"), (),
) | {
    "LeakyReLU": ("negative_slope",), "Softplus": ("beta",), "ELU": ("alpha",), "CELU": ("alpha",),
    "Hardtanh": ("min_val", "max_val"), "Softshrink": ("lambd",), "Hardshrink": ("lambd",),
    "Threshold": ("threshold", "value"),
}  # fmt: skip
#: Functions and methods that do the same as a layer, by the layer's name in small letters.
_POOLS = [f"{adaptive}AvgPool{dimensions}d" for adaptive in ("", "Adaptive") for dimensions in (1, 2, 3)]
_AS_FUNCTIONS = {kind.lower(): kind for kind in (*_ACTIVATIONS, *_POOLS, "Dropout")}
_WITHOUT_LAYER = {"sin": "sin", "erf": "erf", "square": "quadratic"}
_RESHAPES = {"flatten", "view", "reshape", "squeeze"}
#: What belongs to the loss, over the axis of the outputs.
_SOFTMAXES = {"softmax": "softmax", "log_softmax": "log_softmax", "Softmax": "softmax", "LogSoftmax": "log_softmax"}
_TURNS = {"permute", "transpose", "swapaxes"}
#: What reads the shape of a value, not the value.
_SHAPES = {"size", "getattr", "dim"}
#: Functions, operators and methods by name; what Python makes of +=, *= and /=.
_SUMS_BY_NAME = {"add", "iadd", "add_"}
_MULTIPLICATIONS = {"mul", "imul", "mul_", "multiply"}
_DIVISIONS = {"truediv", "itruediv", "div", "div_", "divide", "true_divide"}
_BY_OPERATOR = {"iadd", "imul", "itruediv"}


def from_torch(
    model: Any, *, learning_rate: float = 1.0, optimizer: Any = None, activation: Any = None, recognise: bool = True
) -> Network:
    """The specification of a PyTorch model: widths, activations, and from its weights C_b and C_W (theory §1).

    The model is traced, so modules of your own with a `forward` count as well as `nn.Sequential`.

    Parameters
    ----------
    model : an `nn.Module` made of Linear, Conv1d to Conv3d, activations, AvgPool, AdaptiveAvgPool to one position or a
        mean over all of them, Flatten, Dropout (where the model is in training mode), LayerNorm, RMSNorm, sums x + f(x)
        or g(x) + f(x) with constant factors, and Identity. Two Linear layers in a row have the linear activation
        between them. A final squeeze changes nothing, and a final softmax or log_softmax is left to the loss: the
        network is that of the logits.
    learning_rate : of plain gradient descent on every parameter: λ_b = λ_gain = λ_shift = η and λ_W = η n_{l−1}.
    optimizer : a `torch.optim` optimiser of the model's parameters, whose rates are read instead.
    activation : to use instead of what was read: one, or one per activation.
    recognise : give C_b and C_W exactly where the weights are consistent with one known initialisation: the default
        of torch, He, LeCun or Glorot. Otherwise they are measured, with one value for all layers that agree with one.

    Returns
    -------
    The network: an `MLP` if it is Linear layers and activations alone, else a `Network` with `Conv`, pools, `Flatten`,
    `Dropout`, `Residual`, `Parallel`, `LayerNorm`, `RMSNorm` and, for learned gains and shifts, `Affine`. It takes
    images with channels last, where the model has them first: `np.moveaxis(X, 1, -1)`. A constant factor behind a
    Linear or Conv layer, as in x + 0.1·f(x), is part of its C_W and C_b (and, squared, of its λ). A `WeightsWarning`
    gives numbers where the weights are not consistent with independent zero-mean entries, gains of 1 and shifts of 0.

    >>> from torch import nn
    >>> from widthwise.network import MLP
    >>> model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> from_torch(model) == MLP.torch_default([3, 64, 64, 1], "tanh")
    True
    >>> model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ...                       nn.Linear(64, 1))
    >>> [type(layer).__name__ for layer in from_torch(model).layers]
    ['Conv', 'Elementwise', 'GlobalAvgPool', 'Dense']
    """
    chain = torch_chain(model)
    return net_or_warning(read_chain(chain, learning_rate, activation, recognise, optimizer_rates(chain, optimizer)))


def optimizer_rates(chain: LayerChain, optimizer: Any) -> list[tuple[float, float]] | None:
    """The steps of a `torch.optim` optimiser on the tensors of each layer; zero on those that it does not have."""
    if optimizer is None:
        return None
    torch = need("torch", "torch", "reading a PyTorch model")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidInput("optimizer", repr(optimizer), "a torch.optim optimiser of the model's parameters, or None")
    rates = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
    return [tuple(rates.get(id(tensor), 0.0) for tensor in step.tensors) for step in chain.learned]  # pyright: ignore[reportReturnType]


def init_torch(model: Any, net: Network, seed: int = 0) -> torch.nn.Module:
    """Fill a PyTorch model, in place, with Gaussian weights and biases of variance C_W/n_{l−1} and C_b (theory §1).

    Learned gains of normalisations become 1 and shifts 0. A constant factor of the model, as in x + 0.1·f(x), is taken
    off the weights before it: C_W and C_b are those of the product.

    Returns
    -------
    The model itself. Its layers, widths and activations must be those of `net`.

    >>> from torch import nn
    >>> from widthwise.network import MLP
    >>> model = nn.Sequential(nn.Linear(3, 256), nn.Tanh(), nn.Linear(256, 1))
    >>> model = init_torch(model, MLP([3, 256, 1], "tanh", C_b=0.1, C_W=1.5))
    >>> bool(abs(model[0].weight.detach().var() * 3 - 1.5) < 0.3)
    True
    """
    torch = need("torch", "torch", "init_torch")
    chain = torch_chain(model)
    check_fits(chain, net, "C_b")
    generator = torch.Generator().manual_seed(check_seed(seed))
    with torch.no_grad():
        for step, own in zip(chain.learned, net.learned, strict=True):
            if isinstance(step, ReadDense):
                assert isinstance(own, WeightLayer)
                check_factor(step)
                for tensor, variance in zip(step.tensors, (own.C_W / own.fan_in, own.C_b), strict=True):
                    if tensor is not None:
                        drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                        tensor.copy_(math.sqrt(variance) / step.factor * drawn)
            else:
                for tensor, start in zip(step.tensors, (1.0, 0.0), strict=True):
                    if tensor is not None:
                        tensor.fill_(start)
    return model


def param_groups(model: Any, net: Network, learning_rate: float = 1.0) -> list[dict[str, Any]]:
    """Groups for a `torch.optim` optimiser: step ηλ_W/n_{l−1} on weights and ηλ_b on biases (theory §1).

    Learned gains and shifts of normalisations have ηλ_gain and ηλ_shift. A constant factor β of the model is allowed
    for: the steps on the weights before it are those over β².

    Returns
    -------
    A list for the first argument of the optimiser, one group for each tensor. Layers are counted by weight matrices;
    a gain or shift has the number of the one before it.

    >>> import torch
    >>> from widthwise.network import MLP
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> optimizer = torch.optim.SGD(param_groups(model, MLP([2, 8, 1], "tanh", lambda_b=0.5), learning_rate=0.1))
    >>> print(optimizer.param_groups[1]["name"], optimizer.param_groups[1]["lr"])
    layer 1 bias 0.05
    """
    learning_rate = check_real("learning_rate", learning_rate, "a finite non-negative number")
    chain = torch_chain(model)
    check_fits(chain, net)
    groups, layer = [], 0
    for step, rates in zip(chain.learned, model_rates(chain, net), strict=True):
        dense = isinstance(step, ReadDense)
        layer += dense
        for name, tensor, rate in zip(
            ("weight", "bias") if dense else ("gain", "shift"), step.tensors, rates, strict=True
        ):
            if tensor is not None:
                groups.append({"params": [tensor], "lr": learning_rate * rate, "name": f"layer {layer} {name}"})
    return groups


def torch_chain(model: Any) -> LayerChain:
    """The layers of a module, in the order in which `forward` applies them."""
    torch = need("torch", "torch", "reading a PyTorch model")
    fx = need("torch.fx", "torch", "reading a PyTorch model")
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput("model", type(model).__name__, "a torch.nn.Module")
    model = unwrapped(model)
    check_has_values(dict(model.named_parameters()))
    if type(model).__module__.startswith("torch.nn") and not isinstance(model, torch.nn.Sequential):
        model = torch.nn.Sequential(model)  # a layer by itself is not looked into by the tracer
    try:
        start, *nodes, output = fx.Tracer().trace(model).nodes
    except Exception as error:  # whatever a user's forward may raise on a symbolic input
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise unsupported(
            f"{type(model).__name__}, whose forward cannot be traced ({reason})", "Write it as nn.Sequential."
        ) from error
    values: dict[Any, Value | None] = {start: Value()}  # None: the shape of another value
    order = {node: position for position, node in enumerate([*nodes, output])}
    for position, node in enumerate(nodes):
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        layer = model.get_submodule(name) if node.op == "call_module" else None
        what = name if layer is None else f"{type(layer).__name__}, '{name}'"
        where = f"position {position} ({what})"
        if layer is not None and isinstance(layer, torch.nn.MultiheadAttention):
            raise unsupported_part(type(layer).__name__, where)
        read = [one for one in node.all_input_nodes if values[one] is not None]
        if not node.all_input_nodes:
            raise unsupported(where)
        if not read or (name in _SHAPES and layer is None and node.args[-1] != "T"):
            values[node] = None
            continue
        if _overwrites(layer, name) and any(order[reader] > position for reader in node.args[0].users):
            raise unsupported(f"{where}, in place on a value that is read again", "Use inplace=False.")
        given = [values[one] for one in (*node.args, *node.kwargs.values()) if isinstance(one, fx.Node)]
        incoming = [value for value in given if value is not None]
        if len(incoming) == 2 and name in _SUMS_BY_NAME and not node.kwargs:
            values[node] = summed(incoming[0], incoming[1], where)
            continue
        if len(incoming) != 1 or len(read) != 1:
            raise unsupported(f"{where}, which does not act on the layer before it alone")
        values[node] = incoming[0].then(*(_called(node, name, where) if layer is None else _layer(layer, where)))
    if len(output.all_input_nodes) != 1:
        raise unsupported(f"a model with {len(output.all_input_nodes)} results")
    last, first = values[output.all_input_nodes[0]], values[start]
    assert first is not None
    return chain_of(*at_positions((last.steps_since(first) if last else None) or []))


def _overwrites(layer: Any, name: str) -> bool:
    return name.endswith("_") or name in _BY_OPERATOR if layer is None else getattr(layer, "inplace", False)


def _constant_factor(node: Any, name: str) -> float | None:
    """What a product with, or a quotient by, a plain number multiplies by; None for any other operation."""
    numbers = [value for value in node.args if isinstance(value, int | float)]
    if name not in (*_MULTIPLICATIONS, *_DIVISIONS) or len(node.args) != 2 or len(numbers) != 1 or node.kwargs:
        return None
    if name in _MULTIPLICATIONS:
        return float(numbers[0])
    return None if node.args[1] is not numbers[0] or numbers[0] == 0 else 1.0 / numbers[0]


def _called(node: Any, name: str, where: str) -> Sequence[Any]:
    """What a function or method does."""
    if name in _RESHAPES:
        return [Reshape(_makes_rows(node, name), where)]
    if name in _SOFTMAXES:
        return [_head(name, node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None), where)]
    if name in _TURNS:
        return [Permute(_order_of_axes(node, name, where), where)]
    if name == "mean":
        return [MeanOver(_axes(node, where), where)]
    if name in _WITHOUT_LAYER:
        return [ReadActivation(resolve(_WITHOUT_LAYER[name]), where)]
    factor = _constant_factor(node, name)
    if factor is not None:
        return [ReadFactor(factor, where)]
    nn = need("torch.nn", "torch", "reading a PyTorch model")
    kind = _AS_FUNCTIONS.get(name.replace("_", ""))
    if kind is None:
        raise unsupported_part(name, where)
    options = dict(node.kwargs)
    training = options.pop("training", True)
    return _layer(getattr(nn, kind)(*node.args[1:], **options).train(training), where)


def _makes_rows(node: Any, name: str) -> bool:
    """Whether all axes but the first come to stand in a row."""
    sizes = node.args[1:] if name != "flatten" else ()
    sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    if name == "flatten":
        ends = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)) | dict(node.kwargs)
        return (ends.get("start_dim", 0), ends.get("end_dim", -1)) == (1, -1)
    return len(sizes) == 2


def _order_of_axes(node: Any, name: str, where: str) -> tuple[int, ...]:
    given = node.args[1:]
    if name == "permute":
        axes = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
        return tuple(axis % len(axes) for axis in axes)
    if sorted(axis % 3 for axis in given) != [1, 2]:
        raise unsupported(f"{where} of axes {given}", "Write it as permute with all axes.")
    return 0, 2, 1  # of sequences; images have two axes of positions


def _axes(node: Any, where: str) -> tuple[int, ...]:
    axes = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    if axes is None:
        raise unsupported(f"{where} over all inputs", "Give it the axes of positions.")
    return (axes,) if isinstance(axes, int) else tuple(axes)


def _layer(layer: Any, where: str) -> Sequence[Any]:
    nn = need("torch.nn", "torch", "reading a PyTorch model")
    own = layer._parameters  # an attribute of that name may be a flag, as in a recurrent layer
    tensors = own.get("weight"), own.get("bias")
    first, second = (None if tensor is None else tensor.detach().cpu().double().numpy() for tensor in tensors)
    kind = type(layer).__name__
    if first is None and isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        raise unsupported(f"{where} whose weights are computed from others", "Theory needs weights drawn as they are.")
    if isinstance(layer, nn.Linear):
        assert first is not None
        return [ReadDense(first, second, where, tensors)]
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        assert first is not None
        W = np.moveaxis(first, 1, -1).reshape(len(first), -1)
        return [ReadDense(W, second, where, tensors, conv=_torch_convolution(layer, where))]
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        if len(layer.normalized_shape) != 1:
            raise unsupported(f"{where} over {len(layer.normalized_shape)} axes")
        return read_norm(kind, layer.normalized_shape[0], _epsilon(layer), where, tensors, (first, second))
    if isinstance(layer, nn.Identity):
        return []
    if isinstance(layer, nn.Flatten):
        return [Reshape((layer.start_dim, layer.end_dim) == (1, -1), where)]
    if isinstance(layer, nn.Dropout):
        return [ReadLayer(Dropout(layer.p), where)] if layer.training and layer.p > 0.0 else []
    if kind in _SOFTMAXES:
        return [_head(kind, layer.dim, where)]
    if isinstance(layer, nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d):
        return [ReadLayer(_average_pool(layer, where), where)]
    if isinstance(layer, nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d | nn.AdaptiveAvgPool3d):
        if set(np.ravel(layer.output_size)) != {1}:
            raise unsupported(f"{where} to {layer.output_size} positions", "Pool to one position, or use AvgPool.")
        return [ReadLayer(GlobalAvgPool(), where)]
    if kind not in _ACTIVATIONS:
        raise unsupported_part(kind, where)
    return [ReadActivation(_activation_of(layer), where)]


def _head(name: str, dim: Any, where: str) -> ReadHead:
    if dim not in (None, 1, -1):
        raise unsupported(f"{where} over axis {dim}", "Take dim=-1, the outputs.")
    return ReadHead(_SOFTMAXES[name], where)


def _torch_convolution(layer: Any, where: str) -> Conv:
    """The convolution that a layer is, C's and λ's aside."""
    if layer.groups != 1:
        raise unsupported(f"{where} with {layer.groups} groups", "Only convolutions over all channels have a rule.")
    if layer.padding_mode not in ("zeros", "circular"):
        raise unsupported(f"{where} with padding_mode {layer.padding_mode!r}", "Take 'zeros' or 'circular'.")
    padding = layer.padding.upper() if isinstance(layer.padding, str) else layer.padding
    if layer.padding_mode == "circular" and padding != "VALID" and padding != (0,) * len(layer.kernel_size):
        around = tuple(d * (k - 1) / 2 for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
        if set(layer.stride) != {1} or (padding != "SAME" and padding != around):
            raise unsupported(f"{where}, circular with padding {padding}", f"Take stride 1 and padding {around}.")
        padding = "CIRCULAR"
    return Conv(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, padding, layer.dilation)


def _average_pool(layer: Any, where: str) -> AvgPool:
    if layer.ceil_mode or getattr(layer, "divisor_override", None) is not None:
        raise unsupported(f"{where} with ceil_mode or divisor_override", "Leave both at their defaults.")
    name = type(layer).__name__
    sizes = (layer.kernel_size, layer.stride, layer.padding)
    window, stride, padding = ((size,) * int(name[-2]) if isinstance(size, int) else tuple(size) for size in sizes)
    return AvgPool(window, stride, padding, layer.count_include_pad)


def _epsilon(norm: Any) -> float:
    """ε; where RMSNorm has none, torch takes the rounding of its numbers."""
    torch = need("torch", "torch", "reading a PyTorch model")
    dtype = torch.get_default_dtype() if norm.weight is None else norm.weight.dtype
    return float(torch.finfo(dtype).eps) if norm.eps is None else norm.eps


def _activation_of(layer: Any) -> Activation:
    name = type(layer).__name__
    values = (repr(float(getattr(layer, attribute))) for attribute in _ACTIVATIONS[name])
    tanh = name == "GELU" and layer.approximate == "tanh"
    return resolve("gelu_tanh" if tanh else f"{name}({', '.join(values)})")
