"""Tensors of order 1/n: reference numbers, exact cases, laws, and every term of the recursions missed when left out."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import load_cases, network

import widthwise as ww
from widthwise.errors import InvalidInput, NotDifferentiable, TooLarge, UnknownName
from widthwise.flow.tensors.quadruple_flow import PLACED
from widthwise.flow.tensors.tensor_flow import FACES, NEEDS, READS, RULES, families_of, finite_flow
from widthwise.flow.tensors.tensor_rules import LayerStep
from widthwise.gaussian.four_points import four_point
from widthwise.gaussian.four_points.families import FAMILIES, assignments
from widthwise.inference.corrections import PRIOR_TENSORS, TRAINING_TENSORS
from widthwise.results.theory import estimate_bytes
from widthwise.tensors import (
    CORRECTIONS,
    DIFFERENTIALS,
    FOURS,
    KERNELS,
    MEANS,
    PRODUCTS,
    SCALE_TEXT,
    SHIFTS,
    TENSORS,
    WITHOUT_THETA,
)

CASES = load_cases("flow")
X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [0.6, -0.2, 0.4]])


def deep(activation, **options):
    given = {
        "C_b": [0.1, 0.2, 0.05, 0.0],
        "C_W": [1.2, 1.7, 1.4, 1.1],
        "lambda_b": 0.3,
        "lambda_W": [1.0, 0.5, 2.0, 1.0],
    }
    return ww.MLP([3, 24, 40, 16, 2], activation, **(given | options))


def worst(found, expected) -> float:
    scale = np.abs(expected).max()
    return float(np.abs(found - expected).max() / scale) if scale else float(np.abs(found).max())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_reference(case):
    net = network(case)
    ds = ww.theory(net, case["X"], order=1)
    assert set(ds.data_vars) == {*KERNELS, *CORRECTIONS}
    for layer, expected in enumerate(case["layers"], 1):
        for name in KERNELS + CORRECTIONS:
            assert worst(ds[name].sel(layer=layer).values, np.array(expected[name])) < 1e-7, (layer, name)


def terms_of_all_rules() -> list[tuple[str, str]]:
    """Names of every term of §4 and §5, read from the rules themselves."""
    net, names = deep("tanh"), tuple(RULES)
    K, Theta = (ww.theory(net, X[:1])[name].values[0] for name in ("K", "Theta"))
    four = four_point(net.activations[0], K, families_of(names), 1e-6)
    fours = {orders: four.full(*orders) for name in names for orders in READS[name]}
    step = replace(LayerStep.of(net, 1, K, Theta), fours=fours)
    tensors = {name: np.zeros((1,) * TENSORS[name].slots) for name in names}
    found = {name: RULES[name](step, tensors) for name in RULES}
    return [(name, term) for name, terms in found.items() for term in terms]


TERMS = terms_of_all_rules()


def test_what_the_records_say_together():
    by_scale = {
        (2, 0): "V", (1, 1): "D F", (0, 2): "A B P Q", (-1, 3): "R S T U", (1, 0): "K G1", (0, 1): "Theta H1",
        (1.5, 0): "v3", (0.5, 1): "d3 f3", (-0.5, 2): "q3",
    }  # fmt: skip
    scales = {name: scale for scale, names in by_scale.items() for name in names.split()}
    assert {name: record.scale for name, record in TENSORS.items()} == scales
    assert " ".join(TENSORS) == "K Theta G1 H1 V A B D F P Q R S T U v3 d3 f3 q3"
    assert set(SCALE_TEXT) == set(by_scale)
    assert (*MEANS, *FOURS) == CORRECTIONS
    assert (MEANS, WITHOUT_THETA, "".join(DIFFERENTIALS)) == (("G1", "H1"), ("G1", "V"), "PQRSTU")
    assert SHIFTS == {"K": "G1", "Theta": "H1"}
    assert PRODUCTS == {"V": ("G1", "G1"), "D": ("G1", "H1"), "A": ("H1", "H1")}
    assert (set(TRAINING_TENSORS), set(PRIOR_TENSORS)) == (set(CORRECTIONS) - {"V"}, {"G1", "V"})
    assert set(PLACED) == set(assignments(FAMILIES))


def test_all_terms_are_listed():
    assert len(TERMS) == 45


def test_what_the_rules_read_is_what_theory_says():
    """Theory §4 and §5, read by eye."""
    needs = {
        "V": "V", "D": "V D", "A": "V D A", "B": "B", "F": "F", "P": "B P", "Q": "F Q", "R": "B P R", "S": "B S",
        "T": "F Q T", "U": "U", "G1": "V G1", "H1": "V D F G1 H1",
    }  # fmt: skip
    assert {name: set(read) for name, read in NEEDS.items()} == {
        name: set(text.split()) for name, text in needs.items()
    }
    reads = {
        "V": "0000", "D": "0000 0011", "A": "0000 0011 1100 1111", "B": "1111", "F": "0101", "P": "2110",
        "Q": "2110 1010", "R": "3111 2011", "S": "2211 1111", "T": "2112 2101 1012 1001", "U": "2121", "G1": "",
        "H1": "",
    }  # fmt: skip
    found = {name: sorted("".join(map(str, orders)) for orders in read) for name, read in READS.items()}
    assert found == {name: sorted(text.split()) for name, text in reads.items()}
    assert FACES == {
        "V": ("xxyz", "xyxy"), "D": ("xxyz", "xyxy"), "B": ("xxyz",), "F": ("xxyz", "xyyx"), "P": ("xyzx",),
        "Q": ("yzxx",),
    }  # fmt: skip
    # the derivatives of a record are those that its rule reads; H1 reads Θ, which needs ⟨σ'σ'⟩
    highest = {name: max((max(orders) for orders in read), default=int(name == "H1")) for name, read in READS.items()}
    assert highest == {name: TENSORS[name].derivatives for name in RULES}


@pytest.mark.parametrize("term", TERMS, ids=lambda term: " ".join(term))
def test_without_any_one_term_the_reference_is_missed(term):
    """The negative control of `test_reference`, at the same threshold times a thousand."""
    case = next(case for case in CASES if case["name"] == "tanh-depth4")
    name = term[0]
    flow = finite_flow(network(case), np.array(case["X"]), (name,), omit=frozenset([term]), tolerance=1e-7)
    assert max(worst(flow.tensors[name][k], np.array(layer[name])) for k, layer in enumerate(case["layers"])) > 1e-4


def test_a_misspelt_term_is_refused():
    with pytest.raises(KeyError, match="V has no term 'five'"):
        finite_flow(deep("tanh"), X, ("V",), omit=frozenset([("V", "five")]))


# ---------------------------------------------------------------------------------------------- exact cases


@pytest.mark.parametrize(("activation", "C_W", "slope"), [("relu", 2.0, 5.0), ("linear", 1.0, 2.0)])
def test_scale_invariant_activations_at_criticality(activation, C_W, slope):
    ds = ww.theory(ww.MLP([3, *[32] * 6, 1], activation, C_W=C_W), X[:1], order=1, tensors=["K", "V", "G1"])
    K = ds["K"].values[:, 0, 0]
    assert np.allclose(ds["V"].values[:, 0, 0, 0, 0], slope * np.arange(7) * K**2, rtol=1e-12)
    assert np.allclose(ds["G1"].values, 0.0, atol=1e-12)


def test_leaky_relu_grows_as_its_fourth_moment_says():
    slope = 0.3
    A2, A4 = (1 + slope**2) / 2, (1 + slope**4) / 2
    ds = ww.theory(ww.MLP([3, *[32] * 6, 1], f"leaky_relu({slope})", C_W=1 / A2), X[:1], order=1, tensors=["K", "V"])
    expected = np.arange(7) * (3 * A4 / A2**2 - 1) * ds["K"].values[:, 0, 0] ** 2
    assert np.allclose(ds["V"].values[:, 0, 0, 0, 0], expected, rtol=1e-12)


def plane_average(K, nodes: int = 241):
    """Points (2, nodes²) and weights of ⟨·⟩ over two inputs by a product rule: nothing shared with the library."""
    u = np.linspace(-9.0, 9.0, nodes)
    w = np.exp(-0.5 * u * u)
    grid = np.stack(np.meshgrid(u, u, indexing="ij")).reshape(2, -1)
    weight = np.outer(w, w).ravel() / w.sum() ** 2
    return np.linalg.cholesky(K) @ grid, weight


def test_one_hidden_layer_is_exact_term_by_term():
    """With one hidden layer the neurons are independent and every tensor is one Gaussian average of products."""
    net = ww.MLP([3, 16, 1], "tanh", C_b=0.1, C_W=[1.5, 1.3], lambda_b=0.2, lambda_W=[1.0, 0.7])
    ds = ww.theory(net, X[:2], order=1)
    H, C, lam = ds["Theta"].values[0], 1.3, 0.7
    z, weight = plane_average(ds["K"].values[0])
    t = np.tanh(z)
    s, d, dd, ddd = t, 1 - t**2, -2 * t * (1 - t**2), (1 - t**2) * (6 * t**2 - 2)
    omega = lam * np.einsum("as,bs->abs", s, s) + C * H[:, :, None] * np.einsum("as,bs->abs", d, d)
    pairs = np.einsum("as,bs->abs", s, s)

    def cov(f, g):
        mean = np.einsum("abs,s->ab", f, weight), np.einsum("cds,s->cd", g, weight)
        return np.einsum("abs,cds,s->abcd", f, g, weight) - np.einsum("ab,cd->abcd", *mean)

    def four(p, q, r, o):
        return np.einsum("as,bs,cs,ds,s->abcd", p, q, r, o, weight)

    beta = C * np.einsum("ab,as,bs->abs", H, dd, d) + lam * np.einsum("as,bs->abs", d, s)
    expected = {
        "V": C**2 * cov(pairs, pairs),
        "D": C * cov(pairs, omega),
        "A": cov(omega, omega),
        "B": C**2 * np.einsum("abcd,ac,bd->abcd", four(d, d, d, d), H, H),
        "F": C**2 * np.einsum("abcd,bd->abcd", four(s, d, s, d), H),
        "P": C**2 * np.einsum("abcd,ab,ac->abcd", four(dd, d, d, s), H, H),
        "Q": C**2 * np.einsum("abcd,ab,ac->abcd", four(dd, d, d, s), H, H)
        + lam * C * np.einsum("abcd,ac->abcd", four(d, s, d, s), H),
        "R": C**2 * np.einsum("abcd,ab,ac,ad->abcd", four(ddd, d, d, d), H, H, H)
        + lam * C * np.einsum("abcd,ac,ad->abcd", four(dd, s, d, d), H, H),
        "S": C**2 * np.einsum("abcd,ab,ac,bd->abcd", four(dd, dd, d, d), H, H, H)
        + lam * C * np.einsum("abcd,ac,bd->abcd", four(d, d, d, d), H, H),
        "T": np.einsum("abs,dcs,ad,s->abcd", beta, beta, H, weight),
        "U": C**2 * np.einsum("abcd,ac,ad,cb->abcd", four(dd, d, dd, d), H, H, H),
    }
    for name, tensor in expected.items():
        assert worst(ds[name].values[1], tensor) < 1e-9, name
    assert np.all(ds["G1"].values == 0.0)
    assert np.all(ds["H1"].values == 0.0)
    assert worst(ds["A"].values[1], expected["V"]) > 0.1


def test_kinked_tensors_are_the_limit_of_smooth_ones():
    """z Φ(βz) tends to relu, and every tensor that relu has tends to relu's; the distance falls as β grows."""
    from jax.scipy.stats import norm

    names = ["V", "A", "B", "D", "F", "G1", "H1"]
    x = X[:2]
    exact = ww.theory(deep("relu"), x, order=1, tensors=names, layers="last")

    def distance(beta):
        smooth = ww.activation(lambda z: z * norm.cdf(beta * z), name=f"rounded {beta}")
        near = ww.theory(deep(smooth), x, order=1, tensors=names, layers="last", tolerance=1e-6)
        return np.array([worst(near[name].values, exact[name].values) for name in names])

    coarse, fine = distance(8.0), distance(16.0)
    assert np.all(fine < 0.08)
    assert np.all(fine < 0.75 * coarse)


