"""Labs about where training goes: their solvers and closed forms, by independent routes, and quick runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from sklearn.svm import SVC

from widthwise.errors import InvalidInput
from widthwise.experiments.training.train import train
from widthwise.labs import entropic_force
from widthwise.labs import generalisation as general
from widthwise.labs import implicit_bias_diagonal as diagonal
from widthwise.labs import max_margin as margins
from widthwise.labs import sgd_fluctuation as sgd
from widthwise.labs.entropy_widths import (
    ellipsoid_bits,
    extend,
    greedy_net,
    lipschitz_constants,
    lipschitz_net,
    lipschitz_packing,
)
from widthwise.labs.estimates import LabEstimate, mean_and_error, slope_and_drift
from widthwise.labs.implicit_bias_diagonal import least_absolute_sum, minimise_on_affine
from widthwise.labs.max_margin import hard_margin
from widthwise.labs.verdict import ClaimRow, Verdict
from widthwise.network.algorithms import GradientDescent


@pytest.mark.parametrize(("lab", "size"), [(diagonal, 20), (margins, 10)], ids=["diagonal", "margin"])
def test_one_seed_of_a_short_lab_holds_and_rejects_what_is_wrong(lab, size):
    outcome = lab.experiment(size, 3)
    assert Verdict([ClaimRow(size, (claim,)) for claim in outcome.claims]).text == "holds"


# convex programmes


@pytest.mark.parametrize("points", [8, 30])
def test_hard_margin_is_the_support_vector_machine_of_mirrored_data(points):
    Z = margins.draw_points(points, 5)
    found = hard_margin(Z)
    both, labels = np.vstack([Z, -Z]), np.repeat([1, -1], points)
    machine = SVC(kernel="linear", C=1e6, tol=1e-10).fit(both, labels)
    assert np.allclose(machine.coef_[0], found.w, atol=1e-6)
    assert set(np.flatnonzero(found.weights > 0)) == {int(i) % points for i in machine.support_}


def test_hard_margin_satisfies_the_conditions_of_its_minimum():
    Z = margins.draw_points(25, 1)
    found = hard_margin(Z)
    slack = Z @ found.w - 1
    assert slack.min() > -1e-12
    assert np.abs(found.weights * slack).max() < 1e-12
    assert np.allclose(found.weights @ Z, found.w)


def test_points_that_no_plane_separates_are_refused():
    with pytest.raises(InvalidInput, match="separable"):
        hard_margin([[1.0, 0.0], [-1.0, 0.0]])


def test_newton_within_the_solutions_agrees_with_a_general_minimiser():
    problem = diagonal.SparseProblem.draw(12, 0)
    c = problem.start**2

    def q(beta):
        s = beta / c
        return np.sum(c * (2 - np.sqrt(4 + s**2) + s * np.arcsinh(s / 2)))

    equations = {"type": "eq", "fun": lambda b: problem.X @ b - problem.y}
    found = minimize(q, problem.truth, constraints=equations, method="SLSQP", options={"ftol": 1e-15, "maxiter": 500})
    assert np.allclose(diagonal.least_q(problem, 1.0), found.x, atol=1e-5)


def test_a_function_without_a_minimum_is_refused():
    with pytest.raises(InvalidInput, match="500 Newton steps"):
        minimise_on_affine(lambda b: np.exp(b), lambda b: np.exp(b), [[1.0, -1.0]], [0.0])


def test_least_absolute_sum_recovers_a_sparse_truth():
    problem = diagonal.SparseProblem.draw(40, 1)
    assert diagonal.certificate(problem) < 1
    assert np.allclose(least_absolute_sum(problem.X, problem.y), problem.truth)


def test_slope_error_covers_a_bend():
    x = np.linspace(1.0, 2.0, 20)
    slope, drift = slope_and_drift(x, x + 0.1 * x**2)
    assert abs(slope - 1.4) < drift < 1.0
    assert abs(slope - 1.4) > 0.01  # the last half of the points has not arrived


# the flows


def test_diagonal_flow_follows_the_gradient_of_its_network():
    problem = diagonal.SparseProblem.draw(20, 2)
    start = np.tile(problem.start, (2, 1))

    def loss(theta):
        return 0.5 * jnp.sum((problem.X @ (theta[0] ** 2 - theta[1] ** 2) - problem.y) ** 2)

    step = 1e-6
    moved = start - step * np.asarray(jax.grad(loss)(jnp.asarray(start)))
    trained = diagonal.flow_from_scale(problem, 1.0)
    early = np.array([np.interp(step, trained.times, row) for row in trained.beta])
    assert np.allclose(early, moved[0] ** 2 - moved[1] ** 2, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("loss", ["exponential", "logistic"])
def test_rescaled_flow_passes_where_the_flow_in_ordinary_time_does(loss):
    Z = margins.draw_points(10, 0)

    def velocity(_, w):
        _, slope = margins.LOSSES[loss](Z @ w)
        return np.exp(slope) @ Z

    ordinary = solve_ivp(velocity, (0.0, 100.0), np.zeros(Z.shape[1]), "LSODA", rtol=1e-10, atol=1e-12)
    path = margins.follow(Z, loss)
    at = np.log(101.0)
    passed = [np.interp(at, path.log_time, row) for row in path.w.T]
    assert np.allclose(passed, ordinary.y[:, -1], atol=0.02)
    assert not np.allclose(np.zeros(4), ordinary.y[:, -1], atol=0.5)


def test_logistic_slope_is_the_derivative_of_the_loss():
    m = np.array([-3.0, 0.2, 5.0, 40.0])
    _, slope = margins.log_logistic(m)
    expected = -jax.vmap(jax.grad(lambda x: jnp.logaddexp(0.0, -x)))(m)
    assert np.allclose(np.exp(slope), expected, rtol=1e-10)


# stochastic gradient descent


def test_readings_are_averages_over_every_batch():
    problem = sgd.draw_problem("network", 0)
    loss, _ = sgd.MODELS["network"]
    each = jax.vmap(jax.grad(loss), (None, 0, 0))(problem.start, problem.X, problem.y)
    batches = 0.5 * (each[:, None] + each[None]).reshape(-1, each.shape[1])
    reading = jax.jit(sgd._steady_reading, static_argnums=0)(loss, problem, 0.1, problem.start, jax.random.PRNGKey(0))
    assert np.isclose(reading.noise, jnp.sum(batches**2, axis=1).mean())
    assert not np.isclose(reading.noise, jnp.sum(each**2, axis=1).mean(), rtol=0.1)
    assert np.allclose(reading.gradient, batches.mean(axis=0))


def test_derivatives_along_a_batch_continue_the_loss():
    problem = sgd.draw_problem("network", 1)
    loss, _ = sgd.MODELS["network"]
    key, eta = jax.random.PRNGKey(4), 1e-2
    reading = jax.jit(sgd._steady_reading, static_argnums=0)(loss, problem, eta, problem.start, key)
    each = jax.vmap(jax.grad(loss), (None, 0, 0))(problem.start, problem.X, problem.y)
    g = each[jax.random.randint(key, (sgd.BATCH,), 0, sgd.SAMPLES)].mean(axis=0)

    def full(theta):
        return jax.vmap(loss, (None, 0, 0))(theta, problem.X, problem.y).mean()

    series = -eta * g @ reading.gradient + eta**2 / 2 * reading.second - eta**3 / 6 * reading.third
    change = full(problem.start - eta * g) - full(problem.start)
    assert abs(change - series - eta**4 / 24 * reading.fourth) < 0.2 * abs(change - series)
    assert np.isclose(reading.all_orders, change / eta + g @ reading.gradient, rtol=1e-9)


def test_variance_of_fast_coordinates_is_stationary():
    lam, eta, noise = 0.7, 0.3, 0.2
    v = entropic_force.fast_variance(lam, eta, noise)
    assert np.isclose((1 - 2 * eta * lam) ** 2 * v + eta**2 * 2 * lam * noise, v)


def test_predicted_drift_is_the_mean_of_one_step():
    random = np.random.default_rng(0)
    scale, centre, slow = random.uniform(0.5, 1.5, 4), random.normal(size=(4, 2)), random.normal(size=2)
    eta, noise, draws = 0.05, 0.1, 400_000
    lam, slopes = np.asarray(entropic_force.stiffness(slow, scale, centre)), scale[:, None] * (slow - centre)
    fast = np.sqrt(entropic_force.fast_variance(lam, eta, noise)) * random.normal(size=(draws, 4))
    xi = np.sqrt(noise) * random.normal(size=(draws, 4))
    moved = slow - eta * (fast**2 - fast * xi / np.sqrt(2 * lam)) @ slopes
    change = sum(s * (1 + 0.5 * ((moved - c) ** 2).sum(axis=1)) for s, c in zip(scale, centre, strict=True)) - lam.sum()
    mean, error, *_ = mean_and_error(change)
    rate = float(entropic_force.predicted_rate(slow, scale, centre, eta, noise))
    assert abs(mean - rate) < 4 * error
    assert abs(mean - rate / 2) > 5 * error


def test_effective_loss_adds_the_trace_of_the_hessian_at_small_rates():
    random = np.random.default_rng(1)
    X, theta = random.normal(size=(3, 2)), (random.normal(size=(4, 2)), random.normal(size=4), random.normal(size=4))
    y, eta, noise = entropic_force.tanh_outputs(theta, X), 1e-4, 0.3
    hessian = jax.hessian(lambda W: entropic_force.loss((W, *theta[1:]), X, y))(theta[0])
    block = np.trace(np.asarray(hessian).reshape(8, 8))
    part = np.trace(entropic_force.tanh_kernel(theta, X)) - np.trace(_kernel_of_the_rest(theta, X))
    assert np.isclose(block, part)
    added = entropic_force.effective_loss(theta, X, y, eta, noise)
    assert np.isclose(added, eta * noise / 4 * np.trace(entropic_force.tanh_kernel(theta, X)), rtol=1e-2)


def _kernel_of_the_rest(theta, X):
    J = jax.jacobian(lambda rest: entropic_force.tanh_outputs((theta[0], *rest), X))(theta[1:])
    return sum(np.asarray(j) @ np.asarray(j).T for j in J)


# entropy


@pytest.mark.parametrize("bits", [1, 3, 6])
def test_every_lipschitz_function_is_near_a_member_of_the_net(bits):
    slopes = np.random.default_rng(bits).uniform(-1, 1, (500, bits + 1))
    slopes[0] = 1.0
    values = np.cumsum(slopes, axis=1) / (bits + 1)
    nearest = cdist(values, lipschitz_net(bits), "chebyshev").min(axis=1)
    assert np.isclose(nearest.max(), 1 / (bits + 1))
    packed = lipschitz_packing(bits)
    assert len(packed) == 2 * len(lipschitz_net(bits))
    assert cdist(packed, packed, "chebyshev")[~np.eye(len(packed), dtype=bool)].min() > 1.999 / (bits + 1)


@pytest.mark.parametrize("radius", [0.3, 0.05, 0.011])
def test_bits_of_an_interval_lie_between_the_bounds(radius):
    least, most = ellipsoid_bits([1.0], radius)
    assert least <= np.log2(np.ceil(1 / radius)) <= most


def test_ellipsoid_bits_refuse_a_radius_of_zero():
    with pytest.raises(InvalidInput, match="radius"):
        ellipsoid_bits([1.0], 0.0)


def test_greedy_net_is_apart_and_covers():
    points = np.random.default_rng(3).normal(size=(200, 3))
    chosen, radius = greedy_net(points, 20)
    assert cdist(points, points[chosen]).min(axis=1).max() == pytest.approx(radius)
    between = cdist(points[chosen], points[chosen])
    assert between[~np.eye(20, dtype=bool)].min() >= radius


def test_extension_keeps_the_lipschitz_constant():
    random = np.random.default_rng(4)
    points, images = random.normal(size=(30, 6)), random.normal(size=(30, 4))
    constant = lipschitz_constants(points, images)[0] * 1.05
    for at in random.normal(size=(10, 6)):
        value = extend(points, images, constant, at, random.normal(size=4))
        points, images = np.vstack([points, at]), np.vstack([images, value])
    assert lipschitz_constants(points, images)[0] <= constant * (1 + 1e-6)


def test_a_constant_that_is_too_small_is_refused():
    with pytest.raises(InvalidInput, match="Lipschitz constant"):
        extend([[0.0], [1.0]], [[0.0], [5.0]], 1.0, [0.5], [0.0], rounds=50)


# test error


STUDENT = general.Student("critical", 3)


def test_controls_of_generalisation_have_mean_zero():
    layers = [general.draw_networks(STUDENT.network(16), 7, batch) for batch in range(20)]
    starts = [general.preactivations(some, np.vstack(general.teacher_data()[::2])) for some in layers]
    zero = np.concatenate([general.controls(STUDENT, start) for start in starts])
    assert np.abs(zero.mean(axis=0) / (zero.std(axis=0) / np.sqrt(len(zero)))).max() < 4.5
    wrong = zero[:, -28:] + 0.1 * general.first_kernel(STUDENT)
    assert np.abs(wrong.mean(axis=0) / (wrong.std(axis=0) / np.sqrt(len(wrong)))).max() > 5


def test_extrapolation_of_generalisation_removes_the_next_order(monkeypatch):
    monkeypatch.setattr(general, "coefficients", lambda student: (0.3, -0.8))
    monkeypatch.setattr(
        general, "measured_error", lambda student, n, seed: LabEstimate(0.3 - 0.8 / n + 9.0 / n**2, 1e-6, 99)
    )
    extrapolated = general._student_claim(general.Student("chaotic", 3, extrapolated=True), 64, 0)
    assert extrapolated.measured == pytest.approx(-0.8)
    assert abs(extrapolated.pull) < 1
    assert general._student_claim(general.Student("chaotic", 3), 64, 0).pull > 5


@pytest.mark.full
def test_students_of_generalisation_err_as_networks_of_train_do():
    student, (X, y, X_test, y_test) = general.Student("critical", 2), general.teacher_data()
    how = GradientDescent(general.RATE, general.ROUND)
    found = train(student.network(32), X, y, X_test, networks=2000, algorithm=how, seed=1, progress=False)
    off, tests = found["mean"].values[0] - y_test, np.arange(len(y_test))
    error = np.mean(off**2 + found["cov"].values[0, tests, 0, tests])
    # the test inputs as if perfectly correlated, which is never too small
    scatter = 2 * np.abs(off) * found["mean_se"].values[0] + found["cov_se"].values[0, tests, 0, tests]
    measured, own, _ = general.measured_error(student, 32, 0)
    assert abs(measured - error) < 4 * np.hypot(own, scatter.mean())
    later, _, _ = general.measured_error(general.Student("critical", 2, 2), 32, 0)
    assert abs(later - error) > 5 * np.hypot(own, scatter.mean())


# deep networks


def test_logarithm_of_a_layer_is_that_of_sampled_layers():
    z = np.random.default_rng(5).normal(size=(200_000, 8))
    sums = 2 / 8 * np.sum(np.maximum(z, 0) ** 2, axis=1)
    logs = np.log(sums[sums > 0])
    mean, variance = general.layer_logarithm(8)
    found, error, *_ = mean_and_error(logs)
    assert abs(found - mean) < 4 * error
    assert abs(found + 5 / 16) > 5 * error
    square, error, *_ = mean_and_error((logs - mean) ** 2)
    assert abs(square - variance) < 4 * error
