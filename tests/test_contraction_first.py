"""`predict` by tiles: the same numbers as with full tensors, in less memory; and what it is made of."""

from functools import partial

import numpy as np
import pytest
from peak_memory import growth

import widthwise as ww
from widthwise.flow.tensors.quadruple_flow import ORDERS, QuadrupleFlow
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.gaussian.four_points import quadruples
from widthwise.inference.corrections import TRAINING_TENSORS, choose_method, full_bytes, tiled_bytes
from widthwise.inference.tiled import contracted_moments as contraction_first
from widthwise.inference.tiled import forms
from widthwise.inference.tiled import quadruple_tiles as tiles
from widthwise.inference.tiled.contracted_moments import evenly_spread, skeleton
from widthwise.inference.trained import einsum
from widthwise.inference.trained.clock import Clock
from widthwise.inference.trained.trained_moments import TermWeights
from widthwise.network.algorithms import NewtonStep

RNG = np.random.default_rng(5)
X_TRAIN, X_TEST, Y = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 3)), RNG.normal(size=(4, 2))
NET = ww.MLP([3, 40, 64, 2], "tanh", C_b=0.1, C_W=[1.5, 1.7, 1.4], lambda_b=0.2, lambda_W=[1.0, 0.8, 1.2])
VARIABLES = ("mean1", "cov1", "train_mean1", "train_cov1")


def worst(one, other, name) -> float:
    """Largest difference of a variable, relative to its largest entry; absolute where that vanishes."""
    size = float(np.abs(one[name]).max())
    return float(np.abs(one[name].values - other[name].values).max()) / (size or 1.0)


def shallow_predict(method: str):
    net = ww.MLP([3, 40, 2], "tanh", C_b=0.1, C_W=1.5, lambda_b=0.2)
    return ww.predict(net, X_TRAIN[:2], Y[:2], X_TEST[:1], ww.GradientDescent(0.2), order=1, method=method)


@pytest.fixture(scope="module")
def shallow():
    return shallow_predict("full")


