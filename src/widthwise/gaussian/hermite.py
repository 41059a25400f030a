"""Two-point expectations as a series in the correlation.

With f_k(K) = ⟨f(√K u) he_k(u)⟩ over a standard normal u and normalised Hermite polynomials he_k (Mehler),
    ⟨f(z_a) g(z_b)⟩ = Σ_k f_k(K_aa) g_k(K_bb) ρ^k,        ρ = K_ab / √(K_aa K_bb).
Cutting the sum at M leaves at most |ρ|^M √(tail_f tail_g) with tail_f = ⟨f²⟩ − Σ_{k<M} f_k²: an error bound that
costs nothing. The coefficients belong to one input, so N inputs need N of them and N² short sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from math import sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, evaluate, intervals
from widthwise.activations.resolution import PANEL_NODES
from widthwise.gaussian.quadrature import COARSE_NODES, REACH, Source, basis, check_tails, panel_nodes, row_edges

#: Terms of tables, tried in turn, the first and last of them, and where a series may be cut.
TABLE_TERMS = (128, 256, 512)
SHORT_SERIES, LONG_SERIES = TABLE_TERMS[0], TABLE_TERMS[-1]
CUTS = (16, 32, 48, 64, 96, 128, 256, 512)
#: Terms that one fused loop body evaluates: the first number that divides all terms.
FUSED_TERMS = (16, 24)
#: Pairs that are left to numpy: compiling takes a third of a second, numpy some milliseconds.
MOST_PLAIN = 4096
#: Points between which coefficients are interpolated for many inputs, tried in turn.
INTERPOLATION_POINTS = (24, 48)
#: Inputs whose kernels differ by less than this factor share quadrature nodes.
_GROUP = 4.0
_TEMPORARY = 1 << 21  # numbers in one temporary array
_ROUNDING = 64 * np.finfo(float).eps


@dataclass(frozen=True)
class HermiteTable:
    """Coefficients (inputs, terms) of f = σ^(order) at each input's kernel, ⟨f²⟩ and its error.

    A derivative with point masses has no norm; it stands as infinity.
    """

    coefficients: np.ndarray
    norm: np.ndarray
    norm_error: np.ndarray

    @property
    def terms(self) -> int:
        return self.coefficients.shape[1]

    @property
    def is_function(self) -> bool:
        return bool(np.all(np.isfinite(self.norm)))

    def __getitem__(self, rows: Any) -> HermiteTable:
        """The table of some inputs."""
        some = HermiteTable(self.coefficients[rows], self.norm[rows], self.norm_error[rows])
        some.__dict__.update(parity=self.parity, tails={cut: tail[rows] for cut, tail in self.tails.items()})
        return some

    @cached_property
    def parity(self) -> int:
        """0 or 1 where up to rounding all functions are even, or all odd; 2 where they are neither."""
        least = _ROUNDING * np.sqrt(self.norm)
        for parity in (0, 1):
            if np.all(np.abs(self.coefficients[:, 1 - parity :: 2]) <= least[:, None]):
                return parity
        return 2

    @cached_property
    def tails(self) -> dict[int, np.ndarray]:
        """√(what the first M coefficients leave of ⟨f²⟩) for every cut M; with point masses, a bound on later ones."""
        result, total = {}, np.zeros(len(self.norm))
        for start, cut in zip((0, *CUTS), CUTS, strict=False):
            if cut > self.terms:
                break
            if self.is_function:
                total = total + np.einsum("ak,ak->a", *[self.coefficients[:, start:cut]] * 2)
                result[cut] = np.sqrt(np.maximum(self.norm - total, _ROUNDING * self.norm))
            else:
                result[cut] = 4.0 * np.abs(self.coefficients[:, max(0, cut - 32) : cut]).max(axis=1)
        return result


@jax.jit
def series(f, g, rho):
    """Σ_k f_k g_k ρ^k by Horner's rule; f, g have the terms on the first axis and broadcast against rho."""
    fused = next(fused for fused in FUSED_TERMS if len(f) % fused == 0)
    blocks = [jnp.flip(c.reshape(-1, fused, *c.shape[1:]), axis=0) for c in (f, g)]

    def body(total, pair):
        for k in reversed(range(fused)):
            total = total * rho + pair[0][k] * pair[1][k]
        return total, None

    return jax.lax.scan(body, jnp.zeros_like(rho), tuple(blocks))[0]


def terms_there(f: HermiteTable, g: HermiteTable, terms: int) -> slice:
    """Terms below a number of them, without those that vanish because both functions are even, or both odd."""
    both = f.parity == g.parity != 2 and terms > FUSED_TERMS[0]
    return slice(f.parity, terms, 2) if both else slice(0, terms)


def series_of_tables(f: HermiteTable, g: HermiteTable, rho: np.ndarray, terms: int) -> np.ndarray:
    """Σ_k f_k g_k ρ^k between all rows of two tables, with correlations (rows of f, rows of g)."""
    some = terms_there(f, g, terms)
    F, G = f.coefficients[:, some].T[:, :, None], g.coefficients[:, some].T[:, None, :]
    value = summed_series(F, G, rho if some.step is None else rho * rho)
    return value * rho if some.start else value


