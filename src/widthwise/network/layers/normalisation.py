"""Normalisation over the neurons of a layer: RMSNorm and LayerNorm (theory §12)."""

from __future__ import annotations

from typing import ClassVar

from widthwise.network.layers.base import Layer, Misfit, Signal, layer_kind, number


class Normalisation(Layer):
    """v_j = (s_j − μ)/r, with r² = ε + the mean over neurons of (s − μ)²."""

    epsilon: float
    no_order_one: ClassVar[str] = "a normaliser couples all neurons of a layer, which is not followed here"
    #: Whether the mean over neurons is taken off.
    centred: ClassVar[bool] = False

    def outgoing(self, signal: Signal) -> Signal:
        if signal.width is None:
            raise Misfit(f"{self!r} on the raw inputs", "a Dense layer first, or inputs normalised beforehand")
        if signal.gained:
            raise Misfit(f"{self!r} behind a learned gain", "an activation or a Dense layer between them")
        return signal


@layer_kind("rms_norm")
class RMSNorm(Normalisation):
    """v_j = s_j/r, r² = ε + (1/n) Σ_k s_k².

    >>> RMSNorm()
    RMSNorm(epsilon=1e-05)
    """

    epsilon: float = number(1e-5)


@layer_kind("layer_norm")
class LayerNorm(Normalisation):
    """v_j = (s_j − μ)/r with the mean μ over neurons, r² = ε + (1/n) Σ_k (s_k − μ)².

    >>> LayerNorm(epsilon=0.0)
    LayerNorm(epsilon=0.0)
    """

    epsilon: float = number(1e-5)

    centred: ClassVar[bool] = True
