"""An activation as a layer: σ on every neuron."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from widthwise.activations import Activation, resolve
from widthwise.network.layers.base import Layer, Misfit, Signal, layer_kind


@layer_kind("activation")
class Elementwise(Layer):
    """s_j = σ(z_j); in a list of layers the name or the function alone means the same.

    >>> Elementwise("tanh")
    Elementwise(activation='tanh')
    """

    activation: Activation
    #: Whether a LayerNorm follows, which takes off the mean over neurons: ⟨σ⟩ at infinite width.
    centred: bool = field(default=False, repr=False)

    no_order_one: ClassVar[str] = ""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "activation", resolve(self.activation))

    def outgoing(self, signal: Signal) -> Signal:
        if signal.width is None:
            raise Misfit(f"{self.activation.name} on the raw inputs", "a Dense layer first")
        if signal.flat:
            raise Misfit(f"{self.activation.name} behind Flatten", "the activation before Flatten, which is the same")
        if not signal.gaussian:
            raise Misfit(f"{self.activation.name} after an activation", "a Dense layer between two activations")
        return signal._replace(gaussian=False, gained=False)

    def to_dict(self) -> str:
        """The name as a user would type it."""
        return self.activation.spec

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], activations: Mapping[str, Any]) -> Layer:
        return super().from_dict({key: activations.get(value, value) for key, value in data.items()}, activations)


def as_layer(item: Any) -> Layer:
    """A layer as it is; the name or function of an activation as the layer that it means."""
    return item if isinstance(item, Layer) else Elementwise(item)


def short_repr(layer: Layer) -> str:
    """A layer as it is written in a list: an activation by its name alone."""
    return repr(layer.activation if isinstance(layer, Elementwise) else layer)
