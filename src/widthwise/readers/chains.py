"""A model as steps that were read one after the other, whatever package it comes from, and the network that they are.

A step is a weight layer, an activation, a normalisation, its learned gain and shift, a pool, or a residual connection
around steps. Readers follow the values inside a model: each `Value` is a step and the value that the step acted on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import jax
import numpy as np

from widthwise.activations import NO_ACTIVATIONS, Activation, resolve
from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import learning_rates
from widthwise.network import (
    MLP,
    Affine,
    AvgPool,
    Dropout,
    Elementwise,
    GlobalAvgPool,
    GlobalSumPool,
    Layer,
    Network,
    Parallel,
    Residual,
    SumPool,
    WeightLayer,
    check_network,
    simplified,
)
from widthwise.network.layers.base import Misfit, Signal
from widthwise.network.mlp import check_activations
from widthwise.network.skips_and_norms import BATCH_NORM
from widthwise.network.validation import plain_values
from widthwise.readers.read_steps import (
    ReadActivation,
    ReadDense,
    ReadFactor,
    ReadGain,
    ReadHead,
    ReadLayer,
    ReadNorm,
    ReadParallel,
    ReadResidual,
    ReadStep,
    SeenStep,
    bodies,
    flat,
    in_rows_of_positions,
    with_bodies,
)

SUPPORTED = (
    "Linear and Conv layers, one activation between two of them, average pools, Dropout, LayerNorm, RMSNorm, skips, "
    "Flatten and Identity"
)
#: Why parts of models have no network, by pieces of the names of their classes in small letters.
_SOFTMAX = (
    "softmax of random dot products is not Gaussian at finitely many heads, however wide the model (arXiv 2506.00846): "
    "widthwise.Attention has the kinds with a limit, and model_ntk takes the model as it is"
)
_OVER_POSITIONS = "it divides by a mean over positions, which has no rule; LayerNorm over channels has one"
_CHANNELS_DROPPED = "its masks are shared by all positions, which has no rule; Dropout has one"
NO_LIMIT = {
    "attention": _SOFTMAX, "transformer": _SOFTMAX,
    "maxpool": "the largest of several positions has no closed kernel; average pools have one",
    "convtranspose": "transposed convolutions have no rule",
    "groupnorm": _OVER_POSITIONS, "instancenorm": _OVER_POSITIONS,
    "dropout1d": _CHANNELS_DROPPED, "dropout2d": _CHANNELS_DROPPED, "dropout3d": _CHANNELS_DROPPED,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Value:
    """A value inside a model: the step that made it, or a constant factor, and what that acted on; none of the input.

    >>> x = Value()
    >>> h = x.then(ReadDense(np.ones((4, 2)), None, "0"))
    >>> [step.where for step in h.steps_since(x)], x.steps_since(h)
    (['0'], None)
    """

    step: SeenStep | None = None
    before: Value | None = None

    def then(self, *steps: SeenStep) -> Value:
        value = self
        for step in steps:
            value = Value(step, value)
        return value

    def steps_since(self, start: Value) -> list[SeenStep] | None:
        """The steps from another value to this one; None where this one was not made from it."""
        steps, value = [], self
        while value is not start:
            if value.before is None or value.step is None:
                return None
            steps.append(value.step)
            value = value.before
        return steps[::-1]


def summed(one: Value, other: Value, where: str) -> Value:
    """The sum of two values, of which one, perhaps times a constant, is what the other was made from."""
    for skip, branch in ((one, other), (other, one)):
        starts = [(skip, 1.0)]
        if isinstance(skip.step, ReadFactor) and skip.before is not None:
            starts.append((skip.before, skip.step.factor))
        for start, scale in starts:
            body = branch.steps_since(start)
            if body:
                if scale < 0.0:
                    raise unsupported(f"{where}, a skip times {scale:g}", "Change the sign of the branch instead.")
                return start.then(ReadResidual(tuple(_with_factors(body)), scale, where))
    return _branched(one, other, where)


def _branched(one: Value, other: Value, where: str) -> Value:
    """The sum of two values that were made from a third, each by weights of its own."""
    start: Value | None = one
    while start is not None:
        branches = [value.steps_since(start) for value in (one, other)]
        if all(branches):
            dense = [
                [step for step in flat(_with_factors(body or ())) if isinstance(step, ReadDense)] for body in branches
            ]
            own, others = ({id(step.tensors[0]) for step in some if step.tensors[0] is not None} for some in dense)
            if own & others:
                break  # layers that stand in both branches do not make them independent
            return start.then(ReadParallel(tuple(tuple(_with_factors(body or ())) for body in branches), where))
        start = start.before
    raise unsupported(f"{where}, a sum in which neither value was made from the other, nor each by layers of its own")


def _with_factors(steps: Sequence[SeenStep]) -> list[ReadStep]:
    """Constant factors become those of the weight layers before them."""
    found: list[ReadStep] = []
    for step in steps:
        if isinstance(step, ReadHead):
            raise unsupported(
                step.where, "Reason: it belongs to the loss, and stands before the last step of the model."
            )
        if not isinstance(step, ReadFactor):
            found.append(step)
        elif found:
            found.append(_times(found.pop(), step))
        else:
            raise unsupported(f"{step.where}, a factor before any layer", "Put it into the Linear layer that follows.")
    return found


def _times(step: ReadStep, by: ReadFactor) -> ReadStep:
    if isinstance(step, ReadDense):
        return replace(step, factor=step.factor * by.factor)
    if isinstance(step, ReadResidual) and by.factor >= 0.0:
        *body, last = step.body
        return replace(step, body=(*body, _times(last, by)), scale=step.scale * by.factor)
    if isinstance(step, ReadParallel):
        return replace(step, branches=tuple((*body, _times(last, by)) for *body, last in step.branches))
    if isinstance(step, ReadLayer):
        # a sum over positions, divided by how many they are
        pool, mean = step.layer, None
        if isinstance(pool, SumPool) and np.isclose(by.factor * pool.size, 1.0):
            mean = AvgPool(pool.window, pool.stride, pool.padding)
        if isinstance(pool, GlobalSumPool) and step.positions and np.isclose(by.factor * step.positions, 1.0):
            mean = GlobalAvgPool()
        if mean is not None:
            return replace(step, layer=mean)
    remedy = "Put it into the Linear layer that follows."
    raise unsupported(f"{by.where}, a factor {by.factor:g} behind {step.where}", remedy)


@dataclass(frozen=True)
class LayerChain:
    """The steps of a model in the order of their application, checked by `chain_of`.

    `channels_first`: the model takes images as (inputs, channels, positions…), networks take channels last. `head` is
    "softmax" or "log_softmax" where the model ends in one, behind the outputs of the network.
    """

    steps: tuple[ReadStep, ...]
    channels_first: bool = False
    head: str = ""

    @cached_property
    def flat(self) -> tuple[ReadStep, ...]:
        """All steps in a row, those within residual connections and branches too."""
        return tuple(flat(self.steps))

    @cached_property
    def dense(self) -> tuple[ReadDense, ...]:
        return tuple(step for step in self.flat if isinstance(step, ReadDense))

    @cached_property
    def learned(self) -> tuple[ReadDense | ReadGain, ...]:
        """Steps with parameters, in the order in which a network has them."""
        return tuple(step for step in self.flat if isinstance(step, ReadDense | ReadGain))

    @cached_property
    def evaluated(self) -> LayerChain:
        """The same without dropout, which is the identity where a model is evaluated."""

        def drops(step: ReadStep) -> bool:
            return isinstance(step, ReadLayer) and isinstance(step.layer, Dropout)

        def kept(steps: Sequence[ReadStep]) -> tuple[ReadStep, ...]:
            own = (step for step in steps if not drops(step))
            return tuple(with_bodies(step, [kept(body) for body in bodies(step)]) for step in own)

        return replace(self, steps=kept(self.steps)) if any(map(drops, self.flat)) else self

    def images(self, X: Any) -> Any:
        """Inputs of the model as the network takes them, channels last."""
        X = plain_values(X, "X")
        return np.moveaxis(np.asarray(X), 1, -1) if self.channels_first and np.ndim(X) > 2 else X

    @cached_property
    def structure(self) -> Network:
        """The network with all C's and λ's zero."""
        return self.network([(0.0,) * (4 if isinstance(step, ReadDense) else 2) for step in self.learned])

    def network(self, numbers: Sequence[Sequence[float]], activation: Any = None) -> Network:
        """The network, an `MLP` if there are only weight layers and activations.

        `numbers` are C_b, C_W, λ_b, λ_W of each weight layer and λ_gain, λ_shift of each gain, in the order of
        `learned`; `activation` is one for all, or one each, instead of those that were read.
        """
        own = [step.activation for step in self.flat if isinstance(step, ReadActivation)]
        sigmas = own if activation is None else check_activations(activation, len(own))
        layers, _ = _layers_of(self.steps, iter(numbers), iter(sigmas), Signal(None, gaussian=False))
        try:
            net = simplified(Network(layers))
        except InvalidInput as error:
            raise InvalidInput("model", error.got, error.expected, error.remedy) from None
        return net.replace(activation=activation) if isinstance(net, MLP) and not own and activation else net


def _layers_of(
    steps: Sequence[ReadStep], numbers: Iterator[Sequence[float]], sigmas: Iterator[Activation], signal: Signal
) -> tuple[list[Layer], Signal]:
    """The layers that the steps are, and the signal behind them; a step that cannot follow is refused by position."""
    layers: list[Layer] = []
    for step in steps:
        try:
            match step:
                case ReadDense():
                    layer = step.layer(next(numbers))
                case ReadActivation():
                    layer = Elementwise(next(sigmas))
                case ReadNorm():
                    if signal.width not in (None, step.width):
                        raise Misfit(f"{signal.width} features", f"{step.width}, those of the normalisation")
                    layer = step.layer
                case ReadGain():
                    layer = Affine(*next(numbers))
                case ReadLayer():
                    layer = step.layer
                case ReadResidual():
                    layer = Residual(_layers_of(step.body, numbers, sigmas, signal)[0], step.scale)
                case ReadParallel():
                    layer = Parallel([_layers_of(body, numbers, sigmas, signal)[0] for body in step.branches])
            signal = layer.outgoing(signal)
        except Misfit as misfit:
            raise InvalidInput("model", f"{step.where}: {misfit.args[0]}", misfit.args[1]) from None
        layers.append(layer)
    return layers, signal


def unsupported(where: str, remedy: str = "") -> InvalidInput:
    """The error for something that no network of these layers has."""
    return InvalidInput("model", where, SUPPORTED, remedy)


def unsupported_part(kind: str, where: str) -> InvalidInput:
    """The same for a module of a package, by the name of its class."""
    reason = NO_ACTIVATIONS.get(kind.lower())
    reason = next((why for name, why in NO_LIMIT.items() if name in kind.lower().replace("_", "")), reason)
    return unsupported(where, BATCH_NORM if "BatchNorm" in kind else f"Reason: {reason}." if reason else "")


def chain_of(steps: Sequence[SeenStep], channels_first: bool = False) -> LayerChain:
    """The steps of a model in the order of their application, and constant factors, checked to be a network.

    Two weight layers in a row have the linear activation between them.

    >>> tanh = ReadActivation(resolve("tanh"), "1 (Tanh)")
    >>> chain = chain_of([ReadDense(np.ones((4, 2)), None, "0"), tanh, ReadDense(np.ones((1, 4)), None, "2")])
    >>> chain.network([(0.0, 1.0, 1.0, 1.0)] * 2)
    MLP(widths=[2, 4, 1], activation='tanh', C_b=0.0, C_W=1.0, lambda_b=1.0, lambda_W=1.0)
    """
    head = steps[-1].kind if steps and isinstance(steps[-1], ReadHead) else ""
    own = in_rows_of_positions(_with_factors(steps[:-1] if head else steps))
    chain = LayerChain(tuple(_with_linear(own)), channels_first, head)
    if not chain.dense:
        raise unsupported("a model without a Linear layer")
    first, last = chain.steps[0], chain.steps[-1]
    if isinstance(first, ReadActivation | ReadNorm | ReadGain):
        raise unsupported(f"{first.where} before the first Linear layer", "Apply it to the data instead.")
    if isinstance(last, ReadActivation | ReadNorm | ReadGain):
        raise unsupported(f"{last.where} after the last Linear layer", "Leave it to the loss: outputs are linear.")
    if isinstance(last, ReadLayer):
        raise unsupported(f"{last.where} after the last weights", "Apply it to kernels: outputs are those of weights.")
    _ = chain.structure
    return chain


def _with_linear(steps: Sequence[ReadStep]) -> Iterator[ReadStep]:
    """The steps, with the linear activation between two weight layers; two activations in a row are refused."""
    before: ReadStep | None = None
    for step in steps:
        if isinstance(before, ReadDense) and isinstance(step, ReadDense):
            yield ReadActivation(resolve("linear"), f"between {before.where} and {step.where}")
        if isinstance(before, ReadActivation) and isinstance(step, ReadActivation):
            raise unsupported(f"{before.where} followed by {step.where}", "Write the two as one activation.")
        yield with_bodies(step, [list(_with_linear(body)) for body in bodies(step)])
        before = step


def model_rates(chain: LayerChain, net: Network) -> list[tuple[float, float]]:
    """λ_W/n_{l−1} and λ_b, or λ_gain and λ_shift, on the model's own tensors.

    With z = β(W s + b) a step δ on βW is δ/β² of the gradient by W, times β.
    """
    each = []
    for step, layer in zip(chain.learned, net.learned, strict=True):
        rate = learning_rates(layer)
        if isinstance(step, ReadDense):
            check_factor(step)
        each.append(tuple(float(value) / getattr(step, "factor", 1.0) ** 2 for value in rate))
    return each


def check_factor(step: ReadDense) -> None:
    """Weights times zero have no variance and no rate."""
    if step.factor == 0.0:
        raise InvalidInput("model", f"{step.where} times 0", "a factor other than 0")


#: Numbers that are zero where a model lacks the tensor: its place among the `values` of a step, and its name.
_OF_TENSORS = {"C_b": (1, "bias"), "lambda_b": (1, "bias"), "lambda_gain": (0, "gain"), "lambda_shift": (1, "shift")}


def check_fits(chain: LayerChain, net: Network, *of_missing: str) -> None:
    """Refuse a network of other layers, or with nonzero numbers `of_missing` (C_b, λ) of tensors that are not there."""
    own = chain.structure
    if own.widths != check_network(net).widths:
        raise InvalidInput("net", f"widths {list(net.widths)}", f"those of the model, {list(own.widths)}")
    if own.activations != net.activations:
        given, read = (_activation_names(activations) for activations in (net.activations, own.activations))
        raise InvalidInput("net", f"activation {given}", f"that of the model, {read}")
    for number, (ours, given) in enumerate(zip_longest(own.steps, net.steps)):
        fixed = () if isinstance(ours, WeightLayer | Affine) else jax.tree.leaves(ours)  # ε and scales are the model's
        same = jax.tree.structure(ours) == jax.tree.structure(given)
        if not same or not np.allclose(fixed, jax.tree.leaves(given) if fixed else (), rtol=1e-6, atol=0.0):
            raise InvalidInput("net", f"{given!r} as step {number}", f"that of the model, {ours!r}")
    for step, layer in zip(chain.learned, net.learned, strict=True):
        for name in of_missing:
            place, what = _OF_TENSORS[name]
            if step.values[place] is None and getattr(layer, name, 0.0) > 0.0:
                got = f"{name} = {getattr(layer, name):g} for {step.where}, which has no {what}"
                raise InvalidInput("net", got, f"{name} = 0 there", f"Or give the model a {what} there.")


def _activation_names(activations: Sequence[Activation]) -> str:
    names = [sigma.name for sigma in activations]
    return names[0] if len(set(activations)) == 1 else ", ".join(names)
