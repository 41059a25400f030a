"""Trained ensembles: the labelled result, checkpoints, bad input."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from trained_networks import DATA, TEST, Y_ONE, Y_TWO, X, start_of

import widthwise as ww
from widthwise.errors import NonFiniteWarning
from widthwise.experiments.tangent import outputs
from widthwise.experiments.training.descent import descend
from widthwise.experiments.training.train import train
from widthwise.network.algorithms import SGD, Adam, GradientDescent, GradientFlow, Momentum


class TestDataset:
    net, data = ww.MLP([3, 8, 2], "tanh", C_b=0.1, C_W=1.5), (DATA, Y_TWO, X[1:])

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls):
        return train(cls.net, *cls.data, 100, batch=20)

    def test_dimensions_and_attributes(self, trained):
        assert trained["mean"].dims == ("output", "test")
        assert trained["cov"].dims == trained["kernel"].dims == ("output", "test", "output_", "test_")
        assert {name + "_se" for name in ("mean", "cov", "kernel", "change")} <= set(trained)
        expected = {"networks": 100, "unconverged": 0, "nonfinite": 0, "seed": 0, "n": 8, "interrupted": 0}
        assert expected.items() <= trained.attrs.items()
        assert trained.attrs["algorithm"] == "GradientFlow(time=None)"
        assert trained.attrs["variance_reduction_mean"] > 2
        assert ww.network_of(trained) == self.net

    def test_a_training_input_is_fitted_by_every_network(self, trained):
        """The first test input is the second training input."""
        assert np.allclose(trained["mean"][:, 0], Y_TWO[1], atol=1e-5)
        assert np.abs(trained["cov"][:, 0]).max() < 1e-4
        assert np.diag(trained["cov"][:, 1, :, 1]).min() > 1e-2

    def test_batches_do_not_matter_beyond_rounding(self, trained):
        other = train(self.net, *self.data, 100, batch=7)
        for name in trained:
            assert np.allclose(other[name], trained[name], rtol=1e-7, atol=1e-9)
        # negative control: another seed is another ensemble
        assert not np.allclose(train(self.net, *self.data, 100, seed=1, batch=20)["mean"], trained["mean"], atol=1e-4)

    def test_a_run_cut_short_goes_on_to_the_same_numbers(self, trained, tmp_path):
        path = tmp_path / "run.npz"
        first = train(self.net, *self.data, 40, batch=20, checkpoint=path)
        assert first.attrs["networks"] == 40
        resumed = train(self.net, *self.data, 100, batch=20, checkpoint=path)
        for name in trained:
            assert np.array_equal(resumed[name], trained[name])
        with pytest.raises(ValueError, match="checkpoint: got .* written by a run with other targets; expected one of"):
            train(self.net, DATA, 2 * Y_TWO, X[1:], 100, batch=20, checkpoint=path)
        with pytest.raises(ValueError, match="checkpoint: got .* which holds 100 networks already"):
            train(self.net, *self.data, 60, batch=20, checkpoint=path)

    @pytest.mark.full
    def test_other_processes_give_the_same_bits(self, trained):
        other = train(self.net, *self.data, 100, batch=20, engine=2)
        for name in trained:
            assert np.array_equal(other[name], trained[name])

    def test_no_training_leaves_the_prior(self):
        t = train(self.net, *self.data, 400, GradientFlow(0.0), batch=20)
        assert np.allclose(t["change"], 0.0, atol=1e-12)
        assert np.allclose(t["mean"], 0.0, atol=1e-12)
        K = ww.measure(self.net, X[1:], networks=400)
        pulls = (t["cov"][0, :, 0].values - K["K"][0].values) / np.hypot(t["cov_se"][0, :, 0], K["K_se"][0])
        assert np.abs(pulls).max() < 4


class TestThingsThatGoWrong:
    net = ww.MLP([3, 8, 1], "linear")

    def test_networks_that_do_not_converge_are_counted_and_kept(self):
        with pytest.warns(
            ww.errors.AccuracyWarning, match=r"train: 20 of 20 networks \(indices \[0, 1, 2,.* in 3 steps"
        ):
            t = train(self.net, DATA, Y_ONE, TEST, 20, max_steps=3, batch=20)
        assert t.attrs["unconverged"] == t.attrs["networks"] == 20
        assert len(t.attrs["unconverged_networks"]) == 16
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert train(self.net, DATA, Y_ONE, TEST, 20, batch=20).attrs["unconverged"] == 0

    def test_control_variates_that_add_noise_are_not_used(self, monkeypatch):
        """Narrow chaotic networks whose linearisations diverge at a step below the bound of infinite width."""
        rng = np.random.default_rng(0)
        given, tests = rng.normal(size=(4, 3)), rng.normal(size=(3, 3))
        y = np.tanh(given @ [1.0, -1.0, 0.5]) + 0.3 * given[:, 1]
        net = ww.MLP([3, 16, 1], "tanh", C_W=2.0, lambda_b=0.5, lambda_W=0.5)
        assert ww.max_learning_rate(net, given) > 0.3
        found = train(net, given, y, tests, 300, GradientDescent(0.3, 16), progress=False)
        assert found.attrs["variance_reduction_cov"] == 1.0
        assert np.einsum("ixix->ix", found["cov"]).min() > 0.0
        assert found["cov_se"].max() < 0.2
        monkeypatch.setattr("widthwise.experiments.training.train.NOISY", 0.0)
        noisy = train(net, given, y, tests, 300, GradientDescent(0.3, 16), progress=False)
        assert noisy["cov_se"].max() > 1.0

    def test_networks_that_diverge_are_counted_and_named(self):
        how = GradientDescent(1.25 * ww.max_learning_rate(self.net, DATA))
        with pytest.warns(
            NonFiniteWarning, match=r"networks \(indices \[\d+.* of seed 0 end with numbers that are not"
        ):
            t = train(self.net, DATA, Y_ONE, TEST, 40, how, batch=20)
        assert 0 < t.attrs["nonfinite"] < 38
        assert t.attrs["networks"] + t.attrs["nonfinite"] == 40
        # the first one named diverges alone, too
        y = jnp.asarray(Y_ONE.T)
        alone = descend(
            self.net,
            start_of(self.net, t.attrs["nonfinite_networks"][0]),
            jnp.asarray(DATA),
            y,
            how,
            None,
            1e-6,
            100_000,
        )
        assert not np.all(np.isfinite(outputs(self.net, alone.layers, jnp.asarray(DATA))))
        with pytest.raises(
            ValueError, match="learning_rate: got 100, with which 40 networks .*not finite .*less than 2/λ_max = "
        ):
            train(self.net, DATA, Y_ONE, TEST, 40, GradientDescent(100.0), batch=20)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            # with one left out, two have no covariance: its error came out NaN
            ({"networks": 2}, "networks: got 2; expected an integer of at least 3"),
            ({"networks": 2.5}, "networks: got 2.5"),
            ({"seed": -1}, "seed: got -1; expected an integer of at least 0"),
            ({"seed": "a"}, "seed: got 'a'"),
            ({"tolerance": 0.0}, "tolerance: got 0.0; expected a finite positive number"),
            ({"tolerance": "small"}, "tolerance: got 'small'"),
            ({"max_steps": 0}, "max_steps: got 0"),
            (
                {"max_steps": 10**15},
                "max_steps: got 10{15}, .* expected an integer of at most 10{9}[.] steps=None ends",
            ),
            ({"algorithm": GradientDescent(0.1, steps=10**15)}, "steps: got 10{15}, .* expected an integer of at most"),
            ({"batch": True}, "batch: got True"),
            ({"algorithm": "adam"}, r"algorithm: got 'adam'; expected GradientFlow\(\)"),
            ({"algorithm": SGD(0.1, 5)}, "algorithm: got batch_size=5; expected at most 2, the number of training"),
            ({"engine": "somewhere"}, "engine: got 'somewhere'"),
            ({"checkpoint": "/nowhere/at/all.npz"}, "checkpoint: got '/nowhere/at/all.npz'; expected the path"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_bad_arguments(self, changed, message):
        with pytest.raises(ValueError, match=message):
            train(self.net, DATA, Y_ONE, TEST, **({"networks": 10} | changed))

    def test_bad_data(self):
        with pytest.raises(ValueError, match=r"y_train: got shape \(3,\); expected shape \(2, 1\) or \(2,\)"):
            train(self.net, DATA, [1.0, 2.0, 3.0], TEST)
        with pytest.raises(ValueError, match="X_test: got 2 features"):
            train(self.net, DATA, Y_ONE, [[1.0, 2.0]])
        with pytest.raises(ValueError, match="net: got str; expected a widthwise.MLP"):
            train("net", DATA, Y_ONE, TEST)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: SGD(0.1, 0), "batch_size: got 0; expected a positive integer"),
            (lambda: SGD(0.1, None), "batch_size: got None.*Use GradientDescent for full batches"),
            (lambda: SGD(-1.0, 2), "learning_rate: got -1.0; expected a finite positive number"),
            (lambda: Momentum(0.1, 1.0), "momentum: got 1.0; expected a number from 0 up to"),
            (lambda: Momentum(0.1, steps=-2), "steps: got -2"),
            (lambda: Adam(0.1, beta2=1.5), "beta2: got 1.5"),
            (lambda: Adam(0.1, epsilon=-1.0), "epsilon: got -1.0"),
        ],
    )
    def test_bad_algorithms(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()
