"""Theory §7 on sampled networks: kernels, correlations and gradients through many layers, in standard errors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from user_activations import mish, softsign

import widthwise as ww
from widthwise.criticality.critical import critical
from widthwise.criticality.kernel_fixed_points import fixed_points, pair_fixed_point
from widthwise.criticality.learning_rates import layer_shares
from widthwise.criticality.phase_diagram import critical_line
from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import forward, network_key, sample_parameters
from widthwise.results.theory import single_input

#: Networks held in memory at once.
CHUNK = 50


def sampled(net, networks, seed, *observers):
    """What each observer sees in each sampled network, (networks, …); they all see the same networks."""
    rows = []
    for start in range(0, networks, CHUNK):
        index = jnp.arange(start, min(start + CHUNK, networks))
        layers = jax.vmap(lambda i: sample_parameters(net, network_key(seed, i)))(index)
        rows.append([np.asarray(jax.vmap(observe)(layers)) for observe in observers])
    return [np.concatenate(seen) for seen in zip(*rows, strict=True)]


def with_more_weight(observe, factor=1.05):
    """The same observer on networks with C_W larger by a factor."""
    return lambda layers: observe([Weights(math.sqrt(factor) * layer.W, layer.b) for layer in layers])


def kernels(net, X):
    """layers ↦ Ĝ_ab of every layer after the first given the ones below, (L − 1, inputs, inputs)."""

    def observe(layers):
        incoming, _ = forward(net, layers, X)
        return jnp.stack([
            C_b + C_W / n * (y @ y.T)
            for C_b, C_W, n, y in zip(net.C_b[1:], net.C_W[1:], net.widths[1:-1], incoming[1:], strict=True)
        ])  # fmt: skip

    return observe


def started_at(point):
    """An input that enters at K*, or with x·x/n_0 = 1."""
    return math.sqrt((point.K_star - point.C_b) / point.C_W) if point.K_star > 0.0 else 1.0


# --- the flow of K at the critical point of activations that a user wrote ---------------------------------------


@pytest.mark.parametrize("activation", [mish, softsign, jnp.arctan], ids=["mish", "softsign", "arctan"])
def test_kernels_of_sampled_networks_flow_as_predicted_at_the_critical_point(activation):
    point, n, networks = critical(activation), 80, 300
    x = started_at(point)
    net = ww.MLP([1, *[n] * 10, 1], activation, C_b=point.C_b, C_W=point.C_W)
    other = net.replace(C_W=1.05 * point.C_W)
    at = jnp.full((1, 1), x)
    found = sampled(net, networks, 11, kernels(net, at), with_more_weight(kernels(other, at)))

    def pulls(rows, prediction):
        ds = single_input(prediction, [x], tensors=["G1"])
        expected = ds["K"].values * (1.0 + ds["G1_ratio"].values / n)
        rows = rows[:, :, 0, 0]
        return (rows.mean(axis=0) - expected[1:]) / (rows.std(axis=0, ddof=1) / math.sqrt(networks))

    assert np.abs(pulls(found[0], net)).max() < 4.0
    assert np.abs(pulls(found[1], other)).max() < 4.0
    assert np.abs(pulls(found[1], net)).max() > 6.0  # five per cent more C_W is seen


# --- correlation lengths off critical --------------------------------------------------------------------------


def at_correlations(K, C_b, C_W, *correlations):
    """Inputs of kernel K in the first layer: one, and others with given correlations to it; (inputs, features)."""
    size = math.sqrt((K - C_b) / C_W)
    # the biases of the first layer are shared, the weights see the rest
    cosines = (np.asarray(correlations) * K - C_b) / (K - C_b)
    assert np.all(np.abs(cosines) <= 1.0)
    directions = np.stack([cosines, np.sqrt(1.0 - cosines**2)], axis=1)
    return math.sqrt(2.0) * size * np.concatenate([[[1.0, 0.0]], directions])


def signal(mean):
    """1 − c of the first two inputs; with three, the difference of their two correlations to the first; by layer."""
    c = mean[:, 0, 1:] / np.sqrt(mean[:, 0, :1] * np.einsum("laa->la", mean)[:, 1:])
    return 1.0 - c[:, 0] if c.shape[1] == 1 else c[:, 0] - c[:, 1]


def length(mean, first, last):
    """Layers over which the signal falls by e, between two layers."""
    found = signal(mean)
    return (last - first) / math.log(found[first - 2] / found[last - 2])


def jackknife(samples, function, groups=25):
    """function(mean over networks) and its standard error, leaving out one group of networks at a time."""
    parts = samples.reshape(groups, -1, *samples.shape[1:]).mean(axis=1)
    left_out = (parts.sum(axis=0) - parts) / (groups - 1)
    values = np.array([function(mean) for mean in left_out])
    return function(parts.mean(axis=0)), math.sqrt((groups - 1) * values.var())


@pytest.mark.parametrize(
    ("C_b", "C_W", "phase", "apart"),
    [(0.1, 1.0, "ordered", (0.98,)), (0.5, 8.0, "chaotic", (0.3, -0.3))],
    ids=["ordered", "chaotic"],
)
def test_correlations_of_sampled_networks_decay_over_the_predicted_length(C_b, C_W, phase, apart):
    """Ordered: 1 − c falls like e^(−l/ξ). Chaotic: so does what is left of a difference between two correlations.

    Lengths at two widths, extrapolated linearly in 1/n.
    """
    point = pair_fixed_point("erf", C_b, C_W)
    assert point.phase == phase
    correlations = apart if phase == "ordered" else [point.correlation + shift for shift in apart]
    X = jnp.asarray(at_correlations(point.K, C_b, C_W, *correlations))
    first, last = 2, 6
    found = []
    for n, networks in ((80, 500), (160, 250)):
        net = ww.MLP([2, *[n] * (last - 1), 1], "erf", C_b=C_b, C_W=C_W)
        (samples,) = sampled(net, networks, 7, kernels(net, X))
        found.append(jackknife(samples, lambda mean: length(mean, first, last)))
    (narrow, narrow_se), (wide, wide_se) = found
    measured, se = 2.0 * wide - narrow, math.hypot(2.0 * wide_se, narrow_se)
    assert se < 0.12 * point.xi
    assert abs(measured - point.xi) < 3.0 * se
    # lengths from other susceptibilities are told apart: χ_∥; χ_⊥ at c = 1 where c* is another; χ for its square root
    end = fixed_points("erf", C_b, C_W).reached_from(point.K)
    for wrong in (end.xi_parallel, abs(end.xi_perp) if phase == "chaotic" else 2.0 * end.xi_perp):
        assert abs(measured - wrong) > 4.0 * se


def test_the_correlation_that_is_reached_is_a_fixed_point_that_attracts():
    net = ww.MLP([2, *[8] * 119, 1], "tanh", C_b=0.05, C_W=2.5)
    K = ww.theory(net, [[1.0, 0.2], [0.7, 0.9]], tensors=["K"])["K"].values
    c = K[:, 0, 1] / np.sqrt(K[:, 0, 0] * K[:, 1, 1])
    point = pair_fixed_point("tanh", 0.05, 2.5)
    assert c[-1] == pytest.approx(point.correlation, abs=1e-4)
    beyond = c[60:81] - point.correlation
    assert 20 / math.log(beyond[0] / beyond[-1]) == pytest.approx(point.xi, rel=0.01)
    assert pair_fixed_point("tanh", 0.0, 2.5).correlation == 0.0
    ordered = pair_fixed_point("tanh", 0.05, 1.5)
    assert (ordered.phase, ordered.correlation) == ("ordered", 1.0)
    assert ordered.xi == fixed_points("tanh", 0.05, 1.5).reached_from(1.0).xi_perp
    K, C_W, C_b = (values[20] for values in critical_line("tanh", 40))
    on_the_line = pair_fixed_point("tanh", C_b, C_W)
    assert (on_the_line.phase, on_the_line.K) == ("critical", pytest.approx(K, rel=1e-6))
    with pytest.raises(InvalidInput, match="kernel of relu grows without bound"):
        pair_fixed_point("relu", 0.1, 2.5)
    with pytest.raises(InvalidInput, match="kernel of tanh shrinks to zero"):
        pair_fixed_point("tanh", 0.0, 0.5)


# --- gradients -------------------------------------------------------------------------------------------------


def squared_gradients(net, x):
    """layers ↦ |∂z/∂bˡ|² of the output at one input, by automatic differentiation, (L,)."""

    def output(biases, layers):
        shifted = [Weights(layer.W, bias) for layer, bias in zip(layers, biases, strict=True)]
        return forward(net, shifted, x)[1][-1][0, 0]

    def observe(layers):
        return jnp.stack([jnp.sum(g**2) for g in jax.grad(output)([layer.b for layer in layers], layers)])

    return observe


def predicted_gradients(net, x):
    """E|∂z/∂bˡ|² to order 1/n: what the biases of layer l alone add to Θ + H1/n at the output."""
    values = []
    for row in np.eye(net.depth):
        alone = net.replace(lambda_W=0.0, lambda_b=row.tolist())
        ds = single_input(alone, x, tensors=["H1"], layers="last")
        values.append(ds["Theta"].item() * (1.0 + ds["H1_ratio"].item() / net.n))
    return np.array(values)


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_gradients_of_sampled_networks_are_flat_in_depth_at_criticality_and_five_per_cent_off_they_are_not(activation):
    """The slope of log |∂z/∂bˡ|² over l, beside the prediction: 0 for relu and gelu, a power of l for tanh."""
    point, n, networks, L = critical(activation), 80, 300, 14
    x = [started_at(point)]
    net = ww.MLP([1, *[n] * (L - 1), 1], activation, C_b=point.C_b, C_W=point.C_W)
    layer = np.arange(1.0, L)
    prediction = layer_shares(net.replace(lambda_b=1.0, lambda_W=0.0), [x]).biases[:-1]

    def slope(mean):
        return np.polyfit(layer, np.log(mean[:-1] / prediction), 1)[0]

    gradients = squared_gradients(net, jnp.asarray([x]))
    found, off = sampled(net, networks, 5, gradients, with_more_weight(gradients))
    if activation != "tanh":
        assert np.ptp(prediction) < 1e-9
    value, se = jackknife(found, slope)
    assert abs(value) < 3.5 * se
    value, se = jackknife(off, slope)
    assert value < -5.0 * se  # ln 1.05 a layer, or what of it is not damped
    hidden = found[:, :-1]  # the gradient at the last layer is one
    error = hidden.std(axis=0, ddof=1) / math.sqrt(networks)
    assert np.abs((hidden.mean(axis=0) - predicted_gradients(net, x)[:-1]) / error).max() < 4.0
