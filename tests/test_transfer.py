"""Rules of transfer: published factors, equal steps in both forms, real optimisers, and the check that tells them apart."""

import itertools
import math
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from sound_models import Decoder
from torch import nn

import widthwise as ww
from widthwise.errors import WeightsWarning
from widthwise.readers.transfer.scaling_rules import ScalingRule

torch.set_num_threads(1)


def mlp(n):
    return nn.Sequential(nn.Linear(8, n), nn.Tanh(), nn.Linear(n, n), nn.Tanh(), nn.Linear(n, 1))


class Residual(nn.Module):
    """A stream to which blocks add tanh, times a base factor and the rule's multiplier."""

    def __init__(self, n, depth, base=1 / 8):
        super().__init__()
        self.enter, self.leave, self.base = nn.Linear(8, n), nn.Linear(n, 1), base
        self.blocks = nn.ModuleList([nn.Linear(n, n) for _ in range(depth)])
        self.branch_multiplier = 1.0

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + self.branch_multiplier * self.base * torch.tanh(block(x))
        return self.leave(x)


torch.manual_seed(0)
X, Y = torch.randn(16, 8), torch.randn(16, 1)


def factors(rule, optimiser, **more):
    p = ww.parametrisation(mlp(256), mlp(64), rule, optimiser, learning_rate=1.0, weight_decay=1.0, epsilon=1.0, **more)
    return p, {group["name"]: group for group in p.param_groups}


#: Published rates at four times the width, of input, hidden and output weights and hidden biases.
PUBLISHED = {
    ("standard", "adam"): (1, 1, 1, 1),
    ("mup", "adam"): (1, 1 / 4, 1, 1),
    ("mup", "adamw"): (1, 1 / 4, 1, 1),
    ("mup", "sgd"): (4, 1, 4, 4),
    ("mup", "momentum"): (4, 1, 4, 4),
    ("mup", "muon"): (1, 1, 1, 1),
    ("ntk", "sgd"): (1, 1 / 4, 1, 1),
}


@pytest.mark.parametrize(("rule", "optimiser"), PUBLISHED)
def test_rates_are_the_published_ones(rule, optimiser):
    _, groups = factors(rule, optimiser)
    found = [groups[name]["lr"] for name in ("0.weight", "2.weight", "4.weight", "2.bias")]
    np.testing.assert_allclose(found, PUBLISHED[rule, optimiser])


def test_multipliers_decay_and_epsilon_are_the_published_ones():
    p, groups = factors("mup", "adamw")
    assert p.multipliers == {"output": 0.25, "branch": 1.0, "attention": 0.5}
    assert groups["2.weight"]["weight_decay"] == 4.0  # rate × decay stays
    assert groups["2.bias"]["weight_decay"] == 0.0
    assert groups["2.weight"]["eps"] == 0.25
    base = {name: float(v.detach().var(unbiased=False)) for name, v in mlp(64).named_parameters()}
    torch.manual_seed(3)
    small = mlp(64)
    p = ww.parametrisation(mlp(256), small, "mup", "adam")
    assert p.variances["2.weight"] == pytest.approx(float(small[2].weight.detach().var(unbiased=False)) / 4, rel=1e-5)
    assert p.variances["4.weight"] == pytest.approx(float(small[4].weight.detach().var(unbiased=False)), rel=1e-5)
    assert set(p.variances) == set(base)


def test_depth_rules_scale_branches_and_rates_inside_blocks():
    big, small = Residual(64, 32), Residual(64, 8)
    for rule, branch, adam, sgd in (
        ("depth-mup", 0.5, 0.5, 1.0),
        ("CompleteP", 0.25, 1.0, 4.0),
        ("mup", 1.0, 1.0, 1.0),
    ):
        p = ww.parametrisation(big, small, rule, "adam", learning_rate=1.0)
        assert p.multipliers["branch"] == branch
        assert p.learning_rates["blocks.5.weight"] == adam
        assert p.learning_rates["enter.weight"] == 1.0
        assert ww.parametrisation(big, small, rule, "sgd", learning_rate=1.0).learning_rates["blocks.5.weight"] == sgd
    assert "depth-μP" in " ".join(ww.parametrisation(big, small, "completep").notes)


