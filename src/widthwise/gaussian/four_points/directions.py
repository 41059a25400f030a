"""Quadruples whose inputs point in one or two directions: parallel inputs are one variable, and no planes are needed.

Any pairing of three parallel inputs with a fourth has two planes that share a direction, where the series over degrees
does not converge. But Π σ^(o)(s_i u) over parallel inputs is one function of one variable: a single direction is an
integral on a line, and two are an overlap Σ_k F_k G_k ρ^k of two such functions, cut where the tails say.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from widthwise.activations import Activation, intervals, jet
from widthwise.activations.closed_forms import PARALLEL_SHARE
from widthwise.gaussian.four_points.families import Orders
from widthwise.gaussian.quadrature import REACH, Source, basis, panel_nodes, row_edges

#: Terms of the overlap, and the spacing of panels that resolves so many.
_TERMS, _SPACING = 384, 0.5
#: Quadruples worked on at a time.
_AT_ONCE = 16


class Directions(NamedTuple):
    """For each input the first input that is parallel to it, and its sign along that one."""

    leader: np.ndarray
    sign: np.ndarray

    @classmethod
    def of(cls, rho: np.ndarray) -> Directions:
        parallel = (1.0 - rho * rho <= PARALLEL_SHARE) | np.eye(len(rho), dtype=bool)
        leader = np.argmax(parallel, axis=1)
        return cls(leader, np.where(rho[np.arange(len(rho)), leader] < 0.0, -1.0, 1.0))

    def few(self, quads: np.ndarray) -> np.ndarray:
        """Which quadruples (count, 4) of more than two inputs have no more than two directions."""
        directions, inputs = (1 + np.count_nonzero(np.diff(np.sort(x, axis=1), axis=1), axis=1)
                              for x in (self.leader[quads], quads))  # fmt: skip
        return (directions <= 2) & (inputs > 2)


def direction_moments(
    activation: Activation, scale: np.ndarray, rho: np.ndarray, placed: tuple[Orders, ...], quads: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Values and error bounds (quadruples, assignments) of quadruples that `Directions.few` marks."""
    at = Directions.of(rho)
    leader, signed = at.leader[quads], (at.sign * scale)[quads]
    values, errors = np.empty((2, len(quads), len(placed)))
    along_first = leader == leader[:, :1]
    for mask in np.unique(along_first, axis=0):
        members = np.flatnonzero((along_first == mask).all(axis=1))
        for start in range(0, len(members), _AT_ONCE):
            rows = members[start : start + _AT_ONCE]
            first, second = (np.flatnonzero(part) for part in (mask, ~mask))
            line = _Line(activation, signed[np.ix_(rows, first)], placed)
            if mask.all():
                found = [line.mean(orders) for orders in placed]
            else:
                other = _Line(activation, signed[np.ix_(rows, second)], placed)
                between = rho[leader[rows, 0], leader[rows, second[0]]]
                found = [
                    _overlap(
                        line.series(tuple(o[k] for k in first)), other.series(tuple(o[k] for k in second)), between
                    )
                    for o in placed
                ]
            values[rows], errors[rows] = (np.stack(column, axis=1) for column in zip(*found, strict=True))
    return values, errors


class _Series(NamedTuple):
    """Hermite coefficients (rows, terms), and √ of ⟨F²⟩ and of what the coefficients leave of it."""

    coefficients: np.ndarray
    norm: np.ndarray
    tail: np.ndarray


class _Line:
    """Functions Π_i σ^(o_i)(scale_i u) of one standard normal u, a row for each list of scales."""

    def __init__(self, activation: Activation, scale: np.ndarray, placed: tuple[Orders, ...]):
        highest = max(order for orders in placed for order in orders)
        radius = REACH * float(np.abs(scale).max(initial=0.0))
        orders = tuple(range(highest + 1))
        edges_z = intervals(activation, orders, radius)
        fixed = np.arange(-REACH, REACH + _SPACING / 2, _SPACING)
        sources = [Source(edges_z, np.zeros(len(scale)), column) for column in scale.T]
        self.u, self.weight = panel_nodes(row_edges(sources, fixed))
        self.jets = [jet(activation, orders, column[:, None] * self.u) for column in scale.T]
        self.series = lru_cache(maxsize=None)(self._series)

    def product(self, orders: Orders) -> np.ndarray:
        return np.prod([jet[order] for jet, order in zip(self.jets, orders, strict=True)], axis=0)

    def mean(self, orders: Orders) -> tuple[np.ndarray, np.ndarray]:
        values = self.weight * self.product(orders)
        return values.sum(axis=1), 1e-13 * np.abs(values).sum(axis=1)

    @cached_property
    def weighted(self) -> np.ndarray:
        """Polynomials times weights (rows, terms, nodes)."""
        return np.moveaxis(basis(self.u, _TERMS) * self.weight, 0, 1)

    def _series(self, orders: Orders) -> _Series:
        F = self.product(orders)
        coefficients = (self.weighted @ F[:, :, None])[:, :, 0]
        square = np.sum(self.weight * F * F, axis=1)
        left = np.maximum(square - np.sum(coefficients**2, axis=1), 64 * np.finfo(float).eps * square)
        return _Series(coefficients, np.sqrt(square), np.sqrt(left))


def _overlap(F: _Series, G: _Series, rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    value = np.einsum("ak,ak,ak->a", F.coefficients, G.coefficients, rho[:, None] ** np.arange(_TERMS))
    return value, np.abs(rho) ** _TERMS * F.tail * G.tail + 1e-13 * F.norm * G.norm
