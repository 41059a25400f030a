"""Four-point expectations: the routes against each other, against Wick's theorem, and where they must refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from peak_memory import growth

import widthwise as ww
from widthwise.activations import evaluate, resolve
from widthwise.errors import DivergentMoment, InvalidInput, NotDifferentiable, UnknownName
from widthwise.gaussian.four_points import FAMILIES, four_point
from widthwise.gaussian.four_points.dispatch import plane_route
from widthwise.gaussian.four_points.families import assignments
from widthwise.gaussian.four_points.later_layers import LaterLayers
from widthwise.gaussian.four_points.orthants import orthant_route
from widthwise.gaussian.four_points.plane_moments import kinked_moments
from widthwise.gaussian.four_points.planes import PlaneSeries
from widthwise.gaussian.four_points.sampling import sample_route
from widthwise.gaussian.four_points.tables import plane_tables

SMOOTH = ("tanh", "gelu", "swish", "sin", "erf", "sigmoid", "softplus", "linear", "quadratic", "cubic")
#: Those that `make test` takes; `make test-full` takes all.
QUICK = ("tanh", "gelu", "sin", "softplus", "cubic")
KINKED = {"relu": FAMILIES[:3], "leaky_relu(0.3)": FAMILIES[:3], "step": FAMILIES[:1]}
SLOPED = ww.activation(lambda z: jnp.where(z > 0, z, jnp.tanh(z) / 2), name="sloped", kinks=[0.0])


def plain(seed: int, inputs: int) -> np.ndarray:
    """A kernel of random inputs in three dimensions."""
    x = np.random.default_rng(seed).normal(size=(inputs, 3)) / np.sqrt(3)
    return x @ x.T


def kernel(seed: int, inputs: int = 11) -> np.ndarray:
    """Random inputs among which are coincident, antiparallel, parallel and nearly parallel ones (ρ = 1 − 1e-8)."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(inputs, 5)) / np.sqrt(5)
    across = random.normal(size=5)
    across -= x[4] * (across @ x[4]) / (x[4] @ x[4])
    across *= np.linalg.norm(x[4]) / np.linalg.norm(across)
    x[1], x[2], x[3] = x[0], -x[0], 1.5 * x[0]
    x[5] = x[4] + np.sqrt(2e-8) * across
    x[6] = -x[4] + 1e-3 * across
    return x @ x.T


def agree(one, other) -> bool:
    return bool(np.all(np.abs(one[0] - other[0]) <= one[1] + other[1] + 1e-12 * np.abs(one[0]).max()))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in SMOOTH]
)
def test_planes_agree_with_the_sample_on_a_thousand_quadruples(name):
    activation, K, placed = resolve(name), kernel(1), assignments(FAMILIES)
    planes = plane_route(activation, K, placed, 1e-6)
    sample = sample_route(activation, K, placed, points=1 << 11)
    assert planes is not None
    assert len(planes[0]) >= 1000
    assert agree(planes, sample)
    scale = np.abs(planes[0]).max(axis=0)
    used = scale > 0
    assert np.all(planes[1][:, used] <= 3e-6 * scale[used])
    # negative control: wrong values are told apart, as far as the sample of an activation can tell
    wrong = {"cubic": 1.5}.get(name, 1.02)
    assert not agree((planes[0] * wrong, planes[1]), sample)


@pytest.mark.parametrize("name", KINKED)
def test_orthants_agree_with_the_sample_on_a_thousand_quadruples(name):
    activation, K = resolve(name), kernel(2)
    placed = assignments(KINKED[name])
    values = orthant_route(activation.closed, K, placed)
    exact = values, 1e-8 * np.abs(values).max(axis=0)
    sample = sample_route(activation, K, placed, points=1 << 12)
    assert agree(exact, sample)
    assert not agree((exact[0] * 1.05, exact[1]), sample)


def test_a_kinked_function_of_ones_own_takes_the_better_of_two_routes():
    x, families = np.array([[1.0, 0.0], [1.0, 0.05], [0.9, 0.1]]), FAMILIES[:3]
    K = x @ x.T
    placed = assignments(families)
    planes, sample = plane_route(SLOPED, K, placed, 1e-6), sample_route(SLOPED, K, placed)
    assert planes is not None
    assert agree(planes, sample)
    chosen = four_point(SLOPED, K, families, 1e-6)
    assert "sample" in chosen.route
    assert np.all(chosen.errors <= planes[1] * (1 + 1e-12))
    assert chosen.error > 1e-6  # and says how well it did


@pytest.mark.parametrize("seed", range(3))
def test_wick(seed):
    x = np.random.default_rng(seed).normal(size=(4, 3))
    K = x @ x.T  # rank three: the fourth input depends on the others
    found = four_point(resolve("linear"), K, ((0, 0, 0, 0),), method="planes").full(0, 0, 0, 0)
    wick = np.einsum("ab,cd->abcd", K, K) + np.einsum("ac,bd->abcd", K, K) + np.einsum("ad,bc->abcd", K, K)
    assert np.abs(found - wick).max() < 1e-11 * np.abs(wick).max()
    assert np.abs(found - wick + np.einsum("ad,bc->abcd", K, K)).max() > 0.1


