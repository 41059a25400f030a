"""Sums over trained networks, turned into mean, covariance and higher cumulants of their outputs, with errors."""

from __future__ import annotations

import numpy as np

from widthwise.experiments.tally import Estimate, Sums, jackknife, leaving_one_out, mean_replicates


def estimates(sums: Sums, n: int) -> dict[str, Estimate]:
    """mean, cov, kernel, change, kappa3 and kappa4 with standard errors; without control variates as `plain_mean`, ….

    kappa3 and kappa4 are n times the third and fourth cumulant of each output at each test: at order 1/n, what
    `predict` gives under these names; kappa3_joint, for few tests, third cumulants at three of them. Regression on the
    controls, numbers of mean zero, starts when there are enough networks for it.
    """
    values = mean_replicates(sums)
    counts = leaving_one_out(sums["counts"][sums["counts"] > 0])
    free = (counts / (counts - 1.0))[:, None, None, None, None]
    for kind in ("", "plain_"):
        first, second, third, fourth = (values.pop(kind + name) for name in ("first", "second", "third", "fourth"))
        values[f"{kind}mean"] = first
        values[f"{kind}cov"] = second - np.einsum("rix,rjy->rixjy", first, first)
        if kind:
            values[f"{kind}cov"] = free * values[f"{kind}cov"]
        else:
            # a mean with control variates scatters by less than cov/networks
            values["cov"] = values["cov"] + _scatter_of_mean(first)
        if third.ndim > first.ndim:
            lower = _in_three_places(np.einsum("rixiy->rixy", second), first)
            values[f"{kind}kappa3_joint"] = n * (third - lower + 2.0 * np.einsum("rix,riy,riw->rixyw", *[first] * 3))
            third = np.einsum("rixxx->rix", third)
        square = np.einsum("rixix->rix", second)
        lower = 4.0 * third * first + 3.0 * square**2 - 12.0 * square * first**2 + 6.0 * first**4
        values[f"{kind}kappa3"] = n * (third - 3.0 * square * first + 2.0 * first**3)
        values[f"{kind}kappa4"] = n * (fourth - lower)
    return {name: jackknife(value) for name, value in values.items()}


def _in_three_places(pair: np.ndarray, single: np.ndarray) -> np.ndarray:
    """pair_xy single_w + pair_xw single_y + pair_yw single_x, over (…, x, y, w)."""
    one = np.einsum("rixy,riw->rixyw", pair, single)
    return one + np.einsum("rixyw->rixwy", one) + np.einsum("rixyw->riwyx", one)


def _scatter_of_mean(replicates: np.ndarray) -> np.ndarray:
    """Covariance of a mean (i, x) from its replicates, by the jackknife: (i, x, j, y)."""
    away = replicates[1:] - replicates[1:].mean(axis=0)
    return (len(away) - 1) / len(away) * np.einsum("rix,rjy->ixjy", away, away)
