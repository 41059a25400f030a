"""What training would make of a network that is nearly linear in its parameters, split by a reflection.

Reflecting the last layer, (W, b) → (−W, −b), turns z into −z and leaves Ĥ alone, at every width and for every
initialisation with that symmetry. With G the response of the algorithm on Ĥ_AA (theory §8, free part), Ĥ' the
derivative of Ĥ along λJᵀG a, and B(a, b)_x = M[Ĥ' G b]_x, M[T]_x = T_x − Ĥ_xA G T_A, the trained output is near
    odd + even,    odd = z_x − Ĥ_xA G z_A + ½B(z, z) + ½B(y, y),    even = Ĥ_xA G y − ½B(z, y) − ½B(y, z)
and its kernel near Ĥ + drift − (Ĥ' along λJᵀG z), drift = Ĥ' along λJᵀG y. The reflection changes the signs of `odd`
and of `drift` alone: each of them, and `odd` times `even`, has mean exactly zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widthwise.decompositions import eigh
from widthwise.experiments.sampler import Parameters
from widthwise.experiments.tangent import Tangent, kernel, pull, restricted, tangent
from widthwise.network import Network
from widthwise.network.algorithms import GradientDescent, GradientFlow

#: Eigenvalues of the training kernel below this fraction of the largest are raised to it.
FLOOR = 1e-10


class Linearised(NamedTuple):
    """At the tests: `odd` and `even` (i, x), `drift` (i, x, j, y)."""

    odd: Any
    even: Any
    drift: Any


def response(H, algorithm: Any):
    """G of a training kernel: (1 − decay)/λ on its eigenvalues, the decay e^{−λt}, (1 − ηλ)^steps or nothing.

    >>> response(jnp.array([[2.0]]), GradientFlow()).tolist()
    [[0.5]]
    """
    values, vectors = eigh(H)
    values = jnp.maximum(values, FLOOR * values[-1])
    reached = 1.0
    if isinstance(algorithm, GradientFlow) and algorithm.time is not None:
        reached = -jnp.expm1(-values * algorithm.time)
    elif isinstance(algorithm, GradientDescent) and algorithm.steps is not None:
        reached = 1.0 - (1.0 - algorithm.learning_rate * values) ** algorithm.steps
    return (vectors * (reached / values)) @ vectors.T


def linearised(net: Network, algorithm: Any, layers: Parameters, at: Tangent, H, X, y) -> Linearised:
    """The parts above for one network at `layers`, where it has tangent `at` and kernel Ĥ on X; y (i, a)."""
    train = y.shape[1]
    H_AA = H[:, :train, :, :train]
    G = response(H_AA.reshape(y.size, y.size), algorithm).reshape(H_AA.shape)
    k = jnp.einsum("ixja,jakb->ixkb", H[:, train:, :, :train], G)
    data = restricted(at, train)
    z_fit, y_fit = (jnp.einsum("iajb,jb->ia", G, error) for error in (data.z, y))

    def kernel_at(parameters):
        return kernel(tangent(net, parameters, X))

    def along(fit):
        return jax.jvp(kernel_at, (layers,), (pull(net, data, fit),))[1]

    def bilinear(moved, fit):
        T = jnp.einsum("iajb,jb->ia", moved[:, :, :, :train], fit)
        return T[:, train:] - jnp.einsum("ixja,ja->ix", k, T[:, :train])

    along_z, along_y = along(z_fit), along(y_fit)
    odd = at.z[:, train:] - jnp.einsum("ixja,ja->ix", k, data.z)
    odd += 0.5 * (bilinear(along_z, z_fit) + bilinear(along_y, y_fit))
    even = jnp.einsum("ixja,ja->ix", k, y) - 0.5 * (bilinear(along_z, y_fit) + bilinear(along_y, z_fit))
    return Linearised(odd, even, along_y[:, train:, :, train:])
