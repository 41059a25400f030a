"""The dense layer z = b + W s (theory §1)."""

from __future__ import annotations

from typing import ClassVar

from widthwise.network.layers.base import Layer, Misfit, Signal, layer_kind, number, width


@layer_kind("dense")
class Dense(Layer):
    """z_i = b_i + Σ_j W_ij s_j with E[bb] = C_b, E[WW] = C_W/inputs; learning rates λ_b and λ_W/inputs (theory §1).

    >>> Dense(3, 64, C_W=2.0)
    Dense(inputs=3, outputs=64, C_b=0.0, C_W=2.0, lambda_b=1.0, lambda_W=1.0)
    """

    inputs: int = width()
    outputs: int = width()
    C_b: float = number(0.0)
    C_W: float = number(1.0)
    lambda_b: float = number(1.0)
    lambda_W: float = number(1.0)

    numbered: ClassVar[bool] = True
    no_order_one: ClassVar[str] = ""

    def outgoing(self, signal: Signal) -> Signal:
        if signal.width not in (None, self.inputs):
            raise Misfit(
                f"{signal.width} features", f"{self.inputs}, the inputs of Dense({self.inputs}, {self.outputs})"
            )
        return Signal(self.outputs, gaussian=True)
