"""The residual connection z' = γ z + body(z) (theory §11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from widthwise.activations import Activation
from widthwise.errors import InvalidInput
from widthwise.network.layers.base import Layer, Misfit, Signal, layer_from, layer_kind, layers, number, register_pytree
from widthwise.network.layers.dense import WeightLayer
from widthwise.network.layers.elementwise import as_layer, short_repr


@layer_kind("residual")
class Residual(Layer):
    """z' = γ z + body(z): what comes in, times the scale γ, is added to what leaves a list of layers.

    The body ends with a dense layer, whose fresh weights of mean zero leave no cross term at infinite width.

    >>> from widthwise.network import Dense
    >>> Residual(["tanh", Dense(64, 64)], scale=0.5).scale
    0.5
    """

    body: Sequence[Layer | str | Callable | Activation] = layers()
    scale: float = number(1.0)

    numbered: ClassVar[bool] = True
    no_order_one: ClassVar[str] = "a skip gives every neuron a memory of earlier layers, which is not followed here"

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.body, str) or not isinstance(self.body, Sequence) or not self.body:
            raise InvalidInput("body", repr(self.body), "a list of layers", 'For example ["tanh", Dense(64, 64)].')
        object.__setattr__(self, "body", tuple(map(as_layer, self.body)))

    def outgoing(self, signal: Signal) -> Signal:
        if signal.width is None or not signal.gaussian:
            got = "raw inputs" if signal.width is None else "features behind an activation"
            raise Misfit(f"a residual connection on {got}", "preactivations: a Dense or Residual layer before it")
        if signal.gained:
            raise Misfit("a residual connection behind a learned gain", "an activation or a Dense layer between them")
        behind = signal
        for position, layer in enumerate(self.inner):
            try:
                behind = layer.outgoing(behind)
            except Misfit as misfit:
                raise Misfit(f"body[{position}]: {misfit.args[0]}", misfit.args[1]) from None
        if not self.inner[-1].numbered:
            raise Misfit(f"a body that ends with {self.inner[-1]!r}", "a Dense layer at its end")
        if isinstance(self.inner[-1], Residual) and not any(isinstance(layer, WeightLayer) for layer in self.inner):
            # what the inner skip carries is what comes in here, so that there is a cross term
            got = f"a body that ends with {self.inner[-1]!r}, without a Dense layer before it"
            raise Misfit(got, "a Dense layer in the body: x + (x + f(x)) is one connection of scale 2")
        if behind.width != signal.width:
            raise Misfit(f"a sum of {signal.width} and {behind.width} features", "a body that keeps the width")
        return signal._replace(positions=behind.positions)

    @property
    def inner(self) -> tuple[Layer, ...]:
        """The layers of the body."""
        return self.body  # pyright: ignore[reportReturnType]

    def steps_on(self, signal: Signal) -> tuple[Layer, ...]:
        body = []
        for layer in self.inner:
            body += layer.steps_on(signal)
            signal = layer.outgoing(signal)
        return (Fork(), *body, Join(self.scale))

    def __repr__(self) -> str:
        return f"Residual([{', '.join(map(short_repr, self.inner))}], scale={self.scale})"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], activations: Mapping[str, Any]) -> Layer:
        made = {"body": [layer_from(layer, activations) for layer in data.get("body", ())]}
        return super().from_dict({**data, **made}, activations)


@dataclass(frozen=True)
class Fork(Layer):
    """Where a residual connection begins: what comes is kept, and goes on."""


@dataclass(frozen=True)
class Join(Layer):
    """Where it ends: what was kept last, times a scale, is added."""

    scale: float = number(1.0)


register_pytree(Fork, [])
register_pytree(Join, ["scale"])
