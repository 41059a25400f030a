"""Weights that are not Gaussian: their variances, what they change at order one and at order 1/n, and what survives."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import widthwise as ww
from widthwise.errors import InvalidInput, UnknownName
from widthwise.experiments import checkpoints, programme
from widthwise.experiments.differentials import differentials
from widthwise.experiments.initialisations import INITIALISATIONS, nonzero_entries
from widthwise.experiments.sampler import forward, network_key, sample_parameters
from widthwise.experiments.tally import Chunks
from widthwise.experiments.training.control import guide
from widthwise.experiments.training.ensemble import Ensemble
from widthwise.experiments.training.output_cumulants import estimates
from widthwise.network.algorithms import GradientDescent

NAMES = tuple(INITIALISATIONS)


def pull(measured, error, expected):
    return float(np.abs((np.asarray(measured) - expected) / np.asarray(error)).max())


@pytest.fixture(scope="module")
def drawn():
    """Parameters of 400 networks of each initialisation; the first layer is tall, the second wide."""
    net = ww.MLP([3, 20, 16], "tanh", C_b=[0.5, 0.7], C_W=[1.5, 2.5])
    keys = jax.vmap(partial(network_key, 0))(jnp.arange(400))
    return net, {name: _drawn(net, keys, (name,) * 2) for name in NAMES}


@partial(jax.jit, static_argnums=(0, 2))
def _drawn(net, keys, names):
    return jax.vmap(lambda key: sample_parameters(net, key, names))(keys)


@pytest.mark.parametrize("name", NAMES)
def test_entries_have_the_variances_of_the_specification(drawn, name):
    net, layers = drawn[0], drawn[1][name]
    for layer, C_b, C_W, fan_in in zip(layers, net.C_b, net.C_W, net.widths, strict=False):
        for values, variance in ((layer.W, C_W / fan_in), (layer.b, C_b)):
            by_network = np.mean(np.reshape(values, (400, -1)) ** 2, axis=1)
            error = by_network.std(ddof=1) / 20 + 1e-12
            assert pull(by_network.mean(), error, variance) < 4
            if error > 1e-9:  # the norm of orthogonal columns does not scatter
                assert pull(by_network.mean(), error, 1.5 * variance) > 4
            assert pull(np.mean(values), np.std(values) / np.sqrt(values.size), 0.0) < 4


def test_each_initialisation_is_what_its_name_says(drawn):
    net, found = drawn
    for layer, C_b, C_W, fan_in in zip(found["uniform"], net.C_b, net.C_W, net.widths, strict=False):
        for values, variance in ((layer.W, C_W / fan_in), (layer.b, C_b)):
            scaled = np.ravel(values) / np.sqrt(3 * variance)
            assert 0.99 < np.abs(scaled).max() <= 1.0
            assert abs(np.mean(scaled**4) - 1 / 5) < 4 * np.std(scaled**4) / np.sqrt(scaled.size)
    for layer, C_W, fan_in in zip(found["truncated_normal"], net.C_W, net.widths, strict=False):
        largest = 2 * np.sqrt(C_W / fan_in) / stats.truncnorm.std(-2, 2)
        assert 0.9 * largest < np.abs(layer.W).max() <= largest
    tall, wide = found["orthogonal"]
    assert np.allclose(jnp.einsum("nij,nik->njk", tall.W, tall.W), 1.5 / 3 * 20 * np.eye(3))
    assert np.allclose(jnp.einsum("nij,nkj->nik", wide.W, wide.W), 2.5 * np.eye(16))
    for layer, fan_in in zip(found["sparse"], net.widths, strict=False):
        assert np.all(np.sum(layer.W != 0.0, axis=-1) == nonzero_entries(fan_in))
        assert np.ptp(np.mean(layer.W != 0.0, axis=(0, 1))) < 0.3  # every place is chosen now and then


def test_the_default_is_gaussian_to_the_last_bit():
    net, key = ww.MLP([3, 20, 1], "tanh", C_b=0.5), network_key(3, 5)
    one, other = sample_parameters(net, key), sample_parameters(net, key, ("gaussian", "gaussian"))
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def kernels_of_uniform_weights(net, X, order=60):
    """K and Θ behind a uniform first layer of one feature: quadrature over its weight and its bias."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    w, b = (np.sqrt(3 * variance) * nodes for variance in (net.C_W[0], net.C_b[0]))
    h = w[:, None, None] * X[:, 0] + b[None, :, None]
    sigma, slope = np.tanh(h), 1 / np.cosh(h) ** 2
    values, slopes = (np.einsum("i,j,ija,ijb->ab", weights / 2, weights / 2, f, f) for f in (sigma, slope))
    first = net.lambda_b[0] + net.lambda_W[0] * X @ X.T
    K = net.C_b[1] + net.C_W[1] * values
    return K, net.lambda_b[1] + net.lambda_W[1] * values + net.C_W[1] * first * slopes


