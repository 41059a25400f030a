"""Every tensor of order 1/n on real networks, against theory, in standard errors, with negative controls."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import widthwise as ww
from widthwise.errors import InvalidInput, NotDifferentiable
from widthwise.experiments.differentials import bend, chain, differentials, move, second_derivative
from widthwise.experiments.estimators import (
    check_statistics,
    draw_batch,
    observe_drawn,
    observe_tensors,
    probe_signs,
)
from widthwise.experiments.fluctuations import fluctuations
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.reference import reference
from widthwise.experiments.sampler import forward, network_key, sample_parameters
from widthwise.experiments.tally import Tally, jackknife
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.tensors import CORRECTIONS

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8], [0.6, -0.2, 0.4]])
TWO = X[:2]

#: Between them these show every activation and every depth; `make test-full` takes all combinations.
QUICK = [("tanh", 2), ("gelu", 3), ("sin", 4)]
ALL = [(activation, depth) for activation in ("tanh", "gelu", "sin") for depth in (2, 3, 4)]


def network(activation, depth, n):
    """Hyperparameters that differ from layer to layer, and hidden widths that do at depth 3."""
    hidden = {2: [n], 3: [3 * n // 4, n], 4: [n, n, n]}[depth]
    C_b, C_W = [0.1, 0.2, 0.05, 0.1], [1.6, 1.4, 1.8, 1.5]
    lambda_b, lambda_W = [0.3, 0.2, 0.5, 0.4], [0.9, 1.1, 0.7, 1.0]
    return ww.MLP([3, *hidden, 2], activation, *(values[:depth] for values in (C_b, C_W, lambda_b, lambda_W)))


def tally(net, inputs, networks, seed, names=CORRECTIONS, batch=50):
    result, ref = Tally(net.n), reference(net, inputs)
    names = check_statistics(net.activation, names)
    for start in range(0, networks, batch):
        indices = np.arange(start, start + batch)
        result.add(indices, *observe_batch(net, seed, indices, inputs, names, ref))
    return result


def observe_batch(net, seed, indices, inputs, names, ref):
    """What the networks `indices` of a seed say, drawn and observed as `measure` does."""
    return observe_drawn(net, names, *draw_batch(net, 1, seed, indices), jnp.asarray(inputs), ref)


@cache
def measured(activation, depth, n, networks):
    return tally(network(activation, depth, n), TWO, networks, seed=n).estimates()


@cache
def exact(activation, depth):
    return {name: found[-1] for name, found in finite_flow(network(activation, depth, 64), TWO).tensors.items()}


def worst_pull(widths, name, target):
    """Of the extrapolation to infinite width from n, 2n (no 1/n left) or n, 2n, 4n (no 1/n² left), over all entries."""
    weights = {2: (-1.0, 2.0), 3: (1 / 3, -2.0, 8 / 3)}[len(widths)]
    value = sum(w * found[name].value for w, found in zip(weights, widths, strict=True))
    error = np.sqrt(sum((w * found[name].error) ** 2 for w, found in zip(weights, widths, strict=True)))
    # tensors that vanish are measured as rounding errors
    return np.abs((value - target) / np.maximum(error, 1e-9)).max()


def quick(activation, depth):
    return [measured(activation, depth, n, 1000 if depth < 4 else 600) for n in (64, 128)]


def thorough(activation, depth):
    return [measured(activation, depth, n, 4000) for n in (32, 64, 128)]


def exponent(small, large, target):
    """How the discrepancy falls from n to 2n, as a power of 1/n, at the entry where it shows best; None where none does."""
    pull = (small.value - target) / np.maximum(small.error, 1e-9)
    at = np.unravel_index(np.argmax(np.abs(pull)), pull.shape)
    if abs(pull[at]) < 7:
        return None
    ratio = (small.value - target)[at] / (large.value - target)[at]
    noise = np.hypot(1 / pull[at], large.error[at] / (large.value - target)[at])
    return (np.log2(ratio), noise / np.log(2)) if ratio > 0 else (np.inf, 0.0)


@pytest.mark.parametrize(("activation", "depth"), QUICK)
@pytest.mark.parametrize("name", CORRECTIONS)
def test_every_tensor_agrees_with_theory(activation, depth, name):
    assert worst_pull(quick(activation, depth), name, exact(activation, depth)[name]) < 4


@pytest.mark.parametrize(("activation", "depth"), QUICK[1:])
def test_discrepancies_shrink_like_one_over_the_width(activation, depth):
    """At depth 2 there are none: layer 2 is exact at every width."""
    seen = 0
    for name, target in exact(activation, depth).items():
        small, large = (found[name] for found in quick(activation, depth))
        fit = exponent(small, large, target)
        if fit is not None:
            seen += 1
            assert abs(fit[0] - 1) < 4 * fit[1], (name, fit)
    assert seen >= 1


TERMS = [
    *[(name, term) for name in "VBFU" for term in ("four", name)],
    *[("D", term) for term in ("four", "V", "D")],
    *[("A", term) for term in ("four", "V", "D", "D transposed", "A")],
    *[("P", term) for term in ("four", "B", "P")],
    *[("Q", term) for term in ("four curved", "four", "F", "Q")],
    *[("R", term) for term in ("four curved", "four", "B", "P", "R")],
    *[("S", term) for term in ("four curved", "four", "B", "S")],
    *[("T", term) for term in ("four", "F", "Q", "Q mirrored", "T")],
]
#: G1 and H1 vanish at layer 2, so what they pass on shows from depth 4.
MEAN_TERMS = [
    *[("G1", term) for term in ("G1", "V")],
    *[("H1", term) for term in ("values V", "slopes G1", "slopes V", "H1", "D and F")],
]


def without(activation, depth, name, term):
    flow = finite_flow(network(activation, depth, 64), TWO, (name,), omit=frozenset({(name, term)}))
    return flow.tensors[name][-1]


@pytest.mark.parametrize(("name", "term"), TERMS)
def test_leaving_out_a_term_shows(name, term):
    assert worst_pull(quick("gelu", 3), name, without("gelu", 3, name, term)) > 4


@pytest.mark.parametrize(("name", "term"), MEAN_TERMS)
def test_leaving_out_a_term_of_the_means_shows(name, term):
    assert worst_pull(quick("sin", 4), name, without("sin", 4, name, term)) > 4


@pytest.mark.full
@pytest.mark.parametrize(("activation", "depth"), ALL)
def test_every_tensor_agrees_with_theory_in_all_combinations(activation, depth):
    found, target = thorough(activation, depth), exact(activation, depth)
    for name in CORRECTIONS:
        assert worst_pull(found, name, target[name]) < 4, name
        fit = exponent(found[1][name], found[2][name], target[name])
        if fit is not None:
            # the next order moves the exponent by about the relative discrepancy itself
            shift = np.linalg.norm(found[1][name].value - target[name]) / np.linalg.norm(target[name])
            assert abs(fit[0] - 1) < 4 * fit[1] + shift, (name, fit, shift)


@pytest.mark.full
@pytest.mark.parametrize(("name", "term"), [*TERMS, *MEAN_TERMS, ("H1", "values G1")])
def test_leaving_out_any_term_shows_at_depth_four(name, term):
    assert worst_pull(thorough("sin", 4), name, without("sin", 4, name, term)) > 4


@pytest.mark.full
@pytest.mark.parametrize(
    ("activation", "names"), [("softplus", CORRECTIONS), ("relu", ("V", "A", "B", "D", "F", "G1", "H1"))]
)
def test_three_inputs(activation, names):
    widths = []
    for n in (64, 128):
        net = ww.MLP([3, n, n, 2], activation, 0.1, 1.6, 0.3, 0.9)
        widths.append(tally(net, X, 1500, seed=n, names=names).estimates())
    target = finite_flow(net, X, names)
    for name in names:
        assert worst_pull(widths, name, target.tensors[name][-1]) < 4, name


@partial(jax.jit, static_argnums=0)
def by_brute_force(net, layers, inputs):
    """Ĥ, dĤ, ddIĤ, ddIIĤ from derivative tensors over all parameters."""
    flat, unravel = ravel_pytree(layers)
    rates = [
        Weights(jnp.full(layer.W.shape, lambda_W / layer.W.shape[1]), jnp.full(layer.b.shape, lambda_b))
        for layer, lambda_b, lambda_W in zip(layers, net.lambda_b, net.lambda_W, strict=True)
    ]
    lam = ravel_pytree(rates)[0]

    def z(parameters):
        return forward(net, unravel(parameters), inputs)[1][-1].T

    first, second = jax.jacfwd(z), jax.jacfwd(jax.jacfwd(z))
    g, h, t = first(flat), second(flat), jax.jacfwd(second)(flat)
    v = g * lam
    bent = jnp.einsum("iaxy,kcy->iakcx", h, v)
    return (
        jnp.einsum("iax,jbx->ijab", g, v),
        jnp.einsum("iaxy,jbx,kcy->ijkabc", h, v, v),
        jnp.einsum("iaxyz,jbx,kcy,mdz->ijkmabcd", t, v, v, v),
        jnp.einsum("iakcx,x,jbmdx->ijkmabcd", bent, lam, bent),
    )


def test_differentials_are_derivatives_with_respect_to_every_parameter():
    net = ww.MLP([2, 3, 4, 2], "sin", 0.1, 1.6, [0.3, 0.5, 0.7], [0.9, 1.1, 1.3])
    layers, inputs = sample_parameters(net, network_key(0, 3)), jnp.asarray(TWO[:, :2])
    found, brute = jax.jit(differentials, static_argnums=0)(net, layers, inputs), by_brute_force(net, layers, inputs)
    for one, other in zip(found, brute, strict=True):
        assert np.allclose(one, other, rtol=1e-11, atol=1e-13)

    @jax.jit
    def other_way(layers):
        c = chain(net, layers, inputs)
        return second_derivative(c, bend(c, c.signals, move(c, c.signals)), c.signals)

    assert np.allclose(other_way(layers), brute[1], rtol=1e-11)


@partial(jax.jit, static_argnums=(0, 1))
def draw(net, probes, seed, indices):
    """Parameters and probe signs; a program of its own, or random numbers are made again wherever they are read."""
    keys = jax.vmap(partial(network_key, seed))(indices)
    return jax.vmap(lambda key: (sample_parameters(net, key), probe_signs(net, key, probes)))(keys)


def from_outputs(net, K, Theta, layers):
    """The definitions of theory §3 read off one network's two outputs, with nothing averaged or subtracted."""
    z = forward(net, layers, jnp.asarray(TWO))[1][-1].T
    H, dH, ddI, ddII = differentials(net, layers, jnp.asarray(TWO))
    G, T = jnp.einsum("ia,ib->iab", z, z) - K, H[jnp.arange(2), jnp.arange(2)] - Theta
    outer = lambda x, y: x[:, :, None, None] * y  # noqa: E731
    one = {
        "G1": G[0],
        "H1": T[0],
        "V": outer(G[0], G[1]),
        "D": outer(G[0], T[1]),
        "A": outer(T[0], T[1]),
        "B": jnp.einsum("ab,cd->acbd", H[0, 1], H[0, 1]),
        "F": jnp.einsum("a,b,cd->acbd", z[0], z[1], H[0, 1]),
        "P": jnp.einsum("abc,d->abcd", dH[0, 1, 1], z[0]),
        "Q": jnp.einsum("abc,d->abcd", dH[0, 0, 1], z[1]),
        "R": ddI[0, 0, 1, 1],
        "S": ddII[0, 0, 1, 1],
        "T": jnp.einsum("abcd->acdb", ddII[0, 1, 0, 1]),
        "U": jnp.einsum("abcd->adbc", ddII[0, 1, 1, 0]),
    }
    return {name: net.n * value for name, value in one.items()}


