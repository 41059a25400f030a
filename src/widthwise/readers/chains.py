"""A model as a chain of weight layers with one activation between them, whatever package it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from widthwise.activations import Activation, resolve
from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import Weights
from widthwise.network import MLP

SUPPORTED = "Linear layers with one activation between them, Flatten and Identity"


@dataclass(frozen=True)
class Dense:
    """A weight layer: W (outputs, inputs), b (outputs,) or None, where it stands, and the package's own object."""

    W: np.ndarray
    b: np.ndarray | None
    where: str
    owner: Any = None


@dataclass(frozen=True)
class Nonlinear:
    """An activation and where it stands."""

    activation: Activation
    where: str


@dataclass(frozen=True)
class Chain:
    """Weight layers in order and the activation between any two of them."""

    dense: tuple[Dense, ...]
    activation: Activation

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.dense[0].W.shape[1], *(layer.W.shape[0] for layer in self.dense))

    @property
    def parameters(self) -> list[Weights]:
        """Parameters as `widthwise.experiments` has them; a missing bias is zero."""
        return [
            Weights(layer.W, np.zeros(len(layer.W)) if layer.b is None else layer.b)  # pyright: ignore[reportArgumentType]
            for layer in self.dense
        ]


def unsupported(where: str, remedy: str = "") -> InvalidInput:
    """The error for something that a multilayer perceptron does not have."""
    return InvalidInput("model", where, SUPPORTED, remedy)


def chain_of(steps: Sequence[Dense | Nonlinear]) -> Chain:
    """The steps of a model in the order of their application, checked: W, σ, W, σ, …, W.

    >>> import numpy as np
    >>> tanh = Nonlinear(resolve("tanh"), "1 (Tanh)")
    >>> chain_of([Dense(np.ones((4, 2)), None, "0"), tanh, Dense(np.ones((1, 4)), None, "2")]).widths
    (2, 4, 1)
    """
    dense = [step for step in steps if isinstance(step, Dense)]
    if not dense:
        raise unsupported("a model without a Linear layer")
    between = _activations_between(steps)
    known = [step for step in between if step is not None]
    for step in known[1:]:
        if step.activation != known[0].activation:
            raise unsupported(
                f"{known[0].activation.name} at {known[0].where} and {step.activation.name} at {step.where}",
                "The theory takes one activation for all layers.",
            )
    bare = [i for i, step in enumerate(between) if step is None]
    if known and bare:
        first, second = dense[bare[0]], dense[bare[0] + 1]
        raise unsupported(
            f"{first.where} and {second.where} with no activation between them", "Multiply them into one Linear layer."
        )
    for first, second in pairwise(dense):
        if len(first.W) != second.W.shape[1]:
            raise unsupported(
                f"{first.where} with {len(first.W)} outputs before {second.where} with {second.W.shape[1]} inputs"
            )
    return Chain(tuple(dense), known[0].activation if known else resolve("linear"))


def _activations_between(steps: Sequence[Dense | Nonlinear]) -> list[Nonlinear | None]:
    """What stands between consecutive weight layers; refuses activations at the ends and two in a row."""
    between: list[Nonlinear | None] = []
    seen, waiting = 0, None
    for step in steps:
        if isinstance(step, Dense):
            if seen:
                between.append(waiting)
            seen, waiting = seen + 1, None
        elif not seen:
            raise unsupported(f"{step.where} before the first Linear layer", "Apply it to the data instead.")
        elif waiting is not None:
            raise unsupported(f"{waiting.where} followed by {step.where}", "Write the two as one activation.")
        else:
            waiting = step
    if waiting is not None:
        raise unsupported(f"{waiting.where} after the last Linear layer", "Leave it to the loss: outputs are linear.")
    return between


def standard_deviations(net: MLP) -> list[Weights]:
    """√(C_W/n_{l−1}) of the weights and √C_b of the biases of every layer (theory §1)."""
    layers = zip(net.C_W, net.widths[:-1], net.C_b, strict=True)
    return [Weights(math.sqrt(C_W / n), math.sqrt(C_b)) for C_W, n, C_b in layers]  # pyright: ignore[reportArgumentType]


def check_fits(chain: Chain, net: MLP) -> None:
    """Refuse to write a network's numbers into a model of other widths, activation, or without biases it needs."""
    if chain.widths != net.widths:
        raise InvalidInput("net", f"widths {list(net.widths)}", f"those of the model, {list(chain.widths)}")
    if net.depth > 1 and chain.activation != net.activation:
        raise InvalidInput("net", f"activation {net.activation.name}", f"that of the model, {chain.activation.name}")
    for layer, C_b in zip(chain.dense, net.C_b, strict=True):
        if layer.b is None and C_b > 0.0:
            raise InvalidInput(
                "net",
                f"C_b = {C_b:g} for {layer.where}, which has no bias",
                "C_b = 0 there",
                "Use bias=True in the model.",
            )
