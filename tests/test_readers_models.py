"""Models of torch, Flax and Equinox are read, written and measured as the theory says."""

import warnings
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import widthwise as ww
from widthwise.criticality.snippets import snippets
from widthwise.readers.optax_rates import layer_rates
from widthwise.readers.specification import findings

torch.set_num_threads(1)
NET = ww.MLP([5, 96, 80, 3], "tanh", C_b=[0.3, 0.1, 0.1], C_W=[2.0, 1.5, 1.0], lambda_b=0.5, lambda_W=[1.0, 2.0, 3.0])
X = np.random.default_rng(3).normal(size=(3, 5))


def stacked(linear, activations):
    """Linear layers with activations between them; a single one is repeated."""
    several = activations if isinstance(activations, list) else [activations] * (len(linear) - 1)
    between = [part for pair in zip(linear[:-1], several, strict=True) for part in pair if part is not None]
    return [*between, linear[-1]]


def torch_model(widths=NET.widths, activation=nn.Tanh, **more):
    made = [kind and kind() for kind in activation] if isinstance(activation, list) else activation()
    return nn.Sequential(*stacked([nn.Linear(a, b, **more) for a, b in pairwise(widths)], made))


def flax_model(widths=NET.widths, activation=nnx.tanh):
    rngs = nnx.Rngs(0)
    return nnx.Sequential(*stacked([nnx.Linear(a, b, rngs=rngs) for a, b in pairwise(widths)], activation))


def equinox_model(widths=NET.widths, activation=jnp.tanh):
    keys = jax.random.split(jax.random.key(0), len(widths))
    linear = [eqx.nn.Linear(a, b, key=key) for (a, b), key in zip(pairwise(widths), keys[1:], strict=True)]
    several = (
        [f and eqx.nn.Lambda(f) for f in activation] if isinstance(activation, list) else eqx.nn.Lambda(activation)
    )
    return eqx.nn.Sequential(stacked(linear, several))


MAKE = {
    "torch": (torch_model, ww.init_torch),
    "flax": (flax_model, ww.readers.init_flax),
    "equinox": (equinox_model, ww.readers.init_equinox),
}
FROM = {"torch": ww.from_torch, "flax": ww.readers.from_flax, "equinox": ww.readers.from_equinox}


@pytest.mark.parametrize("package", MAKE)
def test_a_model_that_we_initialise_is_read_back_as_its_specification(package):
    make, init = MAKE[package]
    reading = ww.read_model(init(make(), NET, seed=4))
    assert reading.net.widths == NET.widths
    assert reading.net.activation == NET.activation
    assert reading.findings == ()
    pulls = reading.pulls(NET)
    assert max(np.abs(pulls["C_W"]).max(), np.abs(pulls["C_b"]).max()) < 4
    wrong = reading.pulls(NET.replace(C_W=[1.0, 1.5, 2.0]))
    assert np.abs(wrong["C_W"]).max() > 8


@pytest.mark.parametrize("package", MAKE)
def test_zero_biases_and_a_known_variance_are_read_back_exactly(package):
    make, init = MAKE[package]
    he = ww.MLP.he([5, 96, 80, 3], "tanh")
    assert FROM[package](init(make(), he, seed=1)) == he


MIXED = NET.replace(widths=[5, 96, 80, 48, 3], activation=["tanh", "linear", "gelu"], C_b=0.2, C_W=1.4, lambda_W=2.0)
#: The same activations as each package has them, None where two Linear layers follow each other.
MIXED_PARTS = {
    "torch": [nn.Tanh, None, nn.GELU],
    "flax": [nnx.tanh, None, lambda z: nnx.gelu(z, approximate=False)],
    "equinox": [jnp.tanh, None, lambda z: jax.nn.gelu(z, approximate=False)],
}


