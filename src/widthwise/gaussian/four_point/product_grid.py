"""Few inputs: one tensor grid along the principal axes of the kernel, shared by all quadruples.

The kernel of N inputs spans at most N axes, fewer when inputs are collinear, and axes of small variance need few nodes.
Where the product of the node counts is affordable this is the most accurate route, however the inputs lie.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg

from widthwise.activations import Activation, evaluate
from widthwise.gaussian.four_point.families import Orders, quadruples
from widthwise.gaussian.four_point.grids import MOST_NODES, REACH

#: Evaluations of the activation that the route may cost.
MOST_EVALUATIONS = 6e7
_CHUNK = 1 << 17


def product_grid_route(
    activation: Activation, K: np.ndarray, placed: tuple[Orders, ...], tolerance: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Values (sorted quadruples, assignments) and estimated errors, both absolute; None where it costs too much."""
    if activation.kinks:
        return None
    root = _principal_axes(K)
    accuracy = max(1e-3 * tolerance, 1e-13)
    rules = [_axis_rule(activation, float(np.abs(root[:, k]).max()), accuracy) for k in range(root.shape[1])]
    if any(rule is None for rule in rules):
        return None
    sizes = [len(rule[0]) for rule in rules if rule is not None]
    if float(np.prod(sizes, dtype=float)) * len(K) * 4 > MOST_EVALUATIONS:
        return None
    quads = quadruples(len(K)).sorted
    orders = sorted({order for assignment in placed for order in assignment})
    moved = np.searchsorted(orders, np.array(placed))
    functions = tuple(activation.derivative(order) for order in orders)
    total, size = np.zeros((len(quads), len(placed))), np.zeros((len(quads), len(placed)))
    count = int(np.prod(sizes))
    for start in range(0, count, _CHUNK):
        flat = np.arange(start, min(start + _CHUNK, count))
        index = np.unravel_index(flat, sizes)
        nodes = np.stack([rule[0][i] for rule, i in zip(rules, index, strict=True) if rule is not None], axis=1)
        weight = np.prod([rule[1][i] for rule, i in zip(rules, index, strict=True) if rule is not None], axis=0)
        padding = min(_CHUNK, count) - len(flat)
        z = np.pad(nodes @ root.T, ((0, padding), (0, 0)))
        part, absolute = _accumulate(functions, z, np.pad(weight, (0, padding)), quads, moved)
        total += np.asarray(part)
        size += np.asarray(absolute)
    return total, 10.0 * accuracy * size


def _principal_axes(K: np.ndarray) -> np.ndarray:
    values, vectors = linalg.eigh(K)
    kept = values > 1e-15 * values[-1]
    return (vectors[:, kept] * np.sqrt(values[kept]))[:, ::-1]


def _axis_rule(activation: Activation, scale: float, accuracy: float) -> tuple[np.ndarray, np.ndarray] | None:
    """The shortest rule for functions that vary like σ(scale u): Gauss–Hermite if short, else trapezoidal."""
    rules = [_gauss(nodes) for nodes in (3, 5, 7, 9, 12, 16, 20)]
    steps = [2.0 * REACH / count for count in range(32, MOST_NODES, 8)]
    rules += [_trapezoidal(step) for step in steps]
    before = None
    for rule in rules:
        now = _probe(activation, scale, rule)
        if before is not None and np.all(np.abs(now - before[1]) <= accuracy * np.abs(now).max(axis=1, keepdims=True)):
            return before[0]
        before = (rule, now)
    return None


def _gauss(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    u, w = np.polynomial.hermite_e.hermegauss(nodes)
    return u, w / np.sqrt(2.0 * np.pi)


def _trapezoidal(step: float) -> tuple[np.ndarray, np.ndarray]:
    reach = 9.0
    u = np.arange(-reach, reach + step / 2, step)
    return u, step * np.exp(-0.5 * u * u) / np.sqrt(2.0 * np.pi)


def _probe(activation: Activation, scale: float, rule: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Products of two derivatives around several centres: what an axis looks like from elsewhere on the grid."""
    centres = np.array([0.0, 0.4, -0.9, 1.7])
    z = centres[:, None] + scale * rule[0]
    values = np.stack([evaluate(activation, order, z) for order in range(4)])
    return np.stack([(values[p] * values[q] * values[1] ** 2) @ rule[1] for p in range(4) for q in range(p, 4)])


@partial(jax.jit, static_argnums=0)
def _accumulate(functions, z, weight, quads, moved):
    """Σ weight Π σ^(o_k)(z_k), and the same with absolute values, for every quadruple and assignment."""
    values = jnp.stack([function(z) for function in functions])  # (orders, nodes, inputs)

    def one(quad):
        w, x, y, u = (values[:, :, quad[k]] for k in range(4))
        terms = w[moved[:, 0]] * x[moved[:, 1]] * y[moved[:, 2]] * u[moved[:, 3]]
        return terms @ weight, jnp.abs(terms) @ weight

    return jax.lax.map(one, jnp.asarray(quads))
