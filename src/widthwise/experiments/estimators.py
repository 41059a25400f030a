"""From one network to unbiased one-network estimates of every tensor of theory §3.

The last layer is averaged over exactly or nearly so: its rows are taken to be independent of each other and of the
layers below, and every estimate holds each row at most twice, so that only E[W_ij W_ij'] = δ (C_W/n) enters: the
distribution of its entries does not matter. The hidden layers are those of the network. Rows that meet an output z_d
become (C_W/n) σ_d; the others become probes ±√(C_W/n), whose squares do not scatter. With outputs i ≠ k the neuron
structure of theory §3 then leaves one tensor each:
    B_acbd = n E[Ĥ_ik;ab Ĥ_ik;cd]      F_acbd = n E[z_ia z_kb Ĥ_ik;cd]
    P_abcd = n E[dĤ_ikk;abc z_id]      Q_abcd = n E[dĤ_iik;abc z_kd]
    R_abcd = n E[ddIĤ_iikk;abcd]       S_abcd = n E[ddIIĤ_iikk;abcd]
    T_acdb = n E[ddIIĤ_ikik;abcd]      U_adbc = n E[ddIIĤ_ikki;abcd]
G1, H1, V, D, A come from `fluctuations`. Means over networks estimate B, F, P, …, U, G1 and H1; for V, D, A the
product of two such means is taken off: V − G1 G1/n, D − G1 H1/n, A − H1 H1/n (`connected`). Tensors with a single leg
(theory §11) are odd in the last layer and vanish here; on streams they are those of `any_network`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, require_derivatives, require_functions
from widthwise.errors import UnknownName
from widthwise.experiments.any_network import observe_any_network
from widthwise.experiments.differentials import (
    Bent,
    DifferentiatedChain,
    Motion,
    bend,
    bend_twice,
    chain,
    curvature_product,
    move,
    move_twice,
    second_derivative,
    third_derivative,
)
from widthwise.experiments.fluctuations import Fluctuations, fluctuations
from widthwise.experiments.initialisations import in_a_row
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.reference import Reference, pair_number
from widthwise.experiments.sampler import Parameters, drawn_alike, forward, network_key, sample_parameters
from widthwise.network import MLP, Network
from widthwise.quick_programs import quickly_compiled
from widthwise.tensors import CORRECTIONS, DIFFERENTIALS, MEANS, PRODUCTS, SINGLE_LEGS, TENSORS, WITHOUT_THETA

#: Folded into a network's key for its probes; far from the small numbers that the parameters use.
_PROBE_KEY = 0x5EED_0001


class Observation(NamedTuple):
    """What one network says: tensors by name, and numbers of mean zero that take noise off them (see `Tally`)."""

    tensors: dict[str, jax.Array]
    controls: jax.Array


def check_statistics(
    activations: Activation | Iterable[Activation], names: Iterable[str], argument: str = "tensors"
) -> tuple[str, ...]:
    """Names by their `derivatives`, with the means that V, D, A need; refuses what does not exist (theory §1, Kinks).

    >>> from widthwise.activations import resolve
    >>> check_statistics(resolve("tanh"), ["D", "B"])
    ('G1', 'H1', 'B', 'D')
    """
    wanted = set()
    for name in names:
        if name not in CORRECTIONS + SINGLE_LEGS:
            raise UnknownName.of(argument, name, CORRECTIONS + SINGLE_LEGS)
        wanted |= {name, *PRODUCTS.get(name, ())}
    several = (activations,) if isinstance(activations, Activation) else dict.fromkeys(activations)
    found = sorted((TENSORS[name] for name in TENSORS if name in wanted), key=lambda one: one.derivatives)
    for one, activation in product(found, several):
        require_derivatives(activation, one.derivatives, one.name)
        require_functions(activation, one.derivatives, argument, one.name)
    return tuple(one.name for one in found)


def probe_signs(net: Network, key, probes: int = 1):
    """Signs of `probes` pairs of probes for the last layer of the network with this key: (probes, 2, n).

    >>> probe_signs(MLP([1, 8, 1], "tanh"), network_key(0, 0)).shape
    (1, 2, 8)
    """
    draw = in_a_row(partial(jax.random.rademacher, dtype=float))
    return draw(jax.random.fold_in(key, _PROBE_KEY), (probes, 2, net.n))


def observe_tensors(
    net: Network,
    layers: Parameters,
    X,
    names: tuple[str, ...],
    ref: Reference,
    signs: jax.Array,
    *,
    gaussian: bool = True,
) -> Observation:
    """One network's estimates of the tensors `names` (from `check_statistics`) at the output layer.

    Parameters
    ----------
    layers : parameters; those of the last layer are averaged over and not read.
    X : jax array (inputs, features).
    ref : K and Θ of infinite width on X, from `reference`.
    signs : the signs of probes for the last layer, from `probe_signs`.
    gaussian : False where hidden layers have other initialisations, at the price of more noise in G1, H1, V, D, A.

    Examples
    --------
    >>> import numpy as np
    >>> from widthwise.experiments.reference import reference
    >>> net, X, key = MLP([2, 32, 1], "tanh", C_W=1.5), np.array([[1.0, 0.2]]), network_key(0, 7)
    >>> names, layers, signs = ("G1", "V", "F"), sample_parameters(net, key), probe_signs(net, key)
    >>> seen = jax.jit(observe_tensors, static_argnums=3)(net, layers, X, names, reference(net, X), signs)
    >>> {name: value.shape for name, value in seen.tensors.items()}
    {'F': (1, 1, 1, 1), 'G1': (1, 1), 'V': (1, 1, 1, 1)}
    """
    if not isinstance(net, MLP):
        return Observation(observe_any_network(net, layers, X, names, ref, signs), jnp.zeros(0))
    kernel_names = {*MEANS, *PRODUCTS}
    tensors = {}
    if set(names) - kernel_names:
        found = jax.vmap(partial(_with_probes, net, layers, X, names))(signs)
        tensors = jax.tree.map(lambda value: value.mean(axis=0), found)
    tangent = bool((set(names) if gaussian else kernel_names & set(names)) - set(WITHOUT_THETA))
    moments = fluctuations(net, layers, X, ref, tangent=tangent, controlled=gaussian)
    tensors |= _kernel_tensors(net.n, len(X), moments, names)
    return Observation(tensors, moments.controls)


def draw_batch(net: Network, probes: int, seed: int, indices, initialisation: tuple[str, ...] | None = None):
    """Parameters and signs of probes of the networks `indices` of a seed, along a first axis.

    Drawing and observing are two programs: in one, the random numbers would be made again wherever they are read.
    Parameters do not depend on the activation, so neither does the program that draws them.
    """
    return _draw(drawn_alike(net), probes, initialisation, seed, jnp.asarray(indices))


@quickly_compiled(static_argnums=(1, 2))
def _draw(net: Network, probes: int, initialisation: tuple[str, ...] | None, seed, indices):
    keys = jax.vmap(partial(network_key, seed))(indices)
    return jax.vmap(lambda key: (sample_parameters(net, key, initialisation), probe_signs(net, key, probes)))(keys)


@quickly_compiled(static_argnums=(1,), static_argnames=("gaussian",))
def observe_drawn(net: Network, names: tuple[str, ...], layers, signs, X, ref: Reference, *, gaussian: bool = True):
    """`observe_tensors` of networks drawn by `draw_batch`."""

    def one(some, probes):
        return observe_tensors(net, some, X, names, ref, probes, gaussian=gaussian)

    return jax.vmap(one)(layers, signs)


def connected(means: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Means over networks, with the products of means taken off V, D and A (theory §3); leading axes are allowed.

    >>> import numpy as np
    >>> one = {"G1": np.full((1, 1), 2.0), "V": np.full((1, 1, 1, 1), 3.0)}
    >>> float(connected(one, n=8)["V"][0, 0, 0, 0])
    2.5
    """
    result = dict(means)
    for name in PRODUCTS.keys() & means.keys():
        left, right = (means[part] for part in PRODUCTS[name])
        result[name] = means[name] - left[..., :, :, None, None] * right[..., None, None, :, :] / n
    return result


