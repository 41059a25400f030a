"""`numpy.einsum` whose order of contraction is found once for each expression and shapes; jax's for arrays of jax."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Operand(NamedTuple):
    """An array with one letter for each of its axes."""

    values: Any
    letters: str


def einsum(expression: str, *operands: Any) -> Any:
    """Sums of products, as in numpy; compiled where the first operand is an array of jax.

    >>> float(einsum("a,ab,b->", np.ones(2), np.eye(2), np.ones(2)))
    2.0
    """
    if isinstance(operands[0], jax.Array):
        return jnp.einsum(expression, *operands, optimize="dp")
    path = _path(expression, *(np.shape(operand) for operand in operands)) if len(operands) > 2 else False
    return np.einsum(expression, *operands, optimize=path)


def letter_sizes(operands: Iterable[tuple[Any, str]]) -> dict[str, int]:
    """How far each letter runs."""
    return {at: size for values, letters in operands for at, size in zip(letters, values.shape, strict=True)}


def contracted(operands: Sequence[tuple[Any, str]], result: str) -> Any:
    """`einsum` of operands that carry their letters.

    >>> float(contracted([Operand(np.ones(2), "a"), Operand(np.eye(2), "ab")], "b")[0])
    1.0
    """
    return einsum(",".join(letters for _, letters in operands) + "->" + result, *(values for values, _ in operands))


def against(large: Any, letters: str, small: Sequence[tuple[Any, str]], result: str) -> Any:
    """Sums of products of one large array with several small ones.

    The large one is read where it lies: by products of matrices where that can be (`_in_place`), or together with the
    product of the small ones if that is no larger. In the order of fewest products it would be copied into another
    order of its axes for each sum, which took most of the time.

    >>> float(against(np.ones((2, 2)), "ab", [(np.ones(2), "a"), (np.eye(2), "ab")], ""))
    2.0
    """
    if isinstance(large, np.ndarray):
        plan = _in_place(letters, tuple(its_letters for _, its_letters in small), result)
        if plan is not None:
            return _matrix_products(plan, large, letters, small, result)
        sizes = letter_sizes([(large, letters), *small])
        of_small = {letter for _, its_letters in small for letter in its_letters}
        # in the order of the large array, so that both are read along
        joint = "".join(letter for letter in dict.fromkeys(letters + result) if letter in of_small)
        if math.prod(sizes[letter] for letter in joint) <= large.size:
            return np.einsum(f"{letters},{joint}->{result}", large, contracted(small, joint))
    return contracted([(large, letters), *small], result)


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
    closed = [letter for letter in letters if letter not in result]
    touching = [number for number, its_letters in enumerate(small) if set(its_letters) & set(closed)]
    if len({*letters}) < len(letters) or letters[0] not in closed or not touching:
        return None
    weight = max(touching, key=lambda number: len(small[number]))
    block, factors = "".join(closed[1:]), [number for number in touching if number != weight]
    of_weight = small[weight]
    free = of_weight[1 : len(of_weight) - len(block)]
    outer = {letter for number in factors for letter in small[number]} - {*block}
    aligned = of_weight[0] == letters[0] and of_weight.endswith(block) and not {*free, *outer} & {*letters}
    together = letters.endswith(block) or letters[2:].startswith(block)
    if not aligned or not block or outer & {*of_weight} or not together:
        return None
    rest = [number for number in range(len(small)) if number not in touching]
    return _Plan(weight, factors, rest, block, free, "".join(sorted(outer)), letters.endswith(block))


def _matrix_products(
    plan: _Plan, large: np.ndarray, letters: str, small: Sequence[tuple[Any, str]], result: str
) -> Any:
    """The large array is read where it lies, once for each combination of outer letters."""
    weights, _ = small[plan.weight]
    free_sizes = weights.shape[1 : 1 + len(plan.free)]
    factor = np.ones((1,) * len(plan.block))
    if plan.factors:
        factor = contracted([small[number] for number in plan.factors], plan.outer + plan.block)
    outer_sizes = factor.shape[: len(plan.outer)]
    sums = []
    for index in np.ndindex(*outer_sizes):
        total: Any = 0.0
        for part, weight in zip(large, weights, strict=True):
            matrix = (weight * factor[index]).reshape(math.prod(free_sizes), -1)
            if plan.last:
                product = part.reshape(-1, matrix.shape[1]) @ matrix.T
                total += product.reshape(*part.shape[: -len(plan.block)], *free_sizes)
            else:
                product = matrix @ part.reshape(len(part), matrix.shape[1], -1)
                total += product.reshape(len(part), *free_sizes, *part.shape[1 + len(plan.block) :])
        sums.append(total)
    kept = [letter for letter in letters[1:] if letter not in plan.block]
    now = [*kept, *plan.free] if plan.last else [kept[0], *plan.free, *kept[1:]]
    whole = np.stack(sums).reshape(*outer_sizes, *sums[0].shape)
    return contracted([(whole, plan.outer + "".join(now)), *(small[number] for number in plan.rest)], result)


@lru_cache(maxsize=4096)
def _path(expression: str, *shapes: tuple[int, ...]) -> Any:
    views = [np.broadcast_to(0.0, shape) for shape in shapes]
    # numpy takes far longer to find the same path
    return ["einsum_path", *jnp.einsum_path(expression, *views, optimize="dp")[0]]