# ----------------------------------------------------------------------------------------------------- laws


@pytest.fixture(scope="module", params=["tanh", "gelu"])
def full(request):
    return request.param, ww.theory(deep(request.param), X, order=1)


def test_symmetries(full):
    ds = {name: values.values for name, values in full[1].items()}
    for name in ("K", "Theta", "G1", "H1"):
        assert np.allclose(ds[name], ds[name].swapaxes(1, 2), rtol=0, atol=1e-12)

    def same(name, *axes):
        moved = ds[name].transpose(0, *[axis + 1 for axis in axes])
        return np.abs(ds[name] - moved).max() < 1e-9 * np.abs(ds[name]).max()

    for name in ("V", "A"):
        assert same(name, 1, 0, 2, 3)
        assert same(name, 2, 3, 0, 1)
    assert same("D", 1, 0, 2, 3)
    assert same("D", 0, 1, 3, 2)
    assert not same("D", 2, 3, 0, 1)
    assert same("B", 1, 0, 3, 2)  # the two kernels of one pair of neurons
    assert same("B", 2, 3, 0, 1)
    assert same("F", 2, 3, 0, 1)
    assert same("P", 0, 2, 1, 3)
    assert same("R", 0, 1, 3, 2)
    assert same("S", 1, 0, 3, 2)
    assert same("T", 3, 2, 1, 0)
    assert same("U", 2, 3, 0, 1)


