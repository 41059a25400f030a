"""Infinite-width inference and training: references, independent routes, limits."""

import numpy as np
import pytest
from conftest import load_cases, network
from scipy import linalg
from scipy.stats import multivariate_normal

import widthwise as ww

RNG = np.random.default_rng(5)
X_TRAIN, X_TEST = RNG.normal(size=(6, 3)), RNG.normal(size=(4, 3))
Y_TRAIN = RNG.normal(size=(6, 2))
NET = ww.MLP([3, 64, 64, 2], "tanh", C_b=0.1, C_W=1.5, lambda_b=0.2, lambda_W=1.0)


@pytest.fixture(scope="module")
def joint():
    ds = ww.theory(NET, np.vstack([X_TRAIN, X_TEST]), layers="last")
    return ds["K"].values[0], ds["Theta"].values[0]


@pytest.mark.parametrize("case", load_cases("trained"), ids=lambda c: c["name"])
@pytest.mark.parametrize("kind", ["flow", "descent"])
def test_trained_reference_cases_at_infinite_width(case, kind):
    X, y = np.array(case["X"]), np.array(case["y"]).T
    algorithm = ww.GradientFlow() if kind == "flow" else ww.GradientDescent(case[kind]["learning_rate"])
    p = ww.predict(network(case), X[case["train"]], y, X[case["test"]], algorithm)
    assert np.allclose(p["mean0"].values[:, 0], case["flow"]["mean0"], rtol=1e-8)
    outputs = y.shape[1]
    assert np.allclose(p["cov0"].values[:, 0, :, 0], case["flow"]["cov0"] * np.eye(outputs), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "rate", "steps"),
    [
        (ww.GradientDescent(0.05, steps=1), 0.05, 1),
        (ww.GradientDescent(0.05, steps=37), 0.05, 37),
        (ww.GradientFlow(time=1.7), 1e-5, 170_000),
    ],
)
def test_training_agrees_with_iterating_the_linear_dynamics(joint, algorithm, rate, steps):
    """z → z − η Θ (z_A − y), iterated on the linear map itself, for the mean and for the covariance."""
    K, Theta = joint
    A = slice(0, 6)
    if steps > 1000:  # squaring the step gets to 170,000 of them quickly
        step = np.eye(10)
        step[:, A] -= rate * Theta[:, A]
        offset = rate * Theta[:, A] @ Y_TRAIN
        total, shift, base, base_shift, left = np.eye(10), np.zeros((10, 2)), step, offset, steps
        while left:
            if left & 1:
                total, shift = base @ total, base @ shift + base_shift
            base, base_shift, left = base @ base, base @ base_shift + base_shift, left >> 1
    else:
        total, shift = np.eye(10), np.zeros((10, 2))
        for _ in range(steps):
            residual_total, residual_shift = total[A], shift[A] - Y_TRAIN
            total, shift = total - rate * Theta[:, A] @ residual_total, shift - rate * Theta[:, A] @ residual_shift
    covariance = total @ K @ total.T
    p = ww.predict(NET, X_TRAIN, Y_TRAIN, X_TEST, algorithm)
    loose = {"rtol": 1e-4, "atol": 1e-5} if steps > 1000 else {"rtol": 1e-9, "atol": 1e-11}
    assert np.allclose(p["mean0"].values.T, shift[6:], **loose)
    assert np.allclose(p["train_mean0"].values.T, shift[:6], **loose)
    assert np.allclose(p["cov0"].values[0, :, 0, :], covariance[6:, 6:], **loose)
    assert np.allclose(p["train_cov0"].values[1, :, 1, :], covariance[:6, :6], **loose)
    assert np.all(p["cov0"].values[0, :, 1, :] == 0.0)


