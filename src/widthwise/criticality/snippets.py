"""The same network as code for PyTorch, Flax and Equinox: initialisation, and a learning rate for every tensor."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from widthwise.activations import Activation
from widthwise.network import MLP, Affine, Dense, Elementwise, Layer, LayerNorm, Network, Residual, RMSNorm

_TORCH = {
    "tanh": "torch.tanh", "relu": "torch.relu", "sigmoid": "torch.sigmoid", "sin": "torch.sin", "erf": "torch.erf",
    "gelu": "nn.functional.gelu", "swish": "nn.functional.silu", "softplus": "nn.functional.softplus",
    "linear": "nn.Identity()", "quadratic": "torch.square",
}  # fmt: skip
_JAX = {
    "tanh": "jnp.tanh", "relu": "jax.nn.relu", "sigmoid": "jax.nn.sigmoid", "sin": "jnp.sin",
    "erf": "jax.scipy.special.erf", "gelu": "lambda z: jax.nn.gelu(z, approximate=False)", "swish": "jax.nn.silu",
    "softplus": "jax.nn.softplus", "linear": "lambda z: z", "quadratic": "jnp.square",
}  # fmt: skip


def numbers_of(net: Network, learning_rate: float, inputs: int) -> dict[str, Any]:
    """Standard deviations and step sizes per layer: std √(C_W/n_{l−1}) and √C_b, rates ηλ_W/n_{l−1} and ηλ_b."""
    dense = [layer for layer in net.learned if isinstance(layer, Dense)]
    return {
        "widths": list(net.widths),
        "weight_std": [math.sqrt(layer.C_W / layer.inputs) for layer in dense],
        "bias_std": [math.sqrt(layer.C_b) for layer in dense],
        "weight_lr": [learning_rate * layer.lambda_W / layer.inputs for layer in dense],
        "bias_lr": [learning_rate * layer.lambda_b for layer in dense],
        "inputs": inputs,
    }


def snippets(net: Network, learning_rate: float, inputs: int = 1) -> dict[str, str]:
    """Code by framework: "pytorch", "flax" (nnx), "equinox". SGD with a step size for each tensor.

    For networks with skips or normalisation, PyTorch alone: a model written out where all blocks are alike, and how to
    initialise one's own.

    The step sizes are for ½Σ(z−y)² summed over `inputs` inputs, which the printed `loss` computes: on a mini-batch it
    is multiplied by the number of inputs that each of its rows stands for.

    >>> print(snippets(MLP([3, 8, 1], "tanh"), 0.1)["pytorch"].splitlines()[0])
    import torch
    """
    if not isinstance(net, MLP):
        return _block_snippets(net, learning_rate, inputs)
    numbers = "\n".join(_assignment(*number) for number in numbers_of(net, learning_rate, inputs).items())
    templates = {"pytorch": _PYTORCH, "flax": _FLAX, "equinox": _EQUINOX}
    return {
        framework: template.format(numbers=numbers, activation=_activation_line(net.activation, framework)).lstrip()
        + _LOSS.format(outputs="jax.vmap(model)(x)" if framework == "equinox" else "model(x)")
        for framework, template in templates.items()
    }


@dataclass(frozen=True)
class _AlikeBlocks:
    """A dense layer, residual blocks (norm, activation, dense) of one kind, and a last dense layer behind the same."""

    skip: float
    activation: Activation
    norm: LayerNorm | RMSNorm | None
    gains: tuple[Affine, ...]

    @classmethod
    def of(cls, net: Network) -> _AlikeBlocks | None:
        end = net.numbered[-2] + 1
        blocks, tail = [layer for layer in net.layers[1:end] if isinstance(layer, Residual)], net.layers[end:]
        kinds = {_kinds(tail), *(_kinds(block.inner) for block in blocks)}
        if len(blocks) != end - 1 or len(kinds) > 1 or len({block.scale for block in blocks}) != 1:
            return None
        bodies = [*(block.inner for block in blocks), tail]
        *norm, sigma, _ = (layer for layer in tail if not isinstance(layer, Affine))
        known = [layer for layer in norm if isinstance(layer, LayerNorm | RMSNorm)]
        if len(norm) > 1 or len(known) < len(norm) or not isinstance(sigma, Elementwise):
            return None
        gains = tuple(layer for body in bodies for layer in body if isinstance(layer, Affine))
        return cls(blocks[0].scale, sigma.activation, known[0] if known else None, gains)


def _kinds(layers: Sequence[Layer]) -> tuple[Any, ...]:
    """What must be alike: kinds of layers, activations and ε, not rates and widths."""
    return tuple(type(layer) if isinstance(layer, Dense | Affine) else layer for layer in layers)


def _block_snippets(net: Network, learning_rate: float, inputs: int) -> dict[str, str]:
    numbers = numbers_of(net, learning_rate, inputs)
    own = _OWN_TORCH.format(learning_rate=f"{learning_rate:.10g}", inputs=inputs) + _LOSS.format(outputs="model(x)")
    alike = _AlikeBlocks.of(net) if net.depth > 2 else None
    if alike is None:
        return {"pytorch": own.lstrip()}
    n, norm = net.n, "nn.Identity()"
    if alike.norm is not None:
        kind, learned = type(alike.norm).__name__, bool(alike.gains)
        norm = f"nn.{kind}({n}, eps={alike.norm.epsilon:g}, elementwise_affine={learned})"
        if learned:
            numbers["gain_lr"] = [learning_rate * layer.lambda_gain for layer in alike.gains]
            if kind == "LayerNorm":
                numbers["shift_lr"] = [learning_rate * layer.lambda_shift for layer in alike.gains]
    written = "\n".join(_assignment(*number) for number in numbers.items())
    rated = [(rates, tensor) for rates, tensor in (("gain_lr", "weight"), ("shift_lr", "bias")) if rates in numbers]
    groups = "".join(_GROUP_OF_NORMS.format(rates=rates, tensor=tensor) for rates, tensor in rated)
    code = _BLOCKS.format(numbers=written, activation=_activation_line(alike.activation, "pytorch"), norm=norm,
                          skip=f"{alike.skip:.10g} * " if alike.skip != 1.0 else "", groups=groups)  # fmt: skip
    return {"pytorch": code.lstrip() + _LOSS.format(outputs="model(x)"), "pytorch, your own model": own.lstrip()}


def _activation_line(sigma: Activation, framework: str) -> str:
    torch = framework == "pytorch"
    if not sigma.builtin or (sigma.name not in _TORCH and sigma.name != "leaky_relu"):
        return f"from my_activations import activation  # {sigma.name}, written in {'torch' if torch else 'jax.numpy'}"
    if sigma.name in _TORCH:
        return f"activation = {(_TORCH if torch else _JAX)[sigma.name]}"
    slope = sigma.parameters[0]
    return (
        f"activation = nn.LeakyReLU({slope!r})" if torch else f"activation = lambda z: jax.nn.leaky_relu(z, {slope!r})"
    )


def _assignment(name: str, values: Any) -> str:
    if isinstance(values, int):
        return f"{name} = {values}"
    if len(values) > 2 and len(set(values)) == 1:
        return f"{name} = [{values[0]:.10g}] * {len(values)}"
    if len(values) > 3 and len(set(values[1:-1])) == 1:
        return f"{name} = [{values[0]:.10g}] + [{values[1]:.10g}] * {len(values) - 2} + [{values[-1]:.10g}]"
    text = ", ".join(str(v) if isinstance(v, int) else f"{v:.10g}" for v in values)
    body = textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    ")
    return f"{name} = [{text}]" if len(text) < 90 else f"{name} = [\n{body}\n]"


_PYTORCH = """
import torch
from torch import nn

