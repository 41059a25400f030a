"""The conventions of neural-tangents: `stax.Dense(W_std, b_std, parameterization)` and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from widthwise.errors import UnknownName
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.network import MLP, check_inputs, check_network
from widthwise.network.validation import check_per_layer, check_widths, is_one_of


class StaxKernels(NamedTuple):
    """What `kernel_fn(X, X2, ("nngp", "ntk"))` returns: each (inputs, inputs')."""

    nngp: np.ndarray
    ntk: np.ndarray


def from_stax(
    widths: Sequence[int],
    activation: Any,
    W_std: float | Sequence[float] = 1.0,
    b_std: float | Sequence[float] | None = None,
    parameterization: str = "ntk",
) -> MLP:
    """The network of `stax.serial(Dense(n_1, W_std, b_std), σ, …, Dense(n_L, W_std, b_std))` of neural-tangents.

    C_W = W_std² and C_b = b_std². In the "ntk" parameterisation λ_W = W_std², λ_b = b_std²; in the "standard" one, with
    s = (1, 1), λ_W = n_{l−1} and λ_b = 1, or 0 without biases. Both mean gradient descent with learning rate 1 on the
    sum of ½(z − y)²; `neural_tangents.predict` divides the sum by the number of training targets.

    Parameters
    ----------
    widths : input dimension, hidden widths, outputs.
    activation : as in `MLP`.
    W_std, b_std : numbers, or one for each Dense layer; b_std=None for no biases.
    parameterization : "ntk" or "standard".

    Returns
    -------
    The network, whose K and Theta are the peer's nngp and ntk.

    >>> from_stax([3, 512, 1], "erf", W_std=1.5, b_std=0.5)
    MLP(widths=[3, 512, 1], activation='erf', C_b=0.25, C_W=2.25, lambda_b=0.25, lambda_W=2.25)
    """
    depth = len(check_widths(widths)) - 1
    C_W, C_b = (  # squares beyond the largest number are refused by the network
        [deviation * deviation for deviation in check_per_layer(name, value, depth)]
        for name, value in (("W_std", W_std), ("b_std", 0.0 if b_std is None else b_std))
    )
    if not is_one_of(parameterization, ("ntk", "standard")):
        raise UnknownName.of("parameterization", parameterization, ("ntk", "standard"))
    if parameterization == "ntk":
        return MLP.ntk(widths, activation, C_b, C_W)
    net = MLP.standard(widths, activation, C_b, C_W)
    return net if b_std is not None else net.replace(lambda_b=0.0)


def stax_kernels(net: MLP, X: Any, X2: Any = None) -> StaxKernels:
    """The last layer's kernels under the names of neural-tangents: `.nngp` is K, `.ntk` is Θ.

    >>> net = from_stax([2, 512, 1], "relu", W_std=2**0.5)
    >>> kernels = stax_kernels(net, [[1.0, 0.0], [0.0, 1.0]])
    >>> kernels.nngp.round(6).tolist()
    [[1.0, 0.31831], [0.31831, 1.0]]
    """
    X = check_inputs(X, check_network(net).widths[0])
    other = None if X2 is None else check_inputs(X2, net.widths[0], "X2")
    flow = kernel_flow(net, X, other, last_only=True)
    return StaxKernels(flow.K[0], flow.Theta[0])
