"""Ĥ, dĤ, ddIĤ, ddIIĤ of one network (theory §3), layer by layer, without a Jacobian or Hessian of the parameters.

The direction v_jb = λ ∂z_jb/∂θ has rank one in every layer: (λ_W/n) δ_jb ⊗ s_b on the weights and λ_b δ_jb on the
biases, with s the incoming activations and δ = ∂z/∂h the back-propagated signal. So moving the parameters along it
changes the preactivations h_a of a layer by (λ_b + (λ_W/n) s_a·s_b) δ_jb and by what comes from below, and every
directional derivative of an activation or a signal costs one multiplication by a weight matrix per layer.

Inputs do not move, and the signals of the output layer do not bend: terms with either are not made.

Axes: i, j, k, m outputs; a, b, c, d inputs; the neurons of a layer come last.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from widthwise.experiments.layer_passes import Weights, features
from widthwise.experiments.sampler import backward
from widthwise.network import MLP

ByLayer = list[jax.Array]


class DifferentiatedChain(NamedTuple):
    """A network at its parameters, one entry per weight layer; derivatives of σ at its hidden layers."""

    weights: ByLayer  # W (neurons, incoming)
    incoming: ByLayer  # s_a (a, incoming)
    features: ByLayer  # λ_b + (λ_W/n) s_a·s_b (a, b)
    rates: list[float]  # λ_W/n
    sigma: list[tuple[jax.Array, ...]]  # σ', σ'', … (a, neurons)
    signals: ByLayer  # δ_ia = ∂z_ia/∂h_a (i, a, neurons)

    def bends(self, layer: int) -> bool:
        """Whether signals of a layer depend on the parameters; a network of one layer has none else to give shapes."""
        return layer < len(self.weights) - 1 or len(self.weights) == 1


class Motion(NamedTuple):
    """What moves along directions v_jb whose signals are `along`: ds of s_a and dh of h_a, each (j, b, a, neurons)."""

    along: ByLayer
    ds: ByLayer
    dh: ByLayer


class Bent(NamedTuple):
    """The Hessian of z_ia, signals `of`, applied to the directions (k, c) of a motion.

    `signals` is dδ_ia and `below` d(Wᵀδ_ia), each (i, a, k, c, neurons).
    """

    of: ByLayer
    motion: Motion
    signals: ByLayer
    below: ByLayer


class Differentials(NamedTuple):
    """All components at the output layer, in the index order of theory §3: outputs first, then inputs."""

    H: jax.Array  # (i, j, a, b)
    dH: jax.Array  # (i, j, k, a, b, c)
    ddI: jax.Array  # (i, j, k, m, a, b, c, d)
    ddII: jax.Array  # (i, j, k, m, a, b, c, d)


def chain(net: MLP, layers: list[Weights], X, orders: int = 3) -> DifferentiatedChain:
    """Forward and backward pass, with derivatives of σ up to `orders`. The last layer may have any number of rows."""
    _, incoming, preactivations, signals = backward(net, layers, X)
    sigma = [
        tuple(activation.derivative(order)(h) for order in range(1, orders + 1))
        for activation, h in zip(net.activations, preactivations[:-1], strict=True)
    ]
    rates = [layer.lambda_W / layer.inputs for layer in net.dense]
    overlaps = [features(layer, s, s) for layer, s in zip(net.dense, incoming, strict=True)]
    return DifferentiatedChain([layer.W for layer in layers], incoming, overlaps, rates, sigma, signals)


def move(c: DifferentiatedChain, along: ByLayer) -> Motion:
    """First derivatives along v_jb. The last dh is Ĥ: dh[j, b, a, i] = Ĥ_ij;ab."""
    ds, dh = [jnp.zeros((*along[0].shape[:2], *c.incoming[0].shape))], []
    for layer, W in enumerate(c.weights):
        own = c.features[layer][:, :, None] * along[layer][:, :, None, :]
        dh.append(ds[-1] @ W.T + own if layer else own)
        if layer < len(c.sigma):
            ds.append(c.sigma[layer][0] * dh[-1])
    return Motion(along, ds, dh)


def move_twice(c: DifferentiatedChain, motion: Motion) -> tuple[ByLayer, ByLayer]:
    """Second derivatives of s_a and h_a along v_jb and v_kc, both of one motion: each (j, b, k, c, a, neurons).

    The last one of h is dĤ: [j, b, k, c, a, i] is dĤ_ijk;abc.
    """
    directions = motion.along[0].shape[:2]
    dds, ddh = ([jnp.zeros((*directions, *directions, *x.shape))] for x in (c.incoming[0], motion.dh[0][0, 0]))
    for layer, W in enumerate(c.weights):
        if layer:
            shift = c.rates[layer] * jnp.einsum("kcan,bn->bkca", motion.ds[layer], c.incoming[layer])
            crossed = shift[None, ..., None] * motion.along[layer][:, :, None, None, None, :]
            ddh.append(dds[-1] @ W.T + crossed + jnp.transpose(crossed, (2, 3, 0, 1, 4, 5)))
        if layer < len(c.sigma):
            slope, bend = c.sigma[layer][:2]
            moved = motion.dh[layer]
            by_first = bend * moved[:, :, None, None] * moved
            dds.append(by_first + slope * ddh[-1] if layer else by_first)
    return dds, ddh


def bend(c: DifferentiatedChain, of: ByLayer, motion: Motion) -> Bent:
    """First derivatives of the signals δ_ia = `of` along the directions of a motion."""
    bent, below = [jnp.zeros((*of[0].shape[:2], *motion.along[-1].shape))], []
    for layer in reversed(range(1, len(c.weights))):
        overlap = c.rates[layer] * jnp.einsum("jbn,ian->iajb", motion.along[layer], of[layer])
        own = overlap[..., None] * c.incoming[layer]
        below.insert(0, bent[0] @ c.weights[layer] + own if c.bends(layer) else own)
        slope, curve = (f[:, None, None] for f in c.sigma[layer - 1][:2])
        unmoved = (of[layer] @ c.weights[layer])[:, :, None, None]
        bent.insert(0, curve * _by_input(motion.dh[layer - 1]) * unmoved + slope * below[0])
    return Bent(of, motion, bent, below)


def bend_twice(c: DifferentiatedChain, bent: Bent, ddh: ByLayer) -> ByLayer:
    """Second derivatives of the signals δ_ia along v_kc and v_md of the motion: each (i, a, k, c, m, d, neurons)."""
    along = bent.motion.along
    result = [jnp.zeros((*bent.of[0].shape[:2], *along[-1].shape[:2], *along[-1].shape))]
    for layer in reversed(range(1, len(c.weights))):
        slope, curve, third = (f[:, None, None, None, None] for f in c.sigma[layer - 1][:3])
        moved = _by_input(bent.motion.dh[layer - 1])
        crossed = curve * moved[:, :, :, None, None] * bent.below[layer - 1][:, :, None, None]
        if c.bends(layer):
            overlap = c.rates[layer] * jnp.einsum("kcn,iamdn->iakcmd", along[layer], bent.signals[layer])
            crossed += slope * overlap[..., None] * c.incoming[layer][:, None, None, :]
        both = third * moved[:, :, :, None, None] * moved[:, None, None]
        if layer > 1:
            both += curve * jnp.transpose(ddh[layer - 1], (4, 0, 1, 2, 3, 5))
        unmoved = (bent.of[layer] @ c.weights[layer])[:, :, None, None, None, None]
        total = both * unmoved + crossed + jnp.transpose(crossed, (0, 1, 4, 5, 2, 3, 6))
        result.insert(0, total + slope * (result[0] @ c.weights[layer]) if c.bends(layer) else total)
    return result


def _by_input(moved):
    """(j, b, a, n) as (a, j, b, n)."""
    return jnp.transpose(moved, (2, 0, 1, 3))


def second_derivative(c: DifferentiatedChain, bent: Bent, along: ByLayer) -> jax.Array:
    """d²z_ia[v_jb, v_kc], that is dĤ_ijk;abc: (j, b) the directions of `bent`, (k, c) those of `along`."""
    parts = []
    for layer, rate in enumerate(c.rates):
        if c.bends(layer):
            parts.append(jnp.einsum("ac,iajbn,kcn->ijkabc", c.features[layer], bent.signals[layer], along[layer]))
        if layer:
            overlap = jnp.einsum("ian,kcn->iakc", bent.of[layer], along[layer])
            shift = jnp.einsum("jban,cn->jbac", bent.motion.ds[layer], c.incoming[layer])
            parts.append(rate * jnp.einsum("jbac,iakc->ijkabc", shift, overlap))
    return _total(parts)


def third_derivative(c: DifferentiatedChain, along: ByLayer, bent: Bent, twice: ByLayer, dds: ByLayer) -> jax.Array:
    """d³z_ia[v_jb, v_kc, v_md], that is ddIĤ_ijkm;abcd: (j, b) those of `along`, (k, c) and (m, d) those of `bent`."""
    parts = []
    for layer, rate in enumerate(c.rates):
        s, delta = c.incoming[layer], along[layer]
        if c.bends(layer):
            parts.append(jnp.einsum("ab,iakcmdn,jbn->ijkmabcd", c.features[layer], twice[layer], delta))
        if c.bends(layer) and layer:
            overlap = jnp.einsum("iakcn,jbn->iakcjb", bent.signals[layer], delta)
            shift = jnp.einsum("mdan,bn->mdab", bent.motion.ds[layer], s)
            crossed = jnp.einsum("iakcjb,mdab->ijkmabcd", overlap, shift)
            parts.append(rate * (crossed + jnp.transpose(crossed, (0, 1, 3, 2, 4, 5, 7, 6))))
        if layer:
            shift_twice, plain = (
                jnp.einsum("kcmdan,bn->kcmdab", dds[layer], s),
                jnp.einsum("ian,jbn->iajb", bent.of[layer], delta),
            )
            parts.append(rate * jnp.einsum("kcmdab,iajb->ijkmabcd", shift_twice, plain))
    return _total(parts)


def curvature_product(c: DifferentiatedChain, left: Bent, right: Bent) -> jax.Array:
    """Σ λ (∂²z_ia v_kc)(∂²z_jb v_md), that is ddIIĤ_ijkm;abcd: i, a, k, c from `left` and j, b, m, d from `right`."""
    parts = []
    for layer, rate in enumerate(c.rates):
        s, of, other = c.incoming[layer], left.of[layer], right.of[layer]
        if c.bends(layer):
            bent = jnp.einsum("iakcn,jbmdn->iakcjbmd", left.signals[layer], right.signals[layer])
            parts.append(jnp.einsum("ab,iakcjbmd->ijkmabcd", c.features[layer], bent))
        if layer:
            shift_both = jnp.einsum("kcan,mdbn->kcmdab", left.motion.ds[layer], right.motion.ds[layer])
            mixed = jnp.einsum("kcmdab,iajb->ijkmabcd", shift_both, jnp.einsum("ian,jbn->iajb", of, other))
            if c.bends(layer):
                shift = jnp.einsum("kcan,bn->kcab", left.motion.ds[layer], s)
                shift_right = jnp.einsum("mdbn,an->mdab", right.motion.ds[layer], s)
                bent_left = jnp.einsum("iakcn,jbn->iakcjb", left.signals[layer], other)
                bent_right = jnp.einsum("ian,jbmdn->iajbmd", of, right.signals[layer])
                mixed += jnp.einsum("kcab,iajbmd->ijkmabcd", shift, bent_right)
                mixed += jnp.einsum("mdab,iakcjb->ijkmabcd", shift_right, bent_left)
            parts.append(rate * mixed)
    return _total(parts)


def _total(parts: list[jax.Array]) -> jax.Array:
    return sum(parts[1:], parts[0])


def differentials(net: MLP, layers: list[Weights], X) -> Differentials:
    """Ĥ, dĤ, ddIĤ, ddIIĤ of one network at its output layer, for all outputs and inputs (theory §3).

    >>> from widthwise.experiments.sampler import network_key, sample_parameters
    >>> net, X = MLP([2, 8, 2], "tanh", C_W=1.5), jnp.array([[1.0, 0.2], [0.3, -0.5]])
    >>> found = jax.jit(differentials)(net, sample_parameters(net, network_key(0, 0)), X)
    >>> found.dH.shape, found.ddII.shape
    ((2, 2, 2, 2, 2, 2), (2, 2, 2, 2, 2, 2, 2, 2))
    """
    c = chain(net, layers, X)
    motion = move(c, c.signals)
    dds, ddh = move_twice(c, motion)
    bent = bend(c, c.signals, motion)
    return Differentials(
        jnp.transpose(motion.dh[-1], (3, 0, 2, 1)),
        jnp.transpose(ddh[-1], (5, 0, 2, 4, 1, 3)),
        third_derivative(c, c.signals, bent, bend_twice(c, bent, ddh), dds),
        curvature_product(c, bent, bent),
    )
