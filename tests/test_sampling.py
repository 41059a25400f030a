"""Real networks against infinite width, in standard errors, with negative controls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widthwise as ww
from widthwise.experiments.sampler import conditional_kernel, forward, network_key, sample_parameters, tangent_kernel

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [0.6, -0.2, 0.4]])


def net(activation, width, C_W=1.6):
    return ww.MLP([3, width, width, 2], activation, C_b=0.1, C_W=C_W, lambda_b=0.3, lambda_W=0.9)


@pytest.fixture(
    scope="module", params=["tanh", "relu", *(pytest.param(name, marks=pytest.mark.full) for name in ("gelu", "sin"))]
)
def measured(request):
    widths = (256, 512)
    return request.param, {n: ww.measure(net(request.param, n), X, networks=1000, seed=11) for n in widths}


def extrapolated(pair, name):
    """2 m(2n) − m(n) has no 1/n term left."""
    small, large = pair[256], pair[512]
    value = 2 * large[name].values - small[name].values
    return value, np.sqrt(4 * large[name + "_se"].values ** 2 + small[name + "_se"].values ** 2)


def test_sampled_networks_agree_with_infinite_width_and_a_wrong_variance_does_not(measured):
    activation, pair = measured
    right, wrong = (ww.theory(net(activation, 512, C_W), X, layers="last") for C_W in (1.6, 1.6 * 1.02))
    for name in ("K", "Theta"):
        value, error = extrapolated(pair, name)
        assert np.abs((value - right[name].values) / error).max() < 4
        assert np.abs((value - wrong[name].values) / error).max() > 4


def test_the_difference_from_infinite_width_falls_with_the_width(measured):
    activation, pair = measured
    exact = ww.theory(net(activation, 512), X, layers="last")
    for name in ("K", "Theta"):
        shrink = {n: np.linalg.norm(ds[name].values - exact[name].values) for n, ds in pair.items()}
        noise = {n: np.linalg.norm(ds[name + "_se"].values) for n, ds in pair.items()}
        assert shrink[512] < 0.5 * shrink[256] + 4 * noise[512]


def test_compare_passes_on_the_truth_and_fails_on_a_wrong_variance():
    one = net("tanh", 1024)
    sample = ww.measure(one, X, networks=200, seed=5)
    right = ww.compare(ww.theory(one, X), sample)
    wrong = ww.compare(ww.theory(one.replace(C_W=1.6 * 1.02), X), sample)
    assert right.worst < 4
    assert wrong.worst > 4
    assert [(row.variable, row.layer, row.entries) for row in right] == [("K", 3, 9), ("Theta", 3, 9)]
    assert "pull" in str(right)


def test_comparisons_are_written_as_csv(tmp_path):
    one = net("tanh", 64)
    path = ww.compare(ww.theory(one, X), ww.measure(one, X, networks=10)).to_csv(tmp_path / "pulls.csv")
    lines = path.read_text().splitlines()
    assert lines[0].startswith("variable,layer,entries,rms_pull,worst_pull")
    assert len(lines) == 3


def test_the_tangent_kernel_is_that_of_the_parameters():
    """Against jax's Jacobian with respect to every weight and bias, contracted with the learning rates."""
    small = ww.MLP([3, 7, 5, 2], "tanh", 0.1, 1.6, [0.3, 0.5, 0.7], [0.9, 1.1, 1.3])
    layers = sample_parameters(small, network_key(0, 3))
    jacobian = jax.jacobian(lambda p: forward(small, p, jnp.asarray(X))[1][-1])(layers)
    total = 0.0
    for i, layer in enumerate(jacobian):
        total += small.lambda_W[i] / small.widths[i] * np.einsum("aijk,bijk->iab", layer.W, layer.W)
        total += small.lambda_b[i] * np.einsum("aij,bij->iab", layer.b, layer.b)
    measured = tangent_kernel(small, layers, X)
    assert np.allclose(measured, np.mean(total, axis=0), rtol=1e-10)


def test_parameters_have_the_variances_of_the_specification():
    wide = ww.MLP([40, 300, 200], "tanh", C_b=[0.5, 0.7], C_W=[1.5, 2.5])
    for layer, C_b, C_W, fan_in in zip(
        sample_parameters(wide, network_key(1, 0)), wide.C_b, wide.C_W, (40, 300), strict=True
    ):
        for values, variance in ((layer.W, C_W / fan_in), (layer.b, C_b)):
            assert abs(float(jnp.var(values)) / variance - 1) < 4 * np.sqrt(2 / values.size)


@pytest.mark.parametrize("width", [4, 5])
def test_the_numbers_of_a_network_are_normal_numbers_of_its_key(width):
    """One after the other, for an odd and an even number of parameters."""
    shape = ww.MLP([2, width, 1], "tanh", C_b=1.0, C_W=[2.0, width])
    (W, b), (V, c) = sample_parameters(shape, network_key(3, 5))
    drawn = np.concatenate([np.ravel(part) for part in (W, b, V, c)])
    np.testing.assert_allclose(drawn, jax.random.normal(network_key(3, 5), (4 * width + 1,)), rtol=1e-14)


def test_a_network_depends_on_seed_and_index_alone():
    one = net("tanh", 16)
    a = ww.measure(one, X, networks=7, seed=2)
    b = ww.measure(one, X, networks=7, seed=2)
    c = ww.measure(one, X, networks=7, seed=3)
    assert a.identical(b)
    assert not np.allclose(a["K"], c["K"])
    kernels = [conditional_kernel(one, forward(one, sample_parameters(one, network_key(2, i)), X)[0]) for i in range(7)]
    assert np.allclose(np.mean(kernels, axis=0), a["K"][0])
    assert np.allclose(np.std(kernels, axis=0, ddof=1) / np.sqrt(7), a["K_se"][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"networks": 1}, "networks: got 1; expected an integer of at least 2"),
        ({"networks": 2.5}, "networks: got 2.5"),
        ({"seed": "a"}, "seed: got 'a'"),
        ({"seed": -1}, "seed: got -1"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        ww.measure(net("tanh", 8), X, **options)


def test_comparing_things_that_do_not_belong_together():
    th, ms = ww.theory(net("tanh", 8), X), ww.measure(net("tanh", 8), X[:2], networks=2)
    with pytest.raises(ValueError, match=r"K of shape \(2, 2\); expected shape \(3, 3\)"):
        ww.compare(th, ms)
    with pytest.raises(ValueError, match="theory: got int"):
        ww.compare(1, ms)
    with pytest.raises(ValueError, match="some variable of the theory, with _se"):
        ww.compare(th, th)