@pytest.mark.full
def test_estimators_have_the_means_of_the_definitions_at_a_small_width():
    """Exact identities at every width: nothing is extrapolated here, and the tensors of different names differ."""
    net = network("tanh", 3, 12)
    infinite = finite_flow(net, TWO, ("G1",))
    Theta = reference(net, TWO).Theta[-1][np.array([[0, 1], [1, 2]])]
    batch = jax.jit(jax.vmap(partial(from_outputs, net, infinite.K[-1], Theta)))
    plain = Tally(net.n)
    for start in range(0, 20_000, 500):
        indices = np.arange(start, start + 500)
        plain.add(indices, batch(draw(net, 1, 5, indices)[0]), np.zeros((500, 0)))
    definitions, estimators = plain.estimates(), tally(net, TWO, 4000, seed=6, batch=500).estimates()

    def pull(name, other):
        error = np.hypot(definitions[name].error, estimators[other].error)
        return np.abs((definitions[name].value - estimators[other].value) / error).max()

    for name in CORRECTIONS:
        assert pull(name, name) < 4, name
    for name, other in (("S", "U"), ("T", "S"), ("P", "Q"), ("A", "D"), ("R", "S"), ("B", "F")):
        assert pull(name, other) > 4, (name, other)
    for name in ("G1", "H1"):
        assert 10 * np.median(estimators[name].error) < np.median(definitions[name].error)


