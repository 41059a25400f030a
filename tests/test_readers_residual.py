"""Residual models with normalisation of torch, Flax and Equinox are read, written and measured as the theory says."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import widthwise as ww
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import output_rows
from widthwise.experiments.tangent import added, gradient, scaled
from widthwise.network.skips_and_norms import BATCH_NORM
from widthwise.readers.models import load_model
from widthwise.readers.optax_rates import layer_rates

torch.set_num_threads(1)
X = np.random.default_rng(3).normal(size=(3, 5))
#: Dense layers of all three models: features in, features out, bias.
LINEAR = {"first": (5, 16, True), "up": (16, 24, True), "down": (24, 16, False), "short": (16, 16, True), "last": (16, 2, True)}  # fmt: skip
BRANCH, SKIP = 0.5, 0.8


def forward(m, x, tanh):
    """Two pre-norm residual blocks, one of two layers; a last norm without gain or shift."""
    x = m.first(x)
    x = x + BRANCH * m.down(tanh(m.up(m.full(x))))
    x = m.short(tanh(m.rms(x))) + SKIP * x
    return m.last(tanh(m.bare(x)))


class Torch(nn.Module):
    def __init__(self):
        super().__init__()
        for name, (a, b, bias) in LINEAR.items():
            setattr(self, name, nn.Linear(a, b, bias=bias))
        self.full, self.rms = nn.LayerNorm(16), nn.RMSNorm(16, eps=0.01)
        self.bare = nn.LayerNorm(16, elementwise_affine=False)

    def forward(self, x):
        return forward(self, x, torch.tanh)


class Flax(nnx.Module):
    def __init__(self):
        more = {"rngs": nnx.Rngs(0), "param_dtype": jnp.float64}
        for name, (a, b, bias) in LINEAR.items():
            setattr(self, name, nnx.Linear(a, b, use_bias=bias, **more))
        self.full, self.rms = nnx.LayerNorm(16, epsilon=1e-5, **more), nnx.RMSNorm(16, epsilon=0.01, **more)
        self.bare = nnx.LayerNorm(16, epsilon=1e-5, use_bias=False, use_scale=False, **more)

    def __call__(self, x):
        return forward(self, x, jnp.tanh)


class Equinox(eqx.Module):
    first: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    short: eqx.nn.Linear
    last: eqx.nn.Linear
    full: eqx.nn.LayerNorm
    rms: eqx.nn.RMSNorm
    bare: eqx.nn.LayerNorm

    def __init__(self):
        for name, (a, b, bias) in LINEAR.items():
            setattr(self, name, eqx.nn.Linear(a, b, use_bias=bias, key=jax.random.key(0)))
        self.full, self.rms = eqx.nn.LayerNorm(16), eqx.nn.RMSNorm(16, eps=0.01, use_bias=False)
        self.bare = eqx.nn.LayerNorm(16, use_weight=False, use_bias=False)

    def __call__(self, x):
        return forward(self, x, jnp.tanh)


def torch_model(seed=0):
    torch.manual_seed(seed)
    return Torch().double()


def flax_twin(model):
    """The Flax model with the numbers of a torch model."""
    twin = Flax()
    for name in LINEAR:
        mine, theirs = getattr(twin, name), getattr(model, name)
        mine.kernel[...] = jnp.array(theirs.weight.detach().numpy().T)
        if theirs.bias is not None:
            mine.bias[...] = jnp.array(theirs.bias.detach().numpy())
    return twin


def equinox_twin(model):
    linear = [name for name in LINEAR if name != "down"]
    values = [jnp.array(getattr(model, name).weight.detach().numpy()) for name in LINEAR]
    values += [jnp.array(getattr(model, name).bias.detach().numpy()) for name in linear]
    return eqx.tree_at(
        lambda m: [getattr(m, name).weight for name in LINEAR] + [getattr(m, name).bias for name in linear],
        Equinox(),
        values,
    )


def expected_network(rate=1.0):
    """What default initialisations of torch are, with factors of the model squared into C and λ."""

    def dense(name, factor=1.0):
        a, b, bias = LINEAR[name]
        return ww.Dense(a, b, factor * bias / (3 * a), factor / 3, factor * bias * rate, factor * rate * a)

    return ww.Network(
        [
            dense("first"),
            ww.Residual([ww.LayerNorm(), ww.Affine(rate, rate), dense("up"), "tanh", dense("down", BRANCH**2)]),
            ww.Residual([ww.RMSNorm(0.01), ww.Affine(rate, 0.0), "tanh", dense("short")], SKIP),
            ww.LayerNorm(),
            "tanh",
            dense("last"),
        ]
    )


NET = expected_network()


def close(one, other):
    """The same layers, and the same numbers to rounding."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    np.testing.assert_allclose(jax.tree.leaves(one), jax.tree.leaves(other), rtol=1e-12)


