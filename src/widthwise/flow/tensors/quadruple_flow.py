"""Tensors of order 1/n at lists of quadruples, carried through all layers and never held for all quadruples at once.

Given K and Θ of every layer, a quadruple flows by itself: its tensors of layer l+1 read those of layer l at the same
four inputs in other orders, and at quadruples with a repeated input (theory §4, §5). Those are the faces, arrays over
the distinct inputs: N³ numbers a tensor, not N⁴, closed under the recursions, and there beforehand.

A list has some columns of inputs, and places (rows, 4) that say which column each index a, b, c, d of a rule reads.
For sorted quadruples all 24 orders are rows, so a tensor in another index order is another row of the same list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from widthwise import devices
from widthwise.blas_threads import with_one_blas_thread
from widthwise.devices import library
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.tensor_flow import (
    FACES,
    NEEDS,
    READS,
    equal_entries,
    families_of,
    fits,
    required,
)
from widthwise.flow.tensors.tensor_rules import RULES, LayerStep, Legs, QuadrupleMatrix, QuadrupleTensor
from widthwise.gaussian.four_points import Orders
from widthwise.gaussian.four_points.accelerated import AcceleratedSeries
from widthwise.gaussian.four_points.dispatch import check_fourth_moments, relative_error
from widthwise.gaussian.four_points.families import COMPILE_FROM, PERMUTATIONS, assignments, columns
from widthwise.gaussian.four_points.planes import PlaneSeries
from widthwise.network import MLP
from widthwise.tensors import FOURS, MEANS

#: All index orders of four sorted inputs: row, then the place of a, b, c, d.
ORDERS = np.array(PERMUTATIONS)
ROW_OF_ORDER = {order: row for row, order in enumerate(PERMUTATIONS)}
_INVERSE = np.array([PERMUTATIONS.index(tuple(np.argsort(order).tolist())) for order in PERMUTATIONS])
#: Face by tensor name and pattern, each over its distinct inputs.
Faces = dict[str, dict[str, Any]]
#: Numbers in one array of a piece of a face, on a processor and on an accelerator.
FACE_PIECES = {"cpu": 1 << 17, "gpu": 1 << 20}
#: Four-point expectations (count, assignments) of sorted quadruples (count, 4).
Values = Callable[[np.ndarray], Any]
#: Is told how many quadruples, times layers, have been done.
Count = Callable[[int], None]
PLACED = assignments(families_of(FOURS))
#: Quadruples that are carried at a time, on a processor and on an accelerator.
CHUNKS = {"cpu": 1 << 13, "gpu": 1 << 17}


@dataclass(frozen=True, eq=False)
class Listed:
    """Inputs (columns, quadruples), and which column the indices a, b, c, d read: places (rows, 4)."""

    columns: Any
    places: np.ndarray

    def matrix(self, values) -> PlacedMatrix:
        first, second = self.columns[:, None], self.columns[None, :]
        return PlacedMatrix(values[first, second], self.places)


@dataclass(frozen=True, eq=False)
class PlacedMatrix(QuadrupleMatrix):
    """A matrix between all columns of a list: (columns, columns, quadruples)."""

    values: Any
    places: np.ndarray

    def on(self, pair: str):
        """M_pair over (rows, quadruples)."""
        first, second = ("abcd".index(letter) for letter in pair)
        return self.values[self.places[:, first], self.places[:, second]]

    def __mul__(self, other):
        return PlacedMatrix(self.values * getattr(other, "values", other), self.places)

    __rmul__ = __mul__

    def __add__(self, other):
        return PlacedMatrix(self.values + other.values, self.places)


class PlacedTensor(QuadrupleTensor):
    """A tensor of the layer below: in all `orders` (24, quadruples), or None, and on its `faces` by pattern."""

    def __init__(self, name: str, orders, faces: Mapping[str, Any], listed: Listed):
        self.name, self.orders, self.faces, self.listed, self.known = name, orders, faces, listed, {}

    def entries(self, indices: str):
        """The tensor at these letters, over (rows, quadruples); see `tensor_rules.entries`."""
        places = self.listed.places[:, ["abcd".index(letter) for letter in indices]]
        if len(set(places[0].tolist())) == 4:
            return self.orders[np.array([ROW_OF_ORDER[tuple(row)] for row in places.tolist()])]
        for equal in equal_entries(self.name, places):
            for pattern in FACES[self.name]:
                if fits(pattern, equal):
                    at = equal[:, [pattern.index(letter) for letter in sorted(set(pattern))]]
                    return self._face(pattern)[tuple(at.T)]
        raise KeyError(f"{self.name} is not kept at inputs like {indices}")

    def _face(self, pattern: str):
        """A face between all columns of the list: (columns, …, quadruples)."""
        if pattern not in self.known:
            columns, count = self.listed.columns, len(set(pattern))
            grids = [columns[tuple(slice(None) if j == k else None for j in range(count))] for k in range(count)]
            self.known[pattern] = self.faces[pattern][tuple(grids)]
        return self.known[pattern]


def placed_step(step: LayerStep, listed: Listed, fours: Mapping[tuple[int, ...], Any]) -> LayerStep:
    """A step with its matrices laid out over a list."""

    def placed(legs: Legs) -> Legs:
        matrices = (legs.value, legs.aa, legs.ab, legs.aaaa, legs.aaab, legs.aabb)
        return Legs(*(None if values is None else listed.matrix(values) for values in matrices), error=legs.error)

    return replace(step, H=listed.matrix(step.H), sigma=placed(step.sigma), slope=placed(step.slope), fours=fours)


def assigned(orders: Orders) -> np.ndarray:
    """For each of `ORDERS`, the column of `PLACED` that has the derivative of index k at the place where k stands."""
    return columns(orders, PLACED)[_INVERSE]


def no_faces(inputs: int) -> Faces:
    """Those of the first layer: zero."""
    return {name: {p: np.zeros((inputs,) * len(set(p))) for p in patterns} for name, patterns in FACES.items()}


def next_faces(layer: LayerStep, below: Faces, values: Values, compiled: bool) -> Faces:
    """Faces of layer l+1; `values` gives four-point expectations, columns as in `PLACED`."""
    inputs = len(layer.H)
    above = no_faces(inputs)
    step = min(max(1, devices.by_device(FACE_PIECES) // inputs**2), inputs)
    rule = _compiled_face_entries if compiled else _face_entries
    if compiled:
        # once, not for each piece
        layer, below = jax.tree.map(jnp.asarray, (layer, below))
    for start in range(0, inputs, step):
        some = np.arange(start, min(start + step, inputs))
        # one shape for all pieces, so that each rule is compiled once
        padded = np.pad(some, (0, step - len(some) if compiled else 0), mode="edge")
        found = _Repeated.of(some, padded, inputs, values)
        found = jax.tree.map(jnp.asarray, found) if compiled else found
        for name, patterns in FACES.items():
            for pattern in patterns:
                grid = np.meshgrid(padded, *[np.arange(inputs)] * (len(set(pattern)) - 1), indexing="ij")
                inside = np.stack([axis.ravel() for axis in grid])
                made = rule(name, pattern, replace(layer, fours={}), below, found, inside)
                above[name][pattern][some] = np.asarray(made).reshape(grid[0].shape)[: len(some)]
    return above


class _Repeated(NamedTuple):
    """Expectations of the quadruples (x, x, y, z), x from `some` inputs on, y ≤ z: (x, pairs, assignments)."""

    start: Any
    pair: Any
    values: Any

    @classmethod
    def of(cls, some: np.ndarray, padded: np.ndarray, inputs: int, values: Values) -> _Repeated:
        y, z = np.triu_indices(inputs)
        pair = np.zeros((inputs, inputs), int)
        pair[y, z] = pair[z, y] = np.arange(len(y))
        x = np.repeat(some, len(y))
        quads = np.sort(np.stack([x, x, np.tile(y, len(some)), np.tile(z, len(some))], axis=1), axis=1)
        found = values(quads)
        found = found.reshape(len(some), len(y), found.shape[-1])[padded - some[0]]
        return cls(int(some[0]), pair, found)

    def read(self, inside: Any, pattern: str, orders: Orders) -> Any:
        """⟨σ^(o_1) …⟩ with the four inputs by a pattern of x, y, z, from columns (inputs, entries)."""
        slots = inside[np.array(["xyz".index(letter) for letter in pattern])]
        # how many stand before each: of equal inputs the first comes first
        places = [
            sum(slots[j] <= slots[k] if j < k else slots[j] < slots[k] for j in range(4) if j != k) for k in range(4)
        ]
        codes = places[0] * 64 + places[1] * 16 + places[2] * 4 + places[3]
        y, z = inside[-2:] if len(inside) == 3 else (inside[1], inside[1])
        table = np.zeros(256, int)
        table[ORDERS @ np.array([64, 16, 4, 1])] = assigned(orders)
        column = library(self.values).asarray(table)[codes]
        return self.values[inside[0] - self.start, self.pair[y, z], column][None]


def _face_entries(name: str, pattern: str, layer: LayerStep, below: Faces, found: _Repeated, inside):
    """One tensor of layer l+1 at entries of a pattern."""
    fours = {orders: found.read(inside, pattern, orders) for orders in READS[name]}
    listed = Listed(inside, np.array([["xyz".index(letter) for letter in pattern]]))
    tensors = {other: PlacedTensor(other, None, faces, listed) for other, faces in below.items()}
    terms = RULES[name](placed_step(layer, listed, fours), tensors)
    return sum(terms.values(), start=np.zeros(()))[0]


_compiled_face_entries = partial(jax.jit, static_argnums=(0, 1))(_face_entries)


def next_means(layer: LayerStep, below: Faces, means: Mapping[str, Any]) -> dict[str, Any]:
    """G1 and H1 of layer l+1, from their values and the faces of layer l."""
    inputs = len(layer.H)
    listed = Listed(np.indices((inputs, inputs)).reshape(2, -1), np.array([[0, 1]]))
    needed = {other for name in MEANS for other in NEEDS[name]} - set(means)
    tensors: dict[str, Any] = {name: PlacedTensor(name, None, below[name], listed) for name in needed}
    tensors |= {name: listed.matrix(values) for name, values in means.items()}
    step = placed_step(layer, listed, {})
    return {name: np.asarray(sum(RULES[name](step, tensors).values())).reshape(inputs, inputs) for name in MEANS}


@dataclass(frozen=True, eq=False)
class _QuadrupleStep:
    """From layer l to l+1: its matrices, its four-point expectations, and the faces of layer l.

    `largest` are the largest error bound and the largest value that each assignment has had so far.
    """

    layer: LayerStep
    series: PlaneSeries | AcceleratedSeries
    faces: Faces | None
    largest: np.ndarray
    count: Count

    def values(self, quads: np.ndarray) -> Any:
        """Four-point expectations (quadruples, assignments)."""
        if not isinstance(self.series, AcceleratedSeries):
            return self.padded(quads, len(quads))
        length = devices.by_device(CHUNKS)
        starts = range(0, len(quads), length)
        return jnp.concatenate([self.padded(quads[k : k + length], length) for k in starts])[: len(quads)]

    def padded(self, quads: np.ndarray, length: int) -> Any:
        """The same for a list that is filled up to a length with its last quadruple."""
        more, accelerated = ((0, length - len(quads)), (0, 0)), isinstance(self.series, AcceleratedSeries)
        xp, series = (jnp if accelerated else np), cast(Any, self.series)
        values, errors = series(jnp.asarray(np.pad(quads, more, mode="edge")) if accelerated else quads)
        found = [xp.max(sizes, axis=0, initial=0.0) for sizes in (errors, xp.abs(values))]
        np.maximum(self.largest, np.stack(found), out=self.largest)
        self.count(len(quads))
        return values if accelerated else np.pad(values, more, mode="edge")


class QuadrupleFlow:
    """Tensors of the output layer of a network at any quadruples of the inputs X (inputs, features).

    `K`, `Theta`, `G1`, `H1` are those of the output on all pairs. `possible` says whether the route, Hermite planes,
    resolves the activation.
    """

    @with_one_blas_thread
    def __init__(
        self, net: MLP, X: np.ndarray, wanted: tuple[str, ...], tolerance: float = 1e-9, progress: Count | None = None
    ):
        self.done, self.progress = 0, progress
        kernels = kernel_flow(net, X)
        self.inputs, self.carried = len(X), tuple(name for name in required(wanted) if name in FOURS)
        self.K, self.Theta, self.pair_error = kernels.K[-1], kernels.Theta[-1], kernels.error
        self.compiled = self.inputs >= COMPILE_FROM
        K, Theta = kernels.K, kernels.Theta
        at = list(zip(net.activations, K[:-1], strict=True))
        self.series = [PlaneSeries(sigma, kernel, PLACED, tolerance, keep=True) for sigma, kernel in at]
        self.possible = all(series.possible for series in self.series)
        self.steps: list[_QuadrupleStep] = []
        means = {name: np.zeros_like(self.K) for name in MEANS}
        if self.possible:
            for sigma, kernel in at:
                check_fourth_moments(sigma, kernel, max(map(max, PLACED)))
            faces = no_faces(self.inputs)
            for layer, series in enumerate(self.series, 1):
                made = LayerStep.of(net, layer, K[layer - 1], Theta[layer - 1])
                self.pair_error = max(self.pair_error, made.error)
                accelerated = self.compiled and devices.on_accelerator() and not series.slow
                route = AcceleratedSeries(series) if accelerated else series
                largest = np.zeros((2, len(PLACED)))
                self.steps.append(_QuadrupleStep(made, route, faces if layer > 1 else None, largest, self._count))
                means = next_means(made, faces, means)
                if layer < len(self.series):
                    faces = next_faces(made, faces, self.steps[-1].values, self.compiled)
                    # compiled steps read them again and again
                    faces = jax.tree.map(jnp.asarray, faces) if self.compiled else faces
        self.G1, self.H1 = means["G1"], means["H1"]

    def _count(self, quadruples: int) -> None:
        self.done += quadruples
        if self.progress is not None:
            self.progress(self.done)

    @property
    def error(self) -> float:
        """The largest relative error bound so far."""
        return max([self.pair_error, *(relative_error(PLACED, *step.largest) for step in self.steps)])

    @with_one_blas_thread
    def tensors(self, quads: np.ndarray, wanted: tuple[str, ...], room: int = 0) -> dict[str, Any]:
        """The wanted tensors at sorted quadruples (count, 4), in all orders of `ORDERS`: each (24, count).

        Compiled steps have a fixed length, and what they compute past the last quadruple is left at the end. With room
        for more quadruples zeros follow.
        """
        chunk = devices.by_device(CHUNKS) if self.compiled else max(len(quads), 1)
        found = [self._carry(quads[k : k + chunk], wanted, chunk) for k in range(0, len(quads), chunk)]
        whole = chunk if self.compiled else 1
        length = whole * -(-max(len(quads), room) // whole)
        xp = jnp if self.compiled else np
        more = [xp.zeros((len(ORDERS), length - len(found) * chunk))] if length > len(found) * chunk else []

        def joined(name: str) -> Any:
            # taken out, so that one tensor at a time is there twice
            parts = [*(f.pop(name) for f in found), *more]
            return parts[0] if len(parts) == 1 else xp.concatenate(parts, 1)

        return {name: joined(name) for name in wanted}

    def _carry(self, quads: np.ndarray, wanted: tuple[str, ...], chunk: int) -> dict[str, Any]:
        if not self.steps:
            return {name: np.zeros((len(ORDERS), chunk)) for name in wanted}
        state: dict[str, Any] = {}
        # one shape for all chunks, so that the step is compiled once
        columns = np.ascontiguousarray(np.pad(quads, ((0, chunk - len(quads)), (0, 0)), mode="edge").T)
        for number, step in enumerate(self.steps, 1):
            # at the last layer nothing is needed but what is wanted
            names = wanted if number == len(self.steps) else self.carried
            advance = _compiled_next_tensors if self.compiled else _next_tensors
            state = advance(names, step.layer, step.faces, state, step.padded(quads, chunk).T, columns)
        return state


class _FirstLayer(QuadrupleTensor):
    """A tensor of the first layer."""

    def entries(self, indices: str) -> float:
        return 0.0


def _next_tensors(
    names: tuple[str, ...], layer: LayerStep, faces: Faces | None, state: Mapping[str, Any], values, columns
):
    """Tensors of layer l+1 in all orders; `values` (assignments, quadruples), `columns` (4, quadruples)."""
    listed = Listed(columns, ORDERS)
    fours = {orders: values[assigned(orders)] for name in names for orders in READS[name]}
    here = placed_step(layer, listed, fours)
    tensors, nothing = {}, _FirstLayer()
    for other in {other for name in names for other in NEEDS[name]}:
        tensors[other] = PlacedTensor(other, state[other], faces.get(other, {}), listed) if faces else nothing
    return {name: sum(RULES[name](here, tensors).values()) for name in names}


_compiled_next_tensors = partial(jax.jit, static_argnums=0)(_next_tensors)