def test_subsets_and_order_of_inputs(full):
    activation, ds = full
    chosen = [2, 0]
    part = ww.theory(deep(activation), X[chosen], order=1)
    for name in ds:
        index = np.ix_(range(4), *[chosen] * (ds[name].ndim - 1))
        assert worst(part[name].values, ds[name].values[index]) < 1e-8, name


def test_a_repeated_input_repeats_its_entries():
    ds = ww.theory(deep("tanh"), X[[0, 1, 0]], order=1)
    for name in FOURS:
        values = ds[name].values
        assert np.allclose(values[:, 0], values[:, 2], rtol=0, atol=1e-8 * np.abs(values).max()), name
        assert np.allclose(values[..., 0], values[..., 2], rtol=0, atol=1e-8 * np.abs(values).max()), name
    relu = ww.theory(deep("relu"), X[[0, 1, 0]], order=1)["A"].values
    assert np.allclose(relu[:, 0], relu[:, 2], rtol=0, atol=1e-7 * np.abs(relu).max())


def test_many_inputs_take_the_compiled_path_to_the_same_numbers(monkeypatch):
    net, some = deep("tanh"), np.random.default_rng(0).normal(size=(5, 3))
    plain = finite_flow(net, some, tolerance=1e-8)
    monkeypatch.setattr("widthwise.flow.tensors.tensor_flow.COMPILE_FROM", 2)
    compiled = finite_flow(net, some, tolerance=1e-8)
    for name in RULES:
        assert worst(compiled.tensors[name], plain.tensors[name]) < 1e-12


