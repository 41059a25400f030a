"""Coverings, packings and Lipschitz maps of compact sets."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist, pdist

from widthwise.errors import InvalidInput


def ellipsoid_bits(axes: Any, radius: float) -> tuple[float, float]:
    """Lower and upper bound on log₂ of the least number of balls of a radius that cover {Σ(x_k/a_k)² ≤ 1} (theory §10).

    Volumes in the coordinates with a_k > ε give Σ log₂(a_k/ε) from below. From above: what lies beyond the coordinates
    with a_k > ε/√2 is shorter than ε/√2, and these are covered to ε/√2 by balls around a packing, at most
    Π 4a_k/(ε/√2) of them.

    `axes` are the semi-axes a_k ≥ 0, (dimension,), those that exceed radius/√2 at least; the radius is ε > 0.

    >>> [round(bits, 6) for bits in ellipsoid_bits([1.0, 0.5], 0.25)]
    [3.0, 8.0]
    """
    axes = np.asarray(axes, float)
    if radius <= 0.0:
        raise InvalidInput("radius", repr(radius), "a positive number")
    inner = radius / np.sqrt(2.0)
    return (float(np.log2(axes[axes > radius] / radius).sum()), float(np.log2(4.0 * axes[axes > inner] / inner).sum()))


def lipschitz_net(bits: int) -> np.ndarray:
    """2^bits functions within 1/(bits + 1) of every f on [0, 1] with |f'| ≤ 1 and f(0) = 0, in the maximum norm.

    Each is 0 on the first of bits + 1 intervals and has slope ±1 on the others. Values at the ends: (2^bits, bits + 1).

    >>> lipschitz_net(1)
    array([[ 0. , -0.5],
           [ 0. ,  0.5]])
    """
    signs = np.array(list(product((-1.0, 1.0), repeat=bits)))
    return np.cumsum(np.pad(signs, ((0, 0), (1, 0))), axis=1) / (bits + 1)


def lipschitz_packing(bits: int) -> np.ndarray:
    """2^(bits + 1) functions of the same class, slope ±1 on every interval, any two of them 2/(bits + 1) apart.

    >>> len(lipschitz_packing(2))
    8
    """
    return np.cumsum(np.array(list(product((-1.0, 1.0), repeat=bits + 1))), axis=1) / (bits + 1)


def greedy_net(points: Any, count: int) -> tuple[np.ndarray, float]:
    """Indices of `count` points of a set (points, features), each the farthest from those before it; and r.

    They begin with the first point. They and one more are r apart, and cover the set to r: its entropy number lies
    between r/2 and r.

    >>> greedy_net([[0.0], [1.0], [2.0], [3.0], [4.0]], 2)
    (array([0, 4]), 2.0)
    """
    points = np.asarray(points, float)
    chosen, nearest = [0], cdist(points[:1], points)[0]
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, cdist(points[chosen[-1:]], points)[0])
    return np.array(chosen), float(nearest.max())


def lipschitz_constants(points: Any, images: Any) -> tuple[float, float]:
    """Lipschitz constants of points → images, (count, features) each, and of its inverse.

    >>> lipschitz_constants([[0.0], [1.0], [2.0]], [[0.0], [3.0], [4.0]])
    (3.0, 1.0)
    """
    ratios = pdist(np.asarray(images, float)) / pdist(np.asarray(points, float))
    return float(ratios.max()), float(1.0 / ratios.min())


def extend(points: Any, images: Any, constant: float, at: Any, guess: Any, rounds: int = 20_000) -> np.ndarray:
    """A value at one more point that keeps a map's Lipschitz constant; Kirszbraun's theorem says that there is one.

    The value lies in the ball of radius constant × ‖at − points_j‖ about every images_j; the guess is projected on the
    ball that it is farthest out of until it is within all of them to a relative 1e-9.

    Parameters
    ----------
    points, images : (count, features) and (count, other features), the map so far.
    constant : a Lipschitz constant of the map; the search ends soon when it is not the least one.
    at : (features,), where to extend it.
    guess : (other features,), a value to begin with.

    Examples
    --------
    >>> extend([[0.0], [2.0]], [[0.0], [1.0]], 1.0, [1.0], [3.0])
    array([1.])
    """
    images, value = np.asarray(images, float), np.asarray(guess, float)
    radii = constant * np.linalg.norm(np.asarray(points, float) - at, axis=1)
    for _ in range(rounds):
        away = value - images
        lengths = np.linalg.norm(away, axis=1)
        worst = int((lengths - radii).argmax())
        if lengths[worst] <= radii[worst] * (1 + 1e-9) + 1e-15:
            return value
        value = images[worst] + away[worst] * (radii[worst] / lengths[worst])
    raise InvalidInput("constant", repr(constant), "a Lipschitz constant of the map, with room to spare")
