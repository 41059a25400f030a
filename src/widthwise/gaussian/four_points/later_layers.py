"""Four-point expectations of two inputs at one layer and two at later ones, which residual connections join.

Along the stream z^(l)_a = κ_a z^(s)_a + noise that does not depend on layer s. So the mean of a function of the plane
(a, b) of layer l, given layer s, is a function of the plane (a, b) of layer s. Every later layer is pulled back once,
plane by plane; what is left are overlaps of two planes of layer s, for all later layers at once.

Where the layers are so correlated that the series of these planes is slow, all inputs of both layers are taken as
inputs of one kernel, and planes may join the layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from widthwise.devices import on_all_cores
from widthwise.gaussian.four_points.directions import Directions
from widthwise.gaussian.four_points.families import Orders, assignments, pair_types, type_rows
from widthwise.gaussian.four_points.geometry import DEGREE_BLOCK, Geometry, harmonic_matrices, paired
from widthwise.gaussian.four_points.planes import LINE_TERMS, PLANE_DEGREES, PlaneSeries, bounds, last_edge
from widthwise.gaussian.four_points.tables import Block, PlaneTables

#: Planes within layers are followed up to here.
LAST_WITHIN_LAYERS = 128
#: Quadruples that are summed at a time, and from how many such lists on more than one thread pays.
ROWS_AT_ONCE, PIECES_FOR_THREADS = 256, 32


class LaterLayers:
    """⟨σ^(p)_a σ^(q)_b(z^(l)) σ^(p')_c σ^(q')_d(z^(s))⟩ with c, d of one layer, a, b of each of several later ones.

    `low` is the series of layer s, `tops` those of the later layers, with the same assignments and tables that are
    kept; `gains` are κ (inputs, or one number for all) of each later layer.
    """

    def __init__(self, low: PlaneSeries, tops: list[PlaneSeries], gains: list[np.ndarray], orders: tuple[Orders, ...]):
        self.low, self.tops, self.orders = low, tops, orders
        self.kernels, self.correlations = [], []
        for top, gain in zip(tops, gains, strict=True):
            cross = np.broadcast_to(gain, len(low.K))[:, None] * low.K
            kernel = np.block([[top.K, cross], [cross.T, low.K]])
            scale = np.sqrt(np.diag(kernel))
            self.kernels.append(kernel)
            self.correlations.append(kernel / np.maximum(np.outer(scale, scale), 1e-300))

    def __call__(self, quads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and error bounds (later layers, quadruples, orders) at a ≤ b and c ≤ d, in lexicographic order."""
        values = np.zeros((len(self.tops), len(quads), len(self.orders)))
        errors = np.zeros(values.shape)
        inputs = len(self.low.K)
        composite = quads + np.array([0, 0, inputs, inputs])
        left = self._within_layers(quads, values, errors)
        placed = assignments(tuple({tuple(sorted(orders)) for orders in self.orders}))
        columns = [placed.index(orders) for orders in self.orders]
        for top, kernel, value, error, rows in zip(self.tops, self.kernels, values, errors, left, strict=True):
            if len(rows):
                series = PlaneSeries(top.activation, kernel, placed, top.tolerance)
                value[rows], error[rows] = (found[:, columns] for found in series(composite[rows].astype(np.int32)))
        return values, errors

    def _within_layers(self, quads, values, errors) -> list[np.ndarray]:
        """Sum over planes of each layer, where they resolve it; the quadruples that are left of each later layer."""
        rows, inputs = np.arange(len(quads)), len(self.low.K)
        if any(series.slow or series.parity != self.low.parity for series in (self.low, *self.tops)):
            return [rows] * len(self.tops)
        same = np.stack([quads[:, k] == quads[:, k + 1] for k in (0, 2)])
        at = quads[:, :2], quads[:, :2] + inputs, quads[:, 2:] + inputs
        lines, planes, left = np.all(same, axis=0), np.ones(len(quads), bool), []
        for number, rho in enumerate(self.correlations):
            leader = Directions.of(rho).leader
            # a, b at both layers and c, d at the earlier one: parallel ones have no plane
            for pair, both in zip(at, same[[0, 0, 1]], strict=True):
                planes &= (leader[pair[:, 0]] != leader[pair[:, 1]]) | both
            left.append(self._along_lines(number, quads, values[number], errors[number], rows[lines]))
        unfinished = self._summed(quads, values, errors, rows[planes & ~lines])
        return [np.concatenate([rows[~planes], some[planes[some]], unfinished]) for some in left]

    def _along_lines(self, number: int, quads, values, errors, rows: np.ndarray) -> np.ndarray:
        """Quadruples (a, a, c, c): two functions of one variable each, whose overlap is Σ_k F_k G_k ρ^k."""
        top, low, inputs = self.tops[number].lines, self.low.lines, len(self.low.K)
        if top is None or low is None:
            return rows
        at = quads[rows, 0], quads[rows, 2]
        rho = self.correlations[number][at[0], inputs + at[1]]
        powers, unfinished = rho[:, None] ** np.arange(LINE_TERMS), np.zeros(len(rows), bool)
        for column, orders in enumerate(self.orders):
            F, G = top[tuple(sorted(orders[:2]))][at[0]], low[tuple(sorted(orders[2:]))][at[1]]
            size = np.sqrt(F.norm * G.norm)
            left_out = np.abs(rho) ** LINE_TERMS * F.tails[LINE_TERMS] * G.tails[LINE_TERMS]
            values[rows, column] = np.einsum("qk,qk,qk->q", F.coefficients, G.coefficients, powers)
            errors[rows, column] = left_out + 1e-13 * size
            unfinished |= left_out > self.low.tolerance * size
        return rows[unfinished]

    def _summed(self, quads, values, errors, rows: np.ndarray) -> np.ndarray:
        """Add degree after degree to some rows; those that are not done at the last."""
        types = _Types.of(self.orders, self.low.placed, len(self.tops), self.low.parity)
        for start, degrees in zip((0, *PLANE_DEGREES), PLANE_DEGREES, strict=False):
            if not len(rows) or degrees > LAST_WITHIN_LAYERS:
                break
            (a, b), (c, d) = quads[rows, :2].T, quads[rows, 2:].T
            low = self.low.tables(start, degrees, _marked(self.low.K, c, d))
            pulled = self._pulled_back(start, degrees, a, b, types)
            first, second = pulled.plane[a, b], low.plane[c, d]
            place = paired(self.low.rho, quads[rows][:, [2, 3, 0, 1]], 0)
            left = bounds(pulled.edges, pulled.left[first], low.left[second], place.first)
            last, left = last_edge(left, self.low.tolerance)
            sums = _OverlapsOfPlanes(pulled, low, types, first, second, place, pulled.edges[last])
            found, change = sums.all_planes()
            size = pulled.norm[first][:, types.first] * low.norm[second][:, types.second]
            left_out = np.minimum(left * size, 2.0 * change)  # blocks of degrees fall off at least geometrically
            done = (len(rows), len(self.tops), -1)
            values[:, rows] += found.reshape(done).swapaxes(0, 1)
            errors[:, rows] = (left_out + 1e-13 * size).reshape(done).swapaxes(0, 1)
            rows = rows[np.any(left_out > self.low.tolerance * size, axis=1)]
        return rows

    def _pulled_back(self, start: int, degrees: int, a, b, types: _Types) -> _PulledBack:
        """The functions of planes (a, b) of every later layer as functions of the same planes of the earlier one."""
        only, inputs = _marked(self.low.K, a, b), len(self.low.K)
        first, second = np.nonzero(np.triu(only))
        plane = np.full(only.shape, -1)
        plane[first, second] = np.arange(len(first))
        joint = np.stack([first, second, first + inputs, second + inputs], axis=1)
        seen, norms, past = [], [], []
        for top, rho in zip(self.tops, self.correlations, strict=True):
            tables, place = top.tables(start, degrees, only), paired(rho, joint, 0)
            chosen = tables.plane[first, second]
            of_block = [[_degrees_of(block, row, row.first) for row in types.rows] for block in tables.blocks]
            seen.append([[_pulled(row, chosen, place) for row in block] for block in of_block])
            norms.append(tables.norm[chosen])
            # what is past the last degree is bounded by what the later layer itself has there
            past.append(place.first**degrees * tables.left[chosen, -1])
        norm, edges = np.concatenate(norms, axis=1), np.arange(start, degrees + 1, DEGREE_BLOCK)
        parts = [
            [np.concatenate(layers, axis=1) for layers in zip(*rows, strict=True)] for rows in zip(*seen, strict=True)
        ]
        within = np.zeros((len(edges), *norm.shape))
        for number, block in enumerate(parts):
            for row, part in zip(types.rows, block, strict=True):
                within[number][:, row.stacked] = np.sum(part**2, axis=2)
        share = np.cumsum(within[::-1], axis=0)[::-1] / norm**2
        left = np.sqrt(share.max(axis=2).T + np.max(past, axis=0)[:, None] ** 2)
        return _PulledBack(edges, plane, parts, norm, left)


