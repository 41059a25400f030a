"""Finite width: every tensor of order 1/n from layer to layer, for all inputs (theory §3 to §5).

What each of the recursions reads is not written down again: every rule runs once, on one input, with expectations and
tensors that note what is looked up in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, require_derivatives, require_functions
from widthwise.activations.closed_forms import MonomialForm, homogeneous
from widthwise.blas_threads import with_one_blas_thread
from widthwise.devices import on_accelerator
from widthwise.errors import InvalidInput
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.kernels.variances import check_representable
from widthwise.flow.tensors.block_flow import block_flow, with_order_one
from widthwise.flow.tensors.tensor_rules import RULES, LayerStep, Legs, QuadrupleMatrix, QuadrupleTensor, Terms
from widthwise.gaussian.four_points import FourPoint, Orders, four_point, full, quadruples
from widthwise.gaussian.four_points.families import COMPILE_FROM
from widthwise.network import MLP, Network
from widthwise.tensors import MEANS, SINGLE_LEGS, TENSORS, WITHOUT_THETA


class _Noting(dict):
    """Makes what is looked up in it, and keeps it."""

    def __init__(self, make: Callable[[Any], Any]):
        self.make = make

    def __missing__(self, key):
        return self.setdefault(key, self.make(key))


class _NotedEntries(list, QuadrupleTensor, QuadrupleMatrix):
    """A tensor that notes at which letters it is read."""

    def entries(self, indices: str) -> np.ndarray:
        self.append(indices)
        return np.ones((1,) * 4)

    def on(self, pair: str) -> np.ndarray:
        return self.entries(pair)


def _noted_run(rule: Callable[[LayerStep, Mapping[str, Any]], Terms]) -> tuple[_Noting, _Noting]:
    """Four-point expectations by orders, and tensors by name, that a rule has read."""
    one = np.ones((1, 1))
    legs = Legs(value=one, aa=one, ab=one, aaaa=one, aaab=one, aabb=one, error=0.0)
    fours = _Noting(lambda _: np.ones((1,) * 4))
    tensors = _Noting(lambda _: _NotedEntries())
    rule(LayerStep(C=1.0, lam=1.0, r=1.0, H=one, sigma=legs, slope=legs, fours=fours), tensors)
    return fours, tensors


_NOTES = {name: _noted_run(rule) for name, rule in RULES.items()}
#: Tensors of layer l that each tensor of layer l+1 is made of.
NEEDS: dict[str, tuple[str, ...]] = {name: tuple(tensors) for name, (_, tensors) in _NOTES.items()}
#: Four-point expectations that each rule reads, in the index order in which it reads them.
READS: dict[str, tuple[Orders, ...]] = {name: tuple(fours) for name, (fours, _) in _NOTES.items()}
#: Entries of other tensors that each rule reads: (tensor, letters).
ENTRIES = {
    name: [(other, letters) for other, at in tensors.items() for letters in at] for name, (_, tensors) in _NOTES.items()
}


def families_of(names: Iterable[str]) -> tuple[Orders, ...]:
    """Four-point expectations that the rules of some tensors read, each once whatever its index order.

    >>> families_of(["D", "F"])
    ((0, 0, 0, 0), (1, 1, 0, 0))
    """
    reads = {orders for name in names for orders in READS[name]}
    return tuple(sorted({tuple(sorted(orders, reverse=True)) for orders in reads}))


def fits(pattern: str, entry: Any) -> bool:
    """Whether inputs (…, 4) are equal wherever letters of the pattern are."""
    entry = np.asarray(entry)
    return np.array_equal(entry, entry[..., [pattern.index(letter) for letter in pattern]])


def equal_entries(name: str, entry: Any) -> Iterator[np.ndarray]:
    """Inputs (…, 4) of a tensor's entry, as they are and with slots exchanged by its symmetries."""
    return (np.asarray(entry)[..., list(by)] for by in ((0, 1, 2, 3), *TENSORS[name].symmetry))


def _repeated_inputs() -> dict[str, tuple[str, ...]]:
    """What the rules read at quadruples of distinct inputs, and then at those with the repeated inputs that come up."""
    found = {(name, _pattern(at)) for read in ENTRIES.values() for name, at in read if len(set(at)) < len(at) == 4}
    size = 0
    while size < len(found):
        size = len(found)
        found |= {
            (other, _pattern("".join(pattern["abcd".index(letter)] for letter in at)))
            for name, pattern in found
            for other, at in ENTRIES[name]
        }
    kept: dict[str, tuple[str, ...]] = {}
    # patterns with more distinct inputs hold those with fewer
    for name, pattern in sorted(found, key=lambda one: (-len(set(one[1])), one)):
        if not any(fits(one, entry) for entry in equal_entries(name, list(pattern)) for one in kept.get(name, ())):
            kept[name] = (*kept.get(name, ()), pattern)
    return kept


