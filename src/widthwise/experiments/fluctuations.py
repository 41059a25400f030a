"""How the kernels of the output layer scatter from network to network: G1, H1, V, D, A of theory §3.

Averaged over the last layer alone, E[z_ia z_ib] = Ĝ_ab and E[Ĥ_ii;ab] = Ω̂_ab are means over the neurons j of the last
hidden layer of x_j = (C_W σ_aσ_b, λ_W σ_aσ_b + C_W σ'_aσ'_b ĥ_jj;ab), plus (C_b, λ_b). With δ = (Ĝ − K, Ω̂ − Θ),
    (G1, H1)/n = E[δ]        (V, D, A)/n = E[δδᵀ] − E[δ]E[δ]ᵀ        exactly, at every width.
Averaged plainly, these are small numbers under large noise. But the neurons of one layer are independent given the
layers below, and h_j = √Ĝ u_j with u_j standard normal *independent of the layers below*. Let x⁰_j be x_j with
√K u_j in place of h_j and Θ in place of ĥ, whose mean is exactly K and Θ of the next layer; let J and 𝓗 be the
first and second derivatives of its mean over j with respect to K and Θ; and y the mean of x − x⁰. Then
    m' = y − J(δ − m) − ½𝓗:(δδᵀ − S)          S' = (cov_j(x) − cov_j(x − x⁰))/n + y yᵀ − J(δδᵀ − S)Jᵀ
have the expectations E[δ'] and E[δ'δ'ᵀ] of the next layer if m and S have those of this one, because whatever is made
of the u_j is independent of δ, m and S. They start at zero, where δ is zero. Nothing is expanded: 𝓗 and J only
decide how much noise is left, and for smooth σ that is a fraction of order 1/√n in one network.
In y, ĥ_jj is replaced by its mean given the preactivations, which removes the rest of its own noise.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.reference import KernelRoot, Reference, pair_number, pairs
from widthwise.experiments.sampler import forward
from widthwise.network import MLP


class Fluctuations(NamedTuple):
    """One network's unbiased estimates of E[δ] and E[δδᵀ], over the pairs of Ĝ and after them those of Ω̂.

    `controls` are numbers that follow the network's luck and whose mean is exactly zero: δ − m of layers 2..L, or where
    weights are not Gaussian, what `_kernel_luck` says.
    """

    mean: Any
    square: Any
    controls: Any


def fluctuations(
    net: MLP, layers: list[Weights], X, ref: Reference, *, tangent: bool = True, controlled: bool = True
) -> Fluctuations:
    """One network's estimates of E[δ] and E[δδᵀ] at the output layer. Its last weights are not used.

    `tangent=False` leaves Ω̂ out, and its matrix products. `controlled=False` gives δ and δδᵀ themselves, right for
    every initialisation; the subtractions need hidden layers with Gaussian weights.

    >>> from widthwise.experiments.reference import reference
    >>> from widthwise.experiments.sampler import network_key, sample_parameters
    >>> net, X = MLP([1, 50, 1], "linear"), np.array([[2.0]])
    >>> layers, ref = sample_parameters(net, network_key(0, 0)), reference(net, X)
    >>> plain = fluctuations(net, layers, X, ref, tangent=False, controlled=False)
    >>> bool(plain.square[0, 0] == plain.mean[0] ** 2)
    True
    """
    if controlled and min(net.widths[1:-1], default=2) < 2:
        raise InvalidInput(
            "net", f"hidden widths {list(net.widths[1:-1])}", "at least 2 neurons in each, for their covariance"
        )
    incoming, preactivations = forward(net, layers, X)
    hats = _hidden_tangents(net, layers, incoming, preactivations) if tangent else [None] * net.depth
    size = len(pairs(len(X))[0]) * (1 + tangent)
    state, controls = (jnp.zeros(size), jnp.zeros(size), jnp.zeros((size, size))), []
    steps = [_FluctuationStep.of(net, layer, preactivations[layer - 1], ref, hats[layer - 1])
             for layer in range(1, net.depth)]  # fmt: skip
    # layers of the same kind and width one after the other in a loop, which is compiled once
    for (activation, _), alike in groupby(steps, lambda step: (step.activation, step.h.shape)):
        stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *(step[1:] for step in alike))
        state, found = jax.lax.scan(partial(_advance, activation, controlled), state, stacked)
        controls.append(found.ravel())
    delta, mean, square = state
    if not controlled:
        return Fluctuations(delta, jnp.outer(delta, delta), _kernel_luck(net, incoming, preactivations))
    return Fluctuations(mean, square, jnp.concatenate(controls) if controls else jnp.zeros(0))


def _kernel_luck(net: MLP, incoming, preactivations):
    """(1/n) Σ_j h_ja h_jb − Ĝ_ab at every hidden layer: of mean zero given the layers below, as E[h_ja h_jb] = Ĝ_ab for
    all weights of variance C_W/fan_in that are uncorrelated within a row."""
    a, b = pairs(len(incoming[0]))
    found = []
    for layer in range(net.depth - 1):
        s, h = incoming[layer], preactivations[layer]
        expected = (net.C_b[layer] + net.C_W[layer] / net.widths[layer] * (s @ s.T))[a, b]
        luck = jnp.mean(h[a] * h[b], axis=1) - expected
        # orthogonal columns leave rounding alone, whose mean is not zero
        found.append(jnp.where(jnp.abs(luck) > 1e-12 * jnp.abs(expected).max(), luck, 0.0))
    return jnp.concatenate(found) if found else jnp.zeros(0)


class _HiddenTangent(NamedTuple):
    """Of a hidden layer ĥ_jj;ab (pairs, neurons); of the one below it (C_W/n)² s_eᵀ(σ'_a ĥ σ'_b)s_f for e, f = a, b."""

    diagonal: Any
    overlap: Any


class _FluctuationStep(NamedTuple):
    """From the neurons of one hidden layer to the conditional kernels of the next; K and Θ stand stacked."""

    activation: Activation
    C_W: float
    lambda_W: float
    h: Any  # (pairs, 2, neurons)
    hat: _HiddenTangent | None
    constant: Any
    now: Any
    then: Any
    root: KernelRoot

    @classmethod
    def of(cls, net: MLP, layer: int, h, ref: Reference, hat: _HiddenTangent | None) -> _FluctuationStep:
        (a, b), kinds = pairs(len(h)), 1 if hat is None else 2
        h = jnp.stack([h[a], h[b]], axis=1)
        C_W, lambda_W = net.C_W[layer], net.lambda_W[layer]
        activation = net.activations[layer - 1]
        constant = jnp.repeat(jnp.asarray([net.C_b[layer], net.lambda_b[layer]][:kinds]), len(a))
        now, then = (jnp.concatenate([ref.K[k], ref.Theta[k]][:kinds]) for k in (layer - 1, layer))
        return cls(activation, C_W, lambda_W, h, hat, constant, now, then, ref.roots[layer - 1])


def _advance(activation: Activation, controlled: bool, state, layer):
    """δ, m, S of the next layer from those of this one, and δ − m there; `layer` is a step but for the activation."""
    delta, mean, square = state
    step = _FluctuationStep(activation, *layer)
    x = _neuron_terms(activation, step.C_W, step.lambda_W, step.h, None if step.hat is None else step.hat.diagonal)
    if controlled:
        mean, square = _next_moments(step, x, delta, mean, square)
    delta = step.constant + x.mean(axis=1) - step.then
    return (delta, mean, square), delta - mean


def _next_moments(step: _FluctuationStep, found, delta, mean, square):
    """m' and S' of the equations at the head from δ, m, S and the x of this layer."""
    kinds = 1 if step.hat is None else 2
    local = _local_positions(len(step.h), kinds)
    before, now = step.now[local], (step.now + delta)[local]
    inverse = jax.vmap(_inverse_root)(now, step.root.apart)
    u = inverse @ step.h
    x0, slope, bend = _at_infinite_width(step, before, u)
    where = np.tile(local, (kinds, 1))
    J = jnp.sum(slope[:, :, None] * (where[:, :, None] == np.arange(len(where))), axis=1)
    excess = jnp.outer(delta, delta) - square
    x = found if step.hat is None else _quieter(step, now[:, 3], inverse, u)
    y = (x - x0).mean(axis=1)
    curved = jnp.einsum("pvw,pvw->p", bend, excess[where[:, :, None], where[:, None, :]])
    own = (_covariance(found) - _covariance(x - x0)) / step.h.shape[-1]
    return y - J @ (delta - mean) - 0.5 * curved, own + jnp.outer(y, y) - J @ excess @ J.T


def _at_infinite_width(step: _FluctuationStep, kernel, u):
    """x⁰, and the derivatives of its mean over neurons: first and second, with respect to K_aa, K_ab, K_bb, Θ_ab."""
    _, root, first, second = step.root
    h = root @ u
    theta = None if step.hat is None else kernel[:, 3:]
    x0 = _neuron_terms(step.activation, step.C_W, step.lambda_W, h, theta)
    f = [step.activation.derivative(order)(h) for order in range(3 if theta is None else 4)]
    if theta is None:
        slope, bend = _mean_derivatives(f, u, first, second)
        return x0, step.C_W * slope, step.C_W * bend
    both = [jnp.stack(pair) for pair in pairwise(f)]
    (slope, slope_of), (bend, bend_of) = jax.vmap(_mean_derivatives, (0, None, None, None))(both, u, first, second)
    product = (f[1][:, 0] * f[1][:, 1]).mean(axis=-1, keepdims=True)
    scaled = step.lambda_W * slope + step.C_W * theta * slope_of
    scaled_bend = step.lambda_W * bend + step.C_W * theta[:, :, None] * bend_of
    edge = step.C_W * slope_of[:, :, None]
    corner = jnp.concatenate([jnp.swapaxes(edge, 1, 2), jnp.zeros((len(h), 1, 1))], axis=2)
    slopes = [jnp.pad(step.C_W * slope, ((0, 0), (0, 1))), jnp.concatenate([scaled, step.C_W * product], axis=1)]
    bends = [
        jnp.pad(step.C_W * bend, ((0, 0), (0, 1), (0, 1))),
        jnp.concatenate([jnp.concatenate([scaled_bend, edge], axis=2), corner], axis=1),
    ]
    return x0, jnp.concatenate(slopes), jnp.concatenate(bends)


def _mean_derivatives(f, u, first, second):
    """Derivatives of the mean over neurons of f(h_a) f(h_b), h = L(K)u, given f, f', f'' at h and those of L."""
    value, slope, bend = f
    n = u.shape[-1]
    once = jnp.stack([slope[:, 0] * value[:, 1], value[:, 0] * slope[:, 1]], axis=1)
    crossed = slope[:, 0] * slope[:, 1]
    rows = [[bend[:, 0] * value[:, 1], crossed], [crossed, value[:, 0] * bend[:, 1]]]
    twice = jnp.stack([jnp.stack(row, axis=1) for row in rows], axis=1)
    linear = jnp.einsum("pxj,pyj->pxy", once, u) / n
    moved = jnp.einsum("pxyv,pyj->pvxj", first, u)
    square = jnp.einsum("pvxj,pxzj,pwzj->pvw", moved, twice, moved) / n
    return jnp.einsum("pxy,pxyv->pv", linear, first), square + jnp.einsum("pxy,pxyvw->pvw", linear, second)


