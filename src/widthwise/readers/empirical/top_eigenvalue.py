"""The largest eigenvalue of a symmetric matrix known by its products, in as few of them as an error allows (Lanczos).

A product with the kernel of a large model takes a second: the iteration ends as soon as the error that it states is
below what was asked, and may start from a vector that is near.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from widthwise.errors import InvalidInput

#: Products after which nothing is orthogonal any more, or the matrix is no symmetric one.
_MOST_PRODUCTS = 300


@dataclass(frozen=True, eq=False)
class TopEigenvalue:
    """The value from below, with its `error`, its unit `vector`, and how many `products` it took."""

    value: float
    error: float
    vector: np.ndarray
    products: int

    @classmethod
    def of(
        cls, product: Callable[[np.ndarray], np.ndarray], start: np.ndarray, tolerance: float, products: int
    ) -> TopEigenvalue:
        """By at most so many products v → Av; earlier if the error is below `tolerance` times the value.

        The error of a Ritz value θ with residual r is at most r, and about r²/gap, the gap to the next value. That is
        estimated from the next Ritz value, which lies below it: twice r²/gap is stated, and three products are too few.

        >>> found = TopEigenvalue.of(lambda v: np.array([1.0, 2.0, 9.0]) * v, np.ones(3), 1e-9, 30)
        >>> round(found.value, 9), found.products
        (9.0, 3)
        """
        size = start.size
        basis = np.empty((min(products, size, _MOST_PRODUCTS), size))
        diagonal, beside = np.empty(len(basis)), np.empty(len(basis))
        v, found = start / np.linalg.norm(start), None
        for k in range(len(basis)):
            basis[k] = v
            image = product(v)
            if not np.isfinite(image).all():
                raise InvalidInput("model", "a kernel whose products are NaN or infinite", "finite derivatives")
            diagonal[k] = v @ image
            for _ in range(2):  # once leaves the rounding of what was taken off
                image = image - basis[: k + 1].T @ (basis[: k + 1] @ image)
            beside[k] = np.linalg.norm(image)
            T = np.diag(diagonal[: k + 1]) + np.diag(beside[:k], 1) + np.diag(beside[:k], -1)
            values, vectors = np.linalg.eigh(T)
            top, residual = float(values[-1]), float(beside[k] * abs(vectors[-1, -1]))
            gap = top - values[-2] if k else 0.0
            error = min(residual, 2.0 * residual**2 / gap) if gap > 0.0 else residual
            exhausted = k + 1 == size or beside[k] <= 1e-14 * max(abs(top), abs(diagonal[0]))
            found = cls(top, 0.0 if exhausted else error, basis[: k + 1].T @ vectors[:, -1], k + 1)
            if exhausted or (k > 2 and error <= tolerance * top):
                break
            v = image / beside[k]
        assert found is not None
        return found
