"""Tensors of order 1/n at pairs of inputs and at single ones: equal to those of all inputs, at N² cost."""

import numpy as np
import pytest

import widthwise as ww
from widthwise.flow.tensors.pair_flow import canonical, entry_names
from widthwise.tensors import FOURS

X = np.random.default_rng(3).normal(size=(5, 4))
NET = ww.MLP([4, 24, 12, 36, 2], ["tanh", "gelu", "sin"], 0.1, [1.5, 1.2, 0.9, 1.4], 0.3, [0.8, 1.1, 0.7, 1.0])


@pytest.fixture(scope="module")
def full():
    return ww.theory(NET, X, order=1)


def test_entries_at_two_inputs_are_those_of_all_inputs(full):
    pairs = ww.theory(NET, X, order=1, inputs="pairs")
    a, b = np.indices((5, 5))
    for name in FOURS:
        scale = np.abs(full[name]).max().item()
        assert pairs[name].dims == ("layer", "entry", "a", "b")
        for entry in pairs["entry"].values:
            at = tuple({"a": a, "b": b}[letter] for letter in entry)
            right = full[name].values[(slice(None), *at)]
            assert np.abs(pairs[name].sel(entry=entry) - right).max() < 1e-11 * scale, (name, entry)
    for name in ("K", "Theta", "G1", "H1"):
        assert np.abs(pairs[name] - full[name]).max() < 1e-11 * np.abs(full[name]).max()
    assert pairs.attrs["numerical_error"] < 1e-9


def test_one_input_in_every_slot(full):
    diagonal = ww.theory(NET, X, order=1, inputs="diagonal", layers="last")
    i = np.arange(5)
    for name in ("K", "H1", *FOURS):
        right = full[name].isel(layer=-1).values[(i,) * (full[name].ndim - 1)]
        assert diagonal[name].dims == ("layer", "a")
        assert np.abs(diagonal[name].values[0] - right).max() < 1e-11 * np.abs(right).max(), name


def test_means_of_a_rectangle_and_of_more_inputs_than_one_tile(full):
    """No tensor of four slots is made for G1 and H1: 150 inputs would need 40 GB."""
    rectangle = ww.theory(NET, X[:2], X[2:], order=1, tensors=["G1", "H1"])
    assert np.abs(rectangle["H1"] - full["H1"].values[:, :2, 2:]).max() < 1e-11 * np.abs(full["H1"]).max()
    many = np.concatenate([X, np.random.default_rng(4).normal(size=(145, 4))])
    found = ww.theory(NET, many, order=1, tensors=["G1", "H1"])
    assert np.abs(found["G1"].values[:, :5, :5] - full["G1"].values).max() < 1e-11 * np.abs(full["G1"]).max()
    assert np.array_equal(found["H1"].values, found["H1"].values.swapaxes(1, 2))
    far = ww.theory(NET, many[[3, 149]], order=1, tensors=["H1"], inputs="all")
    assert np.allclose(found["H1"].values[:, 3, 149], far["H1"].values[:, 0, 1], rtol=1e-11)


def test_parallel_and_equal_inputs(full):
    """Two inputs that are one, or opposite: G1 between them is that of the input with itself, of odd activations."""
    net = ww.MLP([4, 24, 24, 1], "tanh", 0.0, 1.5)
    found = ww.theory(net, np.stack([X[0], X[0], -X[0]]), order=1, tensors=["G1", "H1"])
    own = ww.theory(net, X[:1], order=1)["G1"].values[:, 0, 0]
    assert np.allclose(found["G1"].values[:, 0], own[:, None] * [1.0, 1.0, -1.0], rtol=1e-9)


def test_the_relu_family_at_two_inputs_is_that_of_all_inputs():
    """By truncated moments in closed form here, by orthants there; equal, parallel and opposite inputs among them."""
    net = NET.replace(activation=["relu", "tanh", "leaky_relu"])
    inputs = np.concatenate([X[:3], X[:1], 2.0 * X[1:2], -X[2:3]])
    names, (a, b) = ("V", "A", "B", "D", "F"), np.indices((6, 6))
    for chosen in (net, net.replace(activation="relu")):
        full = ww.theory(chosen, inputs, order=1, tensors=(*names, "G1", "H1"), tolerance=1e-11)
        pairs = ww.theory(chosen, inputs, order=1, tensors=(*names, "G1", "H1"), inputs="pairs")
        for name in names:
            for entry in pairs["entry"].values:
                right = full[name].values[(slice(None), *({"a": a, "b": b}[letter] for letter in entry))]
                off = np.abs(pairs[name].sel(entry=entry) - right).max()
                assert off < 1e-10 * np.abs(full[name]).max(), (name, entry)
        assert "closed forms of pairs" in pairs.attrs["route"]
    many = ww.theory(net.replace(activation="relu"), np.tile(inputs, (30, 1)), order=1, tensors=["H1"], layers="last")
    assert np.allclose(many["H1"][0, :6, 6:12], full["H1"][-1], rtol=1e-9)


