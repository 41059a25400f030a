"""Where an activation varies: intervals on which σ^(p) is a polynomial to near machine precision.

Found once by bisection and kept. Quadrature puts its nodes on these intervals, so a feature of size one stays
resolved whether the kernel is 1e-12 or 1e6, and an interval that no bisection resolves betrays an undeclared kink.
"""

from __future__ import annotations

import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations.base import Activation
from widthwise.errors import BadActivation, NotDifferentiable

#: Nodes on each interval; products of two resolved functions and a Gaussian stay exact to rounding.
PANEL_NODES = 16
#: Legendre coefficients from this degree on must be negligible.
RESOLVED_DEGREE = 12
RESOLVED_TAIL = 1e-13
#: Tails below this that halving changes by less than this factor in both halves are rounding: what σ is made of cancels
#: there, and differentiating multiplies what is left over. A smooth function's tail falls 2^RESOLVED_DEGREE-fold, and
#: one half of an interval with a kink is smooth.
ROUNDING_TAIL, ROUNDING_FACTOR = 1e-8, 16.0
SMALLEST_INTERVAL = 1e-8
MOST_INTERVALS = 60_000
_LONGEST_BLOCK = 1 << 17
_SHORTEST_BLOCK = 1 << 13
#: Short arrays are evaluated at all orders up to one of these: a program more costs more than rows that nobody reads.
_SHARED_ORDERS = (0, 1, 5)

_GAUSS_NODES, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(PANEL_NODES)
_TO_LEGENDRE = (
    np.polynomial.legendre.legvander(_GAUSS_NODES, PANEL_NODES - 1).T
    * _GAUSS_WEIGHTS
    * (np.arange(PANEL_NODES)[:, None] + 0.5)
)


@lru_cache(maxsize=1024)
def _evaluator(activation: Activation, orders: tuple[int, ...]):
    functions = [activation.derivative(order) for order in orders]
    return jax.jit(lambda z: jnp.stack([f(z) for f in functions]))


def evaluate(activation: Activation, order: int, z: np.ndarray) -> np.ndarray:
    """σ^(order) at the points z (regular part), as a numpy array."""
    return jet(activation, (order,), z)[0]


def jet(activation: Activation, orders: tuple[int, ...], z: np.ndarray) -> np.ndarray:
    """σ^(p) at the points z for every p in `orders`, (orders, *z.shape), by few programs in blocks of few sizes.

    Compiling costs more than evaluating, so that short arrays share a size, and orders of short arrays a program.
    """
    flat, rows = np.ravel(z), orders
    if flat.size <= _SHORTEST_BLOCK:
        rows = tuple(range(1 + next((top for top in _SHARED_ORDERS if top >= max(orders)), max(orders))))
    function, chosen = _evaluator(activation, rows), [rows.index(order) for order in orders]
    result = np.empty((len(orders), flat.size))
    for start in range(0, flat.size, _LONGEST_BLOCK):
        some = flat[start : start + _LONGEST_BLOCK]
        size = max(_SHORTEST_BLOCK, 1 << ((some.size - 1).bit_length() | 1))
        padded = np.pad(some, (0, min(_LONGEST_BLOCK, size) - some.size))
        result[:, start : start + some.size] = np.asarray(function(padded))[chosen, : some.size]
    return result.reshape(len(orders), *np.shape(z))


def intervals(activation: Activation, orders: tuple[int, ...], radius: float) -> np.ndarray:
    """Edges on [−radius', radius'], radius' ≥ radius, between which every σ^(p), p in `orders`, is resolved.

    Kinks and zero are always edges. The radius is rounded up to a power of two, so that layers share the result.
    """
    return _intervals(activation, tuple(sorted(set(orders))), max(0, math.ceil(math.log2(max(radius, 1.0)))))


@lru_cache(maxsize=512)
def _intervals(activation: Activation, orders: tuple[int, ...], log2_radius: int) -> np.ndarray:
    shells = 2.0 ** np.arange(-1, log2_radius + 1)
    kinks = [k for k in activation.kinks if abs(k) < shells[-1]]
    return _bisect(activation, orders, np.concatenate([-shells, shells, kinks, [0.0]]), SMALLEST_INTERVAL)[0]


