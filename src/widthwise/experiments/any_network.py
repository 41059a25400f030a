"""One-network estimates of every tensor of theory §3 and §11 for networks of any kind, by automatic differentiation.

A dense last layer is averaged over as in `estimators`: rows that meet an output z_d become (C_W/n) s_d, two others are
probes ±√(C_W/n). Where the network ends on its stream, tensors with a single leg are sums over all its neurons i ≠ k
(theory §11), Δ from infinite width:
    v_a(bc) = n E[z_ia Δ(z_kb z_kc)]      d_a(bc) = n E[z_ia ΔĤ_kk;bc]
    f_abc   = n E[z_ia Ĥ_ik;bc]           q_abc   = n E[dĤ_iik;abc]
Parameters are measured in units of √λ, so that sums over them need no weights; the Jacobian of all rows is held.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.reference import Reference, pair_number
from widthwise.experiments.sampler import Parameters, conditional_kernel, forward, output_rows
from widthwise.experiments.tangent import rates
from widthwise.network import Dense, Network


def observe_any_network(net: Network, parameters: Parameters, X, names: tuple[str, ...], ref: Reference, signs) -> dict:
    """Estimates of the tensors `names` at the output layer, dense or a stream; signs (probes, 2, n).

    >>> import numpy as np
    >>> from widthwise.experiments.estimators import probe_signs
    >>> from widthwise.experiments.reference import reference
    >>> from widthwise.experiments.sampler import network_key, sample_parameters
    >>> from widthwise.network import ResMLP
    >>> net, X, key = ResMLP([2, 8, 8, 1], "tanh"), np.array([[1.0, 0.2]]), network_key(0, 7)
    >>> layers, signs = sample_parameters(net, key), probe_signs(net, key)
    >>> seen = observe_any_network(net, layers, X, ("G1", "B"), reference(net, X), signs)
    >>> seen["B"].shape
    (1, 1, 1, 1)
    """
    seen = _seen_by_probes if isinstance(net.layers[-1], Dense) else seen_on_stream
    found = jax.vmap(partial(seen, net, parameters, X, names, ref))(signs)
    return jax.tree.map(lambda value: value.mean(axis=0), found)


def _seen_by_probes(
    net: Network, parameters: Parameters, X, names: tuple[str, ...], ref: Reference, signs
) -> dict[str, Any]:
    last, n, number = net.layers[-1], net.n, pair_number(len(X))
    assert isinstance(last, Dense)
    C_W, incoming = last.C_W, forward(net, parameters, X)[0]
    s = incoming[-1]
    rows = jnp.concatenate([jnp.sqrt(C_W / n) * signs, s])
    start, restored = ravel_pytree(parameters[:-1])
    hidden = start.size
    units = jax.tree.map(lambda rate, p: jnp.sqrt(rate) * jnp.ones_like(p), rates(net)[:-1], parameters[:-1])
    units = jnp.concatenate([ravel_pytree(units)[0], jnp.full(rows.size, jnp.sqrt(last.lambda_W / n))])
    here = jnp.zeros_like(units)

    def outputs_at(moved):
        """Outputs (rows, inputs) of the network with these last rows; hidden parameters, then rows, are moved."""
        step = units * moved
        some = rows + step[hidden:].reshape(rows.shape)
        return output_rows(net, [*restored(start + step[:hidden]), Weights(some, jnp.zeros(len(some)))], X).T

    def features(moved):
        return forward(net, [*restored(start + (units * moved)[:hidden]), parameters[-1]], X)[0][-1]

    J = jax.jacrev(outputs_at)(here)  # (row, input, parameter)
    delta = conditional_kernel(net, incoming) - ref.K[-1][number]
    one, other = (last.lambda_b + J[i] @ J[i].T - ref.Theta[-1][number] for i in (0, 1))
    mean = 0.5 * (one + other)
    crossed = jnp.einsum("ab,cd->abcd", one, other)
    below = J[2:, :, :hidden]
    tensors = {
        "G1": n * delta,
        "H1": n * mean,
        "V": n * jnp.einsum("ab,cd->abcd", delta, delta),
        "D": n * jnp.einsum("ab,cd->abcd", delta, mean),
        "A": 0.5 * n * (crossed + jnp.transpose(crossed, (2, 3, 0, 1))),
        "F": C_W**2 / n * jnp.einsum("acp,bdp->acbd", below, below),
    }
    roles = [_roles(n, C_W, set(names), outputs_at, features, here, J, s, i, 1 - i) for i in (0, 1)]
    tensors |= {name: 0.5 * (roles[0][name] + roles[1][name]) for name in roles[0] if len(name) == 1}
    if {"T", "U"} & set(names):
        (ii, ik), (kk, ki) = ((role["along itself"], role["along the other"]) for role in roles)
        tensors["T"] = n * jnp.einsum("cap,dbp->acdb", ii, kk)
        tensors["U"] = n * jnp.einsum("cap,dbp->adbc", ik, ki)
    return {name: tensors[name] for name in names}


def seen_on_stream(
    net: Network, parameters: Parameters, X, names: tuple[str, ...], ref: Reference, signs
) -> dict[str, Any]:
    """Tensors with a single leg of the last layer, whose width is that of the layer below it.

    Sums over i ≠ k are sums over both less those over i = k. The latter, and traces, are taken with signs ε, η of
    independent neurons: E[ε_i ε_k] = δ_ik and E[ε_i η_k ε_m η_m] = δ_im δ_km. E[z_i] = 0 exactly, so that means may be
    taken off what stands beside it. In v and d only that part of z_i counts which the skip brings: the rest is odd in
    the last weights of neuron i, of which neuron k knows nothing.
    """
    n, number = net.n, pair_number(len(X))
    z, (start, restored) = output_rows(net, parameters, X), ravel_pytree(parameters)
    skipped = z - forward(net, parameters, X)[1][-1]
    units = ravel_pytree(jax.tree.map(lambda rate, p: jnp.sqrt(rate) * jnp.ones_like(p), rates(net), parameters))[0]
    here = jnp.zeros_like(units)
    first, second = signs
    rows = jnp.concatenate([jnp.stack([first, second, first * second, jnp.ones(n)]), z, first * z, first * skipped])

    def outputs_at(moved):
        """Σ_i row_i z_i of every row: (rows, inputs)."""
        return rows @ output_rows(net, restored(start + units * moved), X).T

    J = jax.jacrev(outputs_at)(here)  # (row, input, parameter)
    with_z, signed_z, signed_skipped = jnp.split(J[4:], 3)
    products = jnp.einsum("bn,cn->bcn", z, z) - ref.K[-1][number][:, :, None]
    total = skipped.sum(axis=1)[:, None, None]
    found = {"v3": total * products.sum(axis=-1) - jnp.einsum("an,bcn->abc", skipped, products)}
    found["f3"] = jnp.einsum("abp,cp->abc", with_z, J[3]) - jnp.einsum("abp,cp->abc", signed_z, J[0])
    trace = 0.5 * jnp.einsum("rbp,rcp->bc", J[:2], J[:2])
    own = jnp.einsum("abp,cp->abc", signed_skipped, J[0])  # of Σ_i z_ia Ĥ_ii;bc
    # Θ is taken off n terms of the first sum and one of the second
    found["d3"] = total * (trace - (n - 1) * ref.Theta[-1][number]) - 0.5 * (own + jnp.swapaxes(own, 1, 2))
    if "q3" in names:
        # the change of every row's gradient along the gradients of Σ_k z_kc and of Σ_k ε_k η_k z_kc
        along_all, along_signs = (
            jax.vmap(lambda v: _directional(jax.jacrev(lambda moved: outputs_at(moved)[:2]), v, here))(J[row])
            for row in (3, 2)
        )  # (c, row, a, parameter)
        both = jnp.einsum("crap,rbp->abc", along_all, J[:2]) - jnp.einsum("crap,rbp->abc", along_signs, J[1::-1])
        found["q3"] = 0.5 * both
    return {name: found[name] / (n - 1) for name in names}


def _roles(n: int, C_W, wanted: set[str], outputs_at, features, here, J, s, i: int, k: int) -> dict[str, Any]:
    """What one order of the probes gives: z_i is differentiated, along v_i, v_k and the directions of the rows s_d."""
    found: dict[str, Any] = {}

    def along(function, *directions):
        """The derivative of a function of the parameters along one direction after the other."""
        for v in directions:
            function = partial(_directional, function, v)
        return function(here)

    def output(moved):
        return outputs_at(moved)[i]

    if "B" in wanted:
        ds = jax.vmap(lambda v: along(features, v))(J[k])  # (b, a, neuron)
        found["B"] = C_W * jnp.einsum("ban,dcn->acbd", ds, ds)
    if "P" in wanted:
        dds = jax.vmap(lambda v: jax.vmap(lambda w: along(features, v, w))(J[k]))(J[k])
        found["P"] = C_W * jnp.einsum("bcan,dn->abcd", dds, s)
    if {"Q", "S", "T", "U"} & wanted:
        slopes = jax.jacrev(output)
        itself, other = (jax.vmap(lambda v: along(slopes, v))(J[row]) for row in (i, k))  # (direction, a, parameter)
        found |= {"along itself": itself, "along the other": other}
        found["Q"] = C_W * jnp.einsum("bap,dcp->abcd", itself, J[2:])
        found["S"] = n * jnp.einsum("cap,dbp->abcd", other, other)
    if "R" in wanted:
        thrice = jax.vmap(lambda v: jax.vmap(lambda w: jax.vmap(lambda x: along(output, v, w, x))(J[k]))(J[k]))(J[i])
        found["R"] = n * jnp.transpose(thrice, (3, 0, 1, 2))
    return found


def _directional(function, direction, at):
    return jax.jvp(function, (at,), (direction,))[1]
