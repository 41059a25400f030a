"""A jax model of any class as steps, read from what it computes: the jaxpr of one call.

Every variable that depends on the input is `_Sent`: the value behind the latest layer, and a function of it that has
been applied since. A product with a constant matrix, a named part, a sum over positions, or a sum of what comes from
two layers ends that function, which is an activation or a constant factor, and begins the next layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.network import Flatten, GlobalAvgPool, GlobalSumPool, SumPool
from widthwise.readers.chains import Value, summed, unsupported, unsupported_part
from widthwise.readers.read_steps import (
    ReadActivation,
    ReadDense,
    ReadFactor,
    ReadLayer,
    ReadNorm,
    ReadStep,
    SeenStep,
)

_CONTROL = {"scan", "while", "cond"}
_ADDITIONS = ("add", "add_any")
_SHAPE_ONLY = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "copy", "convert_element_type", "transpose"}


@dataclass(frozen=True)
class MarkedDense:
    """A weight layer, and the entries by which its W (outputs, inputs) and b are known again in the trace."""

    layer: ReadDense
    W: np.ndarray
    b: np.ndarray | None


def named_part(name: str, call: Callable[[Any], Any], x: Any) -> Any:
    """call(x), under a name in the trace."""

    def part(x: Any) -> Any:
        return call(x)

    part.__name__ = name
    return jax.jit(part)(x)


@dataclass(eq=False)
class _Sent:
    """A value that depends on the input: what the latest layer gave, and by which function since (None: none yet).

    `unbiased` is the weight layer right before whose bias has not been added; `value` what it is in the end, once read.
    `channels` is the axis of channels where there are positions, None where there are not.
    """

    base: Value
    base_shape: tuple[int, ...]
    shape: tuple[int, ...]
    apply: Callable[[Any], Any] | None = None
    unbiased: MarkedDense | None = None
    value: Value | None = None
    channels: int | None = None

    @property
    def positions(self) -> list[int]:
        """Axes of positions: all that are longer than one, but that of channels."""
        return [axis for axis, length in enumerate(self.shape) if length > 1 and axis != self.channels]

    def at(self, z):
        return jnp.reshape(z, self.shape) if self.apply is None else self.apply(z)


class _Tracer:
    """Walks a jaxpr, with constants evaluated and `_Sent` for what depends on the input."""

    def __init__(
        self,
        dense: Sequence[MarkedDense],
        parts: Mapping[str, Sequence[ReadStep]],
        activation_of: Callable[[Callable], Activation | None],
    ):
        self.dense, self.parts, self.activation_of = dense, parts, activation_of
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
        sent = [value for value in incoming if isinstance(value, _Sent)]
        part = self.parts.get(params.get("name", "")) if len(sent) == 1 else None
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if inner is not None and name not in _CONTROL and part is None:
            closed = inner if hasattr(inner, "consts") else None
            return self.run(closed.jaxpr if closed else inner, list(closed.consts) if closed else [], incoming)
        if not sent:
            result = equation.primitive.bind(*incoming, **params)
            return list(result) if equation.primitive.multiple_results else [result]
        where = f"{name}, operation {self.operations} of the model's call"
        self.operations += 1
        if name in _CONTROL or len(equation.outvars) > 1:
            raise unsupported(where)
        signal, shape = sent[0], tuple(equation.outvars[0].aval.shape)
        if part is not None:
            return [self._part(signal, part, shape, where)]
        if len({id(value.base) for value in sent}) > 1:
            if name not in _ADDITIONS:
                raise unsupported(where)
            one, other = map(self.value_of, sent)
            return [_Sent(summed(one, other, where), shape, shape, channels=signal.channels)]
        if name == "dot_general" and len(sent) == 1:
            return [self._product(signal, incoming, params["dimension_numbers"], shape, where)]
        if signal.apply is None and name in _ADDITIONS and len(sent) == 1 and signal.unbiased is not None:
            constant = next(value for value in incoming if not isinstance(value, _Sent))
            marked = signal.unbiased
            if marked.b is not None and _same(
                np.broadcast_to(np.asarray(constant), shape), _bias_at_positions(marked.b, signal)
            ):
                assert signal.base.before is not None
                bias = signal.base.before.then(marked.layer)
                return [_Sent(bias, shape, shape, channels=signal.channels)]
        if name in _SHAPE_ONLY and np.prod(shape) == np.prod(signal.shape):
            if signal.channels is not None and shape != signal.shape:
                return [self._reshaped(signal, name, params, shape, where)]
            if signal.apply is None:
                return [replace(signal, shape=shape)]
        if signal.channels is not None and (name == "reduce_sum" or name.startswith("reduce_window")):
            return [self._pooled(signal, name, params, shape, where)]
        if signal.channels is not None and shape != signal.shape:
            raise unsupported(f"{where}, which mixes positions")

        def apply(z):
            pieces = [value.at(z) if isinstance(value, _Sent) else value for value in incoming]
            return equation.primitive.bind(*pieces, **params)

        return [_Sent(signal.base, signal.base_shape, shape, apply, channels=signal.channels)]

    def _part(self, signal: _Sent, part: Sequence[ReadStep], shape: tuple[int, ...], where: str) -> _Sent:
        """What is sent on by a named part: a convolution, a pool, dropout or a normalisation."""
        channels = signal.channels
        first = part[0] if part else None
        if isinstance(first, ReadNorm) and channels not in (None, len(signal.shape) - 1):
            raise unsupported(f"{first.where}, which takes channels in the last axis, where they are not")
        if isinstance(first, ReadLayer) and isinstance(first.layer, GlobalAvgPool):
            channels = None
        return _Sent(self.value_of(signal).then(*part), shape, shape, channels=channels)

    def _reshaped(self, signal: _Sent, name: str, params: Any, shape: tuple[int, ...], where: str) -> _Sent:
        """Positions in another shape: axes in another order, axes of length one, or all in a row."""
        axis, value = signal.channels, self.value_of(signal)
        assert axis is not None
        moved = partial(_Sent, value, shape, shape, unbiased=signal.unbiased if signal.apply is None else None)
        lengths = [signal.shape[i] for i in signal.positions]
        if name == "transpose":
            order = list(params["permutation"])
            if [i for i in order if i in signal.positions] == signal.positions:
                return moved(channels=order.index(axis))
        elif name == "broadcast_in_dim":
            return moved(channels=params["broadcast_dimensions"][axis])
        elif name == "squeeze" and axis not in params["dimensions"]:
            return moved(channels=axis - sum(i < axis for i in params["dimensions"]))
        elif len([length for length in shape if length > 1]) <= 1:
            first = not any(i < axis for i in signal.positions)
            flat = ReadLayer(Flatten(), f"{where} (Flatten)", channels_first=first)
            return _Sent(value.then(flat), shape, shape)
        elif signal.shape[axis] > 1:
            before = len([i for i in signal.positions if i < axis])
            kept = [i for i, length in enumerate(shape) if length > 1]
            if [shape[i] for i in kept] == [*lengths[:before], signal.shape[axis], *lengths[before:]]:
                return moved(channels=kept[before])
        raise unsupported(f"{where}, which mixes positions", "Flatten all of them, or none.")

    def _pooled(self, signal: _Sent, name: str, params: Any, shape: tuple[int, ...], where: str) -> _Sent:
        """A sum over all positions, or over windows of them."""
        value, axes, axis = self.value_of(signal), signal.positions, signal.channels
        assert axis is not None
        if name == "reduce_sum":
            if not set(axes) <= set(params["axes"]) or axis in params["axes"]:
                raise unsupported(f"{where} over axes {params['axes']}", "Sum over all positions, or none.")
            count = int(np.prod([signal.shape[i] for i in axes]))
            return _Sent(value.then(ReadLayer(GlobalSumPool(), where, positions=count)), shape, shape)
        windows, strides, padding = (params[key] for key in ("window_dimensions", "window_strides", "padding"))
        dilations = [step for key in ("base_dilation", "window_dilation") for step in params.get(key) or ()]
        others = [i for i in range(len(windows)) if i not in axes]
        if name != "reduce_window_sum" or any(windows[i] != 1 or strides[i] != 1 for i in others):
            raise unsupported_part(name.replace("reduce_window_", "") + "pool", where)
        if any(before != after for before, after in padding) or set(dilations) - {1}:
            raise unsupported(f"{where} with padding {padding}", "The same number of zeros at both ends.")
        pool = SumPool(*(tuple(row[i] for i in axes) for row in (windows, strides, [before for before, _ in padding])))
        return _Sent(value.then(ReadLayer(pool, where)), shape, shape, channels=axis)

    def _product(
        self, signal: _Sent, incoming: list[Any], dimensions: Any, shape: tuple[int, ...], where: str
    ) -> _Sent:
        """What is sent on by a product with the weights of a layer."""
        axes, batch = dimensions
        place = 1 if isinstance(incoming[0], _Sent) else 0
        if any(batch) or len(axes[place]) != 1 or np.ndim(incoming[place]) != 2:
            raise unsupported(where)
        W = np.moveaxis(np.asarray(incoming[place]), axes[place][0], 1)  # (outputs, inputs)
        marked = next((one for one in self.dense if _same(W, one.W)), None)
        if marked is None:
            raise unsupported("a product with a matrix that is no Linear layer's weight")
        channels = None
        if signal.channels is not None:
            if signal.channels != axes[1 - place][0]:
                raise unsupported(f"{marked.layer.where} on another axis than that of channels")
            channels = len(shape) - 1 if place == 1 else 0
        bare = replace(marked.layer, b=None, tensors=(marked.layer.tensors[0], None))
        return _Sent(self.value_of(signal).then(bare), shape, shape, unbiased=marked, channels=channels)

    def value_of(self, sent: _Sent) -> Value:
        """What is sent, with the function since the latest layer as an activation or a constant factor."""
        if sent.value is None:
            sent.value = sent.base if sent.apply is None else self._after_function(sent)
        return sent.value

    def _after_function(self, sent: _Sent) -> Value:
        if sent.base.step is None:
            raise unsupported(
                "an operation on the input before the first Linear layer", "Apply it to the data instead."
            )
        function, where = _on_flat(sent), sent.base.step.where
        sigma = self.activation_of(function)
        if sigma is not None:
            named = ReadActivation(sigma, f"the activation after {where}")
            return sent.base if sigma.name == "linear" else sent.base.then(named)
        factor = _common_factor(function)
        if factor is None:
            raise unsupported(
                f"operations after {where} that are no elementwise activation known to widthwise",
                "Pass the activation: activation=widthwise.activation(function, kinks=[…]).",
            )
        return sent.base.then(ReadFactor(factor, f"operations after {where}"))


def _bias_at_positions(b: np.ndarray, signal: _Sent) -> np.ndarray:
    """A bias at every position, in the shape of what is sent."""
    axis = signal.channels
    if axis is None:
        return b.reshape(signal.shape)
    own = b.reshape([len(b) if i == axis else 1 for i in range(len(signal.shape))])
    return np.broadcast_to(own, signal.shape)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-5)


def trace(
    call: Callable,
    x: jax.Array,
    dense: Sequence[MarkedDense],
    parts: Mapping[str, Sequence[ReadStep]],
    activation_of: Callable[[Callable], Activation | None],
    channels: int | None = None,
) -> list[SeenStep]:
    """The steps of `call` at one input x, and constant factors, in order; `channels` is their axis at positions.

    Products with marked weights are the layers `dense`, calls by `named_part` the `parts`; `activation_of` says which
    activation a function is.

    >>> from widthwise.activations import resolve
    >>> W, V = np.ones((4, 3)), np.ones((4, 4))
    >>> dense = [MarkedDense(ReadDense(w, b, name), w, b) for w, b, name in ((W, np.ones(4), "W"), (V, None, "V"))]
    >>> def call(x):
    ...     z = W @ x + 1.0
    ...     return 0.5 * z + V @ jnp.tanh(z)
    >>> first, skip = trace(call, jnp.ones(3), dense, {}, lambda f: resolve("tanh") if f([1.0]) > 0.6 else None)
    >>> first.where, skip.scale, [step.where for step in skip.body]
    ('W', 0.5, ['the activation after W', 'V'])
    """
    closed, start = jax.make_jaxpr(call)(x), Value()
    tracer = _Tracer(dense, parts, activation_of)
    outputs = tracer.run(closed.jaxpr, list(closed.consts), [_Sent(start, x.shape, x.shape, channels=channels)])
    if len(outputs) != 1 or not isinstance(outputs[0], _Sent):
        raise unsupported(f"a model with {len(outputs)} results, or one that does not depend on its input")
    return tracer.value_of(outputs[0]).steps_since(start) or []


def _on_flat(sent: _Sent) -> Callable[[Any], np.ndarray]:
    """The function since the latest layer as one of flat arrays of any length, in pieces of the layer's width."""
    shape, width = sent.base_shape, int(np.prod(sent.base_shape))

    def function(z):
        flat = np.ravel(np.asarray(z, float))
        pieces = np.pad(flat, (0, -len(flat) % width), mode="edge").reshape(-1, width)
        return np.concatenate([np.ravel(sent.at(jnp.reshape(piece, shape))) for piece in pieces])[: len(flat)]

    return function


def _common_factor(function: Callable[[Any], np.ndarray]) -> float | None:
    """What a function multiplies every neuron by; None for any other function."""
    z = np.concatenate([np.random.default_rng(0).normal(size=64), [1.0]])
    values = np.asarray(function(z), float)
    factor = float(values[-1]) if len(values) == len(z) else 0.0
    return factor if factor and np.allclose(values, factor * z, rtol=1e-6, atol=0.0) else None