def series_of_entries(
    f: HermiteTable, rows: np.ndarray, g: HermiteTable, columns: np.ndarray, rho: np.ndarray, terms: int
) -> np.ndarray:
    """The same for single pairs of a row of f and a row of g."""
    some, value = terms_there(f, g, terms), np.empty(len(rho))
    step = rho if some.step is None else rho * rho
    for start in range(0, len(rho), MOST_PLAIN):
        part = slice(start, start + MOST_PLAIN)
        products = f.coefficients[rows[part], some]
        products *= g.coefficients[columns[part], some]
        powers = np.empty_like(products)
        powers[:, 0], powers[:, 1:] = 1.0, step[part, None]
        np.multiply.accumulate(powers, axis=1, out=powers)
        value[part] = np.einsum("ek,ek->e", products, powers)
    return value * rho if some.start else value


@partial(jax.jit, static_argnames=("first", "step", "terms"))
def series_on_device(f, g, a, b, rho, *, first: int, step: int, terms: int):
    """`series_of_tables` of the rows a and b of coefficients that are where jax computes."""
    F, G = (table[rows, first:terms:step].T for table, rows in ((f, a), (g, b)))
    value = series(F[:, :, None], G[:, None, :], rho**step)
    return value * rho if first else value


def summed_series(F: np.ndarray, G: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """Σ_k F_k G_k ρ^k with the terms on the first axis, compiled where there are many entries."""
    return _plain_series(F, G, rho) if rho.size <= MOST_PLAIN else np.array(series(F, G, rho))


def _plain_series(F: np.ndarray, G: np.ndarray, rho: np.ndarray) -> np.ndarray:
    total = np.zeros(rho.shape)
    for f, g in zip(F[::-1], G[::-1], strict=True):
        total = total * rho + f * g
    return total


@lru_cache(maxsize=16)
def remembered(activation: Activation, order: int, K: bytes, terms: int) -> HermiteTable:
    """`hermite_table` for the float64 values in K: the orders of one layer ask for the same ones again and again."""
    return hermite_table(activation, order, np.frombuffer(K), terms)


def hermite_table(activation: Activation, order: int, K: np.ndarray, terms: int) -> HermiteTable:
    """Hermite coefficients and norm of σ^(order) for each kernel value in K (inputs,)."""
    K = np.asarray(K, float)
    coefficients = np.zeros((len(K), terms))
    norm, error = np.zeros(len(K)), np.zeros(len(K))
    zero = K == 0.0
    coefficients[zero, 0] = evaluate(activation, order, np.zeros(1))[0]
    norm[zero] = coefficients[zero, 0] ** 2
    positive = np.flatnonzero(~zero)
    group = np.floor(np.log(K[positive]) / np.log(_GROUP)).astype(int)
    for label in np.unique(group):
        members = positive[group == label]
        coefficients[members], norm[members], error[members] = _group(activation, order, np.sqrt(K[members]), terms)
    if activation.atoms(order):
        norm[:] = np.inf
    return HermiteTable(coefficients, norm, error)


def _group(activation: Activation, order: int, scale: np.ndarray, terms: int):
    """Coefficients, ⟨f²⟩ and its error for inputs of similar kernel; kinks away from zero need nodes for each input."""
    spacing = 1.0 if terms <= SHORT_SERIES else 0.5
    fixed = np.arange(-REACH, REACH + spacing / 2, spacing)
    edges_z = intervals(activation, (order,), REACH * scale.max())
    if any(kink != 0.0 for kink in activation.kinks):
        edges = row_edges([Source(edges_z, np.zeros(len(scale)), scale)], fixed)
        coefficients, norm = _own_nodes(activation, order, scale, terms, edges)
    else:
        edges = shared_edges(edges_z, scale.min(), scale.max(), fixed)[None]
        coefficients, norm = _interpolated(activation, order, scale, terms, edges[0])
    check_tails(activation, order, scale, norm)
    some = np.unique(np.linspace(0, len(scale) - 1, 3).astype(int))
    u, weight = panel_nodes(edges[some % len(edges)], COARSE_NODES)
    coarse = np.sum(weight * evaluate(activation, order, scale[some, None] * u) ** 2, axis=-1)
    relative = np.abs(coarse - norm[some]) / np.maximum(norm[some], 1e-300)
    error = (relative.max() + 8 * np.finfo(float).eps) * norm
    if activation.atoms(order):
        coefficients += _atom_coefficients(activation, order, scale, terms)
    return coefficients, norm, error


def shared_edges(edges_z, smallest: float, largest: float, edges: np.ndarray) -> np.ndarray:
    """Edges in u that resolve σ(√K u) for every √K between `smallest` and `largest`."""
    width = np.append(np.diff(edges_z), np.inf)
    while True:
        near = np.minimum(np.abs(edges[:-1]), np.abs(edges[1:])) * smallest
        far = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:])) * largest
        positive = edges[1:] > 0
        first = np.maximum(np.searchsorted(edges_z, np.where(positive, near, -far), side="right") - 1, 0)
        last = np.searchsorted(edges_z, np.where(positive, far, -near), side="left")
        last = np.clip(last, first + 1, len(width) - 1)
        allowed = np.minimum.reduceat(width, np.stack([first, last], axis=1).ravel())[::2]
        wide = np.diff(edges) * largest > allowed * (1 + 1e-9)
        if not wide.any():
            return edges
        edges = np.sort(np.concatenate([edges, 0.5 * (edges[:-1] + edges[1:])[wide]]))


