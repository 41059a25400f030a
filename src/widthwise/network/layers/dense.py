"""The dense layer z = b + W s (theory §1)."""

from __future__ import annotations

from typing import ClassVar

from widthwise.network.layers.base import Layer, Misfit, Signal, layer_kind, number, width


class WeightLayer(Layer):
    """Layers z = b + W s, with E[WW] = C_W over the number of inputs that a neuron has, and E[bb] = C_b."""

    inputs: int
    outputs: int
    C_b: float
    C_W: float
    lambda_b: float
    lambda_W: float

    @property
    def fan_in(self) -> int:
        """Inputs of a neuron."""
        return self.inputs


@layer_kind("dense")
class Dense(WeightLayer):
    """z_i = b_i + Σ_j W_ij s_j with E[bb] = C_b, E[WW] = C_W/inputs; learning rates λ_b and λ_W/inputs (theory §1).

    >>> Dense(3, 64, C_W=2.0)
    Dense(inputs=3, outputs=64, C_b=0.0, C_W=2.0, lambda_b=1.0, lambda_W=1.0)
    """

    inputs: int = width()
    outputs: int = width()
    C_b: float = number(default=0.0)
    C_W: float = number(default=1.0)
    lambda_b: float = number(default=1.0)
    lambda_W: float = number(default=1.0)

    numbered: ClassVar[bool] = True
    no_order_one: ClassVar[str] = ""

    def outgoing(self, signal: Signal) -> Signal:
        own = f"{self.inputs}, the inputs of Dense({self.inputs}, {self.outputs})"
        if signal.flat and signal.width is not None:
            if self.inputs % signal.width:
                raise Misfit(f"{signal.width} channels at every position", own)
        elif signal.width not in (None, self.inputs):
            raise Misfit(f"{signal.width} features", own)
        return signal._replace(width=self.outputs, gaussian=True, gained=False, flat=False)