class _RowOfTypes(NamedTuple):
    """One of the `rows` of degrees of a block (`type_rows`), and where its types stand there.

    `first` are those of a later layer, `second` those of the earlier one, `stacked` the numbers of the former among the
    types of all later layers.
    """

    number: int
    rows: int
    first: np.ndarray
    second: np.ndarray
    stacked: np.ndarray

    @property
    def products(self) -> int:
        return len(self.stacked) * len(self.second)


@dataclass(frozen=True)
class _Types:
    """Types of functions on both planes of each value: later layers one after the other, orders within.

    `columns` says where it stands among the products of all types of a row, earlier and later, one row after the other.
    """

    first: np.ndarray
    second: np.ndarray
    rows: tuple[_RowOfTypes, ...]
    columns: np.ndarray

    @classmethod
    def of(cls, orders: tuple[Orders, ...], placed: tuple[Orders, ...], layers: int, parity: bool) -> _Types:
        types, listed = pair_types(placed), type_rows(placed, parity)
        where = {pair: number for number, pair in enumerate(types)}
        first, second = (np.array([where[o[k], o[k + 1]] for o in orders]) for k in (0, 2))
        layer, rows, columns, before = np.arange(layers)[:, None], [], np.zeros((layers, len(orders)), int), 0
        for number, row in enumerate(listed):
            chosen = np.flatnonzero(np.isin(first, row))
            if len(chosen):
                own, other = np.unique(first[chosen]), np.unique(second[chosen])
                at_first, at_second = np.searchsorted(own, first[chosen]), np.searchsorted(other, second[chosen])
                columns[:, chosen] = before + (at_second * layers + layer) * len(own) + at_first
                places = (np.array([row.index(one) for one in some]) for some in (own, other))
                rows.append(_RowOfTypes(number, len(listed), *places, stacked=(layer * len(types) + own).ravel()))
                before += rows[-1].products
        return cls((layer * len(types) + first).ravel(), np.tile(second, layers), tuple(rows), columns.ravel())