def test_limits_of_training():
    start = ww.predict(NET, X_TRAIN, Y_TRAIN, X_TEST, ww.GradientFlow(time=0.0))
    assert np.all(start["mean0"] == 0.0)
    assert np.allclose(start["cov0"].values[0, :, 0, :], ww.theory(NET, X_TEST, layers="last")["K"][0])
    end = ww.predict(NET, X_TRAIN, Y_TRAIN, X_TEST)
    assert np.allclose(end["train_mean0"].values.T, Y_TRAIN)
    assert np.abs(end["train_cov0"]).max() < 1e-9
    late = ww.predict(NET, X_TRAIN, Y_TRAIN, X_TEST, ww.GradientFlow(time=1e5))
    descent = ww.predict(NET, X_TRAIN, Y_TRAIN, X_TEST, ww.GradientDescent(0.1))
    for other in (late, descent):
        assert np.allclose(other["mean0"], end["mean0"], atol=1e-8)
        assert np.allclose(other["cov0"], end["cov0"], atol=1e-8)


def test_the_mean_is_odd_in_the_targets_and_the_outputs_do_not_mix():
    p = ww.predict(NET, X_TRAIN, Y_TRAIN, X_TEST)
    flipped = ww.predict(NET, X_TRAIN, -Y_TRAIN[:, ::-1], X_TEST)
    assert np.allclose(p["mean0"].values, -flipped["mean0"].values[::-1])


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_posterior_agrees_with_the_joint_gaussian(joint, noise):
    K, _ = joint
    noisy = K[:6, :6] + noise * np.eye(6)
    b = ww.posterior(NET, X_TRAIN, Y_TRAIN, X_TEST, noise=noise)
    inverse = np.linalg.inv(noisy)
    assert np.allclose(b["mean0"].values.T, K[6:, :6] @ inverse @ Y_TRAIN, rtol=1e-7)
    assert np.allclose(b["cov0"].values[1, :, 1, :], K[6:, 6:] - K[6:, :6] @ inverse @ K[:6, 6:], atol=1e-9)
    by_scipy = sum(multivariate_normal.logpdf(Y_TRAIN[:, i], cov=noisy) for i in range(2))
    assert float(b["log_evidence0"]) == pytest.approx(by_scipy, rel=1e-9)


def test_large_noise_forgets_the_data_and_none_interpolates():
    exact = ww.posterior(NET, X_TRAIN, Y_TRAIN, X_TRAIN)
    assert np.allclose(exact["mean"].values.T, Y_TRAIN, atol=1e-8)
    blind = ww.posterior(NET, X_TRAIN, Y_TRAIN, X_TEST, noise=1e9)
    assert np.abs(blind["mean"]).max() < 1e-6
    assert np.allclose(blind["cov"].values[0, :, 0, :], ww.theory(NET, X_TEST, layers="last")["K"][0], rtol=1e-6)


def test_the_largest_stable_rate_separates_convergence_from_divergence(joint):
    _, Theta = joint
    bound = ww.max_learning_rate(NET, X_TRAIN)
    assert bound == pytest.approx(2 / np.linalg.eigvalsh(Theta[:6, :6]).max())
    errors = []
    for rate in (0.99 * bound, 1.01 * bound):
        residual = np.ones(6)
        for _ in range(2000):
            residual = residual - rate * Theta[:6, :6] @ residual
        errors.append(np.linalg.norm(residual))
    assert errors[0] < 1
    assert errors[1] > 1e6


def test_samples_have_the_moments_they_should():
    prior = ww.sample_prior(NET, X_TEST, draws=20_000, seed=3)
    K = ww.theory(NET, X_TEST, layers="last")["K"].values[0]
    values = prior.values.reshape(-1, 4)
    error = np.sqrt((K**2 + np.outer(np.diag(K), np.diag(K))) / len(values))
    assert np.abs(values.T @ values / len(values) - K).max() < 4 * error.max()
    b = ww.posterior(NET, X_TRAIN, Y_TRAIN, X_TEST, noise=0.1)
    draws = ww.sample_posterior(NET, X_TRAIN, Y_TRAIN, X_TEST, draws=20_000, seed=4, noise=0.1)
    spread = np.sqrt(np.einsum("ixix->ix", b["cov"].values) / 20_000)
    assert np.all(np.abs(draws.mean("sample") - b["mean"]) < 4.5 * spread)
    again = ww.sample_prior(NET, X_TEST, draws=20_000, seed=3)
    assert np.array_equal(prior, again)
    # negative control: the prior's samples are not the posterior's
    assert np.any(np.abs(prior.mean("sample").values - b["mean"].values) > 10 * spread)