def _kernel_tensors(n: int, inputs: int, moments: Fluctuations, names: tuple[str, ...]) -> dict[str, jax.Array]:
    """G1, H1 from E[δ] and V, D, A from E[δδᵀ], laid out over inputs."""
    number = pair_number(inputs)
    count = inputs * (inputs + 1) // 2
    shift = {"G1": 0, "H1": count}
    found = {}
    for name in names:
        if name in shift:
            found[name] = n * moments.mean[shift[name] + number]
        elif name in PRODUCTS:
            left, right = (shift[part] + number for part in PRODUCTS[name])
            found[name] = n * moments.square[left[:, :, None, None], right]
    return found


def _with_probes(net: MLP, layers: list[Weights], X, names: tuple[str, ...], signs) -> dict[str, jax.Array]:
    """B, F, P, …, U with one pair of probes for the last layer's rows, averaged over their two roles."""
    n, C_W = net.n, net.C_W[-1]
    hidden = layers[:-1]
    s = forward(net, [*hidden, Weights(signs, jnp.zeros(2))], X)[0][-1]
    rows = jnp.concatenate([jnp.sqrt(C_W / n) * signs, s])
    c = chain(net, [*hidden, Weights(rows, jnp.zeros(len(rows)))], X, max(TENSORS[name].derivatives for name in names))
    probes, outputs = ([delta[rows] for delta in c.signals] for rows in (slice(2), slice(2, None)))  # ±√(C_W/n), σ_d
    motion = move(c, probes)
    tensors = {"B": 0.5 * C_W * jnp.einsum("jabn,jcdn->acbd", motion.ds[-1], motion.ds[-1])}
    if "F" in names:
        below = zip(c.features[:-1], outputs[:-1], strict=True)
        total = sum((jnp.einsum("cd,acn,bdn->acbd", g, delta, delta) for g, delta in below), jnp.zeros((len(X),) * 4))
        tensors["F"] = C_W**2 / n * total
    if set(names) & set(DIFFERENTIALS):
        tensors |= _with_differentials(n, C_W, c, motion, s, outputs, names)
    return {name: value for name, value in tensors.items() if name in names}


