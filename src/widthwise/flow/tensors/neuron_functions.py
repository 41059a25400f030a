"""Functions of one neuron, and their expectations over all layers that a residual connection joins.

A neuron's preactivations at the inputs a, b, … are Gaussian, and with residual connections those at two layers s ≤ l
are correlated too: E[z^(l)_a z^(s)_b] = Γ_ls K^(s)_ab, Γ the product of the scales between (theory §11). So
(layer, input) is used as a composite input of the four-point expectations there are. Where a normalisation stands
before the activation, functions are those of u = z/r, r² = ε + K_aa.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from widthwise.activations import Activation, evaluate
from widthwise.errors import InvalidInput
from widthwise.flow.tensors.tensor_rules import entries, on, vector_on
from widthwise.gaussian.four_points.dispatch import relative_error
from widthwise.gaussian.four_points.families import Orders, assignments
from widthwise.gaussian.four_points.later_layers import LaterLayers
from widthwise.gaussian.four_points.planes import PLANE_DEGREES, PlaneSeries
from widthwise.gaussian.pair import generic_pair, pair_matrix

#: σ^(p) at a slot: (slot, p); the variable u itself has p = None.
SlotFactor = tuple[int, int | None]
#: A factor at a letter that stands for an input, of some layer.
PlacedFactor = tuple[int, str, int | None]
#: Expectations below this fraction of the largest vanish by symmetry, up to rounding.
VANISHING = 1e-10
#: Bytes in tables of planes that all layers of a stream may keep.
MOST_KEPT = 1 << 30
#: Layers that are looked at together from an earlier one: more would hold more memory and save little.
LAYERS_AHEAD = 8
_FUNCTION_NUMBERS = count()


def _slot_and_order(factor: SlotFactor) -> tuple[int, int]:
    slot, order = factor
    return slot, -1 if order is None else order


class NeuronFunction:
    """Σ coefficient × product of factors: a function of one neuron of a layer, at the inputs of two slots 0 and 1.

    Coefficients are numbers or matrices over the inputs of the two slots.
    """

    def __init__(self, layer: int, terms: list[tuple[Any, tuple[SlotFactor, ...]]]):
        self.layer, self.number = layer, next(_FUNCTION_NUMBERS)
        summed: dict[tuple[SlotFactor, ...], Any] = {}
        for coefficient, factors in terms:
            like = tuple(sorted(factors, key=_slot_and_order))
            summed[like] = summed[like] + coefficient if like in summed else coefficient
        self.terms = [(coefficient, factors) for factors, coefficient in summed.items()]

    def __mul__(self, other: NeuronFunction) -> NeuronFunction:
        return NeuronFunction(self.layer, [(c * d, f + g) for c, f in self.terms for d, g in other.terms])

    def __add__(self, other: NeuronFunction) -> NeuronFunction:
        return NeuronFunction(self.layer, self.terms + other.terms)

    def times(self, factor: Any) -> NeuronFunction:
        return NeuronFunction(self.layer, [(factor * c, f) for c, f in self.terms])

    def __call__(self, first: str, second: str) -> PlacedFunction:
        return PlacedFunction(self, first + second)


@dataclass(frozen=True, eq=False)
class PlacedFunction:
    """A function of a neuron whose two slots stand at letters."""

    function: NeuronFunction
    letters: str

    @property
    def key(self) -> tuple[int, str]:
        return self.function.number, self.letters

    def placed(self, factors: tuple[SlotFactor, ...]) -> tuple[PlacedFactor, ...]:
        return tuple((self.function.layer, self.letters[slot], order) for slot, order in factors)


class LayerOfNeurons:
    """The neurons of one layer at infinite width: K, their activation, and r where they are normalised before it."""

    def __init__(self, layer: int, activation: Activation, K: np.ndarray, root: np.ndarray):
        self.layer, self.activation, self.K, self.root = layer, activation, K, root
        self.pairs: dict[tuple[int, int], np.ndarray] = {}
        self.errors: dict[tuple[int, int], float] = {}

    @cached_property
    def reduced(self) -> np.ndarray:
        """The kernel of u = z/r."""
        return self.K / np.outer(self.root, self.root)

    def pair(self, p: int, q: int) -> np.ndarray:
        """⟨σ^(p)_a σ^(q)_b⟩."""
        if p < q:
            return self.pair(q, p).T
        if (p, q) not in self.pairs:
            self.pairs[p, q], self.errors[p, q] = pair_matrix(self.activation, p, q, self.reduced)
        return self.pairs[p, q]

    @property
    def error(self) -> float:
        """The largest relative error of the pairs; what vanishes by symmetry has none."""
        sizes = {orders: np.abs(values).max() for orders, values in self.pairs.items()}
        least = VANISHING * max(sizes.values(), default=0.0)
        return max((error for orders, error in self.errors.items() if sizes[orders] > least), default=0.0)

    def single(self, p: int) -> np.ndarray:
        """⟨σ^(p)_a⟩, from its product with a number: σ^(q) of an input that is zero."""
        variance, zero = np.diag(self.reduced), 0.0 * np.diag(self.reduced)
        q, at_zero = self.at_zero
        return generic_pair(self.activation, p, q, variance, zero, zero).value / at_zero

    @cached_property
    def at_zero(self) -> tuple[int, float]:
        """A derivative of σ that does not vanish at zero, and its value there."""
        values = [float(evaluate(self.activation, q, np.zeros(1))[0]) for q in range(4)]
        q = int(np.argmax(np.abs(values)))
        if values[q] == 0.0:
            raise InvalidInput(
                "net", f"{self.activation.name}, all of whose derivatives vanish at 0, before a LayerNorm", "another"
            )
        return q, values[q]


class NeuronExpectations:
    """⟨…⟩ of products of functions of one neuron, of one layer or of two that residual connections join.

    `scales[l]` is γ of the step from layer l to l + 1, layers counted from 1.
    """

    def __init__(self, tolerance: float, asked: AskedTables | None = None):
        self.layers: dict[int, LayerOfNeurons] = {}
        self.scales: dict[int, float] = {}
        self.kernels: dict[tuple[int, int], np.ndarray] = {}
        self.tolerance = tolerance
        # orders on four inputs, the largest bound on an error and the largest value of each
        self.bounds: list[tuple[tuple[Orders, ...], np.ndarray, np.ndarray]] = []
        self.known: dict[Any, Any] = {}
        self.tables: dict[tuple[int, Any], dict[Orders, np.ndarray]] = {}
        self.asked: dict[str, dict[Orders, None]] = {} if asked is None else asked.asked
        self.series: dict[int, PlaneSeries] = {}
        # values at a layer and an earlier one, made with those of layers before it
        self.ahead: dict[tuple[int, int, tuple[Orders, ...]], np.ndarray] = {}

    @property
    def error(self) -> float:
        """The largest relative error so far; a table may hold nothing but what vanishes by symmetry."""
        least, found = VANISHING * max((values.max() for *_, values in self.bounds), default=0.0), 0.0
        for placed, errors, values in self.bounds:
            used = np.flatnonzero(values > least)
            if len(used):
                found = max(found, relative_error(tuple(placed[k] for k in used), errors[used], values[used]))
        return max([found, *(neurons.error for neurons in self.layers.values())])

    def forget(self, layer: int) -> None:
        """After a layer: drop what is laid out over four inputs, and before a plain one all series; means stay."""
        self.known = {key: value for key, value in self.known.items() if isinstance(key, int)}
        self.tables.clear()
        if not self.scales[layer]:
            self.series.clear()
        for degrees in reversed(PLANE_DEGREES):
            if sum(series.kept_bytes for series in self.series.values()) <= MOST_KEPT:
                break
            for series in self.series.values():  # made again where they are needed
                series.drop(degrees)

    def memory(self, layer: int, earlier: int) -> float:
        """Γ of two layers."""
        return float(np.prod([self.scales[step] for step in range(earlier, layer)]))

    def kernel(self, layer: int, earlier: int) -> np.ndarray:
        """E[u_a u_b], a at a layer and b at an earlier one."""
        if (layer, earlier) not in self.kernels:
            top, low = self.layers[layer], self.layers[earlier]
            self.kernels[layer, earlier] = self.memory(layer, earlier) * low.K / np.outer(top.root, low.root)
        return self.kernels[layer, earlier]

    def mean(self, function: NeuronFunction) -> np.ndarray:
        """⟨f⟩ as a matrix over the inputs of its two slots."""
        if function.number not in self.known:
            inputs = len(self.layers[function.layer].K)
            found = self(function("a", "b"))
            self.known[function.number] = np.broadcast_to(found, (inputs, inputs, 1, 1))[:, :, 0, 0]
        return self.known[function.number]

    def __call__(self, first: PlacedFunction, second: PlacedFunction | None = None) -> Any:
        """⟨f⟩ or ⟨f g⟩ over (a, b, c, d)."""
        key = (first.key, second and second.key)
        if key not in self.known:
            others = [(1.0, ())] if second is None else second.function.terms
            total = 0.0
            for c, factors in first.function.terms:
                for d, more in others:
                    placed = first.placed(factors) + (() if second is None else second.placed(more))
                    outer = self._laid(c, first) * (1.0 if second is None else self._laid(d, second))
                    total = total + outer * self._product(placed)
            self.known[key] = total
        return self.known[key]

    def covariance(self, first: PlacedFunction, second: PlacedFunction) -> Any:
        return self(first, second) - self(first) * self(second)

    def _laid(self, coefficient: Any, at: PlacedFunction) -> Any:
        if not np.ndim(coefficient):
            return coefficient
        if at.letters[0] == at.letters[1]:  # a diagonal needs the whole matrix
            coefficient = np.broadcast_to(coefficient, self.layers[at.function.layer].K.shape)
        return on(coefficient, at.letters)

    def _product(self, factors: tuple[PlacedFactor, ...]) -> Any:
        """The expectation of a product; u itself is integrated by parts: ⟨u_x f⟩ = Σ_y E[u_x u_y]⟨∂_y f⟩."""
        factors = tuple(sorted(factors, key=lambda one: (-one[0], one[1], -1 if one[2] is None else one[2])))
        if factors not in self.known:
            self.known[factors] = self._by_parts(factors)
        return self.known[factors]

    def _by_parts(self, factors: tuple[PlacedFactor, ...]) -> Any:
        for place, (layer, letter, order) in enumerate(factors):
            if order is None:
                rest, total = factors[:place] + factors[place + 1 :], 0.0
                for k, (other, at, p) in enumerate(rest):
                    top, low = max(layer, other), min(layer, other)
                    pair = letter + at if layer >= other else at + letter
                    derived = () if p is None else ((other, at, p + 1),)
                    total = total + on(self.kernel(top, low), pair) * self._product(rest[:k] + derived + rest[k + 1 :])
                return total
        letters, orders = "".join(at for _, at, _ in factors), tuple(p for _, _, p in factors if p is not None)
        if not factors:
            return 1.0
        top, low = self.layers[factors[0][0]], self.layers[factors[-1][0]]
        if len(factors) == 1:
            return vector_on(top.single(orders[0]), letters)
        if len(factors) == 2:
            return on(top.pair(*orders), letters)
        if len(factors) == 3:  # of one layer, with an input that is zero as the fourth
            q, at_zero = top.at_zero
            found = self._table((top.layer, "zero"), (*orders, q)) / at_zero
            return entries(np.broadcast_to(found, (len(found),) * 4), letters + letters[-1])
        return entries(self._table((top.layer, low.layer), orders), letters)

    def _table(self, at: tuple[int, Any], orders: Orders) -> np.ndarray:
        """⟨σ^(o_1)_a σ^(o_2)_b σ^(o_3)_c σ^(o_4)_d⟩: a, b at a layer; c, d at an earlier or the same one, or d zero.

        What other layers have been asked for is made along with it.
        """
        layer, other = at
        kind, asked = self._asked(at, orders)
        found = self.tables.setdefault(at, {})
        if orders not in found:
            missing = [one for one in asked if one not in found]
            if kind == "two":
                found |= self._of_two_layers(layer, int(other), missing)
            elif kind == "same":
                found |= self._within(self._series(layer), False, missing)
            else:
                found |= self._within(self._planes(layer, missing, with_zero=True), True, missing)
        return found[orders]

    def _asked(self, at: tuple[int, Any], orders: Orders) -> tuple[str, dict[Orders, None]]:
        """The kind of a table, and what has been asked for of that kind."""
        kind = "zero" if isinstance(at[1], str) else "same" if at[1] == at[0] else "two"
        asked = self.asked.setdefault(kind, {})
        asked[orders] = None
        return kind, asked

    def _planes(self, layer: int, orders: Iterable[Orders], with_zero: bool = False) -> PlaneSeries:
        """The series of planes of a layer; the last input may be one that is zero."""
        neurons = self.layers[layer]
        K, placed = np.pad(neurons.reduced, (0, int(with_zero))), assignments(tuple({*map(_sorted_orders, orders)}))
        return PlaneSeries(neurons.activation, K, placed, self.tolerance, keep=not with_zero)

    def _series(self, layer: int) -> PlaneSeries:
        """That of a layer whose tables of planes serve all tables of four inputs that the layer has a part in."""
        asked = [*self.asked.get("same", ()), *self.asked.get("two", ())]
        if layer not in self.series or not {*map(_sorted_orders, asked)} <= {*self.series[layer].placed}:
            self.series[layer] = self._planes(layer, asked)
        return self.series[layer]

    def _of_two_layers(self, layer: int, earlier: int, wanted: list[Orders]) -> dict[Orders, np.ndarray]:
        """Tables with a, b at a layer and c, d at an earlier one, from pairs a ≤ b and c ≤ d."""
        first, second = np.triu_indices(len(self.layers[layer].K))
        orders = tuple(dict.fromkeys(one for asked in wanted for one in _exchanged(asked)))
        if (layer, earlier, orders) not in self.ahead:
            self._look_ahead(layer, earlier, orders, np.stack([first, second], axis=1))
        values, pairs = self.ahead.pop((layer, earlier, orders)), len(first)
        column = {one: number for number, one in enumerate(orders)}
        pair = np.zeros((first[-1] + 1,) * 2, int)
        pair[first, second] = pair[second, first] = np.arange(pairs)
        falls = np.tri(len(pair), k=-1, dtype=int)
        row = pairs * pair[:, :, None, None] + pair
        which = 2 * falls[:, :, None, None] + falls
        return {one: values[row, np.array([column[x] for x in _exchanged(one)])[which]] for one in wanted}

    def _look_ahead(self, layer: int, earlier: int, orders: tuple[Orders, ...], pairs: np.ndarray) -> None:
        """Values for a layer and the next ones along its stream, which share most work, at all pairs of pairs."""
        tops = [layer]
        while len(tops) < LAYERS_AHEAD and self.scales.get(tops[-1]) and tops[-1] + 1 in self.layers:
            tops.append(tops[-1] + 1)
        low = self.layers[earlier]
        gains = [self.memory(top, earlier) * low.root / self.layers[top].root for top in tops]
        series = LaterLayers(self._series(earlier), [self._series(top) for top in tops], gains, orders)
        quads = np.concatenate([np.repeat(pairs, len(pairs), axis=0), np.tile(pairs, (len(pairs), 1))], axis=1)
        for top, value, errors in zip(tops, *series(quads), strict=True):
            self.bounds.append((orders, errors.max(axis=0), np.abs(value).max(axis=0)))
            self.ahead[top, earlier, orders] = value

    def _within(self, series: PlaneSeries, with_zero: bool, wanted: list[Orders]) -> dict[Orders, np.ndarray]:
        """Tables at the inputs of one series, over four of them, or over three and the last one, which is zero."""
        column = {orders: number for number, orders in enumerate(series.placed)}
        laid = _sorted_entries(len(series.K) - with_zero, with_zero)
        values, errors = series(laid.quads)
        self.bounds.append((series.placed, errors.max(axis=0), np.abs(values).max(axis=0)))
        found = {}
        for orders in wanted:
            columns = np.array([column[tuple(orders[k] for k in row)] for row in laid.sortings])
            found[orders] = values[laid.place, columns[laid.which]]
        return found


class _SortedEntries(NamedTuple):
    """Sorted quadruples (count, 4), and for each entry of a table which of them it is and how it was sorted."""

    quads: np.ndarray
    sortings: np.ndarray
    place: np.ndarray
    which: np.ndarray


@lru_cache(maxsize=4)
def _sorted_entries(inputs: int, with_zero: bool) -> _SortedEntries:
    index = np.indices((inputs, inputs, inputs, 1 if with_zero else inputs))
    index[3] += inputs if with_zero else 0
    sizes, flat = index.shape[1:], index.reshape(4, -1).T
    order = np.argsort(flat, axis=1, kind="stable")
    quads, place = np.unique(np.take_along_axis(flat, order, axis=1), axis=0, return_inverse=True)
    sortings, which = np.unique(order, axis=0, return_inverse=True)
    return _SortedEntries(quads.astype(np.int32), sortings, place.reshape(sizes), which.reshape(sizes))


def _sorted_orders(orders: Orders) -> Orders:
    return tuple(sorted(orders))


def _exchanged(orders: Orders) -> tuple[Orders, ...]:
    """Orders on (a, b, c, d): as they are, with c and d exchanged, with a and b, with both."""
    p, q, r, s = orders
    return (p, q, r, s), (p, q, s, r), (q, p, r, s), (q, p, s, r)


class AskedTables(NeuronExpectations):
    """Answers zero to whatever is asked about one input, and notes the tables: made together, they share most work."""

    def __init__(self):
        super().__init__(1.0)

    def _by_parts(self, factors: tuple[PlacedFactor, ...]) -> Any:
        whole = all(order is not None for *_, order in factors)
        return 0.0 if whole and len(factors) <= 2 else super()._by_parts(factors)

    def _table(self, at: tuple[int, Any], orders: Orders) -> np.ndarray:
        self._asked(at, orders)
        return np.zeros((1, 1, 1, 1))
