"""Two-point expectations by quadrature, for the pairs that a Hermite series does not reach.

    ⟨f(z_a) g(z_b)⟩ = ∫ φ(u) f(√K_aa u) h(u) du,    h(u) = ⟨g(√K_bb (ρu + √(1−ρ²) v))⟩_v.
The outer panels follow f, follow g through its image in u, and close in geometrically on the images of g's kinks
down to the width √(1−ρ²) over which h turns them. Slow and sure: some 10⁴ to 10⁵ evaluations a pair. Parallel inputs
lie on a line, where h is g itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from widthwise.activations import Activation, Atom, evaluate, intervals
from widthwise.activations.resolution import PANEL_NODES
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

#: Parallel pairs integrated at once.
_LINES_AT_ONCE = 2048
#: Outer nodes in one batch of pairs.
_OUTER_NODES = 60_000
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
    (high, low), (square, rest) = _exact_product(K_aa, K_bb), _exact_product(K_ab, K_ab)
    return (high - square) + (low - rest)


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
