"""Positions of images and sequences on their way through a network, and the features that layers read there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from widthwise.errors import InvalidInput
from widthwise.network.layers.base import Layer, Misfit, Signal, role_fields
from widthwise.network.layers.dense import WeightLayer
from widthwise.network.layers.parallel import Branch, Merge, Parallel, Switch
from widthwise.network.layers.pooling import Flatten
from widthwise.network.layers.residual import Fork, Join, Residual

if TYPE_CHECKING:
    from widthwise.network.layered import Network


def fitted(layer: Layer, own: Layer, channels: int | None, before: Signal) -> Layer:
    """A resized layer that reads so many channels, in place of its own one, which read `before`."""
    if isinstance(layer, Residual | Parallel | Branch):
        names = role_fields(type(layer), "layers")
        within = {}
        for name in names:
            within[name] = _row(getattr(layer, name), getattr(own, name), channels, before, isinstance(layer, Parallel))
        return replace(layer, **within)
    if not isinstance(layer, WeightLayer):
        return layer
    if before.width is None:
        return replace(layer, inputs=own.inputs)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    if before.flat:
        assert channels is not None
        positions = own.inputs // before.width  # pyright: ignore[reportAttributeAccessIssue]
        return replace(layer, inputs=positions * channels)  # pyright: ignore[reportCallIssue]
    return replace(layer, inputs=channels)  # pyright: ignore[reportCallIssue]


def _row(
    layers: Sequence[Layer], owns: Sequence[Layer], channels: int | None, before: Signal, beside: bool
) -> list[Layer]:
    """`fitted` for layers one after the other, or beside each other."""
    found, signal = [], Signal(channels, before.gaussian, before.gained, before.positions, before.flat)
    for layer, own in zip(layers, owns, strict=True):
        layer = fitted(layer, own, signal.width, before)
        found.append(layer)
        if not beside:
            signal, before = layer.outgoing(signal), own.outgoing(before)
    return found


def shapes_of(net: Network, shape: tuple[int, ...], argument: str) -> tuple[tuple[int, ...], ...]:
    """Positions at the entrance of each step and behind the last."""
    found, forks, ends = [shape], [], []
    for step in net.steps:
        try:
            behind = step.positions_behind(found[-1])
        except Misfit as misfit:
            number = layer_of(net, len(found) - 1)
            raise InvalidInput(
                argument, f"inputs that come to layers[{number}] with {misfit.args[0]}", misfit.args[1]
            ) from None
        if isinstance(step, Fork):
            forks.append(behind)
            ends.append([])
        elif isinstance(step, Switch):
            ends[-1].append(behind)
            behind = behind if step.last else forks[-1]
        elif isinstance(step, Join | Merge):
            start, branches = forks.pop(), set(ends.pop())
            branches = {start, behind} if isinstance(step, Join) else branches
            if len(branches) > 1:
                number = layer_of(net, len(found) - 1)
                raise InvalidInput(argument, f"branches of layers[{number}] that end with {sorted(branches)} positions",
                                   "branches with the same positions", "Check strides and padding.")  # fmt: skip
        found.append(behind)
    return tuple(found)


def layer_of(net: Network, step: int) -> int:
    """The number of the layer that a step belongs to."""
    for number, (layer, signal) in enumerate(zip(net.layers, net.signals, strict=False)):
        step -= len(layer.steps_on(signal))
        if step < 0:
            return number
    return len(net.layers) - 1


def check_images(net: Network, array: Any, name: str) -> Any:
    """An array (inputs, positions…, channels) that fits a network, or a refusal."""
    dimensions = net.positions
    expected = "shape (inputs, positions…, channels)"
    if dimensions is not None:
        expected = f"{2 + dimensions} axes: inputs, {dimensions} of positions, channels"
    if array.ndim < 3 or (dimensions is not None and array.ndim != 2 + dimensions):
        missing = dimensions is not None and array.ndim == 1 + dimensions
        remedy = f"Write {name}[..., None] for one channel." if missing else ""
        raise InvalidInput(name, f"an array of shape {array.shape}", expected, remedy)
    if array.size == 0:
        raise InvalidInput(name, f"an empty array of shape {array.shape}", "at least one input, position and channel")
    shape, channels = array.shape[1:-1], array.shape[-1]
    net.shapes(shape, name)
    _check_channels(net, shape, channels, name)
    return array


def _check_channels(net: Network, shape: tuple[int, ...], channels: int, name: str) -> None:
    """Every layer with weights must read as many features as come to it, those behind Flatten too."""
    raw: int | None = channels
    shapes = net.shapes(shape, name)
    for place, (step, positions, signal) in enumerate(zip(net.steps, shapes, net.step_signals, strict=False)):
        if isinstance(step, Flatten):
            flattened = positions
        if not isinstance(step, WeightLayer):
            continue
        count = raw if signal.width is None else signal.width
        if signal.flat:
            for length in flattened:
                count = count * length  # pyright: ignore[reportOptionalOperand]
        if count != step.inputs:
            number = layer_of(net, place)
            what = f"channels {channels} at positions {shape}, which give layers[{number}] {count} features"
            raise InvalidInput(name, what, f"the {step.inputs} inputs of {step!r}", "Change its inputs, or the data.")
