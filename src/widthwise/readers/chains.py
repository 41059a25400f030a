"""A model as a chain of weight layers with an activation between any two of them, whatever package it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.activations import Activation, resolve
from widthwise.errors import InvalidInput
from widthwise.network import MLP

SUPPORTED = "Linear layers with one activation between them, Flatten and Identity"


@dataclass(frozen=True)
class ReadDense:
    """A weight layer: W (outputs, inputs), b (outputs,) or None, where it stands, and the package's own object."""

    W: np.ndarray
    b: np.ndarray | None
    where: str
    owner: Any = None


@dataclass(frozen=True)
class ReadActivation:
    """An activation and where it stands."""

    activation: Activation
    where: str


@dataclass(frozen=True)
class LayerChain:
    """Weight layers in order, and the activations between them, one per hidden layer."""

    dense: tuple[ReadDense, ...]
    activations: tuple[Activation, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.dense[0].W.shape[1], *(layer.W.shape[0] for layer in self.dense))


def unsupported(where: str, remedy: str = "") -> InvalidInput:
    """The error for something that a multilayer perceptron does not have."""
    return InvalidInput("model", where, SUPPORTED, remedy)


def chain_of(steps: Sequence[ReadDense | ReadActivation]) -> LayerChain:
    """The steps of a model in the order of their application, checked: W, σ, W, σ, …, W.

    Two weight layers in a row have the linear activation between them.

    >>> tanh = ReadActivation(resolve("tanh"), "1 (Tanh)")
    >>> chain = chain_of([ReadDense(np.ones((4, 2)), None, "0"), tanh, ReadDense(np.ones((1, 4)), None, "2")])
    >>> chain.widths, chain.activations
    ((2, 4, 1), ('tanh',))
    """
    if not any(isinstance(step, ReadDense) for step in steps):
        raise unsupported("a model without a Linear layer")
    dense: list[ReadDense] = []
    activations: list[Activation] = []
    waiting: ReadActivation | None = None
    for step in steps:
        if isinstance(step, ReadDense):
            if dense:
                outputs, inputs = len(dense[-1].W), step.W.shape[1]
                if outputs != inputs:
                    sizes = f"with {outputs} outputs before {step.where} with {inputs} inputs"
                    raise unsupported(f"{dense[-1].where} {sizes}")
                activations.append(resolve("linear") if waiting is None else waiting.activation)
            dense.append(step)
            waiting = None
        elif not dense:
            raise unsupported(f"{step.where} before the first Linear layer", "Apply it to the data instead.")
        elif waiting is not None:
            raise unsupported(f"{waiting.where} followed by {step.where}", "Write the two as one activation.")
        else:
            waiting = step
    if waiting is not None:
        raise unsupported(f"{waiting.where} after the last Linear layer", "Leave it to the loss: outputs are linear.")
    return LayerChain(tuple(dense), tuple(activations))


def check_fits(chain: LayerChain, net: MLP, *of_biases: str) -> None:
    """Refuse a network of other widths or activations, or with nonzero `of_biases` (C_b, lambda_b) where none are."""
    if chain.widths != net.widths:
        raise InvalidInput("net", f"widths {list(net.widths)}", f"those of the model, {list(chain.widths)}")
    if chain.activations != net.activations:
        given, read = (_activation_names(activations) for activations in (net.activations, chain.activations))
        raise InvalidInput("net", f"activation {given}", f"that of the model, {read}")
    for name in of_biases:
        for layer, value in zip(chain.dense, getattr(net, name), strict=True):
            if layer.b is None and value > 0.0:
                got = f"{name} = {value:g} for {layer.where}, which has no bias"
                raise InvalidInput("net", got, f"{name} = 0 there", "Use bias=True in the model.")


def _activation_names(activations: Sequence[Activation]) -> str:
    names = [sigma.name for sigma in activations]
    return names[0] if len(set(activations)) == 1 else ", ".join(names)
