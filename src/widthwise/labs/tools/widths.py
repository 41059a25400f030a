"""From two widths to the limit: what is f + c/n at n and at 2n."""

from __future__ import annotations

import numpy as np

from widthwise.labs.base import mean_and_error

BLOCKS = 30


def extrapolated(once: np.ndarray, twice: np.ndarray, blocks: int = BLOCKS) -> tuple[float, float]:
    """2f(2n) − f(n), in which O(1/n) drops, and its standard error from blocks of networks.

    Parameters
    ----------
    once, twice : f of networks of width n and 2n, each (networks,), equally many; networks of the same number may
        be correlated.
    blocks : a divisor of the number of networks.

    Returns
    -------
    Value and standard error.

    >>> n = 10.0
    >>> value, _ = extrapolated(np.full(60, 3.0 + 1 / n), np.full(60, 3.0 + 1 / (2 * n)))
    >>> round(value, 12)
    3.0
    """
    means = [np.asarray(values, float).reshape(blocks, -1).mean(axis=1) for values in (once, twice)]
    return mean_and_error(2.0 * means[1] - means[0])
