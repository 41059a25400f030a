"""The Hermite-plane route: all sorted quadruples of N inputs, each to a requested tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from widthwise.activations import Activation
from widthwise.devices import by_device, on_all_cores
from widthwise.gaussian.four_point.families import Orders, quadruples
from widthwise.gaussian.four_point.geometry import DEGREE_BLOCK, Geometry, geometry, library, planes_of
from widthwise.gaussian.four_point.overlap import bounds, last_edge, overlaps
from widthwise.gaussian.four_point.tables import PlaneTables, joined, plane_tables, resolved

#: Degrees that are tried in turn, each for the quadruples that are not yet done.
PLANE_DEGREES = (32, 64, 128, 256)
#: Activations that are kinked, or so sharp for the kernel that they look it, are followed to this degree alone: their
#: series converges slowly, and planes are integrated one by one. Sharp ones of more inputs are left to the sample.
SLOW_DEGREES, MOST_SHARP = 64, 8
#: Kept tables are made for all planes once this share of them is wanted.
SHARE_FOR_ALL = 0.3
#: Quadruples that are summed at a time, on a processor and on an accelerator.
QUADRUPLES_AT_ONCE = {"cpu": 256, "gpu": 1 << 15}
#: With no more of them than this the sums take less time than compiling them would.
FEW_QUADRUPLES = 1 << 11


def plane_route(
    activation: Activation,
    K: np.ndarray,
    placed: tuple[Orders, ...],
    tolerance: float,
    progress: Callable[[float], None] | None = None,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Values (sorted quadruples, assignments) and bounds on their errors, both absolute.

    `tolerance` is relative to √⟨f²⟩√⟨g²⟩ of the two plane functions. None where the activation is too sharp for the
    kernel to be resolved at so many inputs.
    """
    series = PlaneSeries(activation, K, placed, tolerance)
    return series(quadruples(len(K)).sorted, progress) if series.possible else None


class PlaneSeries:
    """Four-point expectations of any list of quadruples of the inputs of one kernel.

    With `keep` the tables of planes stay for the next list: of higher degree those that some quadruple has asked for.
    """

    def __init__(
        self, activation: Activation, K: np.ndarray, placed: tuple[Orders, ...], tolerance: float, keep: bool = False
    ):
        self.activation, self.K, self.placed, self.tolerance = activation, K, placed, tolerance
        scale = np.sqrt(np.diag(K))
        self.rho = K / np.maximum(np.outer(scale, scale), 1e-300)
        self.accuracy = max(min(1e-9, 1e-3 * tolerance), 1e-13)
        smooth, self.parity = resolved(activation, K, self.accuracy)
        self.slow = bool(activation.kinks) or not smooth
        self.kept: dict[int, PlaneTables] | None = {} if keep else None

    @property
    def possible(self) -> bool:
        """Sharp activations, planes integrated one by one, are followed for few inputs only."""
        return not self.slow or bool(self.activation.kinks) or len(self.K) <= MOST_SHARP

    def __call__(
        self, quads: np.ndarray, progress: Callable[[float], None] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values (quadruples, assignments) and error bounds of sorted quadruples (count, 4)."""
        values = np.zeros((len(quads), len(self.placed)))
        errors = np.zeros(values.shape)
        distinct = 1 + np.count_nonzero(np.diff(quads, axis=1), axis=1)
        left, small = np.flatnonzero(distinct > 2), np.flatnonzero(distinct <= 2)
        total = len(left)
        # quadruples of one or two inputs need no series at all
        schedule = (SLOW_DEGREES,) if self.slow else PLANE_DEGREES
        schedule = schedule if len(left) else (DEGREE_BLOCK,)
        where = geometry(self.rho, quads[left])
        for start, degrees in zip((0, *schedule), schedule, strict=False):
            only = None
            if not len(small):
                only, numbers = np.zeros(self.K.shape, bool), np.arange(self.K.size).reshape(self.K.shape)
                for chosen in planes_of(numbers, quads[left], where.pairing):
                    only.flat[chosen] = True
            tables = self.tables(start, degrees, only)
            if len(small):
                values[small] = straight_moments(tables.plane, tables.two, tables.one, quads[small])
                errors[small], small = 1e-13 * np.abs(values[small]), small[:0]
            unfinished = np.zeros(len(left), bool)
            adding = self._adding(
                tables, quads[left], where, left, values, errors, unfinished, compiled=total > FEW_QUADRUPLES
            )
            for done in adding:
                if progress is not None:
                    progress(1.0 - (len(left) - done) / total)
            left, where = left[unfinished], Geometry(*(field[unfinished] for field in where))
            if not len(left):
                break
        return values, errors

    def tables(self, start: int, degrees: int, only: np.ndarray | None) -> PlaneTables:
        """Tables of the planes that are wanted, added to those kept."""
        if self.kept is None:
            return self._made(start, degrees, only)
        found = self.kept.get(degrees)
        missing = np.ones(self.K.shape, bool) if only is None or start == 0 else only | only.T
        if found is None:
            self.kept[degrees] = self._made(start, degrees, missing)
        elif np.any(found.plane[missing] < 0):
            # all at once rather than a few more each time
            missing |= np.count_nonzero(missing | (found.plane >= 0)) > SHARE_FOR_ALL * missing.size
            self.kept[degrees] = joined(found, self._made(start, degrees, missing & (found.plane < 0)))
        return self.kept[degrees]

    def _made(self, start: int, degrees: int, only: np.ndarray | None) -> PlaneTables:
        accuracy = None if self.slow else self.accuracy
        return plane_tables(self.activation, self.K, self.placed, degrees, accuracy, start, only, self.parity)

    def _adding(
        self, tables: PlaneTables, quads, place: Geometry, rows, values, errors, unfinished, *, compiled: bool
    ) -> Iterator[int]:
        """Add to the values of the given rows, set their errors and whether they are above the tolerance.

        Gives the numbers of rows that are done.
        """
        first, second = planes_of(tables.plane, quads, place.pairing)
        left = bounds(tables.edges, tables.left, first, second, place.first)
        # past a kink degrees fall off too slowly for anything but the bound to tell what is left
        last, left = last_edge(left, 0.0 if self.slow else self.tolerance)
        order = np.argsort(last, kind="stable")
        chunk = by_device(QUADRUPLES_AT_ONCE)

        def add(start: int) -> int:
            some = order[start : start + chunk]
            padded = np.pad(some, (0, chunk - len(some) if compiled else 0), mode="edge")
            here = Geometry(*(field[padded] for field in place))
            until = tables.edges[last[padded]]
            found = overlaps(tables, self.placed, first[padded], second[padded], here, until, compiled=compiled)
            # for smooth activations blocks of degrees fall off at least geometrically
            left_out = left[padded] * found.size
            left_out = left_out if self.slow else np.minimum(left_out, 2.0 * found.change)
            values[rows[some]] += found.values[: len(some)]
            errors[rows[some]] = (left_out + 1e-13 * found.size)[: len(some)]
            unfinished[some] = np.any(left_out > self.tolerance * found.size, axis=1)[: len(some)]
            return start + len(some)

        # one call fills one core, and each writes rows of its own
        return on_all_cores(add, range(0, len(order), chunk))


def straight_moments(plane: Any, two: Any, one: Any, quads: Any) -> Any:
    """Quadruples of one or two different inputs, straight from the moments of the planes."""
    xp = library(quads)
    w, x, y, z = quads.T
    kind = xp.where(y == w, 0, xp.where(x == w, 1, 2))
    return xp.where((w == z)[:, None], one[w], two[plane[w, z], kind])
