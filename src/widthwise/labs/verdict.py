"""The verdict on a lab: all its claims, sizes and seeds together, with a stated rate of false alarms.

Every claim is tested for each seed and for all seeds together, at each size. If it is right, the probability of a
deviation as large as the measured one is below p in a share p of all runs at most. A lab of N such tests is refuted
when one of its probabilities is below FALSE_ALARM/N: however the tests depend on each other, a lab that is right is
refuted in a share FALSE_ALARM of its runs at most (Bonferroni). Deviations of results without randomness are no chance:
beyond their margin they refute at once, and they do not count in N. A wrong prediction, or a control, is rejected when
the lab would have been refuted if it had claimed, or measured, that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from widthwise.labs.claims import Claim, pooled

#: Share of the runs of a lab, all sizes and seeds together, that refute it though it is right, at most.
FALSE_ALARM = 0.01

COLUMNS = (
    "claim", "size", "seeds", "predicted", "measured", "± s.e.", "margin", "pull", "worst", "probability",
    "wrong prediction", "its pull",
)  # fmt: skip


@dataclass(frozen=True)
class ClaimRow:
    """One claim at one size: as each seed measured it, and over all of them."""

    size: int
    each: tuple[Claim, ...]

    @cached_property
    def together(self) -> Claim:
        """The claim over all seeds."""
        return pooled(self.each)

    @property
    def claim(self) -> str:
        return self.each[0].what

    @property
    def tested(self) -> tuple[Claim, ...]:
        """Each seed by itself and, if there are several, all together."""
        return (*self.each, self.together) if len(self.each) > 1 else self.each

    @property
    def tests(self) -> int:
        """How many of its tests can fail by chance."""
        return sum(claim.random for claim in self.tested)

    @property
    def probability(self) -> float:
        """The smallest among its tests."""
        return min(claim.probability for claim in self.tested)

    @property
    def worst_pull(self) -> float:
        """The largest of one seed."""
        return max((claim.pull for claim in self.each), key=abs)

    def probability_of(self, alternative: str) -> float:
        """The smallest among the tests of a wrong prediction or control."""
        return min(claim.against(alternative).probability for claim in self.tested)

    @property
    def cells(self) -> tuple[Any, ...]:
        """What a table shows; of the wrong predictions the one that is hardest to reject."""
        t = self.together
        pulls = {name: t.against(name).pull for name in t.alternatives}
        hardest = max(t.alternatives, key=self.probability_of, default="")
        numbers = (t.predicted, t.measured, t.standard_error, t.margin, t.pull, self.worst_pull, self.probability)
        return (self.claim, self.size, len(self.each), *numbers, hardest, pulls.get(hardest, ""))


class Verdict:
    """What rows of claims say together.

    >>> rows = [ClaimRow(8, (Claim("slope", 2.0, 2.1, 0.05, wrong={"half": 1.0}),))]
    >>> found = Verdict(rows)
    >>> found.text, found.tests, dict(found.rejected)
    ('holds', 1, {('slope', 'half'): True})
    """

    def __init__(self, rows: Sequence[ClaimRow]) -> None:
        self.rows = tuple(rows)

    @property
    def tests(self) -> int:
        return sum(row.tests for row in self.rows)

    @property
    def level(self) -> float:
        """The probability below which one test refutes the lab."""
        return FALSE_ALARM / max(self.tests, 1)

    @property
    def smallest(self) -> float:
        """The smallest probability among all tests."""
        return min((row.probability for row in self.rows), default=1.0)

    @property
    def agrees(self) -> bool:
        return self.smallest >= self.level

    @cached_property
    def rejected(self) -> Mapping[tuple[str, str], bool]:
        """Of every claim, and wrong prediction or control by name, whether some size rejects it."""
        found: dict[tuple[str, str], bool] = {}
        for row, wrong in self._wrong():
            found[row.claim, wrong] = found.get((row.claim, wrong), False) or row.probability_of(wrong) < self.level
        return found

    def _wrong(self) -> Iterator[tuple[ClaimRow, str]]:
        return ((row, name) for row in self.rows for name in row.together.alternatives)

    @property
    def discriminates(self) -> bool:
        """There are wrong predictions or controls, and each is rejected."""
        return bool(self.rejected) and all(self.rejected.values())

    @property
    def text(self) -> str:
        """'holds', 'holds, but a wrong prediction would too', or 'refuted'."""
        if not self.agrees:
            return "refuted"
        return "holds" if self.discriminates else "holds, but a wrong prediction would too"

    @property
    def basis(self) -> str:
        """The numbers behind it, in one sentence."""
        what = f"smallest probability of {self.tests} tests: {self.smallest:.2g}"
        return f"{what}; refuted below {self.level:.2g}, by chance in at most {FALSE_ALARM:.0%} of runs"
