"""How perturbations of the kernel travel through one layer: χ_∥, χ_⊥, h and the flow of K (theory §7)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from widthwise.activations import ActivationLike, resolve
from widthwise.criticality.moments import Profile, profile
from widthwise.errors import InvalidInput
from widthwise.gaussian.kernel_rules import dense_kernel


class Susceptibilities(NamedTuple):
    """χ_∥, χ_⊥ and h at kernels K, each of the shape of K."""

    chi_parallel: np.ndarray
    chi_perp: np.ndarray
    h: np.ndarray


def susceptibilities(activation: ActivationLike, K: Any, C_W: float = 1.0) -> Susceptibilities:
    """χ_∥ = (C_W/K)⟨zσσ'⟩, χ_⊥ = C_W⟨σ'²⟩, h = ½ dχ_⊥/dK at kernels K ≥ 0 of any shape (theory §7).

    χ_∥ multiplies a change of an input's size, χ_⊥ a small change of its direction and, squared gradient by squared
    gradient, everything that is propagated back. At K = 0 they are limits.

    >>> chi = susceptibilities("relu", [0.1, 10.0], C_W=2.0)
    >>> chi.chi_parallel.tolist(), chi.chi_perp.tolist(), chi.h.tolist()
    ([1.0, 1.0], [1.0, 1.0], [0.0, 0.0])
    >>> bool(abs(susceptibilities("tanh", 0.0).h + 1.0) < 1e-12)        # χ_⊥ = 1 − 2K + …
    True
    """
    C_W = non_negative(C_W, "C_W")
    return scaled_susceptibilities(profile(resolve(activation)), np.asarray(K, float), C_W)


def scaled_susceptibilities(shape: Profile, K: Any, C_W: Any) -> Susceptibilities:
    """The same from a profile; C_W broadcasts against K."""
    m = shape.moments(K)
    return Susceptibilities(C_W * m.growth, C_W * m.slope, 0.5 * C_W * m.slope_rate)


def kernel_map(activation: ActivationLike, K: Any, C_b: float = 0.0, C_W: float = 1.0) -> np.ndarray:
    """g(K) = C_b + C_W⟨σ²⟩: the kernel of the next layer (theory §2).

    >>> kernel_map("linear", [1.0, 2.0], C_b=0.5, C_W=3.0).tolist()
    [3.5, 6.5]
    """
    C_b, C_W = non_negative(C_b, "C_b"), non_negative(C_W, "C_W")
    return dense_kernel(C_b, C_W, profile(resolve(activation)).moments(np.asarray(K, float)).square)


def correlation_length(chi: float) -> float:
    """ξ = −1/ln |χ|: the depth over which a perturbation falls by e; negative where it grows, infinite at χ = ±1.

    >>> correlation_length(1.0), round(correlation_length(0.9), 3), round(correlation_length(1.1), 3)
    (inf, 9.491, -10.492)
    """
    size = abs(chi)
    if abs(size - 1.0) < 1e-12:
        return math.inf
    return -1.0 / math.log(size) if size > 0.0 else 0.0


def non_negative(value: Any, name: str) -> float:
    """A finite non-negative number, or an error."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, (bool, str)) or not math.isfinite(number) or number < 0.0:
        raise InvalidInput(name, repr(value), "a finite non-negative number")
    return number
