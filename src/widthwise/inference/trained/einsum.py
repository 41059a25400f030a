"""`numpy.einsum` whose order of contraction is found once for each expression and shapes; jax's for arrays of jax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

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

    The large one is read where it lies: by products of matrices where that can be (`_in_place`), or together with the
    product of the small ones if that is no larger. In the order of fewest products it would be copied into another
    order of its axes for each sum, which took most of the time.

    >>> float(against(np.ones((2, 2)), "ab", [(np.ones(2), "a"), (np.eye(2), "ab")], ""))
    2.0
    """
    if isinstance(large, np.ndarray):
        plan = _in_place(letters, tuple(some for _, some in small), result)
        if plan is not None:
            return _carry_out(plan, large, letters, small, result)
        # in the order of the large array, so that both are read along
        joint = "".join(at for at in dict.fromkeys(letters + result) if any(at in some for _, some in small))
        sizes = {
            at: size for values, some in [(large, letters), *small] for at, size in zip(some, values.shape, strict=True)
        }
        if math.prod(sizes[at] for at in joint) <= large.size:
            return np.einsum(f"{letters},{joint}->{result}", large, _product(small, joint))
    return _product([(large, letters), *small], result)


class _Plan(NamedTuple):
    """Operands by number: the weight, those that multiply it, those that come last; and letters.

    `block` are the letters over which the weight and the large array are summed together, besides the first letter of
    both; `free` the other letters of the weight; `outer` letters that neither has. `last` says whether the block ends
    the letters of the large array, or follows the second.
    """

    weight: int
    factors: list[int]
    rest: list[int]
    block: str
    free: str
    outer: str
    last: bool


@lru_cache(maxsize=4096)
def _in_place(letters: str, small: tuple[str, ...], result: str) -> _Plan | None:
    """How to sum a large array with a weight by products of matrices that lie as they are, if it can be done so."""
    closed = [at for at in letters if at not in result]
    touching = [number for number, some in enumerate(small) if set(some) & set(closed)]
    if len({*letters}) < len(letters) or letters[0] not in closed or not touching:
        return None
    weight = max(touching, key=lambda number: len(small[number]))
    block, factors = "".join(closed[1:]), [number for number in touching if number != weight]
    at = small[weight]
    free, outer = at[1 : len(at) - len(block)], {one for number in factors for one in small[number]} - {*block}
    lies = at[0] == letters[0] and at.endswith(block) and not {*free, *outer} & {*letters}
    if not lies or not block or outer & {*at} or not (letters.endswith(block) or letters[2:].startswith(block)):
        return None
    rest = [number for number in range(len(small)) if number not in touching]
    return _Plan(weight, factors, rest, block, free, "".join(sorted(outer)), letters.endswith(block))


def _carry_out(plan: _Plan, large: np.ndarray, letters: str, small: Sequence[tuple[Any, str]], result: str) -> Any:
    """The large array is read where it lies, once for each combination of outer letters."""
    weight, _ = small[plan.weight]
    shape = weight.shape[1 : 1 + len(plan.free)]
    factor = np.ones((1,) * len(plan.block))
    if plan.factors:
        factor = _product([small[number] for number in plan.factors], plan.outer + plan.block)
    many = factor.shape[: len(plan.outer)]
    summed = []
    for index in np.ndindex(*many):
        total: Any = 0.0
        for part, its_weight in zip(large, weight, strict=True):
            matrix = (its_weight * factor[index]).reshape(math.prod(shape), -1)
            if plan.last:
                total += (part.reshape(-1, matrix.shape[1]) @ matrix.T).reshape(*part.shape[: -len(plan.block)], *shape)
            else:
                made = matrix @ part.reshape(len(part), matrix.shape[1], -1)
                total += made.reshape(len(part), *shape, *part.shape[1 + len(plan.block) :])
        summed.append(total)
    kept = [at for at in letters[1:] if at not in plan.block]
    now = [*kept, *plan.free] if plan.last else [kept[0], *plan.free, *kept[1:]]
    whole = np.stack(summed).reshape(*many, *summed[0].shape)
    return _product([(whole, plan.outer + "".join(now)), *(small[number] for number in plan.rest)], result)


def _product(operands: Sequence[tuple[Any, str]], result: str) -> Any:
    return einsum(",".join(letters for _, letters in operands) + "->" + result, *(values for values, _ in operands))


@lru_cache(maxsize=4096)
def _path(expression: str, *shapes: tuple[int, ...]) -> Any:
    views = [np.broadcast_to(0.0, shape) for shape in shapes]
    # numpy takes far longer to find the same path
    return ["einsum_path", *jnp.einsum_path(expression, *views, optimize="dp")[0]]