def test_residual_models_of_equal_numbers_are_the_same_network_in_every_package():
    model = torch_model()
    close(ww.from_torch(model), NET)
    close(ww.readers.from_flax(flax_twin(model)), NET)
    close(ww.readers.from_equinox(equinox_twin(model)), NET)
    close(ww.from_torch(model, learning_rate=0.3), expected_network(0.3))


def test_the_network_that_is_read_computes_what_the_model_computes():
    model = torch_model()
    with torch.no_grad():  # trained gains and shifts are read too
        model.full.weight.uniform_(0.5, 2.0)
        model.full.bias.normal_()
        model.rms.weight.uniform_(0.5, 2.0)
    parameters, net, _ = load_model(model, X, None)
    np.testing.assert_allclose(output_rows(net, parameters, X), model(torch.tensor(X)).detach(), rtol=1e-12, atol=1e-12)
    with pytest.warns(
        ww.errors.WeightsWarning, match=r"layer 1: gain of position 1 \(LayerNorm, 'full'\) .* instead of 1"
    ):
        ww.from_torch(model)
    flax = Flax()
    parameters, net, _ = load_model(flax, X, None)
    np.testing.assert_allclose(output_rows(net, parameters, X), flax(jnp.asarray(X)), rtol=1e-12, atol=1e-12)


def test_the_ntk_and_kernels_of_a_residual_model_are_those_of_torch():
    model = torch_model()
    names, values = zip(*((name, value.detach()) for name, value in model.named_parameters()), strict=True)

    def call(parameters, one):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), one[None])[0]

    J = torch.func.vmap(torch.func.jacrev(call), (None, 0))(values, torch.tensor(X))
    by_torch = sum(np.einsum("aip,bjp->iajb", j, j) for j in (one.flatten(2).numpy() for one in J))
    ntk = ww.model_ntk(model, X)
    np.testing.assert_allclose(ntk["H"], by_torch, rtol=1e-10)
    ds = ww.readers.model_kernels(model, X)
    assert ds.sizes["layer"] == NET.depth == 4
    z = model(torch.tensor(X)).detach().numpy()
    np.testing.assert_allclose(ds["K_model"][-1], z @ z.T / 2, rtol=1e-10)
    np.testing.assert_allclose(ds["Theta_model"][-1], np.einsum("iaib->ab", by_torch) / 2, rtol=1e-10)
    np.testing.assert_allclose(ds["K"], ww.theory(NET, X)["K"], rtol=1e-12)
    for refused in (lambda: ww.readers.model_dntk(model, X), lambda: ww.readers.model_kernels(model, X, order=1)):
        with pytest.raises(ww.WidthwiseError, match="Residual.*dense layers and activations alone"):
            refused()


def other_rates():
    """Another λ for every tensor."""
    leaves, form = jax.tree.flatten(NET)
    names = [str(path[-1]) for path, _ in jax.tree_util.tree_flatten_with_path(NET)[0]]
    own = [
        x * (1.3 + 0.1 * i) if "lambda" in name else x for i, (name, x) in enumerate(zip(names, leaves, strict=True))
    ]
    return ww.Network.from_dict(jax.tree.unflatten(form, [float(x) for x in own]).to_dict())


def test_one_step_at_the_rates_of_a_network_moves_every_package_as_its_own_descent():
    net, model, y, rate = other_rates(), torch_model(), np.ones((3, 2)), 0.01
    flax, equinox = flax_twin(model), equinox_twin(model)
    parameters = load_model(model, X, None)[0]

    @jax.jit
    def stepped(parameters):
        step = scaled(net, gradient(net, parameters, X, y.T)[0])
        return output_rows(net, added(parameters, step, -rate), X)

    moved = np.asarray(stepped(parameters))

    optimizer = torch.optim.SGD(ww.param_groups(model, net, rate))
    close(ww.from_torch(model, optimizer=torch.optim.SGD(ww.param_groups(model, net))), net)
    (0.5 * ((model(torch.tensor(X)) - torch.tensor(y)) ** 2).sum()).backward()
    optimizer.step()
    np.testing.assert_allclose(model(torch.tensor(X)).detach(), moved, rtol=1e-10)

    of_equinox = ww.readers.optax_transform(net, rate, equinox)

    @eqx.filter_jit
    def by_equinox(model):
        grads = eqx.filter_grad(lambda m: 0.5 * jnp.sum((jax.vmap(m)(jnp.asarray(X)) - y) ** 2))(model)
        updates, _ = of_equinox.update(grads, of_equinox.init(eqx.filter(model, eqx.is_array)))
        return jax.vmap(eqx.apply_updates(model, updates))(jnp.asarray(X))

    np.testing.assert_allclose(by_equinox(equinox), moved, rtol=1e-10)
    optimizer = nnx.Optimizer(flax, ww.readers.optax_transform(net, rate, flax), wrt=nnx.Param)

    @nnx.jit
    def by_flax(model, optimizer):
        optimizer.update(model, nnx.grad(lambda m: 0.5 * jnp.sum((m(jnp.asarray(X)) - y) ** 2))(model))
        return model(jnp.asarray(X))

    np.testing.assert_allclose(by_flax(flax, optimizer), moved, rtol=1e-10)


