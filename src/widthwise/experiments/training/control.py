"""Less noise at the same mean: what one trained network says, minus what is known exactly to be zero on average.

With k_x y the trained mean at infinite width, u = z* − k_x y (theory §8), and `odd`, `even`, `drift` of `linearised`:
    u − odd                                                          has the mean of u,
    u u − w w + E[w w] − odd (even − k_x y) − (even − k_x y) odd     that of u u,
    Ĥ* − Ĥ − drift                                                   that of the change of the kernel.
w = z_x − k̃ z_A, with a k̃ that does not depend on the last layer, so that E[w w] given the layers below is
m Ĝ mᵀ, m = (−k̃, 1), Ĝ the conditional kernel (theory §1). For few inputs `fluctuations` gives the conditional mean Ω̂
of Ĥ too, and k̃ = Ω̂_xA G(Ω̂_AA); it also gives estimates of E[Ĝ] and E[Ĥ] that have almost no noise, used where Ĝ and Ĥ
enter linearly, and numbers of mean zero. With z, and Ĥ less the estimate of its mean, as it enters Ĥ_xA G y, these
serve as regressors. Nothing is expanded in 1/n: how nearly linear a network is decides only how much noise is left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from widthwise.experiments.fluctuations import fluctuations
from widthwise.experiments.reference import Reference, pair_number, reference
from widthwise.experiments.sampler import Parameters, conditional_kernel
from widthwise.experiments.tangent import Tangent, kernel, tangent
from widthwise.experiments.training.linearised import linearised, response
from widthwise.network import MLP, Network

#: Training and test inputs up to which `fluctuations` is used: its cost grows with the fourth power.
QUIET_INPUTS = 8


class Guide(NamedTuple):
    """Infinite width on training inputs, then tests: G (train, train), k_x (tests, train), K and Θ on all inputs.

    `layers` is None where hidden weights are not Gaussian, which `fluctuations` needs to take noise off.
    """

    G: Any
    k: Any
    K: Any
    Theta: Any
    layers: Reference | None


class TrainedObservation(NamedTuple):
    """One network: unbiased estimates by name, the plain ones, and numbers of mean zero for a regression."""

    estimates: dict[str, Any]
    plain: dict[str, Any]
    controls: Any


class _Averages(NamedTuple):
    """One network's estimates of E[Ĝ] (a, b) and E[Ĥ] (i, a, j, b); Ĝ and k̃ given the layers below; zero means."""

    G: Any
    H: Any
    G_given: Any
    k_given: Any
    controls: Any


def guide(net: Network, X: np.ndarray, train: int, algorithm: Any) -> Guide:
    """Infinite width for the first `train` inputs of X as training inputs and the rest as tests.

    >>> from widthwise.network import GradientFlow
    >>> found = guide(MLP([1, 8, 1], "linear", lambda_b=0.0), np.array([[1.0], [2.0]]), 1, GradientFlow())
    >>> found.k.tolist()
    [[2.0]]
    """
    layers, number = reference(net, X), pair_number(len(X))
    K, Theta = layers.K[-1][number], layers.Theta[-1][number]
    G = np.asarray(response(Theta[:train, :train], algorithm))
    return Guide(G, Theta[train:, :train] @ G, K, Theta, layers)


def is_quiet(net: Network, inputs: int) -> bool:
    """Whether `fluctuations` is used for this network."""
    return isinstance(net, MLP) and net.depth > 1 and inputs <= QUIET_INPUTS and min(net.widths[1:-1]) >= 2


def observe(net: Network, algorithm: Any, start: Parameters, end: Parameters, X, y, known: Guide) -> TrainedObservation:
    """What a network trained from `start` to `end` says. X: training inputs, then tests; y (i, a) on the first.

    Estimates: `first` of u (i, x), `second` of u u, `kernel` of Ĥ after training and `change` of what training adds
    to it, each (i, x, j, y).
    """
    at, train = tangent(net, start, X), y.shape[1]
    after, H, centre = tangent(net, end, X[train:]), kernel(at), y @ known.k.T
    averages = _averages(net, algorithm, start, at, H, X, train, known)
    near = linearised(net, algorithm, start, at, H, X, y)
    u, final = after.z - centre, kernel(after)
    change, square = final - H[:, train:, :, train:], _outer_product(u, u)
    zero = _outer_product(near.odd, near.even - centre)
    estimates = {
        "first": u - near.odd,
        "second": square - zero - jnp.transpose(zero, (2, 3, 0, 1)) - _square_excess(at.z, averages, known),
        "kernel": averages.H[:, train:, :, train:] + change - near.drift,
        "change": change - near.drift,
    }
    plain = {"first": u, "second": square, "kernel": final, "change": change}
    excess = jnp.einsum("xa,iajb,jb->ix", _fitting(known.k), (H - averages.H)[:, :, :, :train], y @ known.G)
    return TrainedObservation(estimates, plain, jnp.concatenate([at.z.ravel(), averages.controls, excess.ravel()]))


def _square_excess(z, averages: _Averages, known: Guide):
    """w w minus its mean given the layers below, plus m (Ĝ − estimate of E[Ĝ]) mᵀ with the fixed k: mean zero."""
    m, fixed, same = _fitting(averages.k_given), _fitting(known.k), jnp.eye(len(z))[:, None, :, None]
    w = z @ m.T
    expected = m @ averages.G_given @ m.T - fixed @ (averages.G_given - averages.G) @ fixed.T
    return _outer_product(w, w) - same * expected[None, :, None, :]


def _averages(
    net: Network, algorithm: Any, layers: Parameters, at: Tangent, H, X, train: int, known: Guide
) -> _Averages:
    if known.layers is None or not is_quiet(net, len(X)):
        G = conditional_kernel(net, at.incoming)
        return _Averages(G, H, G, known.k, jnp.zeros(0))
    assert isinstance(net, MLP)
    moments, number = fluctuations(net, layers, X, known.layers), pair_number(len(X))
    size = len(moments.mean)
    tangents = number + size // 2
    delta = moments.mean + moments.controls[-size:]
    Omega = known.Theta + delta[tangents]
    mean_H = (known.Theta + moments.mean[tangents])[None, :, None, :]
    return _Averages(
        known.K + moments.mean[number],
        jnp.eye(len(H))[:, None, :, None] * mean_H,
        known.K + delta[number],
        Omega[train:, :train] @ response(Omega[:train, :train], algorithm),
        moments.controls,
    )


def _fitting(k):
    """(−k, 1), from outputs at all inputs to z_x − k z_A at the tests."""
    return jnp.concatenate([-jnp.asarray(k), jnp.eye(len(k))], axis=1)


def _outer_product(u, v):
    return jnp.einsum("ix,jy->ixjy", u, v)
