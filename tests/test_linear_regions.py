"""Linear pieces of ReLU networks: brute force over activation patterns, dense sampling, closed counts, degenerate weights."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy.optimize import linprog

import widthwise as ww
from widthwise.errors import InvalidInput

SQUARE = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])


def draw(widths, seed, bias=0.3):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(m, n)) * math.sqrt(2.0 / n), bias * rng.normal(size=m)) for n, m in itertools.pairwise(widths)
    ]


def relu_output(layers, X):
    """Outputs (inputs, outputs) of the network, ReLU between its layers."""
    values = X
    for number, (W, b) in enumerate(layers):
        values = (np.maximum(values, 0.0) if number else values) @ W.T + b
    return values


def feasible_patterns(layers, bounds, origin, directions):
    """Activation patterns with an interior, over all 2^neurons of them: a linear program for the largest margin.

    Points are origin + u @ directions with u inside the bounds.
    """
    hidden = [len(b) for _, b in layers[:-1]]
    d, found = len(directions), set()
    for pattern in itertools.product((0, 1), repeat=sum(hidden)):
        gates, A, B = iter(pattern), directions.T, origin
        rows, right = [], []
        for W, b in layers[:-1]:
            slope, constant = W @ A, W @ B + b
            gate = np.array([next(gates) for _ in b])
            sign = np.where(gate == 1, -1.0, 1.0)  # sign (slope·u + constant) ≤ −margin
            scale = np.maximum(np.linalg.norm(slope, axis=1), 1e-300)
            rows.append(np.concatenate([sign[:, None] * slope, scale[:, None]], axis=1))
            right.append(-sign * constant)
            A, B = gate[:, None] * slope, gate * constant
        box = np.concatenate([np.eye(d), -np.eye(d)])
        rows.append(np.concatenate([box, np.ones((2 * d, 1))], axis=1))
        right.append(np.concatenate([[high for _, high in bounds], [-low for low, _ in bounds]]))
        solved = linprog(
            np.append(np.zeros(d), -1.0), np.concatenate(rows), np.concatenate(right), bounds=[(None, None)] * (d + 1)
        )
        if solved.status == 0 and -solved.fun > 1e-9:
            found.add(np.array(pattern, bool).tobytes())
    return found


def patterns_at(layers, X):
    """Activation patterns of inputs, as bytes."""
    values, signs = X, []
    for number, (W, b) in enumerate(layers[:-1]):
        values = (np.maximum(values, 0.0) if number else values) @ W.T + b
        signs.append(values > 0.0)
    return [row.tobytes() for row in np.concatenate(signs, axis=1)]


@pytest.mark.parametrize(("widths", "seed"), [([1, 3, 2, 1], 0), ([3, 3, 3, 1], 1), ([2, 2, 2, 2, 1], 2)])
def test_pieces_on_a_segment_are_the_feasible_activation_patterns(widths, seed):
    layers = draw(widths, seed)
    a, b = np.random.default_rng(seed + 50).normal(size=(2, widths[0])) * 2
    pieces = ww.special.linear_pieces_on_segment(layers, a, b)
    middles = 0.5 * (pieces.t[1:] + pieces.t[:-1])
    mine = patterns_at(layers, a + middles[:, None] * (b - a))
    assert len(set(mine)) == pieces.count > 2
    assert set(mine) == feasible_patterns(layers, [(0.0, 1.0)], a, (b - a)[None])


@pytest.mark.parametrize(("widths", "seed"), [([2, 4, 2, 1], 3), ([2, 3, 3, 1], 4), ([3, 2, 2, 2, 1], 5)])
def test_pieces_in_a_polygon_are_the_feasible_activation_patterns(widths, seed):
    layers = draw(widths, seed)
    rng = np.random.default_rng(seed + 50)
    origin, directions = 0.2 * rng.normal(size=widths[0]), np.linalg.qr(rng.normal(size=(widths[0], 2)))[0].T
    pieces = ww.special.linear_pieces_in_polygon(layers, origin + SQUARE @ directions)
    mine = patterns_at(layers, pieces.inputs(pieces.centres))
    assert len(set(mine)) == pieces.count > 5
    assert set(mine) == feasible_patterns(layers, [(-1.0, 1.0)] * 2, origin, directions)


def test_the_brute_force_sees_a_missing_neuron():
    # negative control: without the last neuron of the first layer the patterns are others
    layers = draw([2, 3, 2, 1], 6)
    fewer = [(layers[0][0][:2], layers[0][1][:2]), (layers[1][0][:, :2], layers[1][1]), layers[2]]
    all_of_them = feasible_patterns(layers, [(-1.0, 1.0)] * 2, np.zeros(2), np.eye(2))
    assert ww.special.linear_pieces_in_polygon(layers, SQUARE).count == len(all_of_them)
    assert ww.special.linear_pieces_in_polygon(fewer, SQUARE).count < len(all_of_them)


def test_a_larger_network_agrees_with_dense_sampling_on_a_segment():
    layers = draw([5, 40, 40, 40, 3], 7)
    a, b = np.random.default_rng(8).normal(size=(2, 5)) * 4
    pieces = ww.special.linear_pieces_on_segment(layers, a, b)
    t = np.linspace(0.0, 1.0, 40_001)
    X = a + t[:, None] * (b - a)
    assert np.abs(pieces(t) - relu_output(layers, X)).max() < 1e-12
    middles = 0.5 * (pieces.t[1:] + pieces.t[:-1])
    seen, mine = set(patterns_at(layers, X)), patterns_at(layers, a + middles[:, None] * (b - a))
    assert seen <= set(mine)
    long_enough = np.diff(pieces.t) > 2.6e-5
    assert {p for p, long in zip(mine, long_enough, strict=True) if long} <= seen
    assert pieces.count > 40


def test_a_larger_network_agrees_with_dense_sampling_in_a_triangle():
    layers = draw([6, 24, 24, 24, 2], 9)
    corners = np.random.default_rng(10).normal(size=(3, 6)) * 2
    pieces = ww.special.linear_pieces_in_polygon(layers, corners)
    share = np.random.default_rng(11).dirichlet(np.ones(3), size=100_000)
    counted = Counter(patterns_at(layers, share @ corners))
    found, counts = set(counted), np.array(list(counted.values()))
    mine = patterns_at(layers, pieces.inputs(pieces.centres))
    assert found <= set(mine)
    assert len(set(mine)) == pieces.count > 150
    # the share of the samples in each piece is its share of the area, in standard errors
    area = dict(zip(mine, pieces.areas / pieces.areas.sum(), strict=True))
    p = np.array([area[pattern] for pattern in counted])
    pulls = (counts / 1e5 - p) / np.sqrt(p * (1 - p) / 1e5)
    assert np.sum(pulls**2) < len(pulls) + 4 * math.sqrt(2 * len(pulls))
    missed = [m for m in mine if m not in found]
    assert sum(area[m] for m in missed) < 1e-3
    # and the maps are those of the network
    ones = np.concatenate([np.ones((pieces.count, 1)), pieces.centres], axis=1)
    outputs = np.einsum("pok,pk->po", pieces.maps, ones)
    assert np.abs(outputs - relu_output(layers, pieces.inputs(pieces.centres))).max() < 1e-12


@pytest.mark.parametrize("n", [1, 5, 30])
def test_lines_in_general_position_reach_the_hyperplane_bound(n):
    layers = draw([2, n, 1], 12)
    assert ww.special.linear_pieces_in_polygon(layers, 1e5 * SQUARE).count == ww.special.hyperplane_regions(n, 2)


def test_a_polygon_sees_one_piece_more_for_each_line_and_each_crossing_inside():
    W, b = draw([2, 60, 1], 13)[0]
    inside = sum(
        bool(np.all(np.abs(np.linalg.solve(W[[i, j]], -b[[i, j]])) < 1.0))
        for i, j in itertools.combinations(range(60), 2)
    )
    d = SQUARE @ W.T + b
    lines = int(np.sum((d.max(axis=0) > 0) & (d.min(axis=0) < 0)))
    pieces = ww.special.linear_pieces_in_polygon([(W, b), (np.ones((1, 60)), None)], SQUARE)
    assert pieces.count == 1 + lines + inside
    assert pieces.count != 1 + lines + inside + 1
    assert pieces.areas.sum() == pytest.approx(4.0, rel=1e-12)


@pytest.mark.parametrize("depth", [1, 4, 12])
def test_the_sawtooth_network_has_a_piece_for_every_path(depth):
    pieces = ww.special.linear_pieces_on_segment(ww.special.sawtooth_network(depth), [0.0], [1.0])
    assert pieces.count == pieces.merged().count == 2**depth
    assert np.array_equal(pieces.t, np.arange(2**depth + 1) / 2**depth)
    assert np.all(np.abs(pieces.slopes) == 2.0**depth)
    assert pieces.count <= ww.special.region_bound([1, *[2] * depth, 1], 1)


def test_random_networks_stay_below_the_bounds():
    for seed in range(5):
        widths = [2, 5, 4, 3, 1]
        layers = draw(widths, seed)
        plane, line = (
            ww.special.linear_pieces_in_polygon(layers, 9 * SQUARE),
            ww.special.linear_pieces_on_segment(layers, *SQUARE[:2]),
        )
        assert plane.count <= ww.special.region_bound(widths) < 2**12 < 3**12
        assert line.count <= ww.special.region_bound(widths, 1)


# ---- degenerate weights ------------------------------------------------------------------------------------------------


def test_zero_duplicate_and_scaled_neurons_add_nothing():
    layers = draw([2, 6, 5, 1], 14)
    (W, b), (V, c), (U, d) = layers
    scale = np.array([3.0, 1 / 7, 1e-3, 1e4, 0.3, 17.0])
    W2 = np.concatenate([W, scale[:, None] * W, np.zeros((3, 2))])
    b2 = np.concatenate([b, scale * b, [0.0, 1.0, -1.0]])
    V2 = np.concatenate([0.25 * V, 0.75 * V / scale, np.zeros((5, 3))], axis=1)
    V3, c3 = np.concatenate([V2, V2 * 0.1]), np.concatenate([c, 0.1 * c])
    U3 = np.concatenate([0.5 * U, 5.0 * U], axis=1)
    same = [(W2, b2), (V3, c3), (U3, d)]
    X = np.random.default_rng(0).normal(size=(50, 2))
    assert np.allclose(relu_output(same, X), relu_output(layers, X), rtol=1e-10)
    assert (
        ww.special.linear_pieces_in_polygon(same, SQUARE).count
        == ww.special.linear_pieces_in_polygon(layers, SQUARE).count
    )
    for a, b_ in (SQUARE[[0, 2]], SQUARE[[1, 2]]):
        on, off = ww.special.linear_pieces_on_segment(same, a, b_), ww.special.linear_pieces_on_segment(layers, a, b_)
        assert on.count == off.count
        assert np.allclose(on.t, off.t, atol=1e-12)


def test_lines_through_one_point_leave_no_slivers():
    layers = draw([2, 20, 20, 20, 1], 15, bias=0.0)
    pieces = ww.special.linear_pieces_in_polygon(layers, SQUARE)
    around = np.concatenate([SQUARE, SQUARE[:1]])
    # without biases pieces are cones, so that the border sees each of them
    border = sum(ww.special.linear_pieces_on_segment(layers, around[i], around[i + 1]).count for i in range(4))
    assert pieces.count == border - 4  # the four cones over the corners were counted twice
    assert pieces.areas.min() > 1e-9


def test_a_network_that_is_zero_or_constant_has_one_piece():
    zero = [(np.zeros((4, 2)), np.zeros(4)), (np.ones((1, 4)), np.ones(1))]
    dead = [(np.ones((4, 2)), np.full(4, -100.0)), (np.ones((3, 4)), -np.ones(3)), (np.ones((1, 3)), None)]
    for layers in (zero, dead):
        assert ww.special.linear_pieces_in_polygon(layers, SQUARE).count == 1
        assert ww.special.linear_pieces_on_segment(layers, *SQUARE[:2]).count == 1


def test_neurons_that_cancel_up_to_rounding_leave_no_kinks_above():
    # 0.1 r + 0.2 r − 0.3 r is rounding noise: the second layer must not kink where it changes sign
    layers = [([[1.0, 0.3]] * 3, [0.2] * 3), ([[0.1, 0.2, -0.3], [1.0, 1.0, 1.0]], [0.0, -0.5]), ([[1.0, 1.0]], [0.0])]
    assert ww.special.linear_pieces_on_segment(layers, [-1.0, 0.0], [1.0, 0.1]).count == 3
    assert ww.special.linear_pieces_in_polygon(layers, SQUARE).count == 3


def test_a_kink_that_the_output_does_not_read_is_merged():
    layers = [([[1.0], [1.0]], [0.0, -0.5]), ([[1.0, 0.0]], [0.0])]
    pieces = ww.special.linear_pieces_on_segment(layers, [-1.0], [1.0])
    assert (pieces.count, pieces.merged().count) == (3, 2)
    assert np.allclose(pieces.merged()([0.1, 0.9]), pieces([0.1, 0.9]))


def test_the_blocks_make_no_difference(monkeypatch):
    layers = draw([2, 16, 16, 1], 16)
    whole = (
        ww.special.linear_pieces_in_polygon(layers, 3 * SQUARE),
        ww.special.linear_pieces_on_segment(layers, *3 * SQUARE[:2]),
    )
    monkeypatch.setattr("widthwise.special.polygon_pieces._POLYGON_BLOCK", 500)
    monkeypatch.setattr("widthwise.special.linear_pieces._INTERVAL_BLOCK", 50)
    blocks = (
        ww.special.linear_pieces_in_polygon(layers, 3 * SQUARE),
        ww.special.linear_pieces_on_segment(layers, *3 * SQUARE[:2]),
    )
    assert [w.count for w in whole] == [b.count for b in blocks]
    assert np.allclose(np.sort(whole[0].areas), np.sort(blocks[0].areas), rtol=1e-9)
    assert np.array_equal(whole[1].t, blocks[1].t)


# ---- averages ---------------------------------------------------------------------------------------------------------


def test_the_first_layer_has_the_expected_number_of_kinks_at_every_width():
    net = ww.MLP([2, 12, 1], "relu", C_b=0.5, C_W=2.0)
    a, b = [1.0, -0.5], [-0.4, 2.0]
    counts = []
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        layers = [(rng.normal(size=(12, 2)), math.sqrt(0.5) * rng.normal(size=12)), (np.ones((1, 12)), None)]
        counts.append(ww.special.linear_pieces_on_segment(layers, a, b).count - 1)
    expected, error = float(ww.special.expected_kinks(net, a, b)[0]), np.std(counts) / math.sqrt(2000)
    assert abs(np.mean(counts) - expected) < 4 * error
    # negative control: without the biases the angle is another
    assert abs(np.mean(counts) - float(ww.special.expected_kinks(net.replace(C_b=0.0), a, b)[0])) > 6 * error


@pytest.mark.full
def test_a_million_pieces_take_less_than_a_minute_of_work():
    import time

    start = time.process_time()
    assert ww.special.linear_pieces_on_segment(ww.special.sawtooth_network(20), [0.0], [1.0]).count == 2**20
    assert time.process_time() - start < 60
    start = time.process_time()
    assert ww.special.linear_pieces_in_polygon(draw([2, 1450, 1], 17), 1e3 * SQUARE).count > 1_000_000
    assert time.process_time() - start < 60


# ---- what comes in ------------------------------------------------------------------------------------------------------


def test_bad_layers_and_corners_are_refused():
    tent = ww.special.sawtooth_network(1)
    with pytest.raises(InvalidInput, match="layers: got 3 inputs of layer 2; expected 2"):
        ww.special.linear_pieces_on_segment([tent[0], (np.ones((1, 3)), None)], [0.0], [1.0])
    with pytest.raises(InvalidInput, match="layers: got .*; expected a list of pairs"):
        ww.special.linear_pieces_on_segment([], [0.0], [1.0])
    with pytest.raises(InvalidInput, match="b: got the same point as a"):
        ww.special.linear_pieces_on_segment(tent, [1.0], [1.0])
    with pytest.raises(InvalidInput, match="corners: got one feature.*linear_pieces_on_segment"):
        ww.special.linear_pieces_in_polygon(tent, [[0.0], [1.0], [2.0]])
    plane = [(np.ones((2, 2)), None), (np.ones((1, 2)), None)]
    with pytest.raises(InvalidInput, match="corners: got points on one line"):
        ww.special.linear_pieces_in_polygon(plane, [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    with pytest.raises(InvalidInput, match="corners: got corners that do not turn one way"):
        ww.special.linear_pieces_in_polygon(plane, SQUARE[[0, 2, 1, 3]])
    space = [(np.ones((2, 3)), None), (np.ones((1, 2)), None)]
    with pytest.raises(InvalidInput, match="do not lie in one plane"):
        ww.special.linear_pieces_in_polygon(space, np.concatenate([np.eye(3), -np.ones((1, 3))]))
    with pytest.raises(InvalidInput, match="activation tanh; expected relu"):
        ww.special.expected_kinks(ww.MLP([1, 4, 1], "tanh"), [0.0], [1.0])
    with pytest.raises(InvalidInput, match="depth: got 0"):
        ww.special.sawtooth_network(0)