def test_symmetries_and_subsets():
    x = np.random.default_rng(4).normal(size=(6, 3)) / 2
    x[1], x[2] = x[0], -x[0]
    K, tanh = x @ x.T, resolve("tanh")
    whole = four_point(tanh, K, FAMILIES, 1e-10)
    T = whole.full(2, 1, 1, 0)
    assert np.allclose(T, T.transpose(0, 2, 1, 3), rtol=0, atol=1e-12)
    assert np.allclose(T, whole.full(0, 1, 1, 2).transpose(3, 1, 2, 0), rtol=0, atol=1e-12)
    # coincident inputs read the same numbers, an odd function changes sign with its input
    assert np.allclose(T[1], T[0], rtol=0, atol=1e-9)
    assert np.allclose(T[:, :, :, 2], -T[:, :, :, 0], rtol=0, atol=1e-9)
    some = [0, 3, 4, 5]
    part = four_point(tanh, K[np.ix_(some, some)], FAMILIES, 1e-10).full(2, 1, 1, 0)
    assert np.abs(part - T[np.ix_(some, some, some, some)]).max() < 1e-9


def test_tolerance_is_kept():
    K, swish = plain(5, 5), resolve("swish")
    best = four_point(swish, K, FAMILIES, 1e-12)
    for tolerance in (1e-3, 1e-6, 1e-9):
        found = four_point(swish, K, FAMILIES, tolerance)
        # entries that vanish by symmetry differ by rounding
        assert np.all(np.abs(found.values - best.values) <= found.errors + best.errors + 1e-16)
        assert found.error <= 30 * tolerance


def test_refusals():
    K = plain(6, 4)
    with pytest.raises(UnknownName, match=r"method: got 'plane'; expected one of .*Did you mean 'planes'"):
        four_point(resolve("tanh"), K, method="plane")
    with pytest.raises(
        NotDifferentiable, match=r"relu, whose derivative of order 1 jumps.*smooth neighbour such as gelu"
    ):
        four_point(resolve("relu"), K)
    with pytest.raises(UnknownName, match=r"method: got 'orthants'"):
        four_point(resolve("tanh"), K, method="orthants")
    steep = ww.activation(lambda z: jnp.exp(z * z / 7.9), name="steep")
    with pytest.raises(DivergentMoment, match=r"steep, whose ⟨\(σ\^\(0\)\)\^4⟩ does not converge"):
        four_point(steep, np.eye(2), ((0, 0, 0, 0),))
    sharp = ww.activation(lambda z: jnp.tanh(3000.0 * z), name="sharp")
    with pytest.raises(InvalidInput, match=r"method: got 'planes' for sharp.*Use method='auto'"):
        four_point(sharp, np.eye(9), ((0, 0, 0, 0),), method="planes")
    assert four_point(sharp, np.eye(9), ((0, 0, 0, 0),)).route == "low-discrepancy sample"


def on_a_grid(sigma, root: np.ndarray, orders) -> np.ndarray:
    """⟨σ^(o_1)_a σ^(o_2)_b σ^(o_3)_c σ^(o_4)_d⟩ for z = root u, u of two entries, by the trapezoidal rule."""
    u = np.linspace(-9.5, 9.5, 230)
    grid = np.stack(np.meshgrid(u, u)).reshape(2, -1)
    weight = np.exp(-0.5 * np.sum(grid**2, axis=0))
    at = [evaluate(sigma, order, root @ grid) for order in orders]
    left, right = (np.einsum("ax,bx->abx", *two).reshape(-1, weight.size) for two in (at[:2], at[2:]))
    return ((left * weight) @ right.T / weight.sum()).reshape((len(root),) * 4)


COLLINEAR = np.outer([1.0, 2.0, -0.5, 1.3], [1.0, 0.0])


@pytest.mark.parametrize(
    ("root", "method", "route"),
    [
        (COLLINEAR, "auto", "Hermite planes"),
        (np.vstack([COLLINEAR[:3], [[0.6, 0.9]]]), "planes", "Hermite planes"),
        (COLLINEAR + np.array([0.0, 0.5]), "auto", "grid on a plane"),
    ],
    ids=["one direction", "two directions", "one plane"],
)
def test_collinear_inputs_are_as_accurate_as_others(root, method, route):
    sigma, families = resolve("tanh"), ((0, 0, 0, 0), (2, 2, 1, 1))
    found = four_point(sigma, root @ root.T, families, method=method)
    assert found.route == route
    assert found.error < 1e-9
    for orders in families:
        exact = on_a_grid(sigma, root, orders)
        assert np.abs(found.full(*orders) - exact).max() <= 1e-10 * np.abs(exact).max()


