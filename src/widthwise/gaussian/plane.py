"""Two-point expectations by quadrature in the plane, for the pairs that a Hermite series does not reach.

    ⟨f(z_a) g(z_b)⟩ = ∫ φ(u) f(√K_aa u) h(u) du,    h(u) = ⟨g(√K_bb (ρu + √(1−ρ²) v))⟩_v.
The outer panels follow f, follow g through its image in u, and close in geometrically on the images of g's kinks
down to the width √(1−ρ²) over which h turns them. Slow and sure: some 10⁴ to 10⁵ evaluations a pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from widthwise.activations import Activation, Atom, evaluate, intervals
from widthwise.activations.resolution import NODES
from widthwise.gaussian.polynomials import basis
from widthwise.gaussian.quadrature import (
    COARSE_NODES,
    GAUSSIAN_EDGES,
    REACH,
    RowIntegrals,
    Source,
    panel_nodes,
    row_edges,
)
from widthwise.gaussian.single import shifted_mean

#: Outer nodes in one batch of pairs.
_BATCH = 60_000
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
        square = K_aa * K_bb
        width = np.sqrt(np.maximum(exact_determinant(K_aa, K_ab, K_bb), 0.0) / square)
        return cls(np.sqrt(K_aa), np.sqrt(K_bb), K_ab / np.sqrt(square), width)

    def __len__(self) -> int:
        return len(self.rho)

    def __getitem__(self, index) -> Pairs:
        return Pairs(self.scale_a[index], self.scale_b[index], self.rho[index], self.width[index])


def exact_determinant(K_aa: np.ndarray, K_ab: np.ndarray, K_bb: np.ndarray) -> np.ndarray:
    """K_aa K_bb − K_ab² to the last digit, by error-free products: nearly parallel inputs cancel all but a few."""
    (high, low), (square, rest) = _product(K_aa, K_bb), _product(K_ab, K_ab)
    return (high - square) + (low - rest)


def _product(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x · y as a rounded product and its rounding error (Dekker)."""
    product = x * y
    (x_high, x_low), (y_high, y_low) = _split(x), _split(y)
    error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    return product, error


def _split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shifted = 134217729.0 * x  # 2^27 + 1
    high = shifted - (shifted - x)
    return high, x - high


def plane_pair(activation: Activation, p: int, q: int, pairs: Pairs) -> RowIntegrals:
    """⟨σ^(p)(z_a) σ^(q)(z_b)⟩ for each pair; the error is the difference from a coarser rule."""
    values, errors = [], []
    together = max(1, _BATCH // (_outer_edges(activation, p, q, pairs[:1]).shape[1] * NODES))
    for start in range(0, len(pairs), together):
        some = pairs[start : start + together]
        fine, coarse = (_integral(activation, p, q, some, nodes) for nodes in (NODES, COARSE_NODES))
        values.append(fine)
        errors.append(np.abs(fine - coarse) + 1e-15 * np.abs(fine))
    return RowIntegrals(np.concatenate(values), np.concatenate(errors))


def affordable(activation: Activation, p: int, q: int, pairs: Pairs) -> np.ndarray:
    """Pairs whose integral stays below `MOST_EVALUATIONS`: fast oscillations at huge kernels do not."""
    edges_f, edges_g = (
        intervals(activation, (order,), REACH * float(scale.max()))
        for order, scale in ((p, pairs.scale_a), (q, pairs.scale_b))
    )
    outer = np.diff(np.searchsorted(edges_f, REACH * np.stack([-pairs.scale_a, pairs.scale_a])), axis=0)[0]
    both = outer + np.diff(np.searchsorted(edges_g, REACH * np.stack([-pairs.scale_b, pairs.scale_b])), axis=0)[0]
    inner = len(GAUSSIAN_EDGES) + both * pairs.width
    return (both + len(GAUSSIAN_EDGES)) * inner * NODES**2 < MOST_EVALUATIONS


def _integral(activation: Activation, p: int, q: int, pairs: Pairs, nodes: int) -> np.ndarray:
    edges = _outer_edges(activation, p, q, pairs)
    u, weight = panel_nodes(edges, nodes)
    # only nodes that carry weight go into the inner integrals
    carry = weight > 0.0
    mean = (pairs.scale_b * pairs.rho)[:, None] * u
    std = np.broadcast_to((pairs.scale_b * pairs.width)[:, None], u.shape)
    inner = np.zeros(u.shape)
    inner[carry] = shifted_mean(activation, q, mean[carry], std[carry], nodes).value
    total = np.sum(weight * evaluate(activation, p, pairs.scale_a[:, None] * u) * inner, axis=1)
    for atom in activation.atoms(p):
        total += _atom(activation, q, atom, pairs, nodes)
    return total


def _outer_edges(activation: Activation, p: int, q: int, pairs: Pairs) -> np.ndarray:
    zero = np.zeros(len(pairs))
    radius_a, radius_b = (REACH * float(s.max()) for s in (pairs.scale_a, pairs.scale_b))
    slope = pairs.scale_b * np.where(pairs.rho == 0.0, 1.0, pairs.rho)
    edges = row_edges(
        [
            Source(intervals(activation, (p,), radius_a), zero, pairs.scale_a),
            Source(intervals(activation, (q,), radius_b), zero, slope),
        ],
        GAUSSIAN_EDGES,
    )
    if not activation.kinks:
        return edges
    blur = (pairs.width / np.maximum(np.abs(pairs.rho), 1e-3))[:, None]
    steps = 2.0 ** np.arange(0, math.ceil(math.log2(8.0 / blur.min())) + 1)
    steps = np.concatenate([-steps[::-1], steps])
    extra = [np.asarray(kink) / slope[:, None] + blur * steps for kink in activation.kinks]
    return np.sort(np.clip(np.concatenate([edges, *extra], axis=1), -REACH, REACH), axis=1)


def _atom(activation: Activation, q: int, atom: Atom, pairs: Pairs, nodes: int) -> np.ndarray:
    """weight (−1)^s d^s/dz_a^s [density(z_a) ⟨σ^(q)(z_b) | z_a⟩] at the kink, by the product rule."""
    x = atom.position / pairs.scale_a
    density = np.exp(-0.5 * x * x) / (math.sqrt(2 * math.pi) * pairs.scale_a)
    slope = pairs.rho * pairs.scale_b / pairs.scale_a
    mean, std = slope * atom.position, pairs.scale_b * pairs.width
    total = np.zeros(len(pairs))
    for i in range(atom.order + 1):
        k = atom.order - i
        falling = (-1.0) ** k * basis(x, k + 1)[-1] * math.sqrt(math.factorial(k)) / pairs.scale_a**k
        given = shifted_mean(activation, q + i, mean, std, nodes).value
        total += math.comb(atom.order, i) * falling * slope**i * given
    return atom.weight * (-1.0) ** atom.order * density * total