def test_the_mean_of_the_output_of_relu_networks_at_one_input():
    """One input, C_W = 2: G1 vanishes, as E[z²] is exact at every width; V is 5(l−1)K² (theory §7)."""
    net = ww.MLP([2, 16, 16, 16, 1], "relu", C_W=2.0)
    found = ww.theory(net, [[1.0, 1.0]], order=1, tensors=["K", "G1", "V"], inputs="diagonal")
    assert np.allclose(found["G1"], 0.0, atol=1e-12)
    assert np.allclose(found["V"][:, 0], 5.0 * np.arange(4) * found["K"][:, 0] ** 2, rtol=1e-12)


def test_kernels_alone_are_answered_at_pairs():
    found = ww.theory(NET, X, order=1, tensors=["K", "Theta"], inputs="pairs")
    assert np.allclose(found["Theta"], ww.theory(NET, X)["Theta"], rtol=1e-12)


def test_symmetric_entries_have_one_name():
    assert entry_names("V") == ("xxxx", "xxxy", "xxyy", "xyxy", "xyyy", "yyyy")
    assert canonical("Q", "yxyx") == "yxyx"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": "pair"}, "inputs: got 'pair'"),
        ({"inputs": "pairs", "order": 0}, "with order=0"),
        ({"inputs": "pairs", "tensors": ["V"], "net": ww.MLP([4, 8, 1], "hardtanh")}, "hardtanh, which has a kink"),
        ({"inputs": "diagonal", "net": ww.ResMLP([4, 8, 8, 1], "tanh")}, "no stack of dense layers"),
        ({"X2": X, "tensors": ["V"]}, "X2: got an array with order=1"),
    ],
)
def test_what_has_no_pairs_is_refused_in_one_line(change, message):
    given = {"net": NET, "X": X, "order": 1} | change
    with pytest.raises(ww.WidthwiseError, match=message) as refused:
        ww.theory(given.pop("net"), given.pop("X"), given.pop("X2", None), **given)
    assert "\n" not in str(refused.value)


def test_the_mean_kernel_of_a_width_serves_as_a_kernel(full):
    """Trained to zero loss: Θ_xA Θ_AA⁻¹ y with Θ + H1/n, n the last hidden width; Θ alone misses it."""
    train, test, y = X[:3], X[3:], np.array([0.5, -0.3, 0.8])
    net = NET.replace(widths=[4, 24, 12, 36, 1])
    Theta = (full["Theta"] + full["H1"] / 36).isel(layer=-1).values
    right = Theta[3:, :3] @ np.linalg.solve(Theta[:3, :3], y)
    found = ww.predict(net, train, y, test, kernel="mean")
    assert np.allclose(found["mean0"].values[0], right, rtol=1e-8)
    assert not np.allclose(ww.predict(net, train, y, test)["mean0"].values[0], right, rtol=1e-3)
    with pytest.raises(ww.WidthwiseError, match="kernel: got 'mean' with order=1"):
        ww.predict(net, train, y, test, order=1, kernel="mean")
    with pytest.raises(ww.WidthwiseError, match="kernel: got 'mean' for hardtanh"):
        ww.predict(ww.MLP([4, 8, 1], "hardtanh"), train, y, test, kernel="mean")


def test_an_estimator_with_the_mean_kernel(full):
    from widthwise.readers.estimators import FiniteWidthRegressor

    rows = np.random.default_rng(5).normal(size=(60, 3))
    targets = np.sin(rows[:, 0])

    def fitted(**how):  # behind a single hidden layer mean kernels are those of infinite width
        return FiniteWidthRegressor(order=0, hidden_layers=2, **how).fit(rows[:50], targets[:50])

    mean, std = fitted(kernel="mean", width=16).predict(rows[50:], return_std=True)
    infinite = fitted().predict(rows[50:])
    assert np.allclose(fitted(kernel="mean", width=10**7).predict(rows[50:]), infinite, atol=1e-4)
    assert not np.allclose(mean, infinite, atol=1e-3)
    assert np.all(std > 0)
