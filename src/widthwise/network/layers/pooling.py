"""Linear maps over positions without weights: pooling and flattening (theory §13)."""

from __future__ import annotations

from typing import Any, ClassVar

from widthwise.network.layers.base import Layer, Misfit, Signal, layer_kind
from widthwise.network.layers.windows import Windowed
from widthwise.network.validation import check_flag

_NO_ORDER_ONE = "positions share the weights of the layers below, which is not followed at order 1/n"


class Pool(Windowed):
    """Sums over windows of positions, or means."""

    on_raw_inputs: ClassVar[bool] = True
    reads_all_positions: ClassVar[bool] = True
    no_order_one: ClassVar[str] = _NO_ORDER_ONE
    #: What a window is divided by: nothing, or its entries.
    averages: ClassVar[bool] = False
    dilation: ClassVar[int] = 1

    def _default_stride(self) -> Any:
        return self.window

    def outgoing(self, signal: Signal) -> Signal:
        return self.at_positions(signal)

    def __post_init__(self):
        object.__setattr__(self, "window", self._checked("window", self.window, None))
        super().__post_init__()


@layer_kind("avg_pool")
class AvgPool(Pool):
    """The mean over windows; the stride is the window unless given.

    Zeros of the padding count, unless `padding_counts` is False: then every window is divided by the positions in it.

    >>> AvgPool((2, 2))
    AvgPool(window=(2, 2), stride=(2, 2), padding='VALID', padding_counts=True)
    """

    window: tuple[int, ...] = (2, 2)
    stride: Any = None
    padding: Any = "VALID"
    padding_counts: bool = True

    averages: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_flag("padding_counts", self.padding_counts)
        super().__post_init__()


@layer_kind("sum_pool")
class SumPool(Pool):
    """The sum over windows; the stride is the window unless given.

    >>> SumPool((2,), stride=1, padding="SAME")
    SumPool(window=(2,), stride=(1,), padding='SAME')
    """

    window: tuple[int, ...] = (2, 2)
    stride: Any = None
    padding: Any = "VALID"


class PositionReduction(Layer):
    """Layers behind which there are no positions."""

    on_raw_inputs: ClassVar[bool] = True
    no_order_one: ClassVar[str] = _NO_ORDER_ONE

    def outgoing(self, signal: Signal) -> Signal:
        if signal.positions == 0:
            raise Misfit(f"{self!r} where there are no positions", "a layer with positions before it")
        return signal._replace(positions=0)

    def positions_behind(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return ()


@layer_kind("global_avg_pool")
class GlobalAvgPool(PositionReduction):
    """The mean over all positions.

    >>> GlobalAvgPool()
    GlobalAvgPool()
    """

    reads_all_positions: ClassVar[bool] = True


@layer_kind("global_sum_pool")
class GlobalSumPool(PositionReduction):
    """The sum over all positions.

    >>> GlobalSumPool()
    GlobalSumPool()
    """

    reads_all_positions: ClassVar[bool] = True


@layer_kind("flatten")
class Flatten(PositionReduction):
    """All positions and channels in a row: the next dense layer has positions × channels inputs.

    >>> Flatten()
    Flatten()
    """

    def outgoing(self, signal: Signal) -> Signal:
        # neurons of different positions have different variances: no activation may follow before the next weights
        return super().outgoing(signal)._replace(flat=True, gaussian=False)
