"""Known defects are found and named, sound models give no alarm, and bad models are audited as far as possible."""

import json
import time

import equinox as eqx
import jax
import numpy as np
import pytest
import torch
from flax import nnx
from sound_models import SEEDED, SOUND, ResNet, he, mlp, rows
from torch import nn

import widthwise as ww

torch.set_num_threads(1)


def loud(report):
    return [one for one in report.findings if one.severity != "note"]


@pytest.mark.parametrize("name", SOUND)
def test_sound_models_give_no_alarm(name):
    """23 models; six other seeds of each gave none, so that the rate of false alarms is below 2.3 % a model (95 %)."""
    torch.manual_seed(20)
    make, batch = SOUND[name]
    assert not loud(ww.audit(make(), batch(), draws=1))


@pytest.mark.parametrize("name", SEEDED)
def test_seeded_defects_are_found_and_named(name):
    torch.manual_seed(21)
    make, batch, kind, tensor = SEEDED[name]
    found = [one for one in loud(ww.audit(make(), batch(), draws=0)) if one.kind == kind and one.tensor == tensor]
    assert len(found) == 1
    assert found[0].remedy
    assert "\n" not in found[0].message


def test_the_line_that_mends_a_packed_projection_does():
    make, batch, *_ = SEEDED["packed projection"]
    model = make()
    (finding,) = loud(ww.audit(model, batch(), draws=0))
    with torch.no_grad():
        exec(finding.remedy, {"model": model, "nn": nn})
    assert not loud(ww.audit(model, batch(), draws=0))


def test_fans_are_those_of_the_use():
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2), nn.ConvTranspose2d(8, 6, 4, stride=2), nn.Flatten(), nn.LazyLinear(3)
    )
    model(torch.randn(2, 4, 6, 6))
    facts = {one.name: one for one in ww.audit(model, torch.randn(4, 4, 6, 6)).tensors}
    assert (facts["0.weight"].fan_in, facts["0.weight"].fan_out) == (2 * 9, 4 * 9)
    assert (facts["1.weight"].fan_in, facts["1.weight"].fan_out) == (8 * 16 / 4, 6 * 16)  # each output meets 4 of 16
    lstm = {one.name: one for one in ww.audit(nn.LSTM(5, 7), torch.randn(4, 3, 5)).tensors}
    assert (lstm["weight_ih_l0"].fan_in, lstm["weight_ih_l0"].fan_out, lstm["weight_ih_l0"].pieces) == (5, 7, 4)
    assert facts["0.weight"].distribution == "uniform"
    assert pytest.approx(1 / 3, rel=0.5) == facts["0.weight"].C


def test_shares_of_the_ntk_are_those_of_the_kernel():
    """Random signs estimate Σ (∂z/∂θ)² without bias: with one output at one input they are exact."""
    torch.manual_seed(0)
    model, X = mlp(3, 16, nn.Tanh, outputs=1).double(), rows(1).double()
    report = ww.audit(model, X, draws=0)
    gradients = torch.autograd.grad(model(X).sum(), list(model.parameters()))
    squares = np.array([float((g**2).sum()) for g in gradients])
    np.testing.assert_allclose([one.share for one in report.tensors], squares / squares.sum(), rtol=1e-10)


def test_signals_of_a_plain_network_stand_beside_theory():
    torch.manual_seed(1)
    report = ww.audit(mlp(4, 512, nn.ReLU, he), rows(32), draws=0)
    ratios = [own / expected for _, own, expected in report.expected]
    assert len(ratios) == 4
    assert np.abs(np.log(ratios[:-1])).max() < 0.5  # 5σ of the spread √(5/512) a layer
    wrong = mlp(4, 512, nn.ReLU, he)
    with torch.no_grad():
        wrong[4].weight *= 40
    assert {"large_variance"} <= {one.kind for one in loud(ww.audit(wrong, rows(32), draws=0))}


