"""Catapult, edge of stability, Hessian and neural collapse: the tools by other routes, and the labs themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widthwise.errors import InvalidInput
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tangent import added, gradient, kernel, outputs, scaled, tangent
from widthwise.labs.base import in_units, outputs_in_units
from widthwise.labs.neural_collapse import predicted_duality
from widthwise.labs.tools.classifier import class_parts, collapse, cross_entropy
from widthwise.network import MLP
from widthwise.special.lanczos import gauss_newton_product, hessian_product, lanczos_density, top_eigenpairs
from widthwise.special.learning_rate_limits import catapult_map, catapult_orbit

X = np.array([[1.0, -0.5, 0.8]])
TARGET = 0.4


def one_step(activation, width, factor):
    """(r, λ) of a network before and after a step of η = factor/λ, η, and whether a neuron changed side."""
    net = MLP([3, width, 1], activation, lambda_b=0.0)
    layers = sample_parameters(net, network_key(3, 0))
    before = float(kernel(tangent(net, layers, X))[0, 0, 0, 0])
    slope, error = gradient(net, layers, X, jnp.array([[TARGET]]))
    moved = added(layers, scaled(net, slope), -factor / before)
    after = float(outputs(net, moved, X)[0, 0]) - TARGET, float(kernel(tangent(net, moved, X))[0, 0, 0, 0])
    changed = bool(((X @ layers[0].W.T > 0) != (X @ moved[0].W.T > 0)).any())
    return (float(error[0, 0]), before), after, factor / before, changed


@pytest.mark.parametrize(("activation", "factor"), [("linear", 3.0), ("relu", 0.02)])
def test_the_map_is_a_step_of_descent(activation, factor):
    before, after, eta, changed = one_step(activation, 24, factor)
    assert activation == "linear" or not changed
    c = (X**2).sum() / (24 * 3)
    np.testing.assert_allclose(catapult_map(*before, eta, c, TARGET), after, rtol=1e-12)
    wrong = catapult_map(*before, eta, 3 * c, TARGET)
    assert abs(wrong[1] - after[1]) > 1e-5 * after[1]


def test_curvature_falls_below_four_and_grows_above():
    k = np.array([0.5, 2.5, 3.9, 4.1])
    orbit = catapult_orbit(0.05, k, 1.0, 1.0, steps=60)
    assert (np.diff(orbit.curvature[:, :3], axis=0) <= 0.0).all()
    assert (np.abs(orbit.residual[-1, :3]) < 0.05).all()
    assert not abs(orbit.residual[-1, 3]) < 1e3


def test_the_first_step_raises_the_loss_above_two_plus_s_squared():
    s, k = np.meshgrid([0.01, 0.1, 0.5], np.linspace(1.1, 3.9, 57))
    raised = np.abs(catapult_map(s, k, 1.0, 1.0)[0]) > s
    np.testing.assert_array_equal(raised, k > 2.0 + s**2)
    assert (raised != (k > 2.0)).any()


def test_a_rate_that_is_not_positive_is_refused():
    with pytest.raises(InvalidInput, match=r"learning_rate.*-1.*positive"):
        catapult_orbit(1.0, 1.0, [-1.0, 2.0], 0.1)


def small_classifier():
    net = MLP([4, 5, 3], "tanh")
    rng = np.random.default_rng(0)
    data, labels = rng.normal(size=(9, 4)), np.arange(9) % 3
    layers = sample_parameters(net, network_key(1, 0))
    u, of = outputs_in_units(net, layers, data)
    return net, layers, data, labels, u, of


def test_lanczos_finds_the_spectrum_of_the_dense_hessian():
    *_, labels, u, of = small_classifier()

    def loss(u):
        return cross_entropy(of(u), labels)

    dense = np.asarray(jax.hessian(loss)(u))
    exact = np.linalg.eigvalsh(dense)[::-1]
    values, vectors = top_eigenpairs(hessian_product(loss, u), jnp.ones(len(u)), 40, 4)
    np.testing.assert_allclose(values, exact[:4], rtol=1e-10)
    np.testing.assert_allclose(dense @ vectors.T, values * vectors.T, atol=1e-9)
    rule = lanczos_density(hessian_product(loss, u), len(u), steps=12, probes=100, key=jax.random.key(0))
    means = len(u) * (rule.node * rule.weight).sum(axis=1)  # each an unbiased estimate of the trace
    error = means.std(ddof=1) / 10.0
    assert abs(means.mean() - np.trace(dense)) < 4 * error
    assert abs(means.mean() - np.trace(dense @ dense)) > 5 * error


def test_gauss_newton_is_the_fisher_information_with_the_spectrum_of_the_weighted_kernel():
    net, layers, data, labels, u, of = small_classifier()
    product = gauss_newton_product(of, lambda z: cross_entropy(z, labels), u)
    G = np.asarray(jax.vmap(product)(jnp.eye(len(u))))
    p = np.asarray(jax.nn.softmax(of(u), axis=0))
    J = np.asarray(jax.jacobian(of)(u))
    scores = [np.sqrt(p[c, a] / 9) * (J[c, a] - p[:, a] @ J[:, a]) for a in range(9) for c in range(3)]
    np.testing.assert_allclose(G, np.einsum("sp,sq->pq", scores, scores), atol=1e-12)
    H = np.asarray(kernel(tangent(net, layers, data))).reshape(27, 27) / 9
    S = np.zeros((3, 9, 3, 9))
    for a in range(9):
        S[:, a, :, a] = np.diag(p[:, a]) - np.outer(p[:, a], p[:, a])
    weighted = np.sort(np.linalg.eigvals(S.reshape(27, 27) @ H).real)[::-1]
    np.testing.assert_allclose(np.linalg.eigvalsh(G)[::-1][:18], weighted[:18], atol=1e-10)
    assert abs(np.linalg.eigvalsh(H)[-1] - weighted[0]) > 0.1 * weighted[0]


def test_class_parts_are_the_means_by_hand_and_add_up():
    rng = np.random.default_rng(2)
    v, w, labels = rng.normal(size=(8, 3, 5)), rng.random((8, 3)), np.arange(8) % 3
    parts = class_parts(v, w, labels)
    whole = np.einsum("ic,icp,icq->pq", w, v, v)
    np.testing.assert_allclose(sum(np.asarray(part).T @ np.asarray(part) for part in parts), whole, atol=1e-12)
    of_class = [(w[i, d], v[i, d]) for i in range(8) for d in range(3) if labels[i] == 1 and d != 1]
    weight = sum(a for a, _ in of_class)
    mean = sum(a * b for a, b in of_class) / weight
    np.testing.assert_allclose(parts.between[1], np.sqrt(weight) * mean, atol=1e-12)
    # inputs that are the same within a class leave nothing within
    same = class_parts(v[labels], w[labels], labels)
    assert float(same.traces[2]) < 1e-24 < float(parts.traces[2])


def test_parameters_in_units_descend_with_one_rate_and_frozen_ones_stay():
    net = MLP([2, 4, 1], "tanh", C_b=1.0, lambda_b=[0.0, 0.5], lambda_W=[3.0, 0.7])
    layers, data, y = sample_parameters(net, network_key(0, 0)), np.array([[1.0, 2.0]]), np.array([[0.3]])
    u, back = in_units(net, layers)
    of = outputs_in_units(net, layers, data)[1]
    moved = back(u - 0.1 * jax.grad(lambda u: 0.5 * jnp.sum((of(u) - y) ** 2))(u))
    expected = added(layers, scaled(net, gradient(net, layers, data, y)[0]), -0.1)
    for found, wanted in zip(jax.tree.leaves(moved), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-14)
    np.testing.assert_array_equal(moved[0].b, layers[0].b)


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_duality_is_that_of_ridge_regression_on_a_simplex(decay):
    classes = 4
    M = 1.7 * (np.eye(classes) - 1 / classes)
    h, targets = np.repeat(M, 3, axis=0), np.repeat(np.eye(classes), 3, axis=0)
    centred = targets - targets.mean(axis=0)
    W = np.linalg.solve(h.T @ h / len(h) + (decay or 1e-13) * np.eye(classes), h.T @ centred / len(h)).T
    found = collapse(jnp.asarray(h), np.repeat(np.arange(classes), 3), jnp.asarray(W), jnp.asarray(targets.T))
    expected = predicted_duality(np.asarray(found.mean_squares), decay)
    np.testing.assert_allclose(found.duality, expected, rtol=1e-6)
    np.testing.assert_allclose(found.mean_cosines, -1 / 3, atol=1e-12)
    assert float(found.nearest) == float(found.accuracy) == 1.0
    assert abs(predicted_duality(np.asarray(found.mean_squares), decay + 0.05) / expected - 1.0) > 0.05
