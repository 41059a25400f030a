"""Which entries of a tensor are equal by definition (theory §3), so that each is counted once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_WITHIN_PAIRS = ((1, 0, 2, 3), (0, 1, 3, 2))
_PAIR_FOR_PAIR = (2, 3, 0, 1)
_BOTH_PAIRS = (1, 0, 3, 2)
#: Permutations of slots that leave a tensor as it is; they generate all the others.
SYMMETRIES: dict[str, tuple[tuple[int, ...], ...]] = {
    **dict.fromkeys(("K", "Theta", "G1", "H1"), ((1, 0),)),
    **dict.fromkeys(("V", "A"), (*_WITHIN_PAIRS, _PAIR_FOR_PAIR)),
    "D": _WITHIN_PAIRS,
    "B": (_BOTH_PAIRS, _PAIR_FOR_PAIR),
    "F": (_PAIR_FOR_PAIR,),
    "P": ((0, 2, 1, 3),),
    "Q": (),
    "R": ((0, 1, 3, 2),),
    "S": (_BOTH_PAIRS,),
    "T": ((3, 2, 1, 0),),
    "U": (_PAIR_FOR_PAIR,),
}


@lru_cache(maxsize=64)
def distinct_entries(name: str, inputs: int) -> np.ndarray:
    """Positions, in the flattened tensor, of one entry out of each set of equal ones.

    >>> distinct_entries("K", 2).tolist(), len(distinct_entries("V", 2)), len(distinct_entries("Q", 2))
    ([0, 1, 3], 6, 16)
    """
    slots = 2 if name in ("K", "Theta", "G1", "H1") else 4
    number = np.arange(inputs**slots).reshape((inputs,) * slots)
    lowest = number
    for _ in SYMMETRIES[name] * 2:  # the largest group has 8 elements
        for slot_order in SYMMETRIES[name]:
            lowest = np.minimum(lowest, lowest.transpose(slot_order))
    return np.flatnonzero(lowest == number)
