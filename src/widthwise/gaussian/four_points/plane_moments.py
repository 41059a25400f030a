"""Plane coefficients and moments, by two routes.

Smooth activations: from Hermite coefficients of single inputs. With g(z_b) = Σ_m g_m he_m(ρu_1 + √(1−ρ²) u_2) and the
addition theorem of Hermite polynomials,
    C_{i,j} = Σ_k ⟨f he_i he_k⟩ √C(k+j, j) ρ^k (1−ρ²)^{j/2} g_{k+j},
so a plane costs one small matrix product; nothing is evaluated on a two-dimensional grid.

Kinked activations: panels that break at every kink and at its image. Slow (one plane at a time) and exact up to the
degree asked for; how fast the degrees converge is the kink's own affair.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view

from widthwise import devices
from widthwise.activations import Activation, evaluate, intervals, jet
from widthwise.devices import library
from widthwise.gaussian.four_points.families import Orders
from widthwise.gaussian.quadrature import REACH, Grid, Source, basis, panel_nodes, row_edges

#: Weights of terms below this do not change a sum: the squares of all weights of a degree add up to about one.
NEGLIGIBLE_WEIGHT = 1e-18
#: Coefficients in one compiled call.
_NUMBERS = 1 << 24


class PlaneMoments(NamedTuple):
    """For each plane: coefficients (types, degree in u_1, degree in u_2), ⟨f²⟩ (types), and the moments of

    (a,a,a,b), (a,a,b,b), (a,b,b,b) for each assignment (3, assignments) and of (a,a,a,a) (assignments).
    """

    coefficients: Any
    norm: np.ndarray
    two: np.ndarray
    one: np.ndarray


class Singles(NamedTuple):
    """What single inputs contribute, on one grid.

    `values` are σ^(p) (inputs, nodes) by order, `products` Hermite coefficients (inputs, terms) of products of one to
    three derivatives by their sorted orders, and `fourth` the means (inputs) of products of four.
    """

    values: dict[int, np.ndarray]
    products: dict[Orders, np.ndarray]
    fourth: dict[Orders, np.ndarray]
    polynomials: np.ndarray
    weight: np.ndarray

    @property
    def terms(self) -> int:
        return len(self.polynomials)


def singles(activation: Activation, scale: np.ndarray, types, placed: tuple[Orders, ...], terms: int, grid: Grid):
    """Hermite data of every input, for all products that quadruples or norms ask for."""
    orders = sorted({order for pair in types for order in pair})
    values = dict(zip(orders, jet(activation, tuple(orders), scale[:, None] * grid.u), strict=True))
    polynomials = basis(grid.u, terms)
    chosen = sorted(_sub_orders(placed) | {(order, order) for order in orders})
    coefficients = np.stack([_product_of(values, c) for c in chosen]) @ (polynomials * grid.weight).T
    fours = {tuple(sorted(o)) for o in placed} | {tuple(sorted((a, a, b, b))) for a, b in types}
    fourth = {c: _product_of(values, c) @ grid.weight for c in fours}
    return Singles(values, dict(zip(chosen, coefficients, strict=True)), fourth, polynomials, grid.weight)


def _product_of(values: dict[int, np.ndarray], orders: Orders) -> np.ndarray:
    return reduce(np.multiply, [values[order] for order in orders])


@lru_cache(maxsize=64)
def _sub_orders(placed: tuple[Orders, ...]) -> frozenset[Orders]:
    """The sorted orders that one, two or three of the four factors can carry."""
    return frozenset(tuple(sorted(part)) for o in placed for count in (1, 2, 3) for part in combinations(o, count))


def series_left(found: Singles, placed, rho: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Estimate, for each plane, of what the cut of the single-input series leaves out, relative to the norms."""
    last = np.zeros(len(next(iter(found.products.values()))))
    for part in _sub_orders(placed):
        coefficients = found.products[part]
        size = np.sqrt(np.sum(coefficients**2, axis=1))
        last = np.maximum(last, np.abs(coefficients[:, -8:]).max(axis=1) / np.maximum(size, 1e-300))
    # coefficients fall off like e^{−c√k}: the rest is a few dozen times the product of the last ones
    left = 30.0 * last[first] * last[second] * np.abs(rho) ** found.terms
    return np.where(first == second, 0.0, left)


