"""Schedules, momentum, batches and weight decay at infinite width: closed forms against direct iteration."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.linalg import expm

import widthwise as ww
from widthwise.errors import InvalidInput, NoRule, UnstableLearningRate, UnstableRateWarning
from widthwise.network.schedules import scheduled_rates

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [-0.7, 0.5, 0.6], [0.4, 0.4, 0.9]])
X_TEST = np.array([[0.6, -0.2, 0.4], [0.1, 0.8, -0.3]])
Y = np.array([[1.0, 0.2], [-0.5, 0.7], [0.3, -1.0], [0.8, 0.4]])
NET = ww.MLP([3, 64, 2], "tanh", C_b=0.1, C_W=1.5, lambda_b=0.2)
CHANGING = ww.schedule(0.5, 12, warm_up=4)


def kernels(inputs):
    flow = ww.theory(NET, inputs, order=0)
    return flow["K"].values[-1], flow["Theta"].values[-1]


K, THETA = kernels(np.concatenate([X, X_TEST]))


def iterated(algorithm, z, drawn=None):
    """Outputs (inputs, …) after training, by a loop in the space of the outputs that knows nothing of modes."""
    start, train = z.copy(), len(X)
    targets = Y.reshape(train, *[1] * (z.ndim - 2), Y.shape[1])
    rates = scheduled_rates(algorithm)
    momentum = getattr(algorithm, "momentum", 0.0)
    velocity = np.zeros_like(z[:train])
    moved = np.zeros_like(z[:train])
    for step in range(algorithm.steps):
        rate = algorithm.learning_rate if rates is None else rates[step]
        error = start[:train] - np.tensordot(THETA[:train, :train], moved, 1) - targets
        slope = error if drawn is None else error * drawn[step]
        slope = slope - (algorithm.weight_decay or 0.0) * moved
        velocity = momentum * velocity + slope
        moved = moved + rate * (slope + momentum * velocity if getattr(algorithm, "nesterov", False) else velocity)
    return start - np.tensordot(THETA[:, :train], moved, 1)


@pytest.mark.parametrize(
    "algorithm",
    [
        ww.GradientDescent(0.3, 7),
        ww.GradientDescent(CHANGING),
        ww.GradientDescent(lambda step: 0.4 / (1 + step), steps=9),
        ww.GradientDescent(0.3, 7, weight_decay=0.2),
        ww.Momentum(0.2, 0.7, 15),
        ww.Momentum(0.2, 0.7, 15, nesterov=True),
        ww.Momentum(CHANGING, 0.5),
        ww.Momentum(CHANGING, 0.5, nesterov=True, weight_decay=0.1),
    ],
    ids=repr,
)
def test_closed_forms_are_those_of_direct_iteration(algorithm):
    p = ww.predict(NET, X, Y, X_TEST, algorithm)
    outputs = iterated(algorithm, np.zeros((6, 2)))
    assert np.allclose(p["mean"].values.T, outputs[4:], rtol=1e-10, atol=1e-10)
    assert np.allclose(p["train_mean0"].values.T, outputs[:4], rtol=1e-10, atol=1e-10)
    # outputs are linear in those at the start
    linear = np.stack(
        [iterated(algorithm, unit[:, None] + np.zeros((6, 2)))[:, 0] - outputs[:, 0] for unit in np.eye(6)]
    )
    covariance = linear.T @ K @ linear
    for output in (0, 1):
        assert np.allclose(p["cov"].values[output, :, output], covariance[4:, 4:], rtol=1e-10, atol=1e-10)
    assert np.abs(p["cov"].values[0, :, 1]).max() == 0.0


@pytest.mark.parametrize("decay", [None, 0.2])
def test_the_flow_is_that_of_a_matrix_exponential(decay):
    """Of (outputs, what the parameters have moved by): d moved/dt = error − decay moved, in one linear system."""
    train, time = len(X), 1.7
    p = ww.predict(NET, X, Y, X_TEST, ww.GradientFlow(time, weight_decay=decay))
    rate = THETA[:train, :train] + (decay or 0.0) * np.eye(train)
    moved = np.linalg.solve(rate, np.eye(train) - expm(-time * rate))
    linear = np.eye(6)
    linear[:, :train] -= THETA[:, :train] @ moved
    assert np.allclose(p["mean"].values.T, THETA[train:, :train] @ moved @ Y, rtol=1e-10, atol=1e-10)
    for output in (0, 1):
        expected = (linear @ K @ linear.T)[train:, train:]
        assert np.allclose(p["cov"].values[output, :, output], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "algorithm", [ww.SGD([0.3, 0.2], 2), ww.Momentum(0.2, 0.6, 2, 2), ww.Momentum(0.1, 0.6, 2, 2, True)], ids=repr
)
def test_batches_are_those_of_all_sequences(algorithm):
    """Two steps on batches of two of four inputs: all 36 sequences, each of them linear in the outputs at the start."""
    batches = [np.isin(np.arange(4), batch)[:, None] * 2.0 for batch in combinations(range(4), 2)]
    ends, spread = [], np.zeros((6, 6))
    for drawn in product(batches, repeat=2):
        ends.append(iterated(algorithm, np.zeros((6, 2)), drawn))
        linear = np.stack(
            [iterated(algorithm, unit[:, None] + np.zeros((6, 2)), drawn)[:, 0] - ends[-1][:, 0] for unit in np.eye(6)]
        )
        spread += linear.T @ K @ linear / 36
    centred = np.array(ends) - np.mean(ends, axis=0)
    covariance = np.einsum("sai,sbj->iajb", centred, centred) / 36 + np.einsum("ij,ab->iajb", np.eye(2), spread)
    p = ww.predict(NET, X, Y, X_TEST, algorithm)
    assert np.allclose(p["mean"].values.T, np.mean(ends, axis=0)[4:], rtol=1e-10, atol=1e-10)
    assert np.allclose(p["cov"], covariance[:, 4:, :, 4:], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("algorithm", [ww.Momentum(0.4), ww.Momentum(0.1, nesterov=True), ww.SGD(0.1, 2)], ids=repr)
def test_trained_to_convergence_all_end_where_the_flow_does(algorithm):
    flow, other = (ww.predict(NET, X, Y, X_TEST, how) for how in (ww.GradientFlow(), algorithm))
    for name in ("mean", "cov"):
        assert np.allclose(flow[name], other[name], atol=1e-12)


def test_decay_towards_the_initialisation_is_a_ridge():
    p = ww.predict(NET, X, Y, X_TEST, ww.GradientFlow(weight_decay=0.3))
    ridge = THETA[4:, :4] @ np.linalg.solve(THETA[:4, :4] + 0.3 * np.eye(4), Y)
    assert np.allclose(p["mean"].values.T, ridge, atol=1e-12)
    steps = ww.predict(NET, X, Y, X_TEST, ww.Momentum(0.3, 0.6, steps=4000, weight_decay=0.3))
    assert np.allclose(p["cov"], steps["cov"], atol=1e-10)


class TestDecayTowardsZero:
    """Kernels between networks that shrink."""

    ONE_LAYER = ww.MLP([3, 1], [], C_b=0.1, C_W=1.5, lambda_b=0.2, lambda_W=0.7)

    def by_parameters(self, move, learned):
        """Mean and covariance of outputs that are linear in the parameters, which end at move θ₀ + learned."""
        features = np.concatenate([np.ones((6, 1)), np.concatenate([X, X_TEST]) / np.sqrt(3.0)], axis=1)
        spread = features @ move
        return features @ learned, spread @ np.diag([0.1, 1.5, 1.5, 1.5]) @ spread.T

    @pytest.mark.parametrize(
        "algorithm",
        [
            ww.GradientDescent(0.3, 9, weight_decay=0.2, decay_to="zero"),
            ww.GradientDescent(CHANGING, weight_decay=0.2, decay_to="zero"),
            ww.GradientFlow(5.0, weight_decay=0.2, decay_to="zero"),
        ],
        ids=repr,
    )
    def test_of_one_layer_is_that_of_its_parameters(self, algorithm):
        features = np.concatenate([np.ones((4, 1)), X / np.sqrt(3.0)], axis=1)
        rates = np.array([0.2, 0.7, 0.7, 0.7])[:, None]
        force, pull = -0.2 * np.eye(4) - rates * features.T @ features, rates[:, 0] * (features.T @ Y[:, 0])
        if isinstance(algorithm, ww.GradientFlow):
            move = expm(5.0 * force)
            learned = np.linalg.solve(force, move - np.eye(4)) @ pull
        else:
            move, learned = np.eye(4), np.zeros(4)
            steps = scheduled_rates(algorithm)
            for rate in np.full(9, 0.3) if steps is None else steps:
                move, learned = move + rate * force @ move, learned + rate * (force @ learned + pull)
        mean, covariance = self.by_parameters(move, learned)
        p = ww.predict(self.ONE_LAYER, X, Y[:, 0], X_TEST, algorithm)
        assert np.allclose(p["mean"].values[0], mean[4:], rtol=1e-10, atol=1e-10)
        assert np.allclose(p["train_mean0"].values[0], mean[:4], rtol=1e-10, atol=1e-10)
        assert np.allclose(p["cov"].values[0, :, 0], covariance[4:, 4:], rtol=1e-10, atol=1e-10)
        assert np.allclose(p["train_cov0"].values[0, :, 0], covariance[:4, :4], rtol=1e-10, atol=1e-10)

    def test_flow_is_the_limit_of_small_steps_and_no_decay_that_of_little(self):
        how = {"weight_decay": 0.3, "decay_to": "zero"}
        flow = ww.predict(NET, X, Y, X_TEST, ww.GradientFlow(2.0, **how))
        off = []
        for steps in (20, 40):
            descent = ww.predict(NET, X, Y, X_TEST, ww.GradientDescent(2.0 / steps, steps, **how))
            off.append([descent[name].values - flow[name].values for name in ("mean", "cov")])
        for coarse, fine in zip(*off, strict=True):
            assert np.abs(2.0 * fine - coarse).max() < 0.1 * np.abs(fine).max()
        free, little = (
            ww.predict(NET, X, Y, X_TEST, ww.GradientFlow(2.0, weight_decay=decay, decay_to="zero"))
            for decay in (None, 1e-9)
        )
        for name in ("mean", "cov", "train_cov0"):
            assert np.allclose(free[name], little[name], atol=1e-7)

    @pytest.mark.parametrize("activation", ["tanh", "relu"])
    def test_real_networks_follow_it(self, activation):
        """400 networks of width 512, 14 numbers; one above 4.5 comes once in 5,000 runs.

        Errors of the covariance are those of Gaussian outputs: of a sample that scatters little its own are too small.
        """
        net = ww.MLP([3, 512, 2], activation, C_b=0.1, C_W=1.5, lambda_b=[0.2, 0.0])
        rates, how = [0.2, *[0.4] * 7], {"weight_decay": 0.2}
        algorithm = ww.GradientDescent(rates, **how, decay_to="zero")
        t = ww.train(net, X, Y, X_TEST, networks=400, algorithm=algorithm, progress=False)
        p, other = (ww.predict(net, X, Y, X_TEST, one) for one in (algorithm, ww.GradientDescent(rates, **how)))
        C = p["cov"].values
        variance = np.einsum("ixix->ix", C)
        error = np.sqrt((np.multiply.outer(variance, variance) + C**2) / 400.0)
        assert np.abs((t["mean"] - p["mean"]) / t["mean_se"]).max() < 4.5
        assert np.abs((t["cov"] - C) / error).max() < 4.5
        # decay towards the initialisation is rejected
        assert np.abs((t["cov"] - other["cov"]) / error).max() > 8.0

    def test_what_it_does_not_describe_is_refused(self):
        algorithm = ww.GradientFlow(2.0, weight_decay=0.1, decay_to="zero")
        with pytest.raises(InvalidInput, match="expected loss='squared' and kernel='infinite' where parameters decay"):
            ww.predict(NET, X, Y, X_TEST, algorithm, loss="huber")
        with pytest.raises(InvalidInput, match="with order=1; expected .*Decay towards zero moves parameters"):
            ww.predict(NET, X, Y, X_TEST, algorithm, order=1)
        with pytest.raises(NoRule, match="expected a plain network"):
            ww.predict(ww.NormMLP([3, 8, 8, 2], "tanh", "rms"), X, Y, X_TEST, algorithm)


@pytest.mark.parametrize("algorithm", [ww.SGD(0.3, 1, 12), ww.SGD(CHANGING, 1), ww.Momentum(0.1, 0.6, 10, 2)], ids=repr)
def test_the_covariance_of_batches_is_that_of_simulated_linear_runs(algorithm):
    """10⁴ runs; entries of the covariance are off by more than 4.5 standard errors once in 10⁴ such tests."""
    rng, runs, train, size = np.random.default_rng(3), 10_000, 4, algorithm.batch_size
    start = np.einsum("ab,bri->ari", np.linalg.cholesky(K + 1e-12 * np.eye(6)), rng.standard_normal((6, runs, 2)))
    orders = rng.permuted(np.tile(np.arange(train), (algorithm.steps, runs, 1)), axis=2)
    drawn = [train / size * (order < size).T[:, :, None] for order in orders]
    z = iterated(algorithm, start, drawn)[4:]
    centred = z - z.mean(axis=1, keepdims=True)
    products = np.einsum("xri,yrj->ixjyr", centred, centred)
    value, error = products.mean(axis=-1), products.std(axis=-1) / np.sqrt(runs)
    p = ww.predict(NET, X, Y, X_TEST, algorithm)
    full = ww.predict(
        NET, X, Y, X_TEST, ww.Momentum(algorithm.learning_rate, getattr(algorithm, "momentum", 0.0), algorithm.steps)
    )
    assert np.abs((value - p["cov"].values) / error).max() < 4.5
    assert np.abs((z.mean(axis=1).T - p["mean"].values) / (z.std(axis=1).T / 100.0)).max() < 4.5
    # without the noise of the batches it is rejected
    assert np.abs((value - full["cov"].values) / error).max() > 8.0


def test_order_one_follows_a_schedule_and_says_what_it_cannot_follow():
    constant = ww.predict(NET, X, Y, X_TEST, ww.GradientDescent(0.3, 6), order=1)
    listed = ww.predict(NET, X, Y, X_TEST, ww.GradientDescent([0.3] * 6), order=1)
    for name in ("mean1", "cov1", "train_mean1"):
        assert np.allclose(constant[name], listed[name], rtol=1e-10, atol=1e-10)
    exact = ww.predict(NET, X, Y, X_TEST, ww.Momentum(0.1, 0.5), order=1)
    assert "mean1_se" not in exact
    for algorithm in (ww.Momentum(0.1, steps=5), ww.SGD(0.1, 2), ww.GradientFlow(weight_decay=0.1)):
        with pytest.raises(InvalidInput, match=r"with order=1; expected .* measure it with `train`"):
            ww.predict(NET, X, Y, X_TEST, algorithm, order=1)
    with pytest.raises(InvalidInput, match=r"Momentum.* with order=1; expected .* measure it with `train`"):
        ww.compare_algorithms(NET, X, Y, X_TEST, [ww.Momentum(0.1)])


class TestBadInput:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (
                lambda: ww.Momentum(0.1, momentum=1.0),
                "momentum: got 1.0; expected a number from 0 up to, and not including, 1. 0.9 is usual",
            ),
            (lambda: ww.Momentum(0.1, momentum=-0.1), "momentum: got -0.1"),
            (
                lambda: ww.GradientDescent([0.1, -0.2]),
                r"learning_rate\[1\]: got -0.2; expected finite positive numbers",
            ),
            (lambda: ww.GradientDescent([]), "learning_rate: got an empty list"),
            (lambda: ww.GradientDescent([[0.1], [0.1, 0.2]]), r"learning_rate: got a list that holds \[0.1\]"),
            (
                lambda: ww.GradientDescent(lambda a, b: a, 2),
                "got a function that raises TypeError; .* For example lambda",
            ),
            (lambda: ww.schedule(0.1, 10**9), "steps: got 1000000000; expected an integer from 1 to 1000000"),
            (lambda: ww.GradientDescent([0.1], steps=3), "1 learning rates for 3 steps; expected one per step"),
            (lambda: ww.GradientDescent(lambda step: 0.1), "steps: got None with a learning rate that is a function"),
            (lambda: ww.GradientDescent(0.1, weight_decay=-1.0), "weight_decay: got -1.0"),
            (
                lambda: ww.GradientDescent(0.1, decay_to="origin"),
                "decay_to: got 'origin'; expected one of initialisation",
            ),
            (lambda: ww.Momentum(0.1, nesterov=1), "nesterov: got 1; expected True or False"),
            (lambda: ww.schedule(0.1, 5, warm_up=6), "warm_up: got 6; expected an integer from 0 to steps = 5"),
            (lambda: ww.schedule(0.1, 5, decay="cosin"), "Did you mean 'cosine'"),
        ],
    )
    def test_of_algorithms(self, make, message):
        with pytest.raises(InvalidInput, match=message):
            make()

    @pytest.mark.parametrize(
        ("algorithm", "message"),
        [
            (
                ww.SGD(0.1, 5, 3),
                "batch_size=5; expected at most 4, the number of training inputs. Take smaller batches",
            ),
            (ww.Adam(0.1, steps=3), "Adam divides each parameter's gradient by its size: `train`"),
            (ww.GradientFlow(weight_decay=0.1, decay_to="zero"), "Decay towards zero moves parameters"),
        ],
        ids=repr,
    )
    def test_of_predictions(self, algorithm, message):
        with pytest.raises(InvalidInput, match=message):
            ww.predict(NET, X, Y, X_TEST, algorithm)

    def test_a_schedule_past_the_bound_is_told_by_its_step(self):
        bound = ww.max_learning_rate(NET, X)
        rates = [0.2 * bound, 0.9 * bound, 1.1 * bound, 0.1 * bound]
        words = r"at step 2; expected less than 2/λ_max = .* Multiply all rates by 0.82\."
        with pytest.raises(UnstableLearningRate, match=words):
            ww.predict(NET, X, Y, X_TEST, ww.GradientDescent(rates))
        with pytest.raises(UnstableLearningRate, match=r"expected less than 3.8/λ_max"):
            ww.predict(NET, X, Y, X_TEST, ww.Momentum(1.95 * bound))

    def test_real_networks_past_the_bound_are_measured_with_a_word_or_refused_by_the_step(self):
        bound = ww.max_learning_rate(NET, X)
        data, how = (NET, X, Y, X_TEST), {"networks": 4, "progress": False}
        with pytest.warns(UnstableRateWarning, match=r"learning rate .* at step 1 should be less than 2/λ_max = "):
            ww.train(*data, algorithm=ww.GradientDescent([0.2 * bound, 1.1 * bound, 0.1 * bound]), **how)
        diverging = ww.Momentum([0.2 * bound, *[9.0 * bound] * 300], 0.5)
        words = r"learning_rate: got .* at step 1, with which 4 networks .* expected less than 3/λ_max = .* Multiply"
        with pytest.raises(UnstableLearningRate, match=words):
            ww.train(*data, algorithm=diverging, **how)
        # Adam has no such bound
        ww.train(*data, algorithm=ww.Adam([9.0 * bound]), **how)

    def test_a_path_that_leaves_all_bounds_is_told_by_its_step(self):
        signs, rates = np.sign(Y), [0.01, 0.01, 300.0, 300.0]
        with pytest.raises(InvalidInput, match=r"leaves all bounds at step 3; expected a path that stays finite"):
            ww.predict(NET, X, signs, X_TEST, ww.GradientDescent(rates), loss="exponential", draws=64)
        with pytest.raises(InvalidInput, match=r"expected at most 100000 steps, .* GradientFlow\(time\)"):
            ww.predict(NET, X, signs, X_TEST, ww.GradientDescent(0.1, 10**6), loss="exponential", draws=64)

    def test_more_steps_in_batches_than_can_be_taken_one_by_one(self):
        """10⁹ of them were begun, in silence."""
        with pytest.raises(InvalidInput, match="expected at most 1000000 steps in batches.*steps=None trains to conv"):
            ww.predict(NET, X, Y, X_TEST, ww.SGD(0.1, 1, 10**9))

    def test_batches_too_noisy_to_converge(self):
        bound = ww.max_learning_rate(NET, X)
        with pytest.raises(UnstableLearningRate, match="the mean square of the errors grows"):
            ww.predict(NET, X, Y, X_TEST, ww.SGD(0.95 * bound, 1))
