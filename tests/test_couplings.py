"""Couplings of the nearly-Gaussian action: closed forms, direct integrals, orders in 1/n, marginals, sampled networks."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss

import widthwise as ww
from widthwise.errors import SingularKernel
from widthwise.flow.action.couplings import Couplings, action_from_correlators, couplings, loops, symmetric, transform
from widthwise.flow.tensors.tensor_flow import finite_flow

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [0.6, -0.2, 0.4]])
NETS = {name: ww.MLP([3, 32, 32, 8], name, C_b=0.1, C_W=1.5) for name in ("tanh", "gelu")}


@pytest.fixture(scope="module", params=NETS)
def layer(request):
    """Eight output neurons at three inputs of a network of depth three."""
    return couplings(NETS[request.param], X)


@pytest.fixture(scope="module")
def tanh():
    return couplings(NETS["tanh"], X)


LEGENDRE = np.polynomial.legendre.leggauss(200)


def slope_of(x, y):
    return np.polyfit(np.log(x), np.log(np.abs(y)), 1)[0]


def correlators_from_action(g, v, m):
    """G and V/n of m neurons whose action has couplings g and v, to first order in v: the way back (theory §6).

    >>> g, v = np.array([[0.53]]), np.full((1, 1, 1, 1), 0.01)
    >>> G, four = correlators_from_action(g, v, m=1)
    >>> G.round(2).tolist()
    [[1.99]]
    """
    bare = symmetric(np.linalg.inv(g))
    return bare + bare @ loops(v, bare, m) @ bare, transform(v, bare)


def integrate_out(g, v, count):
    """Quadratic coupling after integrating out `count` neurons: g − (count/2) v^{(ab)(cd)} (g⁻¹)_cd (theory §6).

    To this order v stays as it is. One input: g_m = g_n − (n−m)/2 · v/g_n.

    >>> integrate_out(np.array([[0.5]]), np.full((1, 1, 1, 1), 0.01), 3).round(12).tolist()
    [[0.47]]
    """
    return g - 0.5 * count * np.einsum("abcd,cd->ab", v, np.linalg.inv(g))


def one_input_moment(g, v, m):
    """E[z²] of m neurons under e^{−S}, one input, integrated up to the top of S at Σz² = 2g/v."""
    r_max = min(np.sqrt(2.0 * g / v), 14.0 / np.sqrt(g))
    node, weight = LEGENDRE
    r, weight = 0.5 * r_max * (node + 1.0), 0.5 * r_max * weight
    density = weight * r ** (m - 1) * np.exp(-0.5 * g * r**2 + v * r**4 / 8.0)
    return np.sum(density * r**2) / np.sum(density) / m


def grid(precision, m, nodes=8):
    """Gauss–Hermite points (points, m, inputs) and weights of m independent N(0, precision⁻¹)."""
    inputs = len(precision)
    u, w = hermegauss(nodes)
    points = np.array(list(product(u, repeat=m * inputs))).reshape(-1, m, inputs)
    weights = np.prod(np.array(list(product(w / w.sum(), repeat=m * inputs))), axis=1)
    return points @ np.linalg.cholesky(np.linalg.inv(precision)).T, weights


def two_point_by_quadrature(g, v, m):
    """E[z_0a z_0b] with e^{−S} replaced by its Gaussian part times 1 + x + x²/2, x the quartic term."""
    z, w = grid(g, m, nodes=6)
    M = np.einsum("pia,pib->pab", z, z)
    x = np.einsum("pab,abcd,pcd->p", M, v, M) / 8.0
    w = w * (1.0 + x + x**2 / 2.0)
    return np.einsum("p,pa,pb->ab", w, z[:, 0], z[:, 0]) / w.sum()


def test_one_input_formulas_of_section_6(layer):
    one = layer.marginal([1])
    K, G1, V = one.K[0, 0], one.G1[0, 0], one.V[0, 0, 0, 0]
    G = K + G1 / 32
    assert one.quartic[0, 0, 0, 0] == pytest.approx(V / (32 * G**4), rel=1e-12)
    for m in (1, 3, 8):
        kept = one.keep(m)
        assert kept.inverse_quadratic[0, 0] == pytest.approx(G - (m + 2) / 2 * V / (32 * G), rel=1e-12)
        assert kept.quadratic[0, 0] == pytest.approx(1 / G + (m + 2) / 2 * V / (32 * G**3), rel=1e-12)
        assert kept.strength == pytest.approx((m + 2) / 2 * V / (32 * G**2), rel=1e-9)


def test_the_tensors_come_from_the_flow_at_the_layer_asked_for(tanh):
    net = ww.MLP([3, 16, 24, 40, 2], "tanh", C_b=[0.1, 0.2, 0.3, 0.4], C_W=[1.1, 1.2, 1.3, 1.4])
    flow = finite_flow(net, X, ("V", "G1"))
    for at in (2, 3, 4):
        c = couplings(net, X, layer=at)
        assert (c.n, c.m, c.layer) == (net.widths[at - 1], net.widths[at], at)
        assert np.allclose(c.K, flow.K[at - 1], rtol=1e-12)
        assert np.allclose(c.V, flow.tensors["V"][at - 1], rtol=1e-9, atol=1e-12)
        assert np.allclose(c.G1, flow.tensors["G1"][at - 1], rtol=1e-9, atol=1e-12)
    assert tanh.error < 1e-6


def test_the_first_layer_is_gaussian():
    c = couplings(NETS["tanh"], X, layer=1)
    assert not c.V.any()
    assert c.strength < 1e-12
    assert np.allclose(c.quadratic, np.linalg.inv(c.K))


def test_the_many_input_quadratic_coupling_gives_back_G_to_second_order(layer):
    """Scaling V by ε: the two-point function by quadrature minus G falls like ε²; without the crossed term like ε."""
    pair = layer.marginal([0, 1])
    four, scales = pair.V / pair.n, np.array([0.001, 0.002, 0.004])
    for m in (1, 2):
        right, wrong = [], []
        for scale in scales:
            g, v = action_from_correlators(pair.G, scale * four, m)
            right.append(np.abs(two_point_by_quadrature(g, v, m) - pair.G).max())
            uncrossed = g - np.einsum("abcd,ac->bd", v, pair.G)
            wrong.append(np.abs(two_point_by_quadrature(uncrossed, v, m) - pair.G).max())
        assert slope_of(scales, right) == pytest.approx(2.0, abs=0.1)
        assert slope_of(scales, wrong) == pytest.approx(1.0, abs=0.1)


def test_the_signs_of_both_loops_are_those_of_a_direct_integral(layer):
    """d⟨zz⟩/dv at v = 0, by differences of the quadrature."""
    pair = layer.marginal([0, 2])
    g, four = np.linalg.inv(pair.G), pair.quartic
    step = 1e-5
    for m in (1, 2):
        change = (two_point_by_quadrature(g, step * four, m) - two_point_by_quadrature(g, -step * four, m)) / (2 * step)
        assert np.allclose(change, pair.G @ loops(four, pair.G, m) @ pair.G, rtol=1e-6)


@pytest.mark.parametrize("name", NETS)
def test_G_recovered_from_every_number_of_neurons_is_the_same_to_order_one_over_n(name):
    """Start with eight neurons, integrate out all but m, take E[z²] by a direct integral: the error falls like 1/n²."""
    one = couplings(NETS[name], X[:1])
    ratio = one.V[0, 0, 0, 0] / one.K[0, 0] ** 2
    # the barrier of the quartic term must be high, as well as 1/n small: wide networks where V/K² is large
    widths = 64 * 2 ** np.arange(7) if ratio < 1 else 1024 * 2 ** np.arange(7)
    errors = {m: [] for m in (1, 2, 4, 8)}
    misprint = {m: [] for m in (1, 2, 4)}
    for n in widths:
        c = replace(one, n=int(n), m=8)
        G, (g, v) = c.G[0, 0], (c.quadratic, c.quartic)
        for m in errors:
            errors[m].append(one_input_moment(integrate_out(g, v, 8 - m)[0, 0], v.item(), m) / G - 1.0)
        for m in misprint:
            wrong = g.item() - (8 - m) / 4 * v.item() / g.item()
            misprint[m].append(one_input_moment(wrong, v.item(), m) / G - 1.0)
    for m, error in errors.items():
        assert slope_of(widths[2:], error[2:]) == pytest.approx(-2.0, abs=0.1), m
    for m, error in misprint.items():
        assert slope_of(widths[2:], error[2:]) == pytest.approx(-1.0, abs=0.1), m


def test_there_and_back_again_returns_G_and_V_to_order_one_over_n(layer):
    """Many inputs: the couplings of every m, turned into correlators again."""
    widths = 128 * 2 ** np.arange(7)
    for m in (1, 3, 8):
        off_G, off_V = [], []
        for n in widths:
            c = replace(layer, n=int(n), m=m)
            G, four = correlators_from_action(c.quadratic, c.quartic, m)
            off_G.append(np.abs(G - c.G).max())
            off_V.append(np.abs(four - c.V / n).max())
        assert slope_of(widths[3:], off_G[3:]) == pytest.approx(-2.0, abs=0.15)
        assert slope_of(widths[3:], off_V[3:]) == pytest.approx(-2.0, abs=0.15)


def test_as_many_neurons_as_the_layer_below_has_are_outside_the_expansion(tanh):
    """The corrections to g_m are of relative size m V/(2nG²): for m = n they do not fall with the width."""
    strength = [replace(tanh.marginal([0]), n=n, m=n).strength for n in (256, 1024, 4096)]
    G, V = tanh.K[0, 0], tanh.V[0, 0, 0, 0]
    assert np.allclose(strength, V / (2 * G**2), rtol=0.02)


def test_marginals_over_inputs_are_sub_blocks_and_commute_with_those_over_neurons(layer):
    rows = [2, 0]
    direct = couplings(NETS["gelu" if layer.V.max() > 0.5 else "tanh"], X[rows], neurons=3)
    one_way, other_way = layer.keep(3).marginal(rows), layer.marginal(rows).keep(3)
    for c in (one_way, other_way):
        assert np.allclose(c.quadratic, direct.quadratic, rtol=1e-7)
        assert np.allclose(c.quartic, direct.quartic, rtol=1e-6, atol=1e-9 * np.abs(direct.quartic).max())
    # it is not the sub-block of the couplings
    assert not np.allclose(layer.quadratic[np.ix_(rows, rows)], layer.marginal(rows).quadratic, rtol=0.1)


def test_integrating_out_an_input_of_the_action_agrees_with_a_direct_integral():
    """Marginal of z_1 in e^{−S}, one neuron, two inputs: its logarithm has the couplings of the sub-block."""
    G = np.array([[1.0, 0.4], [0.4, 0.8]])
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 2, 2))
    root = root + np.swapaxes(root, 1, 2)
    four = np.einsum("kab,kcd->abcd", root, root)
    z0 = np.linspace(-1.5, 1.5, 7)
    scales = np.array([1e-4, 2e-4, 4e-4])
    off = []
    for scale in scales:
        g, v = action_from_correlators(G, scale * four, 1)
        u, w = LEGENDRE
        z = np.stack(np.broadcast_arrays(z0[:, None], 9.0 * u), axis=-1)
        x = np.einsum("...a,...b,...c,...d,abcd->...", z, z, z, z, v, optimize=True) / 8.0
        gauss = np.exp(-0.5 * np.einsum("...a,ab,...b->...", z, g, z))
        log_marginal = np.log(np.sum(w * gauss * (1.0 + x + x**2 / 2.0), axis=1))
        g_sub, v_sub = action_from_correlators(G[:1, :1], scale * four[:1, :1, :1, :1], 1)
        S = 0.5 * g_sub.item() * z0**2 - v_sub.item() / 8.0 * z0**4
        off.append(np.ptp(log_marginal + S))
    assert slope_of(scales, off) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(("factor", "order"), [(0.5, 2.0), (0.25, 1.0)], ids=["one half", "the misprint, one quarter"])
def test_integrating_out_a_neuron_of_the_action_agrees_with_a_direct_integral(factor, order):
    """Marginal of the second of two neurons, one input: the logarithm has g − v/(2g) and the same v."""
    g, z0, scales = 1.3, np.linspace(-1.5, 1.5, 7), np.array([1e-4, 2e-4, 4e-4])
    u, w = LEGENDRE
    off = []
    for v in scales:
        square = z0[:, None] ** 2 + (9.0 * u) ** 2
        x = v / 8.0 * square**2
        log_marginal = np.log(np.sum(w * np.exp(-0.5 * g * square) * (1.0 + x + x**2 / 2.0), axis=1))
        g_1 = integrate_out(np.array([[g]]), np.full((1, 1, 1, 1), v), 1).item()
        g_1 = g + (g_1 - g) * factor / 0.5
        off.append(np.ptp(log_marginal + 0.5 * g_1 * z0**2 - v / 8.0 * z0**4))
    assert slope_of(scales, off) == pytest.approx(order, abs=0.1)


def test_running_is_every_number_of_neurons_in_turn(layer):
    m, g = layer.running()
    assert m.tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    for count, quadratic in zip(m, g, strict=True):
        kept = layer.keep(int(count))
        assert np.allclose(quadratic, kept.quadratic, rtol=1e-12)
        assert np.array_equal(kept.quartic, layer.quartic)
    wide = replace(layer, n=10**6)
    # neuron by neuron, each time with the action of the moment
    step_by_step = wide.quadratic
    for quadratic in wide.running().quadratic[1:]:
        step_by_step = integrate_out(step_by_step, wide.quartic, 1)
        assert np.allclose(step_by_step, quadratic, rtol=1e-7)


def test_correlators_have_the_index_structure_of_section_3(tanh):
    V, n = tanh.V, tanh.n
    a, b, c, d = 0, 1, 2, 1
    assert tanh.two_point((3, 3), (0, 1)) == tanh.G[0, 1]
    assert tanh.two_point((3, 4), (0, 1)) == 0.0
    assert tanh.four_point((0, 0, 5, 5), (a, b, c, d)) == pytest.approx(V[a, b, c, d] / n)
    assert tanh.four_point((0, 5, 0, 5), (a, b, c, d)) == pytest.approx(V[a, c, b, d] / n)
    assert tanh.four_point((0, 5, 5, 0), (a, b, c, d)) == pytest.approx(V[a, d, b, c] / n)
    assert tanh.four_point((2, 2, 2, 2), (0, 0, 0, 0)) == pytest.approx(3 * V[0, 0, 0, 0] / n)
    assert tanh.four_point((0, 0, 1, 2), (a, b, c, d)) == 0.0
    assert tanh.correlator((1, 1), (0, 2)) == tanh.two_point((1, 1), (0, 2))
    assert tanh.correlator([0, 0, 5, 5], np.array([a, b, c, d])) == tanh.four_point((0, 0, 5, 5), (a, b, c, d))


def sampled_outputs(net, X, networks, seed):
    """Outputs (networks, outputs, inputs) of real networks with Gaussian weights."""
    rng, chunk, found = np.random.default_rng(seed), 5000, []
    for _ in range(networks // chunk):
        z, signal = None, np.broadcast_to(X.T, (chunk, *X.T.shape))
        for fan_in, fan_out, C_b, C_W in zip(net.widths[:-1], net.widths[1:], net.C_b, net.C_W, strict=True):
            W = np.sqrt(C_W / fan_in) * rng.standard_normal((chunk, fan_out, fan_in), dtype=np.float32)
            z = W @ signal + np.sqrt(C_b) * rng.standard_normal((chunk, fan_out, 1))
            signal = np.tanh(z)
        found.append(z)
    return np.concatenate(found)


def pull(samples, expected):
    return (samples.mean() - expected) / (samples.std(ddof=1) / np.sqrt(len(samples)))


def test_correlators_agree_with_sampled_networks(tanh):
    z = sampled_outputs(NETS["tanh"], X[:2], 150_000, seed=0)
    m, G = z.shape[1], tanh.G
    single = np.einsum("kia,kib->kiab", z, z)
    mean = single.mean(axis=1)
    for a, b in ((0, 0), (0, 1), (1, 1)):
        assert abs(pull(mean[:, a, b], tanh.two_point((0, 0), (a, b)))) < 4
        assert abs(pull(z[:, 0, a] * z[:, 1, b], tanh.two_point((0, 1), (a, b)))) < 4
    for a, b, c, d in ((0, 0, 0, 0), (0, 1, 0, 1), (0, 0, 1, 1), (1, 1, 1, 1)):
        same = (single[:, :, a, b] * single[:, :, c, d]).sum(axis=1)
        different = (m**2 * mean[:, a, b] * mean[:, c, d] - same) / (m * (m - 1))
        # the fluctuations of the two-point functions are taken out: they cost accuracy and have mean zero
        linear = G[a, b] * (mean[:, c, d] - G[c, d]) + G[c, d] * (mean[:, a, b] - G[a, b])
        connected = different - G[a, b] * G[c, d] - linear
        assert abs(pull(connected, tanh.four_point((0, 0, 1, 1), (a, b, c, d)))) < 4
        wick = G[a, b] * G[c, d] + G[a, c] * G[b, d] + G[a, d] * G[b, c]
        assert abs(pull(same / m - wick, tanh.four_point((0, 0, 0, 0), (a, b, c, d)))) < 4
        if (a, b) == (c, d):
            # wrong pairings, and none, must be seen to be wrong
            assert abs(pull(connected, 0.0)) > 10
            assert abs(pull(connected, tanh.four_point((0, 0, 0, 0), (a, b, c, d)))) > 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.keep(0), "neurons: got 0; expected an integer from 1 to 8, the 8 that are there"),
        (lambda c: c.keep(9), "neurons: got 9; expected an integer from 1 to 8"),
        (lambda c: c.keep(1.5), "neurons: got 1.5; expected an integer"),
        (lambda c: c.keep(True), "neurons: got True"),
        (lambda c: c.marginal([0, 3]), r"inputs: got \(0, 3\); expected 2 integers from 0 to 2"),
        (lambda c: c.marginal([-1]), r"inputs: got \(-1,\)"),
        (lambda c: c.marginal([1, 1]), r"inputs: got \[1, 1\]; expected at least one of the rows 0 to 2, none twice"),
        (lambda c: c.marginal([]), r"inputs: got \[\]"),
        (lambda c: c.marginal(0), "inputs: got 0"),
        (lambda c: c.marginal([0.0]), r"inputs: got \[0.0\]"),
        (lambda c: c.two_point((0, 8), (0, 0)), r"neurons: got \(0, 8\); expected 2 integers from 0 to 7"),
        (lambda c: c.two_point((0, 0), (0, 3)), r"inputs: got \(0, 3\); expected 2 integers from 0 to 2"),
        (lambda c: c.two_point((0, 0, 0), (0, 0)), r"neurons: got \(0, 0, 0\); expected 2 integers"),
        (lambda c: c.four_point((0, 0, 1, 1), (0, 0, 0)), r"inputs: got \(0, 0, 0\); expected 4 integers"),
        (lambda c: c.four_point((0, 0, 1, 1.0), (0, 0, 0, 0)), r"neurons: got \(0, 0, 1, 1.0\)"),
        (lambda c: c.correlator((0, 0, 0), (0, 0, 0)), "neurons: got .*expected two or four neurons"),
        (lambda c: c.correlator(3, (0, 0)), "neurons: got 3"),
        (lambda c: c.action_at(np.ones((8, 2))), r"z: got shape \(8, 2\); expected shape \(…, 8, 3\)"),
        (lambda c: c.keep(1).action_at(np.ones(3)), r"z: got shape \(3,\).*Write z\[..., None, :\] for one neuron"),
        (lambda c: c.marginal([0]).action_at(np.ones(8)), r"z: got shape \(8,\).*Write z\[..., None\] for one input"),
        (lambda c: c.action_at(np.full((8, 3), np.nan)), "z: got nan at index"),
        (lambda c: couplings(NETS["tanh"], X, neurons=9), "neurons: got 9; expected an integer from 1 to 8, the width of layer 3"),
        (lambda c: couplings(NETS["tanh"], X, neurons="all"), "neurons: got 'all'"),
        (lambda c: couplings(NETS["tanh"], X, layer=0), "layer: got 0; expected an integer from 1 to 3"),
        (lambda c: couplings(NETS["tanh"], X, layer=4), "layer: got 4"),
        (lambda c: couplings(NETS["tanh"], X, layer=2.0), "layer: got 2.0"),
        (lambda c: couplings("tanh", X), "net: got str; expected a widthwise.MLP"),
        (lambda c: couplings(NETS["tanh"], X[0]), r"X: got an array of shape \(3,\)"),
        (lambda c: replace(c, n=1, G1=-2.0 * c.K).quadratic, r"n: got 1; expected a width at which K \+ G1/n is positive"),
    ],
)  # fmt: skip
def test_bad_requests_say_what_was_expected(tanh, call, message):
    with pytest.raises(ww.WidthwiseError, match=message):
        call(tanh)


@pytest.mark.parametrize(
    ("net", "inputs", "layer", "message"),
    [
        (
            NETS["tanh"],
            X[[0, 1, 0]],
            None,
            "X: got rows 0 and 2, which coincide or are proportional in K.*Keep one row",
        ),
        (ww.MLP([3, 8, 8, 1], "relu", C_W=2.0), np.vstack([X, 2 * X[1]]), None, "rows 1 and 3"),
        (ww.MLP([3, 8, 8, 1], "tanh"), np.vstack([X, -X[2]]), None, "rows 2 and 3"),
        (ww.MLP([3, 8, 8, 1], "tanh"), np.vstack([X, 0 * X[2]]), None, "row 3, on which K = 0.*set C_b > 0"),
        (ww.MLP([2, 8, 8, 1], "tanh"), X[:, :2], 1, "rows 0, 1, 2, whose preactivations are linearly dependent"),
    ],
)
def test_dependent_inputs_are_named(net, inputs, layer, message):
    with pytest.raises(SingularKernel, match=message):
        couplings(net, inputs, layer=layer)


def test_nearly_dependent_inputs_warn_of_lost_digits():
    close = X[0] + 1e-5 * np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    with pytest.warns(ww.errors.AccuracyWarning, match="nearly dependent inputs"):
        c = couplings(NETS["tanh"], close)
    assert isinstance(c, Couplings)
    assert c.error > 1e-3
