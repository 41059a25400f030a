"""Hostile values for every argument of every public function: a line that names it, or an answer; nothing else."""

import inspect

import pytest
from public_calls import CALLS
from reliability import OUTCOMES, hostile_outcomes

import widthwise as ww

#: Public names whose values are not calls: results and errors.
ELSEWHERE = {"Advice", "Comparison", "Critical", "NewtonStep", "NotCritical", "WidthwiseError"}
#: One function of each kind in the ordinary run; `make test-full` takes all.
QUICK = ("ResMLP", "theory", "critical", "compare", "special.chernoff_bound")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in CALLS]
)
def test_hostile_values_are_named_or_answered(name):
    counts, wrong = hostile_outcomes(name)
    assert not wrong, "\n".join(wrong)
    assert counts[OUTCOMES[0]] > 0


def test_every_public_function_is_called():
    public = {name for name in ww.__all__ if callable(getattr(ww, name)) and not inspect.ismodule(getattr(ww, name))}
    assert public - ELSEWHERE <= set(CALLS)
