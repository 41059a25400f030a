"""Flax (nnx) and Equinox: read a module, initialise it, and give every tensor its learning rate (Optax).

A copy of the model with marked weights is traced: the marks say which Linear layer comes when, and the values of what
is computed between two of them say which activation it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import resolve
from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tangent import rates
from widthwise.extras import need
from widthwise.network import MLP, check_seed
from widthwise.readers.activations import identify
from widthwise.readers.chains import LayerChain, ReadActivation, ReadDense, chain_of, check_fits, unsupported
from widthwise.readers.specification import net_or_warning, read_chain
from widthwise.readers.traced import TracedLayer, trace

#: Modules of each package that a multilayer perceptron may have, besides Linear.
_FLAX_PARTS = {"Sequential", "Dropout", "List", "Dict", "Rngs", "RngStream"}
_EQUINOX_PARTS = {"Sequential", "MLP", "Identity", "Lambda", "Dropout"}


def from_flax(model: Any, *, learning_rate: float = 1.0, activation: Any = None, recognise: bool = True) -> MLP:
    """The specification of a Flax (nnx) model: widths, activations, and from its weights C_b and C_W (theory §1).

    The model, an `nnx.Module` made of nnx.Linear and elementwise activations, is traced, so modules of your own with a
    `__call__` count as well as `nnx.Sequential`. Arguments and result as in `from_torch`.

    >>> from flax import nnx
    >>> rngs = nnx.Rngs(0)
    >>> model = nnx.Sequential(nnx.Linear(3, 64, rngs=rngs), nnx.gelu, nnx.Linear(64, 1, rngs=rngs))
    >>> net = from_flax(model)
    >>> net.widths, net.activation.name, net.C_b, net.C_W
    ((3, 64, 1), 'gelu_tanh', (0.0, 0.0), (1.0, 1.0))
    """
    return net_or_warning(read_chain(flax_chain(model, activation), learning_rate, activation, recognise))


def from_equinox(model: Any, *, learning_rate: float = 1.0, activation: Any = None, recognise: bool = True) -> MLP:
    """The specification of an Equinox model: widths, activations, and from its weights C_b and C_W (theory §1).

    The model is traced, so modules of your own with a `__call__` count as well as `eqx.nn.MLP` and
    `eqx.nn.Sequential`. Arguments and result as in `from_torch`.

    >>> import equinox as eqx
    >>> model = eqx.nn.MLP(3, 1, width_size=64, depth=2, activation=jax.nn.tanh, key=jax.random.key(0))
    >>> from_equinox(model) == MLP.torch_default([3, 64, 64, 1], "tanh")    # the same default
    True
    """
    return net_or_warning(read_chain(equinox_chain(model, activation), learning_rate, activation, recognise))


def init_flax(model: Any, net: MLP, seed: int = 0) -> Any:
    """Fill a Flax (nnx) model, in place, with Gaussian weights and biases of variance C_W/n_{l−1} and C_b (theory §1).

    Returns
    -------
    The model itself. Its widths and activations must be those of `net`.

    >>> from flax import nnx
    >>> model = nnx.Sequential(nnx.Linear(3, 8, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(8, 1, rngs=nnx.Rngs(1)))
    >>> model = init_flax(model, MLP([3, 8, 1], "relu", C_b=0.1, C_W=2.0))
    >>> bool((model.layers[0].bias[...] != 0).all())
    True
    """
    for layer, new in _drawn_weights(flax_chain(model, net.activations), net, seed):
        layer.kernel[...] = new.W.T.astype(layer.kernel.dtype)
        if layer.bias is not None:
            layer.bias[...] = new.b.astype(layer.bias.dtype)
    return model


def init_equinox(model: Any, net: MLP, seed: int = 0) -> Any:
    """A copy of an Equinox model with Gaussian weights and biases of variance C_W/n_{l−1} and C_b (theory §1).

    Returns
    -------
    The new model. Its widths and activations must be those of `net`.

    >>> import equinox as eqx
    >>> model = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
    >>> float(abs(init_equinox(model, MLP([3, 8, 1], "relu", C_W=2.0)).layers[0].bias).max())
    0.0
    """
    drawn = _drawn_weights(equinox_chain(model, net.activations), net, seed)
    return _with_weights(model, {id(layer): new for layer, new in drawn})


def _drawn_weights(chain: LayerChain, net: MLP, seed: int) -> list[tuple[Any, Weights]]:
    """Each Linear layer of the package with Gaussian parameters of `net`, which must fit the chain."""
    check_fits(chain, net, "C_b")
    parameters = sample_parameters(net, network_key(check_seed(seed), 0))
    return [(layer.owner, new) for layer, new in zip(chain.dense, parameters, strict=True)]


def flax_chain(model: Any, activation: Any = None) -> LayerChain:
    """The weight layers and activations of a module, in the order in which its call applies them."""
    nnx = need("flax.nnx", "readers", "reading a Flax model")
    if not isinstance(model, nnx.Module):
        raise InvalidInput("model", type(model).__name__, "a flax.nnx.Module", "Linen modules are not read.")
    linear = []
    for path, module in nnx.iter_modules(model):
        where = f"{'.'.join(map(str, path)) or 'the model'} ({type(module).__name__})"
        if isinstance(module, nnx.Linear):
            b = None if module.bias is None else np.asarray(module.bias[...], float)
            linear.append(ReadDense(np.asarray(module.kernel[...], float).T, b, where, module))
        elif type(module).__module__.startswith("flax.") and type(module).__name__ not in _FLAX_PARTS:
            raise unsupported(where)
        elif isinstance(module, nnx.Dropout) and not module.deterministic and module.rate > 0.0:
            raise unsupported(where, "Call model.eval() first: dropout is then the identity.")
    copy, marks = nnx.clone(model), _marks([layer.W.T for layer in linear])
    copies = [module for _, module in nnx.iter_modules(copy) if isinstance(module, nnx.Linear)]
    for layer, mark in zip(copies, marks, strict=True):
        layer.kernel.set_value(mark)
        if layer.bias is not None:
            layer.bias.set_value(jnp.full(layer.bias.shape, 0.5))
    functions = [value for _, value in nnx.iter_graph(model) if callable(value)]
    return _traced_chain(lambda x: copy(x[None, :]), linear, marks, functions, activation)


def equinox_chain(model: Any, activation: Any = None) -> LayerChain:
    """The weight layers and activations of a module, in the order in which its call applies them."""
    eqx = need("equinox", "readers", "reading an Equinox model")
    if not isinstance(model, eqx.Module):
        raise InvalidInput("model", type(model).__name__, "an equinox.Module")

    def is_part(x: Any) -> bool:
        own = type(x).__module__.startswith("equinox.nn") and type(x).__name__ not in _EQUINOX_PARTS
        return isinstance(x, eqx.nn.Linear | eqx.nn.Dropout) or (isinstance(x, eqx.Module) and own)

    linear = []
    for path, part in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_part):
        where = f"{jax.tree_util.keystr(path).lstrip('.')} ({type(part).__name__})"
        if isinstance(part, eqx.nn.Linear):
            b = None if part.bias is None else np.asarray(part.bias, float)
            linear.append(ReadDense(np.asarray(part.weight, float), b, where, part))
        elif isinstance(part, eqx.nn.Dropout):
            if not part.inference and part.p > 0:
                remedy = "Use equinox.nn.inference_mode(model) first: dropout is then the identity."
                raise unsupported(where, remedy)
        elif is_part(part):
            raise unsupported(where)
    marks = _marks([layer.W for layer in linear])
    marked = {
        id(layer.owner): Weights(mark, jnp.full(len(mark), 0.5)) for layer, mark in zip(linear, marks, strict=True)
    }
    functions = [leaf for leaf in jax.tree.leaves(model) if callable(leaf)]
    return _traced_chain(_with_weights(model, marked), linear, marks, functions, activation)


def _with_weights(model: Any, new: dict[int, Weights]) -> Any:
    """A copy of an Equinox model whose Linear layers, by id, have other weights and biases, in the dtype they had."""
    eqx = need("equinox", "readers", "reading an Equinox model")

    def replaced(x: Any) -> Any:
        if not isinstance(x, eqx.nn.Linear):
            return x
        W, b = new[id(x)]
        x = eqx.tree_at(lambda layer: layer.weight, x, W.astype(x.weight.dtype))
        return x if x.bias is None else eqx.tree_at(lambda layer: layer.bias, x, b.astype(x.bias.dtype))

    return jax.tree.map(replaced, model, is_leaf=lambda x: isinstance(x, eqx.nn.Linear))


def _marks(arrays: Sequence[np.ndarray]) -> list[jax.Array]:
    """Arrays of the same shapes with distinct entries, by which each is known again after tracing."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.uniform(0.5, 1.0, array.shape)) for array in arrays]


def _traced_chain(
    call: Callable, linear: list[ReadDense], marks: list[jax.Array], functions: list[Any], activation: Any
) -> LayerChain:
    """The chain of a model, from its call with marked weights.

    Its activations may be any of the `functions`; those that the caller names are tried first.
    """
    if not linear:
        raise unsupported("a model without a Linear layer")
    named = activation if isinstance(activation, list | tuple) else [activation]
    functions = [*(resolve(sigma) for sigma in named if sigma is not None), *functions]

    def same(W: np.ndarray, mark: np.ndarray) -> bool:
        return any(W.shape == m.shape and np.allclose(W, m, rtol=1e-5) for m in (mark, mark.T))

    steps: list[ReadDense | ReadActivation] = []
    for traced in _trace_at_some_size(call, [layer.W.shape[1] for layer in linear]):
        which = [layer for layer, mark in zip(linear, marks, strict=True) if same(traced.W, np.asarray(mark))]
        if not which:
            raise unsupported("a product with a matrix that is no Linear layer's weight")
        steps.append(which[0])
        if traced.after is None:
            continue
        sigma = identify(traced.after, functions)
        if sigma is None:
            raise unsupported(
                f"operations after {which[0].where} that are no elementwise activation known to widthwise",
                "Pass the activation: activation=widthwise.activation(function, kinks=[…]).",
            )
        if sigma.name != "linear":
            steps.append(ReadActivation(sigma, f"the activation after {which[0].where}"))
    return chain_of(steps)


def _trace_at_some_size(call: Callable, sizes: Sequence[int]) -> list[TracedLayer]:
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


def optax_transform(net: MLP, learning_rate: float = 1.0) -> Any:
    """Gradient descent with step ηλ_W/n_{l−1} on weights and ηλ_b on biases, as an Optax transformation (theory §1).

    It works on the parameters of Flax (nnx) and Equinox models, or on any tree that holds one matrix and perhaps one
    vector for each layer. Layers are told apart by their shapes; those of equal shape are taken in the order of their
    names in the tree, numbers in them read as numbers. Behind `optax.scale_by_adam()` in `optax.chain` it gives Adam
    the same rates.

    Returns
    -------
    An `optax.GradientTransformation`.

    >>> import jax.numpy as jnp
    >>> step = optax_transform(MLP([2, 8, 1], "tanh", lambda_b=0.5, lambda_W=[2.0, 4.0]), learning_rate=0.1)
    >>> params = [{"W": jnp.ones((8, 2)), "b": jnp.ones(8)}, {"W": jnp.ones((1, 8)), "b": jnp.ones(1)}]
    >>> updates, _ = step.update(params, step.init(params))
    >>> [round(float(x.ravel()[0]), 6) for x in jax.tree.leaves(updates)]
    [-0.1, -0.05, -0.05, -0.05]
    """
    optax = need("optax", "readers", "optax_transform")

    def init(params):
        layer_rates(net, params)
        return optax.EmptyState()

    def update(updates, state, params=None):
        each = layer_rates(net, updates)
        return jax.tree.map(lambda rate, g: -learning_rate * rate * g, each, updates), state

    return optax.GradientTransformation(init, update)


def layer_rates(net: MLP, params: Any) -> Any:
    """λ_W/n_{l−1} or λ_b for every leaf of a tree of parameters, in a tree of the same form."""
    leaves, form = jax.tree_util.tree_flatten_with_path(params)
    shapes = [tuple(leaf.shape) for _, leaf in leaves]
    groups: dict[tuple, list[int]] = {}
    for number, (path, _) in enumerate(leaves):
        groups.setdefault(_owner(path), []).append(number)
    waiting = [groups[owner] for owner in sorted(groups)]
    found = [0.0] * len(leaves)
    for layer, rate in zip(net.dense, rates(net), strict=True):
        matrices = {(layer.inputs, layer.outputs), (layer.outputs, layer.inputs)}
        for group in waiting:
            own = [shapes[i] for i in group]
            if sum(shape in matrices for shape in own) == 1 and matrices | {(layer.outputs,)} >= set(own):
                break
        else:
            expected = f"for every layer of {list(net.widths)} one matrix and at most one vector, under one name"
            raise InvalidInput("params", f"leaves of shapes {shapes}", expected)
        waiting.remove(group)
        for i in group:
            found[i] = float(rate.W if len(shapes[i]) == 2 else rate.b)
    if waiting:
        raise InvalidInput("params", f"{len(waiting)} layers more than the network's {net.depth}", "one for each layer")
    return jax.tree_util.tree_unflatten(form, found)


def _owner(path: tuple) -> tuple:
    """The names above a parameter's own, comparable: Flax wraps each parameter once more."""
    names = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    if names and names[-1] == "value":
        names = names[:-1]
    # layer2 comes before layer10: numbers in a name are compared as numbers
    pieces = [[part for part in re.split(r"(\d+)", name) if part] for name in names[:-1]]
    return tuple(tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts) for parts in pieces)
