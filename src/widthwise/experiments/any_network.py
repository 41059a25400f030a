"""One-network estimates of every tensor of theory §3 for networks of any kind, by automatic differentiation.

The last layer is averaged over as in `estimators`: rows that meet an output z_d become (C_W/n) s_d, two others are
probes ±√(C_W/n). Parameters are measured in units of √λ, so that sums over them need no weights; the Jacobian of all
rows is held.
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
    """Estimates of the tensors `names` at the output layer; signs (probes, 2, n).

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
    found = jax.vmap(partial(_seen_by_probes, net, parameters, X, names, ref))(signs)
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
