"""Convolution, pooling, branches, dropout and attention: theory against real networks, tiles, and what does not fit."""

import numpy as np
import pytest
from peak_memory import growth

import widthwise as ww
from widthwise.errors import InvalidInput, NoRule
from widthwise.flow.kernels import kernel_flow as flows
from widthwise.network import Network, Stack

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, 5, 2))
NUMBERS = {"C_b": 0.1, "C_W": 1.5, "lambda_b": 0.3, "lambda_W": 0.7}


def conv(inputs, outputs, window=(3, 3), **more):
    return ww.Conv(inputs, outputs, window, **{**NUMBERS, **more})


def dense(inputs, outputs=1):
    return ww.Dense(inputs, outputs, **NUMBERS)


def network(kind, n=32, **change):
    """Networks with every kind; `change` makes a wrong one."""
    stride, padding = change.get("stride", 2), change.get("padding", "SAME")
    return Network({
        "flatten": lambda: [conv(2, n, padding=padding), "relu", conv(n, n, stride=stride), "tanh", ww.Flatten(),
                            dense((9 if stride == 2 else 25) * n)],
        "mean": lambda: [conv(2, n, padding="VALID"), "gelu", conv(n, n, padding="CIRCULAR"), "tanh",
                         ww.GlobalAvgPool() if "flat" not in change else ww.Flatten(),
                         dense(n if "flat" not in change else 9 * n)],
        "pool": lambda: [conv(2, n), "relu", ww.AvgPool((2, 2), stride=1, padding="SAME", padding_counts=False),
                         conv(n, n, dilation=2), "tanh", ww.SumPool((2, 2)), ww.Flatten(), dense(4 * n)],
        "dropout": lambda: [conv(2, n), "relu", ww.Dropout(change.get("rate", 0.4)), conv(n, n), "tanh",
                            ww.Dropout(0.2), ww.GlobalAvgPool(), dense(n)],
        "branches": lambda: [conv(2, n), ww.Parallel([["relu", conv(n, n)], ["tanh", conv(n, n, (1, 1))], []]),
                             "tanh", conv(n, n), ww.Residual(["relu", conv(n, n)], scale=0.7), ww.LayerNorm(), "tanh",
                             ww.Flatten(), dense(25 * n)],
        "beside": lambda: [conv(2, n), ww.Parallel([["relu", conv(n, 2 * n), "erf"], ["tanh"]], join="concatenate"),
                           conv(3 * n, n), ww.Parallel([["relu", conv(n, n), "erf"], ["tanh"]], join="product"),
                           conv(n, n), "tanh", ww.GlobalAvgPool(), dense(n)],
    }[kind]())  # fmt: skip


def pull(ms, th, name):
    return float(np.abs((ms[name] - th[name].isel(layer=-1)) / ms[name + "_se"]).max())


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("flatten", {"padding": "CIRCULAR"}), ("flatten", {"stride": 1}), ("mean", {"flat": True}), ("pool", None),
     ("dropout", {"rate": 0.0}), ("branches", None), ("beside", None)],
)  # fmt: skip
def test_every_kind_is_what_theory_says_of_real_networks(kind, wrong):
    net = network(kind, 128)
    th, ms = ww.theory(net, X[:2]), ww.measure(net, X[:2], networks=1500, seed=7, widths=[128, 256, 512])
    for name in ("K", "Theta"):
        assert pull(ms, th, name) < 4.0  # 6 entries: a false alarm in 2600 runs
    if wrong:
        other = ww.theory(network(kind, 128, **wrong), X[:2])
        assert max(pull(ms, other, "K"), pull(ms, other, "Theta")) > 8


@pytest.mark.parametrize(("kind", "wrong"), [("flatten", {"padding": "CIRCULAR"}), ("dropout", {"rate": 0.0})])
def test_narrow_networks_extrapolate_to_theory(kind, wrong):
    net = network(kind, 16)
    th, ms = ww.theory(net, X[:2]), ww.measure(net, X[:2], networks=400, seed=3, widths=[16, 32])
    for name in ("K", "Theta"):
        assert pull(ms, th, name) < 4.5  # two widths leave a remainder of order 1/n²
    other = ww.theory(network(kind, 16, **wrong), X[:2])
    assert max(pull(ms, other, "K"), pull(ms, other, "Theta")) > 6


def test_linear_networks_have_the_kernel_of_the_sum_over_paths():
    """Two linear convolutions and a mean over positions: K and Θ from the map of an image to all its windows."""
    weights = {"C_W": 1.0, "lambda_b": 0.0, "lambda_W": 1.0}
    net = Network([ww.Conv(2, 8, (3, 3), **weights), "linear", ww.Conv(8, 8, (3, 3), **weights), "linear",
                   ww.GlobalAvgPool(), ww.Dense(8, 1, **weights)])  # fmt: skip

    def windows(images):
        padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return np.concatenate([padded[:, i : i + 5, j : j + 5] for i in range(3) for j in range(3)], axis=-1) / 3.0

    seen = windows(windows(X)).mean(axis=(1, 2))
    th = ww.theory(net, X, layers="last")
    np.testing.assert_allclose(th["K"].values[0], seen @ seen.T / 2, rtol=1e-12)
    np.testing.assert_allclose(th["Theta"].values[0], 3 * seen @ seen.T / 2, rtol=1e-12)


