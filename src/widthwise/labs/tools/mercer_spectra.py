"""Kernels in terms of their eigenfunctions: on finitely many points, and on a sphere.

On the unit sphere of R^d with its uniform measure a kernel is a function of t = cos(angle), diagonal in spherical
harmonics: k(x·x') has the eigenvalue μ_ℓ = ∫ k(t) P_ℓ(t) dν(t) on harmonics of degree ℓ, of which there are N(d, ℓ)
(Funk–Hecke). P_ℓ is the Gegenbauer polynomial with P_ℓ(1) = 1 and dν ∝ (1 − t²)^((d−3)/2) dt the distribution of the
cosine between two random points.

A kernel L also makes a determinantal point process: random subsets of points that it finds different from each other,
P(S) = det L_S / det(1 + L). A subset contains given points with probability det M over them, M = L(1 + L)⁻¹.
"""

from __future__ import annotations

from math import comb
from typing import NamedTuple

import numpy as np
from scipy import linalg, special

from widthwise.errors import InvalidInput
from widthwise.network import check_integer


class Mercer(NamedTuple):
    """k(x, x') = Σ_p μ_p φ_p(x) φ_p(x') on points with weights w: ∫φ_pφ_q = Σ_x w φ_pφ_q = δ_pq, largest μ first."""

    values: np.ndarray
    functions: np.ndarray
    weights: np.ndarray

    def coefficients(self, f: np.ndarray) -> np.ndarray:
        """∫ f φ_p."""
        return (self.weights * f) @ self.functions

    def inner(self, f: np.ndarray, g: np.ndarray) -> float:
        """⟨f, g⟩ of the reproducing-kernel Hilbert space: Σ_p f_p g_p/μ_p."""
        return float(np.sum(self.coefficients(f) * self.coefficients(g) / self.values))


def mercer(K: np.ndarray, weights: np.ndarray, floor: float = 1e-13) -> Mercer:
    """Eigenvalues and eigenfunctions of f ↦ ∫ k(·, x') f(x') on a discrete measure of positive weights (points,).

    K (points, points) is symmetric; eigenvalues below the fraction `floor` of the largest are left out.

    >>> found = mercer(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([0.5, 0.5]))
    >>> found.values.round(12).tolist(), round(found.inner(np.array([2.0, 1.0]), np.array([5.0, 7.0])), 9)
    ([1.5, 0.5], 5.0)
    """
    K, weights = np.asarray(K, float), np.asarray(weights, float)
    if weights.shape != (len(K),) or not np.all(weights > 0.0):
        raise InvalidInput("weights", f"an array {weights.shape}", f"{len(K)} positive numbers")
    root = np.sqrt(weights)
    values, vectors = linalg.eigh(root[:, None] * K * root)
    kept = values > floor * values[-1]
    return Mercer(values[kept][::-1], (vectors[:, kept] / root[:, None])[:, ::-1], weights)


def multiplicity(dimension: int, degree: int) -> int:
    """N(d, ℓ), the number of independent harmonics of degree ℓ on the sphere of R^d.

    >>> [multiplicity(3, degree) for degree in range(4)], [multiplicity(2, degree) for degree in range(4)]
    ([1, 3, 5, 7], [1, 2, 2, 2])
    """
    d, degree = check_integer("dimension", dimension, 2), check_integer("degree", degree, 0)
    return comb(d + degree - 1, degree) - (comb(d + degree - 3, degree - 2) if degree > 1 else 0)


def polynomial(dimension: int, degree: int, t: np.ndarray) -> np.ndarray:
    """P_ℓ(t), with P_ℓ(1) = 1; Chebyshev's for d = 2, Legendre's for d = 3.

    >>> float(polynomial(3, 2, np.array(0.5)))
    -0.125
    """
    if dimension == 2:
        return special.eval_chebyt(degree, t)
    order = 0.5 * (dimension - 2)
    return special.eval_gegenbauer(degree, order, t) / special.eval_gegenbauer(degree, order, 1.0)


