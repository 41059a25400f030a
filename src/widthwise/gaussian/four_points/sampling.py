"""The independent route: a shared low-discrepancy sample, and every quadruple as an entry of one matrix product.

Draw z ~ N(0, K) for all inputs together. The products σ^(p)(z_a) σ^(q)(z_b) of all pairs are the columns of a tall
matrix F, and FᵀF/S holds ⟨σ^(p)_a σ^(q)_b σ^(r)_c σ^(s)_d⟩ for all quadruples at once. Independently scrambled copies
of the sample give the error. Slow to converge, but blind to kinks and to how the inputs lie to each other.
"""

from __future__ import annotations

from itertools import groupby

import jax
import numpy as np
import scipy

from widthwise.activations import Activation, evaluate
from widthwise.gaussian.four_points.families import Orders, quadruples
from widthwise.gaussian.quadrature import smooth_grid

#: Scrambled copies of the sample, and points in each (a power of two).
COPIES, SAMPLE_POINTS = 24, 1 << 13
#: The stated error is this many standard errors of the mean over copies, and what so many points that all happened to
#: miss a rare event could have seen, in units of the largest value of the same kind.
SIGMAS, MISSED = 8.0, 20.0


def sample_route(
    activation: Activation, K: np.ndarray, placed: tuple[Orders, ...], points: int = SAMPLE_POINTS, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Values (sorted quadruples, assignments) and their stated errors, both absolute."""
    quads = quadruples(len(K)).sorted
    # principal axes, the widest first, so that the best coordinates of the sample carry most of the variance
    variances, vectors = scipy.linalg.eigh(K)
    kept = variances > 1e-14 * variances[-1]
    root = (vectors[:, kept] * np.sqrt(variances[kept]))[:, ::-1]
    total, square = np.zeros((2, len(quads), len(placed)))
    for copy in range(COPIES):
        rng = np.random.default_rng(seed + copy)
        uniform = scipy.stats.qmc.Sobol(root.shape[1], scramble=True, rng=rng).random(points)
        normal = scipy.special.ndtri(np.clip(uniform, 1e-16, 1.0 - 1e-16))
        mean = _one_copy(activation, normal @ root.T, quads, placed)
        total += mean
        square += mean**2
    average = total / COPIES
    variance = np.maximum(square / COPIES - average**2, 0.0) / (COPIES - 1)
    unseen = MISSED / (COPIES * points) * np.abs(average).max(axis=0)
    return average, SIGMAS * np.sqrt(variance) + unseen


#: Inputs up to which a grid on the plane of all inputs is quicker than a series for each quadruple.
MOST_ON_GRID = 16
#: Relative accuracy of the grid, the weight below which its points do not count, and what counts as no direction.
_GRID_ACCURACY, _NO_WEIGHT, _NO_VARIANCE = 1e-12, 1e-20, 1e-13


def grid_route(
    activation: Activation, K: np.ndarray, placed: tuple[Orders, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """The same with a grid instead of a sample, for inputs that all lie in one plane, as collinear ones do with a bias.

    Series over degrees converge slowly there: any two planes of inputs coincide. None for other inputs (a line needs no
    grid), for many, and for activations that are not smooth at the scale of the kernel.
    """
    scale = np.sqrt(np.diag(K))
    if not 3 <= len(K) <= MOST_ON_GRID or not np.all(scale > 0.0):
        return None
    variances, vectors = scipy.linalg.eigh(K / np.outer(scale, scale))
    grid = smooth_grid(activation, float(scale.max()) ** 2, 2, _GRID_ACCURACY)
    if variances[-3] > _NO_VARIANCE or variances[-2] <= _NO_VARIANCE or grid is None:
        return None
    root = scale[:, None] * vectors[:, -2:] * np.sqrt(np.maximum(variances[-2:], 0.0))
    weight = np.outer(grid.weight, grid.weight)
    first, second = np.nonzero(weight > _NO_WEIGHT)
    z, weight = np.stack([grid.u[first], grid.u[second]], axis=1) @ root.T, weight[first, second]
    values = _one_copy(activation, z, quadruples(len(K)).sorted, placed, weight)
    # by Hölder's inequality no product is larger than the fourth moments at the largest input
    orders = range(1 + max(order for orders in placed for order in orders))
    largest = [(evaluate(activation, order, scale.max() * grid.u) ** 4 @ grid.weight) ** 0.25 for order in orders]
    bound = _GRID_ACCURACY * np.array([np.prod([largest[order] for order in orders]) for orders in placed])
    return values, np.broadcast_to(bound, values.shape)


def _one_copy(
    activation: Activation,
    z: np.ndarray,
    quads: np.ndarray,
    placed: tuple[Orders, ...],
    weight: np.ndarray | None = None,
) -> np.ndarray:
    inputs, orders = z.shape[1], sorted({order for assignment in placed for order in assignment})
    values = {order: evaluate(activation, order, z) for order in orders}
    weight = np.full(len(z), 1.0 / len(z)) if weight is None else weight
    result = np.empty((len(quads), len(placed)))
    first, second = np.triu_indices(inputs)
    pair = np.zeros((inputs, inputs), int)
    pair[first, second] = np.arange(len(first))
    rows, columns = pair[quads[:, 0], quads[:, 1]], pair[quads[:, 2], quads[:, 3]]
    # assignments with the same two orders in front stand together: products of pairs, then one matrix product for each
    for (p, q), members in groupby(enumerate(placed), key=lambda numbered: numbered[1][:2]):
        left = weight[:, None] * values[p][:, first] * values[q][:, second]
        for column, (_, _, r, s) in members:
            product = _mean_products(left, values[r][:, first] * values[s][:, second])
            result[:, column] = np.asarray(product)[rows, columns]
    return result


@jax.jit
def _mean_products(left, right):
    return left.T @ right
