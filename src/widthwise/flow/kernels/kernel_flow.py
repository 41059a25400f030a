"""Infinite width: the flow of K and Θ from layer to layer (theory §2).

    K¹ = C_b + C_W x·x/n_0           Kˡ⁺¹ = C_b + C_W ⟨σ_a σ_b⟩
    Θ¹ = λ_b + λ_W x·x/n_0           Θˡ⁺¹ = λ_b + λ_W ⟨σ_a σ_b⟩ + C_W Θ_ab ⟨σ'_a σ'_b⟩

A pair of inputs never needs a third one, only its own two diagonal entries. So the diagonal flows first, for all
inputs, and then square tiles of pairs flow through all layers on their own: memory stays near that of the result,
and each entry of a symmetric kernel is computed once. Numbers of equal layers are stacked, so that one compiled loop
serves any depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, require_derivatives
from widthwise.activations.closed_forms import by_gain
from widthwise.blas_threads import with_one_blas_thread
from widthwise.devices import library
from widthwise.errors import InvalidInput, NotDifferentiable
from widthwise.gaussian.hermite import (
    CUTS,
    LONG_SERIES,
    MOST_PLAIN,
    SHORT_SERIES,
    HermiteTable,
    hermite_table,
    series_of_entries,
    series_of_tables,
)
from widthwise.gaussian.kernel_rules import Kept, Pair, kernel_rule
from widthwise.gaussian.pair import SERIES_TOLERANCE, closed_pair, generic_pair
from widthwise.memory import require_memory
from widthwise.network import MLP, PER_LAYER, Affine, Network
from widthwise.network.layers.base import Layer, role_fields
from widthwise.network.layers.normalisation import Normalisation

#: Layers up to a numbered one, each with its numbers stacked over equal blocks.
EqualLayers = tuple[Layer, ...]


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
def runs_of(net: Network, dtype: Any = np.float64) -> tuple[EqualLayers, ...]:
    """Blocks of steps that end with a numbered one, equal neighbours stacked. Widths, which no rule reads, are one.

    >>> [len(run) for run in runs_of(MLP([2, 8, 8, 8, 1], "tanh"))]
    [1, 2]
    """

    def unsized(layer: Layer) -> Layer:
        return replace(layer, **dict.fromkeys(role_fields(type(layer), "width"), 1))

    blocks = [tuple(map(unsized, block)) for block in net.blocks]
    equal = [list(group) for _, group in groupby(blocks, key=jax.tree.structure)]
    return tuple(jax.tree.map(lambda *numbers: np.array(numbers, dtype), *group) for group in equal)


def over_equal(step: Any, carry: Any, run: Any) -> tuple[Any, Any]:
    """`lax.scan` over the stacked blocks of a run; plainly where there is one, and where numbers are numpy's."""
    count, plain = len(jax.tree.leaves(run)[0]), all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(carry))
    if count > 1 and not plain:
        return jax.lax.scan(step, carry, run)
    passed = []
    for block in range(count):
        carry, one = step(carry, jax.tree.map(lambda stacked, block=block: stacked[block], run))
        passed.append(one)
    return carry, jax.tree.map(lambda *values: (np if plain else jnp).stack(values), *passed)


@dataclass
class InputTables:
    """Hermite tables of a list of inputs at one layer, by order and length, made when first asked for."""

    activation: Activation
    K: np.ndarray
    made: dict[tuple[int, int], HermiteTable] = field(default_factory=dict)

    def get(self, order: int, terms: int = SHORT_SERIES) -> HermiteTable:
        if (order, terms) not in self.made:
            self.made[order, terms] = hermite_table(self.activation, order, self.K, terms)
        return self.made[order, terms]

    def error(self, with_slopes: bool) -> float:
        """Of ⟨σ²⟩ and ⟨σ'²⟩, relative to them."""
        used = [self.get(order) for order in ((0, 1) if with_slopes else (0,))]
        return max(float(np.max(table.norm_error / np.maximum(table.norm, 1e-300))) for table in used)


@dataclass(frozen=True)
class Diagonal:
    """Every input with itself: K and Θ (layers, inputs).

    `entering` is K at the entrance of every kind of layer: run by run, place by place (blocks, inputs), on the closed
    route; layer by layer (inputs,) on the generic one, where `tables` holds what series need, by place and activation.
    """

    K: np.ndarray
    Theta: np.ndarray
    entering: Any
    tables: dict[tuple[int, Activation], InputTables]
    error: float