@dataclass(frozen=True)
class _PulledBack:
    """Functions of planes of all later layers, seen from the earlier one: as `PlaneTables`, types layer after layer.

    `parts[block][row]` are cosine and sine parts of all its degrees (planes, types, harmonics).
    """

    edges: np.ndarray
    plane: np.ndarray
    parts: list[list[np.ndarray]]
    norm: np.ndarray
    left: np.ndarray


@dataclass(frozen=True)
class _OverlapsOfPlanes:
    """Sums over degrees of the products of functions of two planes of one layer, those of the first already there.

    Rows are sorted by the first plane; each ends at the degree `until`.
    """

    pulled: _PulledBack
    low: PlaneTables
    types: _Types
    first: np.ndarray
    second: np.ndarray
    place: Geometry
    until: np.ndarray

    def all_planes(self) -> tuple[np.ndarray, np.ndarray]:
        """Sums (rows, columns), and what the last block of degrees changed."""
        blocks = [[_degrees_of(block, row, row.second) for row in self.types.rows] for block in self.low.blocks]
        pieces = range(0, len(self.first), ROWS_AT_ONCE)
        over = on_all_cores if len(pieces) >= PIECES_FOR_THREADS else map
        found = list(over(lambda start: self._of_some(start, blocks), pieces))
        sums, change = (np.concatenate(part)[:, self.types.columns] for part in zip(*found, strict=True))
        return sums, change

    def _of_some(self, begin: int, blocks: list[list[list[_Degree]]]) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(begin, min(begin + ROWS_AT_ONCE, len(self.first)))
        sums, change = np.zeros((2, len(rows), sum(row.products for row in self.types.rows)))
        for start, block, parts in zip(self.pulled.edges[:-1], blocks, self.pulled.parts, strict=True):
            active = np.flatnonzero(self.until[rows] > start)
            if not len(active):
                break
            more = self._of_block(block, parts, rows[active])
            sums[active] += more
            change[active] = np.abs(more)
        return sums, change

    def _of_block(self, block: list[list[_Degree]], parts: list[np.ndarray], rows: np.ndarray) -> np.ndarray:
        """What a block adds to the products of all types (rows, products)."""
        first, found = self.first[rows], []
        ends = [*np.flatnonzero(np.diff(first, prepend=-1)), len(rows)]
        second, place = self.second[rows], self.place.some(rows)
        for row, degrees, own in zip(self.types.rows, block, parts, strict=True):
            other = _pulled(degrees, second, place)
            total = np.empty((len(rows), len(row.second), len(row.stacked)))
            for begin, end in pairwise(ends):  # one product for all rows of a plane
                flat = other[begin:end].reshape(-1, other.shape[2])
                np.matmul(flat, own[first[begin]].T, out=total[begin:end].reshape(-1, len(row.stacked)))
            found.append(total.reshape(len(rows), -1))
        return np.concatenate(found, axis=1)


