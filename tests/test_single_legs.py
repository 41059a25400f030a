"""v3, d3, f3, q3: tensors with a neuron's single leg, on the streams of residual networks alone (theory §11)."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import widthwise as ww
from widthwise.errors import InvalidInput, NoRule, UnknownName
from widthwise.experiments.any_network import seen_on_stream
from widthwise.experiments.estimators import draw_batch
from widthwise.experiments.reference import pair_number, reference
from widthwise.experiments.sampler import output_rows
from widthwise.experiments.tangent import rates
from widthwise.flow.tensors.tensor_flow import finite_flow
from widthwise.tensors import SINGLE_LEGS

X = np.array([[1.0, 0.3, -0.5], [0.2, -0.9, 0.8]])


def stream(activation="gelu", scales=(1.0, 0.7), n=32, end=(), norm=()):
    """Two blocks, read from the stream itself unless other layers are at the end."""
    numbers = ((0.2, 0.8, 0.2, 1.0), (0.05, 1.1, 0.3, 0.8))
    blocks = [
        ww.Residual([*norm, activation, ww.Dense(n, n, *own)], scale)
        for scale, own in zip(scales, numbers, strict=True)
    ]
    return ww.Network([ww.Dense(3, n, 0.1, 1.3, 0.2, 1.0), *blocks, *end])


@cache
def measured(inputs, networks, seed=1, **kinds):
    return ww.measure(
        stream(**kinds), X[:inputs], networks=networks, seed=seed, statistics=SINGLE_LEGS, widths=[64, 128]
    )


def pulls(net, measurement, omit=frozenset()):
    """The worst pull of each tensor of a network's stream."""
    inputs = X[: measurement.sizes["a"]]
    found = finite_flow(net, inputs, SINGLE_LEGS, last_only=True, omit=omit).tensors
    return {
        name: np.abs((measurement[name].values - found[name]) / measurement[f"{name}_se"].values).max()
        for name in SINGLE_LEGS
    }


SIZES = [(1, 200), pytest.param(2, 4000, marks=pytest.mark.full)]


@pytest.mark.parametrize(("inputs", "networks"), SIZES)
def test_streams_of_sampled_networks_have_single_legs(inputs, networks):
    rows = ww.compare(ww.theory(stream(), X[:inputs], order=1, layers="last"), measured(inputs, networks)).rows
    assert {row.variable for row in rows} == set(SINGLE_LEGS)
    assert max(abs(row.worst_pull) for row in rows) < 5.0  # up to 28 entries: a false alarm in 10⁵ runs


@pytest.mark.parametrize(("inputs", "networks"), SIZES)
def test_without_memory_or_with_another_skip_networks_disagree(inputs, networks):
    """Negative controls; v and d scatter more than f and q."""
    ms = measured(inputs, networks)
    local, other = pulls(stream(), ms, omit=frozenset({"memory"})), pulls(stream(scales=(1.0, 0.4)), ms)
    assert min(local[name] for name in (SINGLE_LEGS if networks > 1000 else ("f3", "q3"))) > 5.0
    assert min(other[name] for name in (("f3", "q3") if networks > 1000 else ("q3",))) > 5.0


@pytest.mark.full
@pytest.mark.parametrize("norm", [ww.RMSNorm(0.05), ww.LayerNorm(0.05)], ids=["rms", "ln"])
def test_normalised_streams_have_them_too(norm):
    assert max(pulls(stream(norm=(norm,)), measured(1, 4000, norm=(norm,))).values()) < 5.0


def test_they_vanish_for_odd_activations_and_at_plain_layers():
    """On the stream of tanh, and at a plain layer behind that of gelu as if it were one: f, q within errors."""
    ms = ww.measure(stream("tanh"), X[:1], networks=64, statistics=SINGLE_LEGS)
    for name in SINGLE_LEGS:
        assert np.abs(ms[name] / ms[f"{name}_se"]).max() < 5.0, name
    assert max(np.abs(ww.theory(stream("tanh"), X, order=1)[name]).max() for name in SINGLE_LEGS) < 1e-15
    plain = ww.ResMLP([3, 32, 32, 32], "gelu")
    layers, signs = draw_batch(plain, 1, 0, np.arange(64))
    inputs, ref = jnp.asarray(X[:1]), reference(plain, X[:1])
    seen = jax.jit(jax.vmap(lambda some, s: seen_on_stream(plain, some, inputs, ("f3", "q3"), ref, s[0])))(
        layers, signs
    )
    for name, sampled in seen.items():
        values = np.ravel(sampled)
        assert abs(values.mean()) < 5.0 * values.std() / 8.0, name
        assert values.std() > 0.0


