"""⟨σ^(p)_a σ^(p)_b⟩ for tiles of pairs by Hermite series, with quadrature for the pairs that no series reaches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from widthwise.devices import library
from widthwise.flow.kernels.input_tables import InputTables
from widthwise.gaussian.hermite import (
    CUTS,
    MOST_PLAIN,
    TABLE_TERMS,
    HermiteTable,
    series_of_entries,
    series_of_tables,
    series_on_device,
    terms_there,
)
from widthwise.gaussian.pair import SERIES_TOLERANCE, generic_pair
from widthwise.gaussian.sites import Sites

#: The share of a tile whose entries may be summed one by one: more take longer than twice the terms for all of it.
FEW_FAR = 0.01


@dataclass
class LayerSeries:
    """Expectations between the inputs along the rows and those along the columns of a kernel."""

    rows: InputTables
    columns: InputTables
    error: float = 0.0
    routes: set[str] = field(default_factory=set)

    def expectation(self, order: int, K_ab: Any, a: np.ndarray, b: np.ndarray) -> Any:
        """⟨σ^(p)_a σ^(p)_b⟩ for the tile of inputs a × b, p = `order`.

        When rows and columns are the same inputs, entries of an input with itself are left to the caller.
        """
        on_device = not isinstance(K_ab, np.ndarray)
        correlation = _compiled_correlation if on_device or K_ab.size > MOST_PLAIN else _correlation
        # numbers of inputs that are never the same where rows and columns are different ones
        names = a, b if self.rows is self.columns else -1 - b
        rho = correlation(K_ab, self.rows.K[a], self.columns.K[b], *names)
        rho = rho if on_device else np.asarray(rho)
        size = abs(rho)
        largest, few, reach, terms = float(size.max()), FEW_FAR * rho.size, 0.0, 0
        for available in TABLE_TERMS:
            f, g = self.rows.some(order, available, a), self.columns.some(order, available, b)
            for terms in (cut for cut in CUTS if cut <= available):
                reach = _reach(f, g, terms)
                # a few entries that need more terms are better summed by themselves, where terms cost time
                if largest <= reach or (not on_device and np.count_nonzero(size > reach) <= few):
                    break
            else:
                continue
            break
        value: Any = self._on_device(order, f, g, rho, a, b, terms) if on_device else series_of_tables(f, g, rho, terms)
        self.routes.add("Hermite series")
        self.error = max(self.error, SERIES_TOLERANCE * min(largest / reach, 1.0) ** terms)
        if largest > reach:
            i, j = np.nonzero(np.asarray(size > reach))
            found = self._far(order, a, b, i, j, np.asarray(rho[i, j]), np.asarray(K_ab[i, j]))
            if on_device:
                return value.at[i, j].set(found)
            value[i, j] = found
        return value

    def _on_device(self, order: int, f: HermiteTable, g: HermiteTable, rho, a, b, terms: int) -> Any:
        some, available = terms_there(f, g, terms), f.terms
        tables = (side.on_device(order, available) for side in (self.rows, self.columns))
        return series_on_device(*tables, a, b, rho, first=some.start, step=some.step or 1, terms=terms)

    def _far(
        self, order: int, a: np.ndarray, b: np.ndarray, i: np.ndarray, j: np.ndarray, rho: np.ndarray, K_ab: np.ndarray
    ) -> np.ndarray:
        """Entries (i, j) of a tile: by as many terms as each needs, or by quadrature where no number is enough."""
        value, left, size = np.zeros(len(rho)), np.arange(len(rho)), np.abs(rho)
        for available in TABLE_TERMS:
            if not len(left):
                return value
            f, of_a, g, of_b = self._tables_of_entries(order, available, a[i[left]], b[j[left]])
            scale = np.sqrt(f.norm[of_a] * g.norm[of_b])
            for terms in (cut for cut in CUTS if cut <= available):
                bound = size[left] ** terms * f.tails[terms][of_a] * g.tails[terms][of_b]
                enough = bound <= SERIES_TOLERANCE * scale
                near = left[enough]
                value[near] = series_of_entries(f, of_a[enough], g, of_b[enough], rho[near], terms)
                left, of_a, of_b, scale = (some[~enough] for some in (left, of_a, of_b, scale))
        refined = generic_pair(
            self.rows.activation, order, order, self.rows.K[a[i[left]]], K_ab[left], self.columns.K[b[j[left]]]
        )
        value[left] = refined.value
        if len(left):
            self.routes.update(refined.route.split(" and "))
            self.error = max(self.error, float(np.max(refined.error / np.maximum(scale, 1e-300))))
        return value

    def _tables_of_entries(self, order: int, terms: int, a: np.ndarray, b: np.ndarray) -> tuple[Any, ...]:
        """Tables of rows and columns with the inputs of single pairs, and where each pair finds its two."""
        if self.rows is not self.columns:
            return *self.rows.of_entries(order, terms, a), *self.columns.of_entries(order, terms, b)
        table, place = self.rows.of_entries(order, terms, np.concatenate([a, b]))
        return table, place[: len(a)], table, place[len(a) :]

    def at_sites(self, order: int, K_ab: Any, sites: Sites, a: np.ndarray, b: np.ndarray, rows: int, columns: int):
        """The same for kernels between positions of the inputs a, of so many rows, and b, of so many columns.

        Equal positions: a tile for each. All positions: one tile of sites, which is as large.
        """
        if not sites.shape:
            return self.expectation(order, K_ab, a, b)
        xp, every = library(K_ab), np.arange(sites.count)
        if sites.crossed:
            first, second = ((every[:, None] * all_ + own).ravel() for all_, own in ((rows, a), (columns, b)))
            tile = xp.swapaxes(K_ab.reshape(sites.count, sites.count, len(a), len(b)), 1, 2)
            value = self.expectation(order, tile.reshape(len(first), len(second)), first, second)
            value = xp.swapaxes(value.reshape(sites.count, len(a), sites.count, len(b)), 1, 2)
        else:
            tiles = K_ab.reshape(sites.count, len(a), len(b))
            value = xp.stack([self.expectation(order, tiles[p], p * rows + a, p * columns + b) for p in every])
        return value.reshape(K_ab.shape)


def _reach(f: HermiteTable, g: HermiteTable, terms: int) -> float:
    """The largest |ρ| at which so many terms keep the tolerance, for all inputs of the two tables."""
    # a function that is zero has no terms to leave out
    least = [np.min(table.norm, where=table.norm > 0.0, initial=np.inf) for table in (f, g)]
    left = f.tails[terms].max() * g.tails[terms].max()
    if not np.all(np.isfinite(least)) or left == 0.0:
        return 1.0
    return float((SERIES_TOLERANCE * np.sqrt(least[0]) * np.sqrt(least[1]) / left) ** (1.0 / terms))


def _correlation(K_ab, K_aa, K_bb, a, b):
    """ρ, and zero between an input and itself."""
    xp = library(K_ab)
    root = xp.sqrt(K_aa)[:, None] * xp.sqrt(K_bb)[None, :]
    rho = xp.where((root > 0.0) & (a[:, None] != b), K_ab / xp.where(root > 0.0, root, 1.0), 0.0)
    return xp.clip(rho, -1.0, 1.0)


_compiled_correlation = jax.jit(_correlation)