class Blocks(nn.Module):
    def __init__(self, width=1024, depth=8):
        super().__init__()
        self.enter, self.leave = nn.Linear(8, width), nn.Linear(width, 2)
        self.blocks = nn.ModuleList([nn.Sequential(nn.ReLU(), nn.Linear(width, width)) for _ in range(depth)])

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return self.leave(x)


def test_growth_by_block_stands_beside_theory():
    """A block of torch's default weights multiplies the square by 7/6 and adds C_b; 5 % are five deviations of √(5/n)/2."""
    torch.manual_seed(2)
    model, X = Blocks(), rows(16, 8)
    report = ww.audit(model, X, draws=0)
    own = np.array(report.expected)
    assert len(own) == 10
    growth = own[1:9, 1] / own[:8, 1]
    np.testing.assert_allclose(growth, own[1:9, 2] / own[:8, 2], rtol=0.05)
    np.testing.assert_allclose(own[1:9, 2] / own[:8, 2], 7 / 6, rtol=0.01)
    stream = [x := model.enter(X), *[x := x + block(x) for block in model.blocks]]
    np.testing.assert_allclose(own[:9, 1], [float(s.detach().square().mean()) for s in stream], rtol=1e-5)
    assert "theory by" in report.text
    with torch.no_grad():
        model.blocks[3][1].weight *= 3.0  # negative control: one block of nine times the variance
    wrong = np.array(ww.audit(model, X, draws=0).expected)
    assert wrong[4, 1] / wrong[3, 1] > 2.0
    images = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(1024, 3)
    )
    conv = np.array(ww.audit(images, torch.randn(4, 3, 6, 6), draws=0).expected)
    np.testing.assert_allclose(conv[:2, 1], conv[:2, 2], rtol=0.5)


class TwoArguments(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, mask):
        return self.layer(x) * mask


def broken(change):
    torch.manual_seed(0)
    model = mlp(3, 16)
    with torch.no_grad():
        change(model)
    return model


def test_bad_models_are_audited_as_far_as_possible():
    kinds = {one.kind: one for one in ww.audit(TwoArguments(), torch.randn(3, 4)).findings}
    assert "forward raises TypeError" in kinds["forward"].message
    assert not loud(ww.audit(TwoArguments(), (torch.randn(3, 4), torch.ones(3, 1))))
    assert not loud(ww.audit(TwoArguments(), {"x": torch.randn(3, 4), "mask": torch.ones(3, 1)}))
    nan = ww.audit(broken(lambda m: m[2].weight.fill_(float("nan"))), rows())
    assert (nan.findings[0].kind, nan.findings[0].tensor) == ("not_finite", "2.weight")
    assert "not measured" in nan.findings[1].message
    half = ww.audit(mlp().bfloat16(), rows())
    assert [one.kind for one in half.findings] == ["half_precision"]
    frozen = mlp()
    frozen[0].weight.requires_grad_(False)
    assert [(one.kind, one.tensor) for one in ww.audit(frozen, rows()).findings] == [("frozen", "0.weight")]
    assert "nothing_trained" in {one.kind for one in ww.audit(mlp().requires_grad_(False), rows()).findings}
    one_image = ww.audit(ResNet(), torch.randn(1, 3, 16, 16))
    assert "batch_of_one" in {one.kind for one in one_image.findings}
    assert ww.audit(mlp()).findings[0].message.startswith("no batch")
    with pytest.raises(ww.WidthwiseError, match="model: got int"):
        ww.audit(3, rows())


DEFECTS = {
    "nonzero_mean": lambda m: m[2].weight.uniform_(0, 0.5),
    "copied_units": lambda m: m[2].weight.copy_(m[2].weight[:1].expand_as(m[2].weight)),
    "dead_units": lambda m: m[0].bias.fill_(-100.0),
    "large_variance": lambda m: m[2].weight.normal_(std=20.0),
}


@pytest.mark.parametrize("kind", DEFECTS)
def test_other_defects_are_found(kind):
    assert kind in {one.kind for one in loud(ww.audit(broken(DEFECTS[kind]), rows(), draws=0))}


