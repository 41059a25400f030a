"""Which entries of a tensor are equal by definition (theory §3), so that each is counted once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from widthwise.tensors import TENSORS


@lru_cache(maxsize=64)
def distinct_entries(name: str, inputs: int) -> np.ndarray:
    """Positions, in the flattened tensor, of one entry out of each set of equal ones.

    >>> distinct_entries("K", 2).tolist(), len(distinct_entries("V", 2)), len(distinct_entries("Q", 2))
    ([0, 1, 3], 6, 16)
    """
    slots, symmetry = TENSORS[name].slots, TENSORS[name].symmetry
    number = np.arange(inputs**slots).reshape((inputs,) * slots)
    lowest = number
    for _ in symmetry * 2:  # the largest group has 8 elements
        for slot_order in symmetry:
            lowest = np.minimum(lowest, lowest.transpose(slot_order))
    return np.flatnonzero(lowest == number)
