"""The infinite-width recursion itself, written for one pair of inputs (theory §2)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from widthwise.network import MLP


@dataclass(frozen=True)
class Hyper:
    """Hyperparameters of one layer, or of all layers stacked on the first axis."""

    C_b: np.ndarray
    C_W: np.ndarray
    lambda_b: np.ndarray
    lambda_W: np.ndarray

    @classmethod
    def of(cls, net: MLP) -> Hyper:
        return cls(*(np.asarray(values) for values in (net.C_b, net.C_W, net.lambda_b, net.lambda_W)))

    def __getitem__(self, layer) -> Hyper:
        return Hyper(self.C_b[layer], self.C_W[layer], self.lambda_b[layer], self.lambda_W[layer])


jax.tree_util.register_dataclass(Hyper, ["C_b", "C_W", "lambda_b", "lambda_W"], [])


def first_layer(hyper: Hyper, gram):
    """K¹ and Θ¹ from x·x'/n_0 (theory §2)."""
    return hyper.C_b + hyper.C_W * gram, hyper.lambda_b + hyper.lambda_W * gram


def next_layer(hyper: Hyper, values, slopes, Theta):
    """Kˡ⁺¹ and Θˡ⁺¹ from ⟨σσ⟩, ⟨σ'σ'⟩ and Θˡ (theory §2); written for one pair of inputs."""
    K = hyper.C_b + hyper.C_W * values
    return K, hyper.lambda_b + hyper.lambda_W * values + hyper.C_W * Theta * slopes
