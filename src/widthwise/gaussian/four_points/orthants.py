"""Exact four-point expectations of piecewise linear activations, by moments of Gaussian orthants.

For σ = a₊z, a₋z each quadrant of signs contributes a truncated moment M(m) = ⟨Π z_i^{m_i} θ(z_i)⟩. By parts,
    M(m) = Σ_e K_ae ⟨∂_e (z_a^{−1} Π z_i^{m_i} θ(z_i))⟩,
lowers the powers; where a bare θ(z_e) is differentiated, z_e is set to zero and one input disappears. What remains are
orthant probabilities: elementary up to three inputs, a one-dimensional integral (Plackett) for four.
"""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np

from widthwise.activations.closed_forms import PARALLEL_SHARE, homogeneous
from widthwise.gaussian.four_points.families import PAIRINGS, Orders, quadruples

_TWO_PI = 2.0 * np.pi
#: Panels in x = √(1−t) for Plackett's integral, closing in on the end where near-degenerate inputs are felt.
_EDGES = np.array([0.0, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.05, 0.2, 0.5, 1.0])
#: Added to each variance, so that rounding cannot make a degenerate matrix indefinite.
_JITTER = 4 * np.finfo(float).eps
_PLACKETT_NODES, _PLACKETT_WEIGHTS = np.polynomial.legendre.leggauss(12)


def orthant_route(closed, K: np.ndarray, placed: tuple[Orders, ...]) -> np.ndarray:
    """Values (sorted quadruples, assignments) for assignments of the orders 0 and 1 (0 alone for a step)."""
    slopes = homogeneous(closed)
    assert slopes is not None
    quads = quadruples(len(K)).sorted
    # for each input: the first input parallel to it, its sign along that line, and its scale √K
    scale, square = np.sqrt(np.diag(K)), np.outer(np.diag(K), np.diag(K))
    line = np.argmax(square - K * K <= PARALLEL_SHARE * square, axis=1)
    sign = np.where(K[np.arange(len(K)), line] < 0.0, -1.0, 1.0)
    correlation = K / np.maximum(np.outer(scale, scale), 1e-300)
    members = line[quads]  # which line each of the four inputs lies on
    values = np.zeros((len(quads), len(placed)))
    pattern = np.stack([np.argmax(members == members[:, [k]], axis=1) for k in range(4)], axis=1)
    for shape in np.unique(pattern, axis=0):
        rows = np.flatnonzero(np.all(pattern == shape, axis=1))
        lead = np.unique(shape)
        place = np.searchsorted(lead, shape)
        chosen = quads[rows][:, lead]
        along = sign[chosen]
        small = correlation[chosen[:, :, None], chosen[:, None, :]] * (along[:, :, None] * along[:, None, :])
        small[:, range(len(lead)), range(len(lead))] = 1.0 + _JITTER
        values[rows] = _by_signs(slopes, small, place, sign[quads[rows]], scale[quads[rows]], placed)
    return values


def _by_signs(slopes, correlation, place, sign, scale, placed) -> np.ndarray:
    """Sum over the signs of the lines: each gives every activation a slope, and a truncated moment."""
    positive, negative, power = slopes
    lines = correlation.shape[1]
    total = np.zeros((len(correlation), len(placed)))
    for signs in product((1.0, -1.0), repeat=lines):
        along = np.array(signs)
        direction = sign * along[place]  # the sign that each of the four preactivations has
        slope = np.prod(np.where(direction > 0, positive, negative), axis=1)
        if not slope.any():
            continue
        moments = _TruncatedMoments(correlation * np.outer(along, along))
        for column, orders in enumerate(placed):
            linear = [k for k in range(4) if power - orders[k] == 1]
            powers = tuple(int(np.sum(place[linear] == n)) for n in range(lines))
            factor = slope * np.prod((direction * scale)[:, linear], axis=1)
            total[:, column] += factor * moments.of(tuple(range(lines)), (), powers)
    return total


