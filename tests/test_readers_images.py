"""Models of images and sequences in torch, Flax and Equinox: read alike, computed alike, and as wide ones behave."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import widthwise as ww
from widthwise.errors import InvalidInput
from widthwise.experiments.sampler import output_rows
from widthwise.readers.models import load_model, read_model

torch.set_num_threads(1)
IMAGES = np.random.default_rng(3).normal(size=(3, 3, 8, 8))  # channels first
LAST = np.moveaxis(IMAGES, 1, -1)


class Torch(nn.Module):
    """A stride, a skip, a projection, dropout, an average pool, and a Flatten."""

    def __init__(self):
        super().__init__()
        self.first, self.body = nn.Conv2d(3, 16, 3, padding=1, stride=2), nn.Conv2d(16, 16, 3, padding=2, dilation=2)
        self.left, self.right = nn.Conv2d(16, 24, 3, padding=1), nn.Conv2d(16, 24, 1, bias=False)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(24 * 4, 2)

    def forward(self, x):
        x = self.first(x)
        x = torch.relu(x + 0.5 * self.body(torch.tanh(x)))
        x = nn.functional.avg_pool2d(self.drop(torch.erf(self.left(x) + self.right(x))), 2)
        return self.last(x.view(x.size(0), -1))


class Flax(nnx.Module):
    def __init__(self):
        more = {"rngs": nnx.Rngs(0), "param_dtype": jnp.float64}
        self.first = nnx.Conv(3, 16, (3, 3), strides=2, padding=1, **more)
        self.body = nnx.Conv(16, 16, (3, 3), kernel_dilation=2, padding=2, **more)
        self.left = nnx.Conv(16, 24, (3, 3), padding=1, **more)
        self.right = nnx.Conv(16, 24, (1, 1), padding=0, use_bias=False, **more)
        self.drop, self.last = nnx.Dropout(0.3, rngs=nnx.Rngs(1)), nnx.Linear(24 * 4, 2, **more)

    def __call__(self, x):
        x = self.first(x)
        x = nnx.relu(x + 0.5 * self.body(jnp.tanh(x)))
        x = nnx.avg_pool(self.drop(jax.scipy.special.erf(self.left(x) + self.right(x))), (2, 2), strides=(2, 2))
        return self.last(x.reshape(len(x), -1))


class Equinox(eqx.Module):
    first: eqx.nn.Conv2d
    body: eqx.nn.Conv2d
    left: eqx.nn.Conv2d
    right: eqx.nn.Conv2d
    drop: eqx.nn.Dropout
    pool: eqx.nn.AvgPool2d
    last: eqx.nn.Linear

    def __init__(self):
        key = jax.random.key(0)
        self.first = eqx.nn.Conv2d(3, 16, 3, padding=1, stride=2, key=key)
        self.body = eqx.nn.Conv2d(16, 16, 3, padding=2, dilation=2, key=key)
        self.left = eqx.nn.Conv2d(16, 24, 3, padding=1, key=key)
        self.right = eqx.nn.Conv2d(16, 24, 1, use_bias=False, key=key)
        self.drop, self.pool = eqx.nn.Dropout(0.3), eqx.nn.AvgPool2d(2, 2)
        self.last = eqx.nn.Linear(24 * 4, 2, key=key)

    def __call__(self, x, key=None):
        x = self.first(x)
        x = jax.nn.relu(x + 0.5 * self.body(jnp.tanh(x)))
        x = self.pool(self.drop(jax.scipy.special.erf(self.left(x) + self.right(x)), key=key))
        return self.last(jnp.ravel(x))


def torch_model(seed=0):
    torch.manual_seed(seed)
    return Torch().double()


NAMES = ("first", "body", "left", "right", "last")


def flax_twin(model):
    """The Flax model with the numbers of a torch model: channels, and those of a Flatten, stand last."""
    twin = Flax()
    for name in NAMES:
        mine, theirs = getattr(twin, name), getattr(model, name)
        weight = theirs.weight.detach().numpy()
        if weight.ndim == 4:
            mine.kernel[...] = jnp.array(weight.transpose(2, 3, 1, 0))
        else:
            mine.kernel[...] = jnp.array(weight.reshape(2, 24, 4).transpose(2, 1, 0).reshape(96, 2))
        if theirs.bias is not None:
            mine.bias[...] = jnp.array(theirs.bias.detach().numpy())
    return twin


def equinox_twin(model):
    biased = [name for name in NAMES if name != "right"]
    values = [jnp.array(getattr(model, name).weight.detach().numpy()) for name in NAMES]
    values += [jnp.array(getattr(model, name).bias.detach().numpy()) for name in biased]
    values = [value[:, None, None] if value.shape in ((16,), (24,)) else value for value in values]
    return eqx.tree_at(
        lambda m: [getattr(m, name).weight for name in NAMES] + [getattr(m, name).bias for name in biased],
        Equinox(),
        values,
    )


def expected_network():
    def layer(kind, fan, *sizes, bias=1.0, factor=1.0, **more):
        numbers = {"C_b": factor * bias / (3 * fan), "C_W": factor / 3, "lambda_b": factor * bias}
        return kind(*sizes, **numbers, lambda_W=factor * fan, **more)

    same = {"padding": (1, 1)}
    body = layer(ww.Conv, 144, 16, 16, (3, 3), factor=0.25, padding=(2, 2), dilation=2)
    left = layer(ww.Conv, 144, 16, 24, (3, 3), **same)
    right = layer(ww.Conv, 16, 16, 24, (1, 1), bias=0.0, padding=(0, 0))
    return ww.Network(
        [
            layer(ww.Conv, 27, 3, 16, (3, 3), stride=2, **same),
            ww.Residual(["tanh", body]),
            "relu",
            ww.Parallel([[left], [right]]),
            "erf",
            ww.Dropout(0.3),
            ww.AvgPool((2, 2), padding=(0, 0)),
            ww.Flatten(),
            layer(ww.Dense, 96, 96, 2),
        ]
    )


def models():
    model = torch_model()
    return {"torch": model, "flax": flax_twin(model), "equinox": equinox_twin(model)}


def test_models_of_images_of_equal_numbers_are_the_same_network_in_every_package():
    for model in models().values():
        read = read_model(model).net
        assert jax.tree.structure(read) == jax.tree.structure(expected_network())
        np.testing.assert_allclose(jax.tree.leaves(read), jax.tree.leaves(expected_network()), rtol=1e-12)


def test_the_network_that_is_read_computes_what_the_model_computes():
    for name, model in models().items():
        x = LAST if name == "flax" else IMAGES
        parameters, net, images = load_model(model, x, None)
        if name == "torch":
            expected = model.eval()(torch.tensor(x)).detach().numpy()
        elif name == "flax":
            model.eval()
            expected = model(jnp.array(x))
        else:
            expected = jax.vmap(eqx.nn.inference_mode(model))(jnp.array(x))
        np.testing.assert_allclose(output_rows(net, parameters, images), expected, rtol=1e-10)


def test_kernels_of_a_model_stand_beside_theory_of_images():
    ds = ww.model_ntk(torch_model().eval(), IMAGES)
    Theta = ww.theory(ww.from_torch(torch_model().eval()), LAST, layers="last")["Theta"].values[0]
    np.testing.assert_allclose(ds["Theta"], Theta, rtol=1e-12)
    kernels = ww.readers.model_kernels(torch_model(), IMAGES)
    assert kernels["K_model"].shape == (4, 3, 3)
    np.testing.assert_allclose(kernels["Theta"][-1], Theta, rtol=1e-12)  # without dropout, as it is evaluated


@pytest.mark.parametrize("package", ["torch", "flax", "equinox"])
def test_weights_that_are_written_are_read_again(package):
    net = expected_network()
    model = models()[package]
    init = {"torch": ww.init_torch, "flax": ww.readers.init_flax, "equinox": ww.readers.init_equinox}[package]
    reading = read_model(init(model, net, seed=4), recognise=False)
    assert not reading.findings
    for pulls in reading.pulls(net).values():
        assert np.abs(pulls).max() < 4.5


def test_rates_of_convolutions_are_those_over_the_entries_of_a_window():
    groups = ww.param_groups(torch_model(), expected_network(), 0.5)
    assert [round(group["lr"], 12) for group in groups[:4]] == [0.5] * 4  # λ_W/fan-in of rate 1, factors allowed for
    assert len(groups) == 9


class Sequence(nn.Module):
    """Linear layers and a norm at every position, with channels last, and their mean."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.body, self.last = nn.Conv1d(3, 16, 3), nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 1)  # fmt: skip

    def forward(self, x):
        x = self.first(x).transpose(1, 2)
        x = x + self.body(torch.relu(self.norm(x)))
        return self.last(torch.tanh(x).mean(dim=1))