def test_rates_by_shapes_alone_tell_gains_from_shifts_and_from_weights():
    net = other_rates()
    (first, block, *_), tree = net.layers, {f"layer{i}": {} for i in range(8)}
    for i, (name, layer) in enumerate(zip(tree, load_model(torch_model(), X, None)[0], strict=False)):
        own = ("weight", "bias") if isinstance(layer, Weights) else ("scale", "bias")
        tree[name] = dict(zip(own, layer, strict=True)) if i != 4 else {"scale": layer.gain}
    found = layer_rates(net, {name: tree[name] for name in list(tree)[:7]})
    assert found["layer0"]["weight"] == pytest.approx(first.lambda_W / 5)
    norm = block.body[1]
    assert (found["layer1"]["scale"], found["layer1"]["bias"]) == pytest.approx((norm.lambda_gain, norm.lambda_shift))
    assert found["layer4"] == {"scale": pytest.approx(net.layers[2].body[1].lambda_gain)}
    with pytest.raises(ww.WidthwiseError, match="at most a gain and a shift"):
        layer_rates(NET, {"first": {"W": jnp.ones((16, 5))}, "other": {"W": jnp.ones((16, 5))}})


@pytest.mark.parametrize("package", ["torch", "flax", "equinox"])
def test_a_residual_model_that_we_initialise_is_read_back(package):
    make, init = {
        "torch": (torch_model, ww.init_torch),
        "flax": (Flax, ww.readers.init_flax),
        "equinox": (Equinox, ww.readers.init_equinox),
    }[package]
    model = make()
    if package == "torch":
        nn.init.constant_(model.full.weight, 3.0)
        nn.init.constant_(model.full.bias, 3.0)
    reading = ww.read_model(init(model, NET, seed=4))
    assert reading.findings == ()
    pulls = reading.pulls(NET)
    assert max(np.abs(pulls["C_W"]).max(), np.abs(pulls["C_b"]).max()) < 4
    # wrong on purpose: variances without the square of the branch's factor
    forgotten = ww.Residual([*NET.layers[1].body[:-1], ww.Dense(24, 16, 0.0, 1 / 3)])
    assert np.abs(reading.pulls(ww.Network([NET.layers[0], forgotten, *NET.layers[2:]]))["C_W"]).max() > 8


def test_writing_another_structure_is_refused():
    def changed(layer, place):
        return ww.Network([layer if i == place else own for i, own in enumerate(NET.layers)])

    for net, said in (
        (changed(ww.Residual(NET.layers[2].body, 1.0), 2), r"Join\(scale=1.0\).*Join\(scale=0.8\)"),
        (changed(ww.LayerNorm(0.1), 3), r"LayerNorm\(epsilon=0.1\) as step .* LayerNorm\(epsilon=1e-05\)"),
        (changed(ww.RMSNorm(), 3), "RMSNorm.*LayerNorm"),
        (ww.MLP([5, 16, 2], "tanh"), "widths"),
    ):
        with pytest.raises(ww.WidthwiseError, match=said):
            ww.init_torch(torch_model(), net)
    bias = ww.Residual([*NET.layers[1].body[:-1], ww.Dense(24, 16, C_b=0.1)])
    with pytest.raises(ww.WidthwiseError, match=r"C_b = 0.1 for position 4 \(Linear, 'down'\), which has no bias"):
        ww.init_torch(torch_model(), changed(bias, 1))
    shift = ww.Residual([ww.RMSNorm(0.01), ww.Affine(), "tanh", NET.layers[2].body[-1]], SKIP)
    with pytest.raises(ww.WidthwiseError, match="lambda_shift = 1 .* has no shift"):
        ww.model_ntk(torch_model(), X, changed(shift, 2))


class Around(nn.Module):
    """A first layer, then whatever a function makes of the stream and three layers."""

    def __init__(self, made, **more):
        super().__init__()
        self.made, self.first, self.a, self.b = made, nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.act, self.gain = nn.ReLU(**more), nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.made(self, x)


