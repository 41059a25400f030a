"""Tensors of order 1/n at every layer of a network with residual connections and normalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from widthwise.activations import resolve
from widthwise.errors import NoRule
from widthwise.flow.tensors.block_rules import BlockRules
from widthwise.flow.tensors.block_step import BlockSpecification, BlockStep
from widthwise.flow.tensors.neuron_functions import AskedTables, NeuronExpectations
from widthwise.memory import require_memory
from widthwise.network import MLP, Dense, Elementwise, Network, Residual, simplified
from widthwise.network.layers.base import Layer
from widthwise.network.layers.normalisation import Normalisation
from widthwise.tensors import TENSORS

#: Arrays over four inputs that are held for each pair of layers, about.
ARRAYS_HELD = 150
#: Layers after which the rules have asked for every table that they need.
_LAYERS_ASKED = 4


def block_specifications(net: Network, purpose: str) -> list[BlockSpecification]:
    """The steps from layer 1 on; refused by position where a step has no rule."""
    ends = [0, *(position + 1 for position in net.numbered)]
    if not isinstance(net.layers[0], Dense):
        raise no_rule(net, 0, purpose, net.layers[0].no_order_one)
    found = []
    for start, stop in list(pairwise(ends))[1:]:
        *before, last = net.layers[start:stop]
        scale = 0.0
        if isinstance(last, Residual):
            if before:
                reason = "a layer on the stream itself, between two residual connections, has no rule at order 1/n"
                raise no_rule(net, start, purpose, reason)
            scale, (*before, last) = last.scale, last.inner
            start = stop - 1
        found.append(_specification(net, start, before, last, float(scale), purpose))
    for number, (below, above) in enumerate(pairwise(found)):
        if below.scale > 0.0 and below.activation != above.activation:
            reason = "two activations along one stream have no common four-point expectations"
            raise no_rule(net, net.numbered[number + 2], purpose, reason)
    return found


def _specification(
    net: Network, position: int, before: list[Layer], last: Layer, scale: float, purpose: str
) -> BlockSpecification:
    """One step from [normalisation], activation, [normalisation] and a dense layer, which begins at a position."""
    for number, layer in enumerate(before):
        if not isinstance(layer, Elementwise | Normalisation | Dense | Residual):
            within = isinstance(net.layers[position], Residual)
            raise no_rule(net, position if within else position + number, purpose, layer.no_order_one)
    kinds = [Normalisation if isinstance(layer, Normalisation) else type(layer) for layer in before]
    reason = ""
    if not isinstance(last, Dense):
        reason = last.no_order_one
    elif kinds.count(Elementwise) > 1 or any(isinstance(layer, Dense | Residual) for layer in before):
        reason = "a residual body of several dense layers has no rule for V at order 1/n, on which all tensors stand"
    elif kinds.count(Normalisation) > 1:
        reason = "two normalisations in one layer have no rule at order 1/n"
    elif scale > 0.0 and kinds[-1:] == [Normalisation] and Elementwise in kinds:
        reason = "normalisation after the activation has no confirmed rule together with a skip"
    if reason:
        raise no_rule(net, position, purpose, reason)
    norm = next((layer for layer in before if isinstance(layer, Normalisation)), None)
    sigma = next((layer.activation for layer in before if isinstance(layer, Elementwise)), None) or resolve("linear")
    if sigma.kinks:
        reason = f"{sigma.name} has a kink, for which no rule has been confirmed with skips or normalisation"
        raise no_rule(net, position, purpose, reason)
    assert isinstance(last, Dense)
    return BlockSpecification(scale, sigma, norm, kinds[:1] == [Normalisation], last)


def no_rule(net: Network, position: int, purpose: str, reason: str) -> NoRule:
    """The error for a layer without a rule."""
    return NoRule(
        "net",
        f"layers[{position}] = {net.layers[position]!r} in {purpose}",
        "layers with a rule at order 1/n",
        f"Reason: {reason}. Take order=0, or measure it.",
    )


def with_order_one(net: Network, purpose: str) -> Network:
    """The network, an `MLP` where it is one; refused by position where a layer has no rule at order 1/n."""
    net = simplified(net)
    if not isinstance(net, MLP):
        block_specifications(net, purpose)
    return net


def _longest_stream(blocks: list[BlockSpecification]) -> int:
    """Layers that are followed at once: those that skips join."""
    longest = here = 1
    for block in blocks:
        here = here + 1 if block.scale > 0.0 else 1
        longest = max(longest, here)
    return longest


def block_flow(
    net: Network,
    K: np.ndarray,
    Theta: np.ndarray,
    wanted: tuple[str, ...],
    carried: tuple[str, ...],
    tolerance: float,
    progress: Callable[[int, int], None] | None = None,
    omit: frozenset[Any] = frozenset(),
) -> tuple[list[dict[str, np.ndarray]], float]:
    """The wanted tensors of every layer, and a bound on the error; K and Θ (layers, inputs, inputs)."""
    blocks = block_specifications(net, "tensors of order 1/n")
    if blocks and blocks[-1].scale > 0.0:  # what ends on its stream is read by one more step, which is not taken
        blocks.append(replace(blocks[-1], scale=0.0, norm=None))
    inputs, stretch = K.shape[-1], _longest_stream(blocks)
    require_memory(
        8 * ARRAYS_HELD * stretch * inputs**4,
        f"tensors of {inputs} inputs along a stream of {stretch} layers",
        "Take fewer inputs, or fewer tensors.",
    )
    asked, first = AskedTables(), np.ones((_LAYERS_ASKED, 1, 1))
    _steps_taken(net, blocks[:_LAYERS_ASKED], first, first, wanted, carried, asked, None, omit)
    expect = NeuronExpectations(tolerance, asked)
    found = _steps_taken(net, blocks, K, Theta, wanted, carried, expect, progress, omit)
    return found, expect.error


def _steps_taken(
    net: Network,
    blocks: list[BlockSpecification],
    K: np.ndarray,
    Theta: np.ndarray,
    wanted: tuple[str, ...],
    carried: tuple[str, ...],
    expect: NeuronExpectations,
    progress: Callable[[int, int], None] | None,
    omit: frozenset[Any],
) -> list[dict[str, np.ndarray]]:
    found: list[dict[str, np.ndarray]] = []
    # all steps first: from a layer on the expectations look ahead along its stream
    steps = [
        BlockStep(expect, layer, block, K[layer - 1], Theta[layer - 1], net.widths[layer] / net.widths[layer - 1], omit)
        for layer, block in enumerate(blocks, 1)
    ]
    rules = BlockRules(expect, steps, omit)
    zeros = {name: np.zeros((K.shape[-1],) * TENSORS[name].slots) for name in {*carried, *wanted}}
    now: dict[str, Any] = zeros
    for step in steps:
        found.append({name: rules.completed(name, step, now) for name in wanted})
        if len(found) < net.depth:
            # tensors with a single leg are functionals alone: no part of them is carried, nor left at a plain layer
            now = zeros | {name: rules.next_tensor(name, step, now) for name in carried}
        # functions of this layer's neurons are not read again
        rules.known.clear()
        expect.forget(step.layer)
        if progress is not None:
            progress(step.layer, len(blocks))
    if len(found) < net.depth:
        found.append({name: now[name] for name in wanted})
    return found
