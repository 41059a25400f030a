"""Many convex polygons of a plane at once, and their cuts by lines.

A batch is an array (polygons, most, 2) of corners in order, shorter polygons filled up by repeating their last corner.
A line is (c, g_1, g_2) with |g| = 1: signed distance c + g·u.
"""

from __future__ import annotations

import numpy as np


def areas(corners: np.ndarray) -> np.ndarray:
    """Areas (polygons,), counter-clockwise positive.

    >>> areas(np.array([[[0.0, 0.0], [2.0, 0.0], [2.0, 3.0], [2.0, 3.0]]]))
    array([3.])
    """
    local = corners - corners[:, :1]
    after = np.roll(local, -1, axis=1)
    return 0.5 * np.sum(local[..., 0] * after[..., 1] - local[..., 1] * after[..., 0], axis=1)


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
    >>> areas(halves), sizes
    (array([0.75, 0.25]), array([4, 4]))
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


def padded(corners: np.ndarray, most: int) -> np.ndarray:
    """The batch with room for `most` corners."""
    missing = most - corners.shape[1]
    return np.concatenate([corners, np.repeat(corners[:, -1:], missing, axis=1)], axis=1) if missing > 0 else corners
