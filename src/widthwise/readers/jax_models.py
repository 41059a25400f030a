"""Flax (nnx) and Equinox: read a module, initialise it, and give every tensor its learning rate (Optax).

A copy of the model with marked weights and named normalisations is traced: marks and names say which layer comes when,
and the values of what is computed between two of them say which activation it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, resolve
from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters
from widthwise.experiments.tangent import rates
from widthwise.extras import need
from widthwise.network import Network, check_network, check_seed
from widthwise.readers.activations import identify
from widthwise.readers.chains import (
    NORM_KINDS,
    LayerChain,
    ReadDense,
    ReadStep,
    chain_of,
    check_factor,
    check_fits,
    model_rates,
    read_norm,
    unsupported,
    unsupported_part,
)
from widthwise.readers.specification import net_or_warning, read_chain
from widthwise.readers.traced import MarkedDense, named_part, trace

#: Modules of each package that a model may have, besides Linear and normalisations.
_FLAX_PARTS = {"Sequential", "Dropout", "List", "Dict", "Rngs", "RngStream"}
_EQUINOX_PARTS = {"Sequential", "MLP", "Identity", "Lambda", "Dropout"}


def from_flax(model: Any, *, learning_rate: float = 1.0, activation: Any = None, recognise: bool = True) -> Network:
    """The specification of a Flax (nnx) model: widths, activations, and from its weights C_b and C_W (theory §1).

    The model, an `nnx.Module` made of Linear, elementwise activations, LayerNorm, RMSNorm and sums x + f(x), is traced,
    so modules of your own with a `__call__` count as well as `nnx.Sequential`. Arguments and result as in `from_torch`.

    >>> from flax import nnx
    >>> rngs = nnx.Rngs(0)
    >>> model = nnx.Sequential(nnx.Linear(3, 64, rngs=rngs), nnx.gelu, nnx.Linear(64, 1, rngs=rngs))
    >>> net = from_flax(model)
    >>> net.widths, net.activation.name, net.C_b, net.C_W
    ((3, 64, 1), 'gelu_tanh', (0.0, 0.0), (1.0, 1.0))
    """
    return net_or_warning(read_chain(flax_chain(model, activation), learning_rate, activation, recognise))


def from_equinox(model: Any, *, learning_rate: float = 1.0, activation: Any = None, recognise: bool = True) -> Network:
    """The specification of an Equinox model: widths, activations, and from its weights C_b and C_W (theory §1).

    The model is traced, so modules of your own with a `__call__` count as well as `eqx.nn.MLP` and
    `eqx.nn.Sequential`. Arguments and result as in `from_torch`.

    >>> import equinox as eqx
    >>> from widthwise.network import MLP
    >>> model = eqx.nn.MLP(3, 1, width_size=64, depth=2, activation=jax.nn.tanh, key=jax.random.key(0))
    >>> from_equinox(model) == MLP.torch_default([3, 64, 64, 1], "tanh")    # the same default
    True
    """
    return net_or_warning(read_chain(equinox_chain(model, activation), learning_rate, activation, recognise))


def init_flax(model: Any, net: Network, seed: int = 0) -> Any:
    """Fill a Flax (nnx) model, in place, with Gaussian weights and biases of variance C_W/n_{l−1} and C_b (theory §1).

    Returns
    -------
    The model itself. Its layers, widths and activations must be those of `net`; see `init_torch`.

    >>> from flax import nnx
    >>> from widthwise.network import MLP
    >>> model = nnx.Sequential(nnx.Linear(3, 8, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(8, 1, rngs=nnx.Rngs(1)))
    >>> model = init_flax(model, MLP([3, 8, 1], "relu", C_b=0.1, C_W=2.0))
    >>> bool((model.layers[0].bias[...] != 0).all())
    True
    """
    for tensor, new in _drawn_tensors(flax_chain(model, check_network(net).activations), net, seed):
        tensor[...] = new.T.astype(tensor.dtype)  # a kernel is (inputs, outputs)
    return model


def init_equinox(model: Any, net: Network, seed: int = 0) -> Any:
    """A copy of an Equinox model with Gaussian weights and biases of variance C_W/n_{l−1} and C_b (theory §1).

    Returns
    -------
    The new model. Its layers, widths and activations must be those of `net`; see `init_torch`.

    >>> import equinox as eqx
    >>> from widthwise.network import MLP
    >>> model = eqx.nn.MLP(3, 1, width_size=8, depth=1, key=jax.random.key(0))
    >>> float(abs(init_equinox(model, MLP([3, 8, 1], "relu", C_W=2.0)).layers[0].bias).max())
    0.0
    """
    drawn = _drawn_tensors(equinox_chain(model, check_network(net).activations), net, seed)
    return _with_arrays(model, {id(tensor): new for tensor, new in drawn})


def _drawn_tensors(chain: LayerChain, net: Network, seed: int) -> list[tuple[Any, jax.Array]]:
    """Each tensor of the package with Gaussian entries of `net`, which must fit the chain; gains 1 and shifts 0."""
    check_fits(chain, net, "C_b")
    drawn = []
    for step, new in zip(chain.learned, sample_parameters(net, network_key(check_seed(seed), 0)), strict=True):
        if isinstance(step, ReadDense):
            check_factor(step)
            new = Weights(new.W / step.factor, new.b / step.factor)
        drawn += [(tensor, value) for tensor, value in zip(step.tensors, new, strict=True) if tensor is not None]
    return drawn


def flax_chain(model: Any, activation: Any = None) -> LayerChain:
    """The layers of a module, in the order in which its call applies them."""
    nnx = need("flax.nnx", "readers", "reading a Flax model")
    if not isinstance(model, nnx.Module):
        raise InvalidInput("model", type(model).__name__, "a flax.nnx.Module", "Linen modules are not read.")
    copy, read = nnx.clone(model), _Read()
    for (path, module), (_, twin) in zip(nnx.iter_modules(model), nnx.iter_modules(copy), strict=True):
        kind, own = type(module).__name__, type(module).__module__.startswith("flax.")
        where = f"{'.'.join(map(str, path)) or 'the model'} ({kind})"
        if isinstance(module, nnx.Linear):
            marked = read.dense(module.kernel, module.bias, where, lambda kernel: kernel[...].T)
            twin.kernel.set_value(jnp.asarray(marked.W.T))
            if twin.bias is not None:
                twin.bias.set_value(jnp.asarray(marked.b))
        elif own and kind in NORM_KINDS:
            if (module.reduction_axes, module.feature_axes) != (-1, -1):
                raise unsupported(f"{where} over other axes than the last")
            gain, shift = module.scale, getattr(module, "bias", None)
            twin.widthwise_name = read.norm(kind, module.num_features, module.epsilon, where, (gain, shift))
            object.__setattr__(twin, "__class__", _named_kind(type(module)))
        elif own and kind not in _FLAX_PARTS:
            raise unsupported_part(kind, where)
        elif isinstance(module, nnx.Dropout) and not module.deterministic and module.rate > 0.0:
            raise unsupported(where, "Call model.eval() first: dropout is then the identity.")
    graph = list(nnx.iter_graph(model))
    read.check_all_known([(".".join(map(str, path)), part) for path, part in graph if isinstance(part, nnx.Param)])
    functions = [value for _, value in graph if callable(value)]
    return read.chain(lambda x: copy(x[None, :]), functions, activation)


@lru_cache
def _named_kind(kind: type) -> type:
    """A kind of module whose calls have the name of the instance in the trace."""

    def call(self: Any, x: Any, **options: Any) -> Any:
        return named_part(self.widthwise_name, lambda x: kind.__call__(self, x, **options), x)

    return type(kind.__name__, (kind,), {"__call__": call})


def equinox_chain(model: Any, activation: Any = None) -> LayerChain:
    """The layers of a module, in the order in which its call applies them."""
    eqx = need("equinox", "readers", "reading an Equinox model")
    if not isinstance(model, eqx.Module):
        raise InvalidInput("model", type(model).__name__, "an equinox.Module")

    def is_part(x: Any) -> bool:
        own = type(x).__module__.startswith("equinox.nn") and type(x).__name__ not in _EQUINOX_PARTS
        return isinstance(x, eqx.nn.Linear | eqx.nn.Dropout) or (isinstance(x, eqx.Module) and own)

    read, arrays, norms = _Read(), {}, {}
    for path, part in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_part):
        kind = type(part).__name__
        where = f"{jax.tree_util.keystr(path).lstrip('.')} ({kind})"
        if isinstance(part, eqx.nn.Linear):
            marked = read.dense(part.weight, part.bias, where, np.asarray)
            arrays |= {id(part.weight): marked.W, id(part.bias): marked.b}
        elif isinstance(part, eqx.nn.LayerNorm | eqx.nn.RMSNorm):
            if len(part.shape) != 1:
                raise unsupported(f"{where} over {len(part.shape)} axes")
            norms[id(part)] = read.norm(kind, part.shape[0], part.eps, where, (part.weight, part.bias))
        elif isinstance(part, eqx.nn.Dropout):
            if not part.inference and part.p > 0:
                remedy = "Use equinox.nn.inference_mode(model) first: dropout is then the identity."
                raise unsupported(where, remedy)
        elif is_part(part):
            raise unsupported_part(kind, where)

    def replaced(x: Any) -> Any:
        if id(x) not in norms:
            return x
        return lambda z, **options: named_part(norms[id(x)], lambda z: x(z, **options), z)

    leaves = jax.tree_util.tree_leaves_with_path(model)
    learned = [(jax.tree_util.keystr(path).lstrip("."), leaf) for path, leaf in leaves if eqx.is_inexact_array(leaf)]
    read.check_all_known(learned)
    arrays = {number: array for number, array in arrays.items() if array is not None}
    copy = _with_arrays(jax.tree.map(replaced, model, is_leaf=lambda x: id(x) in norms), arrays)
    return read.chain(copy, [leaf for _, leaf in leaves if callable(leaf)], activation)


def _with_arrays(model: Any, new: Mapping[int, Any]) -> Any:
    """A copy of an Equinox model with other arrays, by the id of those that they replace, in the dtype they had."""
    return jax.tree.map(lambda x: jnp.asarray(new[id(x)], x.dtype) if id(x) in new else x, model)


class _Read:
    """Layers of a model as they are met, and what makes each known again in the trace."""

    def __init__(self):
        self.marked: list[MarkedDense] = []
        self.parts: dict[str, list[ReadStep]] = {}
        self.known: set[int] = set()
        self.entries = np.random.default_rng(0)

    def dense(self, W: Any, b: Any, where: str, outputs_first: Callable[[Any], Any]) -> MarkedDense:
        """A weight layer with entries of its own in place of its weights."""
        self.known |= {id(W), id(b)}
        values = np.asarray(outputs_first(W), float), None if b is None else np.asarray(b[...], float)
        marks = [None if value is None else self.entries.uniform(0.5, 1.0, value.shape) for value in values]
        self.marked.append(MarkedDense(ReadDense(*values, where, (W, b)), *marks))  # pyright: ignore[reportArgumentType]
        return self.marked[-1]

    def norm(self, kind: str, width: int, epsilon: float, where: str, tensors: tuple[Any, Any]) -> str:
        """A normalisation; its name in the trace."""
        self.known |= {id(tensor) for tensor in tensors}
        name = f"widthwise_part_{len(self.parts)}"
        values = [None if tensor is None else np.asarray(tensor[...], float) for tensor in tensors]
        self.parts[name] = read_norm(kind, width, epsilon, where, tensors, values)
        return name

    def check_all_known(self, learned: Sequence[tuple[str, Any]]) -> None:
        """Refuse a model with parameters that no layer has: the trace would take them for constants."""
        for where, tensor in learned:
            if id(tensor) not in self.known:
                raise unsupported(f"{where}, a learned array of no Linear layer or normalisation")

    def chain(self, call: Callable, functions: list[Any], activation: Any) -> LayerChain:
        """The chain of a model, from the call of its copy.

        Its activations may be any of the `functions`; those that the caller names are tried first.
        """
        if not self.marked:
            raise unsupported("a model without a Linear layer")
        named = activation if isinstance(activation, list | tuple) else [activation]
        candidates = [*(resolve(sigma) for sigma in named if sigma is not None), *functions]

        def activation_of(function: Callable) -> Activation | None:
            return identify(function, candidates)

        problem: Exception | None = None
        for size in dict.fromkeys(one.W.shape[1] for one in self.marked):  # of whichever layer comes first
            try:
                return chain_of(trace(call, jnp.ones(size), self.marked, self.parts, activation_of))
            except InvalidInput:
                raise
            except Exception as error:  # shapes that do not fit, or whatever a model of the user may raise
                problem = problem or error
        reason = str(problem).splitlines()[0] if problem else ""
        raise unsupported(
            f"a model that cannot be called on one input ({type(problem).__name__}: {reason})"
        ) from problem


def optax_transform(net: Network, learning_rate: float = 1.0, model: Any = None) -> Any:
    """Gradient descent with step ηλ_W/n_{l−1} on weights and ηλ_b on biases, as an Optax transformation (theory §1).

    Gains and shifts of normalisations have ηλ_gain and ηλ_shift. It works on the parameters of Flax (nnx) and Equinox
    models, or on any tree that holds one matrix and perhaps one vector for each weight layer, and a vector or two for
    each gain and shift. Behind `optax.scale_by_adam()` in `optax.chain` it gives Adam the same rates.

    Parameters
    ----------
    net, learning_rate : the network whose λ are used, and η.
    model : the Flax or Equinox model, whose call says which tensor belongs to which layer, and by which constant factor
        β a branch is multiplied (its steps are those over β²). Without it layers are told apart by their shapes; those
        of equal shape are taken in the order of their names in the tree, numbers in them read as numbers.

    Returns
    -------
    An `optax.GradientTransformation`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from widthwise.network import MLP
    >>> step = optax_transform(MLP([2, 8, 1], "tanh", lambda_b=0.5, lambda_W=[2.0, 4.0]), learning_rate=0.1)
    >>> params = [{"W": jnp.ones((8, 2)), "b": jnp.ones(8)}, {"W": jnp.ones((1, 8)), "b": jnp.ones(1)}]
    >>> updates, _ = step.update(params, step.init(params))
    >>> [round(float(x.ravel()[0]), 6) for x in jax.tree.leaves(updates)]
    [-0.1, -0.05, -0.05, -0.05]
    """
    optax = need("optax", "readers", "optax_transform")
    by_name = None if model is None else rates_by_name(model, net)

    def init(params):
        layer_rates(net, params, by_name)
        return optax.EmptyState()

    def update(updates, state, params=None):
        each = layer_rates(net, updates, by_name)
        return jax.tree.map(lambda rate, g: -learning_rate * rate * g, each, updates), state

    return optax.GradientTransformation(init, update)


def rates_by_name(model: Any, net: Network) -> dict[tuple[str, ...], float]:
    """The rate of each tensor of a model, by its name in the model's tree."""
    if any(base.__module__.startswith("equinox") for base in type(model).__mro__):
        chain = equinox_chain(model, check_network(net).activations)
        tensors = [(_names(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(model)]
    else:
        chain = flax_chain(model, check_network(net).activations)
        nnx = need("flax.nnx", "readers", "reading a Flax model")
        tensors = [(tuple(map(str, path)), part) for path, part in nnx.iter_graph(model)]
    check_fits(chain, net)
    by_id = {
        id(tensor): rate
        for step, both in zip(chain.learned, model_rates(chain, net), strict=True)
        for tensor, rate in zip(step.tensors, both, strict=True)
    }
    return {name: by_id[id(tensor)] for name, tensor in tensors if tensor is not None and id(tensor) in by_id}


def layer_rates(net: Network, params: Any, by_name: Mapping[tuple[str, ...], float] | None = None) -> Any:
    """The rate of every leaf of a tree of parameters, in a tree of the same form; by name if those are given."""
    leaves, form = jax.tree_util.tree_flatten_with_path(params)
    names = [_names(path) for path, _ in leaves]
    if by_name is None:
        found = _rates_by_shape(net, names, [tuple(leaf.shape) for _, leaf in leaves])
    else:
        unknown = [".".join(name) for name in names if name not in by_name]
        if unknown:
            raise InvalidInput("params", f"a leaf {unknown[0]}", "the parameters of the model's layers")
        found = [by_name[name] for name in names]
    return jax.tree_util.tree_unflatten(form, found)


def _rates_by_shape(net: Network, names: list[tuple[str, ...]], shapes: list[tuple[int, ...]]) -> list[float]:
    groups: dict[tuple, list[int]] = {}
    for number, name in enumerate(names):
        groups.setdefault(_sortable(name[:-1]), []).append(number)
    waiting = [groups[owner] for owner in sorted(groups)]
    found = [0.0] * len(names)
    layers = jax.eval_shape(lambda: sample_parameters(net, network_key(0, 0)))
    for layer, rate in zip(layers, rates(net), strict=True):
        weights = isinstance(layer, Weights)
        first, second = layer[0].shape, layer[1].shape
        allowed = {first, first[::-1], second}
        for group in waiting:
            own = [shapes[i] for i in group]
            if sum(len(shape) == 2 for shape in own) == weights and len(own) <= 2 and allowed >= set(own):
                break
        else:
            kind = "one matrix and at most one vector" if weights else "at most a gain and a shift"
            expected = f"for every layer of {list(net.widths)} {kind}, under one name"
            raise InvalidInput("params", f"leaves of shapes {shapes}", expected, "Or give optax_transform the model.")
        waiting.remove(group)
        for i in group:
            of_first = len(shapes[i]) == 2 if weights else names[i][-1] not in ("bias", "shift", "b")
            found[i] = float(rate[0] if of_first else rate[1])
    if waiting:
        raise InvalidInput("params", f"{len(waiting)} layers more than the network's {net.depth}", "one for each layer")
    return found


def _names(path: tuple) -> tuple[str, ...]:
    """The names on the way to a parameter: Flax wraps each parameter once more."""
    names = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return tuple(names[:-1] if names and names[-1] == "value" else names)


def _sortable(names: tuple[str, ...]) -> tuple:
    """Comparable names: layer2 comes before layer10, numbers in a name are compared as numbers."""
    pieces = [[part for part in re.split(r"(\d+)", name) if part] for name in names]
    return tuple(tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts) for parts in pieces)