def test_sequences_keep_their_channels_where_the_model_puts_them():
    model = Sequence().double()
    x = np.random.default_rng(0).normal(size=(3, 3, 7))
    parameters, net, words = load_model(model, x, None)
    assert [type(layer).__name__ for layer in net.layers] == [
        "Conv",
        "Residual",
        "Elementwise",
        "GlobalAvgPool",
        "Dense",
    ]
    expected = model(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(output_rows(net, parameters, words), expected, rtol=1e-10)


def wide_model(width):
    return nn.Sequential(
        nn.Conv2d(2, width, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.Tanh(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1),
    ).double()  # fmt: skip


def empirical_ntk(model, x):
    rows = []
    for one in torch.tensor(x):
        grads = torch.autograd.grad(model(one[None]).sum(), list(model.parameters()))
        rows.append(torch.cat([grad.ravel() for grad in grads]))
    rows = torch.stack(rows)
    return (rows @ rows.T).numpy()[np.triu_indices(len(x))]


@pytest.mark.parametrize("seed", [11])
def test_the_ntk_of_wide_modules_is_that_of_the_network_that_was_read(seed):
    """Ratios to theory at two widths, extrapolated: 3 entries below 4 s.e., a false alarm in 5,000 runs."""
    x = np.random.default_rng(5).normal(size=(2, 2, 6, 6))
    torch.manual_seed(seed)
    means, squares = {}, {}
    for width, count in ((32, 240), (64, 160)):
        drawn = np.array([empirical_ntk(wide_model(width), x) for _ in range(count)])
        means[width], squares[width] = drawn.mean(axis=0), drawn.var(axis=0, ddof=1) / count

    def pull(changed):
        ratios = {}
        for width in means:
            net = changed(ww.from_torch(wide_model(width)))
            Theta = ww.theory(net, np.moveaxis(x, 1, -1), layers="last")["Theta"].values[0][np.triu_indices(2)]
            ratios[width] = means[width] / Theta, squares[width] / Theta**2
        (r1, v1), (r2, v2) = ratios.values()
        return np.abs((2 * r2 - r1 - 1.0) / np.sqrt(4 * v2 + v1)).max()

    def other(**change):
        def changed(net):
            first, *rest = net.layers
            return ww.Network([type(first)(**{**first.__dict__, **change}), *rest])

        return changed

    def flattened(net):
        *rest, _, last = net.layers
        return ww.Network([*rest, ww.Flatten(), type(last)(**{**last.__dict__, "inputs": 9 * last.inputs})])

    assert pull(lambda net: net) < 4.0
    assert pull(other(stride=(1, 1))) > 8
    assert pull(other(padding="CIRCULAR")) > 8
    assert pull(flattened) > 8


def linear_behind(*layers, features=8):
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 1))


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.attend, self.last = nn.Linear(3, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 1)

    def forward(self, x):
        x = self.first(x)
        return self.last(self.attend(x, x, x)[0].mean(dim=1))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Attentive(), "MultiheadAttention.*not Gaussian at finitely many heads.*2506.00846"),
        (nn.TransformerEncoderLayer(8, 2), "not Gaussian at finitely many heads"),
        (linear_behind(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2)), r"MaxPool2d.*average pools have one"),
        (linear_behind(nn.Conv2d(4, 8, 3, groups=2)), "with 2 groups"),
        (linear_behind(nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect")), "padding_mode 'reflect'"),
        (linear_behind(nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular", stride=2)), "circular.*stride 1"),
        (linear_behind(nn.ConvTranspose2d(3, 8, 3)), "transposed convolutions"),
        (linear_behind(nn.Conv2d(3, 8, 3), nn.Dropout2d()), "shared by all positions"),
        (linear_behind(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)), "mean over positions"),
        (linear_behind(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "BatchNorm joins the inputs"),
        (linear_behind(nn.Conv2d(3, 8, 3), nn.AvgPool2d(3, ceil_mode=True)), "ceil_mode"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 1)), "to 2 positions"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(8, 1)), "takes channels in the last axis"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(2), nn.Linear(8, 1)), "mixes positions"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)), "after the last weights"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.ReLU(), nn.Linear(8, 1)), "followed by|behind Flatten"),
    ],
)  # fmt: skip
def test_what_has_no_network_is_refused_with_the_reason(model, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        ww.from_torch(model)
    assert "\n" not in str(caught.value)


def test_jax_models_that_have_no_network_are_refused_with_the_reason():
    more = {"rngs": nnx.Rngs(0)}
    conv, last = nnx.Conv(1, 4, (3, 3), **more), nnx.Linear(4, 1, **more)
    cases = {
        "not Gaussian at finitely many heads": nnx.Sequential(nnx.MultiHeadAttention(2, 8, 8, decode=False, **more)),
        "average pools have one": nnx.Sequential(conv, lambda x: nnx.max_pool(x, (2, 2)).mean((1, 2)), last),
        "Sum over all positions": nnx.Sequential(conv, nnx.relu, lambda x: x.mean(1), last),
        "positions=": nnx.Sequential(conv, lambda x: x.reshape(1, -1), nnx.Linear(4 * 31 * 30, 1, **more)),
    }
    for message, model in cases.items():
        with pytest.raises(InvalidInput, match=message):
            ww.readers.from_flax(model)
    with pytest.raises(InvalidInput, match="not Gaussian at finitely many heads"):
        ww.readers.from_equinox(eqx.nn.MultiheadAttention(2, 8, key=jax.random.key(0)))


def test_positions_that_are_not_square_are_given():
    more = {"rngs": nnx.Rngs(0)}
    model = nnx.Sequential(
        nnx.Conv(1, 4, (3, 3), **more), nnx.relu, lambda x: x.reshape(len(x), -1), nnx.Linear(4 * 6, 1, **more)
    )
    assert ww.readers.from_flax(model, positions=(2, 3)).layers[-1].inputs == 24
    rows = nnx.Sequential(nnx.Linear(3, 8, **more), nnx.tanh, lambda x: x.mean(axis=1), nnx.Linear(8, 1, **more))
    assert isinstance(ww.readers.from_flax(rows, positions=(5,)).layers[2], ww.GlobalAvgPool)
