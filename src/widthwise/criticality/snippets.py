"""The same network as code for PyTorch, Flax and Equinox: initialisation, and a learning rate for every tensor."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from widthwise.network import MLP

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


def numbers_of(net: MLP, learning_rate: float, inputs: int) -> dict[str, Any]:
    """Standard deviations and step sizes per layer: std √(C_W/n_{l−1}) and √C_b, rates ηλ_W/n_{l−1} and ηλ_b."""
    fan_in = net.widths[:-1]
    return {
        "widths": list(net.widths),
        "weight_std": [math.sqrt(C / n) for C, n in zip(net.C_W, fan_in, strict=True)],
        "bias_std": [math.sqrt(C) for C in net.C_b],
        "weight_lr": [learning_rate * rate / n for rate, n in zip(net.lambda_W, fan_in, strict=True)],
        "bias_lr": [learning_rate * rate for rate in net.lambda_b],
        "inputs": inputs,
    }


def snippets(net: MLP, learning_rate: float, inputs: int = 1) -> dict[str, str]:
    """Code by framework: "pytorch", "flax" (nnx), "equinox". SGD with a step size for each tensor.

    The step sizes are for ½Σ(z−y)² summed over `inputs` inputs, which the printed `loss` computes: on a mini-batch it
    is multiplied by the number of inputs that each of its rows stands for.

    >>> print(snippets(MLP([3, 8, 1], "tanh"), 0.1)["pytorch"].splitlines()[0])
    import torch
    """
    numbers = "\n".join(_assignment(*number) for number in numbers_of(net, learning_rate, inputs).items())
    templates = {"pytorch": _PYTORCH, "flax": _FLAX, "equinox": _EQUINOX}
    return {
        framework: template.format(numbers=numbers, activation=_activation_line(net, framework)).lstrip()
        + _LOSS.format(outputs="jax.vmap(model)(x)" if framework == "equinox" else "model(x)")
        for framework, template in templates.items()
    }


def _activation_line(net: MLP, framework: str) -> str:
    sigma, torch = net.activation, framework == "pytorch"
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
