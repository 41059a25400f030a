"""Four-point expectations of two inputs at one layer and two at another, which a residual connection joins.

The planes (a, b) of one layer and (c, d) of the other are those that quadruples within each layer use too, so that
tables are made once a layer and not once for each two layers. Where the layers are so correlated that the series of
these planes is slow, all inputs of both layers are taken as inputs of one kernel, and planes may join the layers.
"""

from __future__ import annotations

import numpy as np

from widthwise.gaussian.four_points.directions import Directions
from widthwise.gaussian.four_points.families import Layout, Orders, assignments, pair_types, type_rows
from widthwise.gaussian.four_points.geometry import paired
from widthwise.gaussian.four_points.planes import FEW_QUADRUPLES, LINE_TERMS, PLANE_DEGREES, DegreeSums, PlaneSeries

#: Planes within layers are followed up to here.
LAST_WITHIN_LAYERS = 128


class TwoLayerSeries:
    """⟨σ^(p)_a σ^(q)_b σ^(p')_c σ^(q')_d⟩ with a, b of one layer and c, d of another.

    `top` and `low` are the series of both layers, with the same assignments and tables that are kept; `cross` is the
    kernel between their inputs (a, c).
    """

    def __init__(self, top: PlaneSeries, low: PlaneSeries, cross: np.ndarray, orders: tuple[Orders, ...]):
        self.top, self.low, self.orders = top, low, orders
        self.K = np.block([[top.K, cross], [cross.T, low.K]])
        scale = np.sqrt(np.diag(self.K))
        self.rho = self.K / np.maximum(np.outer(scale, scale), 1e-300)

    def __call__(self, quads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and error bounds (quadruples, orders) at a ≤ b of the one layer, c ≤ d of the other (count, 4)."""
        values = np.zeros((len(quads), len(self.orders)))
        errors = np.zeros(values.shape)
        inputs = len(self.top.K)
        composite = quads + np.array([0, 0, inputs, inputs])
        left = self._within_layers(quads, composite, values, errors)
        if len(left):
            placed = assignments(tuple({tuple(sorted(orders)) for orders in self.orders}))
            series = PlaneSeries(self.top.activation, self.K, placed, self.top.tolerance)
            columns = [placed.index(orders) for orders in self.orders]
            values[left], errors[left] = (found[:, columns] for found in series(composite[left].astype(np.int32)))
        return values, errors

    def _within_layers(self, quads, composite, values, errors) -> np.ndarray:
        """Sum over planes of each layer, where they resolve it; the quadruples that are left."""
        rows = np.arange(len(quads))
        if self.top.slow or self.low.slow or self.top.parity != self.low.parity:
            return rows
        leader = Directions.of(self.rho).leader
        parallel, same = (np.stack([of[:, k] == of[:, k + 1] for k in (0, 2)]) for of in (leader[composite], composite))
        planes, lines = np.all(parallel <= same, axis=0), np.all(same, axis=0)
        left = [rows[~planes], self._along_lines(quads, values, errors, rows[lines])]
        left.append(self._summed(quads, composite, values, errors, rows[planes & ~lines]))
        return np.concatenate(left)

    def _along_lines(self, quads, values, errors, rows: np.ndarray) -> np.ndarray:
        """Quadruples (a, a, c, c): two functions of one variable each, whose overlap is Σ_k F_k G_k ρ^k."""
        top, low, inputs = self.top.lines, self.low.lines, len(self.top.K)
        if top is None or low is None:
            return rows
        at = quads[rows, 0], quads[rows, 2]
        rho = self.rho[at[0], inputs + at[1]]
        powers, unfinished = rho[:, None] ** np.arange(LINE_TERMS), np.zeros(len(rows), bool)
        for column, orders in enumerate(self.orders):
            F, G = top[tuple(sorted(orders[:2]))][at[0]], low[tuple(sorted(orders[2:]))][at[1]]
            size = np.sqrt(F.norm * G.norm)
            left_out = np.abs(rho) ** LINE_TERMS * F.tails[LINE_TERMS] * G.tails[LINE_TERMS]
            values[rows, column] = np.einsum("qk,qk,qk->q", F.coefficients, G.coefficients, powers)
            errors[rows, column] = left_out + 1e-13 * size
            unfinished |= left_out > self.top.tolerance * size
        return rows[unfinished]

    def _summed(self, quads, composite, values, errors, rows: np.ndarray) -> np.ndarray:
        """Add degree after degree to some rows; those that are not done at the last."""
        inputs, place = len(self.top.K), paired(self.rho, composite[rows], 0)
        where = {pair: number for number, pair in enumerate(pair_types(self.top.placed))}
        first, second = (tuple(where[o[k], o[k + 1]] for o in self.orders) for k in (0, 2))
        laid = Layout(first, second, type_rows(self.top.placed, self.top.parity))
        for start, degrees in zip((0, *PLANE_DEGREES), PLANE_DEGREES, strict=False):
            if not len(rows) or degrees > LAST_WITHIN_LAYERS:
                break
            tables, planes = [], []
            for series, (a, b) in ((self.top, quads[rows, :2].T), (self.low, quads[rows, 2:].T)):
                only = np.zeros((inputs, inputs), bool)
                only[a, b] = True
                tables.append(series.tables(start, degrees, only))
                planes.append(tables[-1].plane[a, b])
            sums = DegreeSums(values, errors, rows, self.top.tolerance)
            for _ in sums.add(tuple(tables), tuple(planes), laid, place, compiled=len(rows) > FEW_QUADRUPLES):
                pass
            rows, place = rows[sums.unfinished], place.some(sums.unfinished)
        return rows
