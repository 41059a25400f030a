"""A prediction beside its measurement, and the probability of a deviation as large as the one that was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scipy.special import stdtr

from widthwise.errors import InvalidInput
from widthwise.labs.estimates import LabEstimate, combined, mean_and_error

ClaimKind = Literal["equals", "at most", "at least"]


@dataclass(frozen=True)
class Claim:
    """One prediction beside its measurement.

    Numbers may come as any scalar. `standard_error` is the scatter of the measurement over repetitions, estimated with
    so many degrees of `freedom`, and `skewness` that of the measurement; they are zero for a result that does not
    scatter. `margin` is what the prediction itself
    leaves open: rounding, the accuracy of a solver, an order that it leaves out. `wrong` holds perturbed predictions by
    name, and `controls` measurements where the statement does not apply: the experiment must be able to reject both.

    >>> claim = Claim("slope", 2.0, 2.1, 0.05, wrong={"half the slope": 1.0})
    >>> round(claim.pull, 9), round(claim.probability, 4), claim.against("half the slope").probability < 1e-9
    (2.0, 0.0455, True)
    """

    what: str
    predicted: float
    measured: float
    standard_error: float
    freedom: float = math.inf
    skewness: float = 0.0
    kind: ClaimKind = "equals"
    margin: float = 0.0
    wrong: Mapping[str, float] = field(default_factory=dict)
    controls: Mapping[str, LabEstimate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("predicted", "measured", "standard_error", "freedom", "skewness", "margin"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "wrong", {name: float(value) for name, value in self.wrong.items()})
        object.__setattr__(self, "controls", {name: LabEstimate(*found) for name, found in self.controls.items()})
        others = (*self.wrong.values(), *(number for found in self.controls.values() for number in found[:2]))
        numbers = (self.predicted, self.measured, self.standard_error, self.skewness, self.margin, *others)
        positive = self.standard_error >= 0.0 and self.margin >= 0.0 and self.freedom > 0.0
        if not all(map(math.isfinite, numbers)) or not positive:
            expected = "finite numbers, no negative standard error or margin, and positive degrees of freedom"
            raise InvalidInput("claim", f"{self.what!r} with {(*numbers, self.freedom)}", expected)
        if self.kind not in ("equals", "at most", "at least"):
            raise InvalidInput("kind", repr(self.kind), "'equals', 'at most' or 'at least'")

    @classmethod
    def exactly(cls, what: str, predicted: Any, measured: Any, margin: Any, kind: ClaimKind = "equals") -> Claim:
        """A claim about a result without randomness."""
        return cls(what, predicted, measured, 0.0, kind=kind, margin=margin)

    @classmethod
    def mean(cls, what: str, predicted: Any, samples: Any, kind: ClaimKind = "equals") -> Claim:
        """A claim about the mean of independent samples."""
        return cls(what, predicted, *mean_and_error(samples), kind=kind)

    def rejects(self, wrong: Mapping[str, Any]) -> Claim:
        """The same claim, with predictions that it must be able to reject.

        >>> Claim.exactly("ways", 2, 2, 0.1).rejects({"one": 1}).against("one").probability
        0.0
        """
        return replace(self, wrong=wrong)

    def fails_for(self, controls: Mapping[str, LabEstimate]) -> Claim:
        """The same claim, with measurements for which it must fail.

        >>> Claim("share", 1.0, 0.98, 0.02).fails_for({"untrained": LabEstimate(0.5, 0.02, 9)}).alternatives
        ('untrained',)
        """
        return replace(self, controls=controls)

    @property
    def alternatives(self) -> tuple[str, ...]:
        """Names of wrong predictions and controls."""
        return (*self.wrong, *self.controls)

    def against(self, name: str) -> Claim:
        """The claim with the wrong prediction, or with the measurement of the control, of that name."""
        if name in self.wrong:
            return replace(self, predicted=self.wrong[name], wrong={}, controls={})
        value, error, freedom, skewness = self.controls[name]
        found = {"measured": value, "standard_error": error, "freedom": freedom, "skewness": skewness}
        return replace(self, **found, wrong={}, controls={})

    @property
    def random(self) -> bool:
        """Whether the measurement scatters, so that a deviation may be chance."""
        return self.standard_error > 0.0

    @property
    def pull(self) -> float:
        """How far (measured − predicted) exceeds the margin, in standard errors; 0 for a bound that holds."""
        away = self.measured - self.predicted
        away = {"equals": away, "at most": max(away, 0.0), "at least": min(away, 0.0)}[self.kind]
        beyond = max(abs(away) - self.margin, 0.0)
        if beyond == 0.0:
            return 0.0
        return math.copysign(beyond / self.standard_error if self.random else math.inf, away)

    @property
    def probability(self) -> float:
        """Of a deviation at least as large if the prediction is right; bounds: one side.

        By Student's distribution of t + (h/6)(1 + 2t²) + h²t³/27, t the pull and h the skewness (Hall 1992): where
        samples lean to one side, their error rises and falls with their mean, and t leans to the other.

        >>> Claim("few runs", 1.0, 1.3, 0.1, freedom=2).probability > Claim("many", 1.0, 1.3, 0.1).probability
        True
        >>> leaning = [Claim("share", 1.0, 1.0 + away, 0.1, skewness=0.2).probability for away in (-0.3, 0.3)]
        >>> leaning[0] > Claim("even", 1.0, 1.3, 0.1).probability > leaning[1]
        True
        """
        if self.pull == 0.0:
            return 1.0
        if not self.random:
            return 0.0
        t, h = self.pull, self.skewness
        even = t + h / 6.0 * (1.0 + 2.0 * t**2) + h**2 * t**3 / 27.0
        beyond = -even if t > 0.0 else even
        if self.kind == "equals":
            return 2.0 * float(stdtr(self.freedom, -abs(even)))
        return float(stdtr(self.freedom, beyond))


def pooled(claims: Sequence[Claim]) -> Claim:
    """The same claim over independent repetitions: the mean of what was predicted and measured, with its error.

    >>> both = pooled([Claim("slope", 2.0, 2.1, 0.3, 10), Claim("slope", 2.0, 2.3, 0.4, 10)])
    >>> round(both.measured, 9), both.standard_error, round(both.freedom, 3)
    (2.2, 0.25, 18.546)
    """
    even = [1.0 / len(claims)] * len(claims)
    found = combined([LabEstimate(c.measured, c.standard_error, c.freedom, c.skewness) for c in claims], even)

    def average(values):
        return sum(values) / len(claims)

    return Claim(
        claims[0].what,
        average(c.predicted for c in claims),
        *found,
        kind=claims[0].kind,
        margin=average(c.margin for c in claims),
        wrong={name: average(c.wrong[name] for c in claims) for name in claims[0].wrong},
        controls={name: combined([c.controls[name] for c in claims], even) for name in claims[0].controls},
    )