observe = jax.jit(observe_tensors, static_argnums=(0, 3), static_argnames="gaussian")


def test_a_repeated_input_repeats_entries_and_a_vanishing_one_is_no_exception():
    net = ww.MLP([3, 16, 16, 1], "tanh", 0.0, 1.5, 0.2, 1.0)
    key, names = network_key(1, 0), check_statistics(net.activation, ["V", "D", "A", "F"])
    layers, signs = sample_parameters(net, key), probe_signs(net, key)
    once, twice, with_zero = (
        observe(net, layers, inputs, names, reference(net, inputs), signs).tensors
        for inputs in (X[:1], X[[0, 0]], np.stack([X[0], 0 * X[0]]))
    )
    for name in names:
        assert np.allclose(twice[name], np.ravel(once[name])[0], rtol=1e-6, atol=1e-9), name
        assert np.all(np.isfinite(with_zero[name])), name
        assert np.allclose(np.ravel(with_zero[name])[0], np.ravel(once[name])[0]), name


def test_networks_are_those_of_the_sampler_whatever_the_batch():
    net = network("tanh", 3, 12)
    names, ref, key = check_statistics(net.activation, CORRECTIONS), reference(net, TWO), network_key(6, 499)
    one = observe_batch(net, 6, np.arange(500), TWO, names, ref)
    other = observe_batch(net, 6, np.arange(998, 498, -1), TWO, names, ref)
    assert one.controls.shape == (500, 2 * 6)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.allclose(left[499], right[499], rtol=1e-9, atol=1e-12)
    alone = observe(net, sample_parameters(net, key), TWO, ("B",), ref, probe_signs(net, key), gaussian=False)
    assert np.allclose(one.tensors["B"][499], alone.tensors["B"], rtol=1e-9)


