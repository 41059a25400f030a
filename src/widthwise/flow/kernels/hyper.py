"""Numbers of layers, stacked, so that one compiled loop serves any depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import jax
import numpy as np

from widthwise.network import MLP
from widthwise.network.layered import numbered_blocks
from widthwise.network.layers.base import Layer, role_fields
from widthwise.network.mlp import PER_LAYER

#: Layers up to a numbered one, each with its numbers stacked over equal blocks.
EqualLayers = tuple[Layer, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Hyper:
    """Hyperparameters of one layer of a plain network, or of all layers stacked on the first axis."""

    C_b: Any
    C_W: Any
    lambda_b: Any
    lambda_W: Any

    @classmethod
    def of(cls, net: MLP) -> Hyper:
        return cls(*(np.asarray(getattr(net, name)) for name in PER_LAYER))

    def __getitem__(self, layer) -> Hyper:
        return jax.tree.map(lambda values: values[layer], self)


def runs_of(layers: Sequence[Layer], dtype: Any = np.float64) -> tuple[EqualLayers, ...]:
    """Blocks of layers that end with a numbered one, equal neighbours stacked. Widths, which no rule reads, are one.

    >>> [len(run) for run in runs_of(MLP([2, 8, 8, 8, 1], "tanh").layers)]
    [1, 2]
    """

    def unsized(layer: Layer) -> Layer:
        return replace(layer, **dict.fromkeys(role_fields(type(layer), "width"), 1))

    blocks = [tuple(map(unsized, block)) for block in numbered_blocks(layers)]
    equal = [list(group) for _, group in groupby(blocks, key=jax.tree.structure)]
    return tuple(jax.tree.map(lambda *numbers: np.array(numbers, dtype), *group) for group in equal)


def over_equal(step: Any, carry: Any, run: Any) -> tuple[Any, Any]:
    """`lax.scan` over the stacked blocks of a run, or plainly where there is one."""
    if len(jax.tree.leaves(run)[0]) > 1:
        return jax.lax.scan(step, carry, run)
    carry, passed = step(carry, jax.tree.map(lambda stacked: stacked[0], run))
    return carry, jax.tree.map(lambda value: value[None], passed)
