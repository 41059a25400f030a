"""What was read of a model, step by step, whatever package it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from widthwise.activations import Activation
from widthwise.network import PER_LAYER, Conv, Dense, Flatten, Layer, LayerNorm, RMSNorm

#: Normalisations by the names of their modules, which are those of widthwise in every package.
NORM_KINDS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


@dataclass(frozen=True)
class ReadDense:
    """A weight layer: W (outputs, fan-in), b (outputs,) or None, where it stands, and the package's own W and b.

    What it computes is multiplied by the constant `factor` of the model. With `conv`, a convolution whose C's and λ's
    are not known yet, W has the entries of a window first and channels last.
    """

    W: np.ndarray
    b: np.ndarray | None
    where: str
    tensors: tuple[Any, Any] = (None, None)
    factor: float = 1.0
    conv: Conv | None = None

    @property
    def values(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        return self.W, self.b

    @property
    def fans(self) -> tuple[int, int]:
        """Inputs that a neuron reads, and neurons that read an input."""
        return self.W.shape[1], len(self.W) * (1 if self.conv is None else self.conv.size)

    def layer(self, numbers: Sequence[float]) -> Dense | Conv:
        """The layer with given C_b, C_W, λ_b, λ_W."""
        if self.conv is None:
            return Dense(self.W.shape[1], self.W.shape[0], *numbers)
        return replace(self.conv, **dict(zip(PER_LAYER, numbers, strict=True)))


@dataclass(frozen=True)
class ReadActivation:
    """An activation and where it stands."""

    activation: Activation
    where: str


@dataclass(frozen=True)
class ReadNorm:
    """A normalisation over so many neurons, without its gain and shift."""

    layer: RMSNorm | LayerNorm
    width: int
    where: str


@dataclass(frozen=True)
class ReadGain:
    """The learned gain and shift of a normalisation, None for one that it does not have, and the package's own."""

    gain: np.ndarray | None
    shift: np.ndarray | None
    where: str
    tensors: tuple[Any, Any] = (None, None)

    @property
    def values(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        return self.gain, self.shift


@dataclass(frozen=True)
class ReadLayer:
    """A layer without anything learned: pooling, `Flatten`, `Dropout`.

    With `channels_first` features of a `Flatten` are counted by channels and then positions, as the package has them.
    `positions` is how many a global pool adds up, where that is known.
    """

    layer: Layer
    where: str
    channels_first: bool = False
    positions: int | None = None


@dataclass(frozen=True)
class ReadResidual:
    """What comes in, times a scale, added to what leaves the body."""

    body: tuple[ReadStep, ...]
    scale: float
    where: str


@dataclass(frozen=True)
class ReadParallel:
    """The sum of what leaves branches that begin at one value."""

    branches: tuple[tuple[ReadStep, ...], ...]
    where: str


@dataclass(frozen=True)
class ReadFactor:
    """A constant factor, which becomes that of the weight layer before it."""

    factor: float
    where: str


@dataclass(frozen=True)
class ReadHead:
    """A softmax or log-softmax over the outputs, which belongs to the loss: the network is that of the logits."""

    kind: str
    where: str


ReadStep = ReadDense | ReadActivation | ReadNorm | ReadGain | ReadLayer | ReadResidual | ReadParallel
#: What readers meet: factors become part of steps, and a head stands last.
SeenStep = ReadStep | ReadFactor | ReadHead


def read_norm(
    kind: str, width: int, epsilon: float, where: str, tensors: tuple[Any, Any], values: Sequence[np.ndarray | None]
) -> list[ReadStep]:
    """A normalisation, and its gain and shift if it has any."""
    steps: list[ReadStep] = [ReadNorm(NORM_KINDS[kind](epsilon), width, where)]
    gain, shift = values
    return steps if gain is None and shift is None else [*steps, ReadGain(gain, shift, where, tensors)]


def bodies(step: ReadStep) -> tuple[tuple[ReadStep, ...], ...]:
    """Steps within a step: the body of a residual connection, or branches."""
    match step:
        case ReadResidual():
            return (step.body,)
        case ReadParallel():
            return step.branches
        case _:
            return ()


def with_bodies(step: ReadStep, new: Sequence[Sequence[ReadStep]]) -> ReadStep:
    """The step with other steps within it."""
    match step:
        case ReadResidual():
            return replace(step, body=tuple(new[0]))
        case ReadParallel():
            return replace(step, branches=tuple(map(tuple, new)))
        case _:
            return step


def flat(steps: Sequence[ReadStep]) -> Iterator[ReadStep]:
    """All steps in a row, in place of each one with others within it those."""
    for step in steps:
        within = bodies(step)
        yield from (one for body in within for one in flat(body)) if within else (step,)


def in_rows_of_positions(steps: Sequence[ReadStep]) -> list[ReadStep]:
    """Weights behind a `Flatten` of channels and then positions, in the order of positions and then channels."""
    found, channels, turned = [], 0, False
    for step in steps:
        step = with_bodies(step, [in_rows_of_positions(body) for body in bodies(step)])
        if isinstance(step, ReadLayer) and isinstance(step.layer, Flatten):
            turned = step.channels_first
        elif isinstance(step, ReadDense) and turned and channels and step.W.shape[1] % channels == 0:
            by_channel = step.W.reshape(len(step.W), channels, -1)
            step = replace(step, W=by_channel.swapaxes(1, 2).reshape(step.W.shape))
        own = [one for one in flat([step]) if isinstance(one, ReadDense)]
        channels, turned = (len(own[-1].W), False) if own else (channels, turned)
        found.append(step)
    return found