def test_more_probes_leave_the_mean_and_lower_the_noise():
    net = network("tanh", 3, 24)
    ref, (layers, signs) = reference(net, TWO), draw(net, 8, 8, np.arange(400))

    def of(layers, signs):
        return observe_tensors(net, layers, jnp.asarray(TWO), ("U",), ref, signs, gaussian=False).tensors["U"]

    one, eight = (np.asarray(jax.jit(jax.vmap(of))(layers, some)) for some in (signs[:, :1], signs))
    difference = one - eight
    assert np.abs(difference.mean(axis=0) / difference.std(axis=0) * 20).max() < 4
    assert np.mean(np.std(eight, axis=0) / np.std(one, axis=0)) < 0.8


def random_observations(networks, seed=0):
    """A tensor that follows a control of mean zero, and a G1 and V whose connected part is known."""
    rng = np.random.default_rng(seed)
    controls = rng.normal(size=(networks, 2))
    U = 3.0 + controls @ np.array([2.0, -1.0]) + 0.1 * rng.normal(size=networks)
    G1 = 5.0 + rng.normal(size=networks)
    tensors = {"U": U, "G1": G1[:, None, None], "V": (G1**2 / 4)[:, None, None, None, None]}
    return tensors, controls


def test_sums_are_the_same_in_one_piece_and_in_several():
    tensors, controls = random_observations(1000)
    whole, parts = Tally(4), [Tally(4) for _ in range(3)]
    whole.add(np.arange(1000), tensors, controls)
    for part, indices in zip(parts, np.split(np.random.default_rng(1).permutation(1000), (100, 700)), strict=True):
        part.add(indices, {name: value[indices] for name, value in tensors.items()}, controls[indices])
    merged = Tally(4)
    for part in parts:
        merged.merge(part)
    assert merged.networks == 1000
    for name, found in whole.estimates().items():
        assert np.allclose(merged.estimates()[name], found, rtol=1e-10)