def test_options(full, tmp_path):
    activation, ds = full
    last = ww.theory(deep(activation), X, order=1, layers="last")
    assert last["layer"].values.tolist() == [4]
    for name in ds:
        assert np.array_equal(last[name].values[0], ds[name].values[3])
    few = ww.theory(deep(activation), X, order=1, tensors=["T", "K"])
    assert list(few.data_vars) == ["K", "T"]
    assert np.allclose(few["T"], ds["T"], rtol=0, atol=1e-9 * float(abs(ds["T"]).max()))
    single = ww.theory(deep(activation), X, order=1, tensors="V", dtype="float32")["V"]
    assert single.dtype == np.float32
    assert np.allclose(single, ds["V"], rtol=1e-5, atol=1e-7)
    assert ds.attrs["route"] == "Hermite planes"
    assert 0 < ds.attrs["numerical_error"] < 1e-8
    back = ww.load(ww.save(ds, tmp_path / "tensors.nc"))
    assert back.identical(ds)
    assert back["U"].attrs["long_name"].startswith("mean of the second differential")
    kernels = ww.theory(deep(activation), X, order=1, tensors=["K"])
    assert np.array_equal(kernels["K"], ww.theory(deep(activation), X)["K"])


# ---------------------------------------------------------------------------------------------- what cannot be