{numbers}
{activation}


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:]))
        for layer, weight, bias in zip(self.layers, weight_std, bias_std):
            nn.init.normal_(layer.weight, std=weight)
            nn.init.normal_(layer.bias, std=bias)

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = activation(layer(x))
        return self.layers[-1](x)


model = MLP()
groups = []
for layer, weight, bias in zip(model.layers, weight_lr, bias_lr):
    groups.append({{"params": [layer.weight], "lr": weight}})
    groups.append({{"params": [layer.bias], "lr": bias}})
optimizer = torch.optim.SGD(groups, lr=1.0)
"""

_BLOCKS = """
import torch
from torch import nn

{numbers}
{activation}


class Model(nn.Module):  # x = {skip}x + W activation(norm(x)) + b in every block
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:]))
        self.norms = nn.ModuleList({norm} for _ in widths[1:-1])
        for layer, weight, bias in zip(self.layers, weight_std, bias_std):
            nn.init.normal_(layer.weight, std=weight)
            nn.init.normal_(layer.bias, std=bias)

    def forward(self, x):
        x = self.layers[0](x)
        for norm, layer in zip(self.norms[:-1], self.layers[1:-1]):
            x = {skip}x + layer(activation(norm(x)))
        return self.layers[-1](activation(self.norms[-1](x)))