@pytest.mark.parametrize("package", MAKE)
def test_another_activation_in_every_layer_survives_the_round_trip(package):
    make, init = MAKE[package]
    model = init(make(MIXED.widths, MIXED_PARTS[package]), MIXED, seed=4)
    reading = ww.read_model(model)
    assert reading.net.activations == MIXED.activations
    assert reading.net.widths == MIXED.widths
    assert reading.findings == ()
    assert max(np.abs(pull).max() for pull in reading.pulls(MIXED).values()) < 4
    known = ww.MLP.he([5, 96, 80, 48, 3]).replace(activation=MIXED.activations)
    assert FROM[package](init(make(MIXED.widths, MIXED_PARTS[package]), known, seed=1)) == known


@pytest.mark.parametrize("package", MAKE)
def test_kernels_of_a_module_with_several_activations_are_those_of_its_network(package):
    make, init = MAKE[package]
    model = init(make(MIXED.widths, MIXED_PARTS[package]), MIXED, seed=2)
    ds = ww.readers.model_kernels(model, X)
    read = ww.read_model(model).net
    for name in ("K", "Theta"):
        np.testing.assert_array_equal(ds[name], ww.theory(read, X)[name])
    x = jnp.asarray(X, jnp.float32)
    called = {
        "torch": lambda: model(torch.tensor(X, dtype=torch.float32)).detach(),
        "flax": lambda: model(x),
        "equinox": lambda: jax.vmap(model)(x),
    }
    z = np.asarray(called[package](), float)
    np.testing.assert_allclose(ds["K_model"][-1], z @ z.T / 3, rtol=1e-4, atol=1e-5)
    swapped = ww.theory(read.replace(activation=["gelu", "linear", "tanh"]), X)["K"]
    assert float(np.abs(swapped[-1] / ds["K"][-1] - 1).max()) > 0.1  # wrong on purpose: another order


def test_writing_activations_in_another_order_is_refused():
    for activations in (["gelu", "linear", "tanh"], ["tanh", "tanh", "gelu"]):
        other = MIXED.replace(activation=activations)
        for package, (make, init) in MAKE.items():
            with pytest.raises(ww.WidthwiseError, match=f"activation {', '.join(activations)}; .* tanh, linear, gelu"):
                init(make(MIXED.widths, MIXED_PARTS[package]), other)


def test_rates_of_a_network_with_several_activations_are_written_and_read_back():
    model = torch_model(MIXED.widths, MIXED_PARTS["torch"])
    read = ww.from_torch(model, optimizer=torch.optim.SGD(ww.param_groups(model, MIXED)))
    assert read.lambda_W == pytest.approx(MIXED.lambda_W)
    assert read.lambda_b == pytest.approx(MIXED.lambda_b)


def test_a_function_of_ones_own_beside_a_built_in_is_read_where_it_stands():
    def bent(z):
        return z + jnp.tanh(z) ** 2

    for model in (flax_model((3, 8, 8, 1), [nnx.relu, bent]), equinox_model((3, 8, 8, 1), [jax.nn.relu, bent])):
        assert [sigma.name for sigma in ww.read_model(model).net.activations] == ["relu", "bent"]
    given = ww.read_model(torch_model((3, 8, 8, 1)), activation=["erf", "sin"]).net
    assert [sigma.name for sigma in given.activations] == ["erf", "sin"]


def test_learning_rates_survive_the_round_trip_through_torch():
    model = ww.init_torch(torch_model(), NET)
    optimizer = torch.optim.SGD(ww.param_groups(model, NET))
    read = ww.from_torch(model, optimizer=optimizer)
    assert read.lambda_W == pytest.approx(NET.lambda_W)
    assert read.lambda_b == pytest.approx(NET.lambda_b)