def test_a_first_layer_of_one_feature_changes_the_kernels_at_order_one():
    net = ww.MLP([1, 256, 1], "tanh", C_b=[0.3, 0.1], C_W=[4.0, 1.5], lambda_b=0.2, lambda_W=[0.7, 0.9])
    X = np.array([[1.0], [-0.4]])
    expected, gaussian = kernels_of_uniform_weights(net, X), ww.theory(net, X, order=0, layers="last")
    uniform, orthogonal = (ww.measure(net, X, 300, 1, initialisation=name) for name in ("uniform", "orthogonal"))
    for name, right in zip(("K", "Theta"), expected, strict=True):
        assert pull(uniform[name][0], uniform[name + "_se"][0], right) < 4
        assert pull(uniform[name][0], uniform[name + "_se"][0], gaussian[name].values[0]) > 8
        # rows of orthogonal columns are directions of a large space, and so nearly Gaussian
        assert pull(orthogonal[name][0], orthogonal[name + "_se"][0], gaussian[name].values[0]) < 4
        assert pull(orthogonal[name][0], orthogonal[name + "_se"][0], right) > 8


@pytest.mark.full
def test_with_many_features_the_kernels_survive():
    X = np.random.default_rng(0).normal(size=(2, 400))
    net = ww.MLP([400, 64, 1], "tanh", C_b=0.1, C_W=2.0)
    exact = ww.theory(net, X, order=0, layers="last")
    found = ww.measure(net, X, 200, 2, initialisation="sparse")
    assert ww.compare(exact, found).worst < 4


C_W, K1, WIDTH = 1.5, 1.2, 12
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
ACTIVITY = np.sin(np.sqrt(K1) * NODES)


def characteristic(name, t):
    """E[e^{itw}] of an entry of unit variance."""
    if name == "uniform":
        return np.sinc(np.sqrt(3) * t / np.pi)
    if name == "truncated_normal":
        nodes, weights = np.polynomial.legendre.leggauss(60)
        density = weights * np.exp(-((2 * nodes) ** 2) / 2)
        return np.cos(np.multiply.outer(t, 2 * nodes / stats.truncnorm.std(-2, 2))) @ density / density.sum()
    return np.exp(-(t**2) / 2)


def mean_kernel_of_sines(name, n):
    """E[Ĝ] behind two layers of n sines without biases, the first Gaussian: the neurons of the first are independent, so
    E cos 2h of the second is a power of one average. In a sparse row only the entries that are not zero count."""
    terms = nonzero_entries(n) if name == "sparse" else n
    cosine = WEIGHTS @ characteristic(name, 2 * np.sqrt(C_W / terms) * ACTIVITY)
    return C_W * (1 - cosine**terms) / 2


def limit_of_sines():
    return C_W * (1 - np.exp(-2 * C_W * WEIGHTS @ ACTIVITY**2)) / 2


def change_of_G1(name):
    """At leading order a fourth cumulant κ (C_W/n)² of the weights adds C_W ⟨∂⁴σ²⟩ κ C_W² ⟨σ⁴⟩/24 to G1. A row with a fixed
    number of entries in it has correlated squares too, and ⟨σ⁴⟩ − ⟨σ²⟩² in place of ⟨σ⁴⟩."""
    second, fourth = WEIGHTS @ ACTIVITY**2, WEIGHTS @ ACTIVITY**4
    kurtosis = {"gaussian": 0.0, "uniform": -6 / 5, "sparse": 3 / 0.25 - 3}.get(name)
    if kurtosis is None:
        kurtosis = float(stats.truncnorm(-2, 2).stats("k"))
    spread = fourth - second**2 if name == "sparse" else fourth
    bend = -8 * np.exp(-2 * C_W * second)  # ⟨∂⁴ sin²⟩
    return C_W * bend / 24 * kurtosis * C_W**2 * spread


