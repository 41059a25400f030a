"""Scale-free activations: σ² = a₊² z² for z > 0 and a₋² z² for z < 0, so that m/g has one law for every kernel g.

With |a₊| = |a₋|, S = Σ_j z_j²/g is χ²_n. With one slope zero, S = 2 χ²_k with k of the n neurons active, a binomial
number: all are silent with probability 2^(−n).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from widthwise.activations import Activation
from widthwise.activations.closed_forms import homogeneous
from widthwise.flow.exact.lattice import MARGIN, trim
from widthwise.flow.exact.sums import Rows, spacing

#: Analytic rows are resolved by fewer points than doubled ones.
COARSEST, PER_DEVIATION = 2.0**-4, 8.0
_DEVIATIONS = 15.0
_LOG_LEAST = -110.0


def slopes_of(activation: Activation) -> tuple[float, float] | None:
    """(|a₊|, |a₋|) of a scale-free activation, None for any other.

    >>> from widthwise.activations import resolve
    >>> slopes_of(resolve("leaky_relu(0.1)"))
    (1.0, 0.1)
    """
    slopes = homogeneous(activation.closed)
    return (abs(slopes[0]), abs(slopes[1])) if slopes is not None and slopes[2] == 1 else None


def known_sum(activation: Activation, n: int) -> Rows | None:
    """Law of log S, S = Σ_j Y_j/⟨Y⟩ over n neurons, where it is a gamma law or a mixture of them; else None."""
    slopes = slopes_of(activation)
    if slopes is None or max(slopes) == 0.0 or not (slopes[0] == slopes[1] or min(slopes) == 0.0):
        return None
    half = min(slopes) == 0.0
    deviation = math.sqrt((5.0 if half else 2.0) / n)
    h = spacing(deviation, COARSEST, PER_DEVIATION)
    # the lower tail of χ²_k is a power k/2: all n neurons for linear, a single active one of them for relu
    below = _LOG_LEAST / n if not half else min(0.0, _LOG_LEAST + 2.0 * (n * math.log(2.0) - math.log(n)))
    low = -_DEVIATIONS * deviation + below
    high = min(_DEVIATIONS * deviation, 6.0)
    first = math.floor((math.log(n) + low) / h)
    log_s = h * np.arange(first, math.ceil((math.log(n) + high) / h) + 1)
    log_density = _active(log_s, n) if half else _log_gamma(log_s - math.log(2.0), 0.5 * n)
    weights = np.pad(h * np.exp(log_density)[None, :], ((0, 0), (MARGIN, MARGIN)))
    return Rows(*trim(weights, first - MARGIN), h, np.array([0.5**n if half else 0.0])).normalised()


def _log_gamma(log_t: np.ndarray, shape) -> np.ndarray:
    """Log-density of log t for a gamma variable t."""
    return shape * log_t - np.exp(log_t) - gammaln(shape)


def _active(log_s: np.ndarray, n: int) -> np.ndarray:
    k = np.arange(1, n + 1)
    log_mass = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0) - n * math.log(2.0)
    seen = log_mass > 2.2 * _LOG_LEAST
    terms = log_mass[seen, None] + _log_gamma(log_s[None, :] - math.log(4.0), 0.5 * k[seen, None])
    top = terms.max(axis=0)
    return top + np.log(np.exp(terms - top).sum(axis=0))
