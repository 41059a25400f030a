"""`compare`: probabilities of correlated entries, and verdicts that tell a wrong theory from too small a width."""

from itertools import permutations

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import widthwise as ww
from widthwise.comparison.verdicts import AGREES, DISAGREES, ONE_WIDTH, TOO_NARROW, TOO_NOISY, chi_square_probability
from widthwise.errors import InvalidInput
from widthwise.experiments.tables import correlation_traces
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.tensors import TENSORS, distinct_entries

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8]])


def network(width=24, depth=3, activation="tanh"):
    return ww.MLP([3, *[width] * (depth - 1), 1], activation, C_b=0.1, C_W=1.6, lambda_b=0.3, lambda_W=0.9)


def generated(name):
    """The group that the listed permutations of slots generate."""
    found = {tuple(range(TENSORS[name].slots))}
    while True:
        more = {tuple(one[i] for i in by) for one in found for by in TENSORS[name].symmetry} | found
        if more == found:
            return found
        found = more


def test_the_symmetries_of_every_tensor_are_the_listed_ones_and_no_others():
    net = ww.MLP([3, 8, 8, 1], "softplus", [0.1, 0.2, 0.3], [1.6, 1.4, 1.2], 0.3, [0.9, 0.8, 0.7])
    stream = ww.Network([ww.Dense(3, 8, 0.1), *[ww.Residual(["softplus", ww.Dense(8, 8, lambda_b=0.3)])] * 2])
    th, on_stream = (ww.theory(one, [*X, [0.6, -0.2, 0.4]], order=1, layers="last") for one in (net, stream))
    for name in TENSORS:
        tensor = (th if name in th else on_stream)[name].values[0]
        kept = {p for p in permutations(range(tensor.ndim)) if np.allclose(tensor, tensor.transpose(p), rtol=1e-7)}
        assert kept == generated(name), name
        orbits = {min(tuple(index[i] for i in p) for p in kept) for index in np.ndindex(tensor.shape)}
        assert len(distinct_entries(name, 3)) == len(orbits), name


def mixing(kind, m, rng):
    """A matrix whose rows mix independent numbers into m correlated ones, of unequal size."""
    loading = {
        "independent": np.eye(m),
        "alike": np.ones((m, 1)),
        "common part": np.hstack([np.eye(m), np.ones((m, 1))]),
        "few causes": rng.normal(size=(m, 3)),
    }[kind]
    return loading * rng.uniform(0.2, 3.0, size=(m, 1))


@pytest.mark.parametrize("m", [3, 40])
@pytest.mark.parametrize("kind", ["independent", "alike", "common part", "few causes"])
def test_probabilities_of_correlated_entries_are_uniform(kind, m):
    """Means of 64 blocks of correlated normal numbers, 1500 times; many of them, as if independent, would not be."""
    rng, blocks, times = np.random.default_rng(1), 64, 1500
    loading = mixing(kind, m, rng)
    right, wrong = [], []
    for _ in range(times):
        sample = rng.normal(size=(blocks, loading.shape[1])) @ loading.T
        deviations = (sample - sample.mean(axis=0)) / np.sqrt(blocks * (blocks - 1))
        chi2 = float(np.sum(sample.mean(axis=0) ** 2 / np.sum(deviations**2, axis=0)))
        right.append(chi_square_probability(chi2, m, correlation_traces([deviations]), blocks - 1))
        wrong.append(chi_square_probability(chi2, m, np.full(3, float(m)), blocks - 1))
    for level in (0.1, 0.01):
        expected, error = level, np.sqrt(level / times)
        assert abs(np.mean(np.array(right) < level) - expected) < 4 * error + 0.2 * level
        if kind != "independent" and m == 40:
            assert np.mean(np.array(wrong) < level) > expected + 4 * error
    assert stats.kstest(right, "uniform").statistic < 0.1


def test_traces_of_several_measurements_are_those_of_their_sum():
    rng = np.random.default_rng(2)
    alike, apart = (rng.normal(size=(64, 1)) * np.ones(30), 0.01 * rng.normal(size=(64, 30)))
    assert correlation_traces([alike, apart])[1] > 0.9 * 900
    assert correlation_traces([0.001 * alike, apart])[1] < 1.3 * 30
    assert correlation_traces([np.zeros((64, 5))]).tolist() == [0.0, 0.0, 0.0]
    assert correlation_traces([rng.normal(size=(2, 5))]).tolist() == [5.0, 25.0, 125.0]


