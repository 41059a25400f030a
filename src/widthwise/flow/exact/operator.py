"""Rows of a table laid out for the lattice points of a law, so that one layer is one sparse product."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from widthwise.flow.exact.kernel_law import KernelLaw, log_kernel
from widthwise.flow.exact.table import SumTable


class Piece(NamedTuple):
    """Weights of log m at origin + k h, and the mass of m = 0."""

    origin: float
    weights: np.ndarray
    silent: float


@dataclass(frozen=True)
class Operator:
    """A matrix from the points origin + k h of a law to the points first + k of the next layer's lattice."""

    origin: float
    first: int
    h: float
    matrix: csr_array
    silent: np.ndarray

    @classmethod
    def of(cls, table: SumTable, law: KernelLaw, h: float, headroom: float) -> Operator:
        """For the points of a law and a share more of them on either side, as far as the table reaches."""
        more = math.ceil(headroom * len(law.weights))
        points = law.origin + law.h * np.arange(-more, len(law.weights) + more)
        log_g = log_kernel(law.C_b, law.C_W, points)
        inside = table.reaches(log_g)
        band = table.band(log_g[inside], h)
        rows, width = band.values.shape
        first = int(band.first.min())
        columns = (band.first - first)[:, None] + np.arange(width)
        matrix = csr_array(
            (band.values.ravel(), columns.ravel(), np.arange(0, rows * width + 1, width)),
            shape=(rows, int(columns.max()) + 1),
        )
        return cls(float(points[inside][0]), first, h, matrix, band.silent)

    def reads(self, law: KernelLaw) -> bool:
        """Whether the law's lattice points are among those that the rows belong to."""
        offset = (law.origin - self.origin) / law.h
        return offset == round(offset) and 0 <= offset <= len(self.silent) - len(law.weights)

    def apply(self, law: KernelLaw) -> Piece:
        """The next layer, from the lattice part of a law."""
        before = round((law.origin - self.origin) / law.h)
        weights = np.pad(law.weights, (before, len(self.silent) - before - len(law.weights)))
        return Piece(self.first * self.h, weights @ self.matrix, float(weights @ self.silent))


def from_points(table: SumTable, log_g: np.ndarray, masses: np.ndarray, h: float) -> list[Piece]:
    """The next layer, from point masses of Ĝ at e^log_g."""
    band = table.band(log_g, h)
    rows = zip(band.first * h, masses[:, None] * band.values, masses * band.silent, strict=True)
    return [Piece(float(origin), values, float(silent)) for origin, values, silent in rows]


def place(table: SumTable, log_g: float, weights: np.ndarray, h: float) -> Piece:
    """One layer of a scale-free activation from weights at e^(log_g + k h): log m = log g + log(m/g), a convolution.

    h is the spacing of the table or, where it has points to spare, a multiple.
    """
    rows, every = table.rows, round(h / table.rows.h)
    origin = log_g + rows.first * rows.h + float(table.log_mean[0]) - math.log(table.n)
    return Piece(origin, np.convolve(weights, every * rows.weights[0, ::every]), float(weights.sum() * rows.silent[0]))


def slide(table: SumTable, law: KernelLaw) -> Piece:
    """The same from the lattice part of a law without bias: its points are evenly spaced in log g = log C_W + log m."""
    return place(table, law.origin + math.log(law.C_W), law.weights, law.h)
