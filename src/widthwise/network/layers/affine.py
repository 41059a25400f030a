"""A learned gain and shift for every neuron, as normalisations have them (theory §12)."""

from __future__ import annotations

from typing import ClassVar

from widthwise.network.layers.base import Layer, Misfit, Signal, layer_kind, number


@layer_kind("affine")
class Affine(Layer):
    """v'_j = g_j v_j + s_j with g_j = 1 and s_j = 0 at the start, learned at the rates λ_gain and λ_shift.

    It changes no kernel at the start and adds to Θ. `nn.LayerNorm` of PyTorch is `LayerNorm` and then `Affine`.

    >>> Affine(lambda_shift=0.0)
    Affine(lambda_gain=1.0, lambda_shift=0.0)
    """

    lambda_gain: float = number(1.0)
    lambda_shift: float = number(1.0)

    no_order_one: ClassVar[str] = "a learned gain multiplies what fluctuates, which has no rule at order 1/n"

    def outgoing(self, signal: Signal) -> Signal:
        if signal.width is None:
            raise Misfit(f"{self!r} on the raw inputs", "a Dense layer first")
        return signal._replace(gained=True)
