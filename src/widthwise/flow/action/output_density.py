"""The density of a layer's preactivations to order 1/n, for any number of neurons and inputs.

Given the layer below, the m neurons are independent Gaussians with the random kernel Ĝ = K + G1/n + ΔG, E[ΔG ΔG] = V/n
(theory §1, §3). Averaging over Ĝ to order 1/n gives an Edgeworth expansion,
    p(z) = N(z; 0, K) [1 + (1/n)(½ G1^{ab} Q_ab + ⅛ (V^{(ab)(cd)} Q_ab Q_cd − 4 C^{ab} M_ab + 2m C^{ab} K_ab))],
    M_ab = Σ_i z_ia z_ib,   Q = M − mK,   C^{bd} = V^{(ab)(cd)} K_ac,   indices raised by K⁻¹,
Hermite polynomials of second and fourth order, so that it integrates to one exactly and its marginals are of the same
form. Taking the logarithm to order 1/n gives −S of theory §6, whose exponential has no integral: V is a covariance, the
quartic form of S is never negative. The expansion itself may turn negative where 1/n is not small, though not far out,
where V^{(ab)(cd)} M_ab M_cd wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg
from scipy.special import ndtr

from widthwise.errors import InvalidInput, UnknownName
from widthwise.flow.action.couplings import Couplings, check_preactivations, couplings, crossed, transform
from widthwise.network import MLP
from widthwise.network.validation import is_one_of

#: Eigenvalues of V below this fraction of the largest are rounding.
FLAT_EIGENVALUES = 1e-9


class White(NamedTuple):
    """Everything in units in which the central kernel is the identity; shift and V already divided by n."""

    factor: np.ndarray
    shift: np.ndarray
    V: np.ndarray
    C: np.ndarray


@dataclass(frozen=True, eq=False)
class OutputDensity:
    """p(z) to order 1/n of the neurons of `couplings`; z has shape (…, neurons, inputs).

    With one neuron at one input z has any shape. `about` is the Gaussian that is corrected: "K" for the strict
    expansion in 1/n, "G" for the one of variance K + G1/n, which differs by order 1/n².
    """

    couplings: Couplings
    about: str = "K"

    def __post_init__(self) -> None:
        if not is_one_of(self.about, ("K", "G")):
            raise UnknownName.of("about", self.about, ("K", "G"))

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.couplings.m, self.couplings.inputs

    @cached_property
    def _white(self) -> White:
        made = self.couplings
        centre, shift = (made.K, made.G1 / made.n) if self.about == "K" else (made.G, np.zeros_like(made.G1))
        if self.about == "G":
            made.require_positive()
        factor = linalg.cholesky(centre, lower=True)
        inverse = linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
        V = transform(made.V / made.n, inverse.T)
        return White(factor, inverse @ shift @ inverse.T, V, crossed(V, np.eye(len(factor))))

    def density(self, z: Any) -> np.ndarray:
        """p(z) to order 1/n, shape of z without its last two axes."""
        z = check_preactivations(z, *self._sizes)
        return np.exp(self._log_gaussian(z)) * (1.0 + self._correction(z))

    def log_density(self, z: Any) -> np.ndarray:
        """log p(z) to order 1/n: log N(z) plus the correction, which is −S(z) of theory §6 with its constant."""
        z = check_preactivations(z, *self._sizes)
        return self._log_gaussian(z) + self._correction(z)

    def cdf(self, z: Any) -> np.ndarray:
        """Probability below z, for one neuron at one input: Φ(u) − φ(u)[½ (G1/nK) u + ⅛ (V/nK²)(u³ − 3u)], u = z/√K."""
        if self._sizes != (1, 1):
            got = f"{self._sizes[0]} neurons at {self._sizes[1]} inputs"
            raise InvalidInput("cdf", got, "one neuron at one input", "Use .keep(1).marginal([a]) first.")
        white = self._white
        u = check_preactivations(z, 1, 1)[..., 0, 0] / white.factor[0, 0]
        shift, V = white.shift[0, 0], white.V[0, 0, 0, 0]
        normal = np.exp(-0.5 * u**2) / np.sqrt(2.0 * np.pi)
        return ndtr(u) - normal * (0.5 * shift * u + 0.125 * V * (u**3 - 3.0 * u))

    def keep(self, neurons: int) -> OutputDensity:
        """The density of so many of the neurons."""
        return replace(self, couplings=self.couplings.keep(neurons))

    def marginal(self, inputs: Sequence[int]) -> OutputDensity:
        """The density at some of the inputs."""
        return replace(self, couplings=self.couplings.marginal(inputs))

    @cached_property
    def floor(self) -> float:
        """A lower bound of p(z)/N(z) over all z: from 0 upwards the density is nowhere negative.

        The ratio is a convex quadratic function of Q; this is its minimum over all symmetric matrices Q, which some z
        reaches if there is one input: 1 − (m+2)/4 · V/(nK²) when G1 = 0.
        """
        white, (m, inputs) = self._white, self._sizes
        a, b = np.triu_indices(inputs)
        weight = np.where(a == b, 1.0, np.sqrt(2.0))
        slope = 0.5 * weight * (white.shift - white.C)[a, b]
        curvature = weight[:, None] * white.V[a[:, None], b[:, None], a, b] * weight
        values, vectors = linalg.eigh(0.5 * (curvature + curvature.T))
        along, flat = vectors.T @ slope, values <= max(FLAT_EIGENVALUES, self.couplings.error) * values[-1]
        if np.any(np.abs(along[flat]) > FLAT_EIGENVALUES**0.5 * np.abs(slope).max()):
            return -np.inf
        return float(1.0 - 0.25 * m * np.trace(white.C) - 2.0 * np.sum(along[~flat] ** 2 / values[~flat]))

    def negative_band(self, direction: Any = None) -> tuple[float, float] | None:
        """Where p(t·direction) < 0 along a ray: the interval of t ≥ 0, or None if it is nowhere negative.

        `direction` has shape (neurons, inputs); with one input all unit vectors are alike and it may be left out.
        """
        m, inputs = self._sizes
        if direction is None:
            if inputs > 1:
                got, expected = f"none for {inputs} inputs", f"an array of shape ({m}, {inputs})"
                raise InvalidInput("direction", got, expected, "Only one input makes all directions alike.")
            direction = np.eye(m, 1) if m > 1 else 1.0
        e = check_preactivations(direction, m, inputs)
        if e.ndim != 2 or not e.any():
            raise InvalidInput("direction", f"shape {e.shape}, largest entry {np.abs(e).max(initial=0.0):g}",
                               f"one direction ({m}, {inputs}) other than zero")  # fmt: skip
        # p/N along t·e is constant + linear t² + square t⁴
        white, M = self._white, self._moments(e)
        both = np.einsum("abcd,cd->ab", white.V, np.eye(inputs))
        constant = 1.0 - 0.5 * m * np.trace(white.shift) + 0.125 * m * (m * np.trace(both) + 2.0 * np.trace(white.C))
        linear = np.sum((0.5 * white.shift - 0.25 * m * both - 0.5 * white.C) * M)
        square = 0.125 * np.einsum("ab,abcd,cd->", M, white.V, M)
        return _negative_interval(float(constant), float(linear), float(square))

    def _moments(self, z: np.ndarray) -> np.ndarray:
        """M_ab in white units."""
        u = np.linalg.solve(self._white.factor, np.swapaxes(z, -1, -2))
        return u @ np.swapaxes(u, -1, -2)

    def _log_gaussian(self, z: np.ndarray) -> np.ndarray:
        m, inputs = self._sizes
        volume = np.log(np.diag(self._white.factor)).sum() + 0.5 * inputs * np.log(2.0 * np.pi)
        return -0.5 * np.trace(self._moments(z), axis1=-2, axis2=-1) - m * volume

    def _correction(self, z: np.ndarray) -> np.ndarray:
        """p/N − 1."""
        white, (m, inputs) = self._white, self._sizes
        M = self._moments(z)
        Q = M - m * np.eye(inputs)
        quartic = np.einsum("...ab,abcd,...cd->...", Q, white.V, Q, optimize=True)
        crossing = -4.0 * np.einsum("ab,...ab->...", white.C, M) + 2.0 * m * np.trace(white.C)
        return 0.5 * np.einsum("ab,...ab->...", white.shift, Q) + 0.125 * (quartic + crossing)


def output_density(
    net: MLP, X: Any, layer: int | None = None, neurons: int | None = None, *, about: str = "K", tolerance: float = 1e-9
) -> OutputDensity:
    """The density of the network's outputs, or of any layer's neurons, at the inputs X to order 1/n.

    `layer`, `neurons` and `tolerance` as in `couplings`; `about` as in `OutputDensity`.

    >>> import widthwise as ww
    >>> net = ww.MLP([2, 100, 100, 1], "relu", C_W=2.0)
    >>> p = output_density(net, [[1.0, 1.0]])                 # K = 2, G1 = 0, V/(nK²) = 0.1
    >>> round(float(p.density(0.0)) * (4 * np.pi) ** 0.5, 9)    # 1 + ⅛ · 0.1 · 3
    1.0375
    >>> round(float(p.cdf(0.0)), 9), round(p.floor, 9), p.negative_band()
    (0.5, 0.925, None)
    """
    return OutputDensity(couplings(net, X, layer, neurons, tolerance=tolerance), about)


def _negative_interval(constant: float, linear: float, square: float) -> tuple[float, float] | None:
    """Where constant + linear x + square x² < 0 for x = t² ≥ 0, in t; `square` is not negative."""
    if square <= 0.0:
        if linear >= 0.0:
            return None if constant >= 0.0 else (0.0, np.inf if linear == 0.0 else float(np.sqrt(-constant / linear)))
        return float(np.sqrt(max(0.0, -constant / linear))), np.inf
    discriminant = linear**2 - 4.0 * square * constant
    if discriminant <= 0.0:
        return None
    root = np.sqrt(discriminant)
    low, high = (-linear - root) / (2.0 * square), (-linear + root) / (2.0 * square)
    return None if high <= 0.0 else (float(np.sqrt(max(low, 0.0))), float(np.sqrt(high)))