def test_default_initialisations_are_recognised():
    widths = (7, 32, 48, 2)
    torch.manual_seed(0)
    assert ww.from_torch(torch_model(widths)) == ww.MLP.torch_default(widths, "tanh")
    assert ww.readers.from_equinox(equinox_model(widths)) == ww.MLP.torch_default(widths, "tanh")
    assert ww.readers.from_flax(flax_model(widths)) == ww.MLP.lecun(widths, "tanh")
    assert "uniform" in str(ww.read_model(torch_model(widths)).initialisation)
    gaussian = ww.init_torch(torch_model(widths), ww.MLP.torch_default(widths, "tanh"))
    assert ww.read_model(gaussian).initialisation is None


class Reversed(nn.Module):
    """Registered in another order than applied, with functions instead of layers."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(8, 2), nn.Linear(3, 8)

    def forward(self, x):
        return self.last(torch.nn.functional.leaky_relu(self.first(x.flatten(1)), 0.2))


class FlaxOwn(nnx.Module):
    def __init__(self, rngs):
        self.last, self.first = nnx.Linear(8, 2, rngs=rngs), nnx.Linear(3, 8, rngs=rngs)

    def __call__(self, x):
        return self.last(jax.nn.leaky_relu(self.first(x), 0.2))


class EquinoxOwn(eqx.Module):
    last: eqx.nn.Linear
    first: eqx.nn.Linear

    def __call__(self, x):
        return self.last(jax.nn.leaky_relu(self.first(x), 0.2))


def test_modules_of_ones_own_are_read_in_the_order_in_which_they_compute():
    k = jax.random.key(0)
    own = [Reversed(), FlaxOwn(nnx.Rngs(0)), EquinoxOwn(eqx.nn.Linear(8, 2, key=k), eqx.nn.Linear(3, 8, key=k))]
    for model in own:
        net = ww.read_model(model).net
        assert net.widths == (3, 8, 2)
        assert net.activation == ww.activation("leaky_relu(0.2)")


@pytest.mark.parametrize(
    ("layer", "name"),
    [(nn.Tanh(), "tanh"), (nn.SiLU(), "swish"), (nn.GELU(), "gelu"), (nn.GELU("tanh"), "gelu_tanh"), (nn.ELU(0.7), "elu(0.7)"),
     (nn.Softplus(2.0), "softplus(2)"), (nn.Hardtanh(), "hardtanh(-1, 1)"), (nn.Mish(), "mish"), (nn.Softsign(), "softsign"),
     (nn.SELU(), "selu"), (nn.Hardswish(), "hardswish"), (nn.Hardsigmoid(), "hardsigmoid"), (nn.LogSigmoid(), "logsigmoid"),
     (nn.ReLU6(), "relu6"), (nn.CELU(0.5), "celu(0.5)"), (nn.Tanhshrink(), "tanhshrink"), (nn.LeakyReLU(0.3), "leaky_relu(0.3)"),
     (nn.Softshrink(0.3), "softshrink(0.3)"), (nn.Hardshrink(), "hardshrink(0.5)"), (nn.Threshold(0.1, 2.0), "threshold(0.1, 2)")],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_an_activation_of_torch_has_the_same_values_here(layer, name):
    sigma = ww.read_model(nn.Sequential(nn.Linear(2, 4), layer, nn.Linear(4, 1))).net.activation
    assert sigma.spec == name
    z = np.linspace(-8.0, 8.0, 401)
    np.testing.assert_allclose(
        sigma(z), layer(torch.tensor(z)).numpy(), rtol=1e-12, atol=3e-9 if "softplus" in name else 1e-13
    )


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 8), nn.GroupNorm(1, 8), nn.ReLU(), nn.Linear(8, 1)), r"position 1 \(GroupNorm, '1'\)"),
        (lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1), nn.Softmax(0)), r"position 3 \(Softmax, '3'\)"),
        (lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1), nn.Tanh()), "position 3 .* after the last Linear"),
        (lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Tanh(), nn.Linear(8, 1)), "position 1 .* followed by position 2"),
        (lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), "position 0 .* before the first Linear"),
        (lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1)), r"position 2 \(Tanh, '2'\): tanh after an activation"),
        (lambda: nnx.Sequential(nnx.Linear(3, 8, rngs=nnx.Rngs(0)), nnx.LayerNorm(8, rngs=nnx.Rngs(0))), r"layers\.1 \(LayerNorm\)"),
        (lambda: eqx.nn.Sequential([eqx.nn.Linear(3, 8, key=jax.random.key(0)), eqx.nn.LayerNorm(8)]), r"layers\[1\] \(LayerNorm\)"),
        (lambda: flax_model((3, 8, 1), jax.nn.softmax), r"after layers\.0 \(Linear\)"),
        (lambda: eqx.nn.MLP(3, 1, 8, 1, final_activation=jax.nn.relu, key=jax.random.key(0)), "after the last Linear"),
        (lambda: "a model", "got str; expected a torch.nn.Module"),
    ],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_multilayer_perceptron_is_named_with_its_position(model, said):
    with pytest.raises(ww.WidthwiseError, match=said):
        ww.read_model(model())


def test_writing_into_a_model_of_another_shape_is_refused():
    for other, said in (
        (NET.replace(widths=[5, 96, 81, 3]), "widths"),
        (NET.replace(activation="relu"), "activation relu"),
    ):
        with pytest.raises(ww.WidthwiseError, match=said):
            ww.init_torch(torch_model(), other)
    with pytest.raises(ww.WidthwiseError, match="has no bias"):
        ww.init_torch(torch_model(bias=False), NET)


def trained():
    """A teacher's data, fitted for a few hundred steps."""
    torch.manual_seed(0)
    model = torch_model((4, 64, 64, 1))
    x = torch.randn(256, 4)
    y = torch.sin(2 * x[:, :1]) * x[:, 1:2]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def orthogonal():
    model = torch_model((16, 64, 64, 1))
    for layer in (model[0], model[2]):
        nn.init.orthogonal_(layer.weight)
    return model