def _interpolated(activation: Activation, order: int, scale: np.ndarray, terms: int, edges: np.ndarray):
    """Coefficients and ⟨f²⟩ of many inputs from those at a few Chebyshev points of log √K.

    f(√K u) is analytic there: for tanh up to |Im log √K| = π/2, which leaves 1e-16 of it with 24 points. Three inputs
    are integrated by themselves, and where they are not hit to rounding, all are.
    """
    logs = np.log(scale)
    low, high = logs.min(), logs.max()
    some = np.unique(np.quantile(np.arange(len(scale)), (0.0, 0.37, 0.81)).astype(int))
    for count in INTERPOLATION_POINTS:
        if len(scale) < 2 * count or high - low < 1e-12:
            break
        angle = np.pi * (np.arange(count) + 0.5) / count
        x, weight = np.cos(angle), (-1.0) ** np.arange(count) * np.sin(angle)
        at = 0.5 * (low + high) + 0.5 * (high - low) * x
        known = _shared_nodes(activation, order, np.exp(at), terms, edges)
        apart = logs[:, None] - at
        hit = np.abs(apart) < 1e-15
        barycentric = np.where(hit.any(axis=1)[:, None], hit, weight / np.where(hit, 1.0, apart))
        barycentric /= barycentric.sum(axis=1)[:, None]
        coefficients, norm = (barycentric @ values for values in known)
        direct, square = _shared_nodes(activation, order, scale[some], terms, edges)
        least = 16 * np.finfo(float).eps * np.sqrt(square)
        if np.all(np.abs(coefficients[some] - direct) <= least[:, None]) and np.all(
            np.abs(norm[some] - square) <= 16 * np.finfo(float).eps * square
        ):
            return coefficients, norm
    return _shared_nodes(activation, order, scale, terms, edges)


def _shared_nodes(activation: Activation, order: int, scale: np.ndarray, terms: int, edges: np.ndarray):
    coefficients, norm = np.zeros((len(scale), terms)), np.zeros(len(scale))
    panels = max(1, _TEMPORARY // (terms * PANEL_NODES))
    for i in range(0, len(edges) - 1, panels):
        u, weight, weighted = _remembered_basis(edges[i : i + panels + 1].tobytes(), terms)
        many = max(1, _TEMPORARY // len(u))
        for j in range(0, len(scale), many):
            rows = slice(j, j + many)
            values = evaluate(activation, order, scale[rows, None] * u)
            coefficients[rows] += values @ weighted
            norm[rows] += np.square(values) @ weight
    return coefficients, norm


def weighted_basis(edges: bytes, terms: int, nodes: int = PANEL_NODES):
    """Points and weights of the panels between edges (float64), and weight times he_k (points, terms)."""
    u, weight = panel_nodes(np.frombuffer(edges), nodes)
    return u, weight, np.ascontiguousarray((weight * basis(u, terms)).T)


_remembered_basis = lru_cache(maxsize=16)(weighted_basis)


def _own_nodes(activation: Activation, order: int, scale: np.ndarray, terms: int, edges: np.ndarray):
    coefficients, norm = np.empty((len(scale), terms)), np.empty(len(scale))
    step = max(1, 4 * _TEMPORARY // (edges.shape[1] * PANEL_NODES * terms))
    for start in range(0, len(scale), step):
        rows = slice(start, start + step)
        u, weight = panel_nodes(edges[rows])
        values = evaluate(activation, order, scale[rows, None] * u)
        coefficients[rows] = np.einsum("kru,ru->rk", basis(u, terms), values * weight, optimize=True)
        norm[rows] = np.sum(weight * values**2, axis=-1)
    return coefficients, norm


def _atom_coefficients(activation: Activation, order: int, scale: np.ndarray, terms: int) -> np.ndarray:
    """Coefficients of Σ weight δ^(s)(z − c): weight K^{−(s+1)/2} φ(c/√K) he_{k+s}(c/√K) √((k+s)!/k!)."""
    total = np.zeros((len(scale), terms))
    k = np.arange(terms, dtype=float)
    for atom in activation.atoms(order):
        s, u = atom.order, atom.position / scale
        density = np.exp(-0.5 * u * u) / sqrt(2.0 * np.pi)
        u = np.where(density > 0.0, u, 0.0)  # where there is no density, polynomials may overflow
        growth = np.sqrt(np.prod([k + j for j in range(1, s + 1)], axis=0)) if s else 1.0
        total += atom.weight * (density / scale ** (s + 1))[:, None] * basis(u, terms + s)[s:].T * growth
    return total