def test_training_a_wide_network_for_real_lands_in_the_predicted_ensemble():
    """Forty networks of width 512, trained by plain gradient descent in jax."""
    import jax
    import jax.numpy as jnp

    from widthwise.experiments.layer_passes import Weights
    from widthwise.experiments.sampler import forward, network_key, sample_parameters

    net = ww.MLP([3, 512, 1], "tanh", C_b=0.1, C_W=1.5, lambda_b=0.2, lambda_W=1.0)
    X, y = jnp.asarray(X_TRAIN[:3]), jnp.asarray(Y_TRAIN[:3, :1])
    rate, steps = 0.5 * ww.max_learning_rate(net, X), 60
    scale = [(net.lambda_W[i] / net.widths[i], net.lambda_b[i]) for i in range(2)]

    def train(index):
        layers = sample_parameters(net, network_key(0, index))

        def loss(layers):
            return 0.5 * jnp.sum((forward(net, layers, X)[1][-1] - y) ** 2)

        def step(layers, _):
            slopes = jax.grad(loss)(layers)
            moved = [
                Weights(layer.W - rate * w * g.W, layer.b - rate * b * g.b)
                for layer, g, (w, b) in zip(layers, slopes, scale, strict=True)
            ]
            return moved, None

        trained, _ = jax.lax.scan(step, layers, None, length=steps)
        return forward(net, trained, jnp.asarray(X_TEST))[1][-1][:, 0]

    outputs = np.asarray(jax.jit(jax.vmap(train))(jnp.arange(400)))
    p = ww.predict(net, X, y, X_TEST, ww.GradientDescent(rate, steps))
    variance = np.einsum("ixix->x", p["cov"].values)
    pull = (outputs.mean(axis=0) - p["mean"].values[0]) / np.sqrt(variance / 400)
    assert np.abs(pull).max() < 4
    ratio = outputs.var(axis=0, ddof=1) / variance
    assert np.abs(ratio - 1).max() < 4 * np.sqrt(2 / 399)
    # negative control: the untrained prior is many standard errors away
    start = np.einsum("ixix->x", ww.predict(net, X, y, X_TEST, ww.GradientFlow(0.0))["cov"].values)
    assert np.abs(outputs.var(axis=0, ddof=1) / start - 1).max() > 4 * np.sqrt(2 / 399)