def stepped(optimiser, form, multiplied):
    """Outputs after three steps of a model whose logits are multiplied, or whose output weights are."""
    model, base = mlp(64).double(), mlp(16).double()
    p = ww.parametrisation(
        model, base, "mup", optimiser, learning_rate=0.02, output=form, epsilon=1e-3, weight_decay=0.1
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for part in model:
            if isinstance(part, nn.Linear):
                part.weight.normal_(std=0.3)
                part.bias.normal_(std=0.1)
        # the output bias is not multiplied: fold the constant into it as well
        model[4].bias.zero_()
        model[4].bias.requires_grad_(False)
        if not multiplied:
            model[4].weight *= 0.25
    factor = p.multipliers["output"] if multiplied else 1.0
    optimisers = p.torch_optimisers()
    for _ in range(3):
        for one in optimisers:
            one.zero_grad()
        ((factor * model(X.double()) - Y) ** 2).mean().backward()
        for one in optimisers:
            one.step()
    return (factor * model(X.double())).detach()


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam", "adamw"])
def test_both_forms_of_the_output_take_the_same_steps(optimiser):
    one, other = stepped(optimiser, "multiplier", True), stepped(optimiser, "variance", False)
    if optimiser == "adam":  # its decay enters the gradient, which is no symmetry of the product
        assert float((one - other).abs().max()) < 0.05
    else:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_the_family_runs_from_the_ntk_to_mup_and_names_its_coupling():
    ends = {0.0: "ntk", 1.0: "mup"}
    for s, rule in ends.items():
        for optimiser in ("sgd", "adam"):
            one, other = factors("family", optimiser, s=s)[0], factors(rule, optimiser)[0]
            assert one.learning_rates == other.learning_rates
            assert one.multipliers["output"] == other.multipliers["output"]
    gammas = [factors("family", "sgd", s=s)[0].gamma for s in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(gammas, [3 / 256, 3 / 16, 3.0])
    regimes = [factors("family", "sgd", s=s)[0].regime for s in (0.0, 0.5)]
    assert regimes == ["lazy", "learning"]


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam", "adamw", "muon"])
def test_the_check_passes_mup_and_fails_the_standard_rule_with_width(optimiser):
    rate = {"adam": 0.003, "adamw": 0.003, "muon": 0.02}.get(optimiser, 0.05)
    settings = {"widths": [64, 128, 256, 512], "optimiser": optimiser, "learning_rate": rate, "seeds": 2}
    assert ww.coordinate_check(mlp, X, Y, rule="mup", **settings).passed
    wrong = ww.coordinate_check(mlp, X, Y, rule="standard", **settings)
    assert not wrong.passed
    assert any(one.module == "output" and not one.passed for one in wrong.slopes)


def test_the_verdict_is_by_module_with_slopes_their_errors_and_a_figure():
    check = ww.coordinate_check(mlp, X, Y, [32, 64, 128], rule="mup", learning_rate=0.003, steps=(1,), seeds=2)
    assert {one.module for one in check.slopes} == {"0", "2", "4", "output"}
    assert all(one.error > 0.0 for one in check.slopes)
    assert all(word in str(check) for word in ("slope", "s.e.", "verdict", "pass"))
    figure = check.figure()
    assert [panel.get_title() for panel in figure.axes] == ["initial size", "change after 1"]
    assert [len(panel.lines) for panel in figure.axes] == [4, 4]


def test_the_check_tells_depth_rules_apart():
    settings = {"widths": [64, 128], "depths": [8, 16, 32, 64], "learning_rate": 0.003, "seeds": 3}

    def failing(rule):
        check = ww.coordinate_check(Residual, X, Y, rule=rule, **settings)
        return {one.module for one in check.slopes if not one.passed and one.axis == "depth"}

    assert "leave" in failing("mup")
    assert not failing("completep")
    assert "blocks.first" in failing("depth-mup")  # features inside blocks learn more slowly with depth


def failing_with_depth(rule, optimiser, rate, base=1 / 8):
    check = ww.coordinate_check(
        partial(Residual, base=base),
        X,
        Y,
        [64, 128],
        [8, 16, 32, 64],
        rule=rule,
        optimiser=optimiser,
        learning_rate=rate,
    )
    return {(one.module, one.quantity) for one in check.slopes if not one.passed and one.axis == "depth"}


def test_depth_rules_pass_with_sgd_and_a_wrong_power_of_depth_fails(monkeypatch):
    """Rates in blocks ×M^(2a−1): with branches ×M^(−a) each of M blocks then moves the stream by 1/M."""
    assert not failing_with_depth("completep", "sgd", 0.02)
    assert not failing_with_depth("depth-mup", "sgd", 0.02)
    assert failing_with_depth("mup", "sgd", 0.02)
    right = ScalingRule.scaling

    def wrong(self, role, optimiser, m, M, in_block):
        found = right(self, role, optimiser, m, M, in_block)
        return replace(found, rate=found.rate * M) if in_block else found

    monkeypatch.setattr(ScalingRule, "scaling", wrong)
    assert failing_with_depth("completep", "sgd", 0.02)


def test_completep_passes_if_the_blocks_of_the_base_add_little_to_the_stream():
    """At M times the depth they add c/M to its square: a base with c of order one has not reached the rule's limit."""
    assert not failing_with_depth("completep", "adam", 0.003, base=0.35)
    assert ("blocks.last", "initial size") in failing_with_depth("completep", "adam", 0.003, base=1.0)
    check = ww.coordinate_check(
        partial(Residual, base=1.0), X, Y, [64, 128], [8, 16, 32, 64], rule="completep", learning_rate=0.003, steps=(1,)
    )
    squares = (check.sizes["initial size"]["blocks.last"] ** 2).mean(1)
    at_depth = {depth: s for (width, depth), s in zip(check.grid, squares, strict=True) if width == 64}
    c = 2 * (at_depth[8] - at_depth[16])
    expected = [at_depth[8] - c * (1 - 8 / depth) for depth in (32, 64)]
    np.testing.assert_allclose([at_depth[32], at_depth[64]], expected, rtol=0.35)  # three seeds of 15% each
    assert at_depth[64] < 0.5 * at_depth[8]


def test_groups_step_a_real_optimiser_and_the_check_passes_after_an_epoch():
    torch.manual_seed(0)
    model, base = mlp(128), mlp(32)
    p = ww.parametrisation(model, base, "mup", "adamw", learning_rate=0.01, weight_decay=0.01, output="variance")
    p.initialise(model)
    optimiser = torch.optim.AdamW(p.param_groups)
    losses = []
    for start in range(0, 16, 4):
        loss = ((model(X[start : start + 4]) - Y[start : start + 4]) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(((model(X) - Y) ** 2).mean().detach()))
    assert losses[-1] < losses[0]
    assert not [one for one in ww.audit(model, X, optimizer=optimiser, draws=0).findings if one.severity != "note"]
    assert ww.coordinate_check(
        mlp, X, Y, [32, 64, 128], rule="mup", optimiser="adamw", learning_rate=0.01, steps=(4,)
    ).passed


def uneven(n):
    """Layers of widths 8, n, 2n, 3 in three packages."""
    d, r, k = (8, n, 2 * n, 3), nnx.Rngs(0), jax.random.key(0)
    pairs = list(itertools.pairwise(d))
    return (
        nn.Sequential(*[nn.Linear(a, b) for a, b in pairs]).double(),
        nnx.Sequential(*[nnx.Linear(a, b, rngs=r) for a, b in pairs]),
        eqx.nn.Sequential([eqx.nn.Linear(a, b, key=k) for a, b in pairs]),
    )


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam", "adamw", "muon"])
def test_optax_takes_the_steps_of_torch(optimiser):
    """Three steps, with gradients at random; torch's Muon orthogonalises in half precision."""
    rng, close = np.random.default_rng(0), {"rtol": 0, "atol": 0.02 if optimiser == "muon" else 1e-12}
    big, small = uneven(16), uneven(4)
    given = {"learning_rate": 0.1, "weight_decay": 0.3, "epsilon": 0.5}
    found = [ww.parametrisation(m, b, "mup", optimiser, **given) for m, b in zip(big, small, strict=True)]
    start = [(rng.normal(size=part.weight.shape), rng.normal(size=part.bias.shape)) for part in big[0]]
    gradients = [[(rng.normal(size=W.shape), rng.normal(size=b.shape)) for W, b in start] for _ in range(3)]

    def flax(values):
        pairs = dict(enumerate(values))
        return {"layers": {k: {"kernel": jnp.asarray(W.T), "bias": jnp.asarray(b)} for k, (W, b) in pairs.items()}}

    def equinox(values):
        places = [x for layer in big[2].layers for x in (layer.weight, layer.bias)]
        assert len(places) == 2 * len(values)
        each = [jnp.asarray(x) for pair in values for x in pair]
        return eqx.tree_at(lambda m: [x for part in m.layers for x in (part.weight, part.bias)], big[2], each)

    with torch.no_grad():
        for part, (W, b) in zip(big[0], start, strict=True):
            part.weight.copy_(torch.tensor(W))
            part.bias.copy_(torch.tensor(b))
    optimisers = found[0].torch_optimisers()
    for step in gradients:
        for part, (W, b) in zip(big[0], step, strict=True):
            part.weight.grad, part.bias.grad = torch.tensor(W), torch.tensor(b)
        for one in optimisers:
            one.step()
    end = [(part.weight.detach().numpy(), part.bias.detach().numpy()) for part in big[0]]
    for p, tree in zip(found[1:], (flax, equinox), strict=True):
        at, rule = eqx.filter(tree(start), eqx.is_inexact_array), p.optax()
        state = rule.init(at)
        for step in gradients:
            updates, state = rule.update(eqx.filter(tree(step), eqx.is_inexact_array), state, at)
            at = optax.apply_updates(at, updates)
        expected = jax.tree.leaves(eqx.filter(tree(end), eqx.is_inexact_array))
        for one, other in zip(jax.tree.leaves(at), expected, strict=True):
            np.testing.assert_allclose(one, other, **close)
        moved = max(float(jnp.abs(a - b).max()) for a, b in zip(jax.tree.leaves(at), jax.tree.leaves(tree(start)), strict=True))  # fmt: skip
        assert moved > 0.1


def test_networks_are_scaled_by_a_base_width():
    p = ww.parametrisation(ww.MLP([4, 512, 512, 1], "relu", C_W=2.0), base=128, rule="mup", optimiser="sgd")
    assert p.variances["layer 2 weight"] == pytest.approx(2.0 / 128 / 4)
    assert p.multipliers["output"] == pytest.approx(1 / 4)
    assert "mup for sgd: width ×4" in str(p)


class LanguageModel(Decoder):
    """Tied embeddings, packed query, key and value, heads of sixteen; constants of a rule as attributes.

    Embeddings are large against what steps and blocks add to them, which a normalisation would show enlarged.
    """

    def __init__(self, d, depth=2):
        super().__init__(d, depth, std=None, vocabulary=12)
        self.output_multiplier = 1.0
        for block in self.blocks:
            block.attend.heads = d // 16
        for name, value in self.named_parameters():
            if value.dim() == 2:
                table = name in ("embed.weight", "place")
                nn.init.normal_(value, std=0.3 if table else 0.25 / math.sqrt(value.shape[1]))

    @property
    def branch_multiplier(self):
        return self.blocks[0].branch_multiplier

    @branch_multiplier.setter
    def branch_multiplier(self, value):
        for block in self.blocks:
            block.branch_multiplier = value

    def forward(self, tokens):
        return self.output_multiplier * super().forward(tokens)


TOKENS, NEXT = np.random.default_rng(3).integers(0, 12, size=(2, 4, 8))
RATES = {"adam": 1e-3, "adamw": 1e-3, "muon": 0.01, "sgd": 0.1}


@pytest.mark.parametrize("optimiser", RATES)
def test_the_check_passes_mup_and_fails_the_standard_rule_on_a_language_model(optimiser):
    settings = {"optimiser": optimiser, "learning_rate": RATES[optimiser], "steps": (1, 5)}
    assert ww.coordinate_check(LanguageModel, TOKENS, NEXT, [64, 128, 256], rule="mup", **settings).passed
    assert not ww.coordinate_check(LanguageModel, TOKENS, NEXT, [64, 128, 256], rule="standard", **settings).passed


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
def test_the_check_tells_depth_rules_apart_on_a_language_model(optimiser):
    """The last block stands behind 1 − 1/L of the stream's change, so that slopes are not zero at finite depth."""

    def steepest(rule):
        check = ww.coordinate_check(
            LanguageModel, TOKENS, NEXT, [64, 128], [8, 16, 32],
            rule=rule, optimiser=optimiser, learning_rate=RATES[optimiser], steps=(1, 2), seeds=2,
        )  # fmt: skip
        return max(abs(one.slope) for one in check.slopes if one.axis == "depth")

    assert steepest("completep") < 0.5 * min(steepest("mup"), steepest("depth-mup"))


def test_tied_embeddings_have_the_rate_of_inputs_and_their_multiplier_in_the_forward_pass():
    model, base = LanguageModel(128), LanguageModel(64)
    p = ww.parametrisation(model, base, "mup", "adam", learning_rate=1.0, roles={"place": "input"})
    roles = {one.name: one.role for one in p.tensors}
    assert (roles["embed.weight"], p.learning_rates["embed.weight"]) == ("input", 1.0)
    assert (roles["place"], roles["blocks.0.attend.qkv.weight"]) == ("input", "hidden")
    assert p.multipliers["output"] == 0.5
    assert p.multiplied == "the logits"
    alone = {one.name: one.role for one in ww.parametrisation(model, roles={"place": "input"}).tensors}
    assert alone == roles  # guessed, where nothing grows

    class Frozen(nn.Module):  # without a place for the multiplier
        def __init__(self, d):
            super().__init__()
            self.inner = LanguageModel(d)

        def forward(self, x):
            return self.inner(x)

    with pytest.raises(ww.WidthwiseError, match="'variance' for a model without output weights of its own"):
        ww.coordinate_check(Frozen, TOKENS, NEXT, [64, 128])


def test_only_matrices_are_muons_and_other_hidden_tensors_have_the_rate_of_adam():
    def conv(n):
        return nn.Sequential(nn.Conv2d(3, n, 3), nn.ReLU(), nn.Conv2d(n, n, 3), nn.Flatten(), nn.Linear(4 * n, 10))

    p = ww.parametrisation(conv(64), conv(16), "mup", "muon", learning_rate=1.0)
    (hidden,) = (one for one in p.tensors if one.role == "hidden")
    assert (hidden.name, hidden.by, hidden.learning_rate) == ("2.weight", "adamw", 0.25)


def test_roles_may_be_given_and_notes_say_where_rules_differ():
    given = {"0.weight": "hidden", "2.weight": "output"}
    p = ww.parametrisation(mlp(64), mlp(16), "mup", "adam", learning_rate=1.0, weight_decay=0.1, roles=given)
    assert {one.name: one.role for one in p.tensors if one.name in given} == given
    assert any("AdamW's decay transfers" in note for note in p.notes)
    assert p.multiplied == "2.weight, 4.weight"
    deep = ww.parametrisation(Residual(64, 32), Residual(64, 8), "standard")
    assert any("GPT-2" in note for note in deep.notes)
    assert max(map(len, str(deep).splitlines())) <= 80


REFUSED = [
    (lambda: ww.parametrisation(mlp(64), mlp(16), roles={"0.weight": "first"}), "got 'first'; expected one of input"),
    (lambda: ww.parametrisation(mlp(64), mlp(16), roles={"weight": "input"}), "roles: got a role of 'weight'"),
    (lambda: ww.parametrisation(mlp(64), mlp(16), roles=["input"]), "roles: got list"),
    (lambda: ww.parametrisation(mlp(64), mlp(16), rule="mu"), "rule: got 'mu'"),
    (lambda: ww.parametrisation(mlp(64), mlp(16), optimiser="lion"), "optimiser: got 'lion'"),
    (lambda: ww.parametrisation(mlp(64), 16), "base: got 16"),
    (lambda: ww.parametrisation(mlp(64), nn.Linear(3, 1)), "without a tensor like 0.weight"),
    (lambda: ww.parametrisation(mlp(64), mlp(16), rule="family"), "s: got None"),
    (lambda: ww.parametrisation(mlp(64), mlp(16), rule="mup", s=0.5), "s: got 0.5"),
    (lambda: ww.parametrisation(3, 4), "model_or_net: got int"),
    (lambda: ww.parametrisation(mlp(64), mlp(16), output="none"), "output: got 'none'"),
    (lambda: ww.coordinate_check(mlp, X, Y, [64]), "at least two different sizes"),
    (lambda: ww.coordinate_check(lambda n: n, X, Y, [64, 128]), "make: got"),
    (lambda: ww.coordinate_check(lambda n, d: mlp(n), X, Y, [64, 128], [2, 4], rule="completep"), None),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_input_is_named(call, message):
    if message is None:  # a model without blocks has no depth: the rule is that of its width
        call()
        return
    with pytest.raises(ww.WidthwiseError, match=message):
        call()


def test_weights_that_are_no_numbers_are_named_where_a_variance_is_taken_from_them():
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    nn.init.constant_(model[0].weight, float("nan"))
    with pytest.warns(WeightsWarning, match=r"^0.weight: entries that are NaN or infinite.* Take a base"):
        assert np.isnan(ww.parametrisation(model).variances["0.weight"])
