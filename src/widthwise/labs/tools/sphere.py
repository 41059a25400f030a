"""Kernels of inputs on a sphere: functions of t = cos(angle), diagonal in spherical harmonics.

On the unit sphere of R^d with its uniform measure, k(x·x') has the eigenvalue μ_ℓ = ∫ k(t) P_ℓ(t) dν(t) on harmonics of
degree ℓ, of which there are N(d, ℓ) (Funk–Hecke). P_ℓ is the Gegenbauer polynomial with P_ℓ(1) = 1 and
dν ∝ (1 − t²)^((d−3)/2) dt the distribution of the cosine between two random points.
"""

from __future__ import annotations

from math import comb

import numpy as np
from scipy import special

from widthwise.errors import InvalidInput
from widthwise.network.validation import check_integer


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
    """μ_0 … μ_{degrees−1} of a kernel given at the nodes of `cosines(dimension, len(values))`.

    Parameters
    ----------
    values : k(t) at the nodes, on the last axis.
    degrees : at most half the number of nodes.

    Returns
    -------
    Array (…, degrees).

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