class TestEquality:
    @pytest.mark.parametrize(
        "algorithm",
        [
            ww.GradientFlow(),
            ww.GradientFlow(1.3),
            ww.GradientFlow(0.0),
            ww.GradientDescent(0.2),
            ww.GradientDescent(0.2, 5),
            NewtonStep(),
        ],
        ids=repr,
    )
    def test_two_outputs_three_layers(self, algorithm):
        full, tiled = (
            ww.predict(NET, X_TRAIN, Y, X_TEST, algorithm, order=1, method=method) for method in ("full", "tiles")
        )
        assert full.attrs["method"] == "full"
        assert tiled.attrs["method"] == "tiles"
        for name in VARIABLES:
            assert worst(full, tiled, name) < 1e-12, name
        assert np.abs(full["cov1"]).max() > 1e-2

    @pytest.mark.parametrize("widths", [[3, 40, 1], [3, 30, 40, 50, 1], [3, 1]], ids=str)
    def test_one_output_other_depths(self, widths):
        depth = len(widths) - 1
        net = ww.MLP(widths, "gelu", C_b=0.1, C_W=1.5, lambda_b=0.2, lambda_W=np.linspace(0.7, 1.2, depth).tolist())
        full, tiled = (
            ww.predict(net, X_TRAIN[:3], Y[:3, 0], X_TEST[:1], order=1, method=method) for method in ("full", "tiles")
        )
        for name in VARIABLES:
            assert worst(full, tiled, name) < 1e-12, name

    def test_more_rates_than_are_looked_at(self, monkeypatch):
        """TermWeights are read off some of the rates; with few of them the same comparison is far off."""
        rng = np.random.default_rng(3)
        net = ww.MLP([6, 64, 1], "tanh", C_b=0.1, C_W=1.4, lambda_b=0.3)
        X, y, tests = rng.normal(size=(12, 6)), rng.normal(size=12), rng.normal(size=(1, 6))
        made = partial(ww.predict, net, X, y, tests, ww.GradientFlow(), order=1)
        full, off = made(method="full"), {}
        for looks in (4, 11):
            monkeypatch.setattr(
                "widthwise.inference.tiled.contracted_moments.evenly_spread", partial(evenly_spread, count=looks)
            )
            off[looks] = max(worst(full, made(method="tiles"), name) for name in ("mean1", "cov1"))
        assert off[11] < 1e-9
        assert off[4] > 1e-7

    @pytest.mark.full
    def test_repeated_inputs_in_any_order(self):
        """A test input that is a training input, twice; and a training input given twice, for a finite time."""
        X, y = np.vstack([X_TRAIN[:3], X_TRAIN[:1]]), np.vstack([Y[:3], Y[1:2]])
        tests = np.vstack([X_TEST[:1], X_TRAIN[1:2], X_TEST[:1]])
        full, tiled = (
            ww.predict(NET, X, y, tests, ww.GradientFlow(1.0), order=1, method=method) for method in ("full", "tiles")
        )
        # coinciding inputs: the two routes differ by about 1e-11 here, not by rounding alone
        for name in VARIABLES:
            assert worst(full, tiled, name) < 1e-10, name
        assert np.allclose(tiled["cov1"][:, 0], tiled["cov1"][:, 2], rtol=1e-9)

    def test_inputs_in_another_order_give_the_same_in_another_order(self):
        order, others = np.array([2, 0, 3, 1]), np.array([1, 2, 0])
        one = ww.predict(NET, X_TRAIN, Y, X_TEST, order=1, method="tiles")
        other = ww.predict(NET, X_TRAIN[order], Y[order], X_TEST[others], order=1, method="tiles")
        assert np.allclose(one["mean1"].values[:, others], other["mean1"], rtol=1e-9)
        assert np.allclose(one["cov1"].values[:, others][:, :, :, others], other["cov1"], rtol=1e-9)

    @pytest.mark.parametrize("depth", [2, pytest.param(3, marks=pytest.mark.full)])
    def test_compiled_steps_and_tiles_of_one_shape_give_the_same(self, depth, monkeypatch):
        """As on an accelerator; at depth 3 with faces."""
        net = NET if depth == 3 else ww.MLP([3, 40, 2], "tanh", C_b=0.1, C_W=1.5, lambda_b=0.2)
        monkeypatch.setattr("widthwise.flow.tensors.quadruple_flow.COMPILE_FROM", 2)
        for place in ("flow.tensors.quadruple_flow", "inference.tiled.quadruple_tiles"):
            monkeypatch.setattr(f"widthwise.{place}.CHUNKS", {"cpu": 16, "gpu": 32})
        monkeypatch.setattr(
            "widthwise.gaussian.four_points.accelerated.QUADRUPLE_PIECES", dict.fromkeys((0, 32, 64, 96, 128), 16)
        )
        monkeypatch.setattr("widthwise.devices.on_accelerator", lambda: True)
        contraction_first._add_compiled.clear_cache()
        full, tiled = (
            ww.predict(net, X_TRAIN, Y, X_TEST[:2], ww.GradientDescent(0.2), order=1, method=method)
            for method in ("full", "tiles")
        )
        for name in VARIABLES:
            assert worst(full, tiled, name) < 1e-12, name
        # once for each leg of each correlator, with a training input there or a test input: never again for another length
        legs = sum(4 + len(correlator.external) for correlator in forms.CORRELATORS.values())
        assert contraction_first._add_compiled._cache_size() == legs

    @pytest.mark.parametrize(
        ("correlator", "order"), [(name, order) for name, c in forms.CORRELATORS.items() for order in c.reads], ids=str
    )
    def test_without_any_one_tensor_it_is_missed(self, shallow, correlator, order, monkeypatch):
        """Negative control: one tensor of one correlator is left out."""
        reads, external = forms.CORRELATORS[correlator].reads, forms.CORRELATORS[correlator].external
        first, *rest = reads[order]
        without = [*first[:-1], first[-1]._replace(count=0.0)]
        wrong = {correlator: forms.Correlator(reads | {order: (without, *rest)}, external)}
        monkeypatch.setattr(tiles, "CORRELATORS", forms.CORRELATORS | wrong)
        other = shallow_predict("tiles")
        assert max(worst(shallow, other, name) for name in ("mean1", "cov1")) > 1e-4