def test_collinear_inputs_of_a_kinked_activation_lie_on_a_line():
    scale, u = COLLINEAR[:, 0], np.linspace(-12.0, 12.0, 2_000_001)
    K = np.outer(scale, scale)
    weight = np.exp(-0.5 * u * u) / np.exp(-0.5 * u * u).sum()
    found = four_point(SLOPED, K, ((0, 0, 0, 0),), method="planes").full(0, 0, 0, 0)[0, 1, 2, 3]
    exact = np.prod([np.asarray(SLOPED(s * u)) for s in scale], axis=0) @ weight
    assert abs(found - exact) <= 1e-11 * abs(exact)


def test_planes_of_large_inputs_take_bounded_memory():
    place, K = np.array([0]), 1e10  # softsign turns within 1e-5 of zero: 1,600 nodes for each of 3,000
    taken = growth(
        lambda: kinked_moments(
            resolve("softsign"), ((0, 0),), ((0, 0, 0, 0),), 64, np.sqrt([K, K]), place, place + 1, np.array([0.5])
        )
    )
    assert taken < 1000  # MiB; all at once would be 5,000


@pytest.mark.parametrize(("name", "memory"), [("tanh", 0.9), ("gelu", 0.7), ("sin", 0.995)])
def test_later_layers_seen_from_an_earlier_one_are_those_of_one_kernel_of_both(name, memory):
    """z' = γz + noise, twice: planes of each layer against planes that may join them; another γ is seen."""
    activation, orders = resolve(name), ((0, 0, 0, 0), (2, 1, 0, 1), (1, 3, 1, 1))
    low = plain(5, 4)
    low[1] = low[0]
    low[:, 1] = low[:, 0]
    noise = 0.4 * plain(6, 4)
    placed = assignments(tuple({tuple(sorted(one)) for one in orders}))
    gains = [memory * np.ones(4), 0.8 * memory * np.ones(4)]
    tops = [memory**2 * low + noise, 0.64 * (memory**2 * low + noise) + noise]
    first, *later = (PlaneSeries(activation, K, placed, 1e-9, keep=True) for K in (low, *tops))
    quads = np.array([(a, b, c, d) for a in range(4) for b in range(a, 4) for c in range(4) for d in range(c, 4)])
    found, bounds = LaterLayers(first, later, gains, orders)(quads)
    composite, columns = (quads + np.array([0, 0, 4, 4])).astype(np.int32), [placed.index(one) for one in orders]
    others = LaterLayers(first, later, [0.97 * gain for gain in gains], orders)(quads)[0]
    for top, gain, made, bound, other in zip(tops, gains, found, bounds, others, strict=True):
        whole = np.block([[top, gain[:, None] * low], [low * gain, low]])
        values, errors = (x[:, columns] for x in PlaneSeries(activation, whole, placed, 1e-9)(composite))
        scale = np.abs(values).max(axis=0)
        assert np.all(np.abs(made - values) <= bound + errors + 1e-9 * scale)
        assert np.all(bound <= 1e-8 * scale)
        assert np.abs(other - values).max() > 1e-3 * np.abs(values).max()


def test_plane_tables_of_many_degrees_read_terms_past_the_last():
    """At 96 degrees from as many single-input terms the highest coefficients were 10⁻⁶ off."""
    activation, K, placed = resolve("tanh"), 6.0 * np.array([[1.0, 0.7], [0.7, 1.0]]), ((0, 1, 1, 2),)
    found = [plane_tables(activation, K, placed, degrees, 1e-12) for degrees in (96, 128)]
    for one, other in zip(found[0].blocks, found[1].blocks, strict=False):
        scale = np.abs(other.cosine).max()
        assert np.abs(one.cosine - other.cosine).max() <= 1e-9 * max(scale, 1e-3)


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_an_accelerator_sums_the_same_and_leaves_it_there(activation, monkeypatch):
    X = np.random.default_rng(3).normal(size=(6, 4))
    K = 0.1 + X @ X.T / 4
    expected = four_point(resolve(activation), K, tolerance=1e-6)
    places = "widthwise.gaussian.four_points"
    monkeypatch.setattr(f"{places}.planes.on_accelerator", lambda: True)
    monkeypatch.setattr(f"{places}.planes.COMPILE_FROM", 2)
    monkeypatch.setattr(f"{places}.accelerated.QUADRUPLE_PIECES", dict.fromkeys((0, 32, 64, 96, 128), 16))
    monkeypatch.setattr(f"{places}.accelerated.LIST_LENGTH", 64)
    found = four_point(resolve(activation), K, tolerance=1e-6)
    assert isinstance(found.values, jax.Array)
    assert np.abs(found.values - expected.values).max() < 1e-12 * np.abs(expected.values).max()
    assert np.isclose(found.error, expected.error, rtol=1e-6)
    # two parallel inputs are left to the route that knows them
    K[1], K[:, 1] = 2 * K[0], 2 * K[:, 0]
    K[1, 1] = 4 * K[0, 0]
    assert isinstance(four_point(resolve(activation), K, tolerance=1e-6).values, np.ndarray)
