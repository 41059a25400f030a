"""A jax model of any class as a chain of layers, read from what it computes: the jaxpr of one call.

Every variable that depends on the input is `_Sent`: the output of the latest weight layer, and a function of it that
has been applied since. A product with a constant matrix ends that function, which is the activation, and begins the
next layer; a constant added right after it is the bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.readers.chains import unsupported

_CONTROL = {"scan", "while", "cond"}
_SHAPE_ONLY = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "copy", "convert_element_type", "transpose"}


@dataclass(frozen=True)
class _Sent:
    """A value that depends on the input: which layer it comes from, and by which function (None: none yet)."""

    layer: int
    shape: tuple[int, ...]
    apply: Callable[[Any], Any] | None = None

    def at(self, z):
        return jnp.reshape(z, self.shape) if self.apply is None else self.apply(z)


@dataclass
class TracedLayer:
    """A weight layer: W (outputs, inputs), what it acts on, its output's shape, b or None, the function after it."""

    W: np.ndarray
    sent: _Sent
    shape: tuple[int, ...]
    b: np.ndarray | None = None
    after: Callable[[Any], np.ndarray] | None = None


class _Tracer:
    """Walks a jaxpr, with constants evaluated and `_Sent` for what depends on the input."""

    def __init__(self):
        self.layers: list[TracedLayer] = []
        self.operations = 0

    def run(self, jaxpr: Any, constants: list[Any], arguments: list[Any]) -> list[Any]:
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else values[atom]

        for equation in jaxpr.eqns:
            outgoing = self._equation(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, outgoing, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, incoming: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if inner is not None and name not in _CONTROL:
            closed = inner if hasattr(inner, "consts") else None
            return self.run(closed.jaxpr if closed else inner, list(closed.consts) if closed else [], incoming)
        sent = [value for value in incoming if isinstance(value, _Sent)]
        if not sent:
            result = equation.primitive.bind(*incoming, **params)
            return list(result) if equation.primitive.multiple_results else [result]
        where = f"{name}, operation {self.operations} of the model's call"
        if name in _CONTROL or len(equation.outvars) > 1 or len({value.layer for value in sent}) > 1:
            raise unsupported(where)
        self.operations += 1
        signal, shape = sent[0], tuple(equation.outvars[0].aval.shape)
        if name == "dot_general" and len(sent) == 1:
            axes, batch = params["dimension_numbers"]
            place = 1 if isinstance(incoming[0], _Sent) else 0
            if any(batch) or len(axes[place]) != 1 or np.ndim(incoming[place]) != 2:
                raise unsupported(where)
            W = np.moveaxis(np.asarray(incoming[place]), axes[place][0], 1)  # (outputs, inputs)
            self.layers.append(TracedLayer(W, signal, shape))
            return [_Sent(len(self.layers), shape)]
        if signal.apply is None and name in ("add", "add_any") and len(sent) == 1 and signal.layer > 0:
            layer = self.layers[signal.layer - 1]
            if layer.b is None:
                constant = next(value for value in incoming if not isinstance(value, _Sent))
                layer.b = np.ravel(np.broadcast_to(np.asarray(constant), shape))
                return [_Sent(signal.layer, shape)]
        if signal.apply is None and name in _SHAPE_ONLY and np.prod(shape) == np.prod(signal.shape):
            return [_Sent(signal.layer, shape)]

        def apply(z):
            parts = [value.at(z) if isinstance(value, _Sent) else value for value in incoming]
            return equation.primitive.bind(*parts, **params)

        return [_Sent(signal.layer, shape, apply)]


def trace(call: Callable, x: jax.Array) -> list[TracedLayer]:
    """The weight layers of `call` at one input x, in order, with what is applied between them.

    >>> W, V = np.ones((4, 3)), np.ones((2, 4))
    >>> found = trace(lambda x: V @ jnp.tanh(W @ x + 0.5), jnp.ones(3))
    >>> [layer.W.shape for layer in found], found[0].b.tolist(), round(float(found[0].after([0.3])[0]), 6)
    ([(4, 3), (2, 4)], [0.5, 0.5, 0.5, 0.5], 0.291313)
    """
    closed = jax.make_jaxpr(call)(x)
    tracer = _Tracer()
    outputs = tracer.run(closed.jaxpr, list(closed.consts), [_Sent(0, x.shape)])
    layers = tracer.layers
    if not layers:
        raise unsupported("a model without a product with a weight matrix")
    if layers[0].sent.apply is not None:
        raise unsupported("an operation on the input before the first Linear layer", "Apply it to the data instead.")
    if len(outputs) != 1 or not isinstance(outputs[0], _Sent) or outputs[0].layer != len(layers):
        raise unsupported(f"a model with {len(outputs)} results, or one that skips a layer")
    if [layer.sent.layer for layer in layers] != list(range(len(layers))):
        raise unsupported("layers that do not follow one another: a skip connection, or two branches")
    for layer, sent in zip(layers, [*(above.sent for above in layers[1:]), outputs[0]], strict=True):
        layer.after = _on_flat(sent, layer.shape)
    return layers


def _on_flat(sent: _Sent, shape: tuple[int, ...]) -> Callable | None:
    """The function as one of flat arrays of any length, in pieces of the layer's width."""
    if sent.apply is None:
        return None
    width, apply = int(np.prod(shape)), sent.apply

    def function(z):
        flat = np.ravel(np.asarray(z, float))
        pieces = np.pad(flat, (0, -len(flat) % width), mode="edge").reshape(-1, width)
        return np.concatenate([np.ravel(apply(jnp.reshape(piece, shape))) for piece in pieces])[: len(flat)]

    return function