def test_controls_take_their_noise_off_and_products_of_means_have_errors():
    pulls = []
    for seed in range(40):
        tensors, controls = random_observations(1000, seed)
        sums = Tally(4)
        sums.add(np.arange(1000), tensors, controls)
        found = sums.estimates()
        assert np.isclose(found["U"].error, 0.1 / np.sqrt(1000), rtol=0.4)
        assert np.isclose(found["V"].error.item(), np.sqrt(2 / 1000) / 4, rtol=0.4)
        pulls.append(
            [(found["U"].value - 3.0) / found["U"].error, (found["V"].value.item() - 0.25) / found["V"].error.item()]
        )
    assert np.all(np.abs(np.std(pulls, axis=0) - 1) < 0.45)
    assert np.all(np.abs(np.mean(pulls, axis=0)) < 4 / np.sqrt(40))


def test_memory_does_not_grow_with_the_number_of_networks():
    def size(networks):
        sums = Tally(4)
        for start in range(0, networks, 100):
            tensors, controls = random_observations(100, start)
            sums.add(np.arange(start, start + 100), tensors, controls)
        return sum(array.nbytes for array in sums.sums.values())

    assert size(100) == size(10_000)


@pytest.mark.parametrize(("widths", "loops"), [([16, 16, 16, 16], 1), ([16, 16, 8, 8], 2)])
def test_layers_of_equal_width_are_compiled_once(widths, loops):
    net = ww.MLP([3, *widths, 1], "tanh", C_W=1.5)
    ref, layers = reference(net, X), sample_parameters(net, network_key(0, 0))
    traced = jax.make_jaxpr(lambda some: tuple(fluctuations(net, some, jnp.asarray(X), ref)))(layers)
    assert sum(equation.primitive.name == "scan" for equation in traced.eqns) == loops


def test_few_networks_are_not_fitted_with_controls():
    tensors, controls = random_observations(10)
    sums = Tally(4)
    sums.add(np.arange(10), tensors, controls)
    assert np.isclose(sums.estimates()["U"].value, tensors["U"].mean())
    assert np.isclose(sums.estimates()["U"].error, tensors["U"].std(ddof=1) / np.sqrt(10))
    assert np.isclose(jackknife(sums.replicates()["U"]).error, sums.estimates()["U"].error)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: check_statistics(ww.MLP([1, 1], "tanh").activation, ["W"]), InvalidInput, "tensors: got 'W'; expected one of A, B"),
        (lambda: check_statistics(ww.MLP([1, 1], "relu").activation, ["P"]), NotDifferentiable, "P for relu, whose derivative of order 1 jumps"),
        (lambda: fluctuations(ww.MLP([3, 1, 1], "tanh"), [], TWO, None), InvalidInput, r"hidden widths \[1\]; expected at least 2 neurons"),
        (lambda: Tally(4, blocks=1), InvalidInput, "blocks: got 1; expected at least 2"),
        (lambda: Tally(4).merge(Tally(5)), InvalidInput, "other: got n=5, blocks=64; expected n=4, blocks=64"),
        (lambda: Tally(4).estimates(), InvalidInput, "networks: got 0; expected at least 2"),
    ],
)  # fmt: skip
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