def smooth_moments(
    found: Singles, data: PlaneSeriesData, types, placed: tuple[Orders, ...], degrees: int, first, second, rho
) -> PlaneMoments:
    """Planes (first, second) with correlation rho inside; an input with itself needs no series."""
    coefficients = _all_coefficients(found, data, types, degrees, first, second, rho)
    powers, known = np.power(rho[:, None], np.arange(found.terms)), {}

    def overlap(at_a: Orders, at_b: Orders) -> np.ndarray:
        """⟨Π σ^(o)(z_a) Π σ^(o')(z_b)⟩ = Σ_k f_k g_k ρ^k for all planes; each is computed once."""
        key = tuple(sorted(at_a)), tuple(sorted(at_b))
        if key not in known:
            f, g = (found.products[orders] for orders in key)
            apart = np.einsum("nk,nk,nk->n", f[first], g[second], powers)
            together = found.fourth[tuple(sorted(at_a + at_b))][first]
            known[key] = np.where(first == second, together, apart)
        return known[key]

    norm = np.stack([overlap((a, a), (b, b)) for a, b in types], axis=1)
    two = np.stack([np.stack([overlap(o[:k], o[k:]) for o in placed], axis=1) for k in (3, 2, 1)], axis=1)
    one = np.stack([found.fourth[tuple(sorted(o))][first] for o in placed], axis=1)
    return PlaneMoments(coefficients, norm, two, one)