model = Model()
groups = []
for layer, weight, bias in zip(model.layers, weight_lr, bias_lr):
    groups.append({{"params": [layer.weight], "lr": weight}})
    groups.append({{"params": [layer.bias], "lr": bias}})
{groups}optimizer = torch.optim.SGD(groups, lr=1.0)
"""

_GROUP_OF_NORMS = """for norm, rate in zip(model.norms, {rates}):
    groups.append({{"params": [norm.{tensor}], "lr": rate}})
"""

_OWN_TORCH = """
import torch
import widthwise as ww

inputs = {inputs}
# `model` is yours, `X` the inputs
report = ww.advise(ww.from_torch(model), X)
ww.init_torch(model, report.rates.network)
optimizer = torch.optim.SGD(ww.param_groups(model, report.rates.network, report.learning_rate))  # {learning_rate}
"""

_FLAX = """
import jax
import jax.numpy as jnp
import optax
from flax import nnx

{numbers}
{activation}


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List()
        for fan_in, fan_out, weight, bias in zip(widths[:-1], widths[1:], weight_std, bias_std):
            kernel_init, bias_init = nnx.initializers.normal(weight), nnx.initializers.normal(bias)
            self.layers.append(nnx.Linear(fan_in, fan_out, kernel_init=kernel_init, bias_init=bias_init, rngs=rngs))

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = activation(layer(x))
        return self.layers[-1](x)


def labels(params):  # each tensor by its path: layers/0/kernel, layers/0/bias, …
    name = lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value")
    return jax.tree_util.tree_map_with_path(name, params)


model = MLP(nnx.Rngs(0))
rates = {{}}
for i, (weight, bias) in enumerate(zip(weight_lr, bias_lr)):
    rates[f"layers/{{i}}/kernel"], rates[f"layers/{{i}}/bias"] = optax.sgd(weight), optax.sgd(bias)
optimizer = nnx.Optimizer(model, optax.multi_transform(rates, labels), wrt=nnx.Param)
"""

_EQUINOX = """
import equinox as eqx
import jax
import jax.numpy as jnp
import optax

{numbers}
{activation}


def linear(fan_in, fan_out, weight, bias, key):
    layer = eqx.nn.Linear(fan_in, fan_out, key=key)
    first, second = jax.random.split(key)
    values = weight * jax.random.normal(first, (fan_out, fan_in)), bias * jax.random.normal(second, (fan_out,))
    return eqx.tree_at(lambda m: (m.weight, m.bias), layer, values)


class MLP(eqx.Module):
    layers: list

    def __init__(self, key):
        keys = jax.random.split(key, len(weight_std))
        self.layers = [linear(*one) for one in zip(widths[:-1], widths[1:], weight_std, bias_std, keys)]

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = activation(layer(x))
        return self.layers[-1](x)


model = MLP(jax.random.key(0))
params = eqx.filter(model, eqx.is_array)
rates, names = {{}}, []
for i, (weight, bias) in enumerate(zip(weight_lr, bias_lr)):
    rates[f"weight_{{i}}"], rates[f"bias_{{i}}"] = optax.sgd(weight), optax.sgd(bias)
    names += [f"weight_{{i}}", f"bias_{{i}}"]
labels = eqx.tree_at(lambda m: [x for layer in m.layers for x in (layer.weight, layer.bias)], params, names)
optimizer = optax.multi_transform(rates, lambda _: labels)  # a module is callable itself
state = optimizer.init(params)
"""

_LOSS = """

def loss(model, x, y):  # a mini-batch stands for all inputs
    return 0.5 * inputs / len(x) * (({outputs} - y) ** 2).sum()
"""
