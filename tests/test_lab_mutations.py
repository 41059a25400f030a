"""Labs notice what is wrong: a factor of two in the main formula of each, and a control that is switched off, refute it.

A mutation is a lab file with one place changed, run from one seed at one size. What takes long is marked `full`.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from widthwise.labs import get_lab, names, run_lab
from widthwise.labs.catalogue import LABS


class Mutation(NamedTuple):
    """What stands in the file, and what stands there instead."""

    right: str
    wrong: str
    quick: bool = True


FACTOR_OF_TWO = {
    "bayesian-interpolation": Mutation("len(off) * fit.scale_moment(1.0),", "2 * len(off) * fit.scale_moment(1.0),"),
    "catapult": Mutation("return float((X**2).sum())", "return 2 * float((X**2).sum())", quick=False),
    "deep-linear": Mutation("law, deep = product_law([width] * width)", "law, deep = product_law([2 * width] * width)"),
    "edge-of-stability": Mutation(
        '"η × sharpness/2 at the edge", 1.0', '"η × sharpness/2 at the edge", 2.0', quick=False
    ),
    "entropic-force": Mutation("return 0.5 * eta * noise /", "return eta * noise /", quick=False),
    "entropy-widths": Mutation("exact = 1.0 / (bits + 1)", "exact = 2.0 / (bits + 1)"),
    "generalisation": Mutation('float(found["error1"].mean())', '2 * float(found["error1"].mean())', quick=False),
    "hessian": Mutation("len(few) * (classes - 1),", "2 * len(few) * (classes - 1),", quick=False),
    "implicit-bias-diagonal": Mutation("rate = 2.0 * (1.0 -", "rate = 4.0 * (1.0 -"),
    "kernels": Mutation("mercer_spectra.marginal_kernel(L)", "mercer_spectra.marginal_kernel(2 * L)"),
    "lazy-vs-rich": Mutation("return float(net.C_W[1] * Theta_1**2", "return float(2 * net.C_W[1] * Theta_1**2"),
    "learning-rate": Mutation("stationary = CONSTANT * NOISE**2", "stationary = 2 * CONSTANT * NOISE**2", quick=False),
    "linear-regions": Mutation("expected = special.expected_kinks", "expected = 2 * special.expected_kinks"),
    "loss-and-schedule": Mutation("= means[0] - means[1],", "= 2 * (means[0] - means[1]),", quick=False),
    "marchenko-pastur": Mutation("return 4 * P * (", "return 8 * P * ("),
    "max-margin": Mutation("1.0 / machine.margin", "2.0 / machine.margin"),
    "neural-collapse": Mutation("return (1.0 - 1.0 / classes) /", "return 2.0 * (1.0 - 1.0 / classes) /", quick=False),
    "nngp-limit": Mutation("3 * V, gaussian", "6 * V, gaussian", quick=False),
    "ntk-convergence": Mutation("return float(np.sum(gram**2", "return float(2 * np.sum(gram**2"),
    "quadratic-model": Mutation("bend = 0.5 * (model.psi[-1]", "bend = 1.0 * (model.psi[-1]", quick=False),
    "relu-paths": Mutation('"E Θ on the diagonal", (HIDDEN', '"E Θ on the diagonal", 2 * (HIDDEN', quick=False),
    "sgd-fluctuation": Mutation("eta / 2 * mean.noise)", "eta * mean.noise)", quick=False),
}
#: Networks, data or algorithms for which the statement does not hold, in the place of those for which it does.
SWITCHED_OFF = {
    "edge-of-stability": Mutation("EDGE, SLOW = 2.0 / np", "EDGE, SLOW = 0.05 / np", quick=False),  # rates too small
    "hessian": Mutation("SPREAD, SMALL = 0.3", "SPREAD, SMALL = 6.0", quick=False),  # no clusters
    "implicit-bias-diagonal": Mutation(
        "alpha * problem.start, alpha * problem.start,", "alpha * np.ones(d), alpha * np.ones(d),"
    ),
    "lazy-vs-rich": Mutation("rich_network(n), seed, NETWORKS, 1.0,", "lazy_network(n), seed, NETWORKS, RATE,"),
    "marchenko-pastur": Mutation("rng.normal(size=shape)", "rng.normal(size=(MATRICES, P, 1)) * np.ones(n_0)"),
    "neural-collapse": Mutation("_collapses(net, DECAY, seed, X,", "_collapses(net, 0.0, seed, X,", quick=False),
    "quadratic-model": Mutation("second = -jnp", "second = -2.0 * jnp", quick=False),  # twice the term of ddĤ
}


def mutated(name: str, mutation: Mutation, folder: Path) -> Path:
    source = LABS[name].read_text(encoding="utf-8")
    assert source.count(mutation.right) == 1, (
        f"{name}: {mutation.right!r} stands in {source.count(mutation.right)} places"
    )
    file = folder / LABS[name].name
    file.write_text(source.replace(mutation.right, mutation.wrong), encoding="utf-8")
    return file


def cases(mutations):
    marks = {True: (), False: (pytest.mark.full,)}
    return [pytest.param(name, m, id=name, marks=marks[m.quick]) for name, m in mutations.items()]


def test_every_lab_has_a_mutation_that_can_be_applied(tmp_path):
    assert list(FACTOR_OF_TWO) == names()
    for mutations in (FACTOR_OF_TWO, SWITCHED_OFF):
        for name, mutation in mutations.items():
            assert get_lab(mutated(name, mutation, tmp_path)).sizes == get_lab(name).sizes


@pytest.mark.parametrize(("name", "mutation"), [*cases(FACTOR_OF_TWO), *cases(SWITCHED_OFF)])
def test_a_mutation_is_refuted(name, mutation, tmp_path):
    # one size and seed; the unchanged lab holds there by the tests of its quick runs
    size = get_lab(name).quick_sizes[0]
    result = run_lab(mutated(name, mutation, tmp_path), seeds=(11,), settings={"sizes": size}, progress=False)
    assert result.verdict == "refuted", str(result)
