"""Windows that slide over the positions of an image or a sequence: sizes, strides, dilation and padding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from widthwise.errors import InvalidInput, UnknownName
from widthwise.network.layers.base import Layer, Misfit, Signal
from widthwise.network.validation import check_integer

PADDINGS = ("SAME", "VALID", "CIRCULAR")


class Slide(NamedTuple):
    """A window along one dimension: its entries, steps between windows and between entries, zeros or wrapped ends."""

    size: int
    stride: int
    dilation: int
    before: int
    after: int
    wraps: bool

    def count(self, length: int) -> int:
        """How many windows fit."""
        return (length + self.before + self.after - self.dilation * (self.size - 1) - 1) // self.stride + 1

    def entries_met(self, count: int, length: int) -> range:
        """Entries outside of which none of `count` windows has one on any of `length` positions; one at least.

        >>> Slide(10**9, stride=1, dilation=1, before=5 * 10**8, after=5 * 10**8 - 1, wraps=False).entries_met(3, 3)
        range(499999998, 500000003)
        """
        first = max(0, -((self.stride * (count - 1) - self.before) // self.dilation))
        return range(first, max(first + 1, min(self.size, (self.before + length - 1) // self.dilation + 1)))

    def met(self, entry: int, count: int, length: int) -> tuple[slice, slice]:
        """Which of `count` windows have this entry on a position, and which of `length` positions those are.

        >>> Slide(size=3, stride=1, dilation=1, before=1, after=1, wraps=False).met(0, 5, 5)
        (slice(1, 5, None), slice(0, 4, 1))
        """
        start = entry * self.dilation - self.before
        first = max(0, -(start // self.stride))
        stop = max(first, min(count, (length - 1 - start) // self.stride + 1))
        if stop == first:
            return slice(0, 0), slice(0, 0)
        begin = start + first * self.stride
        return slice(first, stop), slice(begin, begin + (stop - first - 1) * self.stride + 1, self.stride)


class Windowed(Layer):
    """A kind of layer with `window`, `stride`, `dilation` and `padding`, one entry for each dimension."""

    window: tuple[int, ...]
    stride: Any
    dilation: Any
    padding: Any

    def __post_init__(self):
        super().__post_init__()
        window = self._checked("window", self.window, None)
        object.__setattr__(self, "window", window)
        stride = self._checked("stride", self._default_stride() if self.stride is None else self.stride, len(window))
        object.__setattr__(self, "stride", stride)
        if "dilation" in self.__dict__:
            object.__setattr__(self, "dilation", self._checked("dilation", self.dilation, len(window)))
        if isinstance(self.padding, str):
            if self.padding.upper() not in PADDINGS:
                raise UnknownName.of("padding", self.padding, PADDINGS, ", or numbers of zeros at both ends")
            object.__setattr__(self, "padding", self.padding.upper())
        else:
            object.__setattr__(self, "padding", self._checked("padding", self.padding, len(window), least=0))

    def _default_stride(self) -> Any:
        return 1

    def _checked(self, name: str, value: Any, dimensions: int | None, least: int = 1) -> tuple[int, ...]:
        expected = f"one integer from {least} on a dimension, such as (3, 3) for images and (3,) for sequences"
        if isinstance(value, str) or not isinstance(value, Sequence):
            values = (value,) * (dimensions or 1)
        else:
            values = tuple(value)
        if not values or (dimensions is not None and len(values) != dimensions):
            raise InvalidInput(name, repr(value), f"{dimensions} integers" if dimensions else expected)
        return tuple(check_integer(name, entry, least, expected=expected) for entry in values)

    @property
    def size(self) -> int:
        """Entries of a window."""
        total = 1
        for entries in self.window:
            total *= entries
        return total

    @property
    def offsets(self) -> list[tuple[int, ...]]:
        """The entries of a window, by their numbers along each dimension."""
        return list(product(*map(range, self.window)))

    def positions_behind(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) != len(self.window):
            got = f"inputs with {len(shape)} dimensions of positions for a window {self.window}"
            expected = "(inputs, positions…, channels) with a position for each entry of the window"
            raise Misfit(got, expected)
        behind = tuple(slide.count(length) for slide, length in zip(self.slides(shape), shape, strict=True))
        if min(behind) < 1:
            raise Misfit(
                f"{shape} positions, smaller than a window {self.window} of dilation {self.dilation}",
                "a window that fits, or padding 'SAME'",
            )
        return behind

    def slides(self, shape: tuple[int, ...]) -> tuple[Slide, ...]:
        """The window along each dimension of an image of this shape."""
        dilation = self.dilation if isinstance(self.dilation, tuple) else (1,) * len(shape)
        return _slides(shape, self.window, self.stride, dilation, self.padding)

    def at_positions(self, signal: Signal) -> Signal:
        """The signal with as many dimensions of positions as the window has; a `Misfit` where it has others."""
        if signal.positions not in (None, len(self.window)):
            raise Misfit(
                f"a window {self.window} on {signal.positions or 'no'} dimensions of positions",
                "a window with one entry for each of them",
            )
        return signal._replace(positions=len(self.window))


@lru_cache(maxsize=256)
def _slides(
    shape: tuple[int, ...],
    window: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: str | tuple[int, ...],
) -> tuple[Slide, ...]:
    found = []
    for place, length in enumerate(shape):
        size, stride, dilation = window[place], strides[place], dilations[place]
        if padding == "VALID":
            before = after = 0
        elif isinstance(padding, str):
            # as many windows as strides fit into the length, the odd zero behind
            reach = dilation * (size - 1) + 1
            total = max((-(-length // stride) - 1) * stride + reach - length, 0)
            before, after = total // 2, total - total // 2
        else:
            before = after = padding[place]
        found.append(Slide(size, stride, dilation, before, after, padding == "CIRCULAR"))
    return tuple(found)
