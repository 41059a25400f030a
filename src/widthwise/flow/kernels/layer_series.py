"""One layer of the generic route: ⟨σ^(p)_a σ^(p)_b⟩ for tiles of pairs, from one table of Hermite coefficients."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.gaussian.hermite import CUTS, LONG_SERIES, SHORT_SERIES, HermiteTable, hermite_table, series
from widthwise.gaussian.pair import SERIES_TOLERANCE, generic_pair


@dataclass
class InputTables:
    """Hermite tables of a list of inputs at one layer, by order and length, made when first asked for."""

    activation: Activation
    K: np.ndarray
    made: dict[tuple[int, int], HermiteTable] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock, repr=False)

    def get(self, order: int, terms: int = SHORT_SERIES) -> HermiteTable:
        with self.lock:
            if (order, terms) not in self.made:
                self.made[order, terms] = hermite_table(self.activation, order, self.K, terms)
            return self.made[order, terms]

    def error(self, with_slopes: bool) -> float:
        """Of ⟨σ²⟩ and ⟨σ'²⟩, relative to them."""
        used = [self.get(order) for order in ((0, 1) if with_slopes else (0,))]
        return max(float(np.max(table.norm_error / np.maximum(table.norm, 1e-300))) for table in used)


@dataclass
class LayerSeries:
    """Expectations between the inputs along the rows and those along the columns of a kernel."""

    rows: InputTables
    columns: InputTables
    error: float = 0.0
    routes: set[str] = field(default_factory=set)

    def expectation(self, order: int, K_ab: np.ndarray, a: slice, b: slice) -> np.ndarray:
        """⟨σ^(p)_a σ^(p)_b⟩ for the tile of inputs a × b, p = `order`.

        When rows and columns are the same inputs, entries of an input with itself are left to the caller.
        """
        rho = np.array(_correlation(K_ab, self.rows.K[a], self.columns.K[b]))
        if self.rows is self.columns:
            same = np.arange(max(a.start, b.start), min(a.stop, b.stop))
            rho[same - a.start, same - b.start] = 0.0
        return self._one_order(order, K_ab, rho, float(np.abs(rho).max(initial=0.0)), a, b)

    def _one_order(self, order: int, K_ab, rho, largest: float, a: slice, b: slice) -> np.ndarray:
        f, g, terms, bound = self._enough_terms(order, largest, a, b)
        coefficients = (f.coefficients[a, :terms].T[:, :, None], g.coefficients[b, :terms].T[:, None, :])
        value = np.array(series(*coefficients, rho))
        self.routes.add("Hermite series")
        if bound > SERIES_TOLERANCE:
            scale = np.sqrt(np.outer(f.norm[a], g.norm[b]))
            left = np.abs(rho) ** terms * np.outer(f.tails[terms][a], g.tails[terms][b])
            i, j = np.nonzero(left > SERIES_TOLERANCE * scale)
            refined = generic_pair(
                self.rows.activation, order, order, self.rows.K[a][i], K_ab[i, j], self.columns.K[b][j]
            )
            value[i, j], left[i, j] = refined.value, refined.error
            self.routes.update(refined.route.split(" and "))
            bound = float(np.max(left / np.maximum(scale, 1e-300)))
        self.error = max(self.error, bound)
        return value

    def _enough_terms(self, order: int, largest: float, a: slice, b: slice):
        """Tables and the smallest cut that holds the tolerance for the whole tile, or the longest there is."""
        for available in (SHORT_SERIES, LONG_SERIES):
            f, g = self.rows.get(order, available), self.columns.get(order, available)
            scale = np.sqrt(f.norm[a].min() * g.norm[b].min())
            for terms in CUTS:
                if terms > available:
                    break
                bound = largest**terms * f.tails[terms][a].max() * g.tails[terms][b].max() / max(scale, 1e-300)
                if bound <= SERIES_TOLERANCE:
                    return f, g, terms, float(bound)
        return f, g, LONG_SERIES, float(bound)


@jax.jit
def _correlation(K_ab, K_aa, K_bb):
    root = jnp.sqrt(K_aa)[:, None] * jnp.sqrt(K_bb)[None, :]
    return jnp.clip(jnp.where(root > 0.0, K_ab / jnp.where(root > 0.0, root, 1.0), 0.0), -1.0, 1.0)
