"""Where channels and positions of images stand inside a PyTorch model, and which of its operations move them.

Convolutions and pools take (inputs, channels, positions…); Linear layers and normalisations act on the last axis. What
comes first says how the inputs of the model stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from widthwise.network import Conv, Flatten, GlobalAvgPool, Layer
from widthwise.network.layers.pooling import Pool
from widthwise.network.layers.windows import Windowed
from widthwise.readers.chains import unsupported
from widthwise.readers.read_steps import ReadDense, ReadLayer, ReadNorm, ReadStep, bodies, flat, with_bodies


@dataclass(frozen=True)
class Reshape:
    """All axes but the first in a row (`to_row`), or any other change of shape."""

    to_row: bool
    where: str


@dataclass(frozen=True)
class Permute:
    """Axes in another order."""

    axes: tuple[int, ...]
    where: str


@dataclass(frozen=True)
class MeanOver:
    """The mean over axes."""

    axes: tuple[int, ...]
    where: str


@dataclass
class _Layout:
    """Whether channels come before positions, of how many dimensions, None before that is known; or positions are gone.

    `entrance` is the first that was known: that of the model's inputs.
    """

    channels_first: bool | None = None
    dimensions: int | None = None
    gone: bool = False
    entrance: bool | None = None

    def must_be(self, channels_first: bool, dimensions: int | None, where: str) -> None:
        if self.gone:
            raise unsupported(f"{where} behind a Flatten or a pool over all positions")
        if self.channels_first is None:
            self.channels_first = channels_first
            self.entrance = channels_first if self.entrance is None else self.entrance
        self.dimensions = self.dimensions or dimensions
        if self.channels_first != channels_first or (dimensions is not None and self.dimensions != dimensions):
            own = "channels in axis 1" if channels_first else "channels in the last axis"
            raise unsupported(f"{where}, which takes {own}, where they are not", "Permute the axes before it.")


def has_positions(steps: Sequence[Any]) -> bool:
    """Whether a model takes images or sequences."""
    return any(
        isinstance(step, MeanOver)
        or (isinstance(step, ReadDense) and step.conv is not None)
        or (isinstance(step, ReadLayer) and isinstance(step.layer, Pool | GlobalAvgPool))
        for step in flat(steps)
    )


def at_positions(steps: Sequence[Any]) -> tuple[list[ReadStep], bool]:
    """Steps with changes of shape read as `Flatten` and `GlobalAvgPool`; whether inputs have channels first."""
    if not has_positions(steps):
        plain = [step for step in flat(steps) if isinstance(step, Permute)]
        if plain:
            raise unsupported(f"{plain[0].where} in a model without Conv layers and pools")
        return _without_reshapes(steps), False
    layout = _Layout()
    return _at_known_layout(steps, layout), bool(layout.entrance)


def _without_reshapes(steps: Sequence[Any]) -> list[ReadStep]:
    kept = (step for step in steps if not isinstance(step, Reshape))
    return [with_bodies(step, [_without_reshapes(body) for body in bodies(step)]) for step in kept]


def _at_known_layout(steps: Sequence[Any], layout: _Layout) -> list[ReadStep]:
    found: list[ReadStep] = []
    for step in steps:
        match step:
            case ReadDense(conv=Conv() as conv):
                layout.must_be(True, len(conv.window), step.where)
            case ReadLayer(layer=Layer() as layer) if isinstance(layer, Windowed):
                layout.must_be(True, len(layer.window), step.where)
            case ReadLayer(layer=GlobalAvgPool()):
                layout.must_be(True, None, step.where)
                layout.gone = True
            case ReadDense() | ReadNorm() if not layout.gone:
                layout.must_be(False, None, step.where)
            case Reshape() | Permute() | MeanOver():
                found += _change_of_shape(step, layout)
                continue
        within = bodies(step)
        if within:
            layouts = [replace(layout) for _ in within]
            step = with_bodies(step, [_at_known_layout(body, one) for body, one in zip(within, layouts, strict=True)])
            layout.__dict__.update(layouts[-1].__dict__)
        found.append(step)
    return found


def _change_of_shape(step: Reshape | Permute | MeanOver, layout: _Layout) -> list[ReadStep]:
    """What a change of shape is, given where channels stand."""
    if layout.gone and isinstance(step, Reshape):
        return []
    if layout.gone:
        raise unsupported(f"{step.where} behind a Flatten or a pool over all positions")
    match step:
        case Reshape(to_row=True) if layout.channels_first is not None:
            layout.gone = True
            return [ReadLayer(Flatten(), step.where, layout.channels_first)]
        case Reshape() if layout.channels_first is None:
            return []  # rows that are made images: the network takes images
        case Permute(axes=axes):
            count = len(axes)
            to_last, to_first = (0, *range(2, count), 1), (0, count - 1, *range(1, count - 1))
            if axes not in (to_last, to_first):
                raise unsupported(f"{step.where}, axes in the order {axes}", f"Take {to_last} or {to_first}.")
            # a sequence has one axis of positions, and both orders are one
            first = to_last == axes if to_last != to_first or layout.channels_first is None else layout.channels_first
            layout.must_be(first, count - 2, step.where)
            layout.channels_first = not first
            return []
        case MeanOver(axes=axes):
            if layout.channels_first is None:
                layout.must_be(False, len(axes), step.where)
            if layout.dimensions is None:
                layout.dimensions = len(axes)
            count = layout.dimensions + 2
            positions = range(2, count) if layout.channels_first else range(1, count - 1)
            if sorted(axis % count for axis in axes) != list(positions):
                raise unsupported(f"{step.where} over axes {axes}", f"All axes of positions, {tuple(positions)}.")
            layout.gone = True
            return [ReadLayer(GlobalAvgPool(), step.where)]
    raise unsupported(f"{step.where}, which mixes positions", "Flatten all of them, or none.")
