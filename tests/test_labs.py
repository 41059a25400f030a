"""Every lab: a statement that names its theory, two sizes or more, and a quick run that holds and could have failed."""

import ast
import math

import numpy as np
import pytest
from scipy import stats

from widthwise import devices
from widthwise.cli.main import main
from widthwise.errors import InvalidInput, UnknownName
from widthwise.labs import Claim, Lab, Outcome, get_lab, names, run_lab
from widthwise.labs.catalogue import LABS, knobs
from widthwise.labs.claims import pooled
from widthwise.labs.estimates import LabEstimate
from widthwise.labs.verdict import FALSE_ALARM, ClaimRow, Verdict


@pytest.mark.full
@pytest.mark.parametrize("seeds", [(0, 1, 2), (1001, 2002, 3003)], ids=str)
@pytest.mark.parametrize("name", names())
def test_a_quick_run_holds_rejects_every_wrong_prediction_and_is_saved(name, seeds, tmp_path):
    result = run_lab(name, quick=True, seeds=seeds, progress=False)
    assert result.verdict == "holds", str(result)
    assert {path.suffix for path in result.save(tmp_path)} == {".csv", ".png", ".svg"}


@pytest.mark.parametrize("name", names())
def test_a_lab_has_two_sizes_and_says_where_its_theory_stands(name):
    lab = get_lab(name)
    assert lab.name == name
    assert len(lab.sizes) >= 2
    assert len(lab.quick_sizes) >= 2
    assert "theory §" in lab.statement
    assert lab.size_name != "size"


