"""Tensors of order 1/n between two inputs, for all pairs of many: N² of them, not N⁴.

The recursions of an entry read the layer below at the same inputs (theory §1, §5), so an entry in which only the inputs
x and y occur is closed under its own two. Every tensor is then a handful of matrices over (x, y), one for each pattern
such as xxxy, and its rule is applied pattern by pattern. The Gaussian expectations are those of two inputs,
    ⟨Π σ^(o)(z_x) Π σ^(o')(z_y)⟩ = Σ_k f_k g_k ρ^k,
with Hermite coefficients f_k of a product of derivatives at one input, or closed forms for the relu family
(`relu_pairs`). Tiles of pairs go through all layers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import product
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from widthwise.activations import Activation, jet
from widthwise.blas_threads import with_one_blas_thread
from widthwise.devices import on_all_cores
from widthwise.errors import InvalidInput, UnknownName
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.kernels.variances import Diagonal, diagonal_flow
from widthwise.flow.tensors.tensor_flow import (
    ENTRIES,
    READS,
    check_existence,
    check_kernels_at_kinks,
    check_tensors_representable,
)
from widthwise.flow.tensors.tensor_rules import RULES, LayerStep, Legs, QuadrupleMatrix, QuadrupleTensor
from widthwise.gaussian.four_points import Orders
from widthwise.gaussian.four_points.dispatch import check_fourth_moments
from widthwise.gaussian.hermite import series
from widthwise.gaussian.kernel_rules import dense_step
from widthwise.gaussian.pair import is_parallel
from widthwise.gaussian.quadrature import basis, smooth_grid
from widthwise.gaussian.relu_pairs import ReluPairs, has_closed_pairs
from widthwise.memory import require_memory
from widthwise.network import MLP, Network, simplified
from widthwise.network.validation import is_one_of
from widthwise.tensors import MEANS, SHIFTS, TENSORS

#: Inputs along one side of a tile: what its rules hold stays in the cache.
SIDE = 64
#: Terms of the series at one input; a tile sums as many as its correlations need.
PAIR_TERMS = (96, 192, 384, 768)
#: Pairs whose series take less time than compiling them.
_FEW_PAIRS = 1024
#: Inputs whose series are made at a time.
_INPUTS_AT_ONCE = 512
#: Matrices of a step, by the orders of σ and σ' at a and b: value, aa, ab, aaaa, aaab, aabb.
_LEG_ORDERS = ((0, 0), (2, 0), (1, 1), (4, 0), (3, 1), (2, 2))
_SWAPPED = str.maketrans("xy", "yx")
#: Orders of the derivatives that stand at x, and those at y.
Split = tuple[Orders, Orders]


def entry_names(name: str) -> tuple[str, ...]:
    """Patterns of x and y, one of each set that a tensor's symmetries make equal.

    >>> entry_names("G1"), entry_names("V")
    (('xx', 'xy', 'yy'), ('xxxx', 'xxxy', 'xxyy', 'xyxy', 'xyyy', 'yyyy'))
    """
    slots = TENSORS[name].slots
    return tuple(sorted({canonical(name, "".join(letters)) for letters in product("xy", repeat=slots)}))


@lru_cache(maxsize=4096)
def canonical(name: str, pattern: str) -> str:
    """The first of the patterns that are equal by the symmetries of a tensor."""
    found, size = {pattern}, 0
    while size < len(found):
        size = len(found)
        found |= {"".join(p[k] for k in by) for p in found for by in TENSORS[name].symmetry}
    return min(found)


@lru_cache(maxsize=64)
def closure(wanted: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, ...]]:
    """Patterns of every tensor that the wanted entries, (name, pattern), are made of, those included."""
    found, new = set(), {(name, canonical(name, pattern)) for name, pattern in wanted}
    while new:
        found |= new
        new = {(o, canonical(o, _letters_at(pattern, at))) for name, pattern in new for o, at in ENTRIES[name]} - found
    return {name: tuple(sorted(p for other, p in found if other == name)) for name in RULES if name in dict(found)}


def _letters_at(pattern: str, letters: str) -> str:
    return "".join(pattern["abcd".index(letter)] for letter in letters)


@dataclass(frozen=True, eq=False)
class PairMatrix(QuadrupleMatrix):
    """A matrix at two inputs: {"xx": …, "xy": …, "yx": …, "yy": …}, read at the inputs where a pattern puts letters."""

    values: dict[str, Any]
    pattern: str = ""

    def on(self, pair: str) -> Any:
        return self.values[_letters_at(self.pattern, pair)]

    def at(self, pattern: str) -> PairMatrix:
        return PairMatrix(self.values, pattern)

    def __mul__(self, other: Any) -> PairMatrix:
        if isinstance(other, PairMatrix):
            return PairMatrix({key: value * other.values[key] for key, value in self.values.items()}, self.pattern)
        return PairMatrix({key: value * other for key, value in self.values.items()}, self.pattern)

    __rmul__ = __mul__

    def __add__(self, other: PairMatrix) -> PairMatrix:
        return PairMatrix({key: value + other.values[key] for key, value in self.values.items()}, self.pattern)


@dataclass(frozen=True, eq=False)
class PairTensor(QuadrupleTensor, QuadrupleMatrix):
    """A tensor at two inputs, its entries by canonical pattern."""

    name: str
    values: dict[str, Any]
    pattern: str

    def entries(self, indices: str) -> Any:
        return self.values[canonical(self.name, _letters_at(self.pattern, indices))]

    def on(self, pair: str) -> Any:
        return self.entries(pair)


class PairExpectations:
    """Which expectations at one and, if entries stand `between` two inputs, at two a set of entries reads."""

    def __init__(self, entries: dict[str, tuple[str, ...]], between: bool):
        self.fourth = any(name in MEANS for name in entries)
        self.legs = [
            tuple(p + order for order in orders) for p in (0, 1) for orders in _LEG_ORDERS[: 6 if self.fourth else 3]
        ]
        splits = {_split_over(orders, at) for orders in self.legs for at in product("xy", repeat=2)}
        for name, patterns in entries.items():
            splits |= {_split_over(orders, pattern) for pattern in patterns for orders in READS[name]}
        if not between:
            splits = {split for split in splits if not split[1]}
        self.two = sorted(split for split in splits if all(split))
        self.one = sorted({tuple(sorted(at_x + at_y)) for at_x, at_y in splits})
        self.products = sorted({orders for split in self.two for orders in split})


def _split_over(orders: Orders, pattern: Iterable[str]) -> Split:
    """Which orders of derivatives stand at x, and which at y."""
    at_x, at_y = (tuple(sorted(o for o, p in zip(orders, pattern, strict=True) if p == letter)) for letter in "xy")
    return at_x, at_y


class InputSeries(NamedTuple):
    """Of every input at one layer: coefficients (products, terms, inputs), their tails, and means by their orders.

    `tails` (cuts, inputs) is the largest share of a product's norm that stands past each of the `cuts`.
    """

    coefficients: np.ndarray
    tails: np.ndarray
    means: dict[Orders, np.ndarray]

    @property
    def cuts(self) -> np.ndarray:
        return _cuts(self.coefficients.shape[1])


def _cuts(terms: int) -> np.ndarray:
    """Numbers of terms that a tile may sum; few, since each is compiled."""
    return np.array([cut for cut in (32, 64, *PAIR_TERMS) if cut <= terms])


def _input_series(
    activation: Activation, K: np.ndarray, expect: PairExpectations, terms: int, accuracy: float
) -> InputSeries | None:
    """None where the activation varies too fast at the largest kernel."""
    grid = smooth_grid(activation, float(K.max()), terms, accuracy)
    if grid is None:
        return None
    orders = tuple(sorted({order for chosen in (*expect.products, *expect.one) for order in chosen}))
    polynomials, size = basis(grid.u, terms) * grid.weight, len(K)
    coefficients = np.empty((len(expect.products), terms, size))
    means = {chosen: np.empty(size) for chosen in expect.one}
    for start in range(0, size, _INPUTS_AT_ONCE):
        rows = slice(start, start + _INPUTS_AT_ONCE)
        values = dict(zip(orders, jet(activation, orders, np.sqrt(K[rows, None]) * grid.u), strict=True))
        for number, chosen in enumerate(expect.products):
            coefficients[number, :, rows] = polynomials @ reduce(np.multiply, [values[o] for o in chosen]).T
        for chosen, mean in means.items():
            mean[rows] = reduce(np.multiply, [values[o] for o in chosen]) @ grid.weight
    left = np.cumsum(coefficients[:, ::-1] ** 2, axis=1)[:, ::-1]
    # what stands past the last term is taken to be no more than the last few
    past = [left[:, cut if cut < terms else -8] / np.maximum(left[:, 0], 1e-300) for cut in _cuts(terms)]
    return InputSeries(coefficients, np.sqrt(np.stack([share.max(axis=0, initial=0.0) for share in past])), means)


class _PairTiles:
    """Tiles of pairs that flow through all layers."""

    def __init__(
        self, net: MLP, entries: dict[str, tuple[str, ...]], X: np.ndarray, X2: np.ndarray | None, accuracy: float,
        between: bool,
    ):  # fmt: skip
        self.net, self.entries, self.accuracy, self.square = net, entries, accuracy, X2 is None
        self.expect, self.sides = PairExpectations(entries, between), [X] if X2 is None else [X, X2]
        self.diagonals: list[Diagonal] = [diagonal_flow(net, side) for side in self.sides]
        self.error, self.lock = max(diagonal.error for diagonal in self.diagonals), Lock()
        self.made: dict[tuple[int, int], list[InputSeries | None]] = {}
        self.few = len(X) * len(self.sides[-1]) <= _FEW_PAIRS

    def in_closed_form(self, layer: int) -> bool:
        return has_closed_pairs(self.net.activations[layer])

    def series(self, side: int, layer: int, length: int = 0) -> InputSeries | None:
        """Of a layer, of one of the lengths in `PAIR_TERMS`; made when first asked for."""
        with self.lock:
            made = self.made.setdefault((side, layer), [])
            while len(made) <= length:
                sigma, K = self.net.activations[layer], self.diagonals[side].K[layer]
                made.append(_input_series(sigma, K, self.expect, PAIR_TERMS[len(made)], self.accuracy))
        return made[length]

    @property
    def possible(self) -> bool:
        layers = [layer for layer in range(self.net.depth - 1) if not self.in_closed_form(layer)]
        return all(self.series(side, layer) is not None for side in range(len(self.sides)) for layer in layers)

    def flow(self, a: slice, b: slice) -> tuple[list[dict[str, dict[str, Any]]], np.ndarray]:
        """Entries of a tile at every layer, and a bound on the error of its pairs."""
        net, rows, columns = self.net, self.diagonals[0], self.diagonals[-1]
        Q, T = (self.sides[0][a] @ self.sides[-1][b].T) / net.widths[0], 0.0
        own = self.square & (np.arange(a.start, a.stop)[:, None] == np.arange(b.start, b.stop))
        own |= _equal_inputs(rows.K[0, a, None], dense_step(net.dense[0], Q, T)[0], columns.K[0, None, b])
        now: dict[str, dict[str, Any]] = {name: dict.fromkeys(patterns, 0.0) for name, patterns in self.entries.items()}
        found, error = [], np.zeros(own.shape)
        for layer in range(net.depth):
            kernels: list[dict[str, Any]] = [{"xx": x[layer, a, None]} for x in (rows.K, rows.Theta)]
            if self.expect.two:
                others = (columns.K, columns.Theta)
                for one, y, between in zip(kernels, others, dense_step(net.dense[layer], Q, T), strict=True):
                    one["yy"] = y[layer, None, b]
                    one["xy"] = one["yx"] = np.where(own, one["xx"], between)
            found.append({"K": kernels[0], "Theta": kernels[1], **now})
            if layer + 1 == net.depth:
                break
            if self.in_closed_form(layer):
                known = ReluPairs(net.activations[layer], kernels[0])
                mean, legs = known.mean, [self._closed_legs(known, p) for p in (0, 1)]
            else:
                mean, left = self._means(layer, kernels[0], a, b, own)
                error = np.maximum(error, left)
                legs = [self._legs(mean, p) for p in (0, 1)]
            if self.expect.two:
                Q, T = legs[0].value.values["xy"], legs[1].value.values["xy"] * kernels[1]["xy"]
            step = LayerStep(
                C=net.C_W[layer + 1], lam=net.lambda_W[layer + 1], r=net.widths[layer + 1] / net.widths[layer],
                H=PairMatrix(kernels[1]), sigma=legs[0], slope=legs[1], fours={},
            )  # fmt: skip
            now = {name: {p: self._entry(name, p, step, mean, now) for p in now[name]} for name in now}
        return found, error

    def _means(self, layer: int, K: dict[str, Any], a: slice, b: slice, own: np.ndarray):
        """⟨…⟩ of a split of orders over the two inputs, for a tile, and what its series leave out."""
        f, g, left, known = self.series(0, layer), self.series(len(self.sides) - 1, layer), 0.0, {}
        assert f is not None
        assert g is not None
        if self.expect.two:
            root = np.sqrt(K["xx"] * K["yy"])
            rho = np.where(own, 0.0, np.clip(K["xy"] / np.where(root > 0.0, root, 1.0), -1.0, 1.0))
            f, g, place = self._long_enough(layer, float(np.abs(rho).max()), a, b)
            terms = int(f.cuts[place])
            left = np.abs(rho) ** terms * f.tails[place, a][:, None] * g.tails[place, b][None]
            row = {orders: number for number, orders in enumerate(self.expect.products)}
            first, second = ([row[split[k]] for split in self.expect.two] for k in (0, 1))
            of_x = np.moveaxis(f.coefficients[:, :terms, a][first], 1, 0)[..., None]
            of_y = np.moveaxis(g.coefficients[:, :terms, b][second], 1, 0)[..., None, :]
            if self.few:  # less work than compiling
                powers = rho ** np.arange(terms)[:, None, None]
                apart = np.einsum("tsx,tsy,txy->sxy", of_x[..., 0], of_y[:, :, 0], powers)
            else:
                apart = np.asarray(series(of_x, of_y, np.broadcast_to(rho, (len(first), *rho.shape))))
            known = dict(zip(self.expect.two, apart, strict=True))

        def mean(split: Split) -> Any:
            whole = tuple(sorted(split[0] + split[1]))
            if not split[1]:
                return f.means[whole][a, None]
            if not split[0]:
                return g.means[whole][None, b]
            return np.where(own, f.means[whole][a, None], known[split]) if own.any() else known[split]

        return lru_cache(maxsize=None)(mean), left

    def _long_enough(self, layer: int, largest: float, a: slice, b: slice) -> tuple[InputSeries, InputSeries, int]:
        """Series and the place of the cut that a tile needs, or the longest there are."""
        found = None
        for length in range(len(PAIR_TERMS)):
            f, g = self.series(0, layer, length), self.series(len(self.sides) - 1, layer, length)
            if f is None or g is None:
                break
            for place, cut in enumerate(f.cuts):
                found = f, g, place
                if largest ** int(cut) * f.tails[place, a].max() * g.tails[place, b].max() <= self.accuracy:
                    return found
        assert found is not None
        return found

    def _legs(self, mean: Callable[[Split], Any], p: int) -> Legs:
        def matrix(orders: Orders) -> PairMatrix:
            patterns = ("xx", "xy", "yx", "yy") if self.expect.two else ("xx",)
            return PairMatrix({at: mean(_split_over(orders, at)) for at in patterns})

        chosen = [matrix((p + i, p + j)) for i, j in _LEG_ORDERS[: 6 if self.expect.fourth else 3]]
        return Legs(*chosen, *[None] * (6 - len(chosen)), error=0.0)

    def _closed_legs(self, known: ReluPairs, p: int) -> Legs:
        """The same in closed form; legs that do not exist apart are joined as `tensor_rules` says."""
        count, patterns = 6 if self.expect.fourth else 3, ("xx", "xy", "yx", "yy") if self.expect.two else ("xx",)
        chosen = [{at: known.leg(p + i, p + j, at) for at in patterns} for i, j in _LEG_ORDERS[:count]]
        for order, places in ((2, (1, 2)), (4, (3, 4, 5)))[: 1 + self.expect.fourth]:
            for at in patterns:
                here, half = known.joined(p, order, at)
                for place in places:
                    chosen[place][at] = np.where(here, half if place == places[0] else 0.0, chosen[place][at])
        return Legs(*map(PairMatrix, chosen), *[None] * (6 - count), error=0.0)

    def _entry(self, name: str, pattern: str, step: LayerStep, mean, now: dict[str, dict[str, Any]]) -> Any:
        """One entry of the next layer."""

        def legs(one: Legs) -> Legs:
            parts = (one.value, one.aa, one.ab, one.aaaa, one.aaab, one.aabb)
            return Legs(*(part and part.at(pattern) for part in parts), error=0.0)

        sigma = legs(step.sigma)
        slope = legs(step.slope)
        fours = {orders: mean(_split_over(orders, pattern)) for orders in READS[name]}
        here = LayerStep(step.C, step.lam, step.r, step.H.at(pattern), sigma, slope, fours)
        below = {other: PairTensor(other, values, pattern) for other, values in now.items()}
        return sum(RULES[name](here, below).values())


def _equal_inputs(K_xx: np.ndarray, K_xy: np.ndarray, K_yy: np.ndarray) -> np.ndarray:
    """Pairs that are one input, or so close to one that rounding tells them apart at a kink and nothing else does."""
    return is_parallel(K_xx, K_xy, K_yy) & (np.abs(K_xx - K_yy) <= 1e-14 * K_xx) & (K_xy > 0.0)


@dataclass(frozen=True)
class PairFlow:
    """K, Theta and entries at two inputs by tensor and pattern, each (layers kept, a, b), or (layers kept, a)."""

    layers: tuple[int, ...]
    entries: dict[str, dict[str, np.ndarray]]
    error: float
    route: str


def sides_of_tiles(count: int) -> list[slice]:
    """Blocks of one size; the last may repeat a little of the one before."""
    size = -(-count // -(-count // SIDE))
    starts = [min(start, count - size) for start in range(0, count, size)]
    return [slice(start, start + size) for start in starts]


@with_one_blas_thread
def pair_flow(
    net: MLP,
    X: np.ndarray,
    X2: np.ndarray | None,
    wanted: dict[str, tuple[str, ...]],
    *,
    last_only: bool = False,
    tolerance: float = 1e-9,
    dtype: Any = np.float64,
    progress: Callable[[int, int], None] | None = None,
) -> PairFlow | None:
    """The wanted patterns of K, Theta and tensors of order 1/n between the rows of X, or between those and X2's.

    Where all are of x alone they stand on (layers, a). None where an activation is too sharp for its kernel, or has
    kinks and is not of the relu family.
    """
    accuracy = max(min(1e-9, 1e-3 * tolerance), 1e-13)
    if any(sigma.kinks and not has_closed_pairs(sigma) for sigma in net.activations):
        return None
    corrections = tuple((name, p) for name, patterns in wanted.items() if name in RULES for p in patterns)
    alone, others = not any("y" in p for patterns in wanted.values() for p in patterns), X if X2 is None else X2
    tiles = _PairTiles(net, closure(corrections), X, X2, accuracy, not alone)
    check_existence(net.activations, tuple(name for name in wanted if name in RULES))
    for diagonal in tiles.diagonals:
        check_tensors_representable(net, diagonal.K, diagonal.Theta)
        check_kernels_at_kinks(net, diagonal.K, tuple(tiles.entries))
    for sigma, K in zip(net.activations, tiles.diagonals[0].K, strict=False):
        if not sigma.kinks:
            check_fourth_moments(sigma, K.max(keepdims=True)[None], 3)
    layers = (net.depth,) if last_only else tuple(range(1, net.depth + 1))
    shape = (len(X),) if alone else (len(X), len(others))
    numbers = sum(map(len, wanted.values())) * int(np.prod(shape))
    per_input = 8 * len(tiles.expect.products) * PAIR_TERMS[0] * (net.depth - 1)
    require_memory(
        numbers * len(layers) * np.dtype(dtype).itemsize + per_input * (len(X) + len(others)),
        f"tensors at pairs of {len(X)} × {len(others)} inputs at {len(layers)} layers",
        "Take layers='last', fewer inputs, or X2= for one rectangle at a time.",
    )
    kept = {name: {p: np.empty((len(layers), *shape), dtype) for p in patterns} for name, patterns in wanted.items()}
    if not tiles.possible:
        return None
    blocks = sides_of_tiles(len(X))
    across = [slice(0, 1)] if alone else sides_of_tiles(len(others))
    tasks = [(a, b) for i, a in enumerate(blocks) for b in across[i if X2 is None and not alone else 0 :]]

    def fill(task: tuple[slice, slice]) -> float:
        a, b = task
        found, error = tiles.flow(a, b)
        for number, layer in enumerate(layers):
            for name, patterns in kept.items():
                for pattern, target in patterns.items():
                    values = found[layer - 1][name]
                    if alone:
                        target[number, a] = np.broadcast_to(values[pattern], (a.stop - a.start, 1))[:, 0]
                        continue
                    tile = (a.stop - a.start, b.stop - b.start)
                    target[number, a, b] = np.broadcast_to(values[canonical(name, pattern)], tile)
                    if X2 is None:
                        # the part below the diagonal is the part above it, to the last digit
                        mirrored = values[canonical(name, pattern.translate(_SWAPPED))]
                        mirrored = np.broadcast_to(mirrored, tile).T
                        target[number, b, a] = mirrored if a != b else 0.5 * (target[number, a, b] + mirrored)
        return float(np.max(error))

    error = tiles.error
    for done, left in enumerate(on_all_cores(fill, tasks), start=1):
        error = max(error, left)
        if progress is not None:
            progress(done, len(tasks))
    smooth = [not has_closed_pairs(sigma) for sigma in net.activations]
    routes = ["Hermite series of pairs"] * any(smooth) + ["closed forms of pairs"] * (not all(smooth))
    return PairFlow(layers, kept, error, " and ".join(routes) or "input layer only")


def output_kernels(
    net: Network, X: np.ndarray, X2: np.ndarray | None = None, *, kernel: str = "infinite", with_theta: bool = True,
    device: bool = False,
) -> tuple[Any, Any, float]:  # fmt: skip
    """K, Θ and the error at the output, between the rows of X, or those and X2's; Θ is None if it is not wanted.

    With `device` those of infinite width are left where jax computes.

    `kernel` "infinite" is infinite width, "mean" the mean over networks to order 1/n: K + G1/n and Θ + H1/n.
    """
    if kernel == "infinite":
        flow = kernel_flow(net, X, X2, with_theta=with_theta, last_only=True, device=device)
        return flow.K[0], flow.Theta[0] if with_theta else None, flow.error
    net = simplified(net)
    names = list(SHIFTS.items())[: 1 + with_theta]
    wanted = {name: ("xy",) for pair in names for name in pair}
    found = pair_flow(net, X, X2, wanted, last_only=True) if isinstance(net, MLP) else None
    if found is None:
        sigma = dict.fromkeys(one.name for one in net.activations)
        got = f"'mean' for {' and '.join(sigma)}" if isinstance(net, MLP) else "'mean' for a network of other layers"
        expected = "'infinite', or a stack of dense layers with activations that are smooth at their kernels"
        raise InvalidInput("kernel", got, expected, "Take gelu or swish for relu.")
    both = [found.entries[name]["xy"][0] + found.entries[shift]["xy"][0] / net.n for name, shift in names]
    return both[0], both[1] if with_theta else None, found.error


def check_kernel(kernel: Any, order: int) -> str:
    """The kernels that `output_kernels` knows; with order=1 the corrections are there already."""
    if not is_one_of(kernel, ("infinite", "mean")):
        raise UnknownName.of("kernel", kernel, ("infinite", "mean"))
    if kernel == "mean" and order == 1:
        raise InvalidInput("kernel", "'mean' with order=1", "order=0", "Order 1 has G1 and H1 in it.")
    return kernel
