"""Networks made of layers: kinds of one's own, a different activation in every layer, structures that do not fit."""

import jax.numpy as jnp
import numpy as np
import pytest
from compilations import counting
from own_layers import Mixing, TrainedGain

import widthwise as ww
from widthwise.errors import InvalidInput, NoRule
from widthwise.experiments.outputs import sample_outputs
from widthwise.network import Dense, Elementwise, Network, network_from_dict, network_from_json, plain

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [0.6, -0.2, 0.4]])
NUMBERS = {"C_b": 0.1, "C_W": 1.7, "lambda_b": 0.3, "lambda_W": 0.8}
OWN = Network(
    [Dense(3, 64, **NUMBERS), Mixing(1.2), "tanh", TrainedGain(0.4), Mixing(0.9, seed=1), Dense(64, 64, **NUMBERS), "gelu",
     Dense(64, 1, **NUMBERS)]
)  # fmt: skip
MIXED = ww.MLP([3, 64, 64, 64, 1], ["tanh", "gelu", "sin"], [0.1, 0.0, 0.2, 0.1], [1.2, 1.5, 1.7, 1.1],
               [0.1, 0.3, 0.2, 0.4], [1.0, 0.7, 1.2, 0.8])  # fmt: skip


def pull(measured, name, value):
    return float(np.abs((measured[name] - value) / measured[name + "_se"]).max())


# --- a kind of one's own --------------------------------------------------------------------------------------------


def test_a_kind_of_ones_own_agrees_with_its_rule_on_sampled_networks():
    th, ms = ww.theory(OWN, X), ww.measure(OWN, X, networks=2000, seed=3, widths=[32, 64, 128])
    for name in ("K", "Theta"):
        expected = th[name].isel(layer=-1).values
        assert pull(ms, name, expected) < 4.5  # 12 distinct entries: a false alarm in 10⁴ runs
        assert pull(ms, name, 1.2 * expected) > 6
    without = Network([layer for layer in OWN.layers if not isinstance(layer, TrainedGain)])
    assert pull(ms, "Theta", ww.theory(without, X)["Theta"].isel(layer=-1).values) > 6


def test_a_kind_of_ones_own_is_compared_trained_and_predicted():
    comparison = ww.compare(ww.theory(OWN, X), ww.measure(OWN.with_width(512), X, networks=400, seed=1))
    assert {row.variable for row in comparison.rows} == {"K", "Theta"}
    p = ww.predict(OWN, X[:2], [0.8, -0.3], X[2:])
    wide = OWN.with_width(128)
    t = ww.train(wide, X[:2], [0.8, -0.3], X[2:], networks=400, seed=5)
    assert t.attrs["unconverged"] == 0
    # order 1/n is not known here: it may be a few times 1/n of the spread
    difference = abs(t["mean"].item() - p["mean0"].item())
    assert difference < 6 * t["mean_se"].item() + 4 / 128
    assert difference < 0.2 * abs(p["mean0"].item())
    assert ww.posterior(OWN, X[:2], [0.8, -0.3], X[2:])["mean"].shape == (1, 1)


def test_a_kind_of_ones_own_has_text_forms():
    for again in (Network.from_json(OWN.to_json()), Network.from_toml(OWN.to_toml()), network_from_dict(OWN.to_dict())):
        assert again == OWN
        assert hash(again) == hash(OWN)
    assert eval(repr(OWN), {"Network": Network, "Dense": Dense, "Mixing": Mixing, "TrainedGain": TrainedGain}) == OWN
    assert ww.network_of(ww.theory(OWN, X)) == OWN


def test_a_kind_without_a_rule_at_order_one_is_refused_by_name_and_reason():
    for ask in (
        lambda: ww.theory(OWN, X, order=1),
        lambda: ww.predict(OWN, X[:2], [0.8, -0.3], X[2:], order=1),
        lambda: ww.couplings(OWN, X[:1]),
        lambda: ww.single_input(OWN, X[0]),
        lambda: ww.advise(OWN),
    ):
        with pytest.raises(NoRule, match=r"layers\[1\] = Mixing\(gain=1.2.*not independent given the layers below"):
            ask()


