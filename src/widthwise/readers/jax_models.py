"""What Flax and Equinox models have in common: which Linear layer comes when, and which activation is between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, resolve
from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.network import MLP
from widthwise.network.validation import check_integer
from widthwise.readers.activations import LIBRARY, PROBE, identify
from widthwise.readers.chains import Chain, Dense, Nonlinear, chain_of, check_fits, unsupported
from widthwise.readers.specification import Reading, read_chain
from widthwise.readers.traced import Traced, trace


def marked(arrays: Sequence[Any]) -> list[jax.Array]:
    """Arrays of the same shapes with distinct entries, by which each is known again after tracing."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.uniform(0.5, 1.0, np.shape(array))) for array in arrays]


def jax_chain(
    call: Callable[[jax.Array], jax.Array],
    linear: Sequence[tuple[str, Any]],
    marks: Sequence[jax.Array],
    values: Callable[[Any], tuple[np.ndarray, np.ndarray | None]],
    functions: Iterable[Any],
    activation: Any = None,
) -> Chain:
    """The chain of a model.

    Parameters
    ----------
    call : the model with marked weights, on one input (features,).
    linear : where each Linear layer stands in the model, and the layer.
    marks : the marked weights of those layers, in either orientation.
    values : W (outputs, inputs) and b of a layer.
    functions : callables found in the model, any of which may be the activation.
    activation : one that is tried first.
    """
    if not linear:
        raise unsupported("a model without a Linear layer")
    steps: list[Dense | Nonlinear] = []
    functions = [*([] if activation is None else [resolve(activation)]), *functions]
    for found in _trace_at_some_size(call, [values(layer)[0].shape[1] for _, layer in linear]):
        which = [i for i, mark in enumerate(marks) if _same(found.W, mark)]
        if not which:
            raise unsupported("a product with a matrix that is no Linear layer's weight")
        path, layer = linear[which[0]]
        steps.append(Dense(*values(layer), path, layer))
        if found.after is not None:
            steps.append(Nonlinear(_which(found.after, functions, path), f"the activation after {path}"))
    return chain_of([step for step in steps if not (isinstance(step, Nonlinear) and step.activation.name == "linear")])


def read_with_one_rate(chain: Chain, learning_rate: float, activation: Any, recognise: bool) -> Reading:
    """The specification of a chain whose parameters all have the same learning rate."""
    each = [learning_rate] * len(chain.dense)
    return read_chain(chain, (each, each), activation, recognise)


def drawn_for(chain: Chain, net: MLP, seed: int) -> list[Weights]:
    """Gaussian parameters of `net`, which must fit the chain."""
    check_fits(chain, net)
    return sample_parameters(net, network_key(check_integer("seed", seed, 0), 0))


def _same(W: np.ndarray, mark: Any) -> bool:
    return any(W.shape == m.shape and np.allclose(W, m, rtol=1e-5) for m in (np.asarray(mark), np.asarray(mark).T))


def _trace_at_some_size(call: Callable, sizes: Sequence[int]) -> list[Traced]:
    """The trace at the input dimension of whichever layer comes first."""
    problem: Exception | None = None
    for size in dict.fromkeys(sizes):
        try:
            return trace(call, jnp.ones(size))
        except InvalidInput:
            raise
        except Exception as error:  # shapes that do not fit, or whatever a model of the user may raise
            problem = problem or error
    reason = str(problem).splitlines()[0] if problem else ""
    raise unsupported(f"a model that cannot be called on one input ({type(problem).__name__}: {reason})") from problem


def _which(after: Callable, functions: Iterable[Any], path: str) -> Activation:
    """A built-in with the same values, or else the model's own function, or jax's, that has them."""
    try:
        return identify(after, only_builtin=True)
    except InvalidInput:
        wanted = after(PROBE)
    for function in (*functions, *LIBRARY):
        try:
            same = np.allclose(np.asarray(function(jnp.asarray(PROBE))), wanted, rtol=1e-12, atol=1e-13)
        except Exception:  # a callable of the model that is no function of one array
            continue
        if same:
            return function if isinstance(function, Activation) else identify(function)
    raise unsupported(
        f"operations after {path} that are no elementwise activation known to widthwise",
        "Pass the activation: activation=widthwise.activation(function, kinks=[…]).",
    )