def _with_differentials(
    n: int, C_W, c: DifferentiatedChain, motion: Motion, s, outputs, names: tuple[str, ...]
) -> dict[str, jax.Array]:
    """P, …, U from the motion along both probes. Loops over few of these have each long function compiled once."""
    bent = bend(c, motion.along, motion)

    def role(k):
        """The tensors that are averaged over which of the probes is z_k; the other is z_i."""
        i, found = 1 - k, {}
        if "Q" in names:
            found["Q"] = C_W * jnp.moveaxis(second_derivative(c, _bent_along(bent, i, i), outputs)[0, 0], 0, -1)
        if {"P", "R"} & set(names):
            dds, ddh = move_twice(c, _only(motion, k))
            found["P"] = C_W * jnp.einsum("bcan,dn->abcd", dds[-1][0, :, 0], s)
            if "R" in names:
                crossed = _bent_along(bent, i, k)
                twice = bend_twice(c, crossed, ddh)
                found["R"] = n * third_derivative(c, crossed.of, crossed, twice, dds)[0, 0, 0, 0]
        return found

    def product_of(which):
        """ddIIĤ_ijkm of probes i, k, j, m."""
        i, k, j, m = which
        return n * curvature_product(c, _bent_along(bent, i, k), _bent_along(bent, j, m))[0, 0, 0, 0]

    tensors = {name: value.mean(axis=0) for name, value in jax.lax.map(role, jnp.arange(2)).items()}
    asked = {name: which for name, which in _PRODUCTS_OF_CURVATURES.items() if name in names}
    if asked:
        found = jax.lax.map(product_of, jnp.asarray(sum(asked.values(), ())))
        ends = np.cumsum([len(which) for which in asked.values()])[:-1]
        for name, rows in zip(asked, jnp.split(found, ends), strict=True):
            slots = {"T": (0, 2, 3, 1), "U": (0, 3, 1, 2)}.get(name, (0, 1, 2, 3))
            tensors[name] = jnp.transpose(rows.mean(axis=0), slots)
    return tensors


#: Probes i, k, j, m whose products of curvatures give a tensor, averaged over the rows.
_PRODUCTS_OF_CURVATURES = {"S": ((0, 1, 0, 1), (1, 0, 1, 0)), "T": ((0, 0, 1, 1),), "U": ((0, 1, 1, 0),)}


def _only(motion: Motion, k) -> Motion:
    """A motion along one of its signals."""
    return jax.tree.map(partial(jax.lax.dynamic_index_in_dim, index=k), motion)


def _bent_along(bent: Bent, i, k) -> Bent:
    """The bending of one of the signals along one of the motion's."""

    def both(x):
        return jax.lax.dynamic_index_in_dim(jax.lax.dynamic_index_in_dim(x, i), k, axis=2)

    of = [jax.lax.dynamic_index_in_dim(delta, i) for delta in bent.of]
    return Bent(of, _only(bent.motion, k), [both(x) for x in bent.signals], [both(x) for x in bent.below])