def reported_steps(net: Network) -> list[tuple[Layer, bool]]:
    """All steps of a network, each with whether K and Θ behind it are reported: at the end of a block."""
    return [(step, place == len(block)) for block in net.blocks for place, step in enumerate(block, start=1)]


def check_normalisable(step: Layer, variance: np.ndarray) -> None:
    """Refuse what divides zero by zero."""
    if isinstance(step, Normalisation) and step.epsilon == 0.0 and np.any(variance == 0.0):
        raise InvalidInput(
            "X", f"input {int(np.argmin(variance))}, for which all is zero where {step!r} divides by its size",
            "inputs that are not zero there", "Give the normalisation an epsilon above zero, or C_b above zero.",
        )  # fmt: skip


#: Kernels whose products with each other are representable.
LARGEST_KERNEL = 1e150


def check_representable(name: str, kernel: np.ndarray, largest: float, reason: str) -> None:
    """Refuse a kernel (layers, …) beyond what the arithmetic that follows can hold."""
    beyond = ~(np.abs(kernel) <= largest)
    if beyond.any():
        raise InvalidInput(
            "net", f"{name} of {kernel[beyond].flat[0]:.3g} at layer {int(np.argwhere(beyond)[0][0]) + 1}",
            f"at most {largest:.0e}: {reason}",
            "Reduce C_W, C_b, lambda_W, lambda_b or the size of the inputs; single_input takes one input of any size.",
        )  # fmt: skip


_PRODUCTS = "products of two kernels must be representable"


def is_closed(net: Network) -> bool:
    """Whether every expectation that is asked for has a closed form."""
    gained = any(isinstance(step, Affine) for step in net.steps)
    read = [*net.activations, *(by_gain(sigma) for sigma in net.activations if gained)]
    return all(sigma.closed is not None for sigma in read)


def diagonal_flow(net: Network, X: np.ndarray, with_theta: bool = True, pairs: int = 0) -> Diagonal:
    """K_aa and Θ_aa at every layer, in float64, of inputs of which so many pairs will be asked for."""
    with np.errstate(over="ignore"):
        gram = np.einsum("ai,ai->a", X, X) / net.widths[0]
    check_representable("x·x/n_0", gram[None], LARGEST_KERNEL, _PRODUCTS)
    diagonal = _diagonal_flow(net, gram, with_theta, pairs)
    check_representable("a kernel K", diagonal.K, LARGEST_KERNEL, _PRODUCTS)
    check_representable("a tangent kernel Theta", diagonal.Theta, LARGEST_KERNEL, _PRODUCTS)
    return diagonal


def _diagonal_flow(net: Network, gram: np.ndarray, with_theta: bool, pairs: int) -> Diagonal:
    if is_closed(net):
        (K, *Theta), entering = closed_flow(net, runs_of(net), gram, (), with_theta, pairs=pairs)
        for block, K_in in zip(net.blocks, (K_in for run in entering for K_in in zip(*run, strict=True)), strict=True):
            for step, entered in zip(block, K_in, strict=True):
                check_normalisable(step, entered)
        return Diagonal(K, Theta[0] if with_theta else np.zeros_like(K), entering, {}, 1e-15)
    tables: dict[tuple[int, Activation], InputTables] = {}

    def norm(position: int, K: np.ndarray, activation: Activation, p: int, independent: bool = False) -> Any:
        """⟨σ^(p)²⟩ of every input, or ⟨σ^(p)⟩², from tables that are kept."""
        if p and not with_theta:
            return 0.0
        if activation.closed is not None:
            return closed_pair(activation.closed, p, p, K, 0.0 * K if independent else K, K)
        table = tables.setdefault((position, activation), InputTables(activation, K)).get(p)
        return table.coefficients[:, 0] ** 2 if independent else table.norm

    K, Theta, found, entering, kept = gram, np.zeros_like(gram), [], [], Kept()
    for position, (step, reported) in enumerate(reported_steps(net)):
        entering.append(K)
        check_representable("a kernel K", np.stack([*(K for K, _ in found), K]), LARGEST_KERNEL, _PRODUCTS)
        check_normalisable(step, K)
        K, Theta = kernel_rule(step, Pair(K, K, K, Theta, partial(norm, position, K), kept))
        if reported:
            found.append((K, np.broadcast_to(Theta, K.shape)))
    Ks, Thetas = (np.stack(column) for column in zip(*found, strict=True))
    error = max((made.error(with_theta) for made in tables.values()), default=0.0)
    return Diagonal(Ks, Thetas, entering, tables, error)


