"""`advise` of any module: what is wrong by tensor, groups that step, and steps that are those of its own kernel."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from flax import nnx
from sound_models import SEEDED, ResNet, mlp
from torch import nn

import widthwise as ww

torch.set_num_threads(1)


def tanh(n, outputs=1):
    return nn.Sequential(nn.Linear(3, n), nn.Tanh(), nn.Linear(n, n), nn.Tanh(), nn.Linear(n, outputs))


@pytest.fixture
def rows():
    torch.manual_seed(0)
    return torch.randn(8, 3)


def largest_of(model, X):
    H = ww.model_ntk(model, X)["H"].values
    return np.linalg.eigvalsh(H.reshape((int(math.sqrt(H.size)),) * 2))[-1]


def test_a_model_that_is_a_network_is_advised_on_by_theory_and_by_its_own_kernel(rows):
    model = tanh(64)
    report = ww.advise(model, rows, optimiser="sgd", learning_rate=0.02)
    assert report.step.of_model == pytest.approx(2 / largest_of(model, rows), rel=1e-3)
    net = ww.from_torch(model)
    assert report.step.of_theory == pytest.approx(ww.max_learning_rate(net, rows.numpy()), rel=1e-6)
    assert report.network.verdict in report.text
    assert report.gamma == pytest.approx(3 / 64)
    assert 0.0 < report.ntk_variation < 0.5
    assert report.proxy_width == report.proxy.width_of_one > 1
    assert report.step.of_mean == pytest.approx(report.step.of_model * 4)
    data = json.loads(report.json)
    assert data["proxy_width"] == report.proxy_width
    assert data["param_groups"][0]["name"] == "0.weight"
    assert report.verdict in report.html


def test_the_step_is_the_edge_of_real_gradient_descent(rows):
    """The linearised dynamics at the start: below the step the loss falls, above it the error grows within few steps."""
    model = tanh(2048)
    report = ww.advise(model, rows, optimiser="sgd")
    y = torch.randn(8, 1) * 1e-2 + model(rows).detach()
    losses = {}
    for factor in (0.9, 1.3):
        twin = tanh(2048)
        twin.load_state_dict(model.state_dict())
        optimiser = torch.optim.SGD(twin.parameters(), lr=factor * report.step.of_mean)
        losses[factor] = []
        for _ in range(12):
            optimiser.zero_grad()
            loss = nn.MSELoss()(twin(rows), y)
            loss.backward()
            optimiser.step()
            losses[factor].append(float(loss.detach()))
    assert losses[0.9][-1] < losses[0.9][0]
    assert losses[1.3][-1] > losses[1.3][0]


def test_models_without_advice_from_theory_have_their_step_by_lanczos_and_their_proxy_by_fresh_draws():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    x = torch.randn(4, 2, 6, 6)
    report = ww.advise(model, x, seed=1)
    assert report.step.of_model == pytest.approx(2 / largest_of(model, x), rel=1e-3)
    assert math.isnan(report.step.of_theory)
    assert any("advice on the network: net: got Conv" in said for said in report.unknown)
    assert report.step.draws == 6
    assert report.proxy_width == math.ceil(report.width * (report.step.spread / math.log(1.1)) ** 2)
    assert ww.advise(model, x, draws=0).proxy_width is None
    assert any("smallest proxy" in said for said in ww.advise(model).unknown)


def test_groups_are_those_of_the_users_optimiser_and_step_it(rows):
    model, base = tanh(128), tanh(32)
    mine = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, eps=1e-6)
    report = ww.advise(model, rows, base=base, optimiser=mine)
    same = ww.parametrisation(model, base, "mup", "adamw", learning_rate=0.01, weight_decay=0.1, epsilon=1e-6)
    assert report.parametrisation.learning_rates == same.learning_rates
    assert "decayed_vectors" in {one.kind for one in report.audit.findings}
    optimiser, before = torch.optim.AdamW(report.param_groups), model[2].weight.detach().clone()
    model(rows).square().mean().backward()
    optimiser.step()
    assert float((model[2].weight.detach() - before).abs().max()) == pytest.approx(0.0025, rel=0.1)
    momentum = ww.advise(model, rows, optimiser=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    assert momentum.parametrisation.optimiser == "momentum"


def test_what_is_wrong_is_named_by_tensor():
    torch.manual_seed(21)
    make, batch, kind, tensor = SEEDED["packed projection"]
    report = ww.advise(make(), batch(), draws=0)
    found = next(one for one in report.audit.findings if one.kind == kind)
    assert found.tensor == tensor
    assert found.message.split()[0] in report.text


def test_recurrent_normalised_and_jax_models_are_advised_on(rows):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    x = torch.randn(4, 5, 3)
    model = Recurrent()
    assert ww.advise(model, x, draws=0).step.of_model == pytest.approx(2 / largest_of(model, x), rel=1e-3)
    image = ww.advise(ResNet(), torch.randn(2, 3, 16, 16), draws=0)
    assert any("running" in said for said in image.unknown)
    flax = nnx.Sequential(nnx.Linear(3, 32, rngs=nnx.Rngs(0)), nnx.tanh, nnx.Linear(32, 1, rngs=nnx.Rngs(1)))
    report = ww.advise(flax, rows.numpy())
    assert 0.3 < report.step.of_model / report.step.of_theory < 3.0


def test_networks_are_advised_on_as_before():
    net = ww.MLP([4, 64, 64, 1], "tanh")
    assert isinstance(ww.advise(net, deepest=8), ww.Advice)


REFUSED = [
    (lambda: ww.advise(tanh(8), rule="lion"), "rule: got 'lion'"),
    (lambda: ww.advise(tanh(8), deepest=3), "deepest= with a module"),
    (lambda: ww.advise(ww.MLP([2, 8, 1], "tanh"), rule="mup"), "rule= with a network"),
    (lambda: ww.advise(tanh(8), wrong=1), "unknown argument 'wrong'"),
    (lambda: ww.advise(tanh(8), optimiser=3), "optimiser: got int"),
    (lambda: ww.advise(tanh(8), optimiser=torch.optim.RMSprop(tanh(8).parameters())), "optimiser: got 'rmsprop'"),
    (lambda: ww.advise(tanh(8), factor=0.5), "factor: got 0.5"),
    (lambda: ww.advise("tanh"), "net: got"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_input_is_named(call, message):
    with pytest.raises(ww.WidthwiseError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


BAD = {
    "half precision": lambda: (mlp().bfloat16(), torch.randn(4, 20)),
    "NaN weights": lambda: (nn.Sequential(nn.Linear(20, 4), nn.ReLU(), nn.Linear(4, 1)).apply(_spoil), torch.randn(4, 20)),
    "nothing trained": lambda: (mlp().requires_grad_(False), torch.randn(4, 20)),
    "partly frozen": lambda: (_freeze(mlp()), torch.randn(4, 20)),
    "other arguments": lambda: (nn.Bilinear(4, 4, 1), torch.randn(4, 4)),
    "no parameters": lambda: (nn.ReLU(), torch.randn(4, 4)),
    "on the meta device": lambda: (nn.Linear(4, 2, device="meta"), torch.randn(4, 4)),
    "partly on the meta device": lambda: (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2, device="meta")), torch.randn(4, 4)),
    "lazy": lambda: (nn.LazyLinear(3), torch.randn(4, 4)),
    "batch of one": lambda: (ResNet(), torch.randn(1, 3, 16, 16)),
    "a string for a batch": lambda: (mlp(), "no batch"),
}  # fmt: skip


def _spoil(part):
    if isinstance(part, nn.Linear):
        part.weight.data[0, 0] = float("nan")


def _freeze(model):
    model[0].weight.requires_grad_(False)
    return model


def said_of(model, batch):
    """The one line with which advice is refused, or what the advice could not say or has for a step."""
    try:
        advice = ww.advise(model, batch, draws=0)
    except ww.WidthwiseError as error:
        return str(error)
    assert json.loads(advice.json)
    return " ".join(advice.unknown) or f"{advice.step.of_model:g}"


@pytest.mark.parametrize("name", BAD)
def test_bad_models_are_audited_and_advised_on_as_far_as_possible(name):
    """Never a traceback from below: a report that says what could not be said, or one line that says what is wrong."""
    torch.manual_seed(0)
    model, batch = BAD[name]()
    report = ww.audit(model, batch)
    assert report.text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = said_of(model, batch)
    assert said
    assert "\n" not in said


def test_the_command_advises_on_a_function_of_a_module(tmp_path, monkeypatch, capsys):
    from widthwise.cli.main import main

    (tmp_path / "advised_models.py").write_text(
        "import torch\nfrom torch import nn\n\ndef of(n):\n    return nn.Sequential(nn.Linear(3, n), nn.Tanh(), "
        "nn.Linear(n, n), nn.Tanh(), nn.Linear(n, 1))\n\ndef small():\n    return of(8)\n\ndef large():\n"
        "    return of(32), torch.randn(5, 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["advise", "advised_models:large", "--base", "advised_models:small", "--optimiser", "adamw"]) == 0
    out = capsys.readouterr().out
    assert "mup for adamw: width ×4" in out
    assert "Largest stable step" in out
    assert main(["advise", "advised_models:large", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rule"] == "standard"
    assert main(["advise", "advised_models:large", "--out", "advice.html"]) == 0
    assert "<pre>" in (tmp_path / "advice.html").read_text()
    assert main(["advise", "--rule", "mup"]) == 2
    assert "--rule" in capsys.readouterr().err