class _TruncatedMoments:
    """Truncated moments under many correlation matrices (quadruples, n, n) at once, each computed once.

    Extended precision where the machine has it: next to degenerate inputs the terms are far larger than their sum.
    """

    def __init__(self, covariance: np.ndarray):
        self.known: dict = {}
        self.conditioned: dict[tuple[int, ...], np.ndarray] = {(): covariance.astype(np.longdouble)}

    def given(self, zeros: tuple[int, ...]) -> np.ndarray:
        """Covariance given that the listed inputs vanish."""
        if zeros not in self.conditioned:
            before, last = self.given(zeros[:-1]), zeros[-1]
            column = before[:, :, last]
            variance = np.maximum(before[:, last, last], 1e-300)
            self.conditioned[zeros] = before - column[:, :, None] * column[:, None, :] / variance[:, None, None]
        return self.conditioned[zeros]

    def of(self, inputs: tuple[int, ...], zeros: tuple[int, ...], powers: tuple[int, ...]) -> np.ndarray:
        """⟨Π z_i^{m_i} θ(z_i)⟩ over `inputs`, given that `zeros` vanish."""
        key = (inputs, frozenset(zeros), powers)
        if key not in self.known:
            self.known[key] = self._compute(inputs, zeros, powers)
        return self.known[key]

    def _compute(self, inputs, zeros, powers) -> np.ndarray:
        K = self.given(tuple(sorted(zeros)))
        if not any(powers):
            return _orthant_probability(K[:, list(inputs)][:, :, list(inputs)])
        first = next(k for k, power in enumerate(powers) if power)
        lowered = tuple(power - (k == first) for k, power in enumerate(powers))
        total = np.zeros(len(K), K.dtype)
        for k, e in enumerate(inputs):
            if lowered[k]:
                again = tuple(power - (j == k) for j, power in enumerate(lowered))
                term = lowered[k] * self.of(inputs, zeros, again)
            else:
                rest = tuple(i for i in inputs if i != e)
                left = tuple(power for j, power in enumerate(lowered) if j != k)
                density = 1.0 / np.sqrt(_TWO_PI * np.maximum(K[:, e, e], 1e-300))
                term = density * self.of(rest, (*zeros, e), left)
            total += K[:, inputs[first], e] * term
        return total


def _orthant_probability(K: np.ndarray) -> np.ndarray:
    """P(all z_i > 0) for up to four jointly Gaussian z, one covariance matrix a row."""
    count = K.shape[1]
    if count == 0:
        return np.ones(len(K))
    if count <= 3:
        angles = np.zeros(len(K), K.dtype)
        for i, j in combinations(range(count), 2):
            # arcsin of a correlation from the determinant, which keeps its digits next to ±1
            determinant = np.maximum(K[:, i, i] * K[:, j, j] - K[:, i, j] ** 2, 0.0)
            angles += np.arctan2(K[:, i, j], np.sqrt(determinant))
        return 0.5**count + angles / (_TWO_PI * (2.0 if count == 3 else 1.0))
    scale = np.sqrt(K[:, range(count), range(count)])
    return _four_positive(np.clip(K / (scale[:, :, None] * scale[:, None, :]), -1.0, 1.0).astype(float))


def _four_positive(R: np.ndarray) -> np.ndarray:
    """Plackett: switch on the correlations between two pairs as t runs from 0 to 1.

    dP/dt = Σ_{i,j across} ρ_ij φ₂(0, 0; tρ_ij) P(z_k, z_l > 0 | z_i = z_j = 0), with t = 1 − x².
    """
    pairings = np.array(PAIRINGS)
    across = np.stack([np.sum(R[:, [p[0], p[1]]][:, :, [p[2], p[3]]] ** 2, axis=(1, 2)) for p in pairings])
    order = pairings[np.argmin(across, axis=0)]
    R = np.take_along_axis(np.take_along_axis(R, order[:, :, None], axis=1), order[:, None, :], axis=2)
    start = (0.25 + np.arcsin(R[:, 0, 1]) / _TWO_PI) * (0.25 + np.arcsin(R[:, 2, 3]) / _TWO_PI)
    total = np.zeros(len(R))
    for low, high in pairwise(_EDGES):
        for node, weight in zip(_PLACKETT_NODES, _PLACKETT_WEIGHTS, strict=True):
            x = 0.5 * (low + high) + 0.5 * (high - low) * node
            total += (high - low) * weight * x * _plackett_rate(R, 1.0 - x * x, x * x * (2.0 - x * x))
    return start + total


def _plackett_rate(R: np.ndarray, t: float, rest: float) -> np.ndarray:
    """dP/dt; `rest` is 1 − t², kept apart for its digits."""
    total = np.zeros(len(R))
    for i, j in product((0, 1), (2, 3)):
        k, m = 1 - i, 5 - j
        across = R[:, i, j]
        free = np.maximum(1.0 - across**2 + rest * across**2, 1e-300)  # 1 − t²ρ_ij²
        ki, kj, mi, mj = R[:, k, i], t * R[:, k, j], t * R[:, m, i], R[:, m, j]
        c = t * across
        # covariance of (k, m) given z_i = z_j = 0
        kk = 1.0 - (ki * ki - 2.0 * c * ki * kj + kj * kj) / free
        mm = 1.0 - (mi * mi - 2.0 * c * mi * mj + mj * mj) / free
        km = t * R[:, k, m] - (ki * mi - c * (ki * mj + kj * mi) + kj * mj) / free
        root = np.sqrt(np.maximum(kk * mm - km * km, 0.0))
        both = 0.25 + np.arctan2(km, root) / _TWO_PI
        total += across / (_TWO_PI * np.sqrt(free)) * both
    return total