@pytest.mark.parametrize(
    "name",
    ["uniform", "sparse", *(pytest.param(name, marks=pytest.mark.full) for name in ("gaussian", "truncated_normal"))],
)
def test_the_fourth_cumulant_of_the_weights_moves_G1(name):
    """Theory against the exact average at n → ∞, and that against real networks of a small width."""
    net, X = ww.MLP([1, WIDTH, WIDTH, 1], "sin", C_W=[K1, C_W, C_W]), np.array([[1.0]])
    gaussian = ww.theory(net, X, order=1, tensors=["G1"], layers="last")["G1"].item()
    n = 4000
    assert np.isclose(n * (mean_kernel_of_sines(name, n) - limit_of_sines()), gaussian + change_of_G1(name), rtol=2e-2)
    found = ww.measure(net, X, 20_000, 4, statistics="G1", initialisation=["gaussian", name, name])
    value, error = float(found["G1"].item()), float(found["G1_se"].item())
    exact, wrong = (WIDTH * (mean_kernel_of_sines(one, WIDTH) - limit_of_sines()) for one in (name, "gaussian"))
    assert abs(value - exact) < 4 * error
    if name in ("uniform", "sparse"):
        assert abs(value - wrong) > 6 * error


def observed_by_definition(net, name, X, networks, seed):
    """Every tensor of theory §3 from the outputs and differentials of networks with two outputs, by their definition."""
    i, k = 0, 1

    def one(key):
        layers = sample_parameters(net, key, (name,) * net.depth)
        z, d = forward(net, layers, X)[1][-1][0], differentials(net, layers, X)
        H, dH = d.H[..., 0, 0], d.dH[..., 0, 0, 0]
        ddI, ddII = (x[..., 0, 0, 0, 0] for x in (d.ddI, d.ddII))
        return {
            "K": z[i] ** 2, "Theta": H[i, i], "zzzz": z[i] ** 2 * z[k] ** 2, "zzH": z[i] ** 2 * H[k, k],
            "HH": H[i, i] * H[k, k], "B": H[i, k] ** 2, "F": z[i] * z[k] * H[i, k], "P": dH[i, k, k] * z[i],
            "Q": dH[i, i, k] * z[k], "R": ddI[i, i, k, k], "S": ddII[i, i, k, k], "T": ddII[i, k, i, k],
            "U": ddII[i, k, k, i],
        }  # fmt: skip

    keys = jax.vmap(partial(network_key, seed))(jnp.arange(networks))
    seen = {name: np.asarray(v) for name, v in jax.jit(jax.vmap(one))(keys).items()}
    n, G, H = net.n, seen["K"].mean(), seen["Theta"].mean()
    connected = {
        "V": seen["zzzz"] - G * (2 * seen["K"] - G),
        "D": seen["zzH"] - G * seen["Theta"] - H * seen["K"] + G * H,
        "A": seen["HH"] - H * (2 * seen["Theta"] - H),
    }
    plain = {name: seen[name] for name in "BFPQRSTU"}
    return {name: (n * v.mean(), n * v.std() / np.sqrt(networks)) for name, v in (connected | plain).items()}


@pytest.mark.full
@pytest.mark.parametrize("name", ["uniform", "sparse"])
def test_estimates_are_the_definitions_on_networks_whose_last_layer_is_not_gaussian_either(name):
    net, X = ww.MLP([2, 8, 8, 2], "tanh", 0.1, 1.6, 0.3, 0.9), np.array([[1.0, -0.6]])
    tensors = list("VADBFPQRSTU")
    found = ww.measure(net, X, 4000, 5, statistics=tensors, initialisation=name)
    plain = observed_by_definition(net, name, jnp.asarray(X), 20_000, 6)
    pulls = {
        one: abs(found[one].item() - value) / np.hypot(found[one + "_se"].item(), error)
        for one, (value, error) in plain.items()
    }
    assert max(pulls.values()) < 4, pulls
    for one, other in (("S", "U"), ("T", "S"), ("P", "Q"), ("B", "F")):
        value, error = plain[one]
        assert abs(found[other].item() - value) > 4 * np.hypot(found[other + "_se"].item(), error)


