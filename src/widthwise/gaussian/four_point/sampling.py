"""The independent route: a shared low-discrepancy sample, and every quadruple as an entry of one matrix product.

Draw z ~ N(0, K) for all inputs together. The products σ^(p)(z_a) σ^(q)(z_b) of all pairs are the columns of a tall
matrix F, and FᵀF/S holds ⟨σ^(p)_a σ^(q)_b σ^(r)_c σ^(s)_d⟩ for all quadruples at once. Independently scrambled copies
of the sample give the error. Slow to converge, but blind to kinks and to how the inputs lie to each other.
"""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
from scipy import linalg, special
from scipy.stats import qmc

from widthwise.activations import Activation
from widthwise.gaussian.four_point.families import Orders, quadruples

#: Scrambled copies of the sample, and points in each (a power of two).
COPIES, POINTS = 24, 1 << 13
#: The stated error is this many standard errors of the mean over copies, and what so many points that all happened to
#: miss a rare event could have seen, in units of the largest value of the same kind.
SIGMAS, MISSED = 8.0, 20.0


def sample_route(
    activation: Activation, K: np.ndarray, placed: tuple[Orders, ...], points: int = POINTS, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Values (sorted quadruples, assignments) and their stated errors, both absolute."""
    quads = quadruples(len(K)).sorted
    root = _root(K)
    # quadruples in lexicographic order share (w, x): products of pairs first, then one matrix product a pair of types
    total, square = np.zeros((len(quads), len(placed))), np.zeros((len(quads), len(placed)))
    for copy in range(COPIES):
        normal = _normal_points(root.shape[1], points, seed + copy)
        mean = _one_copy(activation, normal @ root.T, quads, placed)
        total += mean
        square += mean**2
    average = total / COPIES
    variance = np.maximum(square / COPIES - average**2, 0.0) / (COPIES - 1)
    unseen = MISSED / (COPIES * points) * np.abs(average).max(axis=0)
    return average, SIGMAS * np.sqrt(variance) + unseen


def _root(K: np.ndarray) -> np.ndarray:
    """Principal axes, the widest first, so that the best coordinates of the sample carry most of the variance."""
    values, vectors = linalg.eigh(K)
    kept = values > 1e-14 * values[-1]
    return (vectors[:, kept] * np.sqrt(values[kept]))[:, ::-1]


def _normal_points(dimension: int, points: int, seed: int) -> np.ndarray:
    uniform = qmc.Sobol(dimension, scramble=True, rng=np.random.default_rng(seed)).random(points)
    return special.ndtri(np.clip(uniform, 1e-16, 1.0 - 1e-16))


def _one_copy(activation: Activation, z: np.ndarray, quads: np.ndarray, placed: tuple[Orders, ...]) -> np.ndarray:
    orders = sorted({order for assignment in placed for order in assignment})
    inputs = z.shape[1]
    values = {order: np.asarray(jax.jit(activation.derivative(order))(z)) for order in orders}
    result = np.empty((len(quads), len(placed)))
    by_pair: dict[tuple[int, int], list[int]] = {}
    for column, assignment in enumerate(placed):
        by_pair.setdefault((assignment[0], assignment[1]), []).append(column)
    first, second = np.triu_indices(inputs)
    pair = np.zeros((inputs, inputs), int)
    pair[first, second] = np.arange(len(first))
    rows, columns = pair[quads[:, 0], quads[:, 1]], pair[quads[:, 2], quads[:, 3]]
    for (p, q), members in by_pair.items():
        left = values[p][:, first] * values[q][:, second]
        for column in members:
            r, s = placed[column][2:]
            product = _product(left, values[r][:, first] * values[s][:, second])
            result[:, column] = np.asarray(product)[rows, columns]
    return result


@partial(jax.jit)
def _product(left, right):
    return left.T @ right / left.shape[0]
