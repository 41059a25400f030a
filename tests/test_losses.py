"""Losses: where they end, paths in function space, and real networks."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import widthwise as ww
from widthwise.errors import InvalidInput, UnknownName

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [-0.7, 0.5, 0.6]])
X_TEST = np.array([[0.6, -0.2, 0.4], [0.1, 0.8, -0.3]])
Y = np.array([1.0, -0.5, 0.3])
SIGNS = np.sign(Y)
CLASSES = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])


def tanh(n, outputs=1):
    return ww.MLP([3, n, outputs], "tanh", C_b=0.1, C_W=1.5, lambda_b=0.2)


THETA = ww.theory(tanh(8), np.concatenate([X, X_TEST]), order=0)["Theta"].values[-1]


def quartic(z, y):
    return 0.5 * (z - y) ** 2 + 0.25 * (z - y) ** 4


def by_scipy(slope, time, outputs=1):
    """Outputs that start at zero, all inputs, by another integrator."""

    def force(_, flat):
        z = flat.reshape(outputs, 5)
        return -(slope(z[:, :3]) @ THETA[:3]).ravel()

    found = solve_ivp(force, (0.0, time), np.zeros(5 * outputs), method="Radau", rtol=1e-10, atol=1e-12)
    return found.y[:, -1].reshape(outputs, 5)


class TestEnds:
    @pytest.mark.parametrize("loss", ["huber", "log_cosh", quartic])
    def test_losses_with_one_stationary_point_end_alike(self, loss):
        squared, other = (ww.predict(tanh(64), X, Y, X_TEST, loss=one) for one in ("squared", loss))
        assert np.allclose(squared["mean"], other["mean"], atol=1e-12)
        assert np.allclose(squared["cov"], other["cov"], atol=1e-12)
        assert "only stationary point" in other.attrs["solution"]

    @pytest.mark.parametrize("loss", ["huber", "log_cosh", quartic])
    def test_long_paths_lead_there(self, loss):
        end = ww.predict(tanh(64), X, Y, X_TEST, loss=loss)
        path = ww.predict(tanh(64), X, Y, X_TEST, ww.GradientFlow(2000.0), loss=loss, draws=64)
        assert np.allclose(path["from_zero"], end["mean"], atol=1e-5)
        assert np.allclose(path["mean"], end["mean"], atol=1e-5)

    def test_a_loss_of_ones_own_with_another_stationary_point_has_no_closed_form(self):
        """1 + sin stays above zero for amplitudes below one, and falls below it between 3 and 6 for larger ones."""
        rising, wavy = (lambda z, y, a=a: 0.5 * (z - y) ** 2 - a * jnp.cos(2.0 * (z - y)) for a in (0.2, 2.0))
        assert "as seen at 192 points" in ww.predict(tanh(8), X, Y, X_TEST, loss=rising).attrs["solution"]
        with pytest.raises(InvalidInput, match="does not end at z = y"):
            ww.predict(tanh(8), X, Y, X_TEST, loss=wavy)

    @pytest.mark.parametrize("loss", ["logistic", "exponential"])
    def test_losses_without_an_end_say_so(self, loss):
        with pytest.raises(InvalidInput, match="does not end at z = y"):
            ww.predict(tanh(64), X, SIGNS, X_TEST, loss=loss)
        with pytest.raises(InvalidInput, match="does not end at z = y"):
            ww.train(tanh(64), X, SIGNS, X_TEST, networks=10, loss=loss)


class TestPaths:
    def test_against_another_integrator(self):
        logistic = by_scipy(lambda z: -SIGNS / (1 + np.exp(SIGNS * z)), 6.0)
        p = ww.predict(tanh(64), X, SIGNS, X_TEST, ww.GradientFlow(6.0), loss="logistic", draws=64)
        assert np.allclose(p["from_zero"], logistic[:, 3:], atol=1e-8)
        assert np.allclose(p["train_from_zero"], logistic[:, :3], atol=1e-8)

        def softmax_slope(z):
            weights = np.exp(z - z.max(axis=0))
            return weights / weights.sum(axis=0) - CLASSES.T

        entropy = by_scipy(softmax_slope, 9.0, 3)
        p = ww.predict(tanh(64, 3), X, CLASSES, X_TEST, ww.GradientFlow(9.0), loss="cross_entropy", draws=64)
        assert np.allclose(p["from_zero"], entropy[:, 3:], atol=1e-8)
        assert np.abs(entropy).max() > 0.5

    def test_cross_entropy_against_neural_tangents(self):
        """Outputs at the tests after two times, by `neural_tangents.predict.gradient_descent` 0.6.5 in float64."""
        peer = {
            1.0: [[0.094454977, 0.22317698, -0.317631958], [0.33103859, -0.247791779, -0.083246811]],
            9.0: [[0.374513599, 0.734606722, -1.109120321], [1.35646159, -1.172866252, -0.183595338]],
        }
        for time, outputs in peer.items():
            p = ww.predict(tanh(64, 3), X, CLASSES, X_TEST, ww.GradientFlow(time), loss="cross_entropy", draws=64)
            assert np.abs(p["from_zero"].values.T - outputs).max() < 1e-7

    def test_squared_loss_by_draws_is_that_of_the_closed_form(self):
        """1024 draws; a pull above 4.5 comes once in 10⁵. The mean has no noise: pairs cancel."""
        closed = ww.predict(tanh(64), X, Y, X_TEST, ww.GradientDescent(0.3, 8))
        drawn = ww.predict(
            tanh(64), X, Y, X_TEST, ww.GradientDescent(0.3, 8), loss=lambda z, y: 0.5 * (z - y) ** 2, seed=4
        )
        assert np.allclose(closed["mean"], drawn["mean"], atol=1e-9)
        assert np.abs((closed["cov"] - drawn["cov"]) / drawn["cov_se"]).max() < 4.5
        short = ww.predict(tanh(64), X, Y, X_TEST, ww.GradientDescent(0.3, 1))
        assert np.abs((short["cov"] - drawn["cov"]) / drawn["cov_se"]).max() > 10.0

    def test_batches_by_draws_are_those_of_the_closed_form(self):
        """4096 draws, 5 distinct numbers; one above 4.5 standard errors comes once in 25,000 runs."""
        data, algorithm = (tanh(64), X, Y, X_TEST), ww.SGD(0.3, 1, 6)
        closed = ww.predict(*data, algorithm)
        drawn = ww.predict(*data, algorithm, loss=lambda z, y: 0.5 * (z - y) ** 2, draws=4096, seed=5)
        for name in ("mean", "cov"):
            assert np.abs((closed[name] - drawn[name]) / drawn[f"{name}_se"]).max() < 4.5
        full = ww.predict(*data, ww.GradientDescent(0.3, 6))
        assert np.abs((full["cov"] - drawn["cov"]) / drawn["cov_se"]).max() > 8.0
        # a path from zero scatters with its batches
        assert "from_zero" not in drawn

    @pytest.mark.parametrize(
        ("loss", "targets", "algorithm"),
        [
            ("logistic", SIGNS[:, None], ww.Momentum(0.3, 0.7, 12)),
            ("cross_entropy", CLASSES, ww.GradientFlow(4.0)),
        ],
        ids=["logistic, momentum", "cross-entropy, flow"],
    )
    def test_real_networks_follow_them(self, loss, targets, algorithm):
        """400 networks of width 512, up to 42 numbers; one above 4.5 comes once in 3,000 runs."""
        data = tanh(512, targets.shape[1]), X, targets, X_TEST
        p = ww.predict(*data, algorithm, loss=loss, draws=4096)
        t = ww.train(*data, networks=400, algorithm=algorithm, loss=loss, progress=False)
        error = np.hypot(t["mean_se"], p["mean_se"])
        assert np.abs((t["mean"] - p["mean"]) / error).max() < 4.5
        assert np.abs((t["cov"] - p["cov"]) / np.hypot(t["cov_se"], p["cov_se"])).max() < 4.5
        squared = ww.predict(*data, algorithm)
        assert np.abs((t["mean"] - squared["mean"]) / error).max() > 8.0

    def test_compare_adds_the_errors_of_draws_to_those_of_networks(self):
        data = tanh(64), X, SIGNS, X_TEST
        p = ww.predict(*data, ww.GradientDescent(0.3, 5), loss="logistic", draws=64)
        t = ww.train(*data, networks=8, algorithm=ww.GradientDescent(0.3, 5), loss="logistic", progress=False)
        row = next(row for row in ww.compare(p, t) if row.variable == "mean")
        at = tuple(map(int, row.worst_entry.split(",")))
        both = np.hypot(t["mean_se"].values[at], p["mean_se"].values[at])
        assert row.standard_error == pytest.approx(both)
        assert both > t["mean_se"].values[at]
        assert "Predicted" not in ww.compare(p, t).sentence
        other = ww.predict(*data, ww.GradientDescent(0.3, 5))
        assert "Predicted with loss=squared, measured with loss=logistic." in ww.compare(other, t).sentence


class TestBadInput:
    @pytest.mark.parametrize(
        ("loss", "targets", "outputs", "message"),
        [
            ("logistic", [1.0, 0.0, 1.0], 1, "row 1: 0; expected targets 1 or −1 for loss='logistic'. Write 2y − 1"),
            ("cross_entropy", [1.0, 0.0, 1.0], 1, "expected one output for each class. Use loss='logistic'"),
            ("cross_entropy", [[1.0, 0.0], [0.5, 0.6], [0.0, 1.0]], 2, "row 1: 0.5, 0.6; expected probabilities"),
            (
                "cross_entropy",
                [[1.0, 0.0], [0.5, 0.5], [2.0, -1.0]],
                2,
                r"row 2: 2, -1; expected probabilities .* np.eye\(classes\)\[labels\] makes them",
            ),
            (
                lambda z, y: jnp.abs(z - y),
                [1.0, 0.0, 1.0],
                1,
                "has a kink at the targets of row 0; .* Round it off: 'huber'",
            ),
            (
                lambda z, y: jnp.sqrt(z),
                [1.0, -1.0, 1.0],
                1,
                "is not finite within 100 of the targets of row 0; .* stays finite, as jnp.logaddexp",
            ),
            (
                lambda z, y: jnp.sqrt(jnp.abs(z - y)),
                [1.0, -1.0, 1.0],
                1,
                "no finite derivative within 100 of the targets of row 0; .* Round it off",
            ),
            (
                lambda z, y: (z[:, None] - y[None, :]) ** 2,
                [[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]],
                2,
                r"which gives numbers of shape \(2, 2\) for 2 outputs; expected .* for each output, .* or their sum",
            ),
            (
                lambda z, y: 1.0 * (jnp.sign(z) != y),
                [1.0, -1.0, 1.0],
                1,
                "slope is zero everywhere within 100 of the targets; .* A count of errors has no slope: 'logistic'",
            ),
            (
                "cross_entropy",
                [0, 1, 2],
                3,
                r"got shape \(3,\); expected shape \(3, 3\): .* np.eye\(3\)\[labels\] makes them from labels",
            ),
            (
                lambda z: z,
                [1.0, -1.0, 1.0],
                1,
                r"which raises TypeError: .* in jax.numpy. For example lambda z, y: jnp.cosh",
            ),
        ],
    )
    def test_is_told_by_row(self, loss, targets, outputs, message):
        for call in (ww.predict, ww.train):
            with pytest.raises(InvalidInput, match=message):
                call(tanh(8, outputs), X, targets, X_TEST, algorithm=ww.GradientFlow(1.0), loss=loss)

    def test_unknown_names_and_order_one(self):
        with pytest.raises(UnknownName, match="Did you mean 'cross_entropy'"):
            ww.predict(tanh(8), X, Y, X_TEST, loss="crossentropy")
        for loss, targets, how in (
            ("huber", Y, ww.GradientFlow(2.0)),
            ("huber", Y, ww.NewtonStep()),
            ("logistic", SIGNS, ww.GradientDescent(0.1, 5)),
        ):
            with pytest.raises(InvalidInput, match=f"loss='{loss}' with .* with order=1; .* `train` measures it"):
                ww.predict(tanh(8), X, targets, X_TEST, how, loss=loss, order=1)
        with pytest.raises(InvalidInput, match="and cumulants=4 with order=1"):
            ww.predict(tanh(8), X, Y, X_TEST, loss="huber", cumulants=4)
        with pytest.raises(InvalidInput, match="method: got 'tiles' for loss='huber'"):
            ww.predict(tanh(8), X, Y, X_TEST, loss="huber", order=1, method="tiles")
