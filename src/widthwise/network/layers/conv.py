"""The convolution z_p = b + Σ_o W_o s_{p+o}: a dense layer on every window of positions (theory §13)."""

from __future__ import annotations

from typing import Any, ClassVar

from widthwise.network.layers.base import Misfit, Signal, layer_kind, number, width
from widthwise.network.layers.dense import WeightLayer
from widthwise.network.layers.windows import Windowed


@layer_kind("conv")
class Conv(Windowed, WeightLayer):
    """z_i,p = b_i + Σ_{o,j} W_ij,o s_j,p+o with E[bb] = C_b, E[WW] = C_W/(inputs × window); rates λ_b, λ_W/(…).

    `window` has one entry for each dimension of positions: (3, 3) for images, (3,) for sequences. `padding` is "SAME"
    and "VALID" with their usual meaning, "CIRCULAR", or numbers of zeros at both ends. `inputs` and `outputs` are
    channels.

    >>> Conv(3, 64, (3, 3), C_W=2.0)
    Conv(inputs=3, outputs=64, window=(3, 3), C_b=0.0, C_W=2.0, lambda_b=1.0, lambda_W=1.0)
    """

    inputs: int = width()
    outputs: int = width()
    window: tuple[int, ...] = (3, 3)
    stride: Any = 1
    padding: Any = "SAME"
    dilation: Any = 1
    C_b: float = number(default=0.0)
    C_W: float = number(default=1.0)
    lambda_b: float = number(default=1.0)
    lambda_W: float = number(default=1.0)

    numbered: ClassVar[bool] = True
    no_order_one: ClassVar[str] = "neurons of one channel at different positions share weights, which is not followed"

    def outgoing(self, signal: Signal) -> Signal:
        if signal.width not in (None, self.inputs):
            raise Misfit(
                f"{signal.width} channels", f"{self.inputs}, the inputs of Conv({self.inputs}, {self.outputs})"
            )
        return self.at_positions(signal)._replace(width=self.outputs, gaussian=True, gained=False, flat=False)

    @property
    def fan_in(self) -> int:
        return self.inputs * self.size

    def __repr__(self) -> str:
        shown = [f"inputs={self.inputs}", f"outputs={self.outputs}", f"window={self.window}"]
        plain = {"stride": (1,) * len(self.window), "padding": "SAME", "dilation": (1,) * len(self.window)}
        shown += [f"{name}={getattr(self, name)!r}" for name, usual in plain.items() if getattr(self, name) != usual]
        shown += [f"{name}={getattr(self, name)}" for name in ("C_b", "C_W", "lambda_b", "lambda_W")]
        return f"Conv({', '.join(shown)})"