def test_gradients_that_vanish_and_units_that_saturate_are_measured():
    torch.manual_seed(0)
    assert "gradients_vanish" in {one.kind for one in loud(ww.audit(mlp(30, 64), rows()))}
    wild = mlp(3, 64, nn.Tanh, lambda w: nn.init.normal_(w, std=0.35))
    assert "saturated_units" not in {one.kind for one in loud(ww.audit(mlp(3, 64, nn.Tanh), rows(), draws=0))}
    with torch.no_grad():
        wild[0].weight *= 10
    assert "saturated_units" in {one.kind for one in loud(ww.audit(wild, rows(), draws=0))}


def test_an_optimiser_that_decays_biases_is_named():
    model = mlp()
    report = ww.audit(model, rows(), optimizer=torch.optim.AdamW(model.parameters(), weight_decay=0.1), draws=0)
    assert [one.kind for one in loud(report)] == ["decayed_vectors"]
    part = ww.audit(model, rows(), optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1), draws=0)
    assert {one.tensor for one in loud(part)} == {"2.weight", "2.bias", "4.weight", "4.bias"}


def test_flax_and_equinox_models_are_audited_by_their_tensors():
    model = eqx.nn.MLP(4, 2, width_size=16, depth=2, key=jax.random.key(0))
    report = ww.audit(model, np.ones((3, 4)))
    assert not loud(report)
    assert sum(one.share for one in report.tensors) == pytest.approx(1.0)
    copied = eqx.tree_at(
        lambda m: m.layers[1].weight, eqx.nn.MLP(16, 2, 16, 2, key=jax.random.key(0)), None, is_leaf=lambda x: x is None
    )
    copied = eqx.tree_at(lambda m: m.layers[1].weight, copied, copied.layers[0].weight, is_leaf=lambda x: x is None)
    assert [one.kind for one in loud(ww.audit(copied, np.ones((3, 16))))] == ["copied_layers"]
    flax = nnx.Sequential(nnx.Linear(4, 16, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(16, 2, rngs=nnx.Rngs(1)))
    assert not loud(ww.audit(flax, np.ones((3, 4))))


class FlaxTransformer(nnx.Module):
    """Attention whose kernels have axes of heads, positions that are added, and patches called embeddings."""

    def __init__(self, d=64, heads=16):
        r = nnx.Rngs(0)
        self.patch_embed = nnx.Conv(3, d, (4, 4), (4, 4), rngs=r)
        self.pos = nnx.Param(0.02 * jax.random.normal(jax.random.key(0), (4, d)))
        self.attn = nnx.MultiHeadAttention(num_heads=heads, in_features=d, decode=False, rngs=r)
        self.mix, self.head = nnx.Einsum("btd,dhk->bthk", (d, 2, d), rngs=r), nnx.Linear(d, 10, rngs=r)

    def __call__(self, x):
        x = self.patch_embed(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.pos
        return self.head(self.mix(x + self.attn(x)).mean((1, 2)))


def test_fans_of_flax_layers_with_several_axes_are_those_of_their_use():
    report = ww.audit(FlaxTransformer(), np.random.default_rng(0).normal(size=(3, 8, 8, 3)), draws=0)
    assert not loud(report)
    fans = {one.name: (one.use, one.fan_in, one.fan_out) for one in report.tensors}
    assert fans["attn.query.kernel"] == fans["attn.out.kernel"] == ("product", 64, 64)
    assert fans["mix.kernel"] == ("product", 64, 128)
    assert fans["patch_embed.kernel"] == ("product", 48, 64 * 16)
    assert fans["pos"] == ("embedding", 1, 64)
    C = {one.name: one.C for one in report.tensors}
    assert pytest.approx(1.0, rel=0.15) == C["attn.query.kernel"]


class Doubled(nnx.Module):
    """A layer that is called twice, a convolution, and a list of layers."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(2, 4, (3, 3), rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        x = nnx.tanh(self.conv(x)).mean((1, 2))
        return self.blocks[1](self.blocks[0](self.blocks[0](x)))


def test_signals_and_gradients_between_the_layers_of_jax_models_are_those_of_torch():
    weights = [np.random.default_rng(k).normal(size=s) / 4 for k, s in enumerate([(16, 4), (16, 16), (2, 16)])]
    X = np.random.default_rng(9).normal(size=(5, 4))
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    twin = eqx.nn.MLP(4, 2, 16, 2, activation=jax.nn.tanh, key=jax.random.key(0))
    r = nnx.Rngs(0)
    flax = nnx.Sequential(nnx.Linear(4, 16, rngs=r), nnx.tanh, nnx.Linear(16, 16, rngs=r), nnx.tanh, nnx.Linear(16, 2, rngs=r))  # fmt: skip
    for k, W in enumerate(weights):
        bias = np.zeros(len(W))
        model[2 * k].weight.data, model[2 * k].bias.data = torch.tensor(W), torch.tensor(bias)
        twin = eqx.tree_at(lambda m, k=k: (m.layers[k].weight, m.layers[k].bias), twin, (np.float32(W), np.float32(bias)))  # fmt: skip
        flax.layers[2 * k].kernel[...], flax.layers[2 * k].bias[...] = np.float32(W.T), np.float32(bias)
    expected = ww.audit(model, X, draws=0)
    for other in (twin, flax):
        call, found = type(other).__call__, ww.audit(other, X)
        assert type(other).__call__ is call
        assert [one.kind for one in found.layers] == ["Linear"] * 3
        np.testing.assert_allclose([s.signal for s in found.layers], [s.signal for s in expected.layers], rtol=1e-5)
        assert all(one.signal_se > 0 and one.gradient > 0 for one in found.layers)
        np.testing.assert_allclose([k for *_, k in found.expected], [k for *_, k in expected.expected], rtol=1e-4)
    layers = {one.name: one for one in ww.audit(Doubled(nnx.Rngs(0)), np.ones((3, 6, 6, 2)), draws=0).layers}
    assert list(layers) == ["conv", "blocks.0", "blocks.0'", "blocks.1"]
    # behind the last layer the gradient of a combination with signs is √outputs
    assert layers["blocks.1"].gradient == pytest.approx(2.0)


def test_the_report_is_the_same_in_three_forms():
    make, batch, kind, tensor = SEEDED["tied embedding"]
    report = ww.audit(make(), batch())
    data = json.loads(report.json)
    assert data["findings"][0]["kind"] == kind
    assert all(text in report.text and text in report.html for text in (tensor, "logits start"))
    assert str(report) == report.text


def test_the_model_is_left_alone_and_so_is_the_random_state():
    torch.manual_seed(0)
    model = ResNet()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.random.get_rng_state()
    ww.audit(model, torch.ones(4, 3, 16, 16))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_ten_million_parameters_are_audited_within_ten_seconds():
    """1.4 seconds of processor on a quiet core, of the twenty that two cores have in ten seconds."""
    model, batch = ResNet((64, 128, 256, 512), 2), torch.randn(16, 3, 32, 32)
    start = time.process_time()
    report = ww.audit(model, batch)
    assert report.parameters > 10_000_000
    assert time.process_time() - start < 20.0


@pytest.mark.full
@pytest.mark.parametrize("which", ["convolutional", "dense"])
def test_ten_million_parameters_are_advised_on_in_seconds(which):
    """Some 12 seconds of processor on one thread, most of them products with the kernel; twice that under load."""
    model, batch = ResNet((64, 128, 256, 512), 2), torch.randn(16, 3, 32, 32)
    if which == "dense":
        model, batch = mlp(5, 1800, inputs=784, outputs=10), rows(64, 784)
    start = time.process_time()
    report = ww.advise(model, batch)
    assert report.audit.parameters > 10_000_000
    assert report.step.error < 0.001
    assert report.proxy_width > 1
    assert time.process_time() - start < 40.0


def test_the_command_reads_a_function_of_a_module(tmp_path, monkeypatch, capsys):
    from widthwise.cli.main import main

    (tmp_path / "seen_models.py").write_text(
        "import torch, copy\nfrom torch import nn\n\ndef pair():\n    a = nn.Linear(4, 4)\n"
        "    return nn.Sequential(a, nn.ReLU(), copy.deepcopy(a)), torch.ones(3, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "seen_models:pair", "--strict"]) == 1
    assert "start equal" in capsys.readouterr().out
    assert main(["audit", "seen_models:pair", "--out", "audit.html"]) == 0
    assert "copied_layers" in (tmp_path / "audit.html").read_text()
    assert main(["audit", "seen_models:pair", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["severity"] == "error"
    assert main(["audit", "nowhere:pair"]) == 2
    assert "ModuleNotFoundError" in capsys.readouterr().err


MENDED = {
    **DEFECTS,
    "constant_weights": lambda m: m[2].weight.fill_(0.01),
    "not_finite": lambda m: m[2].weight[0].fill_(float("nan")),
    "saturated_units": lambda m: m[0].weight.mul_(100.0),
    "gradients_vanish": lambda m: [part.weight.mul_(0.01) for part in m if isinstance(part, nn.Linear)],
    "signals_explode": lambda m: [part.weight.mul_(50.0) for part in m if isinstance(part, nn.Linear)],
}


def mend(model, finding):
    """Run the line of a finding as a user would."""
    exec(compile(finding.remedy, finding.kind, "exec"), {"model": model, "nn": nn, "torch": torch})


@pytest.mark.parametrize("kind", MENDED)
def test_the_line_of_a_finding_mends_it(kind):
    torch.manual_seed(4)
    model = mlp(8, 32, nn.Tanh if kind in ("saturated_units", "gradients_vanish") else nn.ReLU)
    with torch.no_grad():
        MENDED[kind](model)
    X, found = rows(), ww.audit(model, rows(), draws=0)
    wrong = [one for one in loud(found) if one.kind == kind]
    assert wrong
    for one in wrong:
        mend(model, one)
    assert kind not in {one.kind for one in loud(ww.audit(model, X, draws=0))}


@pytest.mark.parametrize("name", [*SEEDED, "torch's encoder"])
def test_the_lines_of_seeded_defects_mend_them(name):
    torch.manual_seed(21)
    if name in SEEDED:
        make, batch, *_ = SEEDED[name]
        model, X = make(), batch()
    else:
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 3)
        X = torch.randn(4, 5, 32)
    found = loud(ww.audit(model, X, draws=0))
    assert found
    for one in found:
        mend(model, one)
    assert not loud(ww.audit(model, X, draws=0))


def test_the_lines_for_optimisers_and_jax_models_mend_them():
    model = mlp()
    decayed = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    part = torch.optim.SGD(model[0].parameters(), lr=0.1)
    for optimizer in (decayed, part):
        names = {"model": model, "torch": torch, "optimizer": optimizer}
        for one in loud(ww.audit(model, rows(), optimizer=optimizer, draws=0)):
            exec(one.remedy, names)
        assert not loud(ww.audit(model, rows(), optimizer=names["optimizer"], draws=0))
    r = nnx.Rngs(0)
    flax = nnx.Sequential(
        nnx.Linear(8, 8, rngs=r), nnx.relu, nnx.Linear(8, 8, rngs=r), nnx.relu, nnx.Linear(8, 8, rngs=r)
    )
    for k in (2, 4):
        flax.layers[k].kernel[...] = flax.layers[0].kernel[...]
    other = eqx.nn.MLP(8, 8, 8, 2, key=jax.random.key(0))
    other = eqx.tree_at(lambda m: [m.layers[1].weight, m.layers[2].weight], other, [other.layers[0].weight] * 2)
    for twin in (flax, other):
        names = {"model": twin, "jax": jax, "eqx": eqx}
        (found,) = loud(ww.audit(twin, np.eye(8)[:4], draws=0))
        exec(found.remedy, names)
        assert not loud(ww.audit(names["model"], np.eye(8)[:4], draws=0))
