"""`numpy.einsum` whose order of contraction is found once for each expression and shapes; jax's for arrays of jax."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def against(large: Any, letters: str, small: Sequence[tuple[Any, str]], result: str) -> Any:
    """Sums of products of one large array with several small ones.

    The small ones come first wherever their product is no larger than the large one: that is then read once, where it
    lies. In the order of fewest products it would be copied into another order of its axes for each sum.

    >>> float(against(np.ones((2, 2)), "ab", [(np.ones(2), "a"), (np.eye(2), "ab")], ""))
    2.0
    """
    joint = "".join(sorted({at for _, some in small for at in some} & {*letters, *result}))
    sizes = {
        at: size for values, some in [(large, letters), *small] for at, size in zip(some, values.shape, strict=True)
    }
    fits = math.prod(sizes[at] for at in joint) <= large.size
    if isinstance(large, np.ndarray) and fits:
        product = einsum(",".join(some for _, some in small) + "->" + joint, *(values for values, _ in small))
        return np.einsum(f"{letters},{joint}->{result}", large, product)
    return einsum(",".join([letters, *(some for _, some in small)]) + "->" + result, large, *(v for v, _ in small))


@lru_cache(maxsize=4096)
def _path(expression: str, *shapes: tuple[int, ...]) -> Any:
    views = [np.broadcast_to(0.0, shape) for shape in shapes]
    # numpy takes far longer to find the same path
    return ["einsum_path", *jnp.einsum_path(expression, *views, optimize="dp")[0]]
