"""Kernels between positions of inputs, and the linear maps over positions of convolution and pooling (theory §13).

A site is an input at a position. Kernels of a tile of inputs a × b stand on the axes
    (*shape, a, b)           between equal positions p of both inputs, or
    (*shape, *shape, a, b)   between all positions p of the first and q of the second,
positions first, so that moving a window moves whole blocks of pairs. Without positions both are (a, b). Kernels of
inputs with themselves have one axis of inputs at the end in place of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from widthwise.devices import library
from widthwise.memory import require_memory
from widthwise.network import Layer
from widthwise.network.layers.windows import Slide


@dataclass(frozen=True)
class Sites:
    """Positions of kernels: their shape, and whether those of both inputs run independently of each other."""

    shape: tuple[int, ...] = ()
    crossed: bool = False

    @property
    def dimensions(self) -> int:
        return len(self.shape)

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def entries(self) -> int:
        """Pairs of positions for one pair of inputs."""
        return self.count ** (1 + self.crossed)

    def window_mean(self, kernel: Any, slides: Sequence[Slide]) -> Any:
        """The mean over the entries o of a window of the kernel at p + o and q + o: what fresh weights leave."""
        for axis, slide in enumerate(slides):
            axes = (axis, axis + self.dimensions) if self.crossed else (axis,)
            kernel = _slid(kernel, axes, slide)
        kernel /= prod(slide.size for slide in slides)
        return kernel

    def pooled(self, kernel: Any, slides: Sequence[Slide]) -> Any:
        """The sum over all entries o, o' of two windows of the kernel at p + o and q + o'."""
        assert self.crossed or not self.shape
        for axis, slide in enumerate(slides):
            for own in (axis, axis + self.dimensions):
                kernel = _slid(kernel, (own,), slide)
        return kernel

    def outer(self, values: np.ndarray) -> Any:
        """values_p values_q of numbers at every position."""
        many = values[..., None, None]
        if not self.crossed:
            return many * many
        return self.of_first(many) * self.of_second(many)

    def of_first(self, values: Any) -> Any:
        """Numbers (*shape, …) of sites of the first input, to be multiplied with kernels."""
        if not self.crossed:
            return values
        rest = values.shape[self.dimensions :]
        return values.reshape(*self.shape, *(1,) * self.dimensions, *rest)

    def of_second(self, values: Any) -> Any:
        """The same for the second input."""
        return values.reshape(*(1,) * self.dimensions, *values.shape) if self.crossed else values

    def equal_positions(self, kernel: Any) -> Any:
        """The kernel between equal positions alone: (*shape, …)."""
        if not self.crossed:
            return kernel
        rest, every = kernel.shape[2 * self.dimensions :], np.arange(self.count)
        return kernel.reshape(self.count, self.count, *rest)[every, every].reshape(*self.shape, *rest)

    def narrowed(self, kernel: Any, to: Sites) -> Any:
        """The kernel where other sites want it."""
        return self.equal_positions(kernel) if self.crossed and not to.crossed else kernel

    def wanted(self, kernel: Any, inputs: int) -> Any:
        """A kernel behind a step, of these sites or of all pairs of their positions; with so many axes of inputs."""
        if self.crossed or not self.shape or kernel.ndim == self.dimensions + inputs:
            return kernel
        return replace(self, crossed=True).equal_positions(kernel)

    def mean(self, kernel: Any) -> Any:
        """The mean over equal positions: what is reported, and what leaves a `Flatten`."""
        if not self.shape:
            return kernel
        return self.equal_positions(kernel).mean(axis=tuple(range(self.dimensions)))

    def total(self, kernel: Any, average: bool) -> Any:
        """The sum, or the mean, over all positions of both inputs."""
        axes = tuple(range((1 + self.crossed) * self.dimensions))
        return kernel.mean(axis=axes) if average else kernel.sum(axis=axes)

    def same(self, factor: Any) -> Any:
        """A factor on the kernel of a site with itself, 1 elsewhere, for kernels of inputs with themselves."""
        if not self.crossed:
            return factor
        eye = np.eye(self.count).reshape(*self.shape, *self.shape, 1)
        return 1.0 + (factor - 1.0) * eye


NO_POSITIONS = Sites()


def largest_entries(sites: Sequence[Sites]) -> int:
    """Most pairs of positions that are held for one pair of inputs."""
    return max(one.entries for one in sites)


def _slid(kernel: Any, axes: tuple[int, ...], slide: Slide) -> Any:
    """Σ_o of the kernel moved by the entries o of a window along all the axes together: a new array."""
    xp = library(kernel)
    if (slide.before or slide.after) and (slide.wraps or xp is not np):
        widths = [(slide.before, slide.after) if axis in axes else (0, 0) for axis in range(kernel.ndim)]
        padded = prod(length + sum(ends) for length, ends in zip(kernel.shape, widths, strict=True))
        require_memory(
            8 * padded,
            f"{kernel.shape[axes[0]]} positions with {slide.before + slide.after} of padding",
            "Take a smaller window, dilation or padding.",
        )
        kernel = xp.pad(kernel, widths, mode="wrap" if slide.wraps else "constant")
        slide = slide._replace(before=0, after=0)
    shape, moves = _moves(slide, axes, kernel.shape)
    if xp is not np:
        return sum(kernel[positions] for _, positions in moves)
    # in place: fresh memory costs a processor more than the sums
    (_, positions), *rest = moves
    total = kernel[positions].copy()
    if total.shape != shape:
        total, rest = np.zeros(shape, kernel.dtype), moves
    for windows, positions in rest:
        total[windows] += kernel[positions]
    return total


@lru_cache(maxsize=256)
def _moves(slide: Slide, axes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], list[Any]]:
    """The shape behind a window; for each of its entries the windows that have it on a position, and those positions.

    The entry that most windows have on a position comes first.
    """
    count, moves = slide.count(shape[axes[0]]), []
    for entry in slide.entries_met(count, shape[axes[0]]):
        met = slide.met(entry, count, shape[axes[0]])
        every = [[own if axis in axes else slice(None) for axis in range(len(shape))] for own in met]
        moves.append((met[0].start - met[0].stop, entry, *map(tuple, every)))
    behind = tuple(count if axis in axes else length for axis, length in enumerate(shape))
    return behind, [(windows, positions) for *_, windows, positions in sorted(moves, key=lambda move: move[:2])]


def raw_kernel(X: Any, others: Any, sites: Sites, xp: Any = np) -> Any:
    """x·x' over channels, divided by their number, for inputs (a, *shape, channels) and (b, *shape, channels)."""
    channels = X.shape[-1]
    left, right = (xp.moveaxis(one.reshape(len(one), -1, channels), 1, 0) for one in (X, others))  # (p, a, channels)
    precise = {} if xp is np else {"precision": "highest"}
    if not sites.crossed:
        kernel = xp.matmul(left, xp.swapaxes(right, 1, 2), **precise)
        return kernel.reshape(*sites.shape, len(X), len(others)) / channels
    kernel = xp.matmul(left.reshape(-1, channels), right.reshape(-1, channels).T, **precise)
    kernel = xp.swapaxes(kernel.reshape(sites.count, len(X), sites.count, len(others)), 1, 2)
    return kernel.reshape(*sites.shape, *sites.shape, len(X), len(others)) / channels


def raw_kernel_of_each(X: np.ndarray, sites: Sites) -> np.ndarray:
    """The same of every input with itself: (*positions, a)."""
    rows = X.reshape(len(X), -1, X.shape[-1])
    if sites.crossed:
        kernel = np.moveaxis(np.matmul(rows, np.swapaxes(rows, 1, 2)), 0, -1)
        return kernel.reshape(*sites.shape, *sites.shape, len(X)) / X.shape[-1]
    return np.einsum("apc,apc->pa", rows, rows).reshape(*sites.shape, len(X)) / X.shape[-1]


def sites_of(steps: Sequence[Layer], shapes: Sequence[tuple[int, ...]], to_the_end: bool = False) -> tuple[Sites, ...]:
    """Sites at the entrance of each step and behind the last.

    Positions are crossed up to the last step that reads covariances between different ones, and never where none does;
    or `to_the_end`.
    """
    last = max((number for number, step in enumerate(steps) if step.reads_all_positions), default=-1)
    last = len(steps) if to_the_end else last
    return tuple(replace(Sites(shape), crossed=bool(shape) and place <= last) for place, shape in enumerate(shapes))
