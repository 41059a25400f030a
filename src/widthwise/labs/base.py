"""What a lab is: a statement that could be false, an experiment, and claims that compare the two.

A lab file defines one `LAB = Lab(...)`. Its `experiment(size, seed)` runs real networks of one size from one seed and
returns an `Outcome`: claims, and the arrays that its figure shows. The runner repeats it over sizes and seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from widthwise.errors import InvalidInput

Kind = Literal["equals", "at most", "at least"]


@dataclass(frozen=True)
class Claim:
    """One prediction beside its measurement.

    `standard_error` is the scatter of the measurement; for a result without randomness it is the numerical tolerance,
    and `exact` says so. `wrong` holds perturbed predictions by name: the experiment must be able to reject them.

    >>> claim = Claim("slope", 2.0, 2.1, 0.05, wrong={"half the slope": 1.0})
    >>> round(claim.pull, 9), claim.pull_of("half the slope") > 5
    (2.0, True)
    """

    what: str
    predicted: float
    measured: float
    standard_error: float
    kind: Kind = "equals"
    wrong: Mapping[str, float] = field(default_factory=dict)
    exact: bool = False

    def __post_init__(self) -> None:
        numbers = (self.predicted, self.measured, self.standard_error, *self.wrong.values())
        if not all(map(math.isfinite, numbers)) or self.standard_error <= 0.0:
            raise InvalidInput("claim", f"{self.what!r} with {numbers}", "finite numbers and a positive standard error")

    @property
    def pull(self) -> float:
        """(measured − predicted)/standard error; a bound that holds has pull 0."""
        return self._pull(self.predicted)

    def pull_of(self, wrong: str) -> float:
        """The pull against a perturbed prediction."""
        return self._pull(self.wrong[wrong])

    def _pull(self, predicted: float) -> float:
        pull = (self.measured - predicted) / self.standard_error
        return {"equals": pull, "at most": max(pull, 0.0), "at least": min(pull, 0.0)}[self.kind]


@dataclass(frozen=True)
class Outcome:
    """What one run of an experiment found: claims, and named arrays or numbers for the figure."""

    claims: tuple[Claim, ...]
    curves: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Lab:
    """A statement about networks with an experiment that could refute it.

    Parameters
    ----------
    name : as on the command line.
    title : one line.
    statement : the prediction in words and formulas, and where in the theory page it stands.
    experiment : (size, seed) → Outcome. Claims of the same name are combined over seeds, size by size.
    sizes, quick_sizes : at least two sizes each, for a full and a quick run.
    draw : (figure, outcomes) → None, where outcomes[size] is the list of outcomes over seeds; draws on a matplotlib
        figure in the library's look.
    """

    name: str
    title: str
    statement: str
    experiment: Callable[[int, int], Outcome]
    sizes: tuple[int, ...]
    quick_sizes: tuple[int, ...]
    draw: Callable[[Any, Mapping[int, list[Outcome]]], None]


def mean_and_error(samples: Any) -> tuple[float, float]:
    """Mean of independent samples along the first axis and its standard error.

    >>> mean_and_error([1.0, 2.0, 3.0])
    (2.0, 0.5773502691896258)
    """
    samples = np.asarray(samples, float)
    return float(samples.mean()), float(samples.std(ddof=1) / math.sqrt(len(samples)))