class TestBadInput:
    def test_duplicate_training_inputs_are_named(self):
        X = np.vstack([X_TRAIN, X_TRAIN[[1, 1, 4]]])
        y = np.vstack([Y_TRAIN, Y_TRAIN[[1, 1, 4]]])
        with pytest.raises(ValueError, match="rows 1 and 6 and 7; 4 and 8 that coincide.*set noise > 0"):
            ww.posterior(NET, X, y, X_TEST)
        with pytest.raises(ValueError, match=r"rows 1 and 6 and 7; 4 and 8 .*GradientFlow\(time="):
            ww.predict(NET, X, y, X_TEST)
        with pytest.raises(ValueError, match="a number of steps"):
            ww.predict(NET, X, y, X_TEST, ww.GradientDescent(0.01))
        ww.posterior(NET, X, y, X_TEST, noise=0.1)
        ww.predict(NET, X, y, X_TEST, ww.GradientFlow(time=1.0))

    def test_inputs_that_the_kernel_confuses_are_named(self):
        net = ww.MLP([3, 64, 1], "relu", C_W=2.0, C_b=0.0, lambda_b=0.0)
        X = np.vstack([X_TRAIN, 2 * X_TRAIN[2]])
        for call in (ww.posterior, ww.predict):
            with pytest.raises(ValueError, match=r"singular to rounding.*rows 2 and 6 are most alike, correlation 1"):
                call(net, X, np.ones(7), X_TEST)

    @pytest.mark.parametrize(
        "C_W", [0.6440677966101696, 0.7, 1.0, 1.3, 1.4372881355932203, 1.9, 2.6, 3.0237288135593218]
    )
    def test_an_odd_network_cannot_fit_an_even_function(self, C_W):
        """Rounding leaves an eigenvalue of either sign where there is none; dividing by it would give 1e31."""
        net = ww.MLP([2, 8, 1], "tanh", C_W=C_W, lambda_b=0.0)
        X = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        for call in (ww.posterior, ww.predict):
            with pytest.raises(ww.errors.SingularKernel, match="singular to rounding"):
                call(net, X, [1.0, -1.0, -1.0, 1.0], [[0.5, 0.5]])

    def test_a_step_past_the_bound_says_the_bound(self):
        bound = ww.max_learning_rate(NET, X_TRAIN)
        with pytest.raises(ValueError, match=rf"learning_rate: got .*less than 2/λ_max = {bound:.6g}"):
            ww.predict(NET, X_TRAIN, Y_TRAIN, X_TEST, ww.GradientDescent(1.001 * bound))
        ww.predict(NET, X_TRAIN, Y_TRAIN, X_TEST, ww.GradientDescent(0.999 * bound))

    @pytest.mark.parametrize(
        ("y", "message"),
        [
            (np.ones(6), r"y_train: got shape \(6,\); expected shape \(6, 2\)"),
            (np.ones((6, 3)), r"got shape \(6, 3\); expected shape \(6, 2\)"),
            (np.ones((5, 2)), r"got shape \(5, 2\)"),
            (np.full((6, 2), np.inf), "12 non-finite of 12 entries"),
            ([["a", "b"]] * 6, "an array of <U1; expected an array of numbers"),
        ],
    )
    def test_targets(self, y, message):
        with pytest.raises(ValueError, match=message):
            ww.predict(NET, X_TRAIN, y, X_TEST)

    def test_the_rest(self):
        for call, message in (
            (lambda: ww.GradientFlow(time=-1.0), "time: got -1.0"),
            (lambda: ww.GradientDescent(0.0), "learning_rate: got 0.0"),
            (lambda: ww.GradientDescent(0.1, steps=-1), "steps: got -1"),
            (lambda: ww.GradientDescent(0.1, steps=1.5), "steps: got 1.5"),
            (lambda: ww.predict(NET, X_TRAIN, Y_TRAIN, X_TEST, "adam"), "algorithm: got 'adam'"),
            (lambda: ww.predict(NET, X_TRAIN, Y_TRAIN, X_TEST[:, :2]), "X_test: got 2 features"),
            (lambda: ww.posterior(NET, X_TRAIN, Y_TRAIN, X_TEST, noise=-1), "noise: got -1"),
            (lambda: ww.posterior(NET, X_TRAIN, Y_TRAIN, X_TEST, order=3), "order: got 3"),
            (lambda: ww.sample_prior(NET, X_TEST, draws=0), "draws: got 0"),
            (lambda: ww.sample_prior(NET, X_TEST, seed=-1), "seed: got -1"),
            (lambda: ww.sample_prior("net", X_TEST), "net: got str"),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=message):
                call()


def test_linear_algebra_is_scipys():
    # the evidence against a determinant computed another way
    K = ww.theory(NET, X_TRAIN, layers="last", tensors=["K"])["K"].values[0]
    sign, logdet = np.linalg.slogdet(K)
    quadratic = np.sum(Y_TRAIN * linalg.solve(K, Y_TRAIN))
    expected = -0.5 * (quadratic + 2 * logdet + 12 * np.log(2 * np.pi))
    assert sign == 1
    assert float(ww.posterior(NET, X_TRAIN, Y_TRAIN, X_TEST)["log_evidence"]) == pytest.approx(expected)
