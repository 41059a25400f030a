"""Moments of trained outputs from sums over networks, in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from widthwise.experiments.network_sums import Sums
from widthwise.experiments.tally import Estimate, contract, jackknife, leaving_one_out, regression

#: Network i belongs to block i mod TRAINING_BLOCKS; errors come from leaving out one block at a time.
TRAINING_BLOCKS = 64


def sums_of(indices: np.ndarray, seen: Mapping[str, np.ndarray], plain: Mapping[str, np.ndarray], controls) -> Sums:
    """Sums over the networks `indices`; every observation has one row per network.

    >>> rows = {"first": np.array([[1.0], [2.0], [4.0]])}
    >>> found = sums_of(np.array([0, 1, 2]), rows, rows, np.zeros((3, 0)))
    >>> found["counts"].sum(), found["sum:first"].sum()
    (np.float64(3.0), np.float64(7.0))
    """
    member = (indices[:, None] % TRAINING_BLOCKS == np.arange(TRAINING_BLOCKS)).astype(float)
    found = {
        "counts": member.sum(axis=0),
        "controls": contract(member, controls),
        "squares": contract(controls, controls),
    }
    for kind, rows in (("sum", seen), ("plain", plain)):
        for name, value in rows.items():
            flat = value.reshape(len(indices), int(np.prod(value.shape[1:])))
            found[f"{kind}:{name}"] = contract(member, flat).reshape(TRAINING_BLOCKS, *value.shape[1:])
            if kind == "sum":
                found[f"product:{name}"] = contract(controls, flat)
    return found


def estimates(sums: Sums) -> dict[str, Estimate]:
    """mean, cov, kernel and change with standard errors, and the same without control variates as `plain_mean`, ….

    Regression on the controls, numbers of mean zero, starts when there are enough networks for it.
    """
    found = {}
    for kind, prefix in (("sum", ""), ("plain", "plain_")):
        values = _replicates(sums, kind)
        counts = leaving_one_out(sums["counts"][sums["counts"] > 0])
        first, second = values.pop("first"), values.pop("second")
        free = (counts / (counts - 1.0))[:, None, None, None, None]
        values["mean"] = first
        values["cov"] = free * (second - np.einsum("rix,rjy->rixjy", first, first))
        found |= {prefix + name: jackknife(value) for name, value in values.items()}
    return found


def _replicates(sums: Sums, kind: str) -> dict[str, np.ndarray]:
    """Means over all networks, then without one block each, along a first axis."""
    used = sums["counts"] > 0
    counts = leaving_one_out(sums["counts"][used])
    luck = leaving_one_out(sums["controls"][used]) / counts[:, None]
    inverse, inflation = regression(sums["counts"].sum(), sums["controls"].sum(axis=0), sums["squares"])
    found = {}
    for key, blocks in sums.items():
        start, _, name = key.partition(":")
        if start != kind:
            continue
        total = leaving_one_out(blocks[used])
        mean = total / counts.reshape(-1, *[1] * (total.ndim - 1))
        if kind == "sum":
            together = sums[f"product:{name}"] - np.outer(sums["controls"].sum(axis=0), mean[0])
            mean = mean - (luck @ (inverse @ together)).reshape(mean.shape)
            mean = mean[0] + inflation * (mean - mean[0])
        found[name] = mean
    return found
