"""`numpy.einsum` whose order of contraction is found once for each expression and shapes; jax's for arrays of jax."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def einsum(expression: str, *operands: Any) -> Any:
    """Sums of products, as in numpy; compiled where the first operand is an array of jax.

    >>> float(einsum("a,ab,b->", np.ones(2), np.eye(2), np.ones(2)))
    2.0
    """
    if isinstance(operands[0], jax.Array):
        return jnp.einsum(expression, *operands, optimize="dp")
    path = _path(expression, *(np.shape(operand) for operand in operands)) if len(operands) > 2 else False
    return np.einsum(expression, *operands, optimize=path)


@lru_cache(maxsize=4096)
def _path(expression: str, *shapes: tuple[int, ...]) -> Any:
    views = [np.broadcast_to(0.0, shape) for shape in shapes]
    # numpy takes far longer to find the same path
    return ["einsum_path", *jnp.einsum_path(expression, *views, optimize="dp")[0]]
