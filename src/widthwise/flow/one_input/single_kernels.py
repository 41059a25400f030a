"""The recursion of K for one input, at any size of K (theory §2).

K¹ = C_b + C_W x·x/n_0           Kˡ⁺¹ = C_b + C_W ⟨σ²⟩
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.errors import BadActivation, DivergentMoment, InvalidInput
from widthwise.flow.kernels.hyper import Hyper
from widthwise.flow.one_input.scaled_numbers import Scaled, log_of, plus, scaled, times, to_float, value_of
from widthwise.flow.one_input.single_expectations import HIGHEST_BAND, SMALLEST_SHIFTED, Ladder, ladder

#: Below the smallest kernel that is integrated, ⟨σ²⟩/K must not vanish: σ has a slope at zero.
_NO_SLOPE = 1e-60
#: Why a kernel cannot be integrated: the ladder ends below it, or nothing can help.
TOO_LARGE, LOST = 1, 2


class KernelSteps(NamedTuple):
    """K at every layer and, for every step, ⟨σ²⟩ and the K at which σ was evaluated."""

    K: Scaled
    square: Scaled
    seen: Scaled


def gram_of(x: np.ndarray) -> Scaled:
    """x·x/n_0, also where the squares are not representable."""
    exponent = int(np.frexp(np.abs(x).max())[1])
    inside = np.ldexp(x, -exponent)
    return Scaled(np.asarray(inside @ inside / len(x)), np.asarray(2 * exponent, np.int32))


def _kernel_steps(second, hyper: Hyper, gram: Scaled) -> tuple[KernelSteps, Any]:
    """The recursion of K. `second` gives ⟨σ²⟩, the K it was computed at and a flag for a K out of reach."""

    def step(K, layer):
        square, seen, failed = second(K)
        above = plus(scaled(layer.C_b), times(square, layer.C_W))
        return above, (above, square, seen, failed)

    first = plus(scaled(hyper.C_b[0]), times(gram, hyper.C_W[0]))
    _, (K, square, seen, failed) = jax.lax.scan(step, first, hyper[1:])
    every = Scaled(*(jnp.concatenate([a[None], b]) for a, b in zip(first, K, strict=True)))
    return KernelSteps(every, square, seen), failed


def homogeneous_kernels(slopes: tuple[float, float, int], hyper: Hyper, gram: Scaled) -> KernelSteps:
    """The recursion of K for σ = a_± z^power, where ⟨σ²⟩ = (a₊² + a₋²)/2 · K^power."""
    steps = _homogeneous_kernels(slopes, hyper, gram)
    _check_alive(steps)
    return steps


@partial(jax.jit, static_argnums=0)
def _homogeneous_kernels(slopes: tuple[float, float, int], hyper: Hyper, gram: Scaled) -> KernelSteps:
    square = 0.5 * (slopes[0] ** 2 + slopes[1] ** 2)

    def second(K):
        return (times(K, square) if slopes[2] else scaled(jnp.asarray(square))), K, False

    return _kernel_steps(second, hyper, gram)[0]


@partial(jax.jit, static_argnums=0)
def _ladder_kernels(rungs: Ladder, hyper: Hyper, gram: Scaled):
    shifted = rungs.smallest == SMALLEST_SHIFTED

    def second(K):
        inside = to_float(K, rungs.smallest, rungs.largest)
        share = rungs.square(inside)
        too_small = K.exponent < math.frexp(rungs.smallest)[1]
        too_large = (K.exponent > math.frexp(rungs.largest)[1]) | (inside >= rungs.largest)
        seen = jax.tree.map(partial(jnp.where, shifted & too_small), scaled(inside), K)
        lost = (too_small & (share < _NO_SLOPE) & (K.mantissa > 0.0)) | ~jnp.isfinite(share)
        return times(seen, share), seen, jnp.where(lost, LOST, jnp.where(too_large, TOO_LARGE, 0))

    return _kernel_steps(second, hyper, gram)


def quadrature_kernels(activation: Activation, hyper: Hyper, gram: Scaled) -> tuple[Ladder, KernelSteps]:
    """The recursion of K by quadrature; the ladder grows until it reaches the largest kernel on the way."""
    rungs, growth = ladder(activation, 4.0), 16.0
    while True:
        steps, failed = _ladder_kernels(rungs, hyper, gram)
        bad = np.flatnonzero(failed)
        if not len(bad):
            break
        at = int(bad[0])
        K = Scaled(steps.K.mantissa[at], steps.K.exponent[at])
        if failed[at] == LOST or rungs.largest == 4.0**HIGHEST_BAND:
            raise _out_of_reach(activation, K, at + 1, len(hyper.C_W))
        try:
            rungs = ladder(activation, max(4.0 * float(value_of(K)), growth * rungs.largest))
            growth = growth**2
        except BadActivation as error:
            raise _out_of_reach(activation, K, at + 1, len(hyper.C_W)) from error
    if rungs.smallest != SMALLEST_SHIFTED:
        _check_alive(steps)
    return rungs, steps


def _out_of_reach(activation: Activation, K: Scaled, layer: int, depth: int) -> DivergentMoment:
    log10 = float(log_of(K)) / math.log(10.0)
    size = f"{float(value_of(K)):.4g}" if abs(log10) < 300 else f"10^{log10:.0f}"
    return DivergentMoment(
        "net",
        f"a kernel that {'explodes' if log10 > 0 else 'collapses'}, K = {size} at layer {layer} of {depth}, where "
        f"{activation.name} cannot be integrated",
        f"kernels at which the activation is resolved, below {4.0**HIGHEST_BAND:.1g} in any case",
        "Take C_W and C_b nearer to criticality, fewer layers, or an input of another size.",
    )


def _check_alive(steps: KernelSteps) -> None:
    """Units of K need K > 0 wherever a further layer is built on it, unless σ(0) ≠ 0 makes K irrelevant there."""
    dead = np.flatnonzero(np.asarray(steps.K.mantissa)[:-1] == 0.0)
    if len(dead):
        raise InvalidInput(
            "net",
            f"a kernel K that is zero at layer {dead[0] + 1}",
            "K > 0 at every hidden layer",
            "Give an input that is not zero, or C_b > 0, and C_W > 0 below the last layer.",
        )
