"""How K and Θ of one input fluctuate from network to network, with skips and normalisation (theory §11, §12).

What the neurons of a layer add to the next kernels, q = s² and ω = λ_W q + C_W Θ s'² (with a normalisation, with the
terms of its own fluctuations), has a part that differs from network to network. With a skip a neuron remembers: its
values at two layers have correlation Γ√(K^(s)/K^(l)), so that in normalised Hermite polynomials he_m of u = z/√K

    cov(φ(z^(l)), q(z^(s))) = Σ_m φ_m q_m ρ^m,

and it is enough to carry on, degree by degree, how he_m of a neuron correlates with K and Θ. The kernels' own
fluctuations x = (ΔK, ΔΘ) move by x' = R x + (C_W q, ω), R = ((χ_∥, 0), (½⟨∂²ω⟩, χ_⊥)), χ's with γ². So

    cov' = R cov Rᵀ + Σ_m n_m n_mᵀ + Σ_m (R g_m n_mᵀ + n_m g_mᵀ Rᵀ),   g'_m = ρ^m (R g_m + n_m),   n_m = (C_W q_m, ω_m).

This is V̂, D̂ and A of theory §11 at one input, in L steps for any depth, also for kinked activations. B, which comes
from single weights, has a recursion of its own along the same lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from widthwise.activations import Activation, resolve
from widthwise.criticality.blocks import PLAIN, BlockForm, Norm
from widthwise.criticality.moments import profile
from widthwise.errors import NoRule
from widthwise.gaussian.hermite import LONG_SERIES, hermite_table
from widthwise.gaussian.kernel_rules import dense_kernel, dense_step
from widthwise.network import Affine, Dense, Elementwise, Network
from widthwise.network.layers.normalisation import Normalisation
from widthwise.network.layers.residual import Fork, Join

#: Hermite degrees that are carried. The rest of a variance, which Parseval gives, counts without memory.
CARRIED_DEGREES = LONG_SERIES


class Features(NamedTuple):
    """At kernels K (kernels,): means and Hermite coefficients (kernels, degrees) of q, of p, the same of s'², and s'².

    `q` is what ⟨s²⟩ and `p` what ⟨s'²⟩ are averages of, fluctuations of the normaliser included; `rest` (kernels, 2, 2)
    is what the degrees carried leave of the covariance of q and p, `fourth` is ⟨s'⁴⟩. Degree zero is zero.
    """

    square: np.ndarray
    slope: np.ndarray
    q: np.ndarray
    p: np.ndarray
    s_prime: np.ndarray
    rest: np.ndarray
    fourth: np.ndarray


@lru_cache(maxsize=64)
def _products(activation: Activation) -> tuple[Activation, Activation, Activation]:
    """σ², σ'² and σσ' as functions of their own, so that there are Hermite coefficients of them."""
    value, slope = activation.function, activation.derivative(1)
    return (
        Activation(f"{activation.name}²", lambda z: value(z) ** 2, activation.kinks),
        Activation(f"{activation.name}'²", lambda z: slope(z) ** 2, activation.kinks),
        Activation(f"{activation.name}·{activation.name}'", lambda z: value(z) * slope(z), activation.kinks),
    )


def block_features(activation: Activation, K: np.ndarray, norm: Norm | None = None) -> Features:
    """Features of one input at kernels K > 0 (theory §12: q, p, s^α, f_α)."""
    before = norm if norm is not None and norm.place == "pre" else None
    R = np.ones(len(K)) if before is None else K + before.epsilon
    seen = K if before is None else K / R
    # a₊z, a₋z: one kernel tells of all
    homogeneous = profile(activation).slopes is not None
    at = np.ones(1) if homogeneous else seen
    squared, sloped, mixed = (hermite_table(f, 0, at, CARRIED_DEGREES) for f in _products(activation))
    size = np.broadcast_to(seen if homogeneous else 1.0, K.shape)
    q, p = size[:, None] * squared.coefficients, sloped.coefficients / R[:, None]
    second = np.stack(
        [size**2 * squared.norm, size / R * mixed.norm, size / R * mixed.norm, sloped.norm / R**2], axis=1
    )
    mean = np.stack([q[:, 0], p[:, 0]], axis=1)
    q, p = q.copy(), p.copy()
    q[:, 0] = p[:, 0] = 0.0
    fourth = second[:, 3]
    rest = second.reshape(-1, 2, 2) - np.einsum("ka,kb->kab", mean, mean)
    rest -= np.einsum("kam,kbm->kab", *[np.stack([q, p], axis=1)] * 2)
    if norm is not None and before is None:
        if norm.kind == "ln":
            # (σ − ⟨σ⟩)² in place of σ²
            own = np.sqrt(size)[:, None] * hermite_table(activation, 0, at, CARRIED_DEGREES).coefficients
            q[:, 1:] -= 2.0 * own[:, :1] * own[:, 1:]
            mean[:, 0] -= own[:, 0] ** 2
        R = norm.epsilon + mean[:, 0]
        q, p, mean = (values / R[:, None] for values in (q, p, mean))
        rest, fourth = rest / R[:, None, None] ** 2, fourth / R**2
    (square, slope), s_prime = mean.T, p.copy()
    if before is not None:
        # 2⟨s^α s⟩ f_α and 2⟨s'^α s'⟩ f_α: f_m = v² has degree 2, f_ν = v degree 1
        root = math.sqrt(2.0)
        degree_two = seen * root
        q[:, 2] -= degree_two * (root / 2.0) * q[:, 2]
        p[:, 2] -= degree_two * (slope + (root / 2.0) * p[:, 2])
        if before.kind == "ln":
            q[:, 1] -= q[:, 1]
            p[:, 1] -= p[:, 1]
    elif norm is not None:
        # s^m = −½ s: q and p lose their shares of the fluctuation of s²
        p = p - slope[:, None] * q
        q = q * (1.0 - square[:, None])
        turn = np.stack([np.stack([1.0 - square, 0.0 * slope], -1), np.stack([-slope, 1.0 + 0.0 * slope], -1)], 1)
        rest = turn @ rest @ np.swapaxes(turn, 1, 2)
    return Features(square, slope, q, p, s_prime, rest, fourth)


@dataclass(frozen=True)
class Step:
    """A layer behind the first: its skip and normalisation, its activation, its weights and biases."""

    block: BlockForm
    activation: Activation
    dense: Dense
    learned: bool = False


def steps_of(net: Network) -> list[Step]:
    """Layers 2 to L as steps of one activation and one dense layer each; what is built otherwise is refused by name."""
    return [_step(block, number) for number, block in enumerate(net.blocks[1:], start=2)]


def _step(layers, number: int) -> Step:
    rest, skip = [layer for layer in layers if not isinstance(layer, Affine)], 0.0
    learned = len(rest) < len(layers)
    if isinstance(rest[0], Fork) and isinstance(rest[-1], Join):
        skip, rest = rest[-1].scale, rest[1:-1]
    *below, dense = rest
    sigma = [layer.activation for layer in below if isinstance(layer, Elementwise)]
    norms = [Norm.of_layer(layer, at > 0) for at, layer in enumerate(below) if isinstance(layer, Normalisation)]
    fits = isinstance(dense, Dense) and len(sigma) <= 1 and len(norms) <= 1 and len(sigma) + len(norms) == len(below)
    if not fits or (skip and norms and norms[0].place == "post"):
        raise NoRule(
            "net", f"layer {number} made of {', '.join(type(layer).__name__ for layer in rest)}",
            "layers of an activation and a Dense layer, with a skip or not, normalised once or not",
            "Kernels and gradients of other layers are followed, their fluctuations are not; measure them.",
        )  # fmt: skip
    return Step(BlockForm(skip, norms[0] if norms else None), sigma[0] if sigma else resolve("linear"), dense, learned)


@dataclass(frozen=True)
class DeepFluctuations:
    """By layer 1 to L at one input: K, Θ, and V, A, B of theory §3 for the network that ends there, over K², Θ², Θ²."""

    K: np.ndarray
    Theta: np.ndarray
    V: np.ndarray
    A: np.ndarray
    B: np.ndarray


def deep_fluctuations(net: Network, x_square: float = 1.0) -> DeepFluctuations:
    """K, Θ, V, A and B of one input with x·x/n_0 = x_square, layer by layer, for the widths of the network.

    On the stream of a residual network V is V̂, without what the neurons themselves remember; at a plain output it is
    all of it. Everything behind a learned gain or shift but K and V is NaN.

    >>> from widthwise.network import ResMLP
    >>> net = ResMLP([1, *[64] * 9, 1], "linear", skip=0.8, C_W=[1.0, *[0.36] * 8, 1.0])
    >>> found = deep_fluctuations(net)                                     # 2(1 − γ⁴) a block
    >>> [round(float(x), 3) for x in (found.V[8] - found.V[7], 2 * (1 - 0.8**4))]
    [1.14, 1.181]
    """
    steps, first = steps_of(net), net.blocks[0][0]
    assert isinstance(first, Dense)
    K = [dense_kernel(first.C_b, first.C_W, x_square)]
    for step in steps:
        square = step.block.profile(step.activation).moments(K[-1]).square
        K.append(step.block.skip**2 * K[-1] + dense_kernel(step.dense.C_b, step.dense.C_W, float(square)))
    K = np.array(K)
    table = _feature_rows(steps, K)
    Theta, cov, B = dense_step(first, x_square, 0.0)[1], np.zeros((2, 2)), 0.0
    memory, single = np.zeros((2, CARRIED_DEGREES)), np.zeros(CARRIED_DEGREES)
    found, degree = [(Theta, 0.0, 0.0, 0.0)], np.arange(CARRIED_DEGREES)
    for number, (step, at) in enumerate(zip(steps, table, strict=True)):
        gamma, dense = step.block.skip, step.dense
        ratio = net.widths[number + 1] / net.widths[number]
        perp = gamma**2 + dense.C_W * at.slope
        noise = np.stack([dense.C_W * at.q, dense.lambda_W * at.q + dense.C_W * Theta * at.p])
        mix = np.array([[dense.C_W, 0.0], [dense.lambda_W, dense.C_W * Theta]])
        bend = noise[:, 2] / (math.sqrt(2.0) * K[number])
        respond = np.array([[gamma**2 + bend[0], 0.0], [bend[1], perp]])
        carried = respond @ memory @ noise.T
        cov = noise @ noise.T + mix @ at.rest @ mix.T + ratio * (respond @ cov @ respond.T + carried + carried.T)
        fresh = dense.C_W**2 * at.fourth + 2.0 * gamma**2 * dense.C_W * at.slope
        B = fresh * Theta**2 + ratio * (perp**2 * B + 2.0 * dense.C_W * perp * (single @ at.s_prime))
        rho = (gamma * math.sqrt(K[number] / K[number + 1])) ** degree if gamma else np.zeros(CARRIED_DEGREES)
        memory = rho * (respond @ memory + noise)
        single = rho * gamma**2 * (perp * single + dense.C_W * Theta**2 * at.s_prime)
        Theta = dense_step(dense, at.square, at.slope * Theta)[1] + gamma**2 * Theta
        found.append((Theta, cov[0, 0] / K[number + 1] ** 2, cov[1, 1] / Theta**2, B / Theta**2))
    Theta, V, A, B = np.array(found).T
    unknown = np.cumsum([False, *(step.learned for step in steps)]) > 0
    Theta, A, B = (np.where(unknown, np.nan, values) for values in (Theta, A, B))
    return DeepFluctuations(K, Theta, V, A, B)


def _feature_rows(steps: list[Step], K: np.ndarray) -> list[Features]:
    """Features below each step, all kernels of one kind of layer at once."""
    rows: dict[int, Features] = {}
    for kind in dict.fromkeys((step.activation, step.block.norm) for step in steps):
        members = [number for number, step in enumerate(steps) if (step.activation, step.block.norm) == kind]
        found = block_features(kind[0], K[members], kind[1])
        rows |= {number: Features(*(column[at] for column in found)) for at, number in enumerate(members)}
    return [rows[number] for number in range(len(steps))]


def variance_growth(
    activation: Activation, C_W: float, K: float, block: BlockForm = PLAIN, chi_parallel: float = 1.0
) -> float:
    """ν: what a layer adds to V/K² where K stays and χ_∥ = 1, the memory of a skip included (theory §11).

    ν = (C_W/K)² Σ_d c(γ^|d|), c(ρ) the covariance of q at two layers whose preactivations have correlation ρ. With
    χ_∥ < 1 older layers count by χ_∥^|d|, and V/K² ends at ν/(1 − χ_∥²).

    >>> gammas = (0.0, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)
    >>> [round(variance_growth(resolve("relu"), 2.0 * (1.0 - g * g), 1.0, BlockForm(g)), 2) for g in gammas]
    [5.0, 6.3, 6.5, 5.51, 2.54, 1.37, 0.29]
    """
    at = block_features(activation, np.array([K]), block.norm)
    kept = chi_parallel * block.skip ** np.arange(1, CARRIED_DEGREES)
    remembered = at.q[0, 1:] ** 2 @ ((1.0 + kept) / (1.0 - kept))
    return float((C_W / K) ** 2 * (remembered + at.rest[0, 0, 0]))


def slope_growth(activation: Activation, C_W: float, K: float, block: BlockForm = PLAIN) -> float:
    """What a layer adds to B/Θ² where K stays and χ_⊥ = 1, the memory of a skip included (theory §11, B and b).

    >>> slope_growth(resolve("relu"), 2.0, 1.0)                        # ⟨σ'⁴⟩/⟨σ'²⟩²
    2.0
    """
    at, gamma = block_features(activation, np.array([K]), block.norm), block.skip
    kept = gamma ** np.arange(3, CARRIED_DEGREES + 2)
    remembered = at.s_prime[0, 1:] ** 2 @ (2.0 * kept / (1.0 - kept))
    return float(C_W**2 * (at.fourth[0] + remembered) + 2.0 * gamma**2 * C_W * at.slope[0])
