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
from collections.abc import Iterator, Sequence
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
        of_weights = (*_mean_of("mean weight", W), *_variances(W), *_overlaps(W), *_edge(W))
        found += [Finding(layer, *check) for check in (*of_weights, *_mean_of("mean bias", b))]
    ties = [Finding(layer, *check) for layer, W in enumerate(weights, 1) for check in _ties(W, weights[: layer - 1])]
    return [finding for finding in (*found, *ties) if abs(finding.pull) > LOUD]


#: What was looked at, the numbers found and expected, and their pull.
Check = tuple[str, float, float, float]


def _mean_square_check(what: str, found: float, variance: float) -> Check:
    """For a sum of squares of mean 1, whose cube root is nearly Gaussian (Wilson and Hilferty)."""
    small = variance / 9.0
    return what, found, 1.0, (max(found, 0.0) ** (1 / 3) - (1.0 - small)) / math.sqrt(small)


def _mean_of(what: str, entries: np.ndarray | None) -> Iterator[Check]:
    if entries is not None and entries.size >= 4 and entries.mean() != 0.0:
        mean, size = float(entries.mean()), entries.size
        # equal entries have no scatter; the mean square still bounds what zero mean would give
        error = math.sqrt(float(np.mean(entries**2)) / size)
        constant = float(entries.std()) < 1e-7 * abs(mean)
        yield what, mean, 0.0, math.copysign(math.inf, mean) if constant else mean / error


def _variances(W: np.ndarray) -> Iterator[Check]:
    """Rows, and columns, whose mean squares scatter more or less than those of independent entries do."""
    s2 = float(np.mean(W**2))
    excess = float(np.mean(W**4)) - s2**2
    for what, axis in (("rows", 1), ("columns", 0)):
        m, n = W.shape[1 - axis], W.shape[axis]
        if m >= 4 and n >= 4 and excess > 1e-12 * s2**2:
            scatter = float(np.var(np.mean(W**2, axis=axis), ddof=1)) / (excess / n)
            yield _mean_square_check(f"scatter of mean squares of {what}", scatter, 2.0 * (1 + 6 / n) / (m - 1))


def _overlaps(W: np.ndarray) -> Iterator[Check]:
    """The mean of (w_i·w_j)² over pairs of rows, or of columns if those are fewer, against n s⁴."""
    side = "rows" if W.shape[0] <= W.shape[1] else "columns"
    few = W if side == "rows" else W.T
    m, n, s2 = *few.shape, float(np.mean(W**2))
    if m >= 3 and s2 > 0.0:
        gram = few @ few.T
        pairs = m * (m - 1) / 2
        square = (float(np.sum(gram**2)) - float(np.sum(np.diag(gram) ** 2))) / (2 * pairs)
        kurtosis = float(np.mean(W**4)) / s2**2
        variance = (2.0 + (kurtosis**2 - 2.0 * kurtosis - 1.0) / n) / pairs
        yield _mean_square_check(f"mean squared overlap of {side}", square / (n * s2**2), variance)


def _edge(W: np.ndarray) -> Iterator[Check]:
    s2 = float(np.mean(W**2))
    if min(W.shape) >= 4 and s2 > 0.0:
        a, b = (math.sqrt(size - 0.5) for size in W.shape)
        centre, scale = (a + b) ** 2, (a + b) * (1 / a + 1 / b) ** (1 / 3)
        largest = float(linalg.norm(W, 2)) ** 2 / s2
        # orthogonal weights are found by their overlaps; only a value outside the bulk matters here
        if largest > centre + LOUD_EDGE * scale:
            yield "squared largest singular value over s²", largest, centre, (largest - centre) / scale


def _ties(W: np.ndarray, below: Sequence[np.ndarray]) -> Iterator[Check]:
    """Layers below, perhaps transposed, whose entries are correlated with those of this one."""
    for number, V in enumerate(below, start=1):
        for other, how in ((V, ""), (V.T, "transposed ")):
            if other.shape == W.shape and W.size >= 8 and np.any(W) and np.any(V):
                r = float(np.sum(W * other) / math.sqrt(np.sum(W**2) * np.sum(V**2)))
                yield f"correlation with {how}layer {number}", r, 0.0, r * math.sqrt(W.size)