@pytest.mark.parametrize("end", ["flatten", "mean"])
def test_a_window_of_one_pixel_on_one_position_is_a_dense_layer(end):
    rows = RNG.normal(size=(4, 3))
    last = [ww.Flatten(), dense(8)] if end == "flatten" else [ww.GlobalAvgPool(), dense(8)]
    image = Network([conv(3, 8, (1, 1)), "gelu", conv(8, 8, (1, 1)), "tanh", *last])
    plain = Network([dense(3, 8), "gelu", dense(8, 8), "tanh", dense(8)])
    for name in ("K", "Theta"):
        ours = ww.theory(image, rows[:, None, None, :])[name].values
        np.testing.assert_allclose(ours, ww.theory(plain, rows)[name].values, rtol=1e-12)


@pytest.mark.parametrize("kind", ["flatten", "mean", "pool", "beside"])
def test_tiles_and_rectangles_give_the_same_kernels(kind, monkeypatch):
    net, images = network(kind), RNG.normal(size=(5, 5, 5, 2))
    whole = ww.theory(net, images)
    cross = ww.theory(net, images[:2], images[1:])
    monkeypatch.setattr(flows, "SITE_ENTRIES", {"cpu": (1, 1)})
    tiled = ww.theory(net, images)
    for name in ("K", "Theta"):
        np.testing.assert_allclose(tiled[name], whole[name], rtol=1e-11)
        np.testing.assert_allclose(cross[name][:, :, 1:], whole[name][:, :2, 2:], rtol=1e-10)


def test_only_covariances_that_are_read_are_carried():
    from widthwise.flow.kernels.variances import network_sites

    assert not any(one.crossed for one in network_sites(network("flatten"), X))
    crossed = [one.crossed for one in network_sites(network("pool"), X)]
    assert crossed[0]
    assert not any(crossed[-2:])


def test_images_are_predicted_trained_and_inferred():
    net, y = network("mean", 64), [0.8, -0.3]
    p = ww.predict(net, X[:2], y, X[2:])
    t = ww.train(net, X[:2], y, X[2:], networks=64, seed=5)
    assert t.attrs["unconverged"] == 0
    assert abs(t["mean"].item() - p["mean0"].item()) < 6 * t["mean_se"].item() + 8 / 64
    b = ww.posterior(net, X[:2], y, X[1:], noise=1e-8)
    assert abs(b["mean"].values[0, 0] - y[1]) < 1e-5
    assert ww.sample_prior(net, X, draws=2).shape == (2, 1, 3)


def test_numbers_of_images_are_converted_and_networks_have_text_forms():
    net = network("beside")
    whole = np.arange(2 * 5 * 5 * 2).reshape(2, 5, 5, 2) % 3
    np.testing.assert_array_equal(ww.theory(net, whole)["K"], ww.theory(net, whole.astype(float))["K"])
    for kind in ("flatten", "mean", "pool", "dropout", "branches", "beside"):
        net = network(kind)
        assert Network.from_json(net.to_json()) == net
        assert Network.from_toml(net.to_toml()) == net
        assert net.with_width(64) == network(kind, 64)


@pytest.mark.parametrize(
    ("layers", "shape", "message"),
    [
        ([conv(2, 8), "relu", ww.Flatten(), dense(200)], (3, 5, 5), r"X: got an array of shape \(3, 5, 5\).*4 axes.*X\[\.\.\., None\]"),
        ([conv(2, 8, (7, 7), padding="VALID"), "relu", ww.GlobalAvgPool(), dense(8)], (3, 5, 5, 2), r"layers\[0\] with \(5, 5\) positions, smaller than a window"),
        ([conv(2, 8), "relu", ww.AvgPool((6, 6)), ww.Flatten(), dense(8)], (3, 5, 5, 2), r"layers\[2\] with \(5, 5\) positions, smaller"),
        ([conv(2, 8), "relu", ww.Flatten(), dense(72)], (3, 5, 5, 2), r"give layers\[3\] 200 features; expected the 72 inputs"),
        ([conv(3, 8), "relu", ww.GlobalAvgPool(), dense(8)], (3, 5, 5, 2), r"give layers\[0\] 2 features; expected the 3 inputs"),
        ([conv(2, 8), "relu", ww.GlobalAvgPool(), dense(8)], (3, 50), r"4 axes"),
    ],
)  # fmt: skip
def test_images_that_do_not_fit_are_refused_in_one_line(layers, shape, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        ww.theory(Network(layers), np.ones(shape))
    assert "\n" not in str(caught.value)


def test_a_pixel_that_is_no_number_is_refused_by_its_place():
    bad = X.copy()
    bad[1, 2, 3, 0] = np.nan
    with pytest.raises(InvalidInput, match=r"nan at index \(1, 2, 3, 0\)"):
        ww.theory(network("mean"), bad)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([conv(2, 8), "relu", ww.Flatten(), "tanh", dense(8)], r"layers\[3\]: got tanh behind Flatten"),
        ([conv(2, 8), "relu", conv(9, 8)], r"layers\[2\]: got 8 channels; expected 9"),
        ([dense(2, 8), "relu", ww.GlobalAvgPool(), ww.Flatten(), dense(8)], r"Flatten\(\) where there are no positions"),
        ([conv(2, 8), ww.Parallel([[], []]), "relu", dense(8)], r"branches \[0, 1\] without weights of their own"),
        ([conv(2, 8), ww.Parallel([["relu"], [conv(8, 8)]]), dense(8)], "does not end in preactivations"),
        ([conv(2, 8), "relu", conv(8, 8, (3,))], "2 dimensions of positions"),
    ],
)  # fmt: skip
def test_layers_that_do_not_fit_are_refused_by_position(layers, message):
    with pytest.raises(InvalidInput, match=message):
        Network(layers)


