"""What each of the recursions reads, which is not written down again: every rule runs once, on one input, with
expectations and tensors that note what is looked up in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from widthwise.flow.tensors.tensor_rules import RULES, LayerStep, Legs, Terms
from widthwise.gaussian.four_point import Orders
from widthwise.tensors import TENSORS


class _Noting(dict):
    """Makes what is looked up in it, and keeps it."""

    def __init__(self, make: Callable[[Any], Any]):
        self.make = make

    def __missing__(self, key):
        return self.setdefault(key, self.make(key))


class _NotedEntries(list):
    """A tensor that notes at which letters it is read."""

    def entries(self, indices: str) -> np.ndarray:
        self.append(indices)
        return np.ones((1,) * 4)


def _noted_run(rule: Callable[[LayerStep, Mapping[str, Any]], Terms]) -> tuple[_Noting, _Noting]:
    """Four-point expectations by orders, and tensors by name, that a rule has read."""
    one = np.ones((1, 1))
    legs = Legs(value=one, aa=one, ab=one, aaaa=one, aaab=one, aabb=one, error=0.0)
    fours = _Noting(lambda _: np.ones((1,) * 4))
    tensors = _Noting(lambda name: one if TENSORS[name].slots == 2 else _NotedEntries())
    rule(LayerStep(C=1.0, lam=1.0, r=1.0, H=one, sigma=legs, slope=legs, fours=fours), tensors)
    return fours, tensors


_NOTES = {name: _noted_run(rule) for name, rule in RULES.items()}
#: Tensors of layer l that each tensor of layer l+1 is made of.
NEEDS: dict[str, tuple[str, ...]] = {name: tuple(tensors) for name, (_, tensors) in _NOTES.items()}
#: Four-point expectations that each rule reads, in the index order in which it reads them.
READS: dict[str, tuple[Orders, ...]] = {name: tuple(fours) for name, (fours, _) in _NOTES.items()}
#: Entries of other tensors that each rule reads: (tensor, letters).
_ENTRIES = {
    name: [(other, letters) for other, at in tensors.items() if isinstance(at, _NotedEntries) for letters in at]
    for name, (_, tensors) in _NOTES.items()
}


def families_of(names: Iterable[str]) -> tuple[Orders, ...]:
    """Four-point expectations that the rules of some tensors read, each once whatever its index order.

    >>> families_of(["D", "F"])
    ((0, 0, 0, 0), (1, 1, 0, 0))
    """
    reads = {orders for name in names for orders in READS[name]}
    return tuple(sorted({tuple(sorted(orders, reverse=True)) for orders in reads}))


def fits(pattern: str, entry: Any) -> bool:
    """Whether inputs (…, 4) are equal wherever letters of the pattern are."""
    entry = np.asarray(entry)
    return np.array_equal(entry, entry[..., [pattern.index(letter) for letter in pattern]])


def equal_entries(name: str, entry: Any) -> Iterator[np.ndarray]:
    """Inputs (…, 4) of a tensor's entry, as they are and with slots exchanged by its symmetries."""
    return (np.asarray(entry)[..., list(by)] for by in ((0, 1, 2, 3), *TENSORS[name].symmetry))


def _repeated_inputs() -> dict[str, tuple[str, ...]]:
    """What the rules read at quadruples of distinct inputs, and then at those with the repeated inputs that come up."""
    found = {(name, _pattern(at)) for read in _ENTRIES.values() for name, at in read if len(set(at)) < 4}
    size = 0
    while size < len(found):
        size = len(found)
        found |= {
            (other, _pattern("".join(pattern["abcd".index(letter)] for letter in at)))
            for name, pattern in found
            for other, at in _ENTRIES[name]
        }
    kept: dict[str, tuple[str, ...]] = {}
    # patterns with more distinct inputs hold those with fewer
    for name, pattern in sorted(found, key=lambda one: (-len(set(one[1])), one)):
        if not any(fits(one, entry) for entry in equal_entries(name, list(pattern)) for one in kept.get(name, ())):
            kept[name] = (*kept.get(name, ()), pattern)
    return kept


def _pattern(letters: str) -> str:
    """The same with x for the first letter that comes more than once, then y and z."""
    repeated = max(letters, key=lambda letter: letters.count(letter) > 1)
    names = dict(zip(dict.fromkeys(repeated + letters), "xyz", strict=False))
    return "".join(names[letter] for letter in letters)


#: Entries with repeated inputs that the recursions read (theory §4, §5): letters are inputs, x the repeated one.
FACES = _repeated_inputs()
