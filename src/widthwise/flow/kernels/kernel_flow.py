"""Infinite width: the flow of K and Θ from layer to layer (theory §2).

    K¹ = C_b + C_W x·x/n_0           Kˡ⁺¹ = C_b + C_W ⟨σ_a σ_b⟩
    Θ¹ = λ_b + λ_W x·x/n_0           Θˡ⁺¹ = λ_b + λ_W ⟨σ_a σ_b⟩ + C_W Θ_ab ⟨σ'_a σ'_b⟩

A pair of inputs never needs a third one, only its own two diagonal entries. So the diagonal flows first, for all
inputs, and then square tiles of pairs flow through all layers on their own: memory stays near that of the result,
and each entry of a symmetric kernel is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.activations import require_derivatives
from widthwise.errors import NotDifferentiable
from widthwise.flow.kernels.diagonal_flow import diagonal_flow, is_closed
from widthwise.flow.kernels.kernel_tiles import ClosedTiles, SeriesTiles
from widthwise.network import Network

#: Inputs along one side of a tile.
TILE = 384

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class KernelFlow:
    """K and Θ (layers kept, inputs, inputs'), which layers those are, how they were computed and how well."""

    layers: tuple[int, ...]
    K: np.ndarray
    Theta: np.ndarray | None
    route: str
    error: float


def check_differentiable(net: Network) -> None:
    """Θ needs ⟨σ'σ'⟩ at one input: refuse activations without it, and undeclared kinks."""
    for sigma in dict.fromkeys(net.activations):
        require_derivatives(sigma, 1, "Theta")
        if not sigma.exists_at_one_input(1, 1):
            raise NotDifferentiable(
                "activation",
                f"{sigma.name}, which jumps at z = {sigma.kinks[0]:g}",
                "a continuous activation: Theta needs ⟨σ'σ'⟩, and the square of a δ-function has no expectation",
                "Ask for K alone with tensors=['K'], or use a steep erf or sigmoid.",
            )


def kernel_flow(
    net: Network,
    X: np.ndarray,
    X2: np.ndarray | None = None,
    *,
    with_theta: bool = True,
    last_only: bool = False,
    dtype: Any = np.float64,
    progress: Progress | None = None,
) -> KernelFlow:
    """K and Θ between all rows of X, or between the rows of X and those of X2, tile by tile."""
    if with_theta:
        check_differentiable(net)
    rows = diagonal_flow(net, X, with_theta)
    columns = rows if X2 is None else diagonal_flow(net, X2, with_theta)
    layers = (net.depth,) if last_only else tuple(range(1, net.depth + 1))
    shape = (len(layers), len(X), len(X if X2 is None else X2))
    targets = [np.empty(shape, dtype) for _ in range(1 + with_theta)]
    make = ClosedTiles if is_closed(net) else SeriesTiles
    tiles = make(net, rows, columns, with_theta, last_only, np.dtype(dtype))

    def fill(a: slice, b: slice) -> None:
        gram = (X[a] @ (X if X2 is None else X2)[b].T) / net.widths[0]
        for target, block in zip(targets, tiles.flow(gram, a, b), strict=True):
            target[:, a, b] = block
            if X2 is None:
                _mirror(target, a, b)

    tasks = list(_tiles(shape[1], shape[2], X2 is None))
    for done, (a, b) in enumerate(tasks, start=1):
        fill(a, b)
        if progress is not None:
            progress(done, len(tasks))
    if X2 is None:
        index, kept = np.arange(len(X)), [layer - 1 for layer in layers]
        for target, diagonal in zip(targets, (rows.K, rows.Theta), strict=False):
            target[:, index, index] = diagonal[kept]
    error = max(tiles.error, rows.error, columns.error)
    return KernelFlow(layers, targets[0], targets[1] if with_theta else None, tiles.route, error)


def _mirror(kernel: np.ndarray, a: slice, b: slice) -> None:
    """The part below the diagonal is the part above it, to the last digit."""
    transposed = np.swapaxes(kernel[:, a, b], 1, 2)
    kernel[:, b, a] = transposed if a != b else 0.5 * (kernel[:, a, b] + transposed)


def _tiles(rows: int, columns: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    across = _blocks(columns)
    for i, a in enumerate(_blocks(rows)):
        for b in across[i if symmetric else 0 :]:
            yield a, b


def _blocks(count: int) -> list[slice]:
    """Blocks of one size, so that one compiled program serves all; the last may repeat a little of the one before."""
    size = -(-count // -(-count // TILE))
    starts = [min(start, count - size) for start in range(0, count, size)]
    return [slice(start, start + size) for start in starts]
