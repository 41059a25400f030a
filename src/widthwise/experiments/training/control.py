"""Less noise at the same mean: what one trained network says, minus what is known exactly to be zero on average.

A wide network is nearly linear in its parameters, and what training makes of such a one is split by a reflection.
Reflecting the last layer, (W, b) → (−W, −b), turns z into −z and leaves Ĥ alone, at every width and for every
initialisation with that symmetry. With G the response of the algorithm on Ĥ_AA (theory §8, free part), Ĥ' the
derivative of Ĥ along λJᵀG a, and B(a, b)_x = M[Ĥ' G b]_x, M[T]_x = T_x − Ĥ_xA G T_A, the trained output is near
    odd + even,    odd = z_x − Ĥ_xA G z_A + ½B(z, z) + ½B(y, y),    even = Ĥ_xA G y − ½B(z, y) − ½B(y, z)
and its kernel near Ĥ + drift − (Ĥ' along λJᵀG z), drift = Ĥ' along λJᵀG y. The reflection changes the signs of `odd`
and of `drift` alone: each of them, and `odd` times `even`, has mean exactly zero.

With k_x y the trained mean at infinite width, and u = z* − k_x y (theory §8),
    u − odd                                                          has the mean of u,
    u u − w w + E[w w] − odd (even − k_x y) − (even − k_x y) odd     that of u u,
    u³ − odd³ − 3 odd e² − 3 (w² − E[w²]) (k̃ − k)_x y                that of u³, e = even − k_x y, or at three inputs,
    u⁴ − 4 odd³ e − 4 odd e³ − w⁴ + 3 E[w²]²                         that of u⁴,
    Ĥ* − Ĥ − drift                                                   that of the change of the kernel.
w = z_x − k̃ z_A, with a k̃ that does not depend on the last layer, so that E[w w] given the layers below is
m Ĝ mᵀ, m = (−k̃, 1), Ĝ the conditional kernel (theory §1). For few inputs `fluctuations` gives the conditional mean Ω̂
of Ĥ too, and k̃ = Ω̂_xA G(Ω̂_AA); it also gives estimates of E[Ĝ] and E[Ĥ] that have almost no noise, used where Ĝ and Ĥ
enter linearly, and numbers of mean zero. With z, and Ĥ less the estimate of its mean, as it enters Ĥ_xA G y, these
serve as regressors. Nothing is expanded in 1/n: how nearly linear a network is decides only how much noise is left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.decompositions import eigh
from widthwise.devices import library
from widthwise.errors import InvalidInput
from widthwise.experiments.fluctuations import fluctuations
from widthwise.experiments.reference import LARGEST_INPUT, Reference, pair_number, reference
from widthwise.experiments.sampler import Parameters, conditional_kernel
from widthwise.experiments.tangent import Tangent, kernel, pull, restricted, tangent
from widthwise.network import MLP, GradientDescent, GradientFlow, Network, Schedule

#: Training and test inputs up to which `fluctuations` is used: its cost grows with the fourth power.
QUIET_INPUTS = 8
#: Test inputs up to which third cumulants at three of them are measured; beyond, those at one.
JOINT_TESTS = 4
#: Eigenvalues of the training kernel below this fraction of the largest are raised to it.
FLOOR = 1e-10


class Guide(NamedTuple):
    """Infinite width on training inputs, then tests: G (train, train), k_x (tests, train), K and Θ on all inputs.

    `layers` is None where hidden weights are not Gaussian, which `fluctuations` needs to take noise off, and
    `gaussian_end` is 1 where those of the last layer are Gaussian, else 0.
    """

    G: Any
    k: Any
    K: Any
    Theta: Any
    layers: Reference | None
    gaussian_end: float = 1.0


class Linearised(NamedTuple):
    """At the tests: `odd` and `even` (i, x), `drift` (i, x, j, y)."""

    odd: Any
    even: Any
    drift: Any


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


def response(H, algorithm: Any):
    """G of a training kernel: (1 − decay)/λ on its eigenvalues, the decay e^{−λt}, (1 − ηλ)^steps or nothing.

    >>> response(jnp.array([[2.0]]), GradientFlow()).tolist()
    [[0.5]]
    """
    xp = library(H)
    values, vectors = eigh(H)
    values = xp.maximum(values, FLOOR * values[-1])
    reached = 1.0
    if isinstance(algorithm, GradientFlow) and algorithm.time is not None:
        reached = -xp.expm1(-values * algorithm.time)
    elif isinstance(algorithm, GradientDescent) and algorithm.steps is not None:
        rate: Any = algorithm.learning_rate
        if isinstance(rate, Schedule):
            reached = 1.0 - xp.prod(1.0 - xp.asarray(rate.rates)[:, None] * values, axis=0)
        else:
            reached = 1.0 - (1.0 - rate * values) ** algorithm.steps
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

    along_z, along_y = jax.vmap(along)(jnp.stack([z_fit, y_fit]))
    odd = at.z[:, train:] - jnp.einsum("ixja,ja->ix", k, data.z)
    odd += 0.5 * (bilinear(along_z, z_fit) + bilinear(along_y, y_fit))
    even = jnp.einsum("ixja,ja->ix", k, y) - 0.5 * (bilinear(along_z, y_fit) + bilinear(along_y, z_fit))
    return Linearised(odd, even, along_y[:, train:, :, train:])


def guide(net: Network, X: np.ndarray, train: int, algorithm: Any) -> Guide:
    """Infinite width for the first `train` inputs of X as training inputs and the rest as tests.

    >>> found = guide(MLP([1, 8, 1], "linear", lambda_b=0.0), np.array([[1.0], [2.0]]), 1, GradientFlow())
    >>> found.k.tolist()
    [[2.0]]
    """
    for name, part in (("X_train", X[:train]), ("X_test", X[train:])):
        if part.size and np.abs(part).max() > LARGEST_INPUT:
            raise InvalidInput(name, f"numbers up to {np.abs(part).max():.3g}", f"at most {LARGEST_INPUT:g}")
    layers, number = reference(net, X), pair_number(len(X))
    K, Theta = layers.K[-1][number], layers.Theta[-1][number]
    G = response(Theta[:train, :train], algorithm)
    return Guide(G, Theta[train:, :train] @ G, K, Theta, layers)


def is_quiet(net: Network, inputs: int) -> bool:
    """Whether `fluctuations` is used for this network."""
    return isinstance(net, MLP) and net.depth > 1 and inputs <= QUIET_INPUTS and min(net.widths[1:-1]) >= 2


def observe(net: Network, algorithm: Any, start: Parameters, end: Parameters, X, y, known: Guide) -> TrainedObservation:
    """What a network trained from `start` to `end` says. X: training inputs, then tests; y (i, a) on the first.

    Estimates: `first` of u and `fourth` of u⁴, each (i, x); `third` of u³, (i, x), or of u u u at up to `JOINT_TESTS`
    tests, (i, x, y, w); `second` of u u, `kernel` of Ĥ after training and `change` of what training adds to it, each
    (i, x, j, y).
    """
    at, train = tangent(net, start, X), y.shape[1]
    after, H, centre = tangent(net, end, X[train:]), kernel(at), y @ known.k.T
    averages = _averages(net, algorithm, start, at, H, X, train, known)
    near = linearised(net, algorithm, start, at, H, X, y)
    u, final = after.z - centre, kernel(after)
    change, square = final - H[:, train:, :, train:], _outer_product(u, u)
    odd, even = near.odd, near.even - centre
    zero = _outer_product(odd, even)
    estimates = {
        "first": u - near.odd,
        "second": square - zero - jnp.transpose(zero, (2, 3, 0, 1)) - _square_excess(at.z, averages, known),
        "kernel": averages.H[:, train:, :, train:] + change - near.drift,
        "change": change - near.drift,
        "third": _triple(u) - _triple(odd) - _linear_in(odd, even) - _third_excess(at.z, y, averages, known),
        "fourth": u**4 - 4.0 * odd * even * (odd**2 + even**2) - _fourth_excess(at.z, averages, known),
    }
    plain = {"first": u, "second": square, "kernel": final, "change": change, "third": _triple(u), "fourth": u**4}
    excess = jnp.einsum("xa,iajb,jb->ix", _fitting(known.k), (H - averages.H)[:, :, :, :train], y @ known.G)
    return TrainedObservation(estimates, plain, jnp.concatenate([at.z.ravel(), averages.controls, excess.ravel()]))


def _square_excess(z, averages: _Averages, known: Guide):
    """w w minus its mean given the layers below, plus m (Ĝ − estimate of E[Ĝ]) mᵀ with the fixed k: mean zero."""
    m, fixed, same = _fitting(averages.k_given), _fitting(known.k), jnp.eye(len(z))[:, None, :, None]
    w = z @ m.T
    expected = m @ averages.G_given @ m.T - fixed @ (averages.G_given - averages.G) @ fixed.T
    return _outer_product(w, w) - same * expected[None, :, None, :]


def _triple(u):
    """u u u: (i, x, y, w) for few tests, else (i, x)."""
    return jnp.einsum("ix,iy,iw->ixyw", u, u, u) if u.shape[1] <= JOINT_TESTS else u**3


def _linear_in(one, other):
    """What is linear in `one` in the triple of their sum."""
    return jax.jvp(_triple, (other,), (one,))[1]


def _third_excess(z, y, averages: _Averages, known: Guide):
    """w w minus its mean given the layers below, times a number that they determine, in all places of a triple."""
    m = _fitting(averages.k_given)
    w, variance = z @ m.T, m @ averages.G_given @ m.T
    given = y @ (averages.k_given - known.k).T
    if z.shape[1] - y.shape[1] > JOINT_TESTS:
        return 3.0 * (w**2 - jnp.diag(variance)) * given
    one = jnp.einsum("ixy,iw->ixyw", jnp.einsum("ix,iy->ixy", w, w) - variance, given)
    return one + jnp.einsum("ixyw->ixwy", one) + jnp.einsum("ixyw->iwyx", one)


def _fourth_excess(z, averages: _Averages, known: Guide):
    """w⁴ minus its mean given the layers below, which is that of a Gaussian where weights are Gaussian."""
    m = _fitting(averages.k_given)
    variance = jnp.einsum("xa,ab,xb->x", m, averages.G_given, m)
    return known.gaussian_end * ((z @ m.T) ** 4 - 3.0 * variance**2)


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
