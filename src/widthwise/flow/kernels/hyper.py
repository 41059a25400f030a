"""Hyperparameters of all layers of a plain network, stacked, for loops over any depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from widthwise.network import MLP
from widthwise.network.mlp import PER_LAYER


@dataclass(frozen=True)
class Hyper:
    """Hyperparameters of one layer, or of all layers stacked on the first axis."""

    C_b: Any
    C_W: Any
    lambda_b: Any
    lambda_W: Any

    @classmethod
    def of(cls, net: MLP) -> Hyper:
        return cls(*(np.asarray(getattr(net, name)) for name in PER_LAYER))

    def __getitem__(self, layer) -> Hyper:
        return jax.tree.map(lambda values: values[layer], self)


jax.tree_util.register_dataclass(Hyper, list(PER_LAYER), [])