@pytest.mark.full
@pytest.mark.parametrize("name", ["uniform", "sparse"])
def test_behind_a_gaussian_layer_independent_rows_change_the_means_alone(name):
    net, X = ww.MLP([2, 16, 16, 1], "tanh", 0.1, 1.6, 0.3, 0.9), np.array([[1.0, -0.6], [0.3, 0.8]])
    drawn = ["gaussian", name, name]
    found = ww.measure(net, X, 20_000, 8, statistics="all", widths=[16, 32, 64], initialisation=drawn)
    rows = {row.variable: row for row in ww.compare(ww.theory(net, X, order=1, layers="last"), found)}
    print({variable: (round(row.worst_pull, 2), row.verdict) for variable, row in rows.items()})
    assert "G1" in {variable for variable, row in rows.items() if row.verdict == "disagrees"} <= {"G1", "H1"}


def test_orthogonal_layers_of_a_linear_network_do_not_fluctuate():
    net, X = ww.MLP([2, 16, 16, 1], "linear", C_W=1.5), np.array([[1.0, 0.5]])
    found = ww.measure(net, X, 100, statistics=["K", "V"], initialisation="orthogonal")
    assert found["K"].item() == pytest.approx(1.5**3 * 1.25 / 2)
    assert found["K_se"].item() == found["V"].item() == found["V_se"].item() == 0.0
    assert ww.theory(net, X, order=1, tensors=["V"], layers="last")["V"].item() > 1.0


def test_orthogonal_rows_take_a_known_part_off_V():
    """Of a Haar matrix with n_1 ≥ n_0 rows, distinct neurons have E[h_i²h_k²] − K² = −2G̃²/n_1, G̃ = K − C_b, beside the V
    of theory §4: V' = C_W² [cov(σ², σ²) − ½ ⟨∂²σ²⟩² G̃²] at the second layer."""
    net, X = ww.MLP([1, 32, 1], "tanh", C_b=[0.2, 0.0], C_W=1.5), np.array([[1.0]])
    nodes = np.sqrt(1.7) * NODES
    moment = partial(np.dot, WEIGHTS)
    square, bend = moment(np.tanh(nodes) ** 2), moment((nodes**2 / 1.7 - 1) / 1.7 * np.tanh(nodes) ** 2)
    gaussian = 1.5**2 * (moment(np.tanh(nodes) ** 4) - square**2)
    expected = gaussian - 1.5**2 * bend**2 * 1.5**2 / 2
    assert gaussian == pytest.approx(ww.theory(net, X, order=1, tensors=["V"], layers="last")["V"].item(), rel=1e-4)
    found = ww.measure(net, X, 6000, 7, statistics="V", widths=[16, 32], initialisation="orthogonal")
    value, error = found["V"].item(), found["V_se"].item()
    assert abs(value - expected) < 4 * error
    assert abs(value - gaussian) > 4 * error


DATA, TARGET, TEST = np.array([[-1.0], [0.7]]), np.array([[0.5, -0.4]]), np.array([[0.3]])
STEPS = GradientDescent(0.05, steps=20)


def trained_kernel(net, seed, networks, known=None):
    """The tangent kernel after training with and without control variates, each with its error from chunks."""
    how = {"tolerance": 1e-5, "accuracy": 1e-4, "max_steps": 50, "batch": 128}
    ensemble = Ensemble.of(net, STEPS, DATA, TARGET, TEST, seed=seed, initialisation=("uniform", "uniform"), **how)
    ensemble = ensemble if known is None else replace(ensemble, known=known)
    sums = [estimates(ensemble(chunk), ensemble.net.n) for chunk in Chunks.of(ensemble, networks)]
    by_name = {name: [one[name].value.item() for one in sums] for name in ("kernel", "plain_kernel")}
    return {name: (np.mean(values), np.std(values, ddof=1) / np.sqrt(len(sums))) for name, values in by_name.items()}


