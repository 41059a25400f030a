"""`widthwise.stax`: kernels of 70 architectures beside numbers computed once with neural-tangents 0.6.5, and its calls.

The numbers were written by `benchmarks/peer_architectures.py` in the peer's own environment, in float64.
"""

import json
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from widthwise import stax
from widthwise.errors import InvalidInput, NoRule, UnknownName
from widthwise.gaussian import expectation

ROOT = Path(__file__).parent
sys.path.append(str(ROOT.parent / "benchmarks"))
from architectures import differences, kernels_of_cases  # noqa: E402

PEER = json.loads((ROOT / "data" / "stax_architectures.json").read_text())
IMAGES = np.random.default_rng(1).normal(size=(3, 5, 4, 2))
ROWS = np.random.default_rng(2).normal(size=(4, 3))


@pytest.fixture(scope="module")
def ours():
    return kernels_of_cases()


@pytest.mark.parametrize("name", PEER)
def test_kernels_are_those_of_the_peer(ours, name):
    apart, own = differences(ours[name], PEER[name])
    assert apart < 1e-12
    # the peer takes an arc cosine of a rounded 1 where a kinked activation meets an input with itself
    assert own < 5e-9
    wrong = {label: {key: 1.001 * value for key, value in kernels.items()} for label, kernels in ours[name].items()}
    assert differences(wrong, PEER[name])[0] > 1e-5


def test_where_both_differ_a_third_route_decides_for_ours(ours):
    """relu, one convolution and Flatten: Θ of an image with itself by quadrature of ⟨σσ⟩ and ⟨σ'σ'⟩ at every pixel."""
    rng = np.random.default_rng(list(PEER).index("no bias"))
    images = rng.normal(size=(3, 6, 6, 3))
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    K = sum(np.sum(padded[:, i : i + 6, j : j + 6] ** 2, axis=-1) for i in range(3) for j in range(3)) / 27
    value, slope = (expectation("relu", K.ravel(), orders=(p, p), method="generic").value for p in (0, 1))
    Theta = (value + slope * K.ravel()).reshape(K.shape).mean(axis=(1, 2))
    np.testing.assert_allclose(np.diag(ours["no bias"]["square"]["ntk"]), Theta, rtol=1e-13)
    assert np.abs(np.diag(PEER["no bias"]["square"]["ntk"]) / Theta - 1).max() > 1e-10


@pytest.mark.parametrize("end", [[stax.Flatten()], [stax.GlobalAvgPool()], []])
def test_the_three_functions_belong_together(end):
    net = stax.serial(
        stax.Conv(256, (3, 3), padding="SAME", W_std=1.2, b_std=0.2), stax.Relu(), *end, stax.Dense(2, 1.1, 0.3)
    )
    init_fn, apply_fn, kernel_fn = net
    keys = jax.random.split(jax.random.key(0), 60)
    shape, params = init_fn(keys[0], IMAGES.shape)
    assert apply_fn(params, IMAGES).shape == shape
    outputs = np.stack([apply_fn(init_fn(key, IMAGES.shape)[1], IMAGES).reshape(3, -1, 2)[:, 0] for key in keys])
    K = kernel_fn(IMAGES, None, "nngp")
    K = K if K.ndim == 2 else K[:, :, 0, 0, 0, 0]
    seen = np.einsum("kai,kbi->ab", outputs, outputs) / 120
    spread = np.sqrt((K**2 + np.outer(np.diag(K), np.diag(K))) / 120)
    assert np.abs((seen - K) / spread).max() < 4.5


def test_gradients_of_apply_fn_give_the_ntk():
    init_fn, apply_fn, kernel_fn = stax.serial(
        stax.Conv(2048, (3,), padding="SAME", W_std=1.2, b_std=0.2), stax.Erf(), stax.GlobalAvgPool(), stax.Dense(1)
    )
    words = np.random.default_rng(5).normal(size=(2, 4, 3))

    def empirical(key):
        params = init_fn(key, words.shape)[1]
        J = jax.jacobian(lambda p: apply_fn(p, words)[:, 0])(params)
        return sum(np.asarray(leaf.reshape(2, -1) @ leaf.reshape(2, -1).T) for leaf in jax.tree.leaves(J))

    seen = np.mean([empirical(key) for key in jax.random.split(jax.random.key(3), 8)], axis=0)
    np.testing.assert_allclose(seen, kernel_fn(words, None, "ntk"), rtol=0.03)