def cosines(dimension: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes t and weights of Gauss–Jacobi quadrature for dν; the weights sum to one.

    >>> t, weights = cosines(5, 8)
    >>> round(float(weights @ t**2), 12)        # E t² = 1/d
    0.2
    """
    check_integer("dimension", dimension, 2)
    t, weights = special.roots_jacobi(check_integer("nodes", nodes, 1), *[0.5 * (dimension - 3)] * 2)
    return t, weights / weights.sum()


def eigenvalues(dimension: int, values: np.ndarray, degrees: int) -> np.ndarray:
    """μ_0 … μ_{degrees−1} of a kernel given at the nodes of `cosines(dimension, nodes)` on the last axis: (…, degrees).

    There are at most half as many degrees as nodes.

    >>> t, _ = cosines(3, 16)
    >>> eigenvalues(3, t**2, 3).round(12).tolist()       # t² = 1/3 + (2/3) P_2, and ∫ P_2² = 1/5
    [0.333333333333, 0.0, 0.133333333333]
    """
    values = np.asarray(values, float)
    nodes = values.shape[-1]
    if 2 * degrees > nodes:
        raise InvalidInput(
            "degrees", str(degrees), f"at most {nodes // 2}, half the number of nodes", "Use more nodes."
        )
    t, weights = cosines(dimension, nodes)
    return values @ np.stack([weights * polynomial(dimension, degree, t) for degree in range(degrees)], axis=1)


def power_eigenvalue(dimension: int, power: int, degree: int) -> float:
    """∫ t^k P_ℓ(t) dν(t) in closed form: zero unless k − ℓ is even and not negative.

    By Rodrigues' formula it is Γ(a)/(2^ℓ Γ(ℓ+a)) · k!/(k−ℓ)! · B(½(k−ℓ+1), ℓ+a)/B(½, a), with a = (d−1)/2.

    >>> round(power_eigenvalue(3, 2, 2), 12), power_eigenvalue(3, 2, 1)
    (0.133333333333, 0.0)
    """
    if power < degree or (power - degree) % 2:
        return 0.0
    a = 0.5 * (dimension - 1)
    logarithm = special.gammaln(a) - special.gammaln(degree + a) - degree * np.log(2.0)
    logarithm += special.gammaln(power + 1) - special.gammaln(power - degree + 1)
    logarithm += special.betaln(0.5 * (power - degree + 1), degree + a) - special.betaln(0.5, a)
    return float(np.exp(logarithm))


def marginal_kernel(L: np.ndarray) -> np.ndarray:
    """M = L(1 + L)⁻¹: P(i ∈ S) = M_ii and P(i, j ∈ S) = M_ii M_jj − M_ij².

    >>> marginal_kernel(np.eye(2)).round(12).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    return linalg.solve(np.eye(len(L)) + L, L, assume_a="pos")


def sample_subsets(L: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Independent subsets, (count, points) of bool: which points are in.

    Chooses eigenvectors of L, symmetric and positive semi-definite, with probabilities λ/(1+λ), then points by the
    chain rule.

    >>> subsets = sample_subsets(np.diag([1e9, 1.0, 0.0]), 200, seed=0)
    >>> bool(subsets[:, 0].all()), bool(subsets[:, 2].any()), bool(60 < subsets[:, 1].sum() < 140)
    (True, False, True)
    """
    values, vectors = linalg.eigh(L)
    if values[0] < -1e-9 * max(values[-1], 1e-300):
        raise InvalidInput("L", f"a matrix with the eigenvalue {values[0]:.2g}", "a positive semi-definite matrix")
    rng = np.random.default_rng(seed)
    chosen = rng.random((count, len(L))) < np.maximum(values, 0.0) / (1.0 + np.maximum(values, 0.0))
    subsets = np.zeros((count, len(L)), bool)
    for subset, columns in zip(subsets, chosen, strict=True):
        subset[_chosen_points(vectors[:, columns], rng)] = True
    return subsets


def _chosen_points(V: np.ndarray, rng: np.random.Generator) -> list[int]:
    """One point per column of orthonormal V: with probability |row|², then the columns are made to vanish there."""
    found = []
    while V.shape[1]:
        weights = np.sum(V**2, axis=1)
        point = int(rng.choice(len(V), p=weights / weights.sum()))
        found.append(point)
        column = int(np.argmax(np.abs(V[point])))
        V = np.delete(V - np.outer(V[:, column], V[point] / V[point, column]), column, axis=1)
        V = np.linalg.qr(V)[0]
    return found
