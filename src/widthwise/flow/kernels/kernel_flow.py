"""Infinite width: the flow of K and Θ from layer to layer (theory §2).

    K¹ = C_b + C_W x·x/n_0           Kˡ⁺¹ = C_b + C_W ⟨σ_a σ_b⟩
    Θ¹ = λ_b + λ_W x·x/n_0           Θˡ⁺¹ = λ_b + λ_W ⟨σ_a σ_b⟩ + C_W Θ_ab ⟨σ'_a σ'_b⟩

A pair of inputs never needs a third one, only its own two variances. So those flow first, for all inputs, and then
tiles of pairs flow through all layers on their own: memory stays near that of the result, and each entry of a symmetric
kernel is computed once. Tiles have few sizes and layers are taken one by one, so that few programs serve all data and
depths; what is small is left to numpy. On an accelerator tiles are large, and stay there if that is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, require_derivatives
from widthwise.activations.closed_forms import by_gain
from widthwise.blas_threads import with_one_blas_thread
from widthwise.devices import by_device, library, on_accelerator, power_of_two, usable_cores
from widthwise.errors import NotDifferentiable
from widthwise.flow.kernels.pair_series import LayerSeries
from widthwise.flow.kernels.tiles import Cut, OnDevice, OnHost, sides_of
from widthwise.flow.kernels.triangle import TriangleOfPairs
from widthwise.flow.kernels.variances import LARGEST_KERNEL, Diagonal, diagonal_flow, network_sites
from widthwise.gaussian.hermite import MOST_PLAIN, SHORT_SERIES
from widthwise.gaussian.kernel_rules import Kept, Pair, kernel_rule, reads_variances
from widthwise.gaussian.pair import PIECE, closed_pair, in_pieces
from widthwise.gaussian.sites import NO_POSITIONS, Sites, largest_entries, raw_kernel
from widthwise.memory import require_device_memory, require_memory
from widthwise.network import MLP, PER_LAYER, Affine, Dropout, Elementwise, Network
from widthwise.network.layers.base import Layer, role_fields
from widthwise.network.layers.normalisation import Normalisation
from widthwise.network.positions import layer_of

#: Sides of tiles that are compiled for, and inputs from which on they have the largest.
SIDES = {"cpu": (16, 32, 64, 128, 256), "gpu": (256, 1024, 4096)}
MANY_INPUTS = {"cpu": 400, "gpu": 4096}
#: Entries of squares that numpy computes sooner than a compiled program: up to 256 inputs.
SMALL_SQUARE = 1 << 16
#: Pairs of sites in a tile of images: with closed forms, which numpy evaluates as quickly as a compiled program in half
#: the memory, what suits the caches; without them what is worth a call for every position.
SITE_ENTRIES = {"cpu": (PIECE, 1 << 21), "gpu": (1 << 27, 1 << 27)}
#: Arrays as large as a tile that are held while it flows through a layer.
HELD_BY_A_TILE = 12


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Hyper:
    """Hyperparameters of one layer of a plain network, or of all layers stacked on the first axis."""

    C_b: Any
    C_W: Any
    lambda_b: Any
    lambda_W: Any

    @classmethod
    def of(cls, net: MLP) -> Hyper:
        return cls(*(np.asarray(getattr(net, name)) for name in PER_LAYER))

    def __getitem__(self, layer) -> Hyper:
        return jax.tree.map(lambda values: values[layer], self)


@lru_cache(maxsize=64)
def _blocks_of(net: Network, dtype: Any, plain: bool) -> tuple[tuple[Layer, ...], ...]:
    """The blocks of a network, with plain numbers or where jax computes; widths, which no rule reads, are one."""

    def unsized(layer: Layer) -> Layer:
        return replace(layer, **dict.fromkeys(role_fields(type(layer), "width"), 1))

    blocks = tuple(tuple(map(unsized, block)) for block in net.blocks)
    return jax.tree.map(float if plain else lambda number: jnp.asarray(number, dtype), blocks)


def _read_by(block: tuple[Layer, ...]) -> list[Activation]:
    """Activations whose expectations a block reads."""
    sigmas = [step.activation for step in block if isinstance(step, Elementwise)]
    return sigmas + [by_gain(sigma) for sigma in sigmas if any(isinstance(step, Affine) for step in block)]


#: ⟨σ^(p)_a σ^(p)_b⟩ at the entrance of a step of a block: (step, K_aa, K_ab, K_bb, activation, p, independent).
MeansOfSteps = Callable[..., Any]


def through_block(
    block: tuple[Layer, ...],
    K,
    Theta,
    variances: Any,
    mean: MeansOfSteps,
    sites: tuple[Sites, ...] = (),
    own: Any = None,
) -> tuple[Any, Any]:
    """K and Θ behind a block; `variances` are K of both inputs at the entrance of each of its steps.

    They may be a function that finds them in K; None where no rule reads them. `sites` are those at the entrance
    of each step and behind the last; there are none without positions. `own`: kernels of both inputs between all their
    positions, for steps that read them.
    """
    kept = Kept()
    for place, layer in enumerate(block):
        if isinstance(variances, list):
            K_aa, K_bb = variances[place]
        else:
            K_aa, K_bb = variances(K) if reads_variances(layer) else (None, None)
        here, behind = sites[place : place + 2] if sites else (NO_POSITIONS, NO_POSITIONS)
        known = own[place] if own else None
        pair = Pair(K_aa, K, K_bb, Theta, partial(mean, place, K_aa, K, K_bb), kept, here, behind, own=known)
        K, Theta = kernel_rule(layer, pair)
        if here.crossed:
            K, Theta = (behind.wanted(kernel, 2) for kernel in (K, Theta))
    return K, Theta


def _closed_block(
    block: tuple[Layer, ...], K, Theta, variances: Any, with_theta: bool, sites: tuple[Sites, ...] = (), own: Any = None
):
    """`through_block` by closed forms."""

    slopes: dict[int, tuple[Activation, Any]] = {}

    def mean(place: int, K_aa, K_ab, K_bb, activation: Activation, p: int, independent: bool = False) -> Any:
        assert activation.closed is not None
        if p and not with_theta:
            return 0.0
        if with_theta and not independent:
            if not p:
                value, slope = in_pieces(activation.closed.value_and_slope, K_aa, K_ab, K_bb)
                slopes[place] = activation, slope
                return value
            if place in slopes and slopes[place][0] is activation:
                return slopes[place][1]
        return in_pieces(partial(activation.closed.pair, p, p), K_aa, 0.0 * K_ab if independent else K_ab, K_bb)

    return through_block(block, K, Theta, variances, mean, sites, own)


_compiled_closed_block = partial(jax.jit, static_argnames=("with_theta", "sites"))(_closed_block)


@dataclass(frozen=True)
class KernelFlow:
    """K and, where it was asked for, Θ (layers kept, inputs, inputs'), which layers those are, how and how well."""

    layers: tuple[int, ...]
    K: Any
    Theta: Any
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


@with_one_blas_thread
def kernel_flow(
    net: Network,
    X: np.ndarray,
    X2: np.ndarray | None = None,
    *,
    with_theta: bool = True,
    last_only: bool = False,
    dtype: Any = np.float64,
    progress: Callable[[int, int], None] | None = None,
    device: bool = False,
) -> KernelFlow:
    """K and Θ between all rows of X, or between the rows of X and those of X2, tile by tile.

    With `device` the result is left where jax computes, as its arrays.
    """
    if with_theta:
        check_differentiable(net)
    plain = X2 is None and not device and X.ndim == 2
    small = _small_square(net, X, with_theta, last_only, dtype) if plain else None
    if small is not None:
        return small
    kept, others = 1 if last_only else net.depth, X if X2 is None else X2
    _require_room(net, X, len(others), kept, with_theta, np.dtype(dtype), device)
    # of few layers the diagonal is made at once, and tiles are what takes time
    by_layer = progress if net.depth >= 1000 else None
    rows = diagonal_flow(net, X, with_theta, by_layer)
    columns = rows if X2 is None else diagonal_flow(net, X2, with_theta, by_layer)
    layers = (net.depth,) if last_only else tuple(range(1, net.depth + 1))
    tiles = _Tiles(net, X, others, rows, columns, with_theta, dtype)
    shape = (kept, len(X), len(others))
    target = (OnDevice if device else OnHost)(shape, 1 + with_theta, dtype, mirrored=X2 is None)
    down, across = tiles.cut()
    tasks = [(a, b) for i, a in enumerate(down) for b in across[i if X2 is None else 0 :]]

    def fill(task: tuple[Cut, Cut]) -> None:
        for number, kernels in enumerate(tiles.flow(*task)):
            if not last_only or number + 1 == net.depth:
                reported = tiles.reported(number, kernels[: 1 + with_theta])
                target.put(0 if last_only else number, reported, *task)

    for done, _ in enumerate(target.each(fill, tasks), start=1):
        if progress is not None:
            progress(done, len(tasks))
    if X2 is None:
        target.put_diagonal([diagonal[[layer - 1 for layer in layers]] for diagonal in (rows.K, rows.Theta)])
    error = max(tiles.error, rows.error, columns.error)
    return KernelFlow(layers, target.arrays[0], target.arrays[1] if with_theta else None, tiles.route, error)


def _small_square(net: Network, X: np.ndarray, with_theta: bool, last_only: bool, dtype: Any) -> KernelFlow | None:
    """Kernels of few inputs by numpy, every pair once, without variances of their own; None where that is not enough.

    What is not representable is left to the route that says where it is not.
    """
    if len(X) ** 2 > SMALL_SQUARE or on_accelerator() or not _plain_and_stated(net):
        return None
    pairs, kept = TriangleOfPairs.of(len(X)), []
    with np.errstate(all="ignore"):
        K = pairs.packed(X @ X.T) / net.widths[0]
        Theta = np.zeros_like(K)
        for block in _blocks_of(net, np.float64, True):
            K, Theta = _closed_block(block, K, Theta, pairs.variances, with_theta)
            kept = [*([] if last_only else kept), (K, Theta)[: 1 + with_theta]]
    # kernels that are too large once stay so, or are not numbers
    if not all(one.min() >= -LARGEST_KERNEL and one.max() <= LARGEST_KERNEL for some in kept for one in some):
        return None
    K, *Thetas = (pairs.squares(column, dtype) for column in zip(*kept, strict=True))
    layers = (net.depth,) if last_only else tuple(range(1, net.depth + 1))
    route = "closed form" if net.activations else "input layer only"
    return KernelFlow(layers, K, Thetas[0] if Thetas else None, route, 1e-14)


@lru_cache(maxsize=64)
def _plain_and_stated(net: Network) -> bool:
    """Whether numpy can evaluate all expectations, and every layer treats pairs of equal inputs like any other."""
    if any(isinstance(step, Normalisation | Dropout) for step in net.steps):
        return False
    return all(_stated(sigma) for block in net.blocks for sigma in _read_by(block))


def _stated(sigma: Activation) -> bool:
    """Whether numpy can evaluate the closed forms that kernels need."""
    return sigma.closed is not None and all(sigma.closed.stated(p, p) for p in (0, 1))


def _require_room(
    net: Network, X: np.ndarray, columns: int, kept: int, with_theta: bool, dtype: np.dtype, device: bool
):
    rows, entry = len(X), (1 + with_theta) * kept * dtype.itemsize
    if X.ndim > 2:
        _require_room_for_sites(net, X, columns)
    tables = (
        sum(sigma.closed is None for sigma in net.activations) * (1 + with_theta) * SHORT_SERIES * 8 * (X.ndim == 2)
    )
    require_memory(
        entry * rows * columns * (not device) + tables * (rows + columns),
        f"kernels of {rows} × {columns} inputs at {kept} layers",
        lambda limit: f"What would fit: {math.isqrt(limit // entry)}² entries.",
    )
    if device:
        require_device_memory(entry * rows * columns, f"kernels of {rows} × {columns} inputs at {kept} layers")


def _require_room_for_sites(net: Network, X: np.ndarray, columns: int) -> None:
    """Refuse images of which not even one pair fits, or whose variances do not."""
    sites = network_sites(net, X)
    most = largest_entries(sites)
    place = [one.entries for one in sites].index(most)
    tile = HELD_BY_A_TILE * 8 * most * usable_cores()
    variances = 8 * (len(X) + columns) * sum(one.count for one in sites)
    require_memory(
        tile + variances,
        f"one pair of inputs of {X.shape[1:-1]} positions, {most} pairs of them at layers[{layer_of(net, place)}], "
        "in every core",
        "Take fewer positions: pool or stride the inputs, or Flatten in place of pooling at the end.",
    )


def kernels_at_positions(
    net: Network, X: np.ndarray, X2: np.ndarray | None = None, *, with_theta: bool = True
) -> tuple[Any, Any, Sites]:
    """K and Θ behind the last layer between positions, on the axes of `Sites`, all inputs at once; and those sites."""
    others = X if X2 is None else X2
    rows = diagonal_flow(net, X, with_theta)
    columns = rows if X2 is None else diagonal_flow(net, X2, with_theta)
    sites = rows.sites
    require_memory(
        HELD_BY_A_TILE * 8 * largest_entries(sites) * len(X) * len(others),
        f"kernels of {len(X)} × {len(others)} inputs at all {X.shape[1:-1]} positions", "Take fewer inputs at a time.",
    )  # fmt: skip
    tiles = _Tiles(net, X, others, rows, columns, with_theta, np.float64)
    tiles.plain = tiles.plain or not all(tiles.closed)
    a, b = (sides_of(count, count)[0] for count in (len(X), len(others)))
    *_, (K, Theta) = tiles.flow(a, b)
    return np.array(K), np.array(Theta), sites[-1]


def _gram(X, others, a: np.ndarray, b: np.ndarray, sites: Sites) -> Any:
    """x·x'/n_0 of some rows, in full precision on an accelerator too."""
    if sites.shape:
        return raw_kernel(X[a], others[b], sites, library(X))
    if isinstance(X, np.ndarray):
        return X[a] @ others[b].T / X.shape[1]
    return jnp.matmul(X[a], others[b].T, precision="highest") / X.shape[1]


def _side(count: int) -> int:
    """Of tiles that cover so many inputs without positions."""
    sides = by_device(SIDES)
    if count >= by_device(MANY_INPUTS):
        return sides[-1]
    return next((side for side in sides if side >= count), sides[-2])


class _Tiles:
    """Tiles of pairs that flow through all layers, inputs a along the rows, b along the columns."""

    def __init__(self, net: Network, X, others, rows: Diagonal, columns: Diagonal, with_theta: bool, dtype: Any):
        self.net, self.rows, self.columns, self.with_theta, self.dtype = net, rows, columns, with_theta, dtype
        place = jnp.asarray if on_accelerator() else np.asarray
        self.X, self.others = place(X), place(others)
        self.read = [_read_by(block) for block in net.blocks]
        self.closed = [all(sigma.closed is not None for sigma in read) for read in self.read]
        stated = all(_stated(sigma) for read in self.read for sigma in read if sigma.closed is not None)
        self.sites, self.with_positions = rows.sites, X.ndim > 2
        few = self.with_positions or len(X) * len(others) <= MOST_PLAIN
        self.plain = few and stated and not on_accelerator()
        self.series = {at: LayerSeries(table, columns.tables[at]) for at, table in rows.tables.items()}

    def cut(self) -> tuple[list[Cut], list[Cut]]:
        """Sides of tiles along rows and columns, the same ones where those are the same inputs."""
        both = [
            sides_of(count, count if self.plain and not self.with_positions else self._side(count))
            for count in (len(self.X), len(self.others))
        ]
        return both[0], both[0] if self.rows is self.columns else both[1]

    def _side(self, count: int) -> int:
        """Of tiles, a power of two where there are positions, such that a tile has about as many sites as is good."""
        if not self.with_positions:
            return _side(count)
        side = math.sqrt(by_device(SITE_ENTRIES)[not all(self.closed)] / largest_entries(self.sites))
        return power_of_two(min(side, count), 1, by_device(SIDES)[-1])

    @property
    def error(self) -> float:
        return max([1e-14 * any(self.closed), *(step.error for step in self.series.values())])

    @property
    def route(self) -> str:
        used = {route for step in self.series.values() for route in step.routes}
        if any(sigma.closed is not None for read in self.read for sigma in read):
            used.add("closed form")
        return " and ".join(sorted(used)) or "input layer only"

    def reported(self, number: int, kernels: Sequence[Any]) -> list[Any]:
        """Kernels of a tile behind a layer as means over equal positions."""
        behind = self.sites[sum(map(len, self.net.blocks[: number + 1]))]
        if not behind.shape:
            return list(kernels)
        # on a processor numpy takes the arrays as they are, and no program is compiled for it
        return [behind.mean(kernel if on_accelerator() else np.asarray(kernel)) for kernel in kernels]

    def flow(self, a: Cut, b: Cut) -> Iterator[tuple[Any, ...]]:
        """K and Θ of a tile behind one layer after the other, at positions where there are any."""
        exact = all(self.closed)
        number = self.dtype if exact else np.float64
        K = _gram(self.X, self.others, a.inputs, b.inputs, self.sites[0]).astype(number)
        Theta, position = 0.0 * K, 0
        for block, closed in zip(_blocks_of(self.net, number, not exact or self.plain), self.closed, strict=True):
            places = range(position, position + len(block))
            sites = self.sites[position : position + len(block) + 1] if self.with_positions else ()
            variances, own = [self._variances(p, a, b, number) for p in places], self._own(places, a, b)
            if closed:
                compute = _compiled_closed_block if (exact or sites) and not self.plain else _closed_block
                with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                    K, Theta = compute(block, K, Theta, variances, with_theta=self.with_theta, sites=sites, own=own)
            else:
                K, Theta = (np.asarray(one) for one in (K, Theta)) if sites and not on_accelerator() else (K, Theta)
                K, Theta = through_block(block, K, Theta, variances, partial(self._mean, position, a, b), sites, own)
            position += len(block)
            yield K, Theta

    def _own(self, places: range, a: Cut, b: Cut) -> list[Any] | None:
        """K between all positions of both inputs at the steps that read it; None where none does."""
        if not self.rows.own:
            return None
        both = (self.rows, a), (self.columns, b)
        return [
            tuple(side.own[p][..., cut.inputs] for side, cut in both) if p in self.rows.own else None for p in places
        ]

    def _variances(self, place: int, a: Cut, b: Cut, number: Any) -> tuple[Any, Any]:
        """K of both inputs at the entrance of a step that reads them, to be multiplied with kernels of the tile."""
        sites = self.sites[place]
        if place not in self.rows.entering:
            return None, None
        first = self.rows.entering[place][..., a.inputs, None].astype(number, copy=False)
        second = self.columns.entering[place][..., None, b.inputs].astype(number, copy=False)
        return sites.of_first(first), sites.of_second(second)

    def _mean(
        self, position: int, a: Cut, b: Cut, place: int, K_aa, K_ab, K_bb, activation: Activation, p: int,
        independent: bool = False,
    ):  # fmt: skip
        """⟨σ^(p)_a σ^(p)_b⟩ of a tile at the entrance of a step, or ⟨σ^(p)_a⟩⟨σ^(p)_b⟩."""
        if p and not self.with_theta:
            return 0.0
        K_ab = 0.0 * K_ab if independent else K_ab
        if activation.closed is not None:
            pair = closed_pair if isinstance(K_ab, np.ndarray) else type(activation.closed).pair
            return pair(activation.closed, p, p, K_aa, K_ab, K_bb)
        series, sites = self.series[position + place, activation], self.sites[position + place]
        return series.at_sites(p, K_ab, sites, a.inputs, b.inputs, len(self.X), len(self.others))
