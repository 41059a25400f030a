"""The Hermite-plane route: all sorted quadruples of N inputs, each to a requested tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from widthwise.activations import Activation
from widthwise.gaussian.four_point.families import Orders, quadruples
from widthwise.gaussian.four_point.geometry import Geometry, geometry
from widthwise.gaussian.four_point.overlap import norms_of, overlaps, planes_of, truncation
from widthwise.gaussian.four_point.tables import BLOCK, PlaneTables, plane_tables

#: Degrees that are tried in turn, each for the quadruples that are not yet done.
DEGREES = (32, 64, 128, 256)
#: Kinked activations are followed to this degree: their series converges slowly.
KINKED_DEGREES = 64
#: Quadruples in one compiled call.
CHUNK = 256


def plane_route(
    activation: Activation,
    K: np.ndarray,
    placed: tuple[Orders, ...],
    tolerance: float,
    progress: Callable[[float], None] | None = None,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Values (sorted quadruples, assignments) and bounds on their errors, both absolute.

    `tolerance` is relative to √⟨f²⟩√⟨g²⟩ of the two plane functions. None where the activation is too sharp for the
    kernel to be resolved.
    """
    listed = quadruples(len(K))
    scale = np.sqrt(np.diag(K))
    rho = K / np.maximum(np.outer(scale, scale), 1e-300)
    values = np.zeros((len(listed.sorted), len(placed)))
    errors = np.zeros(values.shape)
    left = np.flatnonzero(listed.distinct > 2)
    task = _Task(tolerance, bool(activation.kinks), progress or (lambda share: None), len(left))
    small = np.flatnonzero(listed.distinct <= 2)
    # quadruples of one or two inputs need no series at all
    schedule = (KINKED_DEGREES,) if activation.kinks else DEGREES
    schedule = schedule if len(left) else (BLOCK,)
    for start, degrees in zip((0, *schedule), schedule, strict=False):
        quads = listed.sorted[left]
        place = geometry(rho, quads)
        only = None if len(small) else _wanted(len(K), quads, place)
        accuracy = max(min(1e-9, 1e-3 * tolerance), 1e-13)
        tables = plane_tables(activation, K, placed, degrees, accuracy, start, only)
        if tables is None:
            return None
        if len(small):
            _fill_small(values, tables, listed.sorted, listed.distinct)
            errors[small], small = 1e-13 * np.abs(values[small]), small[:0]
        size = _overlap_all(tables, placed, quads, place, left, values, errors, task)
        left = left[np.any(errors[left] > 1.01 * tolerance * size, axis=1)]
        if not len(left):
            break
    return values, errors


class _Task(NamedTuple):
    """What all rounds have in common: the tolerance, whether the activation has kinks, who asks how far it is."""

    tolerance: float
    kinked: bool
    progress: Callable[[float], None]
    quadruples: int


def _overlap_all(tables: PlaneTables, placed, quads, place: Geometry, rows, values, errors, task: _Task):
    """Add to the values of the given rows and set their errors; returns √⟨f²⟩√⟨g²⟩ of each row and assignment."""
    sizes = np.empty((len(rows), len(placed)))
    order = np.argsort(place.first, kind="stable")  # quadruples that converge alike stand together
    for start in range(0, len(order), CHUNK):
        some = order[start : start + CHUNK]
        padded = np.pad(some, (0, CHUNK - len(some)), mode="edge")
        here = Geometry(*(field[padded] for field in place))
        first, second = planes_of(tables.plane, quads[padded], here.pairing)
        # past a kink degrees fall off too slowly for the last block to tell what is left
        result, rest = overlaps(tables, placed, first, second, here, 0.0 if task.kinked else task.tolerance)
        size = norms_of(tables, placed, first, second, here.pairing)
        if task.kinked:
            rest = truncation(tables, first, second, here.first)[:, None] * size
        values[rows[some]] += result[: len(some)]
        errors[rows[some]] = (rest + 1e-13 * size)[: len(some)]
        sizes[some] = size[: len(some)]
        task.progress(1.0 - (len(rows) - start - len(some)) / task.quadruples)
    return sizes


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
