"""What a skip and a normalisation make of the flow of one kernel (theory §11, §12).

A layer z' = γ z + b + W s takes K to γ² K + C_b + C_W⟨s²⟩ and multiplies squared gradients by γ² + C_W⟨s'²⟩. With
γ < 1 it has the fixed points of the plain layer with C_b/(1 − γ²) and C_W/(1 − γ²), and there

    χ_∥ = γ² + (1 − γ²) χ_∥ of that layer,      χ_⊥ = γ² + (1 − γ²) χ_⊥ of that layer.

So everything that is known of plain layers holds with the C's times 1 − γ². A normalisation only replaces the moments
of σ by those of s: s = σ(z/r), r² = ε + K, before the activation, s = σ(z)/r, r² = ε + ⟨σ²⟩ (LayerNorm: the variance)
behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from widthwise.activations import Activation
from widthwise.criticality.moments import KernelMoments, Profile, profile
from widthwise.errors import InvalidInput, UnknownName
from widthwise.network.layers.base import check_number
from widthwise.network.layers.normalisation import Normalisation
from widthwise.network.skips_and_norms import norm_kind
from widthwise.network.validation import check_real, is_one_of

_NORM_EXPECTED = "'rms', 'ln', or ('rms' or 'ln', 'pre' or 'post', ε)"
#: Kernels up to which a normalised layer is tabulated: what it sees does not grow with them.
_LARGEST_KERNEL = 4.0**18


@dataclass(frozen=True)
class Norm:
    """A normalisation "pre" or "post" of the activation: its kind, "rms" or "ln", and ε."""

    kind: str
    place: str = "pre"
    epsilon: float = 1e-5

    @classmethod
    def of_layer(cls, layer: Normalisation, behind: bool) -> Norm:
        """That of a network's layer, behind its activation or before it."""
        return cls("ln" if layer.centred else "rms", "post" if behind else "pre", layer.epsilon)


@dataclass(frozen=True)
class BlockForm:
    """What a layer has beside its weights, biases and activation: a skip γ, and a normalisation or None.

    >>> BlockForm.of(skip=0.6, norm="rms").fresh
    0.64
    """

    skip: float = 0.0
    norm: Norm | None = None

    @classmethod
    def of(cls, skip: Any = 0.0, norm: Any = None, purpose: str = "") -> BlockForm:
        """From the arguments `skip` and `norm` of the functions of criticality; with a purpose, γ < 1 is required."""
        skip, norm = check_scale("skip", skip), checked_norm(norm)
        if purpose and skip >= 1.0:
            raise InvalidInput(
                "skip", f"{skip:g}", f"a number from 0 to below 1: with 1 or more K grows without bound, there is no "
                f"{purpose}", "Scale branches by 1/sqrt(L), or see widthwise.criticality.depth_growth.",
            )  # fmt: skip
        if norm is not None and norm.place == "post" and skip:
            raise InvalidInput("norm", f"'post' with skip={skip:g}", "normalisation before the activation with a skip")
        return cls(skip, norm)

    @property
    def fresh(self) -> float:
        """1 − γ²: the share of K that a layer renews, by which C_b and C_W of the plain layer are multiplied."""
        return 1.0 - self.skip**2

    def profile(self, activation: Activation) -> Profile:
        """The moments of s."""
        return profile(activation) if self.norm is None else normalised_profile(activation, self.norm)


PLAIN = BlockForm()


def check_scale(name: str, value: Any) -> float:
    """A factor whose square is a number."""
    return check_real(name, check_number(name, value), "a number from 0 to 1e100", largest=1e100)


def checked_norm(norm: Any) -> Norm | None:
    """From the argument `norm`: None, a kind, or (kind, place, ε) as in `NormMLP`."""
    if norm is None or isinstance(norm, Norm):
        return norm
    if isinstance(norm, str):
        return Norm(norm_kind(norm))
    if not isinstance(norm, Sequence) or len(norm) != 3:
        raise InvalidInput("norm", repr(norm), _NORM_EXPECTED)
    if not is_one_of(norm[1], ("pre", "post")):
        raise UnknownName.of("norm", str(norm[1]), ("pre", "post"))
    return Norm(norm_kind(norm[0]), norm[1], check_number("norm", norm[2]))


@dataclass(frozen=True, eq=False)
class NormalisedProfile(Profile):
    """The moments of s = σ(z/r) or σ(z)/r as functions of K, from those of σ by the chain rule."""

    norm: Norm
    base: Profile

    def moments(self, K: object) -> KernelMoments:
        K = np.asarray(K, float)
        return self._before(K) if self.norm.place == "pre" else self._behind(K)

    def _before(self, K: np.ndarray) -> KernelMoments:
        epsilon, R = self.norm.epsilon, K + self.norm.epsilon
        with np.errstate(divide="ignore", invalid="ignore"):
            seen = np.where(R > 0.0, K / R, 1.0)
            first, second = np.where(R > 0.0, [epsilon / R**2, -2.0 * epsilon / R**3], 0.0)
            m = self.base.moments(seen)
            rate = np.where(seen > 0.0, m.growth_rate, 0.0)
            return KernelMoments(
                K, m.square, m.growth * first, m.slope / R, m.slope_rate * first / R - m.slope / R**2,
                rate * first**2 + m.growth * second,
            )  # fmt: skip

    def _behind(self, K: np.ndarray) -> KernelMoments:
        m, epsilon = self.base.moments(K), self.norm.epsilon
        square, growth, rate = m.square, m.growth, m.growth_rate
        if self.norm.kind == "ln":
            mean, first, second = self.base.means(K)
            square = square - mean**2
            growth = growth - 2.0 * mean * first
            rate = rate - 2.0 * (first**2 + mean * second)
        R = epsilon + square
        return KernelMoments(
            K, square / R, growth * epsilon / R**2, m.slope / R, m.slope_rate / R - m.slope * growth / R**2,
            (rate - 2.0 * growth**2 / R) * epsilon / R**2,
        )  # fmt: skip


@lru_cache(maxsize=64)
def normalised_profile(activation: Activation, norm: Norm) -> NormalisedProfile:
    """The table of a normalised activation.

    >>> from widthwise.activations import resolve
    >>> m = normalised_profile(resolve("relu"), Norm("rms", epsilon=0.0)).moments(9.0)      # ⟨s²⟩ = ½, ⟨s'²⟩ = ½/K
    >>> float(m.square), float(m.slope * 9.0), float(m.growth)
    (0.5, 0.5, 0.0)
    """
    base = profile(activation)
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
    origin = np.array(base.origin)
    if norm.epsilon:
        size = norm.epsilon + (0.0 if norm.place == "pre" else base.origin[0, 0] ** 2)
        origin = origin * (norm.epsilon ** (-0.5 * np.arange(origin.shape[1])) if norm.place == "pre" else size**-0.5)
    else:
        origin[:, 0] = 1.0  # s does not vanish with K
    K_max = _LARGEST_KERNEL if norm.place == "pre" or base.slopes is not None else base.K_max
    name = f"{base.name} normalised {'before' if norm.place == 'pre' else 'behind'} it"
    return NormalisedProfile(**fields | {"name": name, "origin": origin, "slopes": None, "K_max": K_max},
                             norm=norm, base=base)  # fmt: skip
