"""Where order 1/n stops being good: the exact kurtosis of an output beside its first order, layer by layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from widthwise.flow.exact.law import exact_law
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.network import MLP
from widthwise.network.inputs import check_one_input


def kurtosis_by_depth(net: MLP, x: ArrayLike) -> dict[str, np.ndarray]:
    """Excess kurtosis of a preactivation at layers 2 … L: exact 3 Var Ĝ/(E Ĝ)², and 3V/(nK²) at order 1/n (theory §3).

    `depth_over_width` is Σ 1/n_l over the hidden layers below, the expansion parameter; `gap` is order1/exact − 1.

    >>> table = kurtosis_by_depth(MLP([2, *[16] * 8, 1], "relu", C_W=2.0), [1.0, 1.0])
    >>> print(table["exact"].max().round(2), table["order1"].max().round(2))
    23.42 7.5
    """
    law = exact_law(net, x)
    flow = finite_flow(net, check_one_input(x, net.widths[0])[None, :], ("V",))
    widths = np.asarray(net.widths[1:-1], dtype=float)
    exact = np.array([3.0 * kernel.relative_variance for kernel in law.kernels[1:]])
    order1 = 3.0 * flow.tensors["V"][1:, 0, 0, 0, 0] / (widths * flow.K[1:, 0, 0] ** 2)
    return {
        "layer": np.arange(2, net.depth + 1),
        "depth_over_width": np.cumsum(1.0 / widths),
        "exact": exact,
        "order1": order1,
        "gap": order1 / exact - 1.0,
    }
