"""The infinite-width rule of each kind of layer, written once, for one pair of inputs (theory §2, §13).

Between layers flows (K_ab, Θ_ab). A rule takes the `Pair` that comes into a layer and gives what leaves it. Whoever
runs the rules says how expectations are found: by closed form inside a compiled program, by series, all pairs at once.
Where inputs have positions the pair is one of sites, and `Pair.sites` moves kernels over them.
A kind of your own is added with `kernel_rule.register`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np

from widthwise.activations.closed_forms import by_gain
from widthwise.devices import library
from widthwise.errors import InvalidInput, NoRule
from widthwise.gaussian.sites import NO_POSITIONS, Sites
from widthwise.network import (
    Affine,
    Attention,
    Conv,
    Dense,
    Dropout,
    Elementwise,
    Flatten,
    GlobalAvgPool,
    GlobalSumPool,
    Layer,
)
from widthwise.network.layers.normalisation import Normalisation
from widthwise.network.layers.parallel import Merge, Switch
from widthwise.network.layers.pooling import AvgPool, Pool, SumPool
from widthwise.network.layers.residual import Fork, Join

#: Kinds whose rules are linear maps of K and Θ.
_LINEAR = {Dense, Conv, AvgPool, SumPool, GlobalAvgPool, GlobalSumPool, Flatten, Dropout, Fork, Join, Switch, Merge}


@dataclass
class Kept:
    """What rules keep for later ones, the latest last.

    `branches` are K_ab, Θ_ab and their sites where residual connections or branches began that have not ended;
    `ended` what branches gave that wait for others; `gains` the rates λ of learned gains whose part λ v_a v_b of Θ,
    which differs from neuron to neuron, has not met an average over neurons yet.
    """

    branches: list[tuple[Any, Any, Sites]] = field(default_factory=list)
    ended: list[list[tuple[Any, Any, Sites]]] = field(default_factory=list)
    gains: list[Any] = field(default_factory=list)


#: ⟨σ^(p)_a σ^(p)_b⟩ of the pair, for an activation and p; with True after them ⟨σ^(p)_a⟩⟨σ^(p)_b⟩.
Expectations = Callable[..., Any]


@dataclass(slots=True)  # not frozen: one is made for every step, and freezing costs three times as much
class Pair:
    """What comes into a layer: variances of both inputs, K_ab and Θ_ab, and expectations over N(0, K).

    `sites` are the positions of K_ab and Θ_ab, `behind` those that the next step wants; `same_inputs`: both inputs are
    one and the same, with the same masks of dropout. `own` holds K_aa and K_bb between all positions, on
    (*shape, *shape, inputs), for kinds that read them.
    """

    K_aa: Any
    K_ab: Any
    K_bb: Any
    Theta: Any
    mean: Expectations
    kept: Kept = field(default_factory=Kept)
    sites: Sites = NO_POSITIONS
    behind: Sites = NO_POSITIONS
    same_inputs: bool = False
    own: tuple[Any, Any] | None = None


def reads_variances(layer: Layer) -> bool:
    """Whether a rule may read K of both inputs, which is kept of all inputs for those that do."""
    return type(layer) not in _LINEAR


@singledispatch
def kernel_rule(layer: Layer, pair: Pair) -> tuple[Any, Any]:
    """(K, Θ) behind a layer.

    >>> kernel_rule(Dense(1, 8, C_b=0.5, C_W=2.0), Pair(1.0, 0.25, 1.0, 0.0, lambda sigma, p: None))
    (1.0, 1.25)
    """
    raise InvalidInput(
        "net",
        f"a layer {layer!r}, whose kind has no rule at infinite width",
        "kinds with a rule",
        f"Give it one with kernel_rule.register({type(layer).__name__}), or measure the network.",
    )


@kernel_rule.register
def _(layer: Dense, pair: Pair) -> tuple[Any, Any]:
    gained = pair.kept.gains.pop() * pair.K_ab if pair.kept.gains else 0.0
    return dense_step(layer, pair.K_ab, pair.Theta + gained)


def dense_step(layer: Any, Q, T) -> tuple[Any, Any]:
    """K = C_b + C_W Q and Θ = λ_b + λ_W Q + C_W T, with Q = ⟨σσ⟩ and T = ⟨σ'σ'⟩Θ, or Q = x·x'/n_0 and T = 0.

    `layer` has the four numbers: a `Dense` layer, or many stacked.
    """
    return dense_kernel(layer.C_b, layer.C_W, Q), dense_kernel(layer.lambda_b, layer.lambda_W, Q) + layer.C_W * T


def dense_kernel(C_b, C_W, Q) -> Any:
    """K = C_b + C_W Q behind a dense layer, Q = ⟨σσ⟩ of what comes in; with λ's, the layer's own part of Θ."""
    return C_b + C_W * Q


@kernel_rule.register
def _(layer: Elementwise, pair: Pair) -> tuple[Any, Any]:
    Q = pair.mean(layer.activation, 0)
    if layer.centred:
        Q = Q - pair.mean(layer.activation, 0, True)
    T = pair.mean(layer.activation, 1) * pair.Theta
    if pair.kept.gains:
        T = T + pair.kept.gains.pop() * pair.mean(by_gain(layer.activation), 0)
    return Q, T


@kernel_rule.register
def _(layer: Affine, pair: Pair) -> tuple[Any, Any]:
    before = pair.kept.gains.pop() if pair.kept.gains else 0.0
    pair.kept.gains.append(before + layer.lambda_gain)
    return pair.K_ab, pair.Theta + layer.lambda_shift


@kernel_rule.register
def _(layer: Normalisation, pair: Pair) -> tuple[Any, Any]:
    # what LayerNorm takes off is gone already: preactivations have no mean, and activations before it are marked
    square = (pair.K_aa + layer.epsilon) * (pair.K_bb + layer.epsilon)
    root = library(square).sqrt(square)
    return pair.K_ab / root, pair.Theta / root


@kernel_rule.register
def _(layer: Fork, pair: Pair) -> tuple[Any, Any]:
    pair.kept.branches.append((pair.K_ab, pair.Theta, pair.sites))
    pair.kept.ended.append([])
    return pair.K_ab, pair.Theta


@kernel_rule.register
def _(layer: Join, pair: Pair) -> tuple[Any, Any]:
    pair.kept.ended.pop()
    K, Theta, sites = pair.kept.branches.pop()
    K, Theta = (sites.narrowed(kernel, pair.sites) for kernel in (K, Theta))
    return layer.scale**2 * K + pair.K_ab, layer.scale**2 * Theta + pair.Theta


@kernel_rule.register
def _(layer: Switch, pair: Pair) -> tuple[Any, Any]:
    pair.kept.ended[-1].append((pair.K_ab, pair.Theta, pair.sites))
    if layer.last:
        return pair.K_ab, pair.Theta
    K, Theta, sites = pair.kept.branches[-1]
    return sites.narrowed(K, pair.behind), sites.narrowed(Theta, pair.behind)


@kernel_rule.register
def _(layer: Merge, pair: Pair) -> tuple[Any, Any]:
    """Sum: K and Θ add up. Concatenation: the same, by shares. Product: ΠK and Σ Θ_i Π_{j≠i} K_j."""
    pair.kept.branches.pop()
    ended = [[sites.narrowed(kernel, pair.sites) for kernel in (K, T)] for K, T, sites in pair.kept.ended.pop()]
    K, Theta = (share * kernel for share, kernel in zip(layer.shares[:1] * 2, ended[0], strict=True))
    if layer.join == "product":
        K, Theta = ended[0]
    for share, (own_K, own_Theta) in zip(layer.shares[1:], ended[1:], strict=True):
        if layer.join == "product":
            K, Theta = K * own_K, Theta * own_K + K * own_Theta
        else:
            K, Theta = K + share * own_K, Theta + share * own_Theta
    return K, Theta


@kernel_rule.register
def _(layer: Conv, pair: Pair) -> tuple[Any, Any]:
    """The mean over the entries of a window, then as a dense layer."""
    gained = pair.kept.gains.pop() * pair.K_ab if pair.kept.gains else 0.0
    slides = layer.slides(pair.sites.shape)
    return dense_step(layer, *(pair.sites.window_mean(one, slides) for one in (pair.K_ab, pair.Theta + gained)))


@kernel_rule.register
def _(layer: Pool, pair: Pair) -> tuple[Any, Any]:
    slides, scale = layer.slides(pair.sites.shape), 1.0
    if layer.averages:
        scale = Sites(layer.positions_behind(pair.sites.shape), pair.sites.crossed).outer(
            1.0 / _pooled_counts(layer, pair)
        )
        scale = scale[..., 0] if pair.same_inputs else scale
    return scale * pair.sites.pooled(pair.K_ab, slides), scale * pair.sites.pooled(pair.Theta, slides)


def _pooled_counts(layer: Any, pair: Pair) -> np.ndarray:
    """What the sum over each window is divided by."""
    shape = layer.positions_behind(pair.sites.shape)
    if not isinstance(layer, AvgPool) or layer.padding_counts:
        return np.full(shape, float(layer.size))
    return Sites(pair.sites.shape).window_mean(np.ones(pair.sites.shape), layer.slides(pair.sites.shape)) * layer.size


@kernel_rule.register(GlobalAvgPool)
@kernel_rule.register(GlobalSumPool)
def _(layer: Any, pair: Pair) -> tuple[Any, Any]:
    average = isinstance(layer, GlobalAvgPool)
    return pair.sites.total(pair.K_ab, average), pair.sites.total(pair.Theta, average)


@kernel_rule.register
def _(layer: Flatten, pair: Pair) -> tuple[Any, Any]:
    return pair.sites.mean(pair.K_ab), pair.sites.mean(pair.Theta)


@kernel_rule.register
def _(layer: Dropout, pair: Pair) -> tuple[Any, Any]:
    """E[m_a m_b]/(1 − rate)² is 1/(1 − rate) for one mask, and 1 for two."""
    if not pair.same_inputs:
        return pair.K_ab, pair.Theta
    factor = pair.sites.same(1.0 / (1.0 - layer.rate))
    return factor * pair.K_ab, factor * pair.Theta


@kernel_rule.register
def _(layer: Attention, pair: Pair) -> tuple[Any, Any]:
    """With G of no scatter: K_pq = C_b + C_W Σ_rs ζ(G_a)_pr ζ(G_b)_qs K_rs. With random G: C_QK K_pq Σ_rs K_rs²."""
    if layer.scaling == "1/n":
        return _steady_attention(layer, pair)
    if layer.mechanism != "identity":
        raise NoRule(
            "net", f"{layer!r}, {layer.mechanism} of random dot products of keys and queries",
            'scaling="1/n", or mechanism="identity"',
            "Its outputs are not Gaussian at finitely many heads, however wide the network. Measure it instead.",
        )  # fmt: skip
    K, Theta = _with_positions(layer, pair)
    K_v, Theta_v = (K, Theta) if layer.in_values else (pair.K_ab, pair.Theta)
    positions = tuple(range(2 * pair.sites.dimensions))
    dot, turned = (K * K_v).sum(axis=positions), (K * Theta_v + K_v * Theta).sum(axis=positions)
    out = dense_kernel(layer.C_b, layer.C_W * layer.C_QK, dot * K)
    own = (layer.lambda_W + layer.C_W * (layer.lambda_V + 2.0 * layer.lambda_QK)) * dot * K
    return out, layer.lambda_b + layer.C_QK * (own + layer.C_W * (dot * Theta + turned * K))


def _steady_attention(layer: Attention, pair: Pair) -> tuple[Any, Any]:
    assert pair.own is not None
    first, second = (_attended(layer, own, pair.sites) for own in pair.own)
    values = _with_positions(layer, pair) if layer.in_values else (pair.K_ab, pair.Theta)
    Q, T = (_weighed(kernel, first, second, pair.sites, pair.same_inputs) for kernel in values)
    own = dense_kernel(layer.lambda_b, layer.lambda_W + layer.C_W * layer.lambda_V, Q)
    return dense_kernel(layer.C_b, layer.C_W, Q), own + layer.C_W * T


def _attended(layer: Attention, own: Any, sites: Sites) -> Any:
    """ζ(C_QK K_aa) of every input, with its positional part, on (p, r, inputs)."""
    xp = library(own)
    kernel = own + layer.positional * _covariance_of_positions(layer, sites)[..., None]
    G = layer.C_QK * kernel.reshape(sites.count, sites.count, -1)
    if layer.mechanism == "softmax":
        grown = xp.exp(G - G.max(axis=1, keepdims=True))
        return grown / grown.sum(axis=1, keepdims=True)
    return {"identity": lambda G: G, "relu": lambda G: xp.maximum(G, 0.0), "abs": xp.abs}[layer.mechanism](G)


def _weighed(kernel: Any, first: Any, second: Any, sites: Sites, same_inputs: bool) -> Any:
    """Σ_rs first_pr second_qs kernel_rs of every pair of inputs."""
    flat = kernel.reshape(sites.count, sites.count, *kernel.shape[2 * sites.dimensions :])
    contraction = "pra,rsa,qsa->pqa" if same_inputs else "pra,rsab,qsb->pqab"
    return library(kernel).einsum(contraction, first, flat, second, optimize=True).reshape(kernel.shape)


def _with_positions(layer: Attention, pair: Pair) -> tuple[Any, Any]:
    """K and Θ of the inputs with the random vectors of each position."""
    many = _covariance_of_positions(layer, pair.sites)
    many = many.reshape(*many.shape, *(1,) * (1 if pair.same_inputs else 2))
    return pair.K_ab + layer.positional * many, pair.Theta + layer.lambda_positional * many


def _covariance_of_positions(layer: Attention, sites: Sites) -> Any:
    """e^{−distance/length} between positions p and q; without a length, of equal positions alone."""
    grid = np.stack(np.meshgrid(*map(np.arange, sites.shape), indexing="ij"), axis=-1).reshape(sites.count, -1)
    distance = np.sqrt(((grid[:, None] - grid[None]) ** 2).sum(axis=-1)).reshape(*sites.shape, *sites.shape)
    xp = library(layer.length)
    far = xp.exp(-distance / xp.where(layer.length > 0.0, layer.length, 1.0))
    return xp.where(layer.length > 0.0, far, 1.0 * (distance == 0.0))