def test_signs_add_up_to_sums_over_pairs_of_neurons():
    """The mean over all signs of two neurons against Jacobians and Hessians of one network, pair by pair."""
    net = ww.Network([ww.Dense(3, 2, 0.1), ww.Residual(["gelu", ww.Dense(2, 2, 0.2, 0.8, 0.3, 0.7)], 0.6)])
    (parameters, _), inputs, ref = draw_batch(net, 1, 3, np.arange(1)), jnp.asarray(X), reference(net, X)
    parameters = jax.tree.map(lambda value: value[0], parameters)
    every = jnp.asarray(list(product((-1.0, 1.0), repeat=4))).reshape(16, 2, 2)
    seen = jax.jit(jax.vmap(lambda signs: seen_on_stream(net, parameters, inputs, SINGLE_LEGS, ref, signs)))(every)
    start, restored = ravel_pytree(parameters)

    def outputs(p):
        return output_rows(net, restored(p), inputs)

    z, J, bent = map(
        np.asarray, jax.jit(lambda p: (outputs(p), jax.jacrev(outputs)(p), jax.hessian(outputs)(p)))(start)
    )
    rate = np.concatenate([np.full(p.size, one) for own, p2 in zip(rates(net), parameters, strict=True)
                           for one, p in zip(own, p2, strict=True)])  # fmt: skip
    skipped = 0.6 * (X @ np.asarray(parameters[0].W).T + np.asarray(parameters[0].b))
    K, Theta = (one[-1][pair_number(2)] for one in (ref.K, ref.Theta))
    H = np.einsum("bip,p,ckp->ikbc", J, rate, J)
    expected = dict.fromkeys(SINGLE_LEGS, 0.0)
    for i, k in ((0, 1), (1, 0)):
        expected["v3"] += skipped[:, i, None, None] * (np.outer(z[:, k], z[:, k]) - K)
        expected["d3"] += skipped[:, i, None, None] * (H[k, k] - Theta)
        expected["f3"] += z[:, i, None, None] * H[i, k]
        expected["q3"] += np.einsum("apq,bp,cq->abc", bent[:, i], rate * J[:, i], rate * J[:, k])
    for name, values in seen.items():  # over n − 1 = 1
        assert np.allclose(values.mean(axis=0), expected[name], rtol=0, atol=1e-12), name


def test_they_stand_where_a_stream_is_read_and_are_zero_elsewhere():
    read, behind, plain = stream(), stream(end=("gelu", ww.Dense(32, 1))), ww.MLP([3, 32, 32, 1], "gelu")
    assert set(SINGLE_LEGS) <= set(ww.theory(read, X[:1], order=1, layers="last"))
    found = ww.theory(behind, X, order=1)
    assert found["v3"].dims == ("layer", "a", "b", "c")
    assert not found["q3"].sel(layer=[1, 4]).any()
    assert found["q3"].sel(layer=[2, 3]).all()
    assert not set(SINGLE_LEGS) & set(ww.theory(behind, X[:1], order=1, layers="last"))
    assert not set(SINGLE_LEGS) & set(ww.theory(plain, X[:1], order=1))
    for zero in (
        ww.theory(plain, X, order=1, tensors=["G1", *SINGLE_LEGS]),
        ww.measure(plain, X, networks=4, statistics=SINGLE_LEGS),
    ):
        assert zero["f3"].shape[1:] == (2, 2, 2)
        assert not any(zero[name].any() for name in SINGLE_LEGS)


def test_every_layer_is_measured_as_the_end_of_a_network():
    net = ww.ResMLP([3, 8, 8, 1], "gelu")
    ms = ww.measure(net, X[:1], networks=8, statistics=["f3"], layers="all")
    assert (ms["f3_se"].values.ravel() > 0.0).tolist() == [False, True, False]


def test_a_network_that_ends_on_its_stream_takes_other_widths():
    assert stream(n=8).with_width(16) == stream(n=16)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (
            lambda: ww.theory(ww.MLP([3, 8, 1], "gelu"), X, order=1, tensors=["v3"], inputs="pairs"),
            InvalidInput,
            r"tensors: got \['v3'\] with inputs='pairs'.*inputs='all'",
        ),
        (lambda: ww.single_input(stream(), X[0], tensors=["v3"]), UnknownName, "tensors: got 'v3'"),
        (lambda: ww.measure(stream(), X, networks=2, statistics=["V"]), NoRule, "ends with Residual"),
    ],
)
def test_what_cannot_be_had_is_refused(ask, error, message):
    with pytest.raises(error, match=message):
        ask()
