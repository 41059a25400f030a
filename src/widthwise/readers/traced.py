"""A jax model of any class as a chain of layers, read from what it computes: the jaxpr of one call.

Every variable that depends on the input is `sent`: the output of the latest weight layer, and a function of it that
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
class Traced:
    """One weight layer as traced: W (outputs, inputs), b or None, and the function applied to its output."""

    W: np.ndarray
    b: np.ndarray | None
    after: Callable[[Any], np.ndarray] | None


@dataclass(frozen=True)
class _Sent:
    """A value that depends on the input: which layer it comes from, and by which function (None: none yet)."""

    layer: int
    shape: tuple[int, ...]
    apply: Callable[[Any], Any] | None


class _Tracer:
    """Walks a jaxpr, with constants evaluated and `_Sent` for what depends on the input."""

    def __init__(self):
        self.weights: list[np.ndarray] = []
        self.biases: list[np.ndarray | None] = []
        self.sent: list[_Sent] = []
        self.shapes: list[tuple[int, ...]] = []
        self.operations: list[str] = []

    def run(self, jaxpr: Any, constants: list[Any], arguments: list[Any]) -> list[Any]:
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else values[atom]

        for equation in jaxpr.eqns:
            incoming = [read(atom) for atom in equation.invars]
            outgoing = self._equation(equation, incoming)
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
        if name in _CONTROL or len(equation.outvars) > 1 or len({value.layer for value in sent}) > 1:
            raise unsupported(f"{name}, operation {len(self.operations)} of the model's call")
        self.operations.append(name)
        shape = tuple(equation.outvars[0].aval.shape)
        if name == "dot_general" and len(sent) == 1:
            return [self._product(incoming, params, shape)]
        if name in ("add", "add_any") and len(sent) == 1 and self._may_be_bias(sent[0]):
            return [self._bias(sent[0], incoming, shape)]
        return [self._function(equation, incoming, sent[0], shape)]

    def _product(self, incoming: list[Any], params: Any, shape: tuple[int, ...]) -> _Sent:
        (left, right), batch = params["dimension_numbers"]
        first = isinstance(incoming[0], _Sent)
        signal, matrix = (incoming[0], incoming[1]) if first else (incoming[1], incoming[0])
        axes = right if first else left
        if any(batch) or len(axes) != 1 or np.ndim(matrix) != 2:
            raise unsupported(f"dot_general, operation {len(self.operations) - 1} of the model's call")
        self.weights.append(np.moveaxis(np.asarray(matrix), axes[0], 1))
        self.biases.append(None)
        self.sent.append(signal)
        self.shapes.append(shape)
        return _Sent(len(self.weights), shape, None)

    def _may_be_bias(self, signal: _Sent) -> bool:
        return signal.apply is None and signal.layer > 0 and self.biases[signal.layer - 1] is None

    def _bias(self, signal: _Sent, incoming: list[Any], shape: tuple[int, ...]) -> _Sent:
        constant = next(value for value in incoming if not isinstance(value, _Sent))
        self.biases[signal.layer - 1] = np.ravel(np.broadcast_to(np.asarray(constant), shape))
        return _Sent(signal.layer, shape, None)

    def _function(self, equation: Any, incoming: list[Any], signal: _Sent, shape: tuple[int, ...]) -> _Sent:
        if equation.primitive.name in _SHAPE_ONLY and signal.apply is None and np.prod(shape) == np.prod(signal.shape):
            return _Sent(signal.layer, shape, None)

        def apply(z):
            parts = [_value(value, z) if isinstance(value, _Sent) else value for value in incoming]
            return equation.primitive.bind(*parts, **equation.params)

        return _Sent(signal.layer, shape, apply)


def _value(sent: _Sent, z):
    return sent.apply(z) if sent.apply is not None else jnp.reshape(z, sent.shape)


def trace(call: Callable, x: jax.Array) -> list[Traced]:
    """The weight layers of `call` at one input x, in order, with what is applied between them.

    >>> W, V = np.ones((4, 3)), np.ones((2, 4))
    >>> found = trace(lambda x: V @ jnp.tanh(W @ x + 0.5), jnp.ones(3))
    >>> [layer.W.shape for layer in found], found[0].b.tolist(), round(float(found[0].after([0.3])[0]), 6)
    ([(4, 3), (2, 4)], [0.5, 0.5, 0.5, 0.5], 0.291313)
    """
    closed = jax.make_jaxpr(call)(x)
    tracer = _Tracer()
    outputs = tracer.run(closed.jaxpr, list(closed.consts), [_Sent(0, x.shape, None)])
    if not tracer.weights:
        raise unsupported("a model without a product with a weight matrix")
    if tracer.sent[0].apply is not None:
        raise unsupported("an operation on the input before the first Linear layer", "Apply it to the data instead.")
    if len(outputs) != 1 or not isinstance(outputs[0], _Sent) or outputs[0].layer != len(tracer.weights):
        raise unsupported(f"a model with {len(outputs)} results, or one that skips a layer")
    after = [_on_flat(sent, shape) for sent, shape in zip(tracer.sent[1:], tracer.shapes[:-1], strict=True)]
    if [sent.layer for sent in tracer.sent] != list(range(len(tracer.sent))):
        raise unsupported("layers that do not follow one another: a skip connection, or two branches")
    last = _on_flat(outputs[0], tracer.shapes[-1])
    return [Traced(W, b, f) for W, b, f in zip(tracer.weights, tracer.biases, [*after, last], strict=True)]


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
