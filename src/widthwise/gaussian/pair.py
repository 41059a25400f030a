"""Two-point expectations ⟨σ^(p)(z_a) σ^(q)(z_b)⟩ with an error estimate, by closed form or by the generic route.

The generic route is a Hermite series and, for the pairs that it does not reach, quadrature:
    ⟨f(z_a) g(z_b)⟩ = ∫ φ(u) f(√K_aa u) h(u) du,    h(u) = ⟨g(√K_bb (ρu + √(1−ρ²) v))⟩_v.
The outer panels follow f, follow g through its image in u, and close in geometrically on the images of g's kinks
down to the width √(1−ρ²) over which h turns them. Slow and sure: some 10⁴ to 10⁵ evaluations a pair. Parallel inputs
lie on a line, where h is g itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from widthwise.activations import Activation, ActivationLike, Atom, evaluate, intervals, require_derivatives, resolve
from widthwise.activations.closed_forms import PARALLEL_SHARE
from widthwise.activations.resolution import PANEL_NODES
from widthwise.errors import InvalidInput, NotDifferentiable, UnknownName, shown
from widthwise.gaussian.hermite import MOST_PLAIN, TABLE_TERMS, remembered, summed_series
from widthwise.gaussian.quadrature import (
    COARSE_NODES,
    GAUSSIAN_EDGES,
    REACH,
    Source,
    basis,
    panel_nodes,
    product_edges,
    row_edges,
    shifted_mean,
)
from widthwise.network.validation import is_one_of, real_array

#: Parallel pairs integrated at once.
_LINES_AT_ONCE = 2048
#: Outer nodes in one batch of pairs.
_OUTER_NODES = 60_000
#: Entries of kernels that numpy takes at a time: temporaries of them stay in the cache of a core, and in memory that
#: the process holds. Closed forms of four times as many took three to five times as long an entry.
PIECE = 1 << 14
#: Evaluations that one pair may cost before its integral is refused.
MOST_EVALUATIONS = 5e8


@dataclass(frozen=True)
class Pairs:
    """Pairs of inputs with positive variances that are not parallel: scales √K, correlation, and √(1−ρ²)."""

    scale_a: np.ndarray
    scale_b: np.ndarray
    rho: np.ndarray
    width: np.ndarray

    @classmethod
    def of(cls, K_aa: np.ndarray, K_ab: np.ndarray, K_bb: np.ndarray) -> Pairs:
        # K_aa K_bb − K_ab² to the last digit, by error-free products: nearly parallel inputs cancel all but a few
        (high, low), (square, rest) = _exact_product(K_aa, K_bb), _exact_product(K_ab, K_ab)
        determinant = (high - square) + (low - rest)
        square = K_aa * K_bb
        width = np.sqrt(np.maximum(determinant, 0.0) / square)
        return cls(np.sqrt(K_aa), np.sqrt(K_bb), K_ab / np.sqrt(square), width)

    def __len__(self) -> int:
        return len(self.rho)

    def __getitem__(self, index) -> Pairs:
        return Pairs(self.scale_a[index], self.scale_b[index], self.rho[index], self.width[index])


def _exact_product(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x · y as a rounded product and its rounding error (Dekker)."""
    product = x * y
    (x_high, x_low), (y_high, y_low) = _split(x), _split(y)
    error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    return product, error


def _split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shifted = 134217729.0 * x  # 2^27 + 1
    high = shifted - (shifted - x)
    return high, x - high