def _marked(K: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    only = np.zeros(K.shape, bool)
    only[first, second] = True
    return only


class _Degree(NamedTuple):
    """Functions of planes of one degree: cosine and sine parts (2, types, planes, half), and the matrices from there
    to Hermite polynomials of even and odd distance from the first."""

    degree: int
    parts: np.ndarray
    to_even: np.ndarray
    to_odd: np.ndarray


def _degrees_of(block: Block, row: _RowOfTypes, types: np.ndarray) -> list[_Degree]:
    """The degrees of one row of a block, with no more room than each needs."""
    found, matrices = [], harmonic_matrices(block.start)[2].swapaxes(-1, -2)
    cosine, sine = (np.asarray(part)[:, row.number] for part in (block.cosine, block.sine))
    for number in range(row.number, DEGREE_BLOCK, row.rows):
        degree, half, step = block.start + number, (block.start + number) // 2 + 1, number // row.rows
        chosen = [part[step][:, types, :half].swapaxes(0, 1) for part in (cosine, sine)]
        found.append(_Degree(degree, np.stack(chosen), *matrices[:, number, :half, :half]))
    return found


def _pulled(degrees: list[_Degree], planes: np.ndarray, place: Geometry) -> np.ndarray:
    """The mean of functions of planes, given others, as functions of those (planes, types, harmonics of all degrees).

    In coordinates turned so that the planes' cross-correlation is diag(s, t) the mean of he_i(u_1) he_{n−i}(u_2) is
    sⁱ tⁿ⁻ⁱ he_i(w_1) he_{n−i}(w_2).
    """
    most, ratio = degrees[-1].parts.shape[-1], place.ratio[:, None]
    powers = ratio ** (2.0 * np.arange(most))
    trig = {}
    for parity in {one.degree % 2 for one in degrees}:
        angles = [turn[:, None] * (2.0 * np.arange(most) + parity) for turn in (place.turn_first, place.turn_second)]
        trig[parity] = [(np.cos(angle), np.sin(angle)) for angle in angles]
    types = degrees[0].parts.shape[1]
    found = np.empty((len(planes), types, sum(2 * one.parts.shape[-1] for one in degrees)))
    # types are the first axis of what is worked on, so that the others lie in memory one after the other; fresh memory
    # for each step would take three times as long as all the arithmetic
    rest, rooms = found.swapaxes(0, 1), np.empty((5, types * len(planes) * most))
    for degree, parts, to_even, to_odd in degrees:
        half = parts.shape[-1]
        shape, flat = (types, len(planes), half), (-1, half)
        c, d, x, y, z = (room[: types * len(planes) * half].reshape(shape) for room in rooms)
        (cos, sin), (other_cos, other_sin) = ([one[:, :half].copy() for one in turn] for turn in trig[degree % 2])
        weight = place.first[:, None] ** degree * powers[:, :half]
        np.take(parts[0], planes, axis=1, out=c, mode="clip")
        np.take(parts[1], planes, axis=1, out=d, mode="clip")
        np.subtract(np.multiply(c, cos, out=x), np.multiply(d, sin, out=z), out=x)
        np.add(np.multiply(c, sin, out=y), np.multiply(d, cos, out=z), out=y)
        np.matmul(x.reshape(flat), to_even, out=c.reshape(flat))
        np.matmul(y.reshape(flat), to_odd, out=d.reshape(flat))
        np.multiply(c, weight, out=c)
        np.multiply(d, weight * ratio, out=d)
        np.matmul(c.reshape(flat), to_even.T, out=x.reshape(flat))
        np.matmul(d.reshape(flat), to_odd.T, out=y.reshape(flat))
        np.add(np.multiply(x, other_cos, out=c), np.multiply(y, other_sin, out=z), out=rest[..., :half])
        np.subtract(np.multiply(y, other_cos, out=d), np.multiply(x, other_sin, out=z), out=rest[..., half : 2 * half])
        rest = rest[..., 2 * half :]
    return found
