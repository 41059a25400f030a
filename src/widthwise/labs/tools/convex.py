"""Convex programmes solved without looking at any training: what the limits of training are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import null_space
from scipy.optimize import linprog, nnls

from widthwise.errors import InvalidInput


@dataclass(frozen=True)
class HardMargin:
    """The support-vector machine without bias: w = Σ_i a_i z_i of least norm with z_i·w ≥ 1 for z_i = y_i x_i.

    w (features,); weights a ≥ 0 (points,), positive on support vectors only.
    """

    w: np.ndarray
    weights: np.ndarray

    @property
    def margin(self) -> float:
        """The largest margin 1/‖w‖ that a unit vector can have."""
        return float(1.0 / np.linalg.norm(self.w))


def hard_margin(Z: Any) -> HardMargin:
    """Least-norm w with Z w ≥ 1, by non-negative least squares (an active-set method, exact to rounding).

    With r the residual of min ‖(Zᵀ; 1ᵀ)u − (0; 1)‖ over u ≥ 0, w = −r_1..d/r_{d+1} and a = −u/r_{d+1}.

    Z (points, features) holds the inputs multiplied by their labels ±1.

    >>> found = hard_margin([[2.0, 0.0], [0.0, 1.0], [3.0, 3.0]])
    >>> found.w.round(9), found.weights.round(9)
    (array([0.5, 1. ]), array([0.25, 1.  , 0.  ]))
    """
    Z = np.asarray(Z, float)
    target = np.append(np.zeros(Z.shape[1]), 1.0)
    system = np.vstack([Z.T, np.ones(len(Z))])
    u, distance = nnls(system, target)
    if distance < 1e-10:
        raise InvalidInput("Z", "points that no plane through the origin separates", "linearly separable points")
    residual = system @ u - target
    return HardMargin(-residual[:-1] / residual[-1], -u / residual[-1])


def least_absolute_sum(A: Any, y: Any) -> np.ndarray:
    """argmin Σ|β_i| subject to Aβ = y, by linear programming.

    >>> least_absolute_sum([[1.0, 2.0, 0.0]], [2.0])
    array([0., 1., 0.])
    """
    A = np.asarray(A, float)
    count = A.shape[1]
    found = linprog(np.ones(2 * count), A_eq=np.hstack([A, -A]), b_eq=np.asarray(y, float), method="highs")
    if not found.success:
        raise InvalidInput("y", "targets that no β reaches", "a vector in the range of A")
    return found.x[:count] - found.x[count:]


def minimise_on_affine(
    gradient: Callable[[np.ndarray], np.ndarray],
    curvature: Callable[[np.ndarray], np.ndarray],
    A: Any,
    y: Any,
    start: Any = 0.0,
) -> np.ndarray:
    """argmin of a smooth separable convex function subject to Aβ = y, by Newton steps within the solutions.

    β = β_0 + N v, N an orthonormal basis of the null space of A; each step is halved until it no longer
    overshoots the minimum along it by much; they end where they fall below rounding. Needs derivatives only, which do
    not cancel near the minimum.

    Parameters
    ----------
    gradient, curvature : its first derivatives (features,) and second derivatives (features,), of β (features,).
    A, y : (equations, features) and (equations,).
    start : (features,), any vector to begin near to.

    Examples
    --------
    >>> minimise_on_affine(lambda b: 2 * b, lambda b: 2 + 0 * b, [[1.0, 1.0]], [1.0]).round(9)
    array([0.5, 0.5])
    """
    A, start = np.asarray(A, float), np.zeros(np.shape(A)[1]) + start
    beta, N = start + np.linalg.lstsq(A, np.asarray(y, float) - A @ start)[0], null_space(A)
    for _ in range(500):
        slope = N.T @ gradient(beta)
        step = -N @ np.linalg.solve(N.T @ (curvature(beta)[:, None] * N), slope)
        if np.abs(step).max() <= 1e-13 * np.abs(beta).max():
            return beta + step
        length, fall = 1.0, gradient(beta) @ step
        while gradient(beta + length * step) @ step > -fall / 2:
            length /= 2
        beta = beta + length * step
    raise InvalidInput(
        "gradient", "one on which 500 Newton steps did not converge", "that of a strictly convex function"
    )
