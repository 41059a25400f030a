"""One input through very deep networks: every tensor over its natural scale, layer by layer (theory §2, §4, §5).

For one input each recursion is a scalar one, K¹ = C_b + C_W x·x/n_0 and Kˡ⁺¹ = C_b + C_W⟨σ²⟩. K and Θ are carried as
numbers of any size, and every tensor X of order 1/n as its ratio X / (K^i Θ^j) to its natural scale, which neither
overflows nor underflows with them. A step measures the lower layer in units of its K and Θ and the activation in units
of √⟨σ²⟩, hands those pure numbers to the rules of all inputs (`flow.tensors`) and reads the ratios of the next layer
off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.activations.closed_forms import homogeneous
from widthwise.blas_threads import with_one_blas_thread
from widthwise.errors import BadActivation, DivergentMoment, InvalidInput
from widthwise.flow.kernels.kernel_flow import Hyper, check_differentiable
from widthwise.flow.one_input.scaled_numbers import Scaled, log_of, recursion, scaled_number, value_of
from widthwise.flow.one_input.single_expectations import (
    HIGHEST_BAND,
    LOST,
    Homogeneous,
    Ladder,
    Term,
    ladder,
    pair,
    single_moments,
    square_derivative,
)
from widthwise.flow.tensors.tensor_flow import READS, RULES, check_existence, finite_flow, required
from widthwise.flow.tensors.tensor_rules import LayerStep, Legs
from widthwise.gaussian.kernel_rules import dense_kernel, dense_step
from widthwise.network import MLP, Network
from widthwise.tensors import MEANS, TENSORS, WITHOUT_THETA

#: Deeper networks have a program of their own: running idle layers would cost more than compiling.
MOST_PADDED = 4096


@dataclass(frozen=True)
class SingleFlow:
    """Layers from 1 to L: K and Θ as scaled numbers, ratios by tensor name (layers,), route and relative error."""

    K: Scaled
    Theta: Scaled | None
    ratios: dict[str, np.ndarray]
    route: str
    error: float


def existing(*activations: Activation) -> tuple[str, ...]:
    """The tensors that exist for all activations at one input (theory §1, Kinks).

    >>> from widthwise.activations import resolve
    >>> existing(resolve("step")), existing(resolve("relu"))
    (('V', 'G1'), ('V', 'D', 'A', 'B', 'F', 'G1', 'H1'))
    """
    reach = min((sigma.first_jump for sigma in activations), default=math.inf)
    good = {name for name in RULES if TENSORS[name].derivatives <= reach}
    return tuple(name for name in RULES if set(required((name,))) <= good)


@with_one_blas_thread
def single_flow(net: MLP, x: np.ndarray, wanted: tuple[str, ...], with_theta: bool) -> SingleFlow:
    """K, Θ and the ratios of the wanted tensors at every layer, for the one input x (features,).

    >>> flow = single_flow(MLP([1, 9, 9, 1], "linear", lambda_b=0.0), np.ones(1), ("V", "B"), True)
    >>> flow.ratios["V"].tolist(), value_of(flow.Theta).tolist()
    ([0.0, 2.0, 4.0], [1.0, 2.0, 3.0])
    """
    check_existence(net.activations, wanted)
    if with_theta:
        check_differentiable(net)
    if len(set(net.activations)) > 1:
        return mixed_flow(net, x, wanted, with_theta)
    gram = input_square(x)
    hyper, carried = _padded(Hyper.of(net)), required(wanted)
    terms = _needed_terms(net.activation, carried, with_theta)
    rungs, steps = single_kernels(net.activation, hyper, gram, net.depth)
    table, error = term_table(rungs, terms, steps)
    numbers = dict(zip(terms, table.T, strict=True))
    Theta = single_theta(hyper, gram, steps, numbers[pair(1, 1)]) if with_theta else None
    ratios = _single_ratios(net, hyper, steps, Theta, numbers, carried) if carried else {}
    kept = slice(net.depth)
    return SingleFlow(
        steps.K[kept], Theta and Theta[kept], {name: ratios[name][kept] for name in wanted}, rungs.route, error
    )


def input_square(x: np.ndarray) -> Scaled:
    """x·x/n_0, also where the squares are not representable."""
    exponent = int(np.frexp(np.abs(x).max())[1])
    inside = np.ldexp(x, -exponent)
    return Scaled(np.asarray(inside @ inside / len(x)), np.asarray(2 * exponent, np.int32))


def _padded(hyper: Hyper) -> Hyper:
    """With layers of K = 1 and Θ = 0 on top, so that one compiled recursion serves many depths."""
    depth = len(hyper.C_W)
    more = (1 << max(3, (depth - 1).bit_length())) - depth if depth <= MOST_PADDED else 0
    return jax.tree.map(lambda numbers, end: np.pad(numbers, (0, more), constant_values=end), hyper, Hyper(1, 0, 0, 0))


def mixed_flow(net: Network, x: np.ndarray, wanted: tuple[str, ...], with_theta: bool) -> SingleFlow:
    """The same from the recursion of tensors, for layers with different activations: no deeper than float64 reaches."""
    flow = finite_flow(net, x[None], wanted, with_theta=with_theta)
    K, Theta = flow.K[:, 0, 0], flow.Theta[:, 0, 0]
    if not np.all(np.isfinite(K)) or not np.all(K[:-1] > 0.0):
        raise InvalidInput(
            "net",
            "kernels of mixed activations that vanish or overflow on the way",
            "kernels of a size that float64 holds",
            "Take C_W and C_b nearer to criticality, or fewer layers.",
        )
    ratios = {}
    for name in wanted:
        i, j = TENSORS[name].scale
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios[name] = flow.tensors[name].reshape(net.depth) / (K**i * Theta**j)
    return SingleFlow(scaled_number(K), scaled_number(Theta) if with_theta else None, ratios, flow.route, flow.error)


class KernelSteps(NamedTuple):
    """K at every layer and, for every step, ⟨σ²⟩ and the K at which σ was evaluated.

    With skips and norms also ⟨ss⟩ of what the step passes on, and what ⟨σ'²⟩ is divided by in ⟨s'²⟩.
    """

    K: Scaled
    square: Scaled
    seen: Scaled
    passed: Scaled | None = None
    divisor: Scaled | None = None


class SkipsAndNorms(NamedTuple):
    """γ and ε of every step, and whether it is normalised before or after its activation, with its mean taken off.

    K' = γ²K + C_b + C_W⟨ss⟩ with s = σ(z/r), r² = ε + K, for a norm before the activation, and s = (σ − ⟨σ⟩)/r,
    r² = ε + ⟨σ²⟩ − ⟨σ⟩², for one after it (theory §11, §12).
    """

    gamma: Any
    epsilon: Any
    before: Any
    after: Any
    centred: Any


@partial(jax.jit, static_argnums=0)
def _kernel_steps(
    squares: Homogeneous | Ladder, hyper: Hyper, gram: Scaled, blocks: SkipsAndNorms | None
) -> tuple[KernelSteps, Any]:
    """The recursion of K, and for every step why its K is out of reach, or zero."""

    def step(K, layer):
        hyper, block = layer
        if block is None:
            square, seen, failed = squares.second(K)
            return dense_kernel(hyper.C_b, hyper.C_W, square), (square, seen, None, None, failed)

        def either(condition, first: Scaled, second: Scaled) -> Scaled:
            return jax.tree.map(partial(jnp.where, condition), first, second)

        one, with_epsilon = scaled_number(jnp.ones(())), K + block.epsilon
        square, seen, failed = squares.second(either(block.before, scaled_number(K / with_epsilon), K))
        variance = square * jnp.where(block.after & block.centred, 1.0 - squares.mean_share(seen), 1.0)
        spread = variance + block.epsilon
        passed = either(block.after, scaled_number(variance / spread), square)
        divisor = either(block.after, spread, either(block.before, with_epsilon, one))
        above = dense_kernel(hyper.C_b, hyper.C_W, passed) + K * block.gamma**2
        return above, (square, seen, passed, divisor, failed)

    first = dense_kernel(hyper.C_b[0], hyper.C_W[0], gram)
    K, (square, seen, passed, divisor, failed) = recursion(step, first, (hyper[1:], blocks))
    return KernelSteps(K, square, seen, passed, divisor), failed


def single_kernels(
    activation: Activation, hyper: Hyper, gram: Scaled, depth: int, blocks: SkipsAndNorms | None = None
) -> tuple[Homogeneous | Ladder, KernelSteps]:
    """The recursion of K; a ladder of quadrature grows until it reaches the largest kernel on the way to `depth`."""
    slopes, growth = homogeneous(activation.closed), 16.0
    rungs = ladder(activation, 4.0) if slopes is None else Homogeneous(*slopes)
    while True:
        # numpy from here on: jax would compile every look at one layer
        steps, failed = jax.tree.map(np.asarray, _kernel_steps(rungs, hyper, gram, blocks))
        bad = np.flatnonzero(failed[: depth - 1])
        if isinstance(rungs, Homogeneous) or not len(bad):
            break
        at = int(bad[0])
        K = steps.K[at]
        if failed[at] == LOST or rungs.largest == 4.0**HIGHEST_BAND:
            raise _out_of_reach(activation, K, at + 1, depth)
        try:
            rungs = ladder(activation, max(4.0 * float(value_of(K)), growth * rungs.largest))
            growth = growth**2
        except BadActivation as error:
            raise _out_of_reach(activation, K, at + 1, depth) from error
    # units of K need K > 0 wherever a further layer is built on it, unless σ(0) ≠ 0 makes K irrelevant there
    dead = np.flatnonzero(np.asarray(steps.K.mantissa)[: depth - 1] == 0.0)
    if len(dead) and (blocks is not None or not rungs.shifted):
        raise InvalidInput(
            "net",
            f"a kernel K that is zero at layer {dead[0] + 1}",
            "K > 0 at every hidden layer",
            "Give an input that is not zero, or C_b > 0, and C_W > 0 below the last layer.",
        )
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


def term_table(rungs: Homogeneous | Ladder, terms: tuple[Term, ...], steps: KernelSteps) -> tuple[np.ndarray, float]:
    """Terms (steps, terms) and their relative error."""
    K = value_of(steps.seen)
    if isinstance(rungs, Homogeneous):
        return np.broadcast_to([rungs.term(term) for term in terms], (len(K), len(terms))), 1e-15
    if not len(K) or not terms:
        return np.empty((len(K), len(terms))), 1e-15
    K = np.clip(K, rungs.smallest, rungs.largest)
    # zero over zero, where nothing is read, and exponents far apart
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = np.exp2(np.asarray(steps.square.exponent) - steps.seen.exponent)
        squares = share * steps.square.mantissa / steps.seen.mantissa
    return single_moments(rungs, terms, K, squares)


def _needed_terms(activation: Activation, carried: tuple[str, ...], with_theta: bool) -> tuple[Term, ...]:
    """Every expectation that the carried tensors and Θ need."""
    terms = {Term(0, tuple(sorted(orders))) for name in carried for orders in READS[name]}
    with_slopes = any(name not in WITHOUT_THETA for name in carried)
    if with_theta or with_slopes:
        terms.add(pair(1, 1))
    for p in range(1 + with_slopes) if carried else ():
        terms |= {term for _, term in square_derivative(activation, p, 2)}
        if any(name in MEANS for name in carried):
            terms |= {term for _, term in square_derivative(activation, p, 4)}
        terms |= set(_separate_legs(activation, p))
    return tuple(sorted(terms))


def _separate_legs(activation: Activation, p: int) -> list[Term]:
    """The legs ⟨σ̃^(p+1)σ̃^(p+1)⟩ and ⟨σ̃^(p+2)σ̃^(p)⟩, as far as they exist one by one."""
    free = activation.first_jump - p
    return [pair(p + 1, p + 1), pair(p, p + 2)][: 2 if free >= 2 else 1 if free >= 1 else 0]


def _legs(activation: Activation, p: int, numbers: Mapping[Term, Any], fourth: bool) -> Legs:
    """Derivatives of ⟨σ̃^(p)σ̃^(p)⟩ as `legs` gives them, as 1 × 1 matrices; fourth ones summed up in aaaa."""

    def total(order: int):
        return sum(count * numbers[term] for count, term in square_derivative(activation, p, order))

    apart = [numbers[term] for term in _separate_legs(activation, p)]
    ab = apart[0] if apart else jnp.zeros(())
    aa = apart[1] if len(apart) == 2 else 0.5 * total(2) - ab
    aaaa = 0.5 * total(4) if fourth else jnp.zeros(())
    value = numbers[pair(1, 1)] if p else jnp.ones(())
    nothing = _as_array(jnp.zeros(()))
    return Legs(_as_array(value), _as_array(aa), _as_array(ab), _as_array(aaaa), nothing, nothing, 0.0)


def _as_array(number, axes: int = 2) -> Any:
    """A number as an array of the rules: one input on every axis."""
    return jnp.reshape(number, (1,) * axes)


@jax.jit
def single_theta(hyper: Hyper, gram: Scaled, steps: KernelSteps, slope, gamma=0.0) -> Scaled:
    """Θ at every layer, with ⟨σ'²⟩ = ⟨σ̃'²⟩⟨σ²⟩/K (theory §2); with skips and norms also γ²Θ (theory §11)."""

    def step(Theta, layer):
        hyper, passed, slope, gamma = layer
        return dense_step(hyper, passed, slope * Theta)[1] + gamma**2 * Theta, None

    slopes, passed = slope * (steps.square / steps.seen), steps.square
    if steps.passed is not None and steps.divisor is not None:
        slopes, passed = scaled_number(slopes) / steps.divisor, steps.passed
    layers = (hyper[1:], passed, slopes, jnp.broadcast_to(gamma, slopes.shape))
    return recursion(step, dense_step(hyper[0], gram, 0.0)[1], layers)[0]


def _single_ratios(net: MLP, hyper: Hyper, steps: KernelSteps, Theta, numbers, carried) -> dict[str, np.ndarray]:
    """Ratios at every layer; NaN where their scale is zero."""
    r = np.ones(len(hyper.C_W) - 1)
    r[: net.depth - 1] = np.asarray(net.widths[1:-1]) / np.asarray(net.widths[:-2])
    found = _carry(net.activation, carried, r, hyper, steps, Theta, numbers)
    return without_empty(found, steps.K, Theta)


def without_empty(found: Mapping[str, Any], K: Scaled, Theta: Scaled | None) -> dict[str, np.ndarray]:
    """Ratios (layers,) from those behind the first layer; NaN where their scale is zero."""
    result = {name: np.concatenate([[0.0], np.asarray(column)]) for name, column in found.items()}
    empty_K = np.asarray(K.mantissa) == 0.0
    empty_Theta = np.asarray(Theta.mantissa) == 0.0 if Theta is not None else np.zeros_like(empty_K)
    for name, column in result.items():
        i, j = TENSORS[name].scale
        column[(empty_K & (i != 0)) | (empty_Theta & (j != 0))] = np.nan
    return result


@partial(jax.jit, static_argnums=(0, 1))
def _carry(
    activation: Activation, carried: tuple[str, ...], r, hyper: Hyper, steps: KernelSteps, Theta: Scaled | None, numbers
):
    """Ratios above every step: into units in which its numbers are of order one, through the rules of theory §4 and §5,
    and back.

    z of the upper layer is measured in √U, with U = C_W⟨σ²⟩ (or K of the lower layer where that vanishes), and
    learning rates so that Θ of the upper layer is one. Then C = C_W⟨σ²⟩/U, lam = λ_W⟨σ²⟩/Θ', H = ΘU/(KΘ').
    `share` is U/K'.
    """
    above, signal = steps.K[1:], steps.square * hyper.C_W[1:]
    alive = signal.mantissa > 0.0
    unit = jax.tree.map(partial(jnp.where, alive), signal, steps.seen)
    share = jnp.where(above.mantissa > 0.0, unit / above, jnp.inf)
    C, lam, H = jnp.where(alive, 1.0, 0.0), jnp.zeros(len(r)), jnp.zeros(len(r))
    if Theta is not None:
        lam = steps.square * hyper.lambda_W[1:] / Theta[1:]
        H = (unit / steps.seen) * (Theta[:-1] / Theta[1:])
    fourth = any(name in MEANS for name in carried)
    with_slopes = any(name not in WITHOUT_THETA for name in carried)
    reads = sorted({orders for name in carried for orders in READS[name]})
    records = [TENSORS[name] for name in carried]

    def step(ratios, layer):
        (C, lam, H, share, r), numbers = layer
        sigma = _legs(activation, 0, numbers, fourth)
        slope = _legs(activation, 1, numbers, fourth) if with_slopes else sigma
        fours = {orders: _as_array(numbers[Term(0, tuple(sorted(orders)))], 4) for orders in reads}
        layer = LayerStep(C=C, lam=lam, r=r, H=_as_array(H), sigma=sigma, slope=slope, fours=fours)
        now = {one.name: _as_array(ratios[one.name] * H ** one.scale[1], one.slots) for one in records}
        above = {name: jnp.reshape(sum(RULES[name](layer, now).values()), ()) for name in carried}
        above = {one.name: above[one.name] * share ** one.scale[0] for one in records}
        return above, above

    start = {name: jnp.zeros(()) for name in carried}
    return jax.lax.scan(step, start, ((C, lam, H, share, r), numbers))[1]
