"""The Hermite-plane route: all sorted quadruples of N inputs, each to a requested tolerance, as overlaps of two planes.

Two plane functions overlap only within one degree n. In coordinates turned so that the planes' cross-correlation is
diag(s, t), degree n contributes Σ_i sⁱ tⁿ⁻ⁱ C_{n,i} D_{n,i}, and all degrees past M together at most
s^M √(Σ_{n>M} ‖C_n‖²) √(Σ_{n>M} ‖D_n‖²).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, jet
from widthwise.devices import by_device, library, on_accelerator, on_all_cores
from widthwise.gaussian.four_points.directions import Directions, direction_moments
from widthwise.gaussian.four_points.families import COMPILE_FROM, Layout, Orders, layout, pair_types
from widthwise.gaussian.four_points.geometry import DEGREE_BLOCK, Geometry, geometry, planes_of
from widthwise.gaussian.four_points.tables import PlaneTables, joined, plane_tables, resolved
from widthwise.gaussian.hermite import HermiteTable
from widthwise.gaussian.quadrature import basis, smooth_grid


def bounds(edges: Any, first: Any, second: Any, s: Any) -> Any:
    """Bounds (quadruples, edges) on what all degrees from each edge on contribute, relative to norms.

    `first` and `second` are `PlaneTables.left` of the two planes (quadruples, edges).
    """
    return s[:, None] ** edges * first * second


#: Degrees end where the bound on the others is below this share of the tolerance. Averages over trained networks divide
#: by small eigenvalues of Θ, and what is left out here is enlarged there.
TOLERANCE_SHARE = 0.1


def last_edge(left: Any, tolerance: float) -> tuple[Any, Any]:
    """The first edge at which `bounds` are small enough, the last one if none is; and the bound there, as a column."""
    xp = library(left)
    enough = left[:, 1:] <= TOLERANCE_SHARE * tolerance
    last = xp.where(enough.any(axis=1), xp.argmax(enough, axis=1) + 1, left.shape[1] - 1)
    return last, xp.take_along_axis(left, last[:, None], axis=1)


class Overlaps(NamedTuple):
    """For each quadruple and assignment: the value, what the last block changed, and √⟨f²⟩√⟨g²⟩."""

    values: np.ndarray
    change: np.ndarray
    size: np.ndarray


def overlaps(
    tables: tuple[PlaneTables, PlaneTables], laid: Layout, first: np.ndarray, second: np.ndarray, place: Geometry,
    until: np.ndarray, *, compiled: bool,
) -> Overlaps:  # fmt: skip
    """What the degrees of two tables below `until`, a multiple of the block, contribute to each pair of their planes.

    Up to rounding its value does not depend on which others are computed with it. `compiled` sums are for many lists of
    one length.
    """
    add, array = (_compiled_block, jnp.asarray) if compiled else (add_block, np.asarray)
    where = Where(*map(array, Where.of(first, second, place, until)))
    size = tables[0].norm[first][:, list(laid.first)] * tables[1].norm[second][:, list(laid.second)]
    values = change = array(np.zeros(size.shape))
    for first_block, second_block in zip(tables[0].blocks, tables[1].blocks, strict=True):
        start = first_block.start
        if start >= until.max():
            break
        given = first_block.given(array), second_block.given(array)
        values, change = add(laid, values, change, given[0], given[1], float(start), where)
    return Overlaps(np.asarray(values), np.asarray(change), size)


class Where(NamedTuple):
    """For each quadruple: its two planes, s, t/s, the turns of the planes, and the degree where it ends."""

    first: Any
    second: Any
    s: Any
    ratio: Any
    turn_first: Any
    turn_second: Any
    until: Any

    @classmethod
    def of(cls, first: Any, second: Any, place: Geometry, until: Any) -> Where:
        return cls(first, second, place.first, place.ratio, place.turn_first, place.turn_second, until)


def add_block(laid: Layout, values, change, block, other, start, where: Where):
    """Add the degrees of a block to the sums over pairs of types (quadruples, pairs); returns them and the change.

    The first planes are those of a block, the second ones those of another, or of the same; a block is what
    `Block.given` says. Works on arrays of jax and of numpy.
    """
    xp, (cosine, sine, *matrices) = library(where.ratio), block
    (steps, rows, _, types, half), ratio = cosine.shape, where.ratio[:, None, None]
    even_powers = xp.power(ratio, 2.0 * np.arange(half))
    m = 2.0 * np.arange(half)[None, None, :] + np.arange(2.0)[:, None, None]
    angles = [m * turn[None, :, None] for turn in (where.turn_first, where.turn_second)]  # (parities, quadruples, half)
    trig = [(xp.cos(angle), xp.sin(angle)) for angle in angles]

    def plane(parts, numbers, trig, parity, to_even, to_odd):
        cosine, sine = (part[:, numbers] for part in parts)
        cos, sin = (a[parity][:, :, None] for a in trig)
        turned = cosine * cos - sine * sin, cosine * sin + sine * cos  # u = O(θ)v, given cos mθ and sin mθ
        return (
            (part.reshape(rows, -1, half) @ matrix).reshape(part.shape)
            for part, matrix in zip(turned, (to_even, to_odd), strict=True)
        )

    def degrees(total, inputs):
        step, c, d, other_c, other_d, to_even, to_odd = inputs
        # a row for each parity, or each degree by itself
        parity = np.arange(2) if rows == 2 else step[None] % 2
        even_a, odd_a = plane((c, d), where.first, trig[0], parity, to_even, to_odd)
        even_b, odd_b = plane((other_c, other_d), where.second, trig[1], parity, to_even, to_odd)
        degree = start + rows * step + np.arange(rows)
        weight = xp.power(where.s, degree[:, None])[:, :, None, None] * even_powers
        total = total + (even_a * weight) @ even_b.swapaxes(2, 3)
        return total + (odd_a * (weight * ratio)) @ odd_b.swapaxes(2, 3), None

    summed = xp.zeros((rows, len(values), types, types))
    inputs = (np.arange(steps), cosine, sine, *other[:2], *matrices)
    if isinstance(summed, jax.Array):
        summed, _ = jax.lax.scan(degrees, summed, inputs)
    else:
        for some in zip(*inputs, strict=True):
            summed, _ = degrees(summed, some)
    # all pairs of types in one product, of which some are read, are quicker than those alone
    more = xp.moveaxis(summed, 0, 1).reshape(len(values), -1)[:, laid.columns]
    wanted = (start < where.until)[:, None]
    return xp.where(wanted, values + more, values), xp.where(wanted, abs(more), change)


_compiled_block = partial(jax.jit, static_argnums=0)(add_block)


#: Terms of the series of functions of one input.
LINE_TERMS = 256
#: Degrees that are tried in turn, each for the quadruples that are not yet done.
PLANE_DEGREES = (32, 64, 96, 128, 256)
#: Activations that are kinked, or so sharp for the kernel that they look it, are followed to this degree alone: their
#: series converges slowly, and planes are integrated one by one. Sharp ones of more inputs are left to the sample.
SLOW_DEGREES, MOST_SHARP = 64, 8
#: Kept tables are made for all planes once this share of them is wanted.
SHARE_FOR_ALL = 0.3
#: Quadruples that are summed at a time, on a processor and on an accelerator.
QUADRUPLES_AT_ONCE = {"cpu": 256, "gpu": 1 << 15}
#: With no more of them than this the sums take less time than compiling them would.
FEW_QUADRUPLES = 1 << 11


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
    def for_accelerator(self) -> bool:
        """Whether `AcceleratedSeries` serves: a smooth activation, inputs of which no two are parallel, and many."""
        inputs = np.arange(len(self.K))
        apart = np.array_equal(Directions.of(self.rho).leader, inputs)
        return on_accelerator() and not self.slow and apart and len(inputs) >= COMPILE_FROM

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
        flat = Directions.of(self.rho).few(quads)
        if flat.any():
            scale = np.sqrt(np.diag(self.K))
            values[flat], errors[flat] = direction_moments(self.activation, scale, self.rho, self.placed, quads[flat])
        left, small = np.flatnonzero((distinct > 2) & ~flat), np.flatnonzero(distinct <= 2)
        if not len(left) and not len(small):
            return values, errors
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
            sums = DegreeSums(values, errors, left, self.tolerance, self.slow)
            for done in self._adding(tables, quads[left], where, sums, compiled=total > FEW_QUADRUPLES):
                if progress is not None:
                    progress(1.0 - (len(left) - done) / total)
            left, where = left[sums.unfinished], where.some(sums.unfinished)
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

    @cached_property
    def lines(self) -> dict[Orders, HermiteTable] | None:
        """Tables of σ^(p) σ^(q) at one input, by sorted (p, q); None where they are not resolved."""
        grid = smooth_grid(self.activation, float(np.diag(self.K).max()), LINE_TERMS, self.accuracy)
        if grid is None:
            return None
        types = {tuple(sorted(pair)) for pair in pair_types(self.placed)}
        orders = tuple(sorted({order for pair in types for order in pair}))
        jets = jet(self.activation, orders, np.sqrt(np.diag(self.K))[:, None] * grid.u)
        weighted, value = (basis(grid.u, LINE_TERMS) * grid.weight).T, dict(zip(orders, jets, strict=True))
        made = {}
        for p, q in types:
            product = value[p] * value[q]
            norm = product**2 @ grid.weight
            made[p, q] = HermiteTable(product @ weighted, norm, self.accuracy * norm)
        return made

    @property
    def kept_bytes(self) -> int:
        return sum(2 * block.cosine.nbytes for tables in (self.kept or {}).values() for block in tables.blocks)

    def drop(self, degrees: int) -> None:
        """Forget tables that were kept."""
        if self.kept:
            self.kept.pop(degrees, None)

    def _made(self, start: int, degrees: int, only: np.ndarray | None) -> PlaneTables:
        accuracy = None if self.slow else self.accuracy
        return plane_tables(self.activation, self.K, self.placed, degrees, accuracy, start, only, self.parity)

    def _adding(
        self, tables: PlaneTables, quads, place: Geometry, sums: DegreeSums, *, compiled: bool
    ) -> Iterator[int]:
        """Add to the sums of quadruples; gives the numbers of those that are done."""
        laid, column = layout(self.placed, self.parity)
        planes = planes_of(tables.plane, quads, place.pairing)
        return sums.add((tables, tables), planes, laid, place, column[place.pairing], compiled=compiled)


@dataclass(frozen=True)
class DegreeSums:
    """Values and errors (quadruples, assignments), of which some `rows` are summed to a tolerance.

    `unfinished` says which rows are still above it. Where the activation is `slow` degrees fall off so slowly that
    nothing but the bound tells what is left.
    """

    values: np.ndarray
    errors: np.ndarray
    rows: np.ndarray
    tolerance: float
    slow: bool = False
    unfinished: np.ndarray = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "unfinished", np.zeros(len(self.rows), bool))

    def add(
        self, tables: tuple[PlaneTables, PlaneTables], planes: tuple[np.ndarray, np.ndarray], laid: Layout,
        place: Geometry, own: np.ndarray | None = None, *, compiled: bool,
    ) -> Iterator[int]:  # fmt: skip
        """Add the degrees of the tables of the first and the second plane of each row; gives the numbers of rows done.

        `own` says for each row which columns of the layout its assignments have, if not those in order.
        """
        first, second = planes
        edges = tables[0].edges
        left = bounds(edges, tables[0].left[first], tables[1].left[second], place.first)
        last, left = last_edge(left, 0.0 if self.slow else self.tolerance)
        order = np.argsort(last, kind="stable")
        chunk = by_device(QUADRUPLES_AT_ONCE)

        def add(start: int) -> int:
            some = order[start : start + chunk]
            padded = np.pad(some, (0, chunk - len(some) if compiled else 0), mode="edge")
            here = Geometry(*(field[padded] for field in place))
            until = edges[last[padded]]
            found = overlaps(tables, laid, first[padded], second[padded], here, until, compiled=compiled)
            if own is not None:
                found = Overlaps(*(np.take_along_axis(x, own[padded], axis=1) for x in found))
            # for smooth activations blocks of degrees fall off at least geometrically
            left_out = left[padded] * found.size
            left_out = left_out if self.slow else np.minimum(left_out, 2.0 * found.change)
            self.values[self.rows[some]] += found.values[: len(some)]
            self.errors[self.rows[some]] = (left_out + 1e-13 * found.size)[: len(some)]
            self.unfinished[some] = np.any(left_out > self.tolerance * found.size, axis=1)[: len(some)]
            return start + len(some)

        # one compiled call fills one core, and each writes rows of its own; numpy's calls are too short to share out
        return (on_all_cores if compiled else map)(add, range(0, len(order), chunk))


def straight_moments(plane: Any, two: Any, one: Any, quads: Any) -> Any:
    """Quadruples of one or two different inputs, straight from the moments of the planes."""
    xp = library(quads)
    w, x, y, z = quads.T
    kind = xp.where(y == w, 0, xp.where(x == w, 1, 2))
    return xp.where((w == z)[:, None], one[w], two[plane[w, z], kind])
