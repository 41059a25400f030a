"""The Markov chain Ĝ¹ → Ĝ² → … → Ĝ^L of one input, as laws on lattices (theory §1).

Ĝˡ⁺¹ = C_b + C_W m, m = (1/n_l) Σ_j σ(z_j)² with z_j ~ N(0, Ĝˡ): the weights of layer l times the rows of the table of
n_l. Layers that are alike share the table and the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import gammaln, xlog1py, xlogy

from widthwise.activations import Activation, evaluate, intervals
from widthwise.flow.exact.kernel_law import KernelLaw, log_kernel
from widthwise.flow.exact.lattice import FINE, Resolution
from widthwise.flow.exact.neurons import Neuron, spacing
from widthwise.flow.exact.table import SumTable
from widthwise.flow.kernels.variances import diagonal_flow
from widthwise.memory import require_memory
from widthwise.network import MLP

#: A point mass below this is dropped.
LEAST_MASS = 1e-30
#: Rows of layers this wide are so smooth that the chain needs only a few lattice points to a deviation.
SMOOTH_FROM = 40
#: Lattice of the last layer: fine enough for a Gaussian of variance Ĝ out to z² = 100 Ĝ.
OUTPUT_SPACING = 2.0**-4
#: Where C_W m/C_b is below e^FAINT, m counts as zero; and so does a kernel below e^TINY.
FAINT, TINY = -41.0, -690.0
#: Tables and operators are made for a range longer than the law's by this share, on either side.
HEADROOM = 0.3


def kernel_laws(
    net: MLP, x: np.ndarray, resolution: Resolution = FINE, K: np.ndarray | None = None
) -> tuple[tuple[KernelLaw, ...], float]:
    """Laws of Ĝ at layers 1 … L for the input x (features,), and the estimated error of E f(Ĝ), |f| ≤ 1, at layer L.

    K (L,), the kernels at infinite width, set the spacings; they are computed unless given.
    """
    laws = [KernelLaw.certain(net.C_b[0], net.C_W[0], float(x @ x) / net.widths[0])]
    steps = {sigma: _Steps(sigma, TwoValues.of(sigma), resolution) for sigma in dict.fromkeys(net.activations)}
    error = 0.0
    if K is None:
        K = diagonal_flow(net, x[None, :], with_theta=False).K[:, 0]
    deviations = _log_deviations(net, K[:-1], resolution)
    for layer in range(1, net.depth):
        to_output = layer + 1 == net.depth
        onto = KernelLaw.certain(net.C_b[layer], net.C_W[layer], 0.0)
        finest = OUTPUT_SPACING if to_output else spacing(deviations[layer], 1.0, resolution.few)
        step = steps[net.activations[layer - 1]]
        law, defect = step.advance(laws[-1], onto, net.widths[layer], finest, to_output)
        error += defect
        laws.append(law)
    return tuple(laws), error + abs(laws[-1].mass - 1.0)


def _log_deviations(net: MLP, K: np.ndarray, resolution: Resolution) -> np.ndarray:
    """Standard deviation of log m over the neurons of layers 1 … L−1, at the kernels of infinite width; 0 if none."""
    result = np.zeros(len(K))
    for sigma in dict.fromkeys(net.activations):
        alive = (K > 0.0) & np.array([other == sigma for other in net.activations])
        if not alive.any():
            continue
        neuron = Neuron.at(sigma, K[alive], resolution=resolution)
        spread = np.sqrt(neuron.variance / np.asarray(net.widths[1:-1])[alive])
        result[alive] = np.divide(spread, neuron.mean, out=np.zeros(len(spread)), where=neuron.mean > 0.0)
    return result


@dataclass
class _Steps:
    """Tables and operators, kept from layer to layer."""

    activation: Activation
    discrete: TwoValues | None
    resolution: Resolution
    tables: dict[int, SumTable] = field(default_factory=dict)
    operators: dict[tuple, Operator] = field(default_factory=dict)

    def advance(self, law: KernelLaw, onto: KernelLaw, n: int, finest: float, to_output: bool):
        """The law of the next layer, with C_b and C_W of `onto`, and the error of this step."""
        C_b, C_W = onto.C_b, onto.C_W
        if C_W == 0.0:
            return onto, 0.0
        if self.discrete is not None:
            return self.discrete.advance(law, n, C_b, C_W), 0.0
        alive = law.atom_kernels > 0.0
        log_atoms, masses = np.log(law.atom_kernels[alive]), law.masses[alive]
        if not len(law.weights) and not len(log_atoms):
            return KernelLaw.certain(C_b, C_W, self._at_zero), 0.0
        table = self._table(n, law, log_atoms, to_output)
        own, points = table.rows.h, self.resolution.several if to_output else self.resolution.few
        if n >= SMOOTH_FROM and table.deviation >= self.resolution.several * own:
            # smooth rows that are well resolved need fewer points than they have
            own = spacing(table.deviation, 16 * own, points)
        h = min(finest, own)
        pieces = [self._continuous(table, law, h, to_output)] if len(law.weights) else []
        if len(log_atoms) == 1 and not pieces and table.scale_free and C_b == 0.0 and h >= table.rows.h:
            pieces = [place(table, float(log_atoms[0]), masses, h)]
        elif len(log_atoms):
            pieces.append(Operator.of(table, log_atoms, h).apply(masses))
        floor = math.log(C_b / C_W) + FAINT if C_b else -math.inf if table.scale_free else TINY - math.log(C_W)
        origin, weights, faint = _sum_of_pieces(pieces, h, floor, self.resolution)
        atoms = {0.0: sum(piece.silent for piece in pieces) + faint}
        atoms[self._at_zero] = atoms.get(self._at_zero, 0.0) + float(law.masses[~alive].sum())
        kept = {m: mass for m, mass in atoms.items() if mass > LEAST_MASS}
        return KernelLaw(C_b, C_W, origin, h, weights, np.array([*kept]), np.array([*kept.values()])), table.error

    @cached_property
    def _at_zero(self) -> float:
        """m when Ĝ = 0: σ(0)², without fluctuation."""
        return float(evaluate(self.activation, 0, np.zeros(1))[0] ** 2)

    def _table(self, n: int, law: KernelLaw, log_atoms: np.ndarray, to_output: bool) -> SumTable:
        log_g = np.concatenate([law.log_g, log_atoms])
        low, high = float(log_g.min()), float(log_g.max())
        table = self.tables.get(n)
        below, above = (True, True) if table is None else ~table.reaches(np.array([low, high]))
        if table is None or below or above:
            more = 0.0 if to_output else HEADROOM * (high - low)
            low, high = low - more * (1 + below), high + more * (1 + above)
            table = self.tables[n] = SumTable.over(
                self.activation, n, low, high, law.log_median, table, self.resolution
            )
            self.operators = {key: value for key, value in self.operators.items() if key[0] != n}
        return table

    def _continuous(self, table: SumTable, law: KernelLaw, h: float, to_output: bool) -> Piece:
        """The next layer, from the lattice part of a law."""
        if table.scale_free and law.C_b == 0.0 and h == law.h >= table.rows.h:
            # without bias its points are evenly spaced in log g = log C_W + log m
            return place(table, law.origin + math.log(law.C_W), law.weights, law.h)
        key = (table.n, law.C_b, law.C_W, law.h, h)
        operator = self.operators.get(key)
        if operator is None or not operator.reads(law):
            more = 0 if to_output else math.ceil(HEADROOM * len(law.weights))
            log_m = law.origin + law.h * np.arange(-more, len(law.weights) + more)
            log_g = log_kernel(law.C_b, law.C_W, log_m)
            inside = table.reaches(log_g)
            operator = self.operators[key] = Operator.of(table, log_g[inside], h, float(log_m[inside][0]))
        before = round((law.origin - operator.origin) / law.h)
        return operator.apply(np.pad(law.weights, (before, len(operator.silent) - before - len(law.weights))))


def _sum_of_pieces(
    pieces: list[Piece], h: float, floor: float, resolution: Resolution
) -> tuple[float, np.ndarray, float]:
    """Origin and weights of the sum of pieces whose origins differ by whole spacings, without ends that weigh nothing.

    Below the floor in log m, weights count as m = 0 and are returned as one mass.
    """
    origin = min(piece.origin for piece in pieces)
    starts = [round((piece.origin - origin) / h) for piece in pieces]
    weights = np.zeros(max(start + len(piece.weights) for start, piece in zip(starts, pieces, strict=True)))
    for start, piece in zip(starts, pieces, strict=True):
        weights[start : start + len(piece.weights)] += piece.weights
    seen, below = np.nonzero(np.abs(weights) > resolution.top)[0], np.cumsum(np.abs(weights))
    if not len(seen):
        return origin, np.zeros(0), 0.0
    low, high = int(np.searchsorted(below, resolution.lower * below[-1])), int(seen[-1]) + 1
    faint = int(np.clip(np.ceil((floor - origin) / h), low, high))
    return origin + faint * h, weights[faint:high], float(weights[low:faint].sum())


class Piece(NamedTuple):
    """Weights of log m at origin + k h, and the mass of m = 0."""

    origin: float
    weights: np.ndarray
    silent: float


@dataclass(frozen=True)
class Operator:
    """Rows of a table for some kernels, so that one layer is one sparse product.

    The matrix leads to the points (first + k) h of the next layer's lattice. Where the kernels are those of a law's
    lattice, `origin` is log m at the first of them.
    """

    first: int
    h: float
    matrix: csr_array
    silent: np.ndarray
    origin: float = math.nan

    @classmethod
    def of(cls, table: SumTable, log_g: np.ndarray, h: float, origin: float = math.nan) -> Operator:
        values, starts, silent = table.band(log_g, h)
        rows, width = values.shape
        first = int(starts.min())
        columns = (starts - first)[:, None] + np.arange(width)
        entries = values.ravel(), columns.ravel(), np.arange(0, rows * width + 1, width)
        return cls(first, h, csr_array(entries, shape=(rows, int(columns.max()) + 1)), silent, origin)

    def reads(self, law: KernelLaw) -> bool:
        """Whether the law's lattice points are among those that the rows belong to."""
        offset = (law.origin - self.origin) / law.h
        return offset == round(offset) and 0 <= offset <= len(self.silent) - len(law.weights)

    def apply(self, weights: np.ndarray) -> Piece:
        """The next layer, from weights of the kernels."""
        return Piece(self.first * self.h, weights @ self.matrix, float(weights @ self.silent))