class TestPieces:
    def test_quadruples_flow_by_themselves(self):
        """Every tensor of the output layer in every order, four layers deep, against the recursions on all inputs."""
        net = ww.MLP([3, 20, 30, 25, 2], "sin", C_b=0.1, C_W=[1.5, 1.4, 1.3, 1.2], lambda_b=0.2)
        X, names = (
            np.vstack([X_TRAIN[:3], X_TEST[:1]]),
            tuple(name for name in TRAINING_TENSORS if name not in ("G1", "H1")),
        )
        full, flow = finite_flow(net, X, last_only=True), QuadrupleFlow(net, X, TRAINING_TENSORS)
        quads = quadruples(4).sorted[::-1]
        found = flow.tensors(quads, names)
        for name in names:
            expected = np.stack([full.tensors[name][0][tuple(quads[:, order].T)] for order in ORDERS])
            assert np.allclose(found[name], expected, rtol=1e-12, atol=1e-14), name
        for name in ("G1", "H1"):
            assert np.allclose(getattr(flow, name), full.tensors[name][0], rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("clock", [Clock(0.0, None), Clock(0.0, 40.0), Clock(0.4, None), Clock(0.4, 30)], ids=repr)
    def test_few_rates_stand_for_all(self, clock):
        """TermWeights over 60 rates that span five orders of magnitude, from less than half of them."""
        rates = np.geomspace(4e-5, 4.0, 60)
        weights = TermWeights(clock, {"a": rates[::20], "p": rates[::12], "q": rates[::12], "r": rates}, 1, False).ddH()
        sample = np.concatenate([values.reshape(-1, len(rates)) for values in weights.values()])
        found = skeleton(sample)
        assert len(found.chosen) < 30
        size = np.abs(sample).max(axis=1, keepdims=True)
        assert np.all(np.abs(sample[:, found.chosen] @ found.combine - sample) < 1e-12 * size)

    @pytest.mark.parametrize(
        ("letters", "small", "result", "in_place"),
        [
            ("gxaqr", ("gjkqr", "kp", "ja", "qr"), "xap", True),
            ("gxaqr", ("gjkqr", "kp", "ja", "Aq", "Br"), "xABap", True),
            ("gxpqr", ("gjkpq", "kr", "ja", "Ap", "Bq"), "xABar", True),
            ("gxpqd", ("gjpq", "ja", "pq"), "xad", True),
            ("gxapr", ("gjkpr", "kq", "ja", "qr"), "xap", False),
            ("gxpqp", ("gjpq", "ja", "p"), "xaq", False),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_sums_of_a_large_array_where_it_lies(self, letters, small, result, in_place):
        rng = np.random.default_rng(0)
        size = {"g": 2, "x": 3, "j": 2, "k": 3, "A": 2, "B": 3} | dict.fromkeys("apqrd", 5)
        large, *operands = (rng.normal(size=[size[at] for at in some]) for some in (letters, *small))
        found = einsum.against(large, letters, list(zip(operands, small, strict=True)), result)
        expected = np.einsum(",".join((letters, *small)) + "->" + result, large, *operands, optimize=True)
        assert np.allclose(found, expected, rtol=1e-12, atol=1e-12)
        assert (einsum._in_place(letters, small, result) is not None) == in_place

    def test_each_quadruple_is_in_one_tile(self):
        training, tests = 3, 2
        seen = [
            (*triple, last) for last in range(training + tests) for triple in tiles.triples(last, training).tolist()
        ]
        assert len(set(seen)) == len(seen) == tiles.count_quadruples(training, tests, 2)
        few = [quad for quad in quadruples(5).sorted.tolist() if sum(i >= training for i in quad) <= 2]
        assert sorted(map(tuple, few)) == sorted(seen)
        for last in range(training + tests):
            some = tiles.triples(last, training)
            assert np.array_equal(tiles.rank(some.T, training), np.arange(len(some)))


class TestMemory:
    def test_the_choice_goes_by_memory(self, monkeypatch):
        """Full tensors are quicker, and smaller up to some tens of inputs; tiles are for more."""
        monkeypatch.setattr("widthwise.memory.available_bytes", lambda: 24 << 30)
        deep = ww.MLP([3, 20, 20, 20, 1], "tanh")
        for net, most in ((NET, 67), (deep, 82)):
            assert choose_method(net, most, "auto") == "full"
            assert choose_method(net, most + 1, "auto") == "tiles"
            assert choose_method(net, most + 1, "full") == "full"
        monkeypatch.setattr("widthwise.devices.on_accelerator", lambda: True)
        assert [choose_method(NET, inputs, "auto") for inputs in (31, 32)] == ["full", "tiles"]
        assert tiled_bytes(NET, 100) < full_bytes(100, TRAINING_TENSORS) / 2
        assert tiled_bytes(NET, 200) < full_bytes(200, TRAINING_TENSORS) / 7

    @pytest.mark.full
    def test_tiles_take_less_memory_than_full_tensors(self):
        """Measured; beyond, `benchmarks/results/predict.txt` has 5.0 GB at 64 and 6.7 GB at 100, full tensors 6 and 34."""
        X = np.random.default_rng(1).normal(size=(66, 10))
        net = ww.MLP([10, 64, 1], "tanh", C_b=0.1, C_W=1.4, lambda_b=0.3)
        for n in (44, 66):
            full, tiled = (
                growth(lambda n=n, way=method: ww.predict(net, X[2:n], X[2:n, 0], X[:2], order=1, method=way))
                for method in ("full", "tiles")
            )
            assert tiled < 0.9 * full

    def test_what_does_not_fit_is_refused(self):
        many = RNG.normal(size=(3000, 3))
        for method in ("auto", "full", "tiles"):
            with pytest.raises(
                ww.errors.TooLarge, match=r"order=1 on 3004 training and test inputs.*Take up to \d+ inputs"
            ):
                ww.predict(NET, X_TRAIN, Y, many, order=1, method=method)


class TestBadInput:
    def test_methods_and_losses(self):
        with pytest.raises(ww.errors.UnknownName, match="method: got 'tile'.*Did you mean 'tiles'"):
            ww.predict(NET, X_TRAIN, Y, X_TEST, order=1, method="tile")
        with pytest.raises(ww.errors.InvalidInput, match="loss: got 'hinge'; expected one of .*squared"):
            ww.predict(NET, X_TRAIN, Y, X_TEST, loss="hinge")

    def test_kinked_activations_are_refused_by_both(self):
        net = ww.MLP([3, 64, 2], "relu", C_W=2.0)
        for method in ("full", "tiles"):
            with pytest.raises(ww.errors.NotDifferentiable, match="gelu or swish for relu"):
                ww.predict(net, X_TRAIN, Y, X_TEST, order=1, method=method)
