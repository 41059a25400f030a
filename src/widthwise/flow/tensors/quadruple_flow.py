"""Tensors of order 1/n at lists of quadruples, carried through all layers and never held for all quadruples at once.

Given K and Θ of every layer, a quadruple flows by itself: its tensors of layer l+1 read those of layer l at the same
four inputs in other orders, and at quadruples with a repeated input, the faces, which are there beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise import devices
from widthwise.devices import by_device
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors.faces import Faces, next_faces, next_means, no_faces
from widthwise.flow.tensors.legs import Known, legs
from widthwise.flow.tensors.placed import ORDERS, Listed, placed_step
from widthwise.flow.tensors.rules import NEEDS, READS, RULES, families_of
from widthwise.flow.tensors.tensor_flow import COMPILE_FROM, required
from widthwise.flow.tensors.tensor_rules import LayerStep
from widthwise.gaussian.four_point import Orders
from widthwise.gaussian.four_point.accelerated import AcceleratedSeries
from widthwise.gaussian.four_point.dispatch import check_fourth_moments, relative_error
from widthwise.gaussian.four_point.families import assignments
from widthwise.gaussian.four_point.planes import PlaneSeries
from widthwise.network import MLP
from widthwise.tensors import FOURS, MEANS

PLACED = assignments(families_of(FOURS))
#: Quadruples that are carried at a time, on a processor and on an accelerator.
CHUNKS = {"cpu": 1 << 13, "gpu": 1 << 17}


@dataclass(frozen=True, eq=False)
class _QuadrupleStep:
    """From layer l to l+1: its matrices, its four-point expectations, and the faces of layer l.

    `largest` are the largest error bound and the largest value that each assignment has had so far.
    """

    layer: LayerStep
    series: PlaneSeries | AcceleratedSeries
    faces: Faces | None
    largest: np.ndarray
    count: Callable[[int], None]

    def values(self, quads: np.ndarray) -> Any:
        """Four-point expectations (quadruples, assignments)."""
        if not isinstance(self.series, AcceleratedSeries):
            return self.padded(quads, len(quads))
        length = by_device(CHUNKS)
        starts = range(0, len(quads), length)
        return jnp.concatenate([self.padded(quads[k : k + length], length) for k in starts])[: len(quads)]

    def padded(self, quads: np.ndarray, length: int) -> Any:
        """The same for a list that is filled up to a length with its last quadruple."""
        more = ((0, length - len(quads)), (0, 0))
        if isinstance(self.series, AcceleratedSeries):
            values, errors = self.series(jnp.asarray(np.pad(quads, more, mode="edge")))
            found = jnp.max(errors, axis=0), jnp.max(jnp.abs(values), axis=0)
        else:
            values, errors = self.series(quads)
            found = errors.max(axis=0, initial=0.0), np.abs(values).max(axis=0, initial=0.0)
            values = np.pad(values, more, mode="edge")
        np.maximum(self.largest, np.stack(found), out=self.largest)
        self.count(len(quads))
        return values


class QuadrupleFlow:
    """Tensors of the output layer of a network at any quadruples of the inputs X (inputs, features).

    `K`, `Theta`, `G1`, `H1` are those of the output on all pairs. `possible` says whether the route, Hermite planes,
    resolves the activation. `progress` is told how many quadruples, times layers, have been done.
    """

    def __init__(
        self,
        net: MLP,
        X: np.ndarray,
        wanted: tuple[str, ...],
        tolerance: float = 1e-9,
        progress: Callable[[int], None] | None = None,
    ):
        self.done, self.progress = 0, progress
        kernels = kernel_flow(net, X)
        assert kernels.Theta is not None
        self.inputs, self.carried = len(X), tuple(name for name in required(wanted) if name in FOURS)
        self.K, self.Theta, self.pair_error = kernels.K[-1], kernels.Theta[-1], kernels.error
        self.compiled = self.inputs >= COMPILE_FROM
        at = list(zip(net.activations, kernels.K[:-1], strict=True))
        self.series = [PlaneSeries(sigma, K, PLACED, tolerance, keep=True) for sigma, K in at]
        self.possible = all(series.possible for series in self.series)
        self.steps: list[_QuadrupleStep] = []
        means = {name: np.zeros_like(self.K) for name in MEANS}
        if self.possible:
            for sigma, K in at:
                check_fourth_moments(sigma, K, max(map(max, PLACED)))
            means = self._build(net, kernels.K, kernels.Theta, means)
        self.G1, self.H1 = means["G1"], means["H1"]

    def _build(self, net: MLP, K: np.ndarray, Theta: np.ndarray, means: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Steps of all layers, layer by layer; the means come along."""
        faces = no_faces(self.inputs)
        for layer, series in enumerate(self.series, 1):
            known: Known = {}
            sigma, slope = (legs(net.activations[layer - 1], p, K[layer - 1], True, known) for p in (0, 1))
            self.pair_error = max(self.pair_error, sigma.error, slope.error)
            made = LayerStep.of(net, layer, Theta[layer - 1], sigma, slope)
            route = (
                AcceleratedSeries(series) if self.compiled and devices.on_accelerator() and not series.slow else series
            )
            step = _QuadrupleStep(made, route, faces if layer > 1 else None, np.zeros((2, len(PLACED))), self._count)
            self.steps.append(step)
            means = next_means(made, faces, means)
            if layer < len(self.series):
                faces = next_faces(made, faces, step.values, PLACED, self.compiled)
                # compiled steps read them again and again
                faces = jax.tree.map(jnp.asarray, faces) if self.compiled else faces
        return means

    def _count(self, quadruples: int) -> None:
        self.done += quadruples
        if self.progress is not None:
            self.progress(self.done)

    @property
    def error(self) -> float:
        """The largest relative error bound so far."""
        return max([self.pair_error, *(relative_error(PLACED, *step.largest) for step in self.steps)])

    def tensors(self, quads: np.ndarray, wanted: tuple[str, ...], room: int = 0) -> dict[str, Any]:
        """The wanted tensors at sorted quadruples (count, 4), in all orders of `ORDERS`: each (24, count).

        Compiled steps have a fixed length, and what they compute past the last quadruple is left at the end. With room
        for more quadruples zeros follow.
        """
        chunk = by_device(CHUNKS) if self.compiled else max(len(quads), 1)
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


def _next_tensors(
    names: tuple[str, ...], layer: LayerStep, faces: Faces | None, state: Mapping[str, Any], values, columns
):
    """Tensors of layer l+1 in all orders; `values` (assignments, quadruples), `columns` (4, quadruples)."""
    listed = Listed(columns, ORDERS)
    fours = {orders: values[_assigned(orders)] for name in names for orders in READS[name]}
    here = placed_step(layer, listed, fours)
    tensors: dict[str, Any] = {}
    for other in {other for name in names for other in NEEDS[name]}:
        tensors[other] = listed.tensor(other, state[other], faces.get(other, {})) if faces else _Nothing()
    return {name: sum(RULES[name](here, tensors).values()) for name in names}


_compiled_next_tensors = partial(jax.jit, static_argnums=0)(_next_tensors)


def _assigned(orders: Orders) -> np.ndarray:
    """For each order of the inputs, the column that has the derivative of index k at the place where k stands."""
    where = {assignment: column for column, assignment in enumerate(PLACED)}
    found = []
    for places in ORDERS.tolist():
        assignment = [0] * 4
        for order, place in zip(orders, places, strict=True):
            assignment[place] = order
        found.append(where[tuple(assignment)])
    return np.array(found)


class _Nothing:
    """A tensor of the first layer."""

    def entries(self, indices: str) -> float:
        return 0.0
