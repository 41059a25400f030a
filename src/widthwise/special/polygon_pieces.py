"""The linear pieces of a ReLU network inside a polygon of a plane, exactly: a polygonal subdivision (theory §10).

Inside a piece of the layers below, every neuron is an affine function of the plane's coordinates, and the pieces that a
layer adds are those of an arrangement of lines in a convex polygon. Polygons are cut many at a time: each takes one of
the lines that cross it, and its halves inherit those of the others that cross them.

Many convex polygons are an array (polygons, most, 2) of corners in order, shorter ones filled up by repeating the last
corner. A line is (c, g_1, g_2) with |g| = 1: signed distance c + g·u.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widthwise.errors import InvalidInput
from widthwise.network import check_inputs, real_array
from widthwise.special.linear_pieces import LayerWeights, affine_step, check_layers

#: Lines closer to a corner than this, in units of the polygon's extent, pass through it.
CLOSEST_CORNERS = 1e-12
#: Numbers in the largest array of one block.
_POLYGON_BLOCK = 1 << 22


@dataclass(frozen=True)
class PolygonPieces:
    """Pieces of a network in a polygon; x = origin + u @ basis are the points of the plane, |basis rows| = 1.

    `corners` (pieces, most, 2) are the plane coordinates u of each piece, counter-clockwise, the last one repeated,
    `sizes` (pieces,) how many there are, and `maps` (pieces, outputs, 3) the network: z = m_0 + m_1 u_1 + m_2 u_2.
    """

    origin: np.ndarray
    basis: np.ndarray
    corners: np.ndarray
    sizes: np.ndarray
    maps: np.ndarray

    @property
    def count(self) -> int:
        """The number of pieces: activation patterns with an interior."""
        return len(self.sizes)

    @property
    def areas(self) -> np.ndarray:
        """Area of each piece (pieces,)."""
        local = self.corners - self.corners[:, :1]
        after = np.roll(local, -1, axis=1)
        return 0.5 * np.sum(local[..., 0] * after[..., 1] - local[..., 1] * after[..., 0], axis=1)

    @property
    def centres(self) -> np.ndarray:
        """A point inside each piece, in the coordinates of the plane (pieces, 2)."""
        return centres(self.corners, self.sizes)

    def inputs(self, u: ArrayLike) -> np.ndarray:
        """Network inputs (…, features) of plane coordinates (…, 2)."""
        u = real_array(u, "u")
        if u.ndim < 1 or u.shape[-1] != 2:
            raise InvalidInput("u", f"an array of shape {u.shape}", "coordinates in the plane, shape (…, 2)")
        return self.origin + u @ self.basis

    def polygons(self) -> list[np.ndarray]:
        """The pieces as a list of (corners, 2), for drawing."""
        return [corners[:size] for corners, size in zip(self.corners, self.sizes, strict=True)]


def linear_pieces_in_polygon(layers: Sequence[Any], corners: ArrayLike) -> PolygonPieces:
    """The pieces of a ReLU network inside a convex polygon of its input space, exact up to rounding.

    Parameters
    ----------
    layers : pairs (W, b), W of shape (neurons, inputs); ReLU between the layers, none after the last.
    corners : the polygon's corners in order (at least 3, features); three inputs make a triangle.

    Examples
    --------
    >>> layers = [([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.0, 0.0, -0.5]), ([[1.0, 1.0, 1.0]], [0.0])]
    >>> pieces = linear_pieces_in_polygon(layers, [[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    >>> pieces.count, round(float(pieces.areas.sum()), 12)  # three lines, not through one point: 1 + 3 + 3
    (7, 4.0)
    """
    checked = check_layers(layers)
    points = check_inputs(corners, checked[0][0].shape[1], "corners")
    origin, basis, outline = _plane_of(points)
    extent = float(np.linalg.norm(np.ptp(outline, axis=0)))
    W, b = checked[0]
    first = np.concatenate([(W @ origin + b)[:, None], W @ basis.T], axis=1)
    pieces = _polygon_pieces(checked, 1, outline[None], np.array([len(outline)]), first[None], CLOSEST_CORNERS * extent)
    return PolygonPieces(origin, basis, *_joined(list(pieces)))


def _joined(blocks: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Blocks of (corners, sizes, …) as one."""
    corners, *others = zip(*blocks, strict=True)
    most = max(batch.shape[1] for batch in corners)
    padded = [np.pad(batch, ((0, 0), (0, most - batch.shape[1]), (0, 0)), mode="edge") for batch in corners]
    return [np.concatenate(column) for column in (padded, *others)]


def _plane_of(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Origin, orthonormal basis (2, features) and the corners in it, counter-clockwise; refuses what is no polygon."""
    expected = "at least three corners of a convex polygon in one plane, in order"
    if len(points) < 3:
        raise InvalidInput("corners", f"{len(points)} points", expected)
    if points.shape[1] == 1:
        raise InvalidInput("corners", "one feature", expected, "Use linear_pieces_on_segment.")
    origin = points.mean(axis=0)
    # in a plane already, its own axes; otherwise the two directions that the corners span
    _, singular, directions = np.linalg.svd(points - origin, full_matrices=False)
    basis = np.eye(2) if points.shape[1] == 2 else directions[:2]
    if singular[1] <= 1e-9 * singular[0]:
        raise InvalidInput("corners", "points on one line", expected)
    if len(singular) > 2 and singular[2] > 1e-9 * singular[0]:
        raise InvalidInput("corners", "points that do not lie in one plane", expected, "Three points always do.")
    outline = (points - origin) @ basis.T
    sides = np.roll(outline, -1, axis=0) - outline
    following = np.roll(sides, -1, axis=0)
    turns = sides[:, 0] * following[:, 1] - sides[:, 1] * following[:, 0]
    angles: np.ndarray = np.arctan2(sides[:, 1], sides[:, 0])
    around = (np.diff(np.append(angles, angles[0])) + np.pi) % (2 * np.pi) - np.pi
    winding = round(float(np.sum(around)) / (2 * np.pi))
    if not (np.all(turns > 0.0) or np.all(turns < 0.0)) or abs(winding) != 1:
        raise InvalidInput("corners", "corners that do not turn one way once around", expected)
    return origin, basis, outline if turns[0] > 0.0 else outline[::-1].copy()


def _polygon_pieces(
    layers: LayerWeights, depth: int, corners: np.ndarray, sizes: np.ndarray, maps: np.ndarray, closest: float
):
    """Corners, sizes and output maps block by block; `maps` (polygons, neurons, 3) belong to layer `depth`."""
    if depth == len(layers):
        yield corners, sizes, maps
        return
    W, b = layers[depth]
    most = max(1, _POLYGON_BLOCK // (3 * max(W.shape)))
    corners, sizes, owner = _joined(list(_subdivided(corners, sizes, maps, closest)))
    for start in range(0, len(sizes), most):
        part = slice(start, start + most)
        middle = centres(corners[part], sizes[part])
        if len(maps) == 1 and depth + 1 == len(layers):
            # outputs of one hidden layer, whose maps (neurons, 3) all polygons share: a matrix product
            gates = (middle @ maps[0, :, 1:].T + maps[0, :, 0] > 0.0).astype(float)
            weighted = (W[:, :, None] * maps[0]).transpose(1, 0, 2).reshape(W.shape[1], -1)
            following = (gates @ weighted).reshape(len(middle), len(W), 3)
            following[..., 0] += b
        else:
            # W relu of this layer's maps, each neuron open or shut at the middle
            own = maps[owner[part]]
            gates = own[..., 0] + np.einsum("pnk,pk->pn", own[..., 1:], middle) > 0.0
            following = affine_step(W, b, np.where(gates[..., None], own, 0.0))
        yield from _polygon_pieces(layers, depth + 1, corners[part], sizes[part], following, closest)


def _subdivided(corners: np.ndarray, sizes: np.ndarray, maps: np.ndarray, closest: float):
    """Corners, sizes and owners of the polygons that the zero lines of the maps make, block by block."""
    most = max(1, _POLYGON_BLOCK // (corners.shape[1] * maps.shape[1]))
    for start in range(0, len(sizes), most):
        part = slice(start, start + most)
        polygon, lines = _crossing(corners[part], maps[part], closest)
        yield from _arranged(
            corners[part], sizes[part], np.arange(start, start + len(sizes[part])), polygon, lines, closest
        )


def _crossing(corners: np.ndarray, maps: np.ndarray, closest: float) -> tuple[np.ndarray, np.ndarray]:
    """Which polygon each crossing line belongs to, in order, and the lines, of unit gradient."""
    constant, first, second = np.moveaxis(maps, 2, 0)
    length = np.hypot(first, second)
    above = below = np.full_like(length, -np.inf)
    for x, y in np.moveaxis(corners, 0, 2)[..., None]:
        d = first * x + second * y
        above, below = np.maximum(above, d), np.maximum(below, -d)
    crossing = (above + constant > closest * length) & (below - constant > closest * length)
    polygon, _ = np.nonzero(crossing)
    return polygon, maps[crossing] / length[crossing][:, None]


def _arranged(corners, sizes, owner, polygon, lines, closest: float):
    """Cut every polygon by its lines, one line of each polygon at a time."""
    waiting = [(corners, sizes, owner, polygon, lines)]
    while waiting:
        corners, sizes, owner, polygon, lines = waiting.pop()
        if len(sizes) > 1 and len(lines) * corners.shape[1] > _POLYGON_BLOCK:
            half = len(sizes) // 2
            at = int(np.searchsorted(polygon, half))
            waiting.append((corners[half:], sizes[half:], owner[half:], polygon[at:] - half, lines[at:]))
            waiting.append((corners[:half], sizes[:half], owner[:half], polygon[:at], lines[:at]))
            continue
        number = np.bincount(polygon, minlength=len(sizes))
        whole = number == 0
        if whole.any():
            yield corners[whole], sizes[whole], owner[whole]
        if len(lines):
            waiting.append(_cut_once(corners, sizes, owner, polygon, lines, number, closest))


def _cut_once(corners, sizes, owner, polygon, lines, number, closest: float):
    """Each polygon with lines split by the middle one of its list; the state after it."""
    active = np.nonzero(number)[0]
    first = np.cumsum(number) - number
    chosen = (first + number // 2)[active]
    rest = np.ones(len(lines), bool)
    rest[chosen] = False
    halves, corners_of = split(lines[chosen], corners[active], closest)
    rank = np.cumsum(number > 0) - 1
    parent, others = rank[polygon[rest]], lines[rest]
    polygon, lines = np.concatenate([parent, parent + len(active)]), np.concatenate([others, others])
    crossing = cuts(lines, halves[polygon], closest)
    return halves, corners_of, np.tile(owner[active], 2), polygon[crossing], lines[crossing]


def centres(corners: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Mean of the corners (polygons, 2), a point inside."""
    real = np.arange(corners.shape[1])[None, :, None] < sizes[:, None, None]
    return np.where(real, corners, 0.0).sum(axis=1) / sizes[:, None]


def distances(lines: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Signed distances (lines, most) of the corners of one polygon per line."""
    return lines[:, :1] + lines[:, 1:2] * corners[..., 0] + lines[:, 2:] * corners[..., 1]


def cuts(lines: np.ndarray, corners: np.ndarray, closest: float) -> np.ndarray:
    """Whether each line has corners of its polygon on both sides, further away than `closest`."""
    d = distances(lines, corners)
    return (d.max(axis=1) > closest) & (d.min(axis=1) < -closest)


def split(lines: np.ndarray, corners: np.ndarray, closest: float) -> tuple[np.ndarray, np.ndarray]:
    """Both halves of each polygon, first all positive then all negative ones: corners and numbers of corners.

    Corners nearer to the line than `closest` belong to both halves.

    >>> square = np.array([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
    >>> halves, sizes = split(np.array([[-0.25, 1.0, 0.0]]), square, 1e-12)
    >>> halves[..., 0].min(axis=1), halves[..., 0].max(axis=1), sizes
    (array([0.25, 0.  ]), array([1.  , 0.25]), array([4, 4]))
    """
    d = distances(lines, corners)
    d[np.abs(d) <= closest] = 0.0
    after, d_after = np.roll(corners, -1, axis=1), np.roll(d, -1, axis=1)
    crosses = d * d_after < 0.0
    share = np.divide(d, d - d_after, out=np.zeros_like(d), where=crosses)
    between = corners + share[..., None] * (after - corners)
    count, most = d.shape
    slots = np.stack([corners, between], axis=2).reshape(count, 2 * most, 2)
    kept = np.concatenate(
        [np.stack([side * d >= 0.0, crosses], axis=2).reshape(count, 2 * most) for side in (1.0, -1.0)]
    )
    return _compact(np.concatenate([slots, slots]), kept)


def _compact(slots: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kept corners to the left without repetitions, filled up with the last one."""
    count = len(slots)
    # a corner that repeats the last kept one (padding) is dropped
    place = np.where(kept, np.arange(slots.shape[1]), -1)
    before = np.maximum.accumulate(np.concatenate([np.full((count, 1), -1), place[:, :-1]], axis=1), axis=1)
    same = np.all(np.take_along_axis(slots, np.maximum(before, 0)[..., None], axis=1) == slots, axis=2)
    kept = kept & ~(same & (before >= 0))
    sizes = kept.sum(axis=1)
    order = np.argsort(~kept, axis=1, kind="stable")[:, : max(3, int(sizes.max()))]
    last = np.take_along_axis(order, (sizes - 1)[:, None], axis=1)
    order = np.where(np.arange(order.shape[1]) < sizes[:, None], order, last)
    return np.take_along_axis(slots, order[..., None], axis=1), sizes
