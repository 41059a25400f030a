"""Hermite coefficients of σ and its derivatives for every input of a layer, made when they are needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation
from widthwise.gaussian.hermite import SHORT_SERIES, HermiteTable, hermite_table

#: Tables above this are made in parts, of which so many are kept.
WHOLE_TABLE_BYTES, PARTIAL_TABLES = 1 << 27, 8
#: Share of all inputs up to which the few that need a long table have one of their own, made and forgotten.
FEW_INPUTS = 0.25


@dataclass
class InputTables:
    """Hermite tables of a list of inputs, or of sites, at one layer, by order and length, made when first asked for.

    Those of very many sites are made for the ones that are asked for, and a few of these tables are kept.
    """

    activation: Activation
    K: np.ndarray
    made: dict[tuple[int, int], HermiteTable] = field(default_factory=dict)
    placed: dict[tuple[int, int], Any] = field(default_factory=dict)
    partly: dict[tuple[int, int, bytes], HermiteTable] = field(default_factory=dict)
    forgotten: Counter[tuple[int, int]] = field(default_factory=Counter)
    lock: Any = field(default_factory=Lock)

    def get(self, order: int, terms: int = SHORT_SERIES) -> HermiteTable:
        with self.lock:
            if (order, terms) not in self.made:
                self.made[order, terms] = hermite_table(self.activation, order, self.K, terms)
            return self.made[order, terms]

    def some(self, order: int, terms: int, rows: np.ndarray) -> HermiteTable:
        """The table of some rows."""
        if 8 * terms * len(self.K) <= WHOLE_TABLE_BYTES:
            return self.get(order, terms)[rows]
        key = (order, terms, rows.tobytes())
        with self.lock:
            table = self.partly.get(key)
        if table is None:
            table = hermite_table(self.activation, order, self.K[rows], terms)
            with self.lock:
                while len(self.partly) >= PARTIAL_TABLES:
                    self.partly.pop(next(iter(self.partly)))
                self.partly[key] = table
        return table

    def of_entries(self, order: int, terms: int, rows: np.ndarray) -> tuple[HermiteTable, np.ndarray]:
        """A table with the rows that single entries read, and where each entry finds its own.

        Few entries of most kernels need a long table: one of all inputs took a quarter of the time of 1,000 inputs for
        seven entries. It is made once as many rows were made by themselves as are worth it.
        """
        inputs, place = np.unique(rows, return_inverse=True)
        with self.lock:
            self.forgotten[order, terms] += len(inputs)
            few = self.forgotten[order, terms] <= FEW_INPUTS * len(self.K) and (order, terms) not in self.made
        if few:
            return hermite_table(self.activation, order, self.K[inputs], terms), place
        return self.some(order, terms, inputs), place

    def on_device(self, order: int, terms: int) -> Any:
        """Coefficients where jax computes."""
        table = self.get(order, terms)
        with self.lock:
            if (order, terms) not in self.placed:
                self.placed[order, terms] = jnp.asarray(table.coefficients)
            return self.placed[order, terms]

    def error(self, with_slopes: bool) -> float:
        """Of ⟨σ²⟩ and ⟨σ'²⟩, relative to them."""
        some = np.argsort(self.K)[np.unique(np.linspace(0, len(self.K) - 1, 256).astype(int))]
        some = some if 8 * SHORT_SERIES * len(self.K) > WHOLE_TABLE_BYTES else np.arange(len(self.K))
        used = [self.some(order, SHORT_SERIES, some) for order in ((0, 1) if with_slopes else (0,))]
        return max(float(np.max(table.norm_error / np.maximum(table.norm, 1e-300))) for table in used)
