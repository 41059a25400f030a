"""One input, or many that do not meet, through the layers of a given network: K, χ_⊥ and what each layer sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from widthwise.criticality.moments import profile
from widthwise.errors import InvalidInput
from widthwise.flow.kernels.kernel_flow import check_differentiable
from widthwise.gaussian.kernel_rules import dense_kernel
from widthwise.network import MLP, check_inputs, plain


@dataclass(frozen=True)
class LayerFlow:
    """Per layer and input: kernel K (L, inputs), what its weights see (x·x/n_0, then ⟨σ²⟩), and log χ of each step.

    `log_chi_perp[l]` and `log_chi_parallel[l]` belong to the step from layer l + 1 to l + 2 (0-based rows, L − 1).
    """

    K: np.ndarray
    seen: np.ndarray
    log_chi_perp: np.ndarray
    log_chi_parallel: np.ndarray

    @property
    def log_later_perp(self) -> np.ndarray:
        """log Π χ_⊥ over the layers after each, (L, inputs): how the gradient's square shrinks on its way back."""
        reverse = np.cumsum(self.log_chi_perp[::-1], axis=0)[::-1]
        return np.concatenate([reverse, np.zeros((1, self.K.shape[1]))])


def unit_input(net: MLP) -> np.ndarray:
    """One input with x·x/n_0 = 1, as (1, features)."""
    return np.ones((1, net.widths[0]))


def checked_rows(net: MLP, X: object) -> np.ndarray:
    """X as (inputs, features), or one input with x·x/n_0 = 1; rows of zeros are refused."""
    net = plain(net, "criticality")
    if X is None:
        return unit_input(net)
    rows = check_inputs(X, net.widths[0])
    dead = np.flatnonzero(~rows.any(axis=1))
    if len(dead):
        raise InvalidInput(
            "X",
            f"{len(dead)} rows of zeros, the first at index {dead[0]}",
            "inputs that are not zero",
            "Drop those rows, or append a constant feature.",
        )
    return rows


def layer_flow(net: MLP, X: np.ndarray) -> LayerFlow:
    """The kernels of theory §2 of each row of X with itself, and χ_⊥ = C_W⟨σ'²⟩, χ_∥ = C_W d⟨σ²⟩/dK on the way.

    >>> flow = layer_flow(MLP([2, 8, 8, 1], "relu", C_W=2.0), np.ones((1, 2)))
    >>> flow.K.ravel().round(12).tolist(), np.exp(flow.log_chi_perp).ravel().round(12).tolist()
    ([2.0, 2.0, 2.0], [1.0, 1.0])
    """
    check_differentiable(net)
    seen = [np.einsum("ai,ai->a", X, X) / net.widths[0]]
    K, perp, parallel = [dense_kernel(net.C_b[0], net.C_W[0], seen[0])], [], []
    for sigma, layer in zip(net.activations, net.dense[1:], strict=True):
        m = profile(sigma).moments(K[-1])
        seen.append(m.square)
        K.append(dense_kernel(layer.C_b, layer.C_W, m.square))
        with np.errstate(divide="ignore", invalid="ignore"):
            perp.append(np.log(layer.C_W * m.slope))
            parallel.append(np.log(layer.C_W * np.abs(m.growth)))
    empty = np.zeros((0, len(X)))
    return LayerFlow(
        np.array(K), np.array(seen), np.array(perp) if perp else empty, np.array(parallel) if parallel else empty
    )
