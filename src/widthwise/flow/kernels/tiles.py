"""Where kernels are filled in tile by tile: arrays of numpy, or of jax where it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise import devices

#: Tiles beside which one that is computed alone does not count.
MANY_TILES = 16
#: Tiles that are brought from an accelerator at a time.
FETCHED_TOGETHER = 4


class Cut(NamedTuple):
    """Inputs of a tile along one side, filled up with the last one; those it fills in, and where they stand in it."""

    inputs: np.ndarray
    own: slice
    part: slice


def sides_of(count: int, side: int) -> list[Cut]:
    """Sides of tiles that cover so many inputs; the last tile reaches back over the one before.

    >>> [(cut.inputs.tolist(), cut.own, cut.part) for cut in sides_of(5, 3)]
    [([0, 1, 2], slice(0, 3, None), slice(0, 3, None)), ([2, 3, 4], slice(3, 5, None), slice(1, 3, None))]
    """
    found = []
    for begin in range(0, count, side):
        start, stop = max(0, min(begin, count - side)), min(begin + side, count)
        inputs = np.minimum(start + np.arange(side), count - 1)
        found.append(Cut(inputs, slice(begin, stop), slice(begin - start, stop - start)))
    return found


class OnHost:
    """Kernels (layers, inputs, inputs') as numpy arrays, filled tile by tile."""

    def __init__(self, shape: tuple[int, ...], count: int, dtype: Any, mirrored: bool):
        self.arrays: list[Any] = [np.empty(shape, dtype) for _ in range(count)]
        self.mirrored = mirrored

    def each(self, fill: Callable[[Any], None], tasks: Sequence[Any]) -> Iterable[None]:
        """Fill in all tiles, some at a time."""
        if not devices.on_accelerator():
            # the first alone: cores that begin together would each compile the same programs
            alone = 1 if len(tasks) > MANY_TILES else 0
            yield from map(fill, tasks[:alone])
            yield from devices.on_all_cores(fill, tasks[alone:])
            return
        with ThreadPoolExecutor(FETCHED_TOGETHER) as pool:
            yield from pool.map(fill, tasks)

    def put(self, number: int, kernels: Sequence[Any], a: Cut, b: Cut) -> None:
        brought = [_as_kept(kernel, target.dtype, self.mirrored) if devices.on_accelerator() else (kernel,)
                   for kernel, target in zip(kernels, self.arrays, strict=True)]  # fmt: skip
        if devices.on_accelerator():
            for array in jax.tree.leaves(brought):
                array.copy_to_host_async()  # all copies begin before the first is waited for
        for target, (kernel, *turned) in zip(self.arrays, brought, strict=True):
            block = np.asarray(kernel)[a.part, b.part]
            if not self.mirrored or a is not b:
                target[number, a.own, b.own] = block
            if self.mirrored:
                # the part below the diagonal is the part above it, to the last digit
                across = np.asarray(turned[0])[b.part, a.part] if turned else block.T
                target[number, b.own, a.own] = across if a is not b else 0.5 * (block + across)

    def put_diagonal(self, diagonals: Sequence[np.ndarray]) -> None:
        index = np.arange(self.arrays[0].shape[-1])
        for target, diagonal in zip(self.arrays, diagonals, strict=False):
            target[:, index, index] = diagonal


class OnDevice(OnHost):
    """The same as arrays of jax, where it computes."""

    def __init__(self, shape: tuple[int, ...], count: int, dtype: Any, mirrored: bool):
        self.arrays, self.mirrored = [jnp.zeros(shape, dtype) for _ in range(count)], mirrored

    def each(self, fill: Callable[[Any], None], tasks: Sequence[Any]) -> Iterable[None]:
        yield from map(fill, tasks)

    def put(self, number: int, kernels: Sequence[Any], a: Cut, b: Cut) -> None:
        for place, kernel in enumerate(kernels):
            target = self.arrays[place]
            kernel = jnp.asarray(kernel)[: target.shape[1], : target.shape[2]].astype(target.dtype)
            target = _written(target, kernel, number, int(a.inputs[0]), int(b.inputs[0]))
            if self.mirrored and a is not b:
                target = _written(target, kernel.T, number, int(b.inputs[0]), int(a.inputs[0]))
            self.arrays[place] = target

    def put_diagonal(self, diagonals: Sequence[np.ndarray]) -> None:
        index = np.arange(self.arrays[0].shape[-1])
        both = zip(self.arrays, diagonals, strict=False)
        self.arrays = [target.at[:, index, index].set(diagonal.astype(target.dtype)) for target, diagonal in both]


@partial(jax.jit, static_argnums=(1, 2))
def _as_kept(kernel, dtype, turned: bool):
    """A tile, and its transpose if asked for: an accelerator rounds and turns them quicker than the host."""
    kernel = kernel.astype(dtype)
    return (kernel, kernel.T) if turned else (kernel,)


@partial(jax.jit, donate_argnums=0)
def _written(target, block, number, row, column):
    return jax.lax.dynamic_update_slice(target, block[None], (number, row, column))