def _pattern(letters: str) -> str:
    """The same with x for the first letter that comes more than once, then y and z."""
    repeated = max(letters, key=lambda letter: letters.count(letter) > 1)
    names = dict(zip(dict.fromkeys(repeated + letters), "xyz", strict=False))
    return "".join(names[letter] for letter in letters)


#: Entries with repeated inputs that the recursions read (theory §4, §5): letters are inputs, x the repeated one.
FACES = _repeated_inputs()


@dataclass(frozen=True, eq=False)
class PairRates:
    """Learning rates that depend on which two inputs a gradient joins: λ_W (layers, a, b) and the Θ that follows.

    Every λ of theory §3 joins the gradients at two inputs, and the recursions of §4 and §5 keep them apart. So a kernel
    to which one layer alone contributes, under training of all layers, needs no new rule: its inputs have λ of
    that layer between them and the full λ to the others.
    """

    lambda_W: np.ndarray
    Theta: np.ndarray


@dataclass(frozen=True)
class FiniteFlow:
    """Tensors by name, each (layers kept, …), with the kernels; how they were computed and how well."""

    layers: tuple[int, ...]
    K: np.ndarray
    Theta: np.ndarray
    tensors: dict[str, np.ndarray]
    route: str
    error: float


def required(wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The tensors that must be carried along to get the wanted ones, in the order in which they are computed.

    Those with a single leg, which vanish in plain networks, need none (theory §11).
    """
    needed = {other for name in wanted if name not in SINGLE_LEGS for other in NEEDS[name]}
    return tuple(name for name in RULES if name in needed)


def check_existence(activations: Iterable[Activation], wanted: tuple[str, ...]) -> None:
    """Refuse tensors that need a derivative which is a δ-function at a coinciding input (theory §1, Kinks)."""
    for activation, name in product(dict.fromkeys(activations), dict.fromkeys((*required(wanted), *wanted))):
        highest = TENSORS[name].derivatives
        require_derivatives(activation, highest, name)
        asked = name if name in wanted else f"{wanted[0]} (through {name})"
        require_functions(activation, highest, "tensors", asked)


@with_one_blas_thread
def finite_flow(
    net: Network,
    X: np.ndarray,
    wanted: tuple[str, ...] = tuple(RULES),
    *,
    with_theta: bool = True,
    last_only: bool = False,
    tolerance: float = 1e-9,
    dtype: Any = np.float64,
    progress: Callable[[int, int], None] | None = None,
    omit: frozenset[Any] = frozenset(),
    rates: PairRates | None = None,
) -> FiniteFlow:
    """Tensors of order 1/n at every layer, kept in `dtype`; all arithmetic is in float64.

    `omit` leaves out named terms (tensor, term), or of networks with skips and norms what `BlockRules` names: for tests
    that must fail. `rates` stand in for the network's λ.
    """
    net = with_order_one(net, "tensors of order 1/n")
    check_existence(net.activations, wanted)
    smooth = all(sigma.first_jump > 0 for sigma in net.activations)
    with_slopes = (with_theta and smooth) or any(name not in WITHOUT_THETA for name in wanted)
    kernels = kernel_flow(net, X, with_theta=with_slopes and rates is None)
    Theta = kernels.Theta if kernels.Theta is not None else np.zeros_like(kernels.K)
    check_tensors_representable(net, kernels.K, Theta)
    carried = required(wanted)
    check_kernels_at_kinks(net, np.diagonal(kernels.K, axis1=1, axis2=2), carried)
    layers = (net.depth,) if last_only else kernels.layers
    index = [layer - 1 for layer in layers]
    if not isinstance(net, MLP):
        found, error = block_flow(net, kernels.K, Theta, wanted, carried, tolerance, progress, omit)
        kept = {name: np.stack([found[layer][name] for layer in index]).astype(dtype) for name in wanted}
        return FiniteFlow(layers, kernels.K[index], Theta[index], kept, "Hermite planes", max(error, kernels.error))
    lambda_W = net.lambda_W
    if rates is not None:
        Theta, lambda_W = rates.Theta, rates.lambda_W
    shapes = {name: (len(X),) * TENSORS[name].slots for name in (*carried, *wanted)}
    kept = {name: np.zeros((len(layers), *shapes[name]), dtype) for name in wanted}
    now: dict[str, Any] = {name: np.zeros(shapes[name]) for name in carried}
    routes, error, families = set(), kernels.error, families_of(carried)
    fourth = any(name in MEANS for name in carried)
    slopes = any(name not in WITHOUT_THETA for name in carried)
    for layer, (sigma, K, H) in enumerate(zip(net.activations, kernels.K, Theta, strict=False), 1):
        report = None if progress is None else partial(_report, progress, layer, net.depth - 1)
        four = four_point(sigma, K, families, tolerance, progress=report)
        step = LayerStep.of(net, layer, K, H, fourth, slopes, lambda_W[layer])
        routes.add(four.route)
        error = max(error, four.error, step.error)
        if on_accelerator() and four.inputs >= COMPILE_FROM:
            four = replace(four, values=jnp.asarray(four.values))  # once, not for every tensor
        now = {name: _next_tensor(name, step, four, now, omit) for name in carried}
        if layer + 1 in layers:
            for name in now.keys() & kept.keys():
                kept[name][layer + 1 - layers[0]] = now[name]
    route = " and ".join(sorted(routes)) or "input layer only"
    return FiniteFlow(layers, kernels.K[index], Theta[index], kept, route, error)


#: Kernels whose fourth powers are representable, as the largest tensors are.
LARGEST_FOR_TENSORS = 1e75
#: Kernels of kinked activations whose fourth powers can be divided by, as means of order 1/n are.
SMALLEST_FOR_MEANS = 1e-75
#: An activation that is no power is resolved to 1e-8 here; at 1e36 to 1e-5, in half a minute for two inputs.
LARGEST_INTEGRATED = 1e24


def check_tensors_representable(net: Network, K: np.ndarray, Theta: np.ndarray) -> None:
    """Refuse kernels that tensors of order 1/n cannot be computed at."""
    reason = "tensors of order 1/n are products of up to four kernels"
    for layer, kernels in enumerate(zip(K, Theta, strict=True), 1):
        for name, kernel in zip(("a kernel K", "a tangent kernel Theta"), kernels, strict=True):
            check_representable(name, kernel, layer, LARGEST_FOR_TENSORS, reason)
    for sigma in net.activations:
        if homogeneous(sigma.closed) is None and not isinstance(sigma.closed, MonomialForm):
            reason = f"beyond it, {sigma.name} varies on a scale that is lost beside its inputs"
            for layer, kernel in enumerate(K[:-1], 1):
                check_representable("a kernel K", kernel, layer, LARGEST_INTEGRATED, reason)


def check_kernels_at_kinks(net: Network, variances: np.ndarray, carried: tuple[str, ...]) -> None:
    """Refuse kernels by which derivatives of a kinked activation, taken by parts, cannot be divided.

    Those of second order, V among them, are divided by K, and those of the means by products of four.
    `variances` (layers, inputs).
    """
    least = SMALLEST_FOR_MEANS if any(name in MEANS for name in carried) else np.finfo(float).tiny
    for layer, (sigma, size) in enumerate(zip(net.activations, variances, strict=False), 1):
        if sigma.kinks and size.min() < least:
            raise InvalidInput(
                "X", f"input {size.argmin()}, whose kernel K is {size.min():.3g} at layer {layer}",
                f"K of at least {least:.0e} where {sigma.name} is not smooth", "Leave that input out, or set C_b > 0.",
            )  # fmt: skip


def _report(progress: Callable[[int, int], None], layer: int, steps: int, share: float) -> None:
    """From the share of one layer that is done to (done, total) of the whole."""
    progress(int(1000 * (layer - 1 + share)), 1000 * steps)


def _next_tensor(name: str, step: LayerStep, four: FourPoint, now: dict[str, Any], omit: frozenset[tuple[str, str]]):
    """One tensor of the next layer, without the terms to omit."""
    left_out = frozenset(term for tensor, term in omit if tensor == name)
    tensors = {other: now[other] for other in NEEDS[name]}
    compiled = four.inputs >= COMPILE_FROM
    if name in MEANS and not (compiled and on_accelerator()):  # few entries are read, not worth a program
        tensors = {other: np.asarray(tensor) for other, tensor in tensors.items()}
    elif compiled:
        known = (quadruples(four.inputs).lookup, four.values)
        found = _compiled_tensor(name, left_out, four.placed, step, known, tensors)
        return np.asarray(found[:, :, 0, 0]) if name in MEANS else found
    # full four-point arrays do not outlive the rule that reads them
    fours = {orders: four.full(*orders) for orders in READS[name]}
    found = _sum_of_terms(name, RULES[name](replace(step, fours=fours), tensors), left_out)
    return found[:, :, 0, 0] if name in MEANS else found


@partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled_tensor(
    name: str, left_out: frozenset[str], placed: tuple[Orders, ...], layer: LayerStep, known, tensors: dict
):
    """One tensor of the next layer; four-point arrays are read where they are used and never stand in memory whole."""
    lookup, values = known
    fours = {orders: full(jnp.asarray(values), lookup, orders, placed, len(layer.H)) for orders in READS[name]}
    return _sum_of_terms(name, RULES[name](replace(layer, fours=fours), tensors), left_out)


def _sum_of_terms(name: str, terms: dict, left_out: frozenset[str]):
    unknown = left_out - set(terms)
    if unknown:
        raise KeyError(f"{name} has no term {sorted(unknown)[0]!r}: {sorted(terms)}")
    return sum((term for key, term in terms.items() if key not in left_out), start=np.zeros(()))