@pytest.mark.full
def test_control_variates_of_trained_networks_keep_the_mean():
    """Against plain averages of other networks. Those that hold for Gaussian weights alone do not keep it."""
    net = ww.MLP([1, 16, 1], "tanh", C_b=0.1, C_W=[4.0, 1.5])
    right, plain = trained_kernel(net, 0, 2048)["kernel"], trained_kernel(net, 1, 4096)["plain_kernel"]
    for_gaussian = guide(net, np.concatenate([DATA, TEST]), 2, STEPS)
    wrong = trained_kernel(net, 2, 2048, for_gaussian)["kernel"]
    assert abs(right[0] - plain[0]) < 4 * np.hypot(right[1], plain[1])
    assert abs(wrong[0] - plain[0]) > 4 * np.hypot(wrong[1], plain[1])


def test_train_takes_an_initialisation_by_name_and_keeps_it_in_its_checkpoint(tmp_path):
    net, path = ww.MLP([1, 16, 1], "tanh", C_b=0.1, C_W=[4.0, 1.5]), tmp_path / "sums.npz"
    run = partial(ww.train, net, DATA, TARGET[0], TEST, 128, STEPS, batch=128)
    found = run(), run(initialisation="uniform", checkpoint=path)
    assert [one.attrs["initialisation"] for one in found] == ["gaussian", "uniform"]
    assert not np.allclose(found[0]["kernel"], found[1]["kernel"])
    with pytest.raises(InvalidInput, match="other initialisation"):
        run(initialisation="sparse", checkpoint=path)
    with pytest.raises(UnknownName, match="Did you mean 'orthogonal'"):
        run(initialisation="ortogonal")


@pytest.mark.parametrize(
    ("initialisation", "error", "message"),
    [
        ("unifrom", UnknownName, "initialisation: got 'unifrom'; expected one of gaussian, orthogonal.*'uniform'"),
        (["gaussian", "normal", "sparse"], UnknownName, "initialisation: got 'normal'"),
        (["gaussian"], InvalidInput, r"initialisation: got \['gaussian'\]; .* or 3 of them, one per weight layer"),
        (2, InvalidInput, "initialisation: got 2; expected one of gaussian"),
        ([1, 2, 3], UnknownName, "initialisation: got 1; expected one of"),
    ],
)
def test_unknown_initialisations_are_refused(initialisation, error, message):
    with pytest.raises(error, match=message):
        ww.measure(ww.MLP([1, 4, 4, 1], "tanh"), [[1.0]], initialisation=initialisation)


def test_a_checkpoint_of_another_initialisation_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(programme, "CHUNK_OPERATIONS", 1)
    monkeypatch.setattr(checkpoints, "INTERVAL", 0.0)
    net, path = ww.MLP([1, 4, 1], "tanh"), tmp_path / "sums.npz"
    whole = ww.measure(net, [[1.0]], 200, initialisation="uniform")
    ww.measure(net, [[1.0]], 128, initialisation="uniform", checkpoint=path)
    with pytest.raises(InvalidInput, match=r"other initialisation \(\[\['uniform', 'uniform'\]\] there"):
        ww.measure(net, [[1.0]], 200, checkpoint=path)
    assert ww.measure(net, [[1.0]], 200, initialisation="uniform", checkpoint=path).identical(whole)


@pytest.mark.full
def test_every_layer_of_a_deep_network_has_its_own_initialisation():
    net, X = ww.MLP([2, 8, 8, 1], "tanh", 0.1, 1.5), np.array([[1.0, 0.2]])
    found = ww.measure(net, X, 50, layers="all", statistics="K", initialisation=["sparse", "uniform", "gaussian"])
    shorter = ww.measure(net.up_to(2, 1), X, 50, statistics="K", initialisation=["sparse", "uniform"])
    assert np.allclose(found["K"].sel(layer=2), shorter["K"][0])
    assert found.attrs["initialisation"] == "sparse, uniform, gaussian"
