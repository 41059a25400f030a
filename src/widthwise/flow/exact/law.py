"""The exact law of the output for one input, at any widths and depth, without perturbation theory (theory §1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfc

from widthwise.errors import InvalidInput
from widthwise.flow.exact.chain import kernel_laws
from widthwise.flow.exact.kernel_law import KernelLaw
from widthwise.flow.exact.neurons import slopes_of
from widthwise.flow.one_input.deep_flow import single_flow
from widthwise.gaussian.kernel_rules import dense_kernel
from widthwise.network import MLP, Network, check_integer, check_one_input, check_real, plain, real_array

#: Numbers held at once when a function is averaged over the lattice.
_NODE_BLOCK = 1 << 22
_BISECTIONS = 80
#: (k − 1)!! is below the largest float.
_MOST_FACTORS = 300
#: E Ĝ^(−m/2) counts as infinite when its integrand at the lower end has not fallen to this share of its largest value.
_DIVERGES = math.log(1e-9)


def exact_law(net: Network, x: ArrayLike) -> ExactLaw:
    """The distribution of the random kernel Ĝ at every layer and of the outputs, for one input x (features,).

    Given layer l, the next one is Gaussian with variance Ĝ = C_b + (C_W/n_l) Σ_j σ(z_j)² in every neuron (theory §1):
    Ĝ is a Markov chain in one number. Its distribution is computed on a lattice in log Ĝ, without sampling, for any
    width from 1 upwards; `error` estimates the numerical error.

    >>> law = exact_law(MLP([2, 4, 4, 1], "relu", C_W=2.0), [1.0, 1.0])
    >>> round(law.excess_kurtosis, 9), round(law.dead, 6)
    (12.1875, 0.121094)
    >>> law.error < 1e-12
    True
    """
    net = plain(net, "exact_law")
    return ExactLaw(*kernel_laws(net, check_one_input(x, net.widths[0])))


@dataclass(frozen=True)
class ExactLaw:
    """Laws of Ĝ at layers 1 … L, and of the outputs z_i ~ N(0, Ĝ^L), independent given Ĝ^L.

    `error` estimates the absolute error of the output's distribution function: the sum over layers of the largest
    difference between E e^(−rĜ) from the lattice and from ⟨e^(−rσ²)⟩^n, and the deviation of the total mass from one.
    """

    kernels: tuple[KernelLaw, ...]
    error: float

    @property
    def kernel(self) -> KernelLaw:
        """The law of Ĝ at the output layer."""
        return self.kernels[-1]

    @property
    def dead(self) -> float:
        """P(Ĝ = 0): all outputs vanish because a whole layer is silent."""
        return self.kernel.dead

    def kernel_density(self, g: ArrayLike) -> np.ndarray:
        """Density of Ĝ^L at g, without point masses; smoothed over 3 % of g where it is singular (widths below 5)."""
        return self.kernel.density(g)

    def kernel_cdf(self, g: ArrayLike) -> np.ndarray:
        """P(Ĝ^L ≤ g)."""
        return self.kernel.cdf(g)

    def kernel_moment(self, k: float) -> float:
        """E (Ĝ^L)^k for k > 0."""
        return self.kernel.moment(k)

    @property
    def variance(self) -> float:
        """E z² = E Ĝ, exactly K + G1/n + …"""
        return self.kernel.mean

    @property
    def excess_kurtosis(self) -> float:
        """E z⁴/(E z²)² − 3 = 3 Var Ĝ/(E Ĝ)²; not a number if the output is zero for certain."""
        return 3.0 * self.kernel.relative_variance

    def moment(self, k: int) -> float:
        """E z^k of one output: (k−1)!! E Ĝ^(k/2) for even k, zero for odd k.

        >>> round(exact_law(MLP([2, 1, 1], "linear"), [1.0, 1.0]).moment(4), 9)
        9.0
        """
        expected = f"a whole number from 0 to {_MOST_FACTORS}, beyond which (k − 1)!! is not representable"
        whole = check_real("k", k, expected, largest=_MOST_FACTORS)
        if whole % 1.0:
            raise InvalidInput("k", repr(k), expected)
        if whole == 0 or whole % 2:
            return float(whole == 0)
        return math.prod(range(1, int(whole), 2)) * self.kernel.moment(whole // 2)

    def density(self, z: ArrayLike) -> np.ndarray:
        """Density of one output at z: E N(z; 0, Ĝ), without the point mass `dead` at zero."""
        return np.exp(self.log_density(z))

    def log_density(self, z: ArrayLike) -> np.ndarray:
        """Logarithm of `density`, accurate far into the tails."""
        return self._log_joint(np.abs(real_array(z, "z")), 1)

    def joint_density(self, z: ArrayLike) -> np.ndarray:
        """Density of m outputs, the last axis of z: E Π_i N(z_i; 0, Ĝ). They are uncorrelated but not independent.

        >>> law = exact_law(MLP([2, 8, 2], "tanh"), [1.0, 1.0])
        >>> bool(law.joint_density([1.5, 1.5]) > law.density(1.5) ** 2)
        True
        """
        z = np.atleast_1d(real_array(z, "z"))
        return np.exp(self._log_joint(np.linalg.norm(z, axis=-1), z.shape[-1]))

    def sf(self, z: ArrayLike) -> np.ndarray:
        """P(output > z), accurate in relative terms in the upper tail."""
        z = real_array(z, "z")
        upper = self._above(np.abs(z))
        return np.where(z >= 0.0, upper, 1.0 - upper)

    def cdf(self, z: ArrayLike) -> np.ndarray:
        """P(output ≤ z), accurate in relative terms in the lower tail."""
        z = real_array(z, "z")
        upper = self._above(np.abs(z))
        return np.where(z >= 0.0, 1.0 - upper, upper)

    def isf(self, q: ArrayLike) -> np.ndarray:
        """The value that an output exceeds with probability q, 0 < q < 1; for tails too thin for `quantile`.

        >>> law = exact_law(MLP([2, 16, 1], "tanh"), [1.0, 1.0])
        >>> bool(abs(law.sf(law.isf(1e-12)) / 1e-12 - 1) < 1e-9)
        True
        """
        q, (log_g, _) = _probability(q, "q"), self.kernel.nodes
        if not len(log_g):
            return np.zeros(q.shape)
        # bisection in log z for z ≥ 0; zero where the point mass there reaches the probability
        side, tail = np.where(q > 0.5, -1.0, 1.0), np.minimum(q, 1.0 - q)
        low = np.full(q.shape, 0.5 * log_g.min() - 45.0)
        high = np.full(q.shape, 0.5 * log_g.max() + 4.0)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            beyond = self._above(np.exp(middle)) > tail
            low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
        return side * np.where(tail >= 0.5 * (1.0 - self.dead), 0.0, np.exp(0.5 * (low + high))) + 0.0

    def quantile(self, p: ArrayLike) -> np.ndarray:
        """The inverse of `cdf`: the least z with P(output ≤ z) ≥ p, 0 < p < 1."""
        return 0.0 - self.isf(_probability(p, "p"))

    def _over(self, function: Callable[[np.ndarray], np.ndarray], z: np.ndarray) -> np.ndarray:
        """function of z[:, None] summed over the nodes, a block of z at a time, in the shape of z."""
        flat, step = z.ravel(), max(1, _NODE_BLOCK // max(1, len(self.kernel.nodes[0])))
        pieces = [function(flat[start : start + step, None]) for start in range(0, flat.size, step)]
        return np.concatenate([np.zeros(0), *pieces]).reshape(z.shape)

    def _log_joint(self, radius: np.ndarray, m: int) -> np.ndarray:
        """log E (2πĜ)^(−m/2) e^(−radius²/2Ĝ)."""
        log_g, weights = self.kernel.nodes
        with np.errstate(divide="ignore"):
            base = np.log(np.abs(weights)) - 0.5 * m * (log_g + math.log(2.0 * math.pi))

        def summed(r):
            with np.errstate(over="ignore", divide="ignore"):
                terms = base - 0.5 * (r * np.exp(-0.5 * log_g)) ** 2
                top = terms.max(axis=1, initial=-1e300)
                total = (np.sign(weights) * np.exp(terms - top[:, None])).sum(axis=1)
                return np.where(total > 0.0, top + np.log(np.abs(total)), -np.inf)

        # the density at zero is infinite where P(Ĝ < g) g^(−m/2) does not fall towards the lower end
        diverges = self.kernel.C_b == 0.0 and len(self.kernel.weights) and base[0] > base.max() + _DIVERGES
        return np.where((radius == 0.0) & bool(diverges), np.inf, self._over(summed, radius))

    def _above(self, z: np.ndarray) -> np.ndarray:
        """P(output > z) for z ≥ 0."""
        log_g, weights = self.kernel.nodes

        def summed(r):
            with np.errstate(over="ignore"):
                return 0.5 * erfc(r * np.exp(-0.5 * log_g) / math.sqrt(2.0)) @ weights

        return self._over(summed, z)


def _probability(p: ArrayLike, name: str) -> np.ndarray:
    array = real_array(p, name)
    if np.any((array <= 0.0) | (array >= 1.0)):
        bad = array[(array <= 0.0) | (array >= 1.0)].flat[0]
        raise InvalidInput(name, f"{bad:g}", "probabilities between 0 and 1, ends excluded")
    return array


def kurtosis_by_depth(net: MLP, x: ArrayLike) -> dict[str, np.ndarray]:
    """Excess kurtosis of a preactivation at layers 2 … L: exact 3 Var Ĝ/(E Ĝ)², and 3V/(nK²) at order 1/n (theory §3).

    `depth_over_width` is Σ 1/n_l over the hidden layers below, the expansion parameter; `gap` is order1/exact − 1.

    >>> table = kurtosis_by_depth(MLP([2, *[16] * 8, 1], "relu", C_W=2.0), [1.0, 1.0])
    >>> print(table["exact"].max().round(2), table["order1"].max().round(2))
    23.42 7.5
    """
    net = plain(net, "the exact law")
    law = exact_law(net, x)
    dead = [layer for layer, kernel in enumerate(law.kernels, 1) if not kernel.mean > 0.0]
    if dead:
        raise InvalidInput("x", f"an input at which layer {dead[0]} is zero", "an input that every layer sees")
    ratios = single_flow(net, check_one_input(x, net.widths[0]), ("V",), with_theta=False).ratios["V"]
    widths = np.asarray(net.widths[1:-1], dtype=float)
    exact = np.array([3.0 * kernel.relative_variance for kernel in law.kernels[1:]])
    order1 = 3.0 * ratios[1:] / widths
    return {
        "layer": np.arange(2, net.depth + 1),
        "depth_over_width": np.cumsum(1.0 / widths),
        "exact": exact,
        "order1": order1,
        "gap": order1 / exact - 1.0,
    }


def scale_free_moments(net: MLP, x: ArrayLike, order: int) -> np.ndarray:
    """E (Ĝˡ)^k of one input for k = 0 … order at layers 1 … L: shape (L, order + 1).

    E Ĝ'^k = Σ_j (k choose j) C_b^(k−j) C_W^j r_j E Ĝ^j, with r_j = E (m/g)^j the moments of a mean of n neurons; for
    linear ones r_j is the product of 1 + 2i/n over i < j. The moments of an output are E z^(2k) = (2k−1)!! E Ĝ^k.
    A moment beyond the range of numbers is infinity. For linear, relu and leaky_relu, independently of `exact_law`.

    >>> scale_free_moments(MLP([1, 4, 4, 1], "relu", C_W=2.0), [1.0], 2)[:, 2]  # 4 (1 + 5/4)^(l−1)
    array([ 4.  ,  9.  , 20.25])
    """
    net = plain(net, "scale-free moments")
    slopes = slopes_of(net.activation)
    if slopes is None:
        raise InvalidInput("net", f"activation {net.activation.name}", "linear, relu or leaky_relu", "Use exact_law.")
    order = check_integer("order", order, 0, 1000, "a whole number from 0 to 1000")
    point = check_one_input(x, net.widths[0])
    now = dense_kernel(net.C_b[0], net.C_W[0], float(point @ point) / net.widths[0]) ** np.arange(order + 1.0)
    kept = [now]
    for layer in range(1, net.depth):
        with np.errstate(over="ignore"):
            scaled = now * net.C_W[layer] ** np.arange(order + 1.0) * _mean_of_neurons(slopes, net.widths[layer], order)
            powers = net.C_b[layer] ** np.arange(order + 1.0)
            terms = [[(math.comb(k, j), k - j, j) for j in range(k + 1) if powers[k - j]] for k in range(order + 1)]
            now = np.array([sum(ways * powers[i] * scaled[j] for ways, i, j in row) for row in terms])
        kept.append(now)
    return np.stack(kept)


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