def test_order_one_is_refused_with_its_reason():
    with pytest.raises(NoRule, match=r"layers\[0\] = Conv.*share weights"):
        ww.theory(network("mean"), X, order=1)


def test_softmax_of_random_dot_products_is_refused_and_can_be_measured():
    words = RNG.normal(size=(2, 4, 3))
    net = Network([dense(3, 8), ww.Attention(8, 8, heads=4, mechanism="softmax", scaling="1/sqrt(n)"), "relu",
                   ww.GlobalAvgPool(), dense(8)])  # fmt: skip
    with pytest.raises(NoRule, match="not Gaussian at finitely many heads.*Measure it"):
        ww.theory(net, words)
    assert np.isfinite(ww.measure(net, words, networks=20)["Theta"]).all()


def test_steady_attention_of_equal_positions_is_a_dense_layer():
    """Where all positions are the same, softmax attends to each with equal weight and changes nothing."""
    words = np.repeat(RNG.normal(size=(3, 1, 4)), 5, axis=1)
    attention = ww.Attention(
        8, 8, heads=2, mechanism="softmax", C_b=0.1, C_W=1.5, lambda_b=0.3, lambda_W=0.7, lambda_V=0.0
    )
    net = Network([dense(4, 8), "relu", attention, "tanh", ww.GlobalAvgPool(), dense(8)])
    plain = Network([dense(4, 8), "relu", dense(8, 8), "tanh", dense(8)])
    for name in ("K", "Theta"):
        expected = ww.theory(plain, words[:, 0])[name].values[-1]
        np.testing.assert_allclose(ww.theory(net, words)[name].values[-1], expected, rtol=1e-11)


@pytest.mark.full
@pytest.mark.parametrize("how", [{"mechanism": "softmax"}, {"scaling": "1/sqrt(n)", "positional": 0.4}])
def test_attention_is_what_theory_says_of_real_networks(how):
    words, n = RNG.normal(size=(2, 4, 3)), 24
    attention = ww.Attention(n, n, heads=n, keys=64, values=32, C_QK=0.8, lambda_V=0.6, lambda_QK=0.4, **NUMBERS, **how)
    net = Network([conv(3, n, (3,)), "relu", attention, "tanh", ww.GlobalAvgPool(), dense(n)])
    ms, th = ww.measure(net, words, networks=400, seed=1, widths=[12, 24, 48]), ww.theory(net, words)
    for name in ("K", "Theta"):
        assert pull(ms, th, name) < 4.5
        assert float(np.abs((ms[name] - 1.4 * th[name].isel(layer=-1)) / ms[name + "_se"]).max()) > 6


def test_memory_that_no_tile_fits_is_refused(monkeypatch):
    monkeypatch.setattr("widthwise.memory.available_bytes", lambda: 1 << 20)
    with pytest.raises(ww.WidthwiseError, match=r"\(40, 40\) positions, 2560000 pairs of them at layers\[0\]"):
        ww.theory(Network([conv(1, 8), "relu", ww.GlobalAvgPool(), dense(8)]), np.ones((2, 40, 40, 1)))


def test_memory_is_that_of_a_few_pairs_of_images():
    net = Network([conv(2, 8), "relu", conv(8, 8), "relu", ww.GlobalAvgPool(), dense(8)])
    images = RNG.normal(size=(6, 16, 16, 2))
    ww.theory(net, images[:1])
    assert growth(lambda: ww.theory(net, images, layers="last")) < 30  # half a MiB for each kernel of a pair
    assert growth(lambda: flows.kernels_at_positions(net, images)) > 60  # all 36 pairs at once


def test_a_stack_ends_anywhere():
    assert Stack([conv(2, 8), "relu"]).depth == 2
