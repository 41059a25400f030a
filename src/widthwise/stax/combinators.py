"""Composition: one layer after the other, and branches."""

from __future__ import annotations

from typing import Any

from widthwise.errors import InvalidInput
from widthwise.network.validation import check_integer, is_one_of
from widthwise.stax.recipes import Item, StaxLayer, items_of, made_of

#: Layers one after the other, or branches, that `repeat` and `FanOut` make.
MOST_COPIES = 100_000


def serial(*layers: Any) -> StaxLayer:
    """Layers one after the other.

    >>> from widthwise import stax
    >>> _, _, kernel_fn = stax.serial(stax.Dense(512, W_std=2**0.5), stax.Relu(), stax.Dense(1, W_std=1.0))
    >>> kernel_fn([[1.0, 0.0], [0.0, 1.0]], None, "nngp").round(6).tolist()
    [[0.5, 0.159155], [0.159155, 0.5]]
    """
    return made_of(*(item for layer in layers for item in items_of(layer)))


def repeat(layer: Any, n: int) -> StaxLayer:
    """A layer n times, with parameters of its own each time."""
    count = check_integer("n", n, 1, MOST_COPIES, f"an integer from 1 to {MOST_COPIES}")
    return made_of(*(items_of(layer) * count))


def parallel(*layers: Any) -> StaxLayer:
    """Branches, each on its own signal: behind `FanOut`, before `FanInSum`, `FanInProd` or `FanInConcat`."""
    if not layers:
        raise InvalidInput("layers", "no branch", "as many branches as FanOut gives")
    return made_of(Item(parallel=tuple(map(items_of, layers))))


def FanOut(num: int) -> StaxLayer:
    """Copies of one signal."""
    return made_of(Item(fan_out=check_integer("num", num, 2, MOST_COPIES, f"an integer from 2 to {MOST_COPIES}")))


def FanInSum() -> StaxLayer:
    """The sum of branches; see `widthwise.Parallel`."""
    return made_of(Item(join="sum"))


def FanInProd() -> StaxLayer:
    """The product of branches."""
    return made_of(Item(join="product"))


def FanInConcat(axis: int = -1) -> StaxLayer:
    """Channels of all branches beside each other."""
    if not is_one_of(axis, (-1,)):
        raise InvalidInput(
            "axis", repr(axis), "-1, the channels", "Branches cannot be joined along inputs or positions."
        )
    return made_of(Item(join="concatenate"))
