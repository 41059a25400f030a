"""Plane coefficients and moments of smooth activations, from Hermite coefficients of single inputs.

With g(z_b) = Σ_m g_m he_m(ρu_1 + √(1−ρ²) u_2) and the addition theorem of Hermite polynomials,
    C_{i,j} = Σ_k ⟨f he_i he_k⟩ √C(k+j, j) ρ^k (1−ρ²)^{j/2} g_{k+j},
so a plane costs one small matrix product; nothing is evaluated on a two-dimensional grid.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import gammaln

from widthwise import devices
from widthwise.activations import Activation, evaluate
from widthwise.gaussian.four_point.families import Orders
from widthwise.gaussian.four_point.geometry import library
from widthwise.gaussian.four_point.grids import Grid
from widthwise.gaussian.polynomials import basis

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
    values = {order: evaluate(activation, order, scale[:, None] * grid.u) for order in orders}

    def product(chosen):
        return np.prod([values[order] for order in chosen], axis=0)

    polynomials = basis(grid.u, terms)
    chosen = sorted(_parts(placed) | {(order, order) for order in orders})
    coefficients = np.stack([product(c) for c in chosen]) @ (polynomials * grid.weight).T
    fours = {tuple(sorted(o)) for o in placed} | {tuple(sorted((a, a, b, b))) for a, b in types}
    fourth = {c: product(c) @ grid.weight for c in fours}
    return Singles(values, dict(zip(chosen, coefficients, strict=True)), fourth, polynomials, grid.weight)


def _parts(placed: tuple[Orders, ...]) -> set[Orders]:
    """The sorted orders that one, two or three of the four factors can carry."""
    return {tuple(sorted(part)) for o in placed for count in (1, 2, 3) for part in combinations(o, count)}


def series_left(found: Singles, placed, rho: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Estimate, for each plane, of what the cut of the single-input series leaves out, relative to the norms."""
    last = np.zeros(len(next(iter(found.products.values()))))
    for part in _parts(placed):
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
    overlap = _Overlaps(found, first, second, rho)
    norm = np.stack([overlap((a, a), (b, b)) for a, b in types], axis=1)
    two = np.stack([np.stack([overlap(o[:k], o[k:]) for o in placed], axis=1) for k in (3, 2, 1)], axis=1)
    one = np.stack([found.fourth[tuple(sorted(o))][first] for o in placed], axis=1)
    return PlaneMoments(coefficients, norm, two, one)


def _all_coefficients(found: Singles, data: PlaneSeriesData, types, degrees: int, first, second, rho) -> Any:
    """Coefficients of all planes; with an accelerator they stay there."""
    orders = sorted(found.values)
    p, q = (np.array([orders.index(pair[k]) for pair in types]) for k in (0, 1))
    alone = np.flatnonzero(first == second)
    straight = np.zeros((len(alone), len(types), degrees))
    for number, pair in enumerate(types):
        series = _two_factors(found, pair, first[alone])[:, :degrees]
        straight[:, number, : series.shape[1]] = series
    if devices.on_accelerator():
        pieces, step = [], max(1, _NUMBERS // (len(orders) * degrees) ** 2)
        for start in range(0, len(first), step):
            places = (np.pad(x[start : start + step], (0, max(start + step - len(x), 0))) for x in (first, second, rho))
            pieces.append(_compiled_planes(data, p, q, *places))
        return jnp.concatenate(pieces)[: len(first)].at[alone].set(0.0).at[alone, :, :, 0].set(straight)
    coefficients = np.zeros((len(first), len(types), degrees, degrees))
    for row in np.flatnonzero(first != second):
        coefficients[row] = _plane(data, first[row], second[row], rho[row])[p, q]
    coefficients[alone, :, :, 0] = straight
    return coefficients


def _two_factors(found: Singles, pair: tuple[int, int], inputs: np.ndarray) -> np.ndarray:
    """Coefficients (inputs, terms) of σ^(p) σ^(q) at some inputs."""
    return (found.values[pair[0]][inputs] * found.values[pair[1]][inputs]) @ (found.polynomials * found.weight).T


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
        made = cls(links, np.pad(series, ((0, 0), (0, 0), (0, degrees))), _log_binomials(degrees, found.terms))
        return jax.tree.map(jnp.asarray, made) if accelerated else made


def _links(values, polynomials, weighted):
    return (values[:, None, :] * polynomials) @ weighted.T


@jax.jit
def _compiled_links(values, polynomials, weighted):
    return jax.lax.map(lambda one: _links(one, polynomials, weighted), values)


def _plane(data: PlaneSeriesData, a, b, rho):
    """C (order at a, order at b, degree in u_1, degree in u_2) of one plane."""
    xp = library(data.links)
    orders, degrees, terms = data.links.shape[1:]
    j, k = np.arange(degrees)[:, None], np.arange(terms)[None, :]
    width = xp.sqrt(xp.maximum(1.0 - rho * rho, 0.0))
    size = xp.exp(data.log_binomials + k * _log(rho, xp) + j * _log(width, xp))
    sign = xp.where((rho < 0.0) & (k % 2 == 1), -1.0, 1.0)
    series = data.coefficients[b]
    shifted = sliding_window_view(series, terms, axis=1)[:, :degrees] if xp is np else series[:, j + k]  # g_{k+j}
    weights = shifted * (sign * size)
    product = data.links[a].reshape(-1, terms) @ weights.reshape(-1, terms).T
    return product.reshape(orders, degrees, orders, degrees).swapaxes(1, 2)


@jax.jit
def _compiled_planes(data: PlaneSeriesData, p, q, first, second, rho):
    """Coefficients (planes, types, degree in u_1, degree in u_2) of types with orders p, q."""
    return jax.vmap(lambda *place: _plane(data, *place)[p, q])(first, second, rho)


def _log_binomials(degrees: int, terms: int) -> np.ndarray:
    """log √C(k+j, j) for j < degrees, k < terms."""
    j, k = np.arange(degrees)[:, None], np.arange(terms)[None, :]
    return 0.5 * (gammaln(k + j + 1.0) - gammaln(k + 1.0) - gammaln(j + 1.0))


def _log(x, xp: Any):
    """log |x|, a large negative number for zero: 0⁰ = 1 and 0ᵏ = 0 come out right."""
    return xp.log(xp.maximum(xp.abs(x), 1e-300))


class _Overlaps:
    """⟨Π σ^(o)(z_a) Π σ^(o')(z_b)⟩ = Σ_k f_k g_k ρ^k for lists of planes; each is computed once."""

    def __init__(self, found: Singles, first, second, rho):
        self.found, self.first, self.second = found, first, second
        self.powers = np.power(rho[:, None], np.arange(found.terms))
        self.alone = first == second
        self.known: dict[tuple, np.ndarray] = {}

    def __call__(self, at_a: Orders, at_b: Orders) -> np.ndarray:
        key = tuple(sorted(at_a)), tuple(sorted(at_b))
        if key not in self.known:
            f, g = (self.found.products[orders] for orders in key)
            apart = np.einsum("nk,nk,nk->n", f[self.first], g[self.second], self.powers)
            together = self.found.fourth[tuple(sorted(at_a + at_b))][self.first]
            self.known[key] = np.where(self.alone, together, apart)
        return self.known[key]