def test_default_of_kinked_activations_is_all_that_exists():
    ds = ww.theory(deep("relu"), X, order=1)
    assert list(ds.data_vars) == ["K", "Theta", "G1", "H1", "V", "A", "B", "D", "F"]
    assert "P for relu, whose derivative of order 1 jumps at z = 0" in ds.attrs["missing"]
    assert list(ww.theory(deep("step"), X, order=1).data_vars) == ["K", "G1", "V"]


@pytest.mark.parametrize("name", ["P", "Q", "R", "S", "T", "U"])
def test_tensors_that_do_not_exist_are_refused_by_name(name):
    with pytest.raises(
        NotDifferentiable, match=rf"tensors: got {name}.* order 2 is a δ-function.*gelu or swish for relu"
    ):
        ww.theory(deep("relu"), X, order=1, tensors=[name])


def test_a_kinked_function_of_ones_own_warns_of_its_accuracy():
    sloped = ww.activation(lambda z: jnp.where(z > 0, z, jnp.tanh(z) / 2), name="sloped", kinks=[0.0])
    net = ww.MLP([3, 8, 8, 1], sloped)
    with pytest.warns(ww.errors.AccuracyWarning, match=r"theory: estimated relative error .* above 1e-08"):
        ds = ww.theory(net, [[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [0.9, 0.1, 0.0]], order=1, tensors=["B"])
    assert ds.attrs["numerical_error"] > 1e-8


@pytest.mark.parametrize("order", [2, -1, 0.5, "1", None, True])
def test_other_orders(order):
    with pytest.raises(InvalidInput, match=r"order: got .*; expected 0 or 1"):
        ww.theory(deep("tanh"), X, order=order)


@pytest.mark.parametrize("tolerance", [0.0, 1e-16, -1.0, 0.5, float("nan"), "small", None])
def test_tolerances_that_float64_cannot_give(tolerance):
    with pytest.raises(
        InvalidInput, match=r"tolerance: got .*; expected a number from 1e-13, about the best that float64"
    ):
        ww.theory(deep("tanh"), X, order=1, tolerance=tolerance)


def test_other_bad_input():
    net = deep("tanh")
    with pytest.raises(UnknownName, match=r"tensors: got 'theta'; .* Did you mean 'Theta'"):
        ww.theory(net, X, order=1, tensors=["theta"])
    with pytest.raises(InvalidInput, match="tensors: got an empty list"):
        ww.theory(net, X, order=1, tensors=[])
    with pytest.raises(InvalidInput, match=r"X2: got an array with order=1.*Stack X and X2"):
        ww.theory(net, X, X, order=1)
    with pytest.raises(InvalidInput, match="X: "):
        ww.theory(net, np.zeros((0, 3)), order=1)
    steep = ww.activation(lambda z: jnp.exp(z * z / 7.9), name="steep")
    with pytest.raises(InvalidInput, match=r"steep, whose ⟨\(σ\^\(0\)\)\^4⟩ does not converge"):
        ww.theory(ww.MLP([1, 8, 1], steep), [[1.0]], order=1, tensors=["V"])


def test_width_one_is_allowed_with_a_warning():
    with pytest.warns(ww.errors.ExpansionWarning, match="width 1 at hidden layer 2: 1/n is not small"):
        ds = ww.theory(ww.MLP([3, 8, 1, 1], "tanh"), X[:1], order=1, tensors=["V"])
    assert np.all(np.isfinite(ds["V"]))


def test_too_much_is_refused_before_allocation_with_what_would_fit(monkeypatch):
    monkeypatch.setattr("widthwise.results.theory.available_bytes", lambda: 2 << 30)
    monkeypatch.setattr("widthwise.memory.available_bytes", lambda: 2 << 30)
    net = deep("tanh")
    with pytest.raises(
        TooLarge, match=r"15 tensors of 50 inputs.* needs .* GiB; expected at most 2.0 GiB.*layers='last'"
    ):
        ww.theory(net, np.random.default_rng(0).normal(size=(50, 3)), order=1)
    with pytest.raises(TooLarge, match=r"What would fit: up to \d+ inputs"):
        ww.theory(net, np.random.default_rng(0).normal(size=(400, 3)), order=1)


def test_the_estimate_covers_what_is_kept():
    kept = 11 * 4 * 20**4 * 8
    needed = estimate_bytes(deep("tanh"), 20, TENSORS, "all", np.dtype("float64"))
    assert kept < needed < 3 * kept
