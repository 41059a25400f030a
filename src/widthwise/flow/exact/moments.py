"""Moments of Ĝ for scale-free activations (linear, relu, leaky) in closed form at every width: an independent route."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from widthwise.errors import InvalidInput
from widthwise.flow.exact.gamma import slopes_of
from widthwise.gaussian.kernel_rules import dense_kernel
from widthwise.network import MLP
from widthwise.network.inputs import check_one_input


def scale_free_moments(net: MLP, x: ArrayLike, order: int) -> np.ndarray:
    """E (Ĝˡ)^k of one input for k = 0 … order at layers 1 … L: shape (L, order + 1).

    E Ĝ'^k = Σ_j (k choose j) C_b^(k−j) C_W^j r_j E Ĝ^j, with r_j = E (m/g)^j the moments of a mean of n neurons; for
    linear ones r_j is the product of 1 + 2i/n over i < j. The moments of an output are E z^(2k) = (2k−1)!! E Ĝ^k.
    A moment beyond the range of numbers is infinity.

    >>> scale_free_moments(MLP([1, 4, 4, 1], "relu", C_W=2.0), [1.0], 2)[:, 2]  # 4 (1 + 5/4)^(l−1)
    array([ 4.  ,  9.  , 20.25])
    """
    slopes = slopes_of(net.activation)
    if slopes is None:
        raise InvalidInput("net", f"activation {net.activation.name}", "linear, relu or leaky_relu", "Use exact_law.")
    if order != int(order) or order < 0:
        raise InvalidInput("order", repr(order), "a non-negative whole number")
    point = check_one_input(x, net.widths[0])
    now = dense_kernel(net.C_b[0], net.C_W[0], float(point @ point) / net.widths[0]) ** np.arange(order + 1.0)
    kept = [now]
    for layer in range(1, net.depth):
        with np.errstate(over="ignore"):
            scaled = now * net.C_W[layer] ** np.arange(order + 1.0) * _mean_of_neurons(slopes, net.widths[layer], order)
            powers = net.C_b[layer] ** np.arange(order + 1.0)
            now = np.array([_binomial(k, powers, scaled) for k in range(order + 1)])
        kept.append(now)
    return np.stack(kept)


def _binomial(k: int, powers: np.ndarray, moments: np.ndarray) -> float:
    """E (C_b + y)^k from the powers of C_b and the moments of y."""
    return sum(math.comb(k, j) * powers[k - j] * moments[j] for j in range(k + 1) if powers[k - j])


def _mean_of_neurons(slopes: tuple[float, float], n: int, order: int) -> np.ndarray:
    """E (m/g)^j: j! times the coefficient of t^j in (Σ_i E[Y^i] t^i/i!)^n, over n^j (Miller's recursion)."""
    one = [
        0.5 * (slopes[0] ** (2 * i) + slopes[1] ** (2 * i)) * math.prod(range(1, 2 * i, 2)) for i in range(order + 1)
    ]
    series = [moment / math.factorial(i) for i, moment in enumerate(one)]
    power = [1.0]
    for k in range(1, order + 1):
        power.append(sum((n * i - (k - i)) * series[i] * power[k - i] for i in range(1, k + 1)) / k)
    return np.array([math.factorial(j) * coefficient / float(n) ** j for j, coefficient in enumerate(power)])
