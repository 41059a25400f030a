"""PyTorch: read a module, initialise it, and give every tensor its learning rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from widthwise.activations import NO_ACTIVATIONS, Activation, resolve
from widthwise.errors import InvalidInput
from widthwise.experiments.tangent import rates
from widthwise.extras import need
from widthwise.network import MLP, check_seed
from widthwise.readers.chains import LayerChain, ReadActivation, ReadDense, chain_of, check_fits, unsupported
from widthwise.readers.specification import net_or_warning, read_chain

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
_AS_FUNCTIONS = {kind.lower(): kind for kind in _ACTIVATIONS}
_WITHOUT_LAYER = {"sin": "sin", "erf": "erf", "square": "quadratic"}
_RESHAPES = {"flatten", "view", "reshape"}


def from_torch(
    model: Any, *, learning_rate: float = 1.0, optimizer: Any = None, activation: Any = None, recognise: bool = True
) -> MLP:
    """The specification of a PyTorch model: widths, activations, and from its weights C_b and C_W (theory §1).

    The model is traced, so modules of your own with a `forward` count as well as `nn.Sequential`.

    Parameters
    ----------
    model : an `nn.Module` made of Linear, activations, Flatten and Identity. Two Linear layers in a row have the linear
        activation between them.
    learning_rate : of plain gradient descent on every parameter: λ_b = η and λ_W = η n_{l−1}.
    optimizer : a `torch.optim` optimiser of the model's parameters, whose rates are read instead.
    activation : to use instead of what was read: one, or one per hidden layer.
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
    chain = torch_chain(model)
    return net_or_warning(read_chain(chain, learning_rate, activation, recognise, optimizer_rates(chain, optimizer)))


def optimizer_rates(chain: LayerChain, optimizer: Any) -> list[tuple[float, float]] | None:
    """The steps of a `torch.optim` optimiser on weights and biases by layer; zero on those that it does not have."""
    if optimizer is None:
        return None
    steps = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
    owners = [layer.owner for layer in chain.dense]
    return [(steps.get(id(owner.weight), 0.0), steps.get(id(owner.bias), 0.0)) for owner in owners]


def init_torch(model: Any, net: MLP, seed: int = 0) -> torch.nn.Module:
    """Fill a PyTorch model, in place, with Gaussian weights and biases of variance C_W/n_{l−1} and C_b (theory §1).

    Returns
    -------
    The model itself. Its widths and activations must be those of `net`.

    >>> from torch import nn
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
        for layer, own in zip(chain.dense, net.dense, strict=True):
            for tensor, variance in ((layer.owner.weight, own.C_W / own.inputs), (layer.owner.bias, own.C_b)):
                if tensor is not None:
                    tensor.copy_(
                        math.sqrt(variance) * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                    )
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
    check_fits(chain, net)
    groups = []
    for i, (layer, rate) in enumerate(zip(chain.dense, rates(net), strict=True), start=1):
        for name, parameter, each in (("weight", layer.owner.weight, rate.W), ("bias", layer.owner.bias, rate.b)):
            if parameter is not None:
                groups.append({"params": [parameter], "lr": learning_rate * each, "name": f"layer {i} {name}"})
    return groups


def torch_chain(model: Any) -> LayerChain:
    """The weight layers and activations of a module, in the order in which `forward` applies them."""
    torch = need("torch", "torch", "reading a PyTorch model")
    fx = need("torch.fx", "torch", "reading a PyTorch model")
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput("model", type(model).__name__, "a torch.nn.Module")
    if isinstance(model, torch.nn.Linear):
        model = torch.nn.Sequential(model)
    try:
        before, *nodes, _ = fx.Tracer().trace(model).nodes
    except Exception as error:  # whatever a user's forward may raise on a symbolic input
        raise unsupported(
            f"{type(model).__name__}, whose forward cannot be traced ({error})", "Write it as nn.Sequential."
        ) from error
    steps = []
    for position, node in enumerate(nodes):
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        layer = model.get_submodule(name) if node.op == "call_module" else None
        what = name if layer is None else f"{type(layer).__name__}, '{name}'"
        where = f"position {position} ({what})"
        from_nodes = [argument for argument in (*node.args, *node.kwargs.values()) if isinstance(argument, fx.Node)]
        if from_nodes != [before]:
            raise unsupported(f"{where}, which does not act on the layer before it alone")
        before = node
        steps.append(_called(node, name, where) if layer is None else _layer(layer, where))
    return chain_of([step for step in steps if step is not None])


def _called(node: Any, name: str, where: str) -> ReadActivation | None:
    """What a function or method does: nothing where it changes the shape only."""
    if name in _RESHAPES:
        return None
    if name in _WITHOUT_LAYER:
        return ReadActivation(resolve(_WITHOUT_LAYER[name]), where)
    kind = _AS_FUNCTIONS.get(name.replace("_", ""))
    if kind is None:
        raise unsupported(where)
    nn = need("torch.nn", "torch", "reading a PyTorch model")
    return ReadActivation(_activation_of(getattr(nn, kind)(*node.args[1:], **node.kwargs)), where)


def _layer(layer: Any, where: str) -> ReadDense | ReadActivation | None:
    nn = need("torch.nn", "torch", "reading a PyTorch model")
    if isinstance(layer, nn.Linear):
        b = None if layer.bias is None else layer.bias.detach().cpu().double().numpy()
        return ReadDense(layer.weight.detach().cpu().double().numpy(), b, where, layer)
    if isinstance(layer, nn.Identity | nn.Flatten):
        return None
    if isinstance(layer, nn.Dropout):
        if not layer.training or layer.p == 0.0:
            return None
        raise unsupported(where, "Call model.eval() first: dropout is then the identity.")
    if type(layer).__name__ not in _ACTIVATIONS:
        reason = NO_ACTIVATIONS.get(type(layer).__name__.lower())
        raise unsupported(where, f"Reason: {reason}." if reason else "")
    return ReadActivation(_activation_of(layer), where)


def _activation_of(layer: Any) -> Activation:
    name = type(layer).__name__
    values = (repr(float(getattr(layer, attribute))) for attribute in _ACTIVATIONS[name])
    tanh = name == "GELU" and layer.approximate == "tanh"
    return resolve("gelu_tanh" if tanh else f"{name}({', '.join(values)})")