def closed_flow(
    net: Network, runs: tuple[EqualLayers, ...], gram: np.ndarray, diagonals: Sequence[Any], with_theta: bool,
    last_only: bool = False, pairs: int = 0,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """K and, if wanted, Θ (layers, …) of pairs by closed forms: by numpy for few pairs, else compiled.

    `diagonals` are K of the inputs a and of the inputs b at the entrance of every layer, laid out like the pairs.
    Without them every input is paired with itself, and K at every entrance comes along.
    """
    forms = [sigma.closed for sigma in net.activations]
    stated = all(form is not None and form.stated(p, p) for form in forms for p in (0, 1))
    if stated and max(gram.size, pairs) <= MOST_PLAIN:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return _closed_flow(runs, gram, diagonals, with_theta, last_only)
    return jax.tree.map(np.asarray, _compiled_flow(runs, gram, diagonals, with_theta, last_only))


def _closed_flow(runs: tuple[EqualLayers, ...], gram, diagonals: Sequence[Any], with_theta: bool, last_only: bool):
    def mean(K_aa, K_ab, K_bb, activation: Activation, p: int, independent: bool = False) -> Any:
        assert activation.closed is not None
        K_ab = 0.0 * K_ab if independent else K_ab
        return activation.closed.pair(p, p, K_aa, K_ab, K_bb) if with_theta or not p else 0.0 * K_ab

    def step(kernels, block):
        (K, Theta), entered, kept = kernels, [], Kept()
        for layer, *variances in zip(*block, strict=True):
            K_aa, K_bb = variances or (K, K)
            entered += [] if variances else [K]
            K, Theta = kernel_rule(layer, Pair(K_aa, K, K_bb, Theta, partial(mean, K_aa, K, K_bb), kept))
        return (K, Theta), ((() if last_only else (K, Theta)), entered)

    kernels, kept, entering = (gram, 0.0 * gram), [], []
    for run in zip(runs, *diagonals, strict=True):
        kernels, (passed, entered) = over_equal(step, kernels, run)
        kept.append(passed)
        entering.append(entered)
    columns = [(kernel[None],) for kernel in kernels] if last_only else zip(*kept, strict=True)
    xp = np if isinstance(gram, np.ndarray) else jnp
    return [xp.concatenate(column) for column in columns][: 1 + with_theta], entering


_compiled_flow = partial(jax.jit, static_argnames=("with_theta", "last_only"))(_closed_flow)


#: Inputs along one side of a tile.
TILE = 384
#: The share of a tile whose entries may be summed one by one.
FEW_FAR = 0.05


@dataclass(frozen=True)
class KernelFlow:
    """K and, where it was asked for, Θ (layers kept, inputs, inputs'), which layers those are, how and how well."""

    layers: tuple[int, ...]
    K: np.ndarray
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
) -> KernelFlow:
    """K and Θ between all rows of X, or between the rows of X and those of X2, tile by tile."""
    if with_theta:
        check_differentiable(net)
    kept, rows_of_tables = 1 if last_only else net.depth, len(X) + (0 if X2 is None else len(X2))
    entries = len(X) * len(X if X2 is None else X2)
    entry = (1 + with_theta) * kept * np.dtype(dtype).itemsize
    tables = sum(sigma.closed is None for sigma in net.activations) * (1 + with_theta) * SHORT_SERIES * 8
    what = f"kernels of {len(X)} × {entries // len(X)} inputs at {kept} layers"
    require_memory(
        entry * entries + tables * rows_of_tables,
        what,
        lambda limit: f"What would fit: {math.isqrt(limit // entry)}² entries.",
    )
    others = X if X2 is None else X2
    rows = diagonal_flow(net, X, with_theta, len(X) * len(others))
    columns = rows if X2 is None else diagonal_flow(net, X2, with_theta, len(X) * len(others))
    layers = (net.depth,) if last_only else tuple(range(1, net.depth + 1))
    targets = [np.empty((len(layers), len(X), len(others)), dtype) for _ in range(1 + with_theta)]
    tiles = (_ClosedTiles if is_closed(net) else _SeriesTiles)(net, rows, columns, with_theta, last_only, dtype)
    across = sides_of_tiles(len(others))
    tasks = [(a, b) for i, a in enumerate(sides_of_tiles(len(X))) for b in across[i if X2 is None else 0 :]]
    for done, (a, b) in enumerate(tasks, start=1):
        gram = (X[a] @ others[b].T) / net.widths[0]
        for target, block in zip(targets, tiles.flow(gram, a, b), strict=True):
            target[:, a, b] = block
            if X2 is None:
                # the part below the diagonal is the part above it, to the last digit
                mirrored = np.swapaxes(block, 1, 2)
                target[:, b, a] = mirrored if a != b else 0.5 * (block + mirrored)
        if progress is not None:
            progress(done, len(tasks))
    if X2 is None:
        index, kept = np.arange(len(X)), [layer - 1 for layer in layers]
        for target, diagonal in zip(targets, (rows.K, rows.Theta), strict=False):
            target[:, index, index] = diagonal[kept]
    error = max(tiles.error, rows.error, columns.error)
    return KernelFlow(layers, targets[0], targets[1] if with_theta else None, tiles.route, error)


