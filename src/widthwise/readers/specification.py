"""From the weights of a model to its specification: measured variances, or the initialisation that made them.

Are the weights a draw of independent entries of mean zero and one variance (theory §1)? In standard errors, for a
matrix W of m × n such entries with variance s² and fourth moment κs⁴, to leading order in 1/mn:
    mean            Σ W / (mn)                       standard error s/√(mn)
    row variances   Σ_i (|w_i|²/n − s²)² n/(s⁴(κ−1))  mean m − 1, variance 2m(1 + 6/n)
    overlaps        mean of (w_i·w_j)²/(n s⁴), i < j  mean 1, variance (2 + (κ² − 2κ − 1)/n)/pairs
    largest singular value²/s²                       centre (√(n−½)+√(m−½))², Tracy–Widom scale
with s² and κ estimated from the same entries, which is allowed for. Orthogonal weights have overlaps far below 1;
trained weights have a singular value outside the bulk, unequal rows, or a mean; tied weights are found by the
correlation of two layers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg, stats

from widthwise.errors import WeightsWarning
from widthwise.network import MLP, Network, WeightLayer
from widthwise.network.validation import check_flag, check_real
from widthwise.readers.chains import LayerChain
from widthwise.readers.empirical.top_eigenvalue import TopEigenvalue
from widthwise.readers.read_steps import ReadDense, ReadGain

#: Deviations beyond so many standard errors are reported.
LOUD = 5.0
#: The same for the largest singular value, whose law has a longer upper tail.
LOUD_EDGE = 7.0
#: Matrices up to so many rows have all their eigenvalues computed; for larger ones Lanczos is quicker.
DENSE = 256


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

    def times(self, factor: float) -> SecondMoment:
        return replace(self, value=factor * self.value, error=factor * self.error)

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
        of_weights = (*_mean_of("mean weight", W), *_variances(W), *_overlaps(W))
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
    squares = W**2
    s2 = float(np.mean(squares))
    excess = float(np.mean(squares**2)) - s2**2
    for what, axis in (("rows", 1), ("columns", 0)):
        m, n = W.shape[1 - axis], W.shape[axis]
        if m >= 4 and n >= 4 and excess > 1e-12 * s2**2:
            scatter = float(np.var(np.mean(squares, axis=axis), ddof=1)) / (excess / n)
            yield _mean_square_check(f"scatter of mean squares of {what}", scatter, 2.0 * (1 + 6 / n) / (m - 1))


def _overlaps(W: np.ndarray) -> Iterator[Check]:
    """Of rows, or of columns if those are fewer: mean (w_i·w_j)² against n s⁴, and their largest eigenvalue."""
    side = "rows" if W.shape[0] <= W.shape[1] else "columns"
    few = W if side == "rows" else W.T
    m, n, squares = *few.shape, W**2
    s2 = float(np.mean(squares))
    if m < 3 or s2 == 0.0:
        return
    gram = few @ few.T
    pairs = m * (m - 1) / 2
    square = (float(np.sum(gram**2)) - float(np.sum(np.diag(gram) ** 2))) / (2 * pairs)
    kurtosis = float(np.mean(squares**2)) / s2**2
    variance = (2.0 + (kurtosis**2 - 2.0 * kurtosis - 1.0) / n) / pairs
    yield _mean_square_check(f"mean squared overlap of {side}", square / (n * s2**2), variance)
    if m >= 4:
        yield from _edge(gram / s2, W.shape)


def _edge(gram: np.ndarray, shape: tuple[int, ...]) -> Iterator[Check]:
    """The largest eigenvalue of the overlaps of rows, in units of s², against the edge of the bulk."""
    a, b = (math.sqrt(size - 0.5) for size in shape)
    centre, scale = (a + b) ** 2, (a + b) * (1 / a + 1 / b) ** (1 / 3)
    if len(gram) <= DENSE:
        largest = float(linalg.eigvalsh(gram, subset_by_index=[len(gram) - 1] * 2)[0])
    else:  # a value outside the bulk stands alone, and is found at once
        start = np.random.default_rng(0).normal(size=len(gram))
        largest = TopEigenvalue.of(lambda v: gram @ v, start, 1e-3 * scale / centre, 100).value
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


#: A common variance of several layers is refused below this probability.
UNLIKELY = 0.01
#: A named initialisation must agree within so many standard errors.
NEAR = 4.0


@dataclass(frozen=True)
class Reading:
    """What was read from a model.

    `net` is the specification; `C_W`, `C_b` are the measured n_{l−1}·mean(W²) and mean(b²) of each weight layer with
    their standard errors; `initialisation` names the known initialisation that they are consistent with, if one is; and
    `findings` says what speaks against independent zero-mean entries. `chain` holds the weights themselves.
    """

    net: Network
    chain: LayerChain
    C_W: tuple[SecondMoment, ...]
    C_b: tuple[SecondMoment, ...]
    initialisation: str | None
    findings: tuple[Finding, ...]

    def pulls(self, net: Network) -> dict[str, np.ndarray]:
        """(measured − net's)/standard error for C_W and C_b, layer by layer; errors are those of Gaussian entries."""
        dense = [step for step in net.steps if isinstance(step, WeightLayer)]
        return {
            name: np.array(
                [_pull(moment, getattr(own, name)) for moment, own in zip(getattr(self, name), dense, strict=True)]
            )
            for name in ("C_W", "C_b")
        }


def read_chain(
    chain: LayerChain,
    learning_rate: float,
    activation: Any,
    recognise: bool,
    rates: Sequence[tuple[float, float]] | None = None,
) -> Reading:
    """The specification of a chain; `rates` on W and b, gain and shift by layer are used instead of one for all."""
    C_W = tuple(SecondMoment.of(layer.W, layer.W.shape[1]) for layer in chain.dense)
    C_b = tuple(SecondMoment.of(np.zeros(len(layer.W)) if layer.b is None else layer.b) for layer in chain.dense)
    learning_rate = check_real("learning_rate", learning_rate, "a finite non-negative number")
    name, values = _recognised(chain, C_W, C_b) if check_flag("recognise", recognise) else (None, None)
    variances = zip(*(values or (_pooled(C_b), _pooled(C_W))), strict=True)
    numbers: list[list[float]] = []
    for step, both in zip(chain.learned, rates or [(learning_rate, learning_rate)] * len(chain.learned), strict=True):
        own = [0.0 if value is None else rate for value, rate in zip(step.values, both, strict=True)]
        if isinstance(step, ReadDense):
            own = [step.factor**2 * value for value in (*next(variances), own[1], own[0] * step.W.shape[1])]
        numbers.append(own)
    net = chain.network(numbers, activation)
    found = findings([layer.W for layer in chain.dense], [layer.b for layer in chain.dense])

    def of_products(moments: Sequence[SecondMoment]) -> tuple[SecondMoment, ...]:
        return tuple(moment.times(layer.factor**2) for moment, layer in zip(moments, chain.dense, strict=True))

    return Reading(net, chain, of_products(C_W), of_products(C_b), name, (*found, *_moved_gains(chain)))


def _moved_gains(chain: LayerChain) -> Iterator[Finding]:
    """Gains that are not 1 and shifts that are not 0, which no fresh normalisation has: the one furthest off."""
    layer = 0
    for step in chain.learned:
        layer += isinstance(step, ReadDense)
        if isinstance(step, ReadGain):
            for what, values, start in (("gain", step.gain, 1.0), ("shift", step.shift, 0.0)):
                if values is not None and np.any(values != start):
                    furthest = float(values[np.argmax(np.abs(values - start))])
                    pull = math.copysign(math.inf, furthest - start)
                    yield Finding(layer, f"{what} of {step.where}", furthest, start, pull)


def net_or_warning(reading: Reading) -> Network:
    """The specification, with a warning if the weights are no draw from any such specification."""
    if reading.findings:
        shown = "; ".join(map(str, reading.findings[:6]))
        more = f"; and {len(reading.findings) - 6} more" if len(reading.findings) > 6 else ""
        warnings.warn(
            f"the weights are not consistent with independent zero-mean entries of one variance per layer (trained, "
            f"orthogonal or tied weights?): {shown}{more}. C_W and C_b are taken from their mean squares nevertheless",
            WeightsWarning,
            stacklevel=3,
        )
    return reading.net


def _pooled(moments: Sequence[SecondMoment]) -> list[float]:
    """One value for all layers where they agree with one (χ² law of Gaussian entries); else each its own."""
    total = sum(moment.entries for moment in moments)
    common = sum(moment.value * moment.entries for moment in moments) / total
    own = [moment.value for moment in moments]
    if common == 0.0:
        return own
    below = [stats.chi2.cdf(moment.entries * moment.value / common, moment.entries) for moment in moments]
    return own if min(min(p, 1.0 - p) for p in below) < UNLIKELY else [common] * len(own)


def _recognised(chain: LayerChain, C_W, C_b) -> tuple[str | None, tuple[list[float], list[float]] | None]:
    """A known initialisation, and its C_b and C_W, if the weights are consistent with exactly one."""

    def known(convention: Callable[..., MLP]) -> list[MLP]:
        return [convention(layer.fans, "relu") for layer in chain.dense]

    uniform = known(MLP.torch_default)
    bounded = all(_bounded(layer) for layer in chain.dense)
    if bounded and _agree(C_W, [net.C_W[0] for net in uniform]) and any(layer.b is not None for layer in chain.dense):
        C = [0.0 if layer.b is None else net.C_b[0] for layer, net in zip(chain.dense, uniform, strict=True)]
        return "uniform on ±1/√fan-in (the default of torch and Equinox)", (C, [net.C_W[0] for net in uniform])
    if any(moment.value for moment in C_b):
        return None, None
    conventions = {"He": MLP.he, "LeCun (the default of Flax)": MLP.lecun, "Glorot": MLP.glorot}
    candidates = {name: tuple(net.C_W[0] for net in known(convention)) for name, convention in conventions.items()}
    fitting = {name: values for name, values in candidates.items() if _agree(C_W, values)}
    if len(set(fitting.values())) != 1:
        return None, None
    name, values = next(iter(fitting.items()))
    return name, ([0.0] * len(values), list(values))


def _bounded(layer) -> bool:
    """Entries within ±1/√fan-in, to the rounding of single precision."""
    bound = (1.0 + 1e-6) / math.sqrt(layer.W.shape[1])
    return bool(np.all(np.abs(layer.W) <= bound)) and (layer.b is None or bool(np.all(np.abs(layer.b) <= bound)))


def _agree(measured: Sequence[SecondMoment], values: Sequence[float]) -> bool:
    return all(abs(_pull(moment, value)) < NEAR for moment, value in zip(measured, values, strict=True))


def _pull(moment: SecondMoment, value: float) -> float:
    error = max(moment.error, math.sqrt(2.0 / moment.entries) * value if moment.entries <= 8 else 0.0)
    if moment.value == value:
        return 0.0
    return (moment.value - value) / error if error > 0 else math.copysign(math.inf, moment.value - value)
