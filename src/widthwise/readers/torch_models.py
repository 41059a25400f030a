"""PyTorch: read a module, initialise it, and give every tensor its learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from widthwise.activations import Activation, resolve
from widthwise.errors import InvalidInput
from widthwise.experiments.tangent import rates
from widthwise.network import MLP
from widthwise.network.validation import check_integer
from widthwise.readers.activations import parametric
from widthwise.readers.chains import Chain, Dense, Nonlinear, chain_of, check_fits, standard_deviations, unsupported
from widthwise.readers.packages import need
from widthwise.readers.specification import Reading, read_chain, warn_of

if TYPE_CHECKING:
    import torch

_SIMPLE = {
    "Tanh": "tanh", "ReLU": "relu", "SiLU": "swish", "Sigmoid": "sigmoid",
}  # fmt: skip
_FAMILIES = {
    "ELU": ("elu", "alpha"), "CELU": ("celu", "alpha"), "Hardtanh": ("hardtanh", "min_val", "max_val"),
    "SELU": ("selu",), "Softsign": ("softsign",), "Mish": ("mish",), "ReLU6": ("relu6",),
    "Hardsigmoid": ("hardsigmoid",), "Hardswish": ("hardswish",), "LogSigmoid": ("logsigmoid",),
    "Tanhshrink": ("tanhshrink",),
}  # fmt: skip
#: Functions and methods by name, as the layer that does the same.
_FUNCTIONS = {
    "tanh": "Tanh", "relu": "ReLU", "relu_": "ReLU", "tanh_": "Tanh", "silu": "SiLU", "sigmoid": "Sigmoid",
    "gelu": "GELU", "leaky_relu": "LeakyReLU", "softplus": "Softplus", "elu": "ELU", "celu": "CELU", "selu": "SELU",
    "softsign": "Softsign", "mish": "Mish", "hardtanh": "Hardtanh", "relu6": "ReLU6", "hardsigmoid": "Hardsigmoid",
    "hardswish": "Hardswish", "logsigmoid": "LogSigmoid", "tanhshrink": "Tanhshrink",
}  # fmt: skip
_WITHOUT_LAYER = {"sin": "sin", "erf": "erf", "square": "quadratic"}
_RESHAPES = {"flatten", "view", "reshape"}


def from_torch(
    model: Any, *, learning_rate: float = 1.0, optimizer: Any = None, activation: Any = None, recognise: bool = True
) -> MLP:
    """The specification of a PyTorch model: widths, activation, and from its weights C_b and C_W (theory §1).

    The model is traced, so modules of your own with a `forward` count as well as `nn.Sequential`.

    Parameters
    ----------
    model : an `nn.Module` made of Linear, one kind of activation, Flatten and Identity.
    learning_rate : of plain gradient descent on every parameter: λ_b = η and λ_W = η n_{l−1}.
    optimizer : a `torch.optim` optimiser of the model's parameters, whose rates are read instead.
    activation : to use instead of the one that was read.
    recognise : give C_b and C_W exactly where the weights are consistent with one known initialisation: the default
        of torch, He, LeCun or Glorot. Otherwise they are measured, with one value for all layers that agree with one.

    Returns
    -------
    The network. A `WeightsWarning` gives numbers where the weights are not consistent with independent zero-mean
    entries.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    >>> from_torch(model) == MLP.torch_default([3, 64, 64, 1], "tanh")
    True
    """
    return warn_of(read_torch(model, learning_rate, optimizer, activation, recognise))


def read_torch(
    model: Any, learning_rate: float = 1.0, optimizer: Any = None, activation: Any = None, recognise: bool = True
) -> Reading:
    """`from_torch` with everything that was read, and no warning."""
    chain = torch_chain(model)
    steps = [[learning_rate] * len(chain.dense)] * 2
    if optimizer is not None:
        known = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        steps = [[known.get(id(getattr(d.owner, name)), 0.0) for d in chain.dense] for name in ("bias", "weight")]
    return read_chain(chain, (steps[0], steps[1]), activation, recognise)


def init_torch(model: Any, net: MLP, seed: int = 0) -> torch.nn.Module:
    """Fill a PyTorch model, in place, with Gaussian weights and biases of variance C_W/n_{l−1} and C_b (theory §1).

    Returns
    -------
    The model itself. Its widths and activation must be those of `net`.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 256), nn.Tanh(), nn.Linear(256, 1))
    >>> model = init_torch(model, MLP([3, 256, 1], "tanh", C_b=0.1, C_W=1.5))
    >>> bool(abs(model[0].weight.detach().var() * 3 - 1.5) < 0.3)
    True
    """
    torch = need("torch", "torch", "init_torch")
    chain = torch_chain(model)
    check_fits(chain, net)
    generator = torch.Generator().manual_seed(check_integer("seed", seed, 0))
    with torch.no_grad():
        for layer, std in zip(chain.dense, standard_deviations(net), strict=True):
            for tensor, size in ((layer.owner.weight, std.W), (layer.owner.bias, std.b)):
                if tensor is not None:
                    tensor.copy_(size * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    return model


def param_groups(model: Any, net: MLP, learning_rate: float = 1.0) -> list[dict[str, Any]]:
    """Groups for a `torch.optim` optimiser: step ηλ_W/n_{l−1} on weights and ηλ_b on biases (theory §1).

    Returns
    -------
    A list for the first argument of the optimiser, one group for each weight matrix and each bias.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> optimizer = torch.optim.SGD(param_groups(model, MLP([2, 8, 1], "tanh", lambda_b=0.5), learning_rate=0.1))
    >>> print(optimizer.param_groups[1]["name"], optimizer.param_groups[1]["lr"])
    layer 1 bias 0.05
    """
    chain = torch_chain(model)
    check_fits(chain, net.replace(C_b=0.0))
    groups = []
    for i, (layer, rate) in enumerate(zip(chain.dense, rates(net), strict=True), start=1):
        for name, parameter, each in (("weight", layer.owner.weight, rate.W), ("bias", layer.owner.bias, rate.b)):
            if parameter is not None:
                groups.append({"params": [parameter], "lr": learning_rate * each, "name": f"layer {i} {name}"})
    return groups


def torch_chain(model: Any) -> Chain:
    """The weight layers and activation of a module, in the order in which `forward` applies them."""
    torch = need("torch", "torch", "reading a PyTorch model")
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput("model", type(model).__name__, "a torch.nn.Module")
    return chain_of(list(_steps(model)))


def _steps(model: Any) -> Iterator[Dense | Nonlinear]:
    fx = need("torch.fx", "torch", "reading a PyTorch model")
    nn = need("torch.nn", "torch", "reading a PyTorch model")
    if isinstance(model, nn.Linear):
        model = nn.Sequential(model)
    try:
        nodes = list(fx.Tracer().trace(model).nodes)
    except Exception as error:  # whatever a user's forward may raise on a symbolic input
        raise unsupported(
            f"{type(model).__name__}, whose forward cannot be traced ({error})", "Write it as nn.Sequential."
        ) from error
    before = nodes[0]
    for position, node in enumerate(nodes[1:-1]):
        where = f"position {position} ({_called(model, node)})"
        from_nodes = [argument for argument in (*node.args, *node.kwargs.values()) if isinstance(argument, fx.Node)]
        if from_nodes != [before]:
            raise unsupported(f"{where}, which does not act on the layer before it alone")
        before = node
        step = _step(model, node, where)
        if step is not None:
            yield step


def _called(model: Any, node: Any) -> str:
    if node.op == "call_module":
        return f"{type(model.get_submodule(node.target)).__name__}, '{node.target}'"
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _step(model: Any, node: Any, where: str) -> Dense | Nonlinear | None:
    if node.op == "call_module":
        return _layer(model.get_submodule(node.target), where)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name in _RESHAPES:
        return None
    if name in _WITHOUT_LAYER:
        return Nonlinear(resolve(_WITHOUT_LAYER[name]), where)
    if name not in _FUNCTIONS:
        raise unsupported(where)
    nn = need("torch.nn", "torch", "reading a PyTorch model")
    return _layer(getattr(nn, _FUNCTIONS[name])(*node.args[1:], **node.kwargs), where)


def _layer(layer: Any, where: str) -> Dense | Nonlinear | None:
    kind = type(layer).__name__
    nn = need("torch.nn", "torch", "reading a PyTorch model")
    if isinstance(layer, nn.Linear):
        return Dense(_array(layer.weight), None if layer.bias is None else _array(layer.bias), where, layer)
    if isinstance(layer, nn.Identity | nn.Flatten) or (isinstance(layer, nn.Dropout) and not _drops(layer)):
        return None
    sigma = _activation(layer, kind)
    if sigma is None:
        remedy = "Call model.eval() first: dropout is then the identity." if isinstance(layer, nn.Dropout) else ""
        raise unsupported(where, remedy)
    return Nonlinear(sigma, where)


def _drops(layer: Any) -> bool:
    return layer.training and layer.p > 0.0


def _activation(layer: Any, kind: str) -> Activation | None:
    if kind in _SIMPLE:
        return resolve(_SIMPLE[kind])
    if kind == "LeakyReLU":
        return resolve(f"leaky_relu({float(layer.negative_slope)!r})")
    if kind == "GELU":
        return resolve("gelu") if layer.approximate == "none" else parametric("gelu_tanh")
    if kind == "Softplus":
        return resolve("softplus") if layer.beta == 1 else parametric("softplus", float(layer.beta))
    if kind in _FAMILIES:
        name, *attributes = _FAMILIES[kind]
        return parametric(name, *(float(getattr(layer, attribute)) for attribute in attributes))
    return None


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()