def _bisect(activation, orders, edges, smallest) -> tuple[np.ndarray, list[float]]:
    """Halve intervals until σ^(p) is resolved on each; return all edges, and where that did not succeed."""
    edges = np.unique(edges)
    active = np.stack([edges[:-1], edges[1:]], axis=1)
    # for each order, max |σ^(order)| over |z| ≤ r, by shells
    radii = np.abs(active).max(axis=1)
    by_radius = np.argsort(radii, kind="stable")
    largest = np.abs(_finite_jet(activation, orders, _gauss_points(active))).max(axis=-1)
    scale = [(radii[by_radius], np.maximum.accumulate(row[by_radius])) for row in largest]
    done, unresolved = [edges], []
    before, noise = np.zeros((len(orders), len(active))), np.zeros((len(orders), 1))
    while len(active):
        above, small, tails = _roughness(activation, orders, active, scale)
        stays = (tails * ROUNDING_FACTOR > before) & (tails < ROUNDING_FACTOR * before) & small
        if before.any():  # halves of the same interval
            stays[:] = np.tile(stays.reshape(len(orders), 2, -1).all(axis=1), 2)
        noise = np.maximum(noise, np.where(stays, tails, 0.0).max(axis=1, keepdims=True))
        above &= ~stays
        rough = above.any(axis=0)
        active, tails, above = active[rough], tails[:, rough], above[:, rough]
        tiny = active[:, 1] - active[:, 0] < smallest * np.maximum(1.0, np.abs(active).max(axis=1, initial=0.0))
        # where rounding begins, one half of each interval is without it
        kinked = tiny & np.any(above & (tails > ROUNDING_FACTOR * noise), axis=0)
        unresolved.extend(active[kinked].mean(axis=1))
        active, tails = active[~tiny], tails[:, ~tiny]
        middle = active.mean(axis=1)
        done.append(middle)
        active = np.concatenate([np.stack([active[:, 0], middle], 1), np.stack([middle, active[:, 1]], 1)])
        before = np.concatenate([tails, tails], axis=1)
        if sum(map(len, done)) > MOST_INTERVALS:
            raise BadActivation(
                "activation",
                f"{activation.name}, which varies too fast on [{edges[0]:g}, {edges[-1]:g}] to be integrated",
                f"a function that {MOST_INTERVALS} intervals can resolve",
                "Reduce C_W, C_b or the size of the inputs, so that the kernel stays smaller.",
            )
    return np.unique(np.concatenate(done)), sorted(unresolved)


def _gauss_points(active: np.ndarray) -> np.ndarray:
    centre, half = active.mean(axis=1, keepdims=True), np.diff(active, axis=1) / 2
    return centre + half * _GAUSS_NODES


def _roughness(activation, orders, active, scale) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each order and interval: whether it is not resolved, whether its tail may be rounding, and the tail."""
    rough, small, tails = [], [], []
    outer = np.abs(active).max(axis=1)
    points = _gauss_points(active)
    for order, values, (radii, largest) in zip(orders, _finite_jet(activation, orders, points), scale, strict=True):
        tail = np.abs(values @ _TO_LEGENDRE[RESOLVED_DEGREE:].T).max(axis=1)
        reference = largest[np.minimum(np.searchsorted(radii, outer), len(radii) - 1)]
        size = np.maximum(reference, np.abs(values).max(axis=1))
        # derivatives of high order carry the rounding of the ones below them, and far out that of z itself
        allowed = RESOLVED_TAIL * 10.0 ** (order / 2) * size
        slope = np.abs(np.diff(values, axis=1) / np.diff(points, axis=1)).max(axis=1)
        rough.append(tail > allowed + 4 * np.finfo(float).eps * outer * slope)
        small.append(tail < ROUNDING_TAIL * size)
        tails.append(tail)
    return np.array(rough), np.array(small), np.array(tails)


def _finite_jet(activation: Activation, orders: tuple[int, ...], z: np.ndarray) -> np.ndarray:
    table = jet(activation, orders, z)
    for order, values in zip(orders, table, strict=True):
        if np.all(np.isfinite(values)):
            continue
        at = z[~np.isfinite(values)]
        what = "its value" if order == 0 else f"its derivative of order {order} (by jax)"
        raise BadActivation(
            "activation",
            f"{activation.name}, for which {what} is not finite at z = {at[np.argmin(np.abs(at))]:.6g}",
            "a function that is finite with its derivatives wherever the kernel reaches",
            "A singular branch inside jnp.where must be guarded by its argument as well.",
        )
    return table


def require_derivatives(activation: Activation, order: int, purpose: str) -> None:
    """Refuse a user's activation whose derivatives up to `order` jump at a place that was not declared."""
    if activation.builtin:
        return
    found = _undeclared(activation, order)
    if found:
        places = ", ".join(f"{k:.6g}" for k in found[:4])
        raise NotDifferentiable(
            "activation",
            f"{activation.name}, which is not smooth near z = {places}",
            f"derivatives up to order {order}, needed for {purpose}",
            f"Declare the kinks: widthwise.activation(function, kinks=({places},)).",
        )


def require_functions(activation: Activation, order: int, argument: str, what: str) -> None:
    """Refuse what needs a derivative that is a δ-function where it meets another factor (theory §1, Kinks)."""
    if order <= activation.first_jump:
        return
    lowest = int(activation.first_jump)
    raise NotDifferentiable(
        argument,
        f"{what} for {activation.name}, whose derivative of order {lowest} jumps at z = {activation.kinks[0]:g}, "
        f"so that the one of order {lowest + 1} is a δ-function there",
        f"derivatives up to order {order} that are functions",
        "Ask for what exists, or use a smooth neighbour such as gelu or swish for relu, erf for a step.",
    )


@lru_cache(maxsize=256)
def _undeclared(activation: Activation, order: int) -> tuple[float, ...]:
    # edges that no kink is likely to sit on, zero and whole numbers included
    shells = 2.0 ** np.arange(-5, 5)
    edges = np.concatenate([-1.0123456789 * shells, 1.0345678912 * shells, activation.kinks])
    places = _bisect(activation, tuple(range(order + 1)), edges, 1e-7)[1]
    return tuple(np.unique(np.round(places, 5) + 0.0))
