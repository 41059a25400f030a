"""Every lab: a statement that names its theory, two sizes or more, and a quick run that holds and could have failed."""

import pytest

from widthwise.labs import get_lab, run_lab
from widthwise.labs.runner import names


@pytest.mark.full
@pytest.mark.parametrize("name", names())
def test_a_quick_run_holds_and_rejects_every_wrong_prediction(name):
    result = run_lab(name, quick=True, progress=False)
    assert result.verdict == "holds", str(result)


@pytest.mark.parametrize("name", names())
def test_a_lab_has_two_sizes_and_says_where_its_theory_stands(name):
    lab = get_lab(name)
    assert lab.name == name
    assert len(lab.sizes) >= 2
    assert len(lab.quick_sizes) >= 2
    assert "theory §" in lab.statement
