"""The Hermite-plane route with lists of quadruples on an accelerator; the host makes the tables and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.gaussian.four_points import planes
from widthwise.gaussian.four_points.families import Layout, layout
from widthwise.gaussian.four_points.geometry import Geometry, geometry, planes_of
from widthwise.gaussian.four_points.tables import PlaneTables

#: Quadruples whose degrees are summed at a time, by the first degree of the tables: ever fewer of a list are left.
#: Lists are multiples of all.
QUADRUPLE_PIECES = {0: 1 << 14, 32: 1 << 12, 64: 1 << 9, 96: 1 << 9, 128: 1 << 8}
#: Quadruples of one list, where there are many.
LIST_LENGTH = 1 << 17
#: Tables up to this degree are made for all planes at once: those that grow are compiled for again and again.
EVERY_PLANE = 128


class Found(NamedTuple):
    """For each quadruple: values and error bounds (quadruples, assignments), and whether more degrees are needed."""

    values: Any
    errors: Any
    unfinished: Any


class _Placed(NamedTuple):
    """`PlaneTables` on the accelerator, as long as the room of the planes."""

    plane: Any
    left: Any
    norm: Any
    blocks: list[tuple[Any, ...]]

    @classmethod
    def of(cls, tables: PlaneTables) -> _Placed:
        left = np.pad(tables.left, ((0, len(tables.norm) - len(tables.left)), (0, 0)))
        blocks = [block.given(jnp.asarray) for block in tables.blocks]
        return jax.tree.map(jnp.asarray, cls(tables.plane, left, tables.norm, blocks))


class AcceleratedSeries:
    """`PlaneSeries` of a smooth activation for lists of one length, a multiple of all `QUADRUPLE_PIECES`."""

    def __init__(self, series: planes.PlaneSeries):
        self.series, self.rho = series, jnp.asarray(series.rho)
        self.placed: dict[int, tuple[PlaneTables, _Placed]] = {}
        self.straight: tuple[Any, ...] = ()

    def __call__(self, quads: Any) -> tuple[Any, Any]:
        """Values and error bounds (quadruples, assignments) of sorted quadruples (count, 4), on the accelerator."""
        place, few = _locate(self.rho, quads)
        count = quads.shape[0], len(self.series.placed)
        found = Found(jnp.zeros(count), jnp.zeros(count), ~few)
        for start, degrees in zip((0, *planes.PLANE_DEGREES), planes.PLANE_DEGREES, strict=False):
            tables = self._tables(start, degrees, quads, place, found.unfinished)
            here = self.placed[degrees][1]
            laid, column = layout(self.series.placed, tables.parity)
            found = _add(laid, tuple(tables.edges.tolist()), column, here, self.series.tolerance, quads, place, found)
            if not start:
                found = _fill_few(here.plane, *self.straight, quads, few, found)
            if not bool(found.unfinished.any()):
                break
        return found.values, found.errors

    def in_lists(
        self, quads: np.ndarray, progress: Callable[[float], None] | None = None
    ) -> tuple[Any, Any]:  # fmt: skip
        """The same for any number of quadruples, list by list; the last list is filled up with its last quadruple."""
        piece = max(QUADRUPLE_PIECES.values())
        length = min(LIST_LENGTH, piece * -(-len(quads) // piece))
        found = []
        for start in range(0, len(quads), length):
            some = quads[start : start + length]
            found.append(self(jnp.asarray(np.pad(some, ((0, length - len(some)), (0, 0)), mode="edge"))))
            if progress is not None:
                progress(min(1.0, (start + length) / len(quads)))
        values, errors = (jnp.concatenate(column)[: len(quads)] for column in zip(*found, strict=True))
        return values, errors

    def _tables(self, start: int, degrees: int, quads: Any, place: Geometry, unfinished: Any) -> PlaneTables:
        every = degrees <= EVERY_PLANE
        only = None if every else np.asarray(_planes_left(self.rho, quads, place.pairing, unfinished))
        tables = self.series.tables(start, degrees, only)
        if degrees not in self.placed or self.placed[degrees][0] is not tables:
            self.placed[degrees] = tables, _Placed.of(tables)
            self.straight = self.straight or (jnp.asarray(tables.two), jnp.asarray(tables.one))
        return tables


@jax.jit
def _locate(rho, quads) -> tuple[Geometry, Any]:
    """How the planes of quadruples lie, and which quadruples hold one or two different inputs."""
    return geometry(rho, quads), jnp.count_nonzero(jnp.diff(quads, axis=1), axis=1) < 2


@jax.jit
def _planes_left(rho, quads, pairing, unfinished):
    """Planes (inputs, inputs) that unfinished quadruples need."""
    first, second = planes_of(jnp.arange(rho.size).reshape(rho.shape), quads, pairing)
    return jnp.zeros(rho.size, bool).at[first].max(unfinished).at[second].max(unfinished).reshape(rho.shape)


@jax.jit
def _fill_few(plane, two, one, quads, few, found: Found) -> Found:
    """Quadruples of one or two different inputs."""
    values = jnp.where(few[:, None], planes.straight_moments(plane, two, one, quads), found.values)
    return found._replace(values=values, errors=jnp.where(few[:, None], 1e-13 * jnp.abs(values), found.errors))


@partial(jax.jit, static_argnums=(0, 1))
def _add(laid: Layout, edges, column, tables: _Placed, tolerance, quads, place: Geometry, found: Found) -> Found:
    """Add the degrees of some tables to unfinished quadruples, to each as many blocks as its bound asks for.

    Quadruples are sorted, those with most blocks first, so that each block meets the first pieces of the list alone.
    """
    first, second = planes_of(tables.plane, quads, place.pairing)
    left = planes.bounds(jnp.asarray(edges, float), tables.left[first], tables.left[second], place.first)
    last, left = planes.last_edge(left, tolerance)
    last = jnp.where(found.unfinished, last, 0)
    order = jnp.argsort(-last)
    where = planes.Where(*(field[order] for field in planes.Where.of(first, second, place, jnp.asarray(edges)[last])))
    sums, length = (jnp.zeros((len(quads), len(laid.first))),) * 2, QUADRUPLE_PIECES[edges[0]]
    for start, block in zip(edges, tables.blocks, strict=False):
        piece = partial(_add_piece, laid, length, float(start), block, where)
        sums = jax.lax.fori_loop(0, -(-jnp.count_nonzero(where.until > start) // length), piece, sums)
    back = jnp.argsort(order)
    size = tables.norm[first][:, np.array(laid.first)] * tables.norm[second][:, np.array(laid.second)]
    own = jnp.asarray(column)[place.pairing]
    more, change, size = (jnp.take_along_axis(x, own, axis=1) for x in (sums[0][back], sums[1][back], size))
    left_out = jnp.minimum(left * size, 2.0 * change)
    active = found.unfinished[:, None]
    return Found(
        jnp.where(active, found.values + more, found.values),
        jnp.where(active, left_out + 1e-13 * size, found.errors),
        found.unfinished & jnp.any(left_out > tolerance * size, axis=1),
    )


def _add_piece(laid: Layout, length: int, start: float, block, where: planes.Where, number, sums):
    """`add_block` for a piece of the sorted list."""

    def cut(x):
        return jax.lax.dynamic_slice_in_dim(x, number * length, length)

    values, change = map(cut, sums)
    made = planes.add_block(laid, values, change, block, block, start, jax.tree.map(cut, where))
    put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=number * length, axis=0)
    return tuple(put(whole, part) for whole, part in zip(sums, made, strict=True))