def test_numbers_of_a_kind_are_never_compiled_in():
    def measured(gain):
        layers = [Dense(3, 8, C_W=gain), Mixing(gain), "tanh", TrainedGain(gain), Dense(8, 1)]
        return ww.measure(Network(layers), X, networks=64)["Theta"].values

    first = measured(1.0)
    with counting() as programs:
        second = measured(1.3)
    assert programs == [0]
    assert np.abs(second - first).max() > 0.1


# --- another activation in every layer -----------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [1, pytest.param(2, marks=pytest.mark.full)])
def test_every_tensor_of_mixed_activations_agrees_with_sampled_networks(inputs):
    data = X[:inputs]
    th = ww.theory(MIXED, data, order=1, layers="last")
    ms = ww.measure(MIXED, data, networks=2000, seed=11, statistics="all", widths=[96, 192])
    comparison = ww.compare(th, ms)
    assert len(comparison.rows) == 15
    for row in comparison.rows:
        assert abs(row.worst_pull) < 5.0, row  # some 150 distinct entries: a false alarm in 10⁴ runs
    other = ww.theory(MIXED.replace(activation=["tanh", "sin", "gelu"]), data, order=1, layers="last")
    wrong = {row.variable: abs(row.worst_pull) for row in ww.compare(other, ms).rows}
    assert min(wrong[name] for name in ("V", "A", "B", "D", "F", "H1", "S")) > 5.0


def test_mixed_activations_of_one_kind_are_the_plain_network():
    one = MIXED.replace(activation="gelu")
    again = Network([layer if isinstance(layer, Dense) else Elementwise("gelu") for layer in MIXED.layers])
    assert plain(again, "a test") == one == again
    assert ww.theory(again, X, order=1).equals(ww.theory(one, X, order=1))


def test_mixed_activations_have_predictions_and_an_exact_law():
    data = X[:2], [0.8, -0.3], X[2:]
    full, tiles = (ww.predict(MIXED, *data, order=1, method=method) for method in ("full", "tiles"))
    assert np.allclose(full["mean1"], tiles["mean1"], rtol=1e-7)
    law = ww.exact_law(MIXED.with_width(8), X[0])
    outputs = sample_outputs(MIXED.with_width(8), X[:1], networks=20_000)[:, 0, 0]
    error = np.std(outputs**2) / np.sqrt(len(outputs))
    assert abs(float(law.variance) - np.mean(outputs**2)) < 4 * error


def test_criticality_goes_layer_by_layer():
    from widthwise.criticality.learning_rates import layer_flow

    flow, kernels = layer_flow(MIXED, X), ww.theory(MIXED, X)["K"].values
    assert np.allclose(flow.K, np.einsum("laa->la", kernels), rtol=1e-10)
    for layer, sigma in enumerate(MIXED.activations, 1):
        slopes = ww.expectation(sigma, flow.K[layer - 1], orders=(1, 1)).value
        assert np.allclose(np.exp(flow.log_chi_perp[layer - 1]), MIXED.C_W[layer] * slopes, rtol=1e-9)


# --- structures that do not fit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], r"layers: got \[\]; expected a list of layers"),
        ("tanh", "layers: got 'tanh'; expected a list of layers"),
        ([Dense(3, 8), "tanh", Dense(9, 1)], r"layers\[2\]: got 8 features; expected 9, the inputs of Dense\(9, 1\)"),
        ([Dense(3, 8), "tanh"], r"layers\[1\]: got Elementwise\(activation='tanh'\) at the end, with 8 features"),
        (["tanh", Dense(3, 1)], r"layers\[0\]: got tanh on the raw inputs; expected a Dense layer first"),
        ([Mixing(), Dense(3, 1)], r"layers\[0\]: got Mixing.* on the raw inputs; expected a Dense layer first"),
        ([Dense(3, 8), "tanh", "relu", Dense(8, 1)], r"layers\[2\]: got relu after an activation"),
        ([Dense(3, 8), "thanh", Dense(8, 1)], "activation: got 'thanh'"),
        ([Dense(3, 8), Mixing(), Mixing(2.0)], r"layers\[2\]: got Mixing"),
    ],
)
def test_a_structure_that_does_not_fit_names_the_position(layers, message):
    with pytest.raises(InvalidInput, match=message):
        Network(layers)


