"""A torch model that we initialise has the K, Θ and V that theory predicts; its kernels are those of torch itself."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import widthwise as ww
from widthwise.readers.empirical import model_functions

torch.set_num_threads(1)
DEEP = ww.MLP([3, 8, 6, 2], "tanh", C_b=0.2, C_W=1.4, lambda_b=0.3, lambda_W=[1.0, 2.0, 0.5])
X = np.random.default_rng(8).normal(size=(4, 3))


def model_of(net, activation):
    parts = []
    for a, b in zip(net.widths[:-1], net.widths[1:], strict=True):
        parts += [nn.Linear(a, b, bias=any(net.C_b)), activation()]
    return ww.init_torch(nn.Sequential(*parts[:-1]).double(), net, seed=2)


def jacobians(model, x):
    """dz_ia/dθ by torch.func: one (inputs, outputs, entries) for each parameter."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def call(parameters, one):
        return torch.func.functional_call(model, parameters, one[None])[0]

    found = torch.func.vmap(torch.func.jacrev(call), (None, 0))(parameters, torch.tensor(x))
    return {name: value.flatten(2).numpy() for name, value in found.items()}


def test_the_ntk_of_torch_and_of_jax_agree_to_rounding():
    model = model_of(DEEP, nn.Tanh)
    rates = {f"{2 * i}.{kind}": group for i in range(3) for kind, group in _rates(i).items()}
    by_torch = sum(rates[name] * np.einsum("aip,bjp->iajb", J, J) for name, J in jacobians(model, X).items())
    np.testing.assert_allclose(ww.model_ntk(model, X, DEEP)["H"], by_torch, rtol=0, atol=1e-10)
    plain = sum(np.einsum("aip,bjp->iajb", J, J) for J in jacobians(model, X).values())
    np.testing.assert_allclose(ww.model_ntk(model, X)["H"], plain, rtol=0, atol=1e-10)


def _rates(layer):
    return {"weight": DEEP.lambda_W[layer] / DEEP.widths[layer], "bias": DEEP.lambda_b[layer]}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_the_hessian_spectrum_is_that_of_torch():
    model, y = model_of(DEEP, nn.Tanh), np.random.default_rng(1).normal(size=(4, 2))
    names, values = zip(*((name, value.detach()) for name, value in model.named_parameters()), strict=True)
    rates = [_rates(int(name[0]) // 2)[name[2:]] for name in names]
    sizes = [torch.full((v.numel(),), r**0.5, dtype=torch.float64) for r, v in zip(rates, values, strict=True)]
    root = torch.cat(sizes)
    flat = torch.cat([value.flatten() for value in values])

    def loss(shift):
        pieces = torch.split(flat + root * shift, [value.numel() for value in values])
        parameters = {n: p.reshape(v.shape) for n, p, v in zip(names, pieces, values, strict=True)}
        return 0.5 * ((torch.func.functional_call(model, parameters, torch.tensor(X)) - torch.tensor(y)) ** 2).sum()

    exact = np.linalg.eigvalsh(torch.func.hessian(loss)(torch.zeros_like(flat)).numpy())
    full = ww.readers.hessian_spectrum(model, X, y, DEEP, steps=1000, probes=1)
    apart = np.abs(full["node"].values[0][:, None] - exact[None, :])
    assert apart.min(axis=0).max() < 1e-7  # every eigenvalue is found
    assert apart.min(axis=1).max() < 1e-7  # and nothing else
    few = ww.readers.hessian_spectrum(model, X, y, DEEP, steps=20, probes=2)
    np.testing.assert_allclose(few["node"].max("step"), exact[-1], rtol=1e-3)
    np.testing.assert_allclose(few["weight"].sum("step"), 1.0)


def test_learning_rates_of_biases_that_are_not_there_are_refused():
    net = ww.MLP([3, 8, 1], "tanh")
    with pytest.raises(ww.WidthwiseError, match=r"lambda_b = 1 for position 0 \(Linear, '0'\), which has no bias"):
        ww.model_ntk(model_of(net, nn.Tanh), X, net)


def test_the_dntk_is_the_derivative_of_the_ntk():
    """Moving along λ ∂z_kc/∂θ changes Ĥ_ij;ab by dĤ_ijk;abc + dĤ_jik;bac (theory §8)."""
    model, step = model_of(DEEP, nn.Tanh), 1e-5
    along = {name: J[1, 0] for name, J in jacobians(model, X).items()}  # input c = 1, output k = 0
    kernels = []
    for sign in (1, -1):
        moved = model_of(DEEP, nn.Tanh)
        with torch.no_grad():
            for name, value in moved.named_parameters():
                rate = _rates(int(name[0]) // 2)[name[2:]]
                value += sign * step * rate * torch.tensor(along[name]).reshape(value.shape)
        kernels.append(ww.model_ntk(moved, X, DEEP)["H"].values)
    change = (kernels[0] - kernels[1]) / (2 * step)  # (i, a, j, b)
    dH = ww.readers.model_dntk(model, X, DEEP, order=0)["dH"].values[:, :, 0, :, :, 1]  # (i, j, a, b)
    np.testing.assert_allclose(change, np.einsum("ijab->iajb", dH) + np.einsum("jiba->iajb", dH), atol=1e-7)


def test_the_dntk_has_the_correlation_with_the_output_that_theory_says():
    """E[dĤ_111;aaa z_1a] = (P + 2Q)/n at one input, over networks drawn by init_torch."""
    net = ww.MLP([2, 64, 1], "tanh", C_b=0.2, C_W=1.5, lambda_b=0.5)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1)).double()
    x = [[1.0, -0.7]]
    found = []
    for seed in range(250):
        ww.init_torch(model, net, seed)
        ds = ww.readers.model_dntk(model, x, net, order=0)
        found.append(float(ds["dH"].values.ravel()[0]) * float(model(torch.tensor(x).double()).detach()))
    expected = float(ww.readers.model_dntk(model, x, net)["dH_z_mean"].values.ravel()[0])
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - expected) < 4 * error
    assert abs(np.mean(found) - expected * 64) > 8 * error  # wrong on purpose: the coefficient without its 1/n