def tied():
    model = torch_model((32, 32, 32, 1))
    model[2].weight = model[0].weight
    return model


def shifted():
    model = torch_model((16, 32, 1))
    with torch.no_grad():
        model[0].bias.fill_(0.25)
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [(trained, "largest singular value|scatter of mean squares"), (orthogonal, "layer 2: mean squared overlap of rows"),
     (tied, "layer 2: correlation with layer 1 1 instead of 0"), (shifted, "mean bias 0.25 instead of 0")],
    ids=lambda v: getattr(v, "__name__", ""),
)  # fmt: skip
def test_weights_that_are_no_independent_draw_are_reported_with_numbers(make, said):
    with pytest.warns(ww.errors.WeightsWarning, match=said):
        ww.from_torch(make())


def test_independent_weights_raise_no_false_alarm():
    rng = np.random.default_rng(11)
    alarms = 0
    for _ in range(400):
        rows, columns = rng.integers(3, 60, 2)
        for W in (rng.normal(size=(rows, columns)), rng.uniform(-1, 1, size=(rows, columns))):
            alarms += len(findings([W], [rng.normal(size=rows)]))
    assert alarms <= 1


def test_optax_steps_are_those_of_the_specification():
    rates = {"weight": [1 / 5, 2 / 96, 3 / 80], "bias": [0.5] * 3}
    flax, equinox = flax_model(), equinox_model()
    found = layer_rates(NET, nnx.state(flax, nnx.Param))["layers"]
    assert [found[i]["kernel"].get_value() for i in (0, 2, 4)] == pytest.approx(rates["weight"])
    assert [found[i]["bias"].get_value() for i in (0, 2, 4)] == pytest.approx(rates["bias"])
    found = layer_rates(NET, eqx.filter(equinox, eqx.is_array))
    assert [found.layers[i].weight for i in (0, 2, 4)] == pytest.approx(rates["weight"])
    with pytest.raises(ww.WidthwiseError, match="one matrix and at most one vector"):
        layer_rates(NET.replace(widths=[5, 96, 81, 3]), nnx.state(flax, nnx.Param))