def test_probabilities_of_repeated_measurements_are_uniform_and_a_wrong_theory_has_none():
    """K, V and B of one hidden layer are those of theory at every width."""
    net = network(16, depth=2)
    th = ww.theory(net, X, order=1, tensors=["K", "V", "B"], layers="last")
    wrong = th.assign(V=1.2 * th["V"], B=1.2 * th["B"], K=1.1 * th["K"])
    measured = [ww.measure(net, X, 256, seed, statistics=["K", "V", "B"]) for seed in range(80)]
    rows = [list(ww.compare(th, one)) for one in measured]
    for number in range(3):
        found = [row[number].probability for row in rows]
        assert stats.kstest(found, "uniform").pvalue > 1e-3, rows[0][number].variable
    assert all(row.verdict == ONE_WIDTH for row in ww.compare(wrong, measured[0]))
    assert all(row.probability < 1e-4 for row in ww.compare(wrong, measured[0]))


def test_chi_square_counts_each_distinct_entry_once():
    net = network(16, depth=2)
    th, ms = ww.theory(net, X, order=0), ww.measure(net, X, 100)
    row = next(iter(ww.compare(th, ms)))
    pulls = (ms["K"][0].values - th["K"].sel(layer=2).values) / ms["K_se"][0].values
    assert row.chi2 == pytest.approx(np.sum(pulls[np.triu_indices(2)] ** 2))
    assert (row.entries, row.distinct) == (4, 3)
    assert 1.0 <= row.independent <= 3.0


NAMES = ["K", "V", "A"]


@pytest.fixture(scope="module")
def measured():
    """One deep network at two small widths, and its theory."""
    narrow, wide = (ww.measure(network(n), X, 2500, seed, statistics=NAMES) for n, seed in ((16, 1), (32, 2)))
    return ww.theory(network(), X, order=1, tensors=[*NAMES, "G1"], layers="last"), narrow, wide


def verdicts(result):
    return {row.variable: row.verdict for row in result}


def test_one_width_does_not_tell_a_remainder_from_an_error(measured):
    th, narrow, _ = measured
    found = ww.compare(th, narrow)
    assert verdicts(found)["A"] == ONE_WIDTH
    assert verdicts(found)["K"] == AGREES
    assert found.verdict == ONE_WIDTH
    assert "needs a second width to say: off at this width" in found.sentence
    assert not found.agrees


def test_two_widths_tell_too_small_a_width_from_a_wrong_theory(measured):
    th, narrow, wide = measured
    right = ww.compare(th, (wide, narrow))  # in any order
    assert verdicts(right)["A"] == TOO_NARROW
    assert set(verdicts(right).values()) <= {AGREES, TOO_NARROW}
    assert right.verdict == TOO_NARROW
    assert "agrees after the next order in 1/n: the difference at finite width falls" in right.sentence
    assert right.agrees
    for name, term in (("V", "V"), ("A", "D")):
        flow = finite_flow(network(), X, (name,), omit=frozenset({(name, term)}), last_only=True)
        wrong = ww.compare(th.assign({name: (th[name].dims, flow.tensors[name])}), (narrow, wide))
        assert verdicts(wrong)[name] == wrong.verdict == DISAGREES
        assert f" {name} (layer 3): disagrees." in wrong.sentence


def test_a_measurement_over_widths_has_the_same_verdicts():
    ms = ww.measure(network(), X, 2500, seed=3, statistics=NAMES, widths=[16, 32])
    th = ww.theory(network(), X, order=1, tensors=NAMES, layers="last")
    assert ms["A_by_width"].dims == ("width", "layer", "a", "b", "c", "d")
    line = ms["A"].values + ms["A_slope"].values / np.array([16, 32]).reshape(2, 1, 1, 1, 1, 1)
    assert np.allclose(line, ms["A_by_width"])
    assert verdicts(ww.compare(th, ms))["A"] == TOO_NARROW
    assert verdicts(ww.compare(th.assign(A=1.3 * th["A"]), ms))["A"] == DISAGREES
    alone = ms[["A", "A_se"]]  # without correlations and widths: entries count as alike
    row = next(iter(ww.compare(th, alone)))
    assert (row.verdict, row.independent) == (AGREES, 1.0)


def test_means_are_compared_at_the_width_of_the_measurement(measured):
    th, narrow, _ = measured
    row = next(iter(ww.compare(th, narrow)))
    shifted = (th["K"] + th["G1"] / 16).sel(layer=3).values
    assert row.predicted in shifted
    plain = next(iter(ww.compare(th.drop_vars("G1"), narrow)))
    assert plain.predicted in th["K"].values


def made(n, value, error, seed=0):
    """A measurement of V, one entry at layer 2, of a network of width n."""
    net = ww.MLP([1, n, 1], "tanh")
    tensor = np.full((1, 1, 1, 1, 1), float(value))
    attrs = {"network": net.to_json(), "n": n, "seed": seed, "blocks": 64, "networks": 1000}
    dims = ("layer", "a", "b", "c", "d")
    data = {"V": (dims, tensor), "V_se": (dims, np.full_like(tensor, error))}
    data["V_traces"] = (("layer", "power"), np.ones((1, 3)))
    return xr.Dataset(data, {"layer": [2]}, attrs)


