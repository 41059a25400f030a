"""Each term of the rules of residual and normalised networks is needed: without it, reference numbers are missed."""

import numpy as np
import pytest
from block_cases import BlockCase, block_cases, mixed_stream
from left_out_terms import LeftOutTerm, left_out_terms
from prior_networks import random_kernels

from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.flow.tensors import block_flow, block_rules, block_step
from widthwise.flow.tensors.neuron_functions import NeuronExpectations
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.tensors import CORRECTIONS

NEEDED = 1e-4  # of the largest entry of a tensor


CLASSES = {block_rules: "BlockRules", block_step: "BlockStep"}


@pytest.fixture
def kept_tables(monkeypatch):
    """Four-point expectations do not depend on a term of the rules: made once for all."""
    kept = {}

    def once(make, name_of):
        def made(expect, *what):
            key = make.__name__, name_of(expect, *what[:-1]), tuple(what[-1])
            if key not in kept:
                bounds = len(expect.bounds)
                kept[key] = make(expect, *what), expect.bounds[bounds:]
                return kept[key][0]
            expect.bounds += kept[key][1]
            return kept[key][0]

        return made

    def within(_, series, with_zero):
        return series.activation.name, series.K.tobytes(), with_zero

    def of_two_layers(expect, layer, earlier):
        both = [expect.layers[one] for one in (layer, earlier)]
        kernels = expect.kernel(layer, earlier), *(neurons.reduced for neurons in both)
        return both[0].activation.name, *(kernel.tobytes() for kernel in kernels)

    for name, name_of in (("_within", within), ("_of_two_layers", of_two_layers)):
        monkeypatch.setattr(NeuronExpectations, name, once(getattr(NeuronExpectations, name), name_of))


def missed(case: BlockCase) -> str:
    """The first tensor that is off its reference number by more than its error could be; nothing where none is."""
    with np.errstate(invalid="ignore", divide="ignore"):  # without a term there may be numbers that are none: missed
        found = finite_flow(case.net, case.X, CORRECTIONS)
    allowed = max(NEEDED, 10 * case.relative_error)
    for number, layer in enumerate(case.layers, start=case.first_layer):
        for name in layer.keys() & set(CORRECTIONS):
            off = np.abs(found.tensors[name][number - 1] - layer[name]).max()
            if not off <= allowed * np.abs(layer[name]).max() + 1e-12:
                return f"{name} of layer {number}"
    return ""


def seen_in(term: LeftOutTerm, cases: list[BlockCase], monkeypatch: pytest.MonkeyPatch) -> BlockCase | None:
    """The first case that misses a number without the term."""
    without = term.module_without()
    with monkeypatch.context() as patch:
        patch.setattr(block_flow, CLASSES[term.module], getattr(without, CLASSES[term.module]))
        return next((case for case in cases if missed(case)), None)


def unseen(terms: list[LeftOutTerm], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Terms without which every case has its numbers; the case that saw the last one is asked first."""
    cases, found = list(block_cases()), set()
    for term in terms:
        case = seen_in(term, cases, monkeypatch)
        if case is None:
            found.add(str(term))
        else:
            cases.remove(case)
            cases.insert(0, case)
    return found


def test_terms_are_found_and_left_out():
    terms = [term for module in CLASSES for term in left_out_terms(module)]
    assert len(terms) == len({(term.method, term.node, term.part) for term in terms}) > 190
    methods = {term.method for term in terms}
    assert {f"_next_{name}" for name in CORRECTIONS} <= methods
    assert {f"_functional_{name}" for name in block_rules.FUNCTIONALS} <= methods
    term = next(term for term in terms if term.text == "self.gamma ** 2")
    assert str(term) == "block_step.e: self.gamma ** 2"
    assert hasattr(term.module_without().BlockStep, "e")


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.full)])
def test_without_any_term_reference_numbers_are_missed(every, kept_tables, monkeypatch):
    assert not missed(block_cases()[0])
    terms = [term for module in CLASSES for term in left_out_terms(module)][::every]
    assert unseen(terms, monkeypatch) == set()


@pytest.mark.full
def test_mean_and_second_moment_of_a_stream_fluctuate_together_in_real_networks(monkeypatch):
    """No case on paper has these two terms: G1 of networks drawn at two widths, extrapolated to 1/n → 0."""
    rng, x, per_width = np.random.default_rng(3), np.ones((1, 1)), []
    K = kernel_flow(mixed_stream(64), x).K[-1].item()
    for n in (32, 64):
        G = n * (random_kernels(mixed_stream(n), x, 400_000, rng)[:, 0, 0] - K)
        per_width.append((G.mean(), G.std() / np.sqrt(len(G))))
    (narrow, narrow_error), (wide, wide_error) = per_width
    value, error = 2 * wide - narrow, np.hypot(2 * wide_error, narrow_error)

    def pull():
        found = finite_flow(mixed_stream(64), x, ("G1",), last_only=True)
        return (value - found.tensors["G1"].item()) / error

    assert abs(pull()) < 4
    for term in left_out_terms(block_step):
        if term.text in {"slope.times(0.5)", "(u * bend).times(0.5)"}:
            monkeypatch.setattr(block_flow, "BlockStep", term.module_without().BlockStep)
            assert abs(pull()) > 4, term
