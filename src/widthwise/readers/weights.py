"""Are these weights a draw of independent entries of mean zero and one variance (theory §1)? In standard errors.

For a matrix W of m × n independent entries with variance s² and fourth moment κs⁴, to leading order in 1/mn:
    mean            Σ W / (mn)                       standard error s/√(mn)
    row variances   Σ_i (|w_i|²/n − s²)² n/(s⁴(κ−1))  mean m − 1, variance 2m(1 + 6/n)
    overlaps        mean of (w_i·w_j)²/(n s⁴), i < j  mean 1, variance (2 + (κ² − 2κ − 1)/n)/pairs
    largest singular value²/s²                       centre (√(n−½)+√(m−½))², Tracy–Widom scale
with s² and κ estimated from the same entries, which is allowed for.
Orthogonal weights have overlaps far below 1; trained weights have a singular value outside the bulk, unequal rows,
or a mean; tied weights are found by the correlation of two layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg

#: Deviations beyond so many standard errors are reported.
LOUD = 5.0
#: The same for the largest singular value, whose law has a longer upper tail.
LOUD_EDGE = 7.0


@dataclass(frozen=True)
class Finding:
    """One deviation: in which layer (from 1), of what, the numbers found and expected, and their pull."""

    layer: int
    what: str
    found: float
    expected: float
    pull: float

    def __str__(self) -> str:
        return (
            f"layer {self.layer}: {self.what} {self.found:.4g} instead of {self.expected:.4g} ({self.pull:+.1f} s.e.)"
        )


@dataclass(frozen=True)
class SecondMoment:
    """mean(w²) over the entries of one tensor, its standard error, and how many entries there are."""

    value: float
    error: float
    entries: int

    @classmethod
    def of(cls, entries: np.ndarray, times: float = 1.0) -> SecondMoment:
        """`times` the mean square; for a single entry, or equal ones, the error of a Gaussian is used."""
        squares = np.ravel(entries) ** 2
        value = float(squares.mean()) if squares.size else 0.0
        spread = float(squares.std()) if squares.size > 8 else math.sqrt(2.0) * value
        return cls(times * value, times * spread / math.sqrt(max(squares.size, 1)), squares.size)


def findings(weights: Sequence[np.ndarray], biases: Sequence[np.ndarray | None]) -> list[Finding]:
    """What speaks against independent zero-mean entries of equal variance, layer by layer; empty if nothing does.

    >>> rng = np.random.default_rng(0)
    >>> W = rng.normal(size=(40, 50))
    >>> findings([W], [None])
    []
    >>> orthogonal = findings([linalg.orth(W.T).T], [None])[-1]
    >>> orthogonal.what, orthogonal.found < 1e-20, orthogonal.pull < -20
    ('mean squared overlap of rows', True, True)
    """
    found = []
    for layer, (W, b) in enumerate(zip(weights, biases, strict=True), start=1):
        found += _mean(layer, "mean weight", W) + _variances(layer, W) + _overlaps(layer, W) + _edge(layer, W)
        found += _mean(layer, "mean bias", b) if b is not None else []
    return found + _ties(weights)


def _loud(layer: int, what: str, found: float, expected: float, error: float, limit: float = LOUD) -> list[Finding]:
    pull = (found - expected) / error if error > 0 else math.copysign(math.inf, found - expected)
    return [Finding(layer, what, found, expected, pull)] if abs(pull) > limit else []


def _loud_square(layer: int, what: str, found: float, variance: float) -> list[Finding]:
    """The same for a sum of squares of mean 1: its cube root is nearly Gaussian (Wilson and Hilferty)."""
    small = variance / 9.0
    pull = (max(found, 0.0) ** (1 / 3) - (1.0 - small)) / math.sqrt(small)
    return [Finding(layer, what, found, 1.0, pull)] if abs(pull) > LOUD else []


def _mean(layer: int, what: str, entries: np.ndarray) -> list[Finding]:
    mean, size = float(entries.mean()), entries.size
    if size < 4 or mean == 0.0:
        return []
    # equal entries have no scatter; the mean square still bounds what zero mean would give
    error = math.sqrt(float(np.mean(entries**2)) / size)
    constant = float(entries.std()) < 1e-7 * abs(mean)
    return _loud(layer, what, mean, 0.0, 0.0 if constant else error)


def _variances(layer: int, W: np.ndarray) -> list[Finding]:
    """Rows, and columns, whose mean squares scatter more or less than those of independent entries do."""
    found, s2 = [], float(np.mean(W**2))
    excess = float(np.mean(W**4)) - s2**2
    for what, axis in (("rows", 1), ("columns", 0)):
        m, n = W.shape[1 - axis], W.shape[axis]
        if m < 4 or n < 4 or excess <= 1e-12 * s2**2:
            continue
        scatter = float(np.var(np.mean(W**2, axis=axis), ddof=1)) / (excess / n)
        found += _loud_square(layer, f"scatter of mean squares of {what}", scatter, 2.0 * (1 + 6 / n) / (m - 1))
    return found


def _overlaps(layer: int, W: np.ndarray) -> list[Finding]:
    """The mean of (w_i·w_j)² over pairs of rows, or of columns if those are fewer, against n s⁴."""
    side = "rows" if W.shape[0] <= W.shape[1] else "columns"
    few = W if side == "rows" else W.T
    m, n, s2 = *few.shape, float(np.mean(W**2))
    if m < 3 or s2 == 0.0:
        return []
    gram = few @ few.T
    pairs = m * (m - 1) / 2
    square = (float(np.sum(gram**2)) - float(np.sum(np.diag(gram) ** 2))) / (2 * pairs)
    kurtosis = float(np.mean(W**4)) / s2**2
    variance = (2.0 + (kurtosis**2 - 2.0 * kurtosis - 1.0) / n) / pairs
    return _loud_square(layer, f"mean squared overlap of {side}", square / (n * s2**2), variance)


def _edge(layer: int, W: np.ndarray) -> list[Finding]:
    m, n = W.shape
    s2 = float(np.mean(W**2))
    if min(m, n) < 4 or s2 == 0.0:
        return []
    a, b = math.sqrt(m - 0.5), math.sqrt(n - 0.5)
    centre, scale = (a + b) ** 2, (a + b) * (1 / a + 1 / b) ** (1 / 3)
    largest = float(linalg.norm(W, 2)) ** 2 / s2
    # orthogonal weights are found by their overlaps; only a value outside the bulk matters here
    if largest <= centre:
        return []
    return _loud(layer, "squared largest singular value over s²", largest, centre, scale, LOUD_EDGE)


def _ties(weights: Sequence[np.ndarray]) -> list[Finding]:
    """Two layers, one perhaps transposed, whose entries are correlated."""
    found = []
    for second, W in enumerate(weights, start=1):
        for first, V in enumerate(weights[: second - 1], start=1):
            for other, how in ((V, ""), (V.T, "transposed ")):
                if other.shape != W.shape or W.size < 8 or not (np.any(W) and np.any(V)):
                    continue
                r = float(np.sum(W * other) / math.sqrt(np.sum(W**2) * np.sum(V**2)))
                found += _loud(second, f"correlation with {how}layer {first}", r, 0.0, 1 / math.sqrt(W.size))
    return found
