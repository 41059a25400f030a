"""The tangent kernel of a ReLU network at one input: exact mean and variance at every width (theory §10).

With one input the gates are fair coins, independent of everything up to signs that cancel, so the second moments of
Ĝ and Ĥ close among themselves, in the notation of theory §3: m = E Ĝ², D = E[z_i² Ĥ_jj], F = E[z_i z_j Ĥ_ij],
A = E[Ĥ_ii Ĥ_jj], B = E[Ĥ_ij²] for i ≠ j. A sum over neurons weighs equal indices by A_4/n and others by A_2²(1 − 1/n).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from widthwise.gaussian.kernel_rules import dense_step
from widthwise.network import MLP, check_inputs
from widthwise.network.inputs import check_one_input
from widthwise.results.theory import theory
from widthwise.special.relu_paths import slopes_at_zero


@dataclass(frozen=True)
class NTKMoments:
    """E Ĥ and E Ĥ² of one neuron at layers 1 … L."""

    mean: np.ndarray
    second: np.ndarray

    @property
    def relative_variance(self) -> np.ndarray:
        """Var Ĥ/(E Ĥ)² by layer."""
        return self.second / self.mean**2 - 1.0


def relu_ntk_moments(net: MLP, x: ArrayLike) -> NTKMoments:
    """Exact mean and second moment of the tangent kernel Ĥ(x, x) of a Gaussian ReLU network, layer by layer.

    The mean is that of the infinitely wide network; for one output, C_W = λ_W = 2 and no biases it is 2 L |x|²/n_0 with
    L weight matrices.

    Parameters
    ----------
    net : relu, leaky_relu or linear, any widths, biases and learning rates.
    x : one input (features,).

    Returns
    -------
    An NTKMoments with `mean`, `second` and `relative_variance` by layer.

    >>> moments = relu_ntk_moments(MLP([1, 8, 8, 1], "relu", C_W=2.0, lambda_b=0.0, lambda_W=2.0), [1.0])
    >>> moments.mean, moments.relative_variance.round(4)
    (array([2., 4., 6.]), array([0.    , 0.375 , 1.0017]))
    """
    A_2, A_4 = slopes_at_zero(net)
    point = check_one_input(x, net.widths[0])
    size = float(point @ point) / net.widths[0]
    G, H = dense_step(net.dense[0], size, 0.0)
    m, D, F, A, B = G * G, G * H, 0.0, H * H, 0.0
    means, seconds = [H], [A]
    for layer in range(1, net.depth):
        n, C_b, C = net.widths[layer], net.C_b[layer], net.C_W[layer]
        lam_b, lam = net.lambda_b[layer], net.lambda_W[layer]
        same, other = A_4 / n, A_2**2 * (1.0 - 1.0 / n)
        ss, sT, TT = same * 3 * m + other * m, same * (D + 2 * F) + other * D, same * (A + 2 * B) + other * A
        Q, R = same * (A + 2 * B) + other * B, same * (D + 2 * F) + other * F
        through = lam * A_2 * G + C * A_2 * H
        m = C_b**2 + 2 * C_b * C * A_2 * G + C**2 * ss
        D = C_b * (lam_b + through) + C * A_2 * G * lam_b + C * lam * ss + C**2 * sT
        A = lam_b**2 + 2 * lam_b * through + lam**2 * ss + 2 * lam * C * sT + C**2 * TT
        F, B = C**2 * R, C**2 * Q
        G, H = dense_step(net.dense[layer], A_2 * G, A_2 * H)
        means.append(H)
        seconds.append(A + 2 * B)
    return NTKMoments(np.array(means), np.array(seconds))


def expected_relu_ntk(net: MLP, X: ArrayLike) -> np.ndarray:
    """E Ĥ_ab of a Gaussian ReLU network (inputs, inputs): exact on the diagonal, to order 1/n off it (theory §5).

    >>> net = MLP([2, 8, 8, 1], "relu", C_W=2.0, lambda_b=0.0, lambda_W=2.0)
    >>> expected_relu_ntk(net, [[1.0, 1.0], [1.0, -1.0]]).round(4)
    array([[6.    , 1.3588],
           [1.3588, 6.    ]])
    """
    slopes_at_zero(net)
    ds = theory(net, check_inputs(X, net.widths[0]), order=1, tensors=["Theta", "H1"], layers="last")
    return ds["Theta"].values[-1] + ds["H1"].values[-1] / net.n
