"""Modules that people write: whatever they do, a report or one line, and numbers that stay right where there are any."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from sound_models import mlp
from torch import nn
from torch.utils.checkpoint import checkpoint

import widthwise as ww

torch.set_num_threads(1)


class Wrapped(nn.Module):
    """Two layers with a function of one's own between them."""

    def __init__(self, between, end=lambda z: z):
        super().__init__()
        self.first, self.last, self.between, self.end = nn.Linear(8, 8), nn.Linear(8, 2), between, end

    def forward(self, x):
        return self.end(self.last(self.between(self.first(x))))


class Clamp(torch.autograd.Function):
    """A function with a gradient of its own, which torch.func does not take."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.clamp(0)

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return gradient * (x > 0)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        return self.one(x) if x.abs().sum() > 0 else self.other(x)


class Doubling(nn.Module):
    """Changes its argument in place."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        x *= 2.0
        return self.layer(x)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(8, 8, dtype=torch.cfloat)), nn.Linear(8, 2)

    def forward(self, x):
        return self.last((x.to(torch.cfloat) @ self.weight).abs())


def overwritten(x):
    x.relu_()
    x += 1.0  # what the gradient of relu needs is gone
    return x


def spoilt(kind):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    if kind == "buffer":
        model[1].running_mean.fill_(float("nan"))
    else:
        model[0].bias.data[0] = float("inf")
    return model


def batch():
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(0))


UNUSUAL = {
    "branches by data": (Branching, batch),
    "gradient of one's own": (lambda: Wrapped(Clamp.apply), batch),
    "checkpointed": (lambda: Wrapped(lambda h: checkpoint(torch.tanh, h, use_reentrant=False)), batch),
    "through numpy": (lambda: Wrapped(lambda h: torch.as_tensor(np.tanh(h.detach().numpy()))), batch),
    "argument in place": (Doubling, batch),
    "gradient overwritten": (lambda: Wrapped(overwritten), batch),
    "no gradient": (lambda: Wrapped(torch.relu, lambda z: z.detach()), batch),
    "indices": (lambda: Wrapped(torch.relu, lambda z: z.argmax(1)), batch),
    "one number": (lambda: Wrapped(torch.relu, lambda z: z.sum()), batch),
    "a dict": (lambda: Wrapped(torch.relu, lambda z: {"loss": z.sum(), "logits": z}), batch),
    "nothing": (lambda: Wrapped(torch.relu, lambda z: None), batch),
    "complex entries": (Complex, batch),
    "computed weights": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 2)), batch),
    "traced": (lambda: torch.jit.trace(mlp(inputs=8), batch()), batch),
    "no copy": (lambda: Wrapped(torch.relu, (z for z in ())), batch),
    "NaN in a buffer": (lambda: spoilt("buffer"), batch),
    "infinite bias": (lambda: spoilt("bias"), batch),
    "no entries": (lambda: nn.Linear(0, 3), lambda: torch.ones(4, 0)),
    "no modules": (nn.Sequential, batch),
    "partly half": (lambda: nn.Sequential(nn.Linear(8, 8).bfloat16(), nn.Linear(8, 2)), batch),
    "NaN in the batch": (lambda: mlp(inputs=8), lambda: batch() * float("nan")),
    "one axis": (lambda: mlp(inputs=8), lambda: batch()[0]),
    "an empty batch": (lambda: mlp(inputs=8), lambda: batch()[:0]),
    "a list of tensors": (lambda: nn.Bilinear(8, 8, 2), lambda: [batch(), batch()[:, :3]]),
    "a flag": (lambda: mlp(inputs=8), lambda: {"input": batch(), "flag": True}),
    "token out of range": (lambda: nn.Embedding(4, 3), lambda: torch.full((2, 3), 9)),
    "a bag": (lambda: nn.EmbeddingBag(9, 4), lambda: torch.randint(0, 9, (3, 5))),
}  # fmt: skip
CALLS = {
    "audit": lambda model, X: ww.audit(model, X).text,
    "advise": lambda model, X: ww.advise(model, X, draws=0).text,
    "ntk": lambda model, X: ww.model_ntk(model, X),
    "trace": lambda model, X: ww.model_ntk(model, X, trace=True),
    "nngp": lambda model, X: ww.model_nngp(model, X, draws=2),
    "differentials": lambda model, X: ww.readers.model_differentials(model, X, order=2),
    "parametrisation": lambda model, X: str(ww.parametrisation(model)),
}


