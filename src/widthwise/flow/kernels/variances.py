"""Every input with itself, through all layers: K_aa and Θ_aa, and what pairs of inputs read of their two inputs.

A pair never needs a third input, only its own two variances at the entrance of every layer (theory §2). So those flow
first, for all inputs at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from widthwise.activations import Activation
from widthwise.errors import InvalidInput
from widthwise.flow.kernels.input_tables import InputTables
from widthwise.flow.kernels.pair_series import LayerSeries
from widthwise.gaussian.hermite import SHORT_SERIES
from widthwise.gaussian.kernel_rules import Kept, Pair, kernel_rule, reads_variances
from widthwise.gaussian.pair import closed_pair
from widthwise.gaussian.sites import NO_POSITIONS, Sites, largest_entries, raw_kernel_of_each, sites_of
from widthwise.network import Network
from widthwise.network.layers.base import Layer
from widthwise.network.layers.normalisation import Normalisation

#: Kernels whose products with each other are representable.
LARGEST_KERNEL = 1e150
#: Pairs of sites of inputs with themselves that flow at once.
OWN_ENTRIES = 1 << 16
_PRODUCTS = "products of two kernels must be representable"


@dataclass(frozen=True)
class Diagonal:
    """Every input with itself: K and Θ (layers, inputs), and K (*positions, inputs) where steps that read it begin.

    `tables` holds what series of pairs need, by position of the step and activation; `sites` the positions of kernels
    at the entrance of every step and behind the last; `own` K between all positions where a step reads
    them; `last` K and Θ behind the last step, at its positions.
    """

    K: np.ndarray
    Theta: np.ndarray
    entering: dict[int, np.ndarray]
    tables: dict[tuple[int, Activation], InputTables]
    error: float
    sites: tuple[Sites, ...]
    own: dict[int, np.ndarray]
    last: tuple[np.ndarray, np.ndarray]


def network_sites(net: Network, X: np.ndarray) -> tuple[Sites, ...]:
    """Sites at the entrance of each step and behind the last, for inputs (inputs, positions…, channels)."""
    if X.ndim == 2:
        return (NO_POSITIONS,) * (len(net.steps) + 1)
    return sites_of(net.steps, net.shapes(X.shape[1:-1]), net.crossed_at_the_end)


def diagonal_flow(
    net: Network, X: np.ndarray, with_theta: bool = True, progress: Callable[[int, int], None] | None = None
) -> Diagonal:
    """K_aa and Θ_aa at every layer, in float64; means over equal positions where there are any.

    `progress` is called with the layer that is done and their number.
    """
    sites = network_sites(net, X)
    together = max(1, OWN_ENTRIES // largest_entries(sites))
    # without positions inputs are few numbers each, and tables of series of all of them are read again by pairs
    closed = X.ndim > 2 and all(sigma.closed is not None for sigma in net.activations)
    if len(X) <= together or not (closed or any(one.crossed for one in sites)):
        return _diagonal_of_some(net, X, sites, with_theta, progress)
    parts = [_diagonal_of_some(net, X[at : at + together], sites, with_theta) for at in range(0, len(X), together)]
    entering = {at: np.concatenate([part.entering[at] for part in parts], axis=-1) for at in parts[0].entering}
    tables = {at: InputTables(at[1], entering[at[0]].ravel()) for at in parts[0].tables}
    K, Theta = (np.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("K", "Theta"))
    own = {place: np.concatenate([part.own[place] for part in parts], axis=-1) for place in parts[0].own}
    last = (
        np.concatenate([part.last[0] for part in parts], axis=-1),
        np.concatenate([part.last[1] for part in parts], axis=-1),
    )
    return Diagonal(K, Theta, entering, tables, max(part.error for part in parts), sites, own, last)


def _diagonal_of_some(
    net: Network,
    X: np.ndarray,
    sites: tuple[Sites, ...],
    with_theta: bool,
    progress: Callable[[int, int], None] | None = None,
) -> Diagonal:
    with np.errstate(over="ignore"):
        K = raw_kernel_of_each(X, sites[0]) if X.ndim > 2 else np.einsum("ai,ai->a", X, X) / X.shape[1]
    check_representable("x·x/n_0", K, 1)
    tables: dict[tuple[int, Activation], InputTables] = {}
    # deep networks reach a fixed point to the last digit: layers that see the same variances share their tables
    shared: dict[tuple[Activation, bytes], InputTables] = {}

    def mean(position: int, K: np.ndarray, activation: Activation, p: int, independent: bool = False) -> Any:
        """⟨σ^(p)_a σ^(p)_a⟩ of every input, or ⟨σ^(p)⟩², from tables that are kept; between all sites if crossed."""
        if p and not with_theta:
            return 0.0
        here = sites[position]
        variance = here.equal_positions(K)
        first, second = here.of_first(variance), here.of_second(variance)
        if activation.closed is not None:
            return closed_pair(activation.closed, p, p, first, 0.0 * K if independent else K, second)
        if (position, activation) not in tables:
            same = activation, variance.tobytes()
            tables[position, activation] = shared.setdefault(same, InputTables(activation, variance.ravel()))
        known = tables[position, activation]
        if not here.crossed:
            table = known.get(p)
            return (table.coefficients[:, 0] ** 2 if independent else table.norm).reshape(K.shape)
        return _between_own_sites(known, p, K, here, independent)

    Theta, found, entering, own, position = np.zeros_like(K), [], {}, {}, 0
    for layer, block in enumerate(net.blocks, 1):
        kept = Kept()
        for step in block:
            here, behind = sites[position : position + 2]
            variance = here.equal_positions(K)
            if reads_variances(step):
                entering[position] = variance
            check_normalisable(step, variance)
            sides = here.of_first(variance), K, here.of_second(variance)
            if step.reads_own_positions:
                own[position] = K
            pair = Pair(*sides, Theta, partial(mean, position, K), kept, here, behind, same_inputs=True, own=(K, K))
            K, Theta = kernel_rule(step, pair)
            if here.crossed:
                K, Theta = (behind.wanted(np.asarray(kernel), 1) for kernel in (K, Theta))
            check_representable("a kernel K", K, layer)
            position += 1
        check_representable("a tangent kernel Theta", Theta, layer)
        if progress is not None:
            progress(layer, len(net.blocks))
        found.append((sites[position].mean(K), sites[position].mean(np.broadcast_to(Theta, K.shape))))
    Ks, Thetas = (np.stack(column) for column in zip(*found, strict=True))
    error = max((made.error(with_theta) for made in tables.values()), default=1e-15)
    return Diagonal(Ks, Thetas, entering, tables, error, sites, own, (K, np.broadcast_to(Theta, K.shape)))


def _between_own_sites(known: InputTables, p: int, K: np.ndarray, sites: Sites, independent: bool) -> np.ndarray:
    """⟨σ^(p) σ^(p)⟩ between all sites of every input: a series for each input, and norms for a site with itself."""
    inputs, every = K.shape[-1], np.arange(sites.count)
    flat, found = K.reshape(sites.count, sites.count, inputs), np.empty((inputs, sites.count, sites.count))
    series = LayerSeries(known, known)
    for number in range(inputs):
        own = every * inputs + number
        table = known.some(p, SHORT_SERIES, own)
        if independent:
            found[number] = np.multiply.outer(table.coefficients[:, 0], table.coefficients[:, 0])
            continue
        found[number] = series.expectation(p, flat[..., number], own, own)
        found[number, every, every] = table.norm
    return np.moveaxis(found, 0, -1).reshape(K.shape)


def check_representable(
    name: str, kernel: Any, layer: int, largest: float = LARGEST_KERNEL, reason: str = _PRODUCTS
) -> None:
    """Refuse a kernel of a layer beyond what the arithmetic that follows can hold."""
    beyond = ~(np.abs(kernel) <= largest)
    if np.any(beyond):
        raise InvalidInput(
            "net", f"{name} of {np.asarray(kernel)[beyond].flat[0]:.3g} at layer {layer}",
            f"at most {largest:.0e}: {reason}",
            "Reduce C_W, C_b, lambda_W, lambda_b or the size of the inputs; single_input takes one input of any size.",
        )  # fmt: skip


def check_normalisable(step: Layer, variance: np.ndarray) -> None:
    """Refuse what divides zero by zero."""
    if isinstance(step, Normalisation) and step.epsilon == 0.0 and np.any(variance == 0.0):
        number = int(np.argmin(variance) % variance.shape[-1])
        raise InvalidInput(
            "X", f"input {number}, for which all is zero where {step!r} divides by its size",
            "inputs that are not zero there", "Give the normalisation an epsilon above zero, or C_b above zero.",
        )  # fmt: skip