@pytest.mark.parametrize(
    ("narrow", "wide", "error", "expected"),
    [
        (1.001, 1.0005, 0.001, AGREES),
        (1.2, 1.1, 0.005, TOO_NARROW),  # falls as 1/n
        (1.2, 1.2, 0.005, DISAGREES),  # does not fall
        (1.2, 1.13, 0.005, DISAGREES),  # falls, not to zero
        (1.9, 1.41, 0.005, TOO_NARROW),  # 1/n² as large as 0.8²: within the next remainder
        (1.009, 1.0045, 0.001, TOO_NARROW),
        (1.0052, 1.0041, 0.001, TOO_NOISY),  # off at the larger width, too noisy to see it fall
    ],
    ids=["agrees", "falls", "constant", "falls-not-to-zero", "next-remainder", "small-falls", "noisy"],
)
def test_verdicts_from_two_widths(narrow, wide, error, expected):
    th = made(32, 1.0, 0.0).drop_vars(["V_se", "V_traces"])
    found = ww.compare(th, (made(16, narrow, error), made(32, wide, error, seed=1)))
    assert found.verdict == expected


def test_an_exact_entry_agrees_or_does_not():
    th = made(32, 1.0, 0.0).drop_vars(["V_se", "V_traces"])
    row = next(iter(ww.compare(th, made(32, 1.0, 0.0))))
    assert (row.chi2, row.distinct, row.independent, row.probability, row.verdict) == (0.0, 0, 0.0, 1.0, AGREES)
    assert next(iter(ww.compare(th, made(32, 1.001, 0.0)))).probability == 0.0


def test_the_first_layer_is_the_same_at_every_width():
    net = network(8, 2)
    ms = [ww.measure(network(n, 2), X, 20, seed, layers="all", statistics="K") for n, seed in ((8, 0), (16, 1))]
    th = ww.theory(net, X, order=0)
    assert [row.verdict for row in ww.compare(th, ms) if row.layer == 1] == [AGREES]
    assert [row.verdict for row in ww.compare(1.1 * th, ms) if row.layer == 1] == [DISAGREES]


def test_the_table_and_the_file_hold_the_verdict(measured, tmp_path):
    th, narrow, wide = measured
    found = ww.compare(th, (narrow, wide))
    lines = str(found).splitlines()
    assert lines[0].split() == ["layer", "3", "pull", "predicted", "measured", "prob.", "verdict"]
    assert max(map(len, lines)) <= 80
    assert found.table(wide=True).splitlines()[0].split()[-2:] == ["probability", "verdict"]
    assert len(found.table().splitlines()) == len(found.rows) + 1
    header, *rows = found.to_csv(tmp_path / "pulls.csv").read_text().splitlines()
    assert header.endswith("distinct,chi2,independent,probability,verdict")
    assert rows[2].endswith("agrees after the next order in 1/n")
    agreeing = ww.compare(th[["K", "G1"]], wide)
    assert str(agreeing).splitlines()[-1].endswith("sampled networks.")
    assert agreeing.summary == f"{len(agreeing.rows)} of {len(agreeing.rows)} agree" + "s" * (
        len(agreeing.rows) == 1
    ) + (f" with {wide.attrs['networks']:,} sampled networks.")


def test_measurements_that_do_not_belong_together_are_refused():
    th, one, other = made(32, 1.0, 0.0), made(32, 1.0, 0.1), made(16, 1.0, 0.1, seed=1)
    for second, message in [
        (made(16, 1.0, 0.1), "two Datasets of seed 0; expected two of different seeds"),
        (made(32, 1.0, 0.1, seed=1), r"widths \[1, 32, 1\] and \[1, 32, 1\]; expected two different hidden widths"),
        (other.assign_attrs(network=ww.MLP([1, 16, 1], "relu").to_json()), "one network that differ in hidden widths"),
        (other.assign_attrs(widths=[8, 16]), "of which one is extrapolated"),
        (3, "measurement: got int; expected a Dataset made by widthwise, or two"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            ww.compare(th, (one, second))
    with pytest.raises(InvalidInput, match="measurement: got 3 Datasets"):
        ww.compare(th, (one, one, one))
    with pytest.raises(InvalidInput, match="level: got 2; expected a probability"):
        ww.compare(th, one, level=2)


def test_numbers_that_are_nan_are_not_compared():
    """They went into the verdict and the table without a word."""
    th, one = made(32, 1.0, 0.0), made(32, 1.0, 0.1)
    name = next(str(name) for name in th if f"{name}_se" in one)
    with pytest.raises(InvalidInput, match=f"theory: got NaN in {name}"):
        ww.compare(th * np.nan, one)
    with pytest.raises(InvalidInput, match=f"measurement: got NaN in {name}_se"):
        ww.compare(th, one.assign({f"{name}_se": one[f"{name}_se"] * np.nan}))
