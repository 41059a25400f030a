"""How the errors of a measured tensor's entries hang together, in three numbers.

The sum of the squared pulls of m entries with correlation matrix R has the cumulants tr R, 2 tr R² and 8 tr R³: three
traces are enough for its distribution to a good approximation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def correlation_traces(deviations: Sequence[np.ndarray]) -> np.ndarray:
    """tr R, tr R², tr R³ from deviations (blocks, entries) whose squares add up to the squared standard errors.

    Several arrays belong to independent measurements, whose squares add up too. Correlations that are estimated from b
    blocks are too large: a squared one is 1/(b − 1) on average where there is none. That is taken off: from tr R² so
    that it is right for entries without correlation and for entries that are all alike, from tr R³ with the third
    moment of a Wishart matrix. Entries without scatter do not count, nor those whose scatter is not finite.

    >>> rng = np.random.default_rng(0)
    >>> apart, alike = rng.normal(size=(64, 20)), rng.normal(size=(64, 1)) * np.ones(20)
    >>> correlation_traces([apart])[:2].round().tolist(), correlation_traces([alike]).round().tolist()
    ([20.0, 20.0], [20.0, 400.0, 8000.0])
    """
    largest = np.max([np.abs(part).max(axis=0) for part in deviations], axis=0)
    used = (largest > 0.0) & np.isfinite(largest)
    count = int(used.sum())
    if not count:
        return np.zeros(3)
    units = [part[:, used] / largest[used] for part in deviations]  # squares of large numbers would overflow
    square = np.sum([np.sum(part**2, axis=0) for part in units], axis=0)
    scaled = [part / np.sqrt(square) for part in units]
    shares = [float(np.sum(part**2)) / count for part in scaled]
    noise = sum(share**2 / (len(part) - 1) for share, part in zip(shares, scaled, strict=True))
    if noise > 1.0 - 1e-9:  # two blocks say nothing about correlations
        return float(count) ** np.arange(1, 4)
    rows = np.concatenate(scaled)
    gram = rows @ rows.T
    second = np.sum(gram**2) - count
    second = np.clip(count + (second - noise * count * (count - 1)) / (1 - noise), count, count**2)
    third = np.sum(gram @ gram * gram) - 3 * count * second * noise * (1 + noise) - count**3 * noise**2
    third = np.clip(third / (1 + 3 * noise + 4 * noise**2), second**2 / count, second**1.5)
    return np.array([count, second, third])