def test_kernels_layer_by_layer_lie_where_theory_says():
    net = ww.MLP([3, 400, 300, 200], "erf", C_b=0.1, C_W=1.8)
    ds = ww.readers.model_kernels(model_of(net, Erf), X[:2], net, order=1)
    for name in ("K", "Theta"):
        pulls = (ds[f"{name}_model"] - ds[f"{name}_mean"]) / ds[f"{name}_sd"].where(ds[f"{name}_sd"] > 0)
        assert float(np.abs(pulls).max()) < 4
        assert float(np.abs(pulls).max()) > 0.01
    np.testing.assert_allclose(ds["Theta_model"][0], ds["Theta"][0])  # no randomness in the first layer


class Erf(nn.Module):
    def forward(self, z):
        return torch.erf(z)


def observed(net, networks, groups_of):
    """Ĝ and Ĥ_11 at one input, and z at the output, of networks initialised by init_torch; by torch alone."""
    model = nn.Sequential(nn.Linear(4, 16, bias=False), nn.ReLU(), nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 2, bias=False)).double()  # fmt: skip
    x = torch.tensor([[1.0, -1.0, 0.5, 2.0]], dtype=torch.float64)
    rates = {id(group["params"][0]): group["lr"] for group in ww.param_groups(model, groups_of)}
    G, H, z = [], [], []
    for seed in range(networks):
        ww.init_torch(model, net, seed)
        hidden = model[:-1](x)
        out = model[-1](hidden)
        gradients = torch.autograd.grad(out[0, 0], list(model.parameters()))
        H.append(sum(rates[id(p)] * float((g**2).sum()) for p, g in zip(model.parameters(), gradients, strict=True)))
        G.append(net.C_W[-1] / 16 * float((hidden.detach() ** 2).sum()))
        z.append(out.detach().numpy()[0])
    return np.array(G), np.array(H), np.array(z)


def test_a_torch_model_initialised_by_us_has_the_kernels_and_V_of_theory():
    """ReLU without biases is exact at any width: E z² = K, E Ĥ = Θ, n var Ĝ = n((1 + 5/n)² − 1)K² → V = 10 K²."""
    net = ww.MLP([4, 16, 16, 2], "relu", C_W=2.0, lambda_b=0.0, lambda_W=[1.0, 2.0, 3.0])
    G, H, z = observed(net, 1500, net)
    x = np.array([[1.0, -1.0, 0.5, 2.0]])
    ds = ww.theory(net, x, order=1, tensors=["K", "Theta", "V"], layers="last")
    K, Theta, V = (float(ds[name].values.ravel()[0]) for name in ("K", "Theta", "V"))
    assert pytest.approx(10 * K**2) == V
    exact = 16 * ((1 + 5 / 16) ** 2 - 1) * K**2
    half = np.sqrt(len(G))
    assert abs(G.mean() - K) < 4 * G.std() / half
    assert abs((z**2).mean() - K) < 4 * (z**2).mean(axis=1).std() / half
    assert abs(H.mean() - Theta) < 4 * H.std() / half
    squares = 16 * (G - K) ** 2
    assert abs(squares.mean() - exact) < 4 * squares.std() / half
    # wrong on purpose: Θ of equal rates, V of a linear network, K without the factor of two
    equal = float(ww.theory(net.replace(lambda_W=1.0), x, layers="last")["Theta"].values.ravel()[0])
    assert abs(H.mean() - equal) > 8 * H.std() / half
    assert abs(squares.mean() - 16 * ((1 + 2 / 16) ** 2 - 1) * K**2) > 8 * squares.std() / half
    assert abs(G.mean() - K / 2) > 8 * G.std() / half


@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning])
def test_parts_of_torch_that_warn_of_their_own_age_do_so_unheard(category, monkeypatch):
    def old(*arguments):
        warnings.warn("torch.jit.script is deprecated", category, stacklevel=2)

    monkeypatch.setattr(torch.func, "jvp", old)
    model_functions._torch_transforms.cache_clear()
    assert model_functions._torch_transforms() is torch.func
