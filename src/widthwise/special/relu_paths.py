"""Path sums of ReLU networks: exact moments of input–output derivatives at every width (theory §10).

∂z_q/∂x_p is a sum over paths of products of weights and gates. With weights (and biases) that are symmetric and
independent, the gate of a neuron is a fair coin, independent of the neuron's weights up to their common sign. So the
squares a_i² of the derivatives in a layer follow a Markov chain whose moments close: with s_2 = Σ a_i², s_4 = Σ a_i⁴,
    E s_2' = n A_2 σ² s_2      E s_4' = n A_4 m_4      E s_2'² = E s_4' + n(n − 1) A_2² σ⁴ s_2²
    m_4 = σ⁴ (3 s_2² + (κ − 3) s_4),       σ² = C_W/n_in,  A_k = (a₊^k + a₋^k)/2,  κ = E w⁴/(E w²)².

With one input the second moments of Ĝ and Ĥ close among themselves in the same way: they are those of a deep linear
network whose neurons have fair gates (`deep_linear`), and so the mean and the variance of the tangent kernel are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from widthwise.activations.closed_forms import homogeneous
from widthwise.errors import InvalidInput
from widthwise.flow.exact import ExactLaw, exact_law
from widthwise.flow.exact.deep_linear import MomentStep, first_moments
from widthwise.gaussian.kernel_rules import dense_step
from widthwise.network import MLP, check_inputs, check_integer, check_one_input, check_per_layer, plain
from widthwise.results.theory import theory


@dataclass(frozen=True)
class PathMoments:
    """E (∂zˡ_q/∂u)² and E (∂zˡ_q/∂u)⁴ of one neuron at layers 1 … L, exact."""

    second: np.ndarray
    fourth: np.ndarray

    @property
    def kurtosis(self) -> np.ndarray:
        """E d⁴/(E d²)² by layer: it grows exponentially with Σ 1/n_l."""
        return self.fourth / self.second**2


def slopes_at_zero(net: MLP) -> tuple[float, float]:
    """A_2 and A_4 of an activation that is linear on both sides of zero; refuses any other.

    >>> slopes_at_zero(MLP([1, 2, 1], "relu"))
    (0.5, 0.5)
    """
    slopes = homogeneous(net.activation.closed)
    if slopes is None or slopes[2] != 1:
        raise InvalidInput("net", f"activation {net.activation.name}", "relu, leaky_relu or linear")
    plus, minus = slopes[:2]
    return 0.5 * (plus**2 + minus**2), 0.5 * (plus**4 + minus**4)


def relu_path_moments(net: MLP, direction: ArrayLike | int = 0, kurtosis: ArrayLike = 3.0) -> PathMoments:
    """Exact second and fourth moments of derivatives ∂z_q/∂u of a random ReLU network at any input that is not zero.

    They do not depend on the input, nor on the variance of symmetric biases.

    Parameters
    ----------
    net : relu, leaky_relu or linear; any widths.
    direction : u as a vector (features,), or the number p of an input for ∂z_q/∂x_p.
    kurtosis : E w⁴/(E w²)² of the weights, a number or one per weight layer: 3 for Gaussian, 9/5 for uniform ones. The
        weights have to be symmetric and continuous, the entries independent.

    Examples
    --------
    >>> moments = relu_path_moments(MLP([4, 10, 10, 1], "relu", C_W=2.0))
    >>> moments.second, moments.kurtosis  # 2/n_0, and 3 Π (1 + 5/n_l) for Gaussian weights
    (array([0.5, 0.5, 0.5]), array([3.  , 4.5 , 6.75]))
    """
    net = plain(net, "sums over paths")
    A_2, A_4 = slopes_at_zero(net)
    kurtoses = check_per_layer("kurtosis", kurtosis, net.depth)
    if min(kurtoses) < 1.0:
        raise InvalidInput("kurtosis", f"{min(kurtoses):g}", "at least 1, as for any distribution")
    if isinstance(direction, int | np.integer):
        u = np.eye(net.widths[0])[check_integer("direction", direction, 0, net.widths[0] - 1)]
    else:
        u = check_one_input(direction, net.widths[0], "direction")
    mean, square, fourth = float(u @ u), float(u @ u) ** 2, float(np.sum(u**4))
    seconds, fourths = [], []
    for layer in range(net.depth):
        variance, n = net.C_W[layer] / net.widths[layer], net.widths[layer + 1]
        seconds.append(variance * mean)
        fourths.append(variance**2 * (3.0 * square + (kurtoses[layer] - 3.0) * fourth))
        mean, below = n * A_2 * variance * mean, square
        fourth = n * A_4 * fourths[-1]
        square = fourth + n * (n - 1) * A_2**2 * variance**2 * below
    return PathMoments(np.array(seconds), np.array(fourths))


def relu_derivative_law(net: MLP, direction: ArrayLike) -> ExactLaw:
    """The exact law of ∂z/∂u for Gaussian weights: that of the output of the network without biases at the input u.

    Both are the same Markov chain: a layer keeps a fair half of its neurons, whatever the input (theory §10). The law
    of Ĝ is that of |Ju|² C_W/n_L over the last hidden layer, close to the log-normal law for wide layers.

    >>> law = relu_derivative_law(MLP([2, 8, 8, 1], "relu", C_b=0.3, C_W=2.0), [1.0, 0.0])
    >>> round(law.variance, 9), round(law.excess_kurtosis + 3, 6)  # 2/n_0 and 3 (1 + 5/8)²
    (1.0, 7.921875)
    """
    net = plain(net, "sums over paths")
    slopes_at_zero(net)
    return exact_law(net.replace(C_b=0.0), check_one_input(direction, net.widths[0], "direction"))


def log_normal_exponent(net: MLP) -> float:
    """β = (A_4/A_2² 3 − 1) Σ 1/n_l over hidden layers, 5 Σ 1/n_l for relu: log Ĝ/E Ĝ is about N(−β/2, β).

    >>> log_normal_exponent(MLP([2, 50, 100, 1], "relu"))
    0.15
    """
    net = plain(net, "sums over paths")
    A_2, A_4 = slopes_at_zero(net)
    return (3.0 * A_4 / A_2**2 - 1.0) * float(np.sum(1.0 / np.asarray(net.widths[1:-1], float)))


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

    Examples
    --------
    >>> moments = relu_ntk_moments(MLP([1, 8, 8, 1], "relu", C_W=2.0, lambda_b=0.0, lambda_W=2.0), [1.0])
    >>> moments.mean, moments.relative_variance.round(4)
    (array([2., 4., 6.]), array([0.    , 0.375 , 1.0017]))
    """
    net = plain(net, "sums over paths")
    gates = slopes_at_zero(net)
    point = check_one_input(x, net.widths[0])
    K, Theta = dense_step(net.dense[0], np.full((1, 1), point @ point / net.widths[0]), 0.0)
    moments = first_moments(K, Theta) | {"F": np.zeros((1, 1, 1, 1)), "B": np.zeros((1, 1, 1, 1))}
    means, seconds = [Theta.item()], [moments["A"].item()]
    for layer in range(1, net.depth):
        step = MomentStep(net, layer, K, Theta, gates)
        moments, (K, Theta) = step.kernel_moments(moments), step.kernels()
        means.append(Theta.item())
        seconds.append((moments["A"] + 2 * moments["B"]).item())
    return NTKMoments(np.array(means), np.array(seconds))


def expected_relu_ntk(net: MLP, X: ArrayLike) -> np.ndarray:
    """E Ĥ_ab of a Gaussian ReLU network (inputs, inputs): exact on the diagonal, to order 1/n off it (theory §5).

    >>> net = MLP([2, 8, 8, 1], "relu", C_W=2.0, lambda_b=0.0, lambda_W=2.0)
    >>> expected_relu_ntk(net, [[1.0, 1.0], [1.0, -1.0]]).round(4)
    array([[6.    , 1.3588],
           [1.3588, 6.    ]])
    """
    net = plain(net, "sums over paths")
    slopes_at_zero(net)
    ds = theory(net, check_inputs(X, net.widths[0]), order=1, tensors=["Theta", "H1"], layers="last")
    return ds["Theta"].values[-1] + ds["H1"].values[-1] / net.n