def around(made, **more):
    return lambda: Around(made, **more)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (around(lambda m, x: m.b(x + torch.tanh(m.a(x)))), r"position 2 \(add\): a residual connection on raw inputs"),
        (around(lambda m, x: m.b(torch.tanh(m.first(x) + torch.tanh(m.a(m.first(x)))))), r"position 4 \(add\), a sum in which neither"),
        (around(lambda m, x: (lambda h: m.b(torch.relu(h + m.a(h))))(torch.relu(m.first(x)))), r"position 3 \(add\): a residual connection on features behind an activation"),
        (around(lambda m, x: (lambda h: h + m.b(torch.relu(h)))(m.first(x))), r"position 3 \(add\): a sum of 4 and 1 features"),
        (around(lambda m, x: (lambda h: m.b(h + torch.tanh(h)))(m.first(x))), r"position 2 \(add\): a body that ends with"),
        (around(lambda m, x: (lambda h: m.b(h + (h + m.a(torch.tanh(h)))))(m.first(x))), r"position 4 \(add\): a body that ends with Residual"),
        (around(lambda m, x: (lambda h: h + m.gain * m.a(torch.relu(h)))(m.first(x))), r"position 1 \(gain\)"),
        (around(lambda m, x: (lambda h: m.a(m.act(h)) - 0.5 * h)(m.first(x))), r"position 4 \(sub\)"),
        (around(lambda m, x: (lambda h: m.a(m.act(h)) + -0.5 * h)(m.first(x))), "a skip times -0.5"),
        (around(lambda m, x: (lambda h: m.a(m.act(h)) + h)(m.first(x)), inplace=True), r"position 1 \(ReLU, 'act'\), in place on a value that is read again"),
        (lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)), re.escape(BATCH_NORM)),
        (lambda: nn.Sequential(nn.Linear(3, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 1)), r"position 1 \(GroupNorm, '1'\)"),
        (lambda: nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), r"position 0 \(LayerNorm, '0'\) before the first"),
        (lambda: nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.RMSNorm(8), nn.Linear(8, 1)), r"position 2 \(RMSNorm, '2'\): .* behind a learned gain"),
        (lambda: nnx.Sequential(nnx.Linear(3, 8, rngs=nnx.Rngs(0)), nnx.BatchNorm(8, rngs=nnx.Rngs(0))), re.escape(BATCH_NORM)),
        (lambda: eqx.nn.Sequential([eqx.nn.Linear(3, 8, key=jax.random.key(0)), eqx.nn.GroupNorm(2, 8)]), r"layers\[1\] \(GroupNorm\)"),
        (lambda: Scaled(), "gain, a learned array of no Linear layer or normalisation"),
    ],
    ids=range(17),
)  # fmt: skip
def test_what_no_list_of_layers_has_is_refused_by_position(model, said):
    with pytest.raises(ww.WidthwiseError, match=said):
        ww.read_model(model())


class Scaled(eqx.Module):
    """A learned scale of a branch, which starts at 1."""

    first: eqx.nn.Linear
    a: eqx.nn.Linear
    gain: jax.Array

    def __init__(self):
        self.first, self.a = (eqx.nn.Linear(4, 4, key=jax.random.key(i)) for i in range(2))
        self.gain = jnp.ones(())

    def __call__(self, x):
        h = self.first(x)
        return h + self.gain * self.a(jnp.tanh(h))


def test_equinox_batch_norm_is_refused_with_the_reason():
    model = eqx.nn.Sequential([eqx.nn.Linear(3, 8, key=jax.random.key(0)), eqx.nn.BatchNorm(8, "batch", mode="batch")])
    with pytest.raises(ww.WidthwiseError, match=re.escape(BATCH_NORM)):
        ww.read_model(model)


def test_nested_skips_and_factors_of_sums_are_read():
    def made(m, x):
        h = m.first(x)
        inner = 0.5 * (3 * h + m.a(torch.relu(h)))
        return m.b((h + m.a(torch.relu(inner))) / 2)

    model = Around(made).double()
    net = ww.from_torch(model)
    outer = net.layers[1]
    inner = outer.body[0]
    assert (outer.scale, inner.scale) == (0.5, 1.5)
    assert [layer.body[-1].C_W for layer in (inner, outer)] == pytest.approx([1 / 12, 1 / 12])
    x = np.ones((2, 4))
    parameters = load_model(model, x, None)[0]
    np.testing.assert_allclose(output_rows(net, parameters, x), model(torch.tensor(x)).detach(), rtol=1e-12)
