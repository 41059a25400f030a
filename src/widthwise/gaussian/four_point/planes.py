"""The Hermite-plane route: all sorted quadruples of N inputs, each to a requested tolerance."""

from __future__ import annotations

import numpy as np

from widthwise.activations import Activation
from widthwise.gaussian.four_point.families import Orders, quadruples
from widthwise.gaussian.four_point.geometry import Geometry, geometry
from widthwise.gaussian.four_point.grids import smooth_grid
from widthwise.gaussian.four_point.overlap import norms_of, overlaps, planes_of, truncation
from widthwise.gaussian.four_point.tables import BLOCK, PlaneTables, plane_tables

#: Degrees that are tried in turn.
DEGREES = (24, 48, 96, 128)
#: Kinked activations are followed to this degree: their series converges slowly.
KINKED_DEGREES = 64
#: Quadruples in one compiled call.
CHUNK = 512


def plane_route(
    activation: Activation, K: np.ndarray, placed: tuple[Orders, ...], tolerance: float, most: int = KINKED_DEGREES
) -> tuple[np.ndarray, np.ndarray] | None:
    """Values (sorted quadruples, assignments) and bounds on their errors, both absolute.

    `tolerance` is relative to √⟨f²⟩√⟨g²⟩ of the two plane functions. None where the activation is too sharp for the
    kernel to be resolved.
    """
    listed = quadruples(len(K))
    quads, distinct = listed.sorted, listed.distinct
    scale = np.sqrt(np.diag(K))
    rho = K / np.maximum(np.outer(scale, scale), 1e-300)
    many = np.flatnonzero(distinct > 2)
    place = geometry(rho, quads[many])
    for degrees in [most] if activation.kinks else DEGREES:
        grid = None
        if not activation.kinks:
            grid = smooth_grid(activation, float(np.diag(K).max()), degrees, min(1e-9, 1e-3 * tolerance))
            if grid is None:
                return None
        tables = plane_tables(activation, K, placed, degrees, grid)
        needed, error = _blocks_needed(tables, quads[many], place, tolerance)
        if np.all(error <= tolerance):
            break
    values = np.empty((len(quads), len(placed)))
    _fill_small(values, tables, quads, distinct)
    errors = 1e-13 * np.abs(values)
    order = np.argsort(needed, kind="stable")
    for start in range(0, len(order), CHUNK):
        rows = order[start : start + CHUNK]
        padded = np.pad(rows, (0, CHUNK - len(rows)), mode="edge")
        some = Geometry(*(field[padded] for field in place))
        first, second = planes_of(tables, quads[many[padded]], some.pairing)
        result, left = overlaps(tables, placed, first, second, some, int(needed[rows[-1]]), tolerance)
        values[many[rows]] = result[: len(rows)]
        size = norms_of(tables, placed, first, second, some.pairing)[: len(rows)]
        bound = error[rows, None] * size
        # past a kink degrees fall off too slowly for the last block to tell what is left
        errors[many[rows]] = (bound if activation.kinks else np.minimum(left[: len(rows)], bound)) + 1e-13 * size
    return values, errors


def _blocks_needed(tables: PlaneTables, quads: np.ndarray, place: Geometry, tolerance: float):
    """For each quadruple the number of blocks that holds the tolerance (or all there are), and the bound then."""
    needed, error = np.ones(len(quads), int), np.zeros(len(quads))
    for start in range(0, len(quads), 1 << 16):
        rows = slice(start, start + (1 << 16))
        first, second = planes_of(tables, quads[rows], place.pairing[rows])
        bound = truncation(tables, first, second, place.first[rows])
        enough = bound[:, 1:] <= tolerance
        needed[rows] = np.where(enough.any(axis=1), enough.argmax(axis=1) + 1, tables.degrees // BLOCK)
        error[rows] = np.take_along_axis(bound, needed[rows, None], axis=1)[:, 0]
    return needed, error


def _fill_small(values: np.ndarray, tables: PlaneTables, quads: np.ndarray, distinct: np.ndarray) -> None:
    """Quadruples of one or two different inputs, straight from the quadrature."""
    one = np.flatnonzero(distinct == 1)
    values[one] = tables.one[quads[one, 0]]
    two = np.flatnonzero(distinct == 2)
    w, x, y, z = quads[two].T
    kind = np.where(y == w, 0, np.where(x == w, 1, 2))
    values[two] = tables.two[tables.plane[w, z], kind]
    values[distinct > 2] = 0.0
