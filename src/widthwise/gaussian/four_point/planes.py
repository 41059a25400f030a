"""The Hermite-plane route: all sorted quadruples of N inputs, each to a requested tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from widthwise.activations import Activation
from widthwise.devices import by_device, on_all_cores
from widthwise.gaussian.four_point.families import Orders, quadruples
from widthwise.gaussian.four_point.geometry import Geometry, geometry, planes_of
from widthwise.gaussian.four_point.overlap import bounds, last_edge, overlaps
from widthwise.gaussian.four_point.tables import BLOCK, PlaneTables, joined, plane_tables, resolved

#: Degrees that are tried in turn, each for the quadruples that are not yet done.
DEGREES = (32, 64, 128, 256)
#: Activations that are kinked, or so sharp for the kernel that they look it, are followed to this degree alone: their
#: series converges slowly, and planes are integrated one by one. Sharp ones of more inputs are left to the sample.
SLOW_DEGREES, MOST_SHARP = 64, 8
#: Kept tables are made for all planes once this share of them is wanted.
SOME = 0.3
#: Quadruples that are summed at a time, on a processor and on an accelerator.
CHUNKS = {"cpu": 256, "gpu": 1 << 15}
#: With no more of them than this the sums take less time than compiling them would.
FEW = 1 << 11


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
        task = _Task(self.tolerance, self.slow, progress or (lambda share: None), len(left))
        # quadruples of one or two inputs need no series at all
        schedule = (SLOW_DEGREES,) if self.slow else DEGREES
        schedule = schedule if len(left) else (BLOCK,)
        where = geometry(self.rho, quads[left])
        for start, degrees in zip((0, *schedule), schedule, strict=False):
            only = None if len(small) else _wanted(len(self.K), quads[left], where)
            tables = self.tables(start, degrees, only)
            if len(small):
                _fill_small(values, tables, quads, distinct)
                errors[small], small = 1e-13 * np.abs(values[small]), small[:0]
            unfinished = _overlap_all(tables, self.placed, quads[left], where, left, values, errors, task)
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
            missing |= np.count_nonzero(missing | (found.plane >= 0)) > SOME * missing.size
            self.kept[degrees] = joined(found, self._made(start, degrees, missing & (found.plane < 0)))
        return self.kept[degrees]

    def _made(self, start: int, degrees: int, only: np.ndarray | None) -> PlaneTables:
        accuracy = None if self.slow else self.accuracy
        return plane_tables(self.activation, self.K, self.placed, degrees, accuracy, start, only, self.parity)


class _Task(NamedTuple):
    """What all rounds have in common: the tolerance, whether the series converges slowly, who asks how far it is."""

    tolerance: float
    slow: bool
    progress: Callable[[float], None]
    quadruples: int


def _overlap_all(tables: PlaneTables, placed, quads, place: Geometry, rows, values, errors, task: _Task) -> np.ndarray:
    """Add to the values of the given rows and set their errors; returns which rows are above the tolerance."""
    unfinished = np.empty(len(rows), bool)
    first, second = planes_of(tables.plane, quads, place.pairing)
    left = bounds(tables.edges, tables.left, first, second, place.first)
    # past a kink degrees fall off too slowly for anything but the bound to tell what is left
    last, left = last_edge(left, 0.0 if task.slow else task.tolerance)
    order = np.argsort(last, kind="stable")
    chunk, compiled = by_device(CHUNKS), task.quadruples > FEW

    def add(start: int) -> int:
        some = order[start : start + chunk]
        padded = np.pad(some, (0, chunk - len(some) if compiled else 0), mode="edge")
        here = Geometry(*(field[padded] for field in place))
        until = tables.edges[last[padded]]
        found = overlaps(tables, placed, first[padded], second[padded], here, until, compiled=compiled)
        # for smooth activations blocks of degrees fall off at least geometrically
        left_out = left[padded] * found.size
        left_out = left_out if task.slow else np.minimum(left_out, 2.0 * found.change)
        values[rows[some]] += found.values[: len(some)]
        errors[rows[some]] = (left_out + 1e-13 * found.size)[: len(some)]
        unfinished[some] = np.any(left_out > task.tolerance * found.size, axis=1)[: len(some)]
        return start + len(some)

    # one call fills one core, and each writes rows of its own
    for done in on_all_cores(add, range(0, len(order), chunk)):
        task.progress(1.0 - (len(rows) - done) / task.quadruples)
    return unfinished


def _wanted(inputs: int, quads: np.ndarray, place: Geometry) -> np.ndarray:
    """Planes (inputs, inputs) that some quadruples need."""
    wanted = np.zeros((inputs, inputs), bool)
    numbers = np.arange(inputs * inputs).reshape(inputs, inputs)
    for chosen in planes_of(numbers, quads, place.pairing):
        wanted.flat[chosen] = True
    return wanted


def _fill_small(values: np.ndarray, tables: PlaneTables, quads: np.ndarray, distinct: np.ndarray) -> None:
    """Quadruples of one or two different inputs, straight from the moments of the planes."""
    one = np.flatnonzero(distinct == 1)
    values[one] = tables.one[quads[one, 0]]
    two = np.flatnonzero(distinct == 2)
    w, x, y, z = quads[two].T
    kind = np.where(y == w, 0, np.where(x == w, 1, 2))
    values[two] = tables.two[tables.plane[w, z], kind]