def _quieter(step: _FluctuationStep, centre, inverse, u):
    """x with ĥ_jj;ab replaced by its mean given h_ja, h_jb and the layers below.

    Given h = W·s + b, the quadratic form WᵀMW has the mean (C_W/n) tr M + uᵀφu − tr φ, φ the overlaps seen from u.
    """
    assert step.hat is not None
    phi = inverse @ step.hat.overlap @ jnp.swapaxes(inverse, 1, 2)
    form = jnp.sum(u * (phi @ u), axis=1) - jnp.trace(phi, axis1=1, axis2=2)[:, None]
    return _neuron_terms(step.activation, step.C_W, step.lambda_W, step.h, centre[:, None] + form)


def _local_positions(count: int, kinds: int) -> np.ndarray:
    """Where K_aa, K_ab, K_bb and Θ_ab stand in the stacked kernels: (pairs, 3), with Θ (pairs, 4)."""
    inputs = int(np.sqrt(2 * count))
    (a, b), number = pairs(inputs), pair_number(inputs)
    columns = [number[a, a], number[a, b], number[b, b], count + number[a, b]]
    return np.stack(columns[: 2 + kinds], axis=1)


def _neuron_terms(activation: Activation, C_W: float, lambda_W: float, h, hat):
    """x_j: C_W σ_aσ_b, then λ_W σ_aσ_b + C_W σ'_aσ'_b ĥ_jj;ab unless `hat` is None: (kinds × pairs, neurons)."""
    values = jnp.prod(activation(h), axis=1)
    if hat is None:
        return C_W * values
    return jnp.concatenate(
        [C_W * values, lambda_W * values + C_W * jnp.prod(activation.derivative(1)(h), axis=1) * hat]
    )