def place(table: SumTable, log_g: float, weights: np.ndarray, h: float) -> Piece:
    """One layer of a scale-free activation from weights at e^(log_g + k h): log m = log g + log(m/g), a convolution.

    h is the spacing of the table or, where it has points to spare, a multiple.
    """
    rows, every = table.rows, round(h / table.rows.h)
    origin = log_g + rows.first * rows.h + float(table.log_mean[0]) - math.log(table.n)
    return Piece(origin, np.convolve(weights, every * rows.weights[0, ::every]), float(weights.sum() * rows.silent[0]))


@dataclass(frozen=True)
class TwoValues:
    """σ² is `low` or `high` (a step, a sign): sums over neurons are binomial, Ĝ has point masses."""

    activation: Activation
    low: float
    high: float

    @classmethod
    def of(cls, activation: Activation) -> TwoValues | None:
        """The two values (equal for a sign), or None if σ² takes more of them.

        >>> from widthwise.activations import resolve
        >>> TwoValues.of(resolve("step")).high
        1.0
        >>> TwoValues.of(resolve("tanh")) is None
        True
        """
        edges = intervals(activation, (0,), 64.0)
        values = np.unique(evaluate(activation, 0, 0.5 * (edges[1:] + edges[:-1])) ** 2)
        if len(values) > 2:
            return None
        return cls(activation, float(values[0]), float(values[-1]))

    def advance(self, law: KernelLaw, n: int, C_b: float, C_W: float) -> KernelLaw:
        """m = low + (high − low) k/n, k binomial with the probability of `high` at each kernel."""
        if self.low == self.high:
            return KernelLaw.certain(C_b, C_W, self.low)
        share, index = np.unique(self._share(law.atom_kernels), return_inverse=True)
        weights = np.bincount(index, law.masses)
        remedy = "Take narrower layers, or the expansion in 1/n."
        require_memory(8 * (n + 1) * (5 + 3 * len(share)), f"the exact law of {n} neurons", remedy)
        k = np.arange(n + 1.0)
        ways = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
        masses = weights @ np.exp(ways + xlogy(k, share[:, None]) + xlog1py(n - k, -share[:, None]))
        atoms, seen = self.low + (self.high - self.low) * k / n, masses > 1e-300
        return KernelLaw(C_b, C_W, 0.0, 1.0, np.zeros(0), atoms[seen], masses[seen])

    def _share(self, kernels: np.ndarray) -> np.ndarray:
        """P(σ² = high) at each kernel."""
        middle = 0.5 * (self.low + self.high)
        result = np.full(len(kernels), float(evaluate(self.activation, 0, np.zeros(1))[0] ** 2 > middle))
        alive = kernels > 0.0
        if alive.any():
            neuron = Neuron.at(self.activation, kernels[alive])
            result[alive] = np.minimum(np.where(neuron.y > middle, neuron.weights, 0.0).sum(axis=1), 1.0)
        return result
