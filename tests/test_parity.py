"""Odd and even activations: found out from their values, and summed over half as many degrees with the same result."""

import jax.numpy as jnp
import numpy as np
import pytest

import widthwise as ww
from widthwise.activations import resolve
from widthwise.gaussian.four_points import FAMILIES
from widthwise.gaussian.four_points.families import assignments, layout, pair_types, quadruples, type_rows
from widthwise.gaussian.four_points.planes import PlaneSeries

PLACED = assignments(FAMILIES)
TILTED = ww.activation(lambda z: jnp.tanh(z) + 1e-9 * z * z, name="tilted")


def series(activation, inputs: int = 6, placed=PLACED) -> PlaneSeries:
    x = np.random.default_rng(3).normal(size=(inputs, 3))
    return PlaneSeries(resolve(activation), x @ x.T / 3 + 0.1, placed, 1e-9)


@pytest.mark.parametrize(
    ("activation", "parity"),
    [("tanh", True), ("sin", True), ("erf", True), ("linear", True), ("quadratic", True),
     ("gelu", False), ("swish", False), ("softplus", False), ("sigmoid", False), (TILTED, False), ("relu", False)],
    ids=lambda value: getattr(value, "name", str(value)),
)  # fmt: skip
def test_the_parity_is_seen(activation, parity):
    assert series(activation).parity is parity


@pytest.mark.parametrize("activation", ["tanh", "sin", "quadratic"])
def test_half_of_the_degrees_give_the_same(activation):
    halved, whole = series(activation), series(activation)
    whole.parity = False
    quads = quadruples(6).sorted
    (values, errors), (expected, bounds) = halved(quads), whole(quads)
    scale = np.abs(expected).max()
    assert np.abs(values - expected).max() < 1e-13 * scale
    assert np.abs(errors - bounds).max() < 1e-13 * scale


def test_an_activation_without_parity_needs_all_degrees():
    """Negative control: what is left out vanishes for odd and even activations alone."""
    halved, whole = series("gelu"), series("gelu")
    halved.parity = True
    quads = quadruples(6).sorted
    values, expected = halved(quads)[0], whole(quads)[0]
    assert np.abs(values - expected).max() > 1e-2 * np.abs(expected).max()


def test_rows_of_types():
    types, (even, odd) = pair_types(PLACED), type_rows(PLACED, True)
    assert len(even) == len(odd) == 7
    assert {*even} | {*odd} == {*range(len(types))}
    assert all(sum(types[k]) % 2 == 0 for k in even)
    assert all(sum(types[k]) % 2 == 1 for k in odd)
    assert type_rows(PLACED, False) == (tuple(range(len(types))),)
    for parity in (False, True):
        laid, _ = layout(PLACED, parity)
        pairs = [(a, b) for row in laid.rows for a in row for b in row]
        assert [pairs[k] for k in laid.columns] == [*zip(laid.first, laid.second, strict=True)]


def test_orders_with_an_odd_sum_keep_all_types_and_vanish():
    """⟨σ_a σ_b σ_c σ'_d⟩ of an odd σ is zero, of another one it is not."""
    placed = assignments(((0, 0, 0, 1),))
    assert len(type_rows(placed, True)) == 1
    quads = quadruples(4).sorted
    assert np.abs(series("tanh", 4, placed)(quads)[0]).max() < 1e-12
    assert np.abs(series("gelu", 4, placed)(quads)[0]).max() > 1e-2
