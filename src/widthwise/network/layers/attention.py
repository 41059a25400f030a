"""Self-attention over all positions of an input (theory §13)."""

from __future__ import annotations

from typing import ClassVar

from widthwise.errors import UnknownName
from widthwise.network.layers.base import Layer, Misfit, Signal, layer_kind, number, width
from widthwise.network.validation import check_flag, check_integer, is_one_of

MECHANISMS = ("identity", "softmax", "relu", "abs")
SCALINGS = ("1/n", "1/sqrt(n)")


@layer_kind("attention")
class Attention(Layer):
    """z_p = b + W_O [ζ(G_p·) v]_heads with keys k, queries q and values v linear in the inputs at every position.

    `scaling` of G_pr = q_p·k_r/key width: "1/n", with queries that are the keys, or the square root of the width, with
    queries of their own. At infinite width (many heads, wide keys and values) theory knows "1/n" with every
    mechanism ζ, where G becomes the number C_QK K_aa;pr, and "1/sqrt(n)" with "identity", where G stays random.
    Softmax of random G has no Gaussian limit at finitely many heads: it can be measured alone.

    Weights of values have variance 1/inputs and rate λ_V/inputs, those of the output C_W and λ_W over heads × values;
    keys and queries C_QK as a product, and rates λ_QK relative to their variance. Random vectors of variance
    `positional` that belong to each position are added to what keys and queries read, and with `in_values` to what the
    values read; `length` is the distance e-fold over which they are correlated, 0 for independent ones. They are
    learned at the rate λ_positional (by theory alone: networks that are sampled keep them).

    >>> Attention(64, 64, heads=8, mechanism="softmax").scaling
    '1/n'
    """

    inputs: int = width()
    outputs: int = width()
    heads: int = width()
    keys: int | None = None
    values: int | None = None
    mechanism: str = "identity"
    scaling: str = "1/n"
    in_values: bool = False
    C_b: float = number(default=0.0)
    C_W: float = number(default=1.0)
    C_QK: float = number(default=1.0)
    lambda_b: float = number(default=1.0)
    lambda_W: float = number(default=1.0)
    lambda_V: float = number(default=1.0)
    lambda_QK: float = number(default=1.0)
    positional: float = number(default=0.0)
    length: float = number(default=0.0)
    lambda_positional: float = number(default=0.0)

    numbered: ClassVar[bool] = True
    reads_all_positions: ClassVar[bool] = True
    reads_own_positions: ClassVar[bool] = True
    no_order_one: ClassVar[str] = "attention has no rule at order 1/n"

    def __post_init__(self):
        super().__post_init__()
        for name, value, known in (("mechanism", self.mechanism, MECHANISMS), ("scaling", self.scaling, SCALINGS)):
            if not is_one_of(value, known):
                raise UnknownName.of(name, value, known)
        check_flag("in_values", self.in_values)
        for name in ("keys", "values"):
            if getattr(self, name) is not None:
                expected = "a positive integer, or None for as many as there are inputs"
                object.__setattr__(self, name, check_integer(name, getattr(self, name), 1, expected=expected))

    def outgoing(self, signal: Signal) -> Signal:
        if signal.positions == 0:
            raise Misfit("attention where there are no positions", "inputs (inputs, positions…, channels)")
        if signal.width not in (None, self.inputs):
            raise Misfit(f"{signal.width} channels", f"{self.inputs}, the inputs of Attention")
        return signal._replace(width=self.outputs, gaussian=True, gained=False)

    @property
    def sizes(self) -> tuple[int, int]:
        """Widths of the keys and of the values of a head: as given, or as many as there are inputs."""
        return self.keys or self.inputs, self.values or self.inputs
