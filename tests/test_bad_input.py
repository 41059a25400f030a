"""What a user sees for data and networks that cannot be used."""

import numpy as np
import pytest

import widthwise as ww

NET = ww.MLP([3, 8, 1], "tanh")


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((0, 3)), r"X: got an empty array of shape \(0, 3\); expected at least one input"),
        ([], r"X: got an array of shape \(0,\)"),
        (
            np.ones(3),
            r"got an array of shape \(3,\); expected shape \(inputs, features\). Write X\[None, :\] for one input",
        ),
        (np.ones((2, 3, 1)), r"got an array of shape \(2, 3, 1\)"),
        (
            np.ones((2, 4)),
            r"got 4 features per input \(shape \(2, 4\)\); expected 3, the first of the network's widths",
        ),
        (np.ones((3, 2)), "or transpose the data"),
        ([[1, 2, np.nan], [1, 2, 3]], r"got nan at index \(0, 2\), and 1 non-finite of 6 entries"),
        ([[1, 2, 3], [np.inf, 2, 3]], r"got inf at index \(1, 0\)"),
        (np.ones((2, 3), complex), r"got complex numbers \(complex128\).*X.real"),
        ([["a", "b", "c"]], "an array of <U1; expected an array of numbers"),
        ([[1, 2, 3], [1, 2]], "rows of unequal length"),
        (None, "an array of object; expected an array of numbers"),
    ],
)
@pytest.mark.parametrize("call", [ww.theory, ww.measure], ids=["theory", "measure"])
def test_inputs(call, X, message):
    with pytest.raises(ValueError, match=message):
        call(NET, X)


def test_integers_booleans_and_lists_are_simply_converted():
    expected = ww.theory(NET, [[1.0, 0.0, 1.0]])
    for X in ([[1, 0, 1]], np.array([[1, 0, 1]], np.int8), [[True, False, True]], np.array([[1, 0, 1]], np.float32)):
        assert ww.theory(NET, X).identical(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"widths": [3]}, r"widths: got \[3\]; expected at least two positive integers"),
        ({"widths": 7}, "widths: got 7"),
        ({"widths": [3, 0, 1]}, "widths: got 0 at position 1"),
        ({"widths": [3, -8, 1]}, "widths: got -8 at position 1"),
        ({"widths": [3, 8.5, 1]}, "widths: got 8.5 at position 1"),
        ({"widths": [3, True, 1]}, "widths: got True at position 1"),
        ({"widths": [3, "8", 1]}, "widths: got '8' at position 1"),
        ({"C_b": -0.1}, "C_b: got -0.1 for layer 1; expected a finite non-negative number, or 2 of them"),
        ({"C_W": [1.0, -1.0]}, "C_W: got -1 for layer 2"),
        ({"C_W": [1.0, 2.0, 3.0]}, "C_W: got 3 values; expected a finite non-negative number, or 2 of them"),
        ({"lambda_b": np.nan}, "lambda_b: got nan for layer 1"),
        ({"lambda_W": np.inf}, "lambda_W: got inf for layer 1"),
        ({"lambda_W": "fast"}, "lambda_W: got 'fast'"),
        ({"C_b": [[1.0], [2.0]]}, "C_b: got"),
        ({"C_b": None}, "C_b: got None"),
    ],
)
def test_networks(arguments, message):
    with pytest.raises(ValueError, match=message):
        ww.MLP(**({"widths": [3, 8, 1], "activation": "tanh"} | arguments))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ww.MLP.from_json("{"), "network: got malformed JSON"),
        (lambda: ww.MLP.from_toml("widths = ["), "network: got malformed TOML"),
        (lambda: ww.MLP.from_json("[1]"), "network: got list; expected a table with the keys widths"),
        (lambda: ww.MLP.from_dict({"widths": [1, 1]}), "no key 'activation'"),
        (lambda: ww.MLP.from_dict({"widths": [1, 1], "activation": "relu", "CW": 1}), "unknown key 'CW'"),
        (lambda: NET.replace(C_w=2.0), "replace: got 'C_w'"),
        (lambda: NET.replace(C_W=[1.0, 2.0]).replace(widths=[3, 8, 8, 1]), "another depth for a network with layer-dependent C_W"),
        (lambda: ww.MLP.he([3, 8, 1], learning_rate=-1), "learning_rate: got -1"),
        (lambda: ww.MLP.standard([3, 8, 1], "tanh", learning_rate="x"), "learning_rate: got 'x'"),
    ],
)  # fmt: skip
def test_text_forms_and_constructors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_every_error_carries_its_parts():
    with pytest.raises(ww.WidthwiseError) as info:
        ww.MLP([3, 8, 1], "tanh", C_W=-1.0)
    assert info.value.argument == "C_W"
    import pickle

    again = pickle.loads(pickle.dumps(info.value))
    assert str(again) == str(info.value)
    assert type(again) is type(info.value)


def test_a_zero_row_is_a_legal_input():
    for activation in ("tanh", "relu", "gelu", "sin"):
        ds = ww.theory(ww.MLP([3, 8, 8, 1], activation, C_b=0.0), [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
        assert np.isfinite(ds["K"]).all()
        assert np.isfinite(ds["Theta"]).all()
        assert float(ds["K"][-1, 0, 0]) == 0.0