def _inverse_root(kernel, apart):
    """L⁻¹ for the L of `KernelRoot`; rows of zeros where nothing varies."""
    slope = _safe_ratio(kernel[1], kernel[0])
    left = _safe_ratio(1.0, _safe_root(jnp.where(apart, kernel[2] - slope * kernel[1], 0.0)))
    return jnp.stack(
        [jnp.stack([_safe_ratio(1.0, _safe_root(kernel[0])), 0.0 * left]), jnp.stack([-slope * left, left])]
    )


def _safe_ratio(numerator, denominator):
    """A quotient, and zero with zero derivative where the denominator is not positive."""
    positive = denominator > 0.0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1.0), 0.0)


def _safe_root(x):
    """A square root, and zero with zero derivative where x is not positive."""
    return jnp.where(x > 0.0, jnp.sqrt(jnp.where(x > 0.0, x, 1.0)), 0.0)


def _covariance(x):
    """Unbiased covariance over the last axis."""
    centred = x - x.mean(axis=1, keepdims=True)
    return centred @ centred.T / (x.shape[1] - 1)


def _hidden_tangents(net: MLP, layers: list[Weights], incoming, preactivations) -> list[_HiddenTangent]:
    """ĥ of the hidden layers as if each were the output (theory §3), pair by pair.

    ĥ' = (λ_b + (λ_W/n) s_a·s_b) 1 + W (σ'_a ĥ σ'_b) Wᵀ; whole matrices only where a later layer needs them.
    """
    a, b = pairs(len(incoming[0]))
    found, whole = [], None
    for layer in range(net.depth - 1):
        s, W, n = incoming[layer], layers[layer].W, net.widths[layer]
        feature = (net.lambda_b[layer] + net.lambda_W[layer] / n * (s @ s.T))[a, b][:, None]
        if layer == 0:
            diagonal = jnp.broadcast_to(feature, (len(a), len(W)))
            found.append(_HiddenTangent(diagonal, jnp.zeros((len(a), 2, 2))))
            continue
        slopes = net.activations[layer - 1].derivative(1)(preactivations[layer - 1])
        if whole is None:
            middle = slopes[a] * slopes[b] * found[0].diagonal
            spread = middle[:, None, :] * W
            seen = middle[:, None, :] * jnp.stack([s[a], s[b]], axis=1)
        else:
            middle = slopes[a][:, :, None] * whole * slopes[b][:, None, :]
            spread = W @ middle
            seen = jnp.stack([s[a], s[b]], axis=1) @ middle
        overlap = (net.C_W[layer] / n) ** 2 * seen @ jnp.stack([s[a], s[b]], axis=2)
        found.append(_HiddenTangent(feature + jnp.sum(spread * W, axis=-1), overlap))
        if layer < net.depth - 2:
            whole = spread @ W.T + feature[:, :, None] * jnp.eye(len(W))
    return found