def test_numbers_of_layers_are_checked():
    for wrong in (-1.0, np.nan, np.inf, "much", True, None):
        with pytest.raises(InvalidInput, match="C_W: got .*finite non-negative"):
            Dense(3, 8, C_W=wrong)
    with pytest.raises(InvalidInput, match="inputs: got 0; expected a positive integer"):
        Dense(0, 8)
    with pytest.raises(InvalidInput, match="activation: got 2 of them; expected one, or 3"):
        ww.MLP([3, 4, 4, 4, 1], ["tanh", "relu"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"layers": [{"kind": "convolution"}]}', "got 'convolution'; expected one of .*must be imported"),
        (
            '{"layers": [{"kind": "dense", "inputs": 3, "outputs": 1, "bias": 2}]}',
            "unknown key 'bias' of a layer 'dense'",
        ),
        ('{"layers": [{"inputs": 3}]}', "expected a table with the key 'kind'"),
        ('{"layers": [{"kind": "dense", "inputs": 3, "outputs": 1}], "depth": 2}', "got the keys layers, depth"),
        ('{"widths": [2, 1], "activation": "tanh", "skip": 1}', "unknown key 'skip'"),
        ("[1, 2]", "got list"),
        ("{", "malformed JSON"),
    ],
)
def test_text_of_another_structure_is_refused_by_name(text, message):
    with pytest.raises(InvalidInput, match=message):
        network_from_json(text)


def test_a_network_without_a_rule_at_infinite_width_says_so():
    from widthwise.network import Layer, layer_kind

    @layer_kind("nothing known")
    class Unknown(Layer):
        pass

    net = Network([Dense(3, 8), Unknown(), "tanh", Dense(8, 1)])
    with pytest.raises(
        InvalidInput, match=r"a layer .*Unknown.*no rule at infinite width.*kernel_rule.register\(Unknown\)"
    ):
        ww.theory(net, X)
    with pytest.raises(InvalidInput, match=r"cannot be sampled.*apply.register\(Unknown\)"):
        sample_outputs(net, X, networks=2)


# --- numbers are traced ----------------------------------------------------------------------------------------------


def test_zero_rates_and_variances_stay_exact():
    frozen = ww.MLP([3, 16, 1], "tanh", C_b=0.0, lambda_b=0.0, lambda_W=[0.0, 1.0])
    th, ms = ww.theory(frozen, X), ww.measure(frozen, X, networks=32)
    assert np.array_equal(th["Theta"].values[0], np.zeros((3, 3)))
    outputs = sample_outputs(frozen, np.zeros((1, 3)), networks=8)
    assert np.array_equal(outputs, np.zeros_like(outputs))
    assert np.allclose(ms["Theta"], ms["K"], rtol=1e-12)  # λ_W = C_W in the one layer that learns


def test_theory_of_a_network_can_be_differentiated_by_its_numbers():
    import jax

    from widthwise.experiments.sampler import forward, network_key, sample_parameters

    def size(C_W):
        net = ww.MLP([3, 16, 1], "tanh").of_chain([Dense(3, 16, C_W=C_W), Elementwise("tanh"), Dense(16, 1)])
        return jnp.sum(forward(net, sample_parameters(net, network_key(0, 0)), jnp.asarray(X))[1][-1] ** 2)

    step = 1e-5
    slope = (size(1.0 + step) - size(1.0 - step)) / (2 * step)
    assert np.isclose(float(jax.grad(size)(1.0)), float(slope), rtol=1e-6)


def test_a_sweep_compiles_nothing_after_its_first_value():
    data = X[:2], [0.8, -0.3], X[2:]

    def sweep(C_W, lambda_W, eta):
        net = ww.MLP([3, 8, 1], "tanh", 0.1, C_W, 0.2, lambda_W)
        ww.measure(net, X[:1], networks=8, statistics="all")
        ww.train(net, *data, networks=8, algorithm=ww.GradientDescent(eta, steps=3), batch=8)
        ww.train(net, *data, networks=8, algorithm=ww.GradientFlow(time=0.1 + eta), batch=8)

    sweep(1.0, 1.0, 0.1)
    with counting() as programs:
        for k in range(1, 20):
            sweep(1.0 + 0.05 * k, 1.0, 0.1)
            sweep(1.0, 1.0 + 0.05 * k, 0.1)
            sweep(1.0, 1.0, 0.1 + 0.005 * k)
    assert programs == [0]