def refusal(call, make, inputs):
    """The line with which a call is refused, or nothing where it answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about the models themselves
        try:
            assert call(make(), inputs()) is not None
        except ww.WidthwiseError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_modules_get_a_report_or_one_line(name):
    make, inputs = UNUSUAL[name]
    torch.manual_seed(0)
    for what, call in CALLS.items():
        said = refusal(call, make, inputs)
        assert not said or what not in ("audit", "advise")  # these always answer
        assert "\n" not in said
        assert len(said) < 1000


def test_the_step_is_known_wherever_torch_can_train():
    """The kernel by torch.autograd alone, where torch.func and forward derivatives refuse."""
    torch.manual_seed(0)
    X = batch()
    for make in (lambda: Wrapped(Clamp.apply), UNUSUAL["checkpointed"][0], Branching, Doubling):
        model, x = make(), X.clone()
        H = ww.model_ntk(model, x)["H"].values
        assert torch.equal(x, X)
        size = int(np.sqrt(H.size))
        step = ww.advise(model, x, draws=0).step
        assert step.of_model == pytest.approx(2 / np.linalg.eigvalsh(H.reshape(size, size))[-1], rel=1e-3)
        rows = torch.stack([torch.cat([g.flatten() for g in torch.autograd.grad(z, list(model.parameters()), retain_graph=True, allow_unused=True) if g is not None]) for z in model(X.clone()).flatten()])  # fmt: skip
        exact = (rows @ rows.T).reshape(*model(X.clone()).shape * 2).permute(1, 0, 3, 2).detach().numpy()
        np.testing.assert_allclose(H, exact, atol=1e-4 * np.abs(exact).max())


def kinds(report):
    return {(one.kind, one.tensor) for one in report.findings}


def test_what_is_wrong_with_them_is_named():
    assert ("not_finite", "1.running_mean") in kinds(ww.audit(spoilt("buffer"), batch()))
    assert ("not_finite", "0.bias") in kinds(ww.audit(spoilt("bias"), batch()))
    assert ("complex", "weight") in kinds(ww.audit(Complex(), batch()))
    mask = nn.Linear(8, 2)
    mask.register_buffer("mask", torch.full((3, 3), -torch.inf))
    assert not ww.audit(mask, batch()).findings
    assert "backward" in {one.kind for one in ww.audit(Wrapped(overwritten), batch()).findings}
    assert "int64" in ww.audit(Wrapped(torch.relu, lambda z: z.argmax(1)), batch()).text
    listed = ww.audit(nn.Bilinear(8, 8, 2), [batch(), batch()[:, :3]]).findings[0]
    assert "a tuple gives several arguments" in listed.remedy
    assert "NaN" in ww.audit(mlp(inputs=8), batch() * float("nan")).text


def test_jax_modules_get_a_report_or_one_line():
    class Lists(nnx.Module):
        def __init__(self, between):
            self.layer, self.between = nnx.Linear(8, 4, rngs=nnx.Rngs(0)), between

        def __call__(self, x):
            return self.between(self.layer(x))

    def equinox(**fields):
        layer = eqx.nn.Linear(8, 4, key=jax.random.key(0))
        return eqx.tree_at(lambda m: m.weight, layer, fields["weight"]) if fields else layer

    X = batch().numpy()
    models = [
        Lists(lambda z: z.argmax(1)), Lists(lambda z: z.sum()), Lists(lambda z: z if z.sum() > 0 else -z),
        Lists(lambda z: {"logits": z}), Lists(lambda z: z + jnp.nan), equinox(), equinox(weight=jnp.full((4, 8), jnp.nan)),
        equinox(weight=jnp.ones((4, 8), jnp.complex64)), equinox(weight=jnp.ones((4, 8), jnp.float16)), eqx.nn.Lambda(jnp.tanh),
    ]  # fmt: skip
    for model in models:
        for call in CALLS.values():
            for rows in (X, X[:, :3], X[0]):
                assert "\n" not in refusal(call, lambda model=model: model, lambda rows=rows: rows)