def parallel_pair(
    activation: Activation, p: int, q: int, scale_a: np.ndarray, scale_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """⟨σ^(p)(scale_a v) σ^(q)(scale_b v)⟩ over one standard normal v, and the difference from a coarser rule.

    Antiparallel when the signs differ. Point masses of kinked activations are included where they meet a continuous
    factor (theory §1, Kinks).
    """
    value, error = np.empty(len(scale_a)), np.empty(len(scale_a))
    for start in range(0, len(scale_a), _LINES_AT_ONCE):
        rows = slice(start, start + _LINES_AT_ONCE)
        factors = (p, scale_a[rows]), (q, scale_b[rows])
        edges, sums = product_edges(activation, factors), []
        for nodes in (PANEL_NODES, COARSE_NODES):
            v, weight = panel_nodes(edges, nodes)
            f, g = (evaluate(activation, order, scale[:, None] * v) for order, scale in factors)
            sums.append(f * g * weight)
        value[rows] = sums[0].sum(axis=1)
        size = np.abs(sums[0]).sum(axis=1)
        error[rows] = np.abs(value[rows] - sums[1].sum(axis=1)) + 4 * np.finfo(float).eps * size
    for order, scale, other, other_scale in ((p, scale_a, q, scale_b), (q, scale_b, p, scale_a)):
        slope = np.divide(other_scale, scale, out=np.zeros(len(scale)), where=scale != 0.0)
        for atom in activation.atoms(order):
            value += _atom(atom, np.abs(scale), slope, lambda i, z, q=other: evaluate(activation, q + i, z))
    return value, error


def plane_pair(activation: Activation, p: int, q: int, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """⟨σ^(p)(z_a) σ^(q)(z_b)⟩ for each pair, and the difference from a coarser rule."""
    value, error = np.empty(len(pairs)), np.empty(len(pairs))
    together = max(1, _OUTER_NODES // (_outer_edges(activation, p, q, pairs[:1]).shape[1] * PANEL_NODES))
    for start in range(0, len(pairs), together):
        rows = slice(start, start + together)
        value[rows], coarse = (_integral(activation, p, q, pairs[rows], nodes) for nodes in (PANEL_NODES, COARSE_NODES))
        error[rows] = np.abs(value[rows] - coarse) + 1e-15 * np.abs(value[rows])
    return value, error


def affordable(activation: Activation, p: int, q: int, pairs: Pairs) -> np.ndarray:
    """Pairs whose integral stays below `MOST_EVALUATIONS`: fast oscillations at huge kernels do not."""
    both = np.zeros(len(pairs))
    for order, scale in ((p, pairs.scale_a), (q, pairs.scale_b)):
        edges = intervals(activation, (order,), REACH * float(scale.max()))
        both += np.diff(np.searchsorted(edges, REACH * np.stack([-scale, scale])), axis=0)[0]
    inner = len(GAUSSIAN_EDGES) + both * pairs.width
    return (both + len(GAUSSIAN_EDGES)) * inner * PANEL_NODES**2 < MOST_EVALUATIONS


def _integral(activation: Activation, p: int, q: int, pairs: Pairs, nodes: int) -> np.ndarray:
    u, weight = panel_nodes(_outer_edges(activation, p, q, pairs), nodes)
    # only nodes that carry weight go into the inner integrals
    carry, std = weight > 0.0, pairs.scale_b * pairs.width
    mean = (pairs.scale_b * pairs.rho)[:, None] * u
    inner = np.zeros(u.shape)
    inner[carry] = shifted_mean(activation, q, mean[carry], np.broadcast_to(std[:, None], u.shape)[carry], nodes)
    total = np.sum(weight * evaluate(activation, p, pairs.scale_a[:, None] * u) * inner, axis=1)
    slope = pairs.rho * pairs.scale_b / pairs.scale_a
    for atom in activation.atoms(p):
        total += _atom(atom, pairs.scale_a, slope, lambda i, z: shifted_mean(activation, q + i, z, std, nodes))
    return total


def _outer_edges(activation: Activation, p: int, q: int, pairs: Pairs) -> np.ndarray:
    slope = pairs.scale_b * np.where(pairs.rho == 0.0, 1.0, pairs.rho)
    edges = row_edges([
        Source(intervals(activation, (order,), REACH * float(scale.max())), np.zeros(len(pairs)), image)
        for order, scale, image in ((p, pairs.scale_a, pairs.scale_a), (q, pairs.scale_b, slope))
    ])  # fmt: skip
    if not activation.kinks:
        return edges
    blur = (pairs.width / np.maximum(np.abs(pairs.rho), 1e-3))[:, None]
    steps = 2.0 ** np.arange(0, math.ceil(math.log2(8.0 / blur.min())) + 1)
    steps = np.concatenate([-steps[::-1], steps])
    extra = [np.asarray(kink) / slope[:, None] + blur * steps for kink in activation.kinks]
    return np.sort(np.clip(np.concatenate([edges, *extra], axis=1), -REACH, REACH), axis=1)


def _atom(atom: Atom, scale: np.ndarray, slope: np.ndarray, given: Callable[..., np.ndarray]) -> np.ndarray:
    """weight (−1)^s d^s/dz_a^s [density(z_a) ⟨σ^(q)(z_b) | z_a⟩] at the kink, by the product rule.

    z_b follows z_a with `slope`, and given(i, z_b) is ⟨σ^(q+i)(z_b) | z_a⟩. Not a number where z_a does not vary.
    """
    total = np.zeros(len(scale))
    with np.errstate(divide="ignore", invalid="ignore"):
        x = atom.position / scale
        density = np.exp(-0.5 * x * x) / (math.sqrt(2 * math.pi) * scale)
        for i in range(atom.order + 1):
            k = atom.order - i
            falling = (-1.0) ** k * basis(x, k + 1)[-1] * math.sqrt(math.factorial(k)) / scale**k
            total += math.comb(atom.order, i) * falling * slope**i * given(i, slope * atom.position)
        return atom.weight * (-1.0) ** atom.order * density * total


#: Series results are accepted below this error, relative to √(⟨f²⟩⟨g²⟩); the plane takes over above it.
SERIES_TOLERANCE = 1e-12


class Expectation(NamedTuple):
    """A value, an estimate of its absolute error, and the route that produced it."""

    value: np.ndarray
    error: np.ndarray
    route: str


def expectation(
    activation: ActivationLike,
    K_aa: Any,
    K_ab: Any = None,
    K_bb: Any = None,
    *,
    orders: tuple[int, int] = (0, 0),
    method: str = "auto",
) -> Expectation:
    """⟨σ^(p)(z_a) σ^(q)(z_b)⟩ over a centred Gaussian pair, (p, q) = `orders` (theory §1, §2).

    `K_aa`, `K_ab`, `K_bb` broadcast against each other; with `K_aa` alone both factors see the same input. `method`
    is "closed", "generic", or "auto" (closed where there is one). Derivatives with respect to the kernel are
    expectations too: ∂/∂K_ab raises both orders by one, 2∂/∂K_aa raises p by two (see `kernel_derivative`).

    >>> e = expectation("relu", 2.0, 1.0, 2.0)
    >>> round(float(e.value), 12), e.route
    (0.608997781044, 'closed form')
    >>> generic = expectation("relu", 2.0, 1.0, 2.0, method="generic")
    >>> bool(abs(generic.value - e.value) <= max(float(generic.error), 1e-12))
    True
    """
    activation = resolve(activation)
    p, q = _two_orders(orders)
    if not is_one_of(method, ("auto", "closed", "generic")):
        raise UnknownName.of("method", method, ("auto", "closed", "generic"))
    if method == "closed" and activation.closed is None:
        raise InvalidInput("method", f"'closed' for {activation.name}", "an activation with a closed form",
                           "Use method='generic'.")  # fmt: skip
    require_derivatives(activation, max(p, q), f"⟨σ^({p}) σ^({q})⟩")
    given = (K_aa, K_aa, K_aa) if K_ab is None else (K_aa, K_ab, K_bb)
    kernel = _broadcast([real_array(K, name) for name, K in zip(("K_aa", "K_ab", "K_bb"), given, strict=True)])
    shape = kernel[0].shape
    K_aa, K_ab, K_bb = (K.ravel() for K in kernel)
    _check_kernel(K_aa, K_ab, K_bb)
    if not activation.exists_at_one_input(p, q) and np.any(is_parallel(K_aa, K_ab, K_bb)):
        raise NotDifferentiable(
            "orders",
            f"({p}, {q}) for {activation.name} at coincident or parallel inputs",
            f"a product that exists there: σ^({int(activation.first_jump)}) jumps at z = {activation.kinks[0]:g}",
            "Use distinct inputs, lower orders, or a smooth activation such as gelu, swish or softplus.",
        )
    if activation.closed is not None and method != "generic":
        value = np.asarray(activation.closed.pair(p, q, K_aa, K_ab, K_bb))
        result = Expectation(value, 1e-14 * np.abs(value), "closed form")
    else:
        result = generic_pair(activation, p, q, K_aa, K_ab, K_bb)
    return Expectation(result.value.reshape(shape), result.error.reshape(shape), result.route)


def kernel_derivative(orders: tuple[int, int], with_respect_to: str) -> tuple[float, tuple[int, int]]:
    """∂⟨σ^(p)_a σ^(q)_b⟩/∂K as (factor, orders): 1 and (p+1, q+1) for "ab", ½ and (p+2, q) for "aa", likewise "bb".

    >>> kernel_derivative((0, 0), "ab")
    (1.0, (1, 1))
    >>> kernel_derivative((1, 0), "aa")
    (0.5, (3, 0))
    """
    p, q = _two_orders(orders)
    known = {"ab": (1.0, (p + 1, q + 1)), "aa": (0.5, (p + 2, q)), "bb": (0.5, (p, q + 2))}
    if not is_one_of(with_respect_to, known):
        raise UnknownName.of("with_respect_to", with_respect_to, known)
    return known[with_respect_to]


def generic_pair(activation: Activation, p: int, q: int, K_aa, K_ab, K_bb) -> Expectation:
    """The route for any activation, on flat arrays: series where its bound is small, quadrature elsewhere."""
    value, error = np.zeros(len(K_aa)), np.zeros(len(K_aa))
    parallel = is_parallel(K_aa, K_ab, K_bb)
    routes = []
    if parallel.any():
        scale_b = np.where(K_ab[parallel] < 0.0, -1.0, 1.0) * np.sqrt(K_bb[parallel])
        value[parallel], error[parallel] = parallel_pair(activation, p, q, np.sqrt(K_aa[parallel]), scale_b)
        routes.append("line quadrature")
    rest = np.flatnonzero(~parallel)
    if len(rest):
        routes += _series_then_plane(activation, p, q, K_aa, K_ab, K_bb, rest, value, error)
    return Expectation(value, error, " and ".join(routes) or "nothing to do")


def _series_then_plane(activation, p, q, K_aa, K_ab, K_bb, rest, value, error) -> list[str]:
    a, b = K_aa[rest], K_bb[rest]
    square = a * b
    rho = np.divide(K_ab[rest], np.sqrt(square), out=np.zeros(len(rest)), where=square > 0.0)
    kernels, where = np.unique(np.concatenate([a, b]), return_inverse=True)
    at_a, at_b = where[: len(a)], where[len(a) :]
    for terms in TABLE_TERMS:
        f, g = (remembered(activation, order, kernels.tobytes(), terms) for order in (p, q))
        functions = f.is_function and g.is_function
        # a bound on what the series leaves out, from the tails of both tables; point masses have no norm
        share = np.abs(rho) ** terms / (1.0 if functions else np.maximum(1.0 - np.abs(rho), 1e-300))
        left = f.tails[terms][at_a] * g.tails[terms][at_b] * share
        value[rest] = summed_series(f.coefficients[at_a].T, g.coefficients[at_b].T, rho)
        scale = np.sqrt(f.norm[at_a] * g.norm[at_b]) if functions else np.abs(value[rest])
        hard = (left > SERIES_TOLERANCE * scale) & (square > 0.0)
        if not hard.any():
            break
    error[rest] = left + 1e-15 * scale
    index = rest[hard]
    pairs = Pairs.of(K_aa[index], K_ab[index], K_bb[index])
    if len(index):
        possible = affordable(activation, p, q, pairs)
        index, pairs = index[possible], pairs[possible]
    if len(index):
        value[index], error[index] = plane_pair(activation, p, q, pairs)
    return ["Hermite series"] * (len(index) < len(rest)) + ["plane quadrature"] * (len(index) > 0)


def is_parallel(K_aa, K_ab, K_bb) -> np.ndarray:
    """Inputs that coincide up to scale and rounding, including those of zero variance paired with themselves."""
    square = K_aa * K_bb
    return (square - K_ab * K_ab <= PARALLEL_SHARE * square) & ((square > 0.0) | ((K_aa == K_bb) & (K_aa == K_ab)))


def pair_matrix(activation: Activation, p: int, q: int, K: np.ndarray) -> tuple[np.ndarray, float]:
    """⟨σ^(p)_a σ^(q)_b⟩ on (a, b), and the largest error relative to the largest entry.

    Entries of kinked activations that do not exist (coinciding or parallel inputs) are left at zero: whatever uses them
    there must use `line_derivative` instead.
    """
    a, b = np.triu_indices(len(K)) if p == q else (index.ravel() for index in np.indices(K.shape))
    K_aa, K_ab, K_bb = np.diag(K)[a], np.where(a == b, np.diag(K)[a], K[a, b]), np.diag(K)[b]
    exists = np.ones(len(a), bool)
    if not activation.exists_at_one_input(p, q):
        exists = ~is_parallel(K_aa, K_ab, K_bb)
    values, error = np.zeros(len(a)), 0.0
    kernel = (K_aa[exists], K_ab[exists], K_bb[exists])
    if activation.closed is not None:
        values[exists] = closed_pair(activation.closed, p, q, *kernel)
    elif exists.any():
        found = generic_pair(activation, p, q, *kernel)
        values[exists] = found.value
        error = float(found.error.max() / max(np.abs(found.value).max(), 1e-300))
    matrix = np.zeros(K.shape)
    matrix[a, b] = values
    if p == q:
        matrix[b, a] = values
    return matrix, error


def in_pieces(function: Callable[..., Any], K_aa: Any, K_ab: Any, K_bb: Any) -> Any:
    """A function of kernels, one array or several of the shape of K_ab, of some entries at a time where those are many.

    Arrays of jax go through it as they are.

    >>> in_pieces(lambda a, ab, b: a * b - ab**2, np.full((2, 1), 3.0), np.ones((2, 1 << 14)), np.ones(1)).max()
    np.float64(2.0)
    """
    if not isinstance(K_ab, np.ndarray) or K_ab.size <= PIECE:
        return function(K_aa, K_ab, K_bb)
    kernel, found = np.broadcast_arrays(K_aa, K_ab, K_bb), None
    axis = next(place for place, length in enumerate(K_ab.shape) if length > 1)
    length = K_ab.shape[axis]
    together = max(1, PIECE * length // K_ab.size)
    for start in range(0, length, together):
        part = (slice(None),) * axis + (slice(start, start + together),)
        made = in_pieces(function, *(one[part] for one in kernel))
        several = isinstance(made, tuple)
        if found is None:
            found = [np.empty(K_ab.shape, one.dtype) for one in (made if several else (made,))]
        for whole, one in zip(found, made if several else (made,), strict=True):
            whole[part] = one
    assert found is not None
    return tuple(found) if several else found[0]


def closed_pair(closed, p: int, q: int, K_aa, K_ab, K_bb) -> np.ndarray:
    """A closed form of numpy arrays: plainly where the formula is stated, else compiled."""
    kernel = np.broadcast_arrays(K_aa, K_ab, K_bb)
    if closed.stated(p, q):
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return in_pieces(partial(closed.pair, p, q), *kernel)
    # short arrays share a size, as compiling costs more than evaluating
    size, shape = kernel[0].size, kernel[0].shape
    more = (1 << max(8, (size - 1).bit_length() | 1)) - size if size < MOST_PLAIN else 0
    flat = (np.pad(K.ravel(), (0, more), constant_values=end) for K, end in zip(kernel, (1.0, 0.0, 1.0), strict=True))
    return np.asarray(_compiled_pair(closed, p, q, *flat))[:size].reshape(shape)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled_pair(closed, p: int, q: int, K_aa, K_ab, K_bb):
    return closed.pair(p, q, K_aa, K_ab, K_bb)


def line_derivative(activation: Activation, p: int, q: int, order: int, scale_a: float, scale_b: float) -> float:
    """⟨dⁿ/dz_aⁿ [σ^(p)(z_a) σ^(q)(z_b)]⟩ with z_a = scale_a u, z_b = scale_b u one variable (n = `order`).

    By parts it is ⟨√n! he_n(u) σ^(p) σ^(q)⟩ / scale_aⁿ, which exists for kinked activations too (theory §1, Stein).
    """
    u, weight = (
        x[0] for x in panel_nodes(product_edges(activation, [(p, np.array([scale_a])), (q, np.array([scale_b]))]))
    )
    product = evaluate(activation, p, scale_a * u) * evaluate(activation, q, scale_b * u)
    polynomial = basis(u, order + 1)[-1] * math.sqrt(math.factorial(order))
    return float(np.sum(weight * product * polynomial)) / scale_a**order


def _two_orders(orders) -> tuple[int, int]:
    try:
        p, q = (int(o) for o in orders)
        if p < 0 or q < 0 or (p, q) != tuple(orders):
            raise ValueError
    except Exception:  # of the caller's object, too
        raise InvalidInput(
            "orders", shown(orders), "two non-negative integers, the derivatives of σ at a and b"
        ) from None
    return p, q


def _broadcast(kernel: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    try:
        return np.broadcast_arrays(*kernel)
    except ValueError:
        shapes = ", ".join(str(K.shape) for K in kernel)
        raise InvalidInput("K_aa, K_ab, K_bb", f"shapes {shapes}", "shapes that fit together") from None


def _check_kernel(K_aa, K_ab, K_bb):
    for name, K in (("K_aa", K_aa), ("K_ab", K_ab), ("K_bb", K_bb)):
        if not np.all(np.isfinite(K)) or (name != "K_ab" and np.any(K < 0.0)):
            bad = K[~np.isfinite(K) | ((K < 0.0) & (name != "K_ab"))][0]
            raise InvalidInput(name, f"{bad:g}", "finite kernel entries, with non-negative variances")
    excess = K_ab * K_ab > K_aa * K_bb * (1 + 1e-9)
    if np.any(excess):
        i = np.flatnonzero(excess)[0]
        raise InvalidInput("K_ab", f"{K_ab[i]:g} with K_aa = {K_aa[i]:g}, K_bb = {K_bb[i]:g}",
                           "|K_ab| ≤ √(K_aa K_bb)", "The kernel must be positive semidefinite.")  # fmt: skip