def test_get_takes_one_name_several_or_none():
    kernel_fn = stax.serial(stax.Dense(8), stax.Relu(), stax.Dense(1))[2]
    both = kernel_fn(ROWS, None, ("ntk", "nngp"))
    assert both._fields == ("ntk", "nngp")
    whole = kernel_fn(ROWS, ROWS[:2])
    np.testing.assert_array_equal(whole.nngp, kernel_fn(ROWS, ROWS[:2], "nngp"))
    np.testing.assert_allclose(whole.cov1, np.diag(kernel_fn(ROWS, None, "nngp")), rtol=1e-14)
    assert whole.cov2.shape == (2,)
    with pytest.raises(UnknownName, match="get: got 'ntkk'.*Did you mean 'ntk'|get: got 'ntkk'"):
        kernel_fn(ROWS, None, "ntkk")


def test_dropout_draws_masks_from_the_key_that_is_given():
    init_fn, apply_fn, _ = stax.serial(stax.Dense(64), stax.Relu(), stax.Dropout(0.5), stax.Dense(1))
    _, params = init_fn(jax.random.key(0), ROWS.shape)
    one, two = (apply_fn(params, ROWS, rng=jax.random.key(seed)) for seed in (1, 2))
    assert not np.allclose(one, two)


#: Public names of neural_tangents, and of its stax and predict, in version 0.6.5.
NAMES_OF_THE_PEER = """
    Kernel NtkImplementation batch empirical_kernel_fn empirical_nngp_fn empirical_ntk_fn empirical_ntk_vp_fn experimental
    linearize monte_carlo_kernel_fn predict stax taylor_expand
    ABRelu Abs Aggregate AggregateImplementation AttentionMechanism AvgPool Bool Conv ConvLocal ConvTranspose Cos Dense
    Diagonal DotGeneral Dropout Elementwise ElementwiseNumerical Erf Exp ExpNormalized FanInConcat FanInProd FanInSum
    FanOut Flatten Gabor Gaussian Gelu GlobalAvgPool GlobalSelfAttention GlobalSumPool Hermite Identity ImageResize Index
    LayerNorm LeakyRelu MaskedArray Monomial Padding Polynomial PositionalEmbedding Rbf RectifiedMonomial Relu
    Sigmoid_like Sign Sin Slice SumPool layer parallel repeat requires serial supports_masking unmask_fn
    Gaussian ODEState gp_inference gradient_descent gradient_descent_mse gradient_descent_mse_ensemble max_learning_rate
"""


def test_the_guide_has_every_name_of_the_peer():
    guide = set(re.findall(r"\w+", (ROOT.parent / "docs" / "neural_tangents.md").read_text()))
    assert set(NAMES_OF_THE_PEER.split()) <= guide


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: stax.ConvLocal, "ConvLocal"),
        (lambda: stax.Conv(8, (3, 3), dimension_numbers=("NCHW", "OIHW", "NCHW")), "channels to the last axis"),
        (lambda: stax.serial(stax.FanOut(2), stax.FanInSum(), lambda z: z), "layers made by widthwise.stax"),
        (lambda: stax.Dropout(0.0), "share of neurons that are kept"),
        (lambda: stax.Dense(8, parameterization="mup"), None),
        (lambda: stax.LayerNorm(axis=(1, 2, 3)), "no counterpart"),
    ],
)
def test_what_is_not_there_says_so(make, message):
    if message is None:
        with pytest.raises(UnknownName, match="ntk, standard"):
            stax.serial(make())[2](ROWS)
        return
    with pytest.raises((InvalidInput, NoRule), match=message):
        make()


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([stax.Dense(8), stax.parallel(stax.Relu(), stax.Relu())], "parallel of 2 branches on one signal"),
        ([stax.Dense(8), stax.FanOut(2)], "2 signals at the end"),
        ([stax.Relu(), stax.Dense(8)], "relu on the raw inputs"),
        (
            [stax.Dense(8), stax.FanOut(2), stax.parallel(stax.Identity(), stax.Identity()), stax.FanInSum()],
            "without weights",
        ),
    ],
)
def test_compositions_that_mean_nothing_are_refused(layers, message):
    with pytest.raises(InvalidInput, match=message):
        stax.serial(*layers)[2](ROWS, None, "nngp")