def test_one_step_moves_torch_flax_and_equinox_alike():
    """The same weights, one gradient step of ½Σ(z−y)² with the specification's rates: the same outputs."""
    y = np.ones((3, 3))
    flax, plain = flax_model(), torch_model().double()
    with torch.no_grad():
        for i in (0, 2, 4):
            plain[i].weight.copy_(torch.tensor(np.asarray(flax.layers[i].kernel[...], float).T))
            plain[i].bias.copy_(torch.tensor(np.asarray(flax.layers[i].bias[...], float)))
    # A copy: jax may take the memory of a numpy array as it is, and the optimiser moves the weights in place.
    equinox = eqx.tree_at(
        lambda m: [w for i in (0, 2, 4) for w in (m.layers[i].weight, m.layers[i].bias)],
        equinox_model(),
        [jnp.array(w.detach().numpy()) for i in (0, 2, 4) for w in (plain[i].weight, plain[i].bias)],
    )
    optimizer = torch.optim.SGD(ww.param_groups(plain, NET, 0.1))
    (0.5 * ((plain(torch.tensor(X)) - torch.tensor(y)) ** 2).sum()).backward()
    optimizer.step()
    moved = plain(torch.tensor(X)).detach().numpy()

    step = ww.readers.optax_transform(NET, 0.1)
    gradient = eqx.filter_grad(lambda m: 0.5 * jnp.sum((jax.vmap(m)(jnp.asarray(X)) - y) ** 2))(equinox)
    updates, _ = step.update(gradient, step.init(eqx.filter(equinox, eqx.is_array)))
    np.testing.assert_allclose(jax.vmap(eqx.apply_updates(equinox, updates))(jnp.asarray(X)), moved, rtol=1e-9)

    grads = nnx.grad(lambda m: 0.5 * jnp.sum((m(jnp.asarray(X)) - y) ** 2))(flax)
    nnx.Optimizer(flax, step, wrt=nnx.Param).update(flax, grads)
    np.testing.assert_allclose(flax(jnp.asarray(X)), moved, rtol=1e-4, atol=1e-5)  # float32 weights


def test_the_code_that_advice_prints_is_read_back():
    net = ww.MLP([4, 64, 64, 1], "tanh", C_b=0.1, C_W=1.2)
    for code in snippets(net, 0.1).values():
        names: dict = {}
        exec(code, names)
        reading = ww.read_model(names["model"])
        assert reading.net.widths == net.widths
        assert np.abs(reading.pulls(net)["C_W"]).max() < 4


def test_missing_packages_are_named_with_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ww.errors.MissingPackage, match=r"pip install 'widthwise\[torch\]'"):
        ww.from_torch("anything")
    monkeypatch.setitem(sys.modules, "flax.nnx", None)
    monkeypatch.setitem(sys.modules, "equinox", None)
    monkeypatch.setitem(sys.modules, "optax", None)
    for call in (ww.readers.from_flax, ww.readers.from_equinox, lambda _: ww.readers.optax_transform(NET)):
        with pytest.raises(ImportError, match=r"pip install 'widthwise\[readers\]'"):
            call("anything")


def test_everything_else_works_without_the_optional_packages():
    import subprocess
    import sys

    code = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "flax", "equinox", "optax", "sklearn", "matfree"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Hidden())
import widthwise as ww
print(float(ww.theory(ww.MLP([2, 8, 1], "relu", C_W=2.0), [[1.0, 1.0]])["K"][-1, 0, 0]))
ww.from_torch
for name in ("from_flax", "from_equinox", "optax_transform", "hessian_spectrum"):
    getattr(ww.readers, name)
try:
    ww.NNGPRegressor
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert done.startswith("2.0")
    assert "scikit-learn, which is not installed" in done


def test_reading_says_nothing_about_good_weights():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ww.from_torch(torch_model())