@pytest.mark.parametrize("name", names())
def test_no_setting_of_a_lab_depends_on_the_seed(name):
    """A seed is handed on, multiplied and added to, but nothing is chosen by it."""
    choices = (ast.Compare, ast.Match, ast.BoolOp)
    tree = ast.parse(LABS[name].read_text(encoding="utf-8"))
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp | ast.While)]
    tests += [node for node in ast.walk(tree) if isinstance(node, choices)]
    tests += [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    read = {part.id for test in tests for part in ast.walk(test) if isinstance(part, ast.Name)}
    assert not {"seed", "seeds"} & read


# the verdict


def drawn_lab(random, claims=6, seeds=3, blocks=4, shift=0.0):
    """A lab of right claims about means, each measured from few samples; the same seed's samples in all of them."""
    samples = random.normal(size=(seeds, blocks, 1)) + random.normal(size=(seeds, blocks, claims)) + shift
    return [
        ClaimRow(1, tuple(Claim.mean(f"{number}", 0.0, one[:, number]) for one in samples)) for number in range(claims)
    ]


def test_a_lab_that_is_right_is_refuted_no_more_often_than_stated():
    """4000 labs of dependent claims from four samples: at most 1 %, the test fails by chance in 1 run of 10⁴."""
    random = np.random.default_rng(5)
    refuted = sum(not Verdict(drawn_lab(random)).agrees for _ in range(4000))
    assert refuted <= stats.binom.ppf(1 - 1e-4, 4000, FALSE_ALARM)


def test_errors_from_few_samples_taken_as_known_would_alarm_too_often():
    random, refuted = np.random.default_rng(6), 0
    for _ in range(400):
        rows = drawn_lab(random)
        sure = [ClaimRow(1, tuple(Claim(c.what, 0.0, c.measured, c.standard_error) for c in row.each)) for row in rows]
        refuted += not Verdict(sure).agrees
    assert refuted > stats.binom.ppf(1 - 1e-6, 400, FALSE_ALARM)


def test_a_lab_that_is_wrong_is_refuted():
    random = np.random.default_rng(7)
    assert sum(not Verdict(drawn_lab(random, blocks=40, shift=1.0)).agrees for _ in range(50)) == 50


def test_claims_of_all_seeds_see_what_each_alone_does_not():
    each = [Claim("slope", 0.0, 0.3, 0.1, 60) for _ in range(5)]
    assert min(claim.probability for claim in each) > 1e-3
    assert pooled(each).probability < 1e-6


def test_a_margin_is_no_deviation_and_beyond_it_an_exact_claim_has_no_chance():
    assert Claim.exactly("rank", 3, 3.05, 0.1).probability == 1.0
    assert Claim.exactly("rank", 3, 3.2, 0.1).probability == 0.0
    assert Claim.mean("all of them", 0.5, np.ones(9), "at least").probability == 1.0
    assert Claim.mean("all of them", 0.5, np.ones(9)).probability == 0.0
    assert Claim("slope", 1.0, 1.3, 0.1, margin=0.2).pull == pytest.approx(1.0)
    assert Claim("slope", 1.0, 1.3, 0.1, kind="at least").probability == 1.0
    assert Claim("slope", 1.0, 1.3, 0.1, kind="at most").probability == pytest.approx(stats.norm.sf(3.0))


def test_controls_are_judged_as_if_they_had_been_measured():
    claim = Claim("angle", 2.0, 1.5, 0.1, 9, kind="at most").fails_for({"untrained": LabEstimate(12.0, 0.5, 9)})
    rows = [ClaimRow(1, (claim, claim))]
    assert Verdict(rows).text == "holds"
    weak = [ClaimRow(1, (claim.fails_for({"untrained": LabEstimate(2.1, 0.5, 9)}),))]
    assert Verdict(weak).text == "holds, but a wrong prediction would too"


@pytest.mark.parametrize(
    "numbers", [(1.0, math.nan, 0.1), (1.0, 1.0, -0.1), (1.0, 1.0, 0.1, 0), (math.inf, 1.0, 0.1)], ids=str
)
def test_a_claim_of_numbers_that_are_none_is_refused(numbers):
    with pytest.raises(InvalidInput, match="claim: got 'slope' with"):
        Claim("slope", *numbers)


# labs of one's own


OWN = '''"""coins are fair

Half of all tosses are heads (theory §0).
"""

import numpy as np

from widthwise.labs import Claim, Outcome

SIZES, SIZE = (10, 100), "tosses"
COINS, SHARES = 200, (0.5, 2 / 3)
HEADS = 0.5
EVERY = 2 * COINS


def experiment(tosses, seed):
    heads = np.random.default_rng(seed).random((EVERY, tosses)) < 0.5
    claim = Claim.mean("share of heads", HEADS, heads.mean(axis=1)).rejects({"two thirds": 2 / 3})
    return Outcome((claim, Claim.exactly("coins", EVERY, len(heads), 0.1)))


def draw(figure, outcomes):
    figure.subplots().plot(list(outcomes), [len(found) for found in outcomes.values()])
'''


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "fair_coins.py"
    file.write_text(OWN, encoding="utf-8")
    return file


def test_a_lab_of_ones_own_is_a_file(own, tmp_path, capsys):
    result = run_lab(own, seeds=(4, 8))
    assert (result.lab.name, result.lab.title, result.verdict) == ("fair-coins", "coins are fair", "holds")
    assert [outcome.seed for outcome in result.outcomes[100]] == [4, 8]
    assert result.figure().get_supxlabel() == "seeds 4, 8; single runs: 4"
    assert main(["lab", str(own), "--quick", "--quiet", "--save", str(tmp_path / "found")]) == 0
    assert capsys.readouterr().out.endswith("verdict: holds\n")
    assert (tmp_path / "found" / "fair-coins.svg").exists()


def test_experiments_side_by_side_find_what_they_find_one_by_one(own, monkeypatch):
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(devices, "usable_cores", lambda cores=cores: cores)
        found.append(run_lab(own, seeds=(1, 2, 3, 4)))
    assert str(found[0]) == str(found[1])
    assert [outcome.seed for outcome in found[1].outcomes[100]] == [1, 2, 3, 4]


def test_a_lab_of_ones_own_is_an_object_too(own):
    drawn = get_lab(own)
    lab = Lab("mine", "title", "statement", drawn.experiment, sizes=(7, 9, 11))
    result = run_lab(lab, quick=True)
    assert (list(result.outcomes), result.verdict) == ([7, 9], "holds")
    with pytest.raises(InvalidInput, match="draws no figure"):
        result.figure()
    assert list(run_lab(lab, settings={"size": 5}).outcomes) == [5]


def test_knobs_change_what_follows_from_them(own, capsys):
    assert knobs(own) == {"coins": 200, "heads": 0.5}
    result = run_lab(own, settings={"coins": 300, "tosses": (4, 6)})
    assert list(result.outcomes) == [4, 6]
    assert next(row for row in result if row.claim == "coins").together.measured == 600
    assert "settings: coins = 300, tosses = (4, 6)" in str(result)
    assert run_lab(own, settings={"heads": 0.6}).verdict == "refuted"
    assert main(["lab", str(own), "--set", "heads=0.6", "--set", "tosses=50", "--quiet", "--no-save"]) == 1


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"coin": 3}, UnknownName, "coins"),
        ({"coins": 0.5}, InvalidInput, "coins: got 0.5; expected a whole number"),
        ({"coins": (1, 2)}, InvalidInput, "coins: got"),
        ({"tosses": 0}, InvalidInput, "sizes: got 0"),
    ],
    ids=str,
)
def test_knobs_that_do_not_exist_or_do_not_fit_are_refused(own, settings, error, words):
    with pytest.raises(error, match=words):
        run_lab(own, settings=settings)


@pytest.mark.parametrize(
    ("text", "words"),
    [("SIZES = (1,\n", "a file of valid Python"), ("SIZES = (1, 2)\n", "without experiment")],
    ids=["broken", "incomplete"],
)
def test_a_file_that_is_no_lab_is_refused_in_one_line(text, words, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert main(["lab", str(file), "--quiet"]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothere.py"], "the path of a Python file"),
        (["hesian"], "hessian"),
        (["marchenko_pastur", "--set", "width"], "NAME=NUMBER"),
        (["marchenko_pastur", "--seed", "1", "--seed", "1"], "none twice"),
    ],
    ids=str,
)
def test_what_the_command_does_not_understand_it_says(arguments, words, capsys):
    assert main(["lab", *arguments, "--quiet", "--no-save"]) == 2
    assert words in capsys.readouterr().err


def test_names_may_be_written_with_either_dash():
    assert get_lab("max_margin").name == get_lab("max-margin").name == "max-margin"


def test_an_experiment_without_claims_is_refused():
    with pytest.raises(InvalidInput, match="an Outcome with at least one claim"):
        run_lab(Lab("empty", "t", "s", lambda size, seed: Outcome(()), (1,)))
