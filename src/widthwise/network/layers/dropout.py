"""Dropout: neurons that are switched off at random, each input with masks of its own (theory §13)."""

from __future__ import annotations

from typing import ClassVar

from widthwise.errors import InvalidInput
from widthwise.network.layers.base import Layer, Signal, layer_kind, number


@layer_kind("dropout")
class Dropout(Layer):
    """s'_j = m_j s_j/(1 − rate) with m_j = 0 at the given rate and 1 else, drawn for every input and position.

    >>> Dropout(0.25)
    Dropout(rate=0.25)
    """

    rate: float = number(0.5)

    on_raw_inputs: ClassVar[bool] = True
    no_order_one: ClassVar[str] = "masks that differ from input to input have no rule at order 1/n"

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.rate, float) and self.rate >= 1.0:
            raise InvalidInput("rate", repr(self.rate), "a share of neurons that are switched off, below 1")

    def outgoing(self, signal: Signal) -> Signal:
        return signal if signal.width is None else signal._replace(gaussian=False)