def sides_of_tiles(count: int, most: int = TILE) -> list[slice]:
    """Blocks of one size, so that one compiled program serves all; the last may repeat a little of the one before."""
    size = -(-count // -(-count // most))
    starts = [min(start, count - size) for start in range(0, count, size)]
    return [slice(start, start + size) for start in starts]


@dataclass
class _Tiles:
    """Tiles of pairs that flow through all layers, inputs a along the rows, b along the columns."""

    net: Network
    rows: Diagonal
    columns: Diagonal
    with_theta: bool
    last_only: bool
    dtype: Any


class _ClosedTiles(_Tiles):
    """All layers of a tile in one compiled program, by closed forms."""

    route, error = "closed form", 1e-14

    @cached_property
    def runs(self) -> Any:
        return runs_of(self.net, self.dtype)

    def flow(self, gram: np.ndarray, a: slice, b: slice) -> list[np.ndarray]:
        K_aa = jax.tree.map(lambda K: K[:, a, None].astype(self.dtype, copy=False), self.rows.entering)
        K_bb = jax.tree.map(lambda K: K[:, None, b].astype(self.dtype, copy=False), self.columns.entering)
        gram = gram.astype(self.dtype, copy=False)
        return closed_flow(self.net, self.runs, gram, (K_aa, K_bb), self.with_theta, self.last_only)[0]


class _SeriesTiles(_Tiles):
    """Layer by layer, by closed form or Hermite series; quadrature for the pairs that the series does not reach."""

    @cached_property
    def series(self) -> dict[tuple[int, Activation], LayerSeries]:
        return {at: LayerSeries(table, self.columns.tables[at]) for at, table in self.rows.tables.items()}

    @property
    def error(self) -> float:
        return max((step.error for step in self.series.values()), default=0.0)

    @property
    def route(self) -> str:
        used = {route for step in self.series.values() for route in step.routes}
        if any(sigma.closed is not None for sigma in self.net.activations):
            used.add("closed form")
        return " and ".join(sorted(used)) or "input layer only"

    def flow(self, gram: np.ndarray, a: slice, b: slice) -> list[np.ndarray]:
        K, Theta, found, kept = gram, np.zeros_like(gram), [], Kept()
        for position, (step, reported) in enumerate(reported_steps(self.net)):
            K_aa, K_bb = self.rows.entering[position][a, None], self.columns.entering[position][None, b]
            mean = partial(self._mean, position, (K_aa, K, K_bb), a, b)
            K, Theta = kernel_rule(step, Pair(K_aa, K, K_bb, Theta, mean, kept))
            if reported:
                found = [(K, Theta)] if self.last_only else [*found, (K, Theta)]
        columns = list(zip(*found, strict=True))[: 1 + self.with_theta]
        return [np.stack(column).astype(self.dtype, copy=False) for column in columns]

    def _mean(
        self, position: int, kernels: tuple[Any, Any, Any], a: slice, b: slice, activation: Activation, p: int,
        independent: bool = False,
    ):  # fmt: skip
        """⟨σ^(p)_a σ^(p)_b⟩ of a tile at the entrance of a layer, or ⟨σ^(p)_a⟩⟨σ^(p)_b⟩."""
        if p and not self.with_theta:
            return 0.0
        K_aa, K_ab, K_bb = kernels
        if activation.closed is not None:
            return closed_pair(activation.closed, p, p, K_aa, 0.0 * K_ab if independent else K_ab, K_bb)
        return self.series[position, activation].expectation(p, 0.0 * K_ab if independent else K_ab, a, b)


@dataclass
class LayerSeries:
    """Expectations between the inputs along the rows and those along the columns of a kernel."""

    rows: InputTables
    columns: InputTables
    error: float = 0.0
    routes: set[str] = field(default_factory=set)

    def expectation(self, order: int, K_ab: np.ndarray, a: slice, b: slice) -> np.ndarray:
        """⟨σ^(p)_a σ^(p)_b⟩ for the tile of inputs a × b, p = `order`.

        When rows and columns are the same inputs, entries of an input with itself are left to the caller.
        """
        correlation = _correlation if K_ab.size <= MOST_PLAIN else _compiled_correlation
        rho = np.array(correlation(K_ab, self.rows.K[a], self.columns.K[b]))
        if self.rows is self.columns:
            same = np.arange(max(a.start, b.start), min(a.stop, b.stop))
            rho[same - a.start, same - b.start] = 0.0
        size, far = np.abs(rho), np.ones(rho.shape, bool)
        for available in (SHORT_SERIES, LONG_SERIES):
            f, g = self.rows.get(order, available)[a], self.columns.get(order, available)[b]
            for terms in (cut for cut in CUTS if cut <= available):
                reach = _reach(f, g, terms)
                far = size > reach
                # a few entries that need more terms are better summed by themselves
                if np.count_nonzero(far) <= FEW_FAR * far.size:
                    break
            else:
                continue
            break
        value = series_of_tables(f, g, rho, terms)
        self.routes.add("Hermite series")
        self.error = max(self.error, SERIES_TOLERANCE * float((size[~far].max(initial=0.0) / reach) ** terms))
        if far.any():
            i, j = np.nonzero(far)
            value[far] = self._far(order, i, j, rho[far], K_ab[far], a, b)
        return value

    def _far(self, order: int, i, j, rho, K_ab, a: slice, b: slice) -> np.ndarray:
        """Entries (i, j) of a tile: by as many terms as each needs, or by quadrature where no number is enough."""
        value, left, size = np.zeros(len(rho)), np.arange(len(rho)), np.abs(rho)
        for available in (SHORT_SERIES, LONG_SERIES):
            f, g = self.rows.get(order, available)[a], self.columns.get(order, available)[b]
            for terms in (cut for cut in CUTS if cut <= available):
                reach = _reach(f, g, terms)
                near = left[size[left] <= reach]
                if len(near):
                    value[near] = series_of_entries(f[i[near]], g[j[near]], rho[near], terms)
                    self.error = max(self.error, SERIES_TOLERANCE * float((size[near].max() / reach) ** terms))
                    left = left[size[left] > reach]
            if not len(left):
                return value
        # the bound of each entry by itself is better than that of the tile
        f, g = f[i[left]], g[j[left]]
        scale, bound = np.sqrt(f.norm * g.norm), size[left] ** LONG_SERIES * f.tails[LONG_SERIES] * g.tails[LONG_SERIES]
        value[left] = series_of_entries(f, g, rho[left], LONG_SERIES)
        hard = bound > SERIES_TOLERANCE * scale
        left = left[hard]
        refined = generic_pair(
            self.rows.activation, order, order, self.rows.K[a][i[left]], K_ab[left], self.columns.K[b][j[left]]
        )
        value[left], bound[hard] = refined.value, refined.error
        self.routes.update(refined.route.split(" and ") if len(left) else ())
        self.error = max(self.error, float(np.max(bound / np.maximum(scale, 1e-300))))
        return value


def _reach(f: HermiteTable, g: HermiteTable, terms: int) -> float:
    """The largest |ρ| at which so many terms keep the tolerance, for all inputs of the two tables."""
    scale = np.sqrt(f.norm.min() * g.norm.min())
    share = SERIES_TOLERANCE * scale / max(f.tails[terms].max() * g.tails[terms].max(), 1e-300)
    return float(share ** (1.0 / terms))


def _correlation(K_ab, K_aa, K_bb):
    xp = library(K_ab)
    root = xp.sqrt(K_aa)[:, None] * xp.sqrt(K_bb)[None, :]
    return xp.clip(xp.where(root > 0.0, K_ab / xp.where(root > 0.0, root, 1.0), 0.0), -1.0, 1.0)


_compiled_correlation = jax.jit(_correlation)