def _all_coefficients(found: Singles, data: PlaneSeriesData, types, degrees: int, first, second, rho) -> Any:
    """Coefficients of all planes; with an accelerator they stay there."""
    orders = sorted(found.values)
    p, q = (np.array([orders.index(pair[k]) for pair in types]) for k in (0, 1))
    alone = np.flatnonzero(first == second)
    at_alone = {order: values[first[alone]] for order, values in found.values.items()}
    straight, weighted = np.zeros((len(alone), len(types), degrees)), (found.polynomials * found.weight).T
    for number, pair in enumerate(types):
        straight[:, number, : found.terms] = (_product_of(at_alone, pair) @ weighted)[:, :degrees]
    if devices.on_accelerator():
        pieces, step = [], max(1, _NUMBERS // (len(orders) * degrees) ** 2)
        for start in range(0, len(first), step):
            places = (np.pad(x[start : start + step], (0, max(start + step - len(x), 0))) for x in (first, second, rho))
            pieces.append(_compiled_planes(data, p, q, *places))
        return jnp.concatenate(pieces)[: len(first)].at[alone].set(0.0).at[alone, :, :, 0].set(straight)
    coefficients = np.zeros((len(first), len(types), degrees, degrees))
    for row in np.flatnonzero(first != second):
        coefficients[row] = _plane_coefficients(data, first[row], second[row], rho[row])[p, q]
    coefficients[alone, :, :, 0] = straight
    return coefficients


class PlaneSeriesData(NamedTuple):
    """⟨σ^(p) he_i he_k⟩ (inputs, orders, degrees, terms), g_m (inputs, orders, terms + degrees), log √C(k+j, j).

    On an accelerator arrays of jax, else of numpy: one small product after the other needs no compiling.
    """

    links: Any
    coefficients: Any
    log_binomials: Any

    @classmethod
    def of(cls, found: Singles, degrees: int) -> PlaneSeriesData:
        orders, accelerated = sorted(found.values), devices.on_accelerator()
        values = np.stack([found.values[order] for order in orders], axis=1)
        given = found.polynomials[:degrees], found.polynomials * found.weight
        links = _compiled_links(values, *given) if accelerated else np.stack([_links(one, *given) for one in values])
        series = np.stack([found.products[order,] for order in orders], axis=1)
        j, k = np.arange(degrees)[:, None], np.arange(found.terms)
        log_factorial = scipy.special.gammaln
        log_binomials = 0.5 * (log_factorial(k + j + 1.0) - log_factorial(k + 1.0) - log_factorial(j + 1.0))
        made = cls(links, np.pad(series, ((0, 0), (0, 0), (0, degrees))), log_binomials)
        return jax.tree.map(jnp.asarray, made) if accelerated else made


def _links(values, polynomials, weighted):
    return (values[:, None, :] * polynomials) @ weighted.T


@jax.jit
def _compiled_links(values, polynomials, weighted):
    return jax.lax.map(lambda one: _links(one, polynomials, weighted), values)


def _plane_coefficients(data: PlaneSeriesData, a, b, rho):
    """C (order at a, order at b, degree in u_1, degree in u_2) of one plane."""
    xp = library(data.links)
    orders, degrees, terms = data.links.shape[1:]
    j, k = np.arange(degrees)[:, None], np.arange(terms)[None, :]
    width = xp.sqrt(xp.maximum(1.0 - rho * rho, 0.0))
    # a large negative number for log 0: 0⁰ = 1 and 0ᵏ = 0 come out right
    log_rho, log_width = (xp.log(xp.maximum(xp.abs(x), 1e-300)) for x in (rho, width))
    size = xp.exp(data.log_binomials + k * log_rho + j * log_width)
    sign = xp.where((rho < 0.0) & (k % 2 == 1), -1.0, 1.0)
    weight, links, series = sign * size, data.links[a], data.coefficients[b]
    if xp is np:
        # inputs that are little correlated need few terms
        terms = int(np.flatnonzero(size.max(axis=0) > NEGLIGIBLE_WEIGHT)[-1]) + 1
        shifted = sliding_window_view(series, terms, axis=1)[:, :degrees]  # g_{k+j}
        weight, links = weight[:, :terms], links[..., :terms]
    else:
        shifted = series[:, j + k]
    weights = shifted * weight
    product = links.reshape(-1, terms) @ weights.reshape(-1, terms).T
    return product.reshape(orders, degrees, orders, degrees).swapaxes(1, 2)


@jax.jit
def _compiled_planes(data: PlaneSeriesData, p, q, first, second, rho):
    """Coefficients (planes, types, degree in u_1, degree in u_2) of types with orders p, q."""
    return jax.vmap(lambda *place: _plane_coefficients(data, *place)[p, q])(first, second, rho)


def kinked_moments(
    activation: Activation, types, placed: tuple[Orders, ...], degrees: int, scale, first, second, rho
) -> PlaneMoments:
    """As `smooth_moments`; orders must be those for which σ^(order) is a function."""
    width = np.sqrt(np.maximum(1.0 - rho**2, 0.0))
    planes = [
        _one_kinked_plane(activation, types, placed, degrees, *map(float, plane))
        for plane in zip(scale[first], scale[second] * rho, scale[second] * width, strict=True)
    ]
    return PlaneMoments(*(np.stack(column) for column in zip(*planes, strict=True)))


def _one_kinked_plane(activation: Activation, types, placed, degrees: int, scale: float, slope: float, spread: float):
    needed = sorted({order for pair in types for order in pair})
    edges_z = intervals(activation, tuple(needed), REACH * max(scale, abs(slope) + spread))
    fixed = np.linspace(-REACH, REACH, 13)  # sixteen nodes on each resolve degrees up to about 64
    # edges in u_1: those of σ(z_a), the image of those of σ(z_b), and panels closing in on the image of its kinks
    steep = 1.0 if slope == 0.0 else slope
    edges = row_edges([Source(edges_z, np.zeros(1), np.array([image])) for image in (scale, steep)], fixed)[0]
    blur = max(spread / abs(steep), 1e-12)
    steps = blur * 2.0 ** np.arange(0, max(1, int(np.ceil(np.log2(8.0 / min(blur, 4.0)))) + 1))
    near = [kink / steep + np.concatenate([-steps, steps]) for kink in activation.kinks]
    u, weight = panel_nodes(np.sort(np.clip(np.concatenate([edges, *near]), -REACH, REACH)))
    at_a = {order: evaluate(activation, order, scale * u) for order in needed}
    v, inner = panel_nodes(row_edges([Source(edges_z, slope * u, np.full(len(u), spread))], fixed))
    z = slope * u[:, None] + spread * v
    at_b = {order: evaluate(activation, order, z) for order in needed}
    given, rows = {order: np.empty((degrees, len(u))) for order in needed}, max(1, _NUMBERS // (degrees * v.shape[1]))
    for some in (slice(start, start + rows) for start in range(0, len(u), rows)):
        polynomials = basis(v[some], degrees) * inner[some]
        for order, g in at_b.items():
            given[order][:, some] = np.einsum("juv,uv->ju", polynomials, g[some], optimize=True)
    weighted = basis(u, degrees) * weight
    coefficients = np.stack([(weighted * at_a[p]) @ given[q].T for p, q in types])

    def moment(orders_a: Orders, orders_b: Orders) -> float:
        return np.sum(weight * _product_of(at_a, orders_a) * np.sum(inner * _product_of(at_b, orders_b), axis=1))

    norm = np.array([moment((p, p), (q, q)) for p, q in types])
    two = np.array([[moment(orders[:count], orders[count:]) for orders in placed] for count in (3, 2, 1)])
    one = np.array([np.sum(weight * _product_of(at_a, orders)) for orders in placed])
    return coefficients, norm, two, one
