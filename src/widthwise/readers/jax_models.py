"""Flax (nnx) and Equinox: read a module, initialise it, and give every tensor its learning rate (Optax).

A copy of the model with marked weights and named normalisations is traced: marks and names say which layer comes when,
and the values of what is computed between two of them say which activation it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.activations import Activation, resolve
from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import Weights
from widthwise.experiments.sampler import network_key, sample_parameters, with_parameters
from widthwise.extras import need
from widthwise.network import Conv, Dropout, GlobalAvgPool, Network, check_integer, check_network, check_seed
from widthwise.readers.activations import identify
from widthwise.readers.chains import (
    LayerChain,
    chain_of,
    check_factor,
    check_fits,
    unsupported,
    unsupported_part,
)
from widthwise.readers.read_steps import NORM_KINDS, ReadDense, ReadGain, ReadLayer, ReadStep, read_norm
from widthwise.readers.specification import net_or_warning, read_chain
from widthwise.readers.traced import MarkedDense, named_part, trace

#: Modules of each package that a model may have, besides Linear and normalisations.
_FLAX_PARTS = {"Sequential", "List", "Dict", "Rngs", "RngStream"}
_EQUINOX_PARTS = {"Sequential", "MLP", "Identity", "Lambda"}
#: Positions along one dimension at which models of images are tried, the usual ones first.
_SIDES_OF_IMAGES = dict.fromkeys((32, 28, 16, 8, 64, 224, *range(1, 65), 96, 128, 256))


def from_flax(
    model: Any,
    *,
    learning_rate: float = 1.0,
    activation: Any = None,
    recognise: bool = True,
    positions: Sequence[int] | None = None,
) -> Network:
    """The specification of a Flax (nnx) model: widths, activations, and from its weights C_b and C_W (theory §1).

    The model, an `nnx.Module` made of Linear, Conv, elementwise activations, average pools, means over positions,
    Dropout, LayerNorm, RMSNorm and sums, is traced, so modules of your own with a `__call__` count as well as
    `nnx.Sequential`. `positions` is the shape of images, such as (28, 28): square ones of Conv layers are found.
    Other arguments and the result as in `from_torch`.

    >>> from flax import nnx
    >>> rngs = nnx.Rngs(0)
    >>> model = nnx.Sequential(nnx.Linear(3, 64, rngs=rngs), nnx.gelu, nnx.Linear(64, 1, rngs=rngs))
    >>> net = from_flax(model)
    >>> net.widths, net.activation.name, net.C_b, net.C_W
    ((3, 64, 1), 'gelu_tanh', (0.0, 0.0), (1.0, 1.0))
    """
    return net_or_warning(read_chain(flax_chain(model, activation, positions), learning_rate, activation, recognise))


def from_equinox(
    model: Any,
    *,
    learning_rate: float = 1.0,
    activation: Any = None,
    recognise: bool = True,
    positions: Sequence[int] | None = None,
) -> Network:
    """The specification of an Equinox model: widths, activations, and from its weights C_b and C_W (theory §1).

    The model is traced, so modules of your own with a `__call__` count as well as `eqx.nn.MLP` and
    `eqx.nn.Sequential`. `positions` is the shape of images, such as (28, 28): square ones of Conv layers are found.
    Other arguments and the result as in `from_torch`.

    >>> import equinox as eqx
    >>> from widthwise.network import MLP
    >>> model = eqx.nn.MLP(3, 1, width_size=64, depth=2, activation=jax.nn.tanh, key=jax.random.key(0))
    >>> from_equinox(model) == MLP.torch_default([3, 64, 64, 1], "tanh")    # the same default
    True
    """
    return net_or_warning(read_chain(equinox_chain(model, activation, positions), learning_rate, activation, recognise))


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
    for _, tensor, new in _drawn_tensors(flax_chain(model, check_network(net).activations), net, seed):
        tensor[...] = new.T.reshape(tensor.shape).astype(tensor.dtype)  # a kernel is (window…, inputs, outputs)
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
    return _with_arrays(model, {id(tensor): _channels_second(step, new, tensor.shape) for step, tensor, new in drawn})


def _channels_second(step: ReadDense | ReadGain, new: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Weights of a convolution (outputs, inputs, window…), other tensors as they are."""
    if isinstance(step, ReadDense) and step.conv is not None and new.ndim == 2:
        return jnp.moveaxis(new.reshape(len(new), *step.conv.window, -1), -1, 1)
    return new.reshape(shape)


def _drawn_tensors(chain: LayerChain, net: Network, seed: int) -> list[tuple[ReadDense | ReadGain, Any, jax.Array]]:
    """Each tensor of the package with Gaussian entries of `net`, which must fit the chain; gains 1 and shifts 0."""
    check_fits(chain, net, "C_b")
    drawn, both = [], zip(with_parameters(net), sample_parameters(net, network_key(check_seed(seed), 0)), strict=True)
    learned = (new for layer, new in both if not isinstance(layer, Dropout))
    for step, new in zip(chain.learned, learned, strict=True):
        if isinstance(step, ReadDense):
            check_factor(step)
            new = Weights(new.W / step.factor, new.b / step.factor)
        drawn += [(step, tensor, value) for tensor, value in zip(step.tensors, new, strict=True) if tensor is not None]
    return drawn


def flax_chain(model: Any, activation: Any = None, positions: Sequence[int] | None = None) -> LayerChain:
    """The layers of a module, in the order in which its call applies them."""
    nnx = need("flax.nnx", "readers", "reading a Flax model")
    if not isinstance(model, nnx.Module):
        raise InvalidInput("model", type(model).__name__, "a flax.nnx.Module", "Linen modules are not read.")
    copy, read = nnx.clone(model), _Read()
    modules = [
        (f"{'.'.join(map(str, path)) or 'the model'} ({type(module).__name__})", module, twin)
        for (path, module), (_, twin) in zip(nnx.iter_modules(model), nnx.iter_modules(copy), strict=True)
    ]
    for where, module, _ in modules:  # before the layers that it is made of
        if isinstance(module, nnx.MultiHeadAttention):
            raise unsupported_part("MultiHeadAttention", where)
    for where, module, twin in modules:
        kind, own = type(module).__name__, type(module).__module__.startswith("flax.")
        if isinstance(module, nnx.Linear):
            marked = read.dense(module.kernel, module.bias, where, lambda kernel: kernel[...].T)
            twin.kernel.set_value(jnp.asarray(marked.W.T))
            if twin.bias is not None:
                twin.bias.set_value(jnp.asarray(marked.b))
            continue
        name = None
        if isinstance(module, nnx.Conv):
            name = read.conv(_flax_convolution(module, where), module.kernel, module.bias, where, _rows_of_kernel)
        elif own and kind in NORM_KINDS:
            if (module.reduction_axes, module.feature_axes) != (-1, -1):
                raise unsupported(f"{where} over other axes than the last")
            gain, shift = module.scale, getattr(module, "bias", None)
            name = read.norm(kind, module.num_features, module.epsilon, where, (gain, shift))
        elif isinstance(module, nnx.Dropout):
            if not module.deterministic and module.rate > 0.0:
                name = read.part([ReadLayer(Dropout(module.rate), where)])
        elif own and kind not in _FLAX_PARTS:
            raise unsupported_part(kind, where)
        if name is not None:
            twin.widthwise_name = name
            object.__setattr__(twin, "__class__", _named_kind(type(module), isinstance(module, nnx.Dropout)))
    graph = list(nnx.iter_graph(model))
    read.check_all_known([(".".join(map(str, path)), part) for path, part in graph if isinstance(part, nnx.Param)])
    functions = [value for _, value in graph if callable(value)]
    return read.chain(lambda x: copy(x[None]), functions, activation, positions, channels_first=False)


def _rows_of_kernel(kernel: Any) -> np.ndarray:
    """(window…, inputs, outputs) as (outputs, entries × inputs)."""
    values = np.asarray(kernel[...])
    return values.reshape(-1, values.shape[-1]).T


def _flax_convolution(module: Any, where: str) -> Conv:
    """The convolution that a module is, C's and λ's aside."""
    if module.feature_group_count != 1 or module.mask is not None or set(np.ravel(module.input_dilation or 1)) != {1}:
        raise unsupported(f"{where} with groups, masks or dilated inputs", "Only convolutions over all have a rule.")
    window = tuple(module.kernel_size)
    return _jax_convolution(module.in_features, module.out_features, window, module.strides, module.padding,
                        module.kernel_dilation, where)  # fmt: skip


def _jax_convolution(
    inputs: int, outputs: int, window: tuple[int, ...], stride: Any, padding: Any, dilation: Any, where: str
) -> Conv:
    if isinstance(padding, Sequence) and not isinstance(padding, str):
        ends = [tuple(np.ravel(end)) for end in padding]
        if any(len(set(end)) > 1 for end in ends):
            raise unsupported(f"{where} with padding {padding}", "The same number of zeros at both ends.")
        padding = tuple(int(end[0]) for end in ends)
    try:
        return Conv(inputs, outputs, window, stride or 1, padding, dilation or 1)
    except InvalidInput as error:
        raise unsupported(f"{where} with padding {padding!r}", error.remedy) from None


@lru_cache
def _named_kind(kind: type, passes: bool = False) -> type:
    """A kind of module whose calls have the name of the instance in the trace; one that `passes` leaves what comes."""

    def call(self: Any, x: Any, **options: Any) -> Any:
        return named_part(self.widthwise_name, lambda x: 1.0 * x if passes else kind.__call__(self, x, **options), x)

    return type(kind.__name__, (kind,), {"__call__": call})


def equinox_chain(model: Any, activation: Any = None, positions: Sequence[int] | None = None) -> LayerChain:
    """The layers of a module, in the order in which its call applies them."""
    eqx = need("equinox", "readers", "reading an Equinox model")
    if not isinstance(model, eqx.Module):
        raise InvalidInput("model", type(model).__name__, "an equinox.Module")

    def is_part(x: Any) -> bool:
        own = type(x).__module__.startswith("equinox.nn") and type(x).__name__ not in _EQUINOX_PARTS
        return isinstance(x, eqx.nn.Linear | eqx.nn.Dropout) or (isinstance(x, eqx.Module) and own)

    read, arrays, named = _Read(), {}, {}
    for path, part in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_part):
        kind = type(part).__name__
        where = f"{jax.tree_util.keystr(path).lstrip('.')} ({kind})"
        if isinstance(part, eqx.nn.Linear):
            marked = read.dense(part.weight, part.bias, where, np.asarray)
            arrays |= {id(part.weight): marked.W, id(part.bias): marked.b}
        elif isinstance(part, eqx.nn.Conv):
            named[id(part)] = read.conv(_equinox_convolution(part, where), part.weight, part.bias, where, _rows)
        elif isinstance(part, eqx.nn.LayerNorm | eqx.nn.RMSNorm):
            if len(part.shape) != 1:
                raise unsupported(f"{where} over {len(part.shape)} axes")
            named[id(part)] = read.norm(kind, part.shape[0], part.eps, where, (part.weight, part.bias))
        elif isinstance(part, eqx.nn.Dropout):
            if not part.inference and part.p > 0:
                named[id(part)] = read.part([ReadLayer(Dropout(part.p), where)])
        elif isinstance(part, eqx.nn.AdaptivePool) and "Avg" in kind and set(np.ravel(part.target_shape)) == {1}:
            named[id(part)] = read.part([ReadLayer(GlobalAvgPool(), where)])
        elif is_part(part) and not kind.startswith("AvgPool"):
            raise unsupported_part(kind, where)

    def replaced(x: Any) -> Any:
        if id(x) not in named:
            return x
        if isinstance(x, eqx.nn.Dropout):
            return lambda z, **options: named_part(named[id(x)], lambda z: 1.0 * z, z)
        return lambda z, **options: named_part(named[id(x)], lambda z: x(z, **options), z)

    leaves = jax.tree_util.tree_leaves_with_path(model)
    learned = [(jax.tree_util.keystr(path).lstrip("."), leaf) for path, leaf in leaves if eqx.is_inexact_array(leaf)]
    read.check_all_known(learned)
    arrays = {number: array for number, array in arrays.items() if array is not None}
    copy = _with_arrays(jax.tree.map(replaced, model, is_leaf=lambda x: id(x) in named), arrays)
    return read.chain(copy, [leaf for _, leaf in leaves if callable(leaf)], activation, positions, channels_first=True)


def _rows(weight: Any) -> np.ndarray:
    """(outputs, inputs, window…) as (outputs, entries × inputs)."""
    return np.moveaxis(np.asarray(weight), 1, -1).reshape(len(weight), -1)


def _equinox_convolution(part: Any, where: str) -> Conv:
    """The convolution that a module is, C's and λ's aside."""
    if part.groups != 1:
        raise unsupported(f"{where} with {part.groups} groups", "Only convolutions over all channels have a rule.")
    padding = part.padding
    if part.padding_mode != "ZEROS" and set(np.ravel(padding)) != {0}:
        around = tuple((d * (k - 1) / 2,) * 2 for d, k in zip(part.dilation, part.kernel_size, strict=True))
        if part.padding_mode != "CIRCULAR" or set(part.stride) != {1} or padding not in ("SAME", around):
            got = f"{where} with padding_mode {part.padding_mode!r}, padding {padding}"
            raise unsupported(got, f"Take 'ZEROS', or 'CIRCULAR' with stride 1 and padding {around}.")
        padding = "CIRCULAR"
    return _jax_convolution(
        part.in_channels, part.out_channels, part.kernel_size, part.stride, padding, part.dilation, where
    )


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

    def part(self, steps: list[ReadStep]) -> str:
        """Steps that are one call of a part of the model; its name in the trace."""
        name = f"widthwise_part_{len(self.parts)}"
        self.parts[name] = steps
        return name

    def conv(self, conv: Conv, W: Any, b: Any, where: str, rows: Callable[[Any], np.ndarray]) -> str:
        """A convolution; its name in the trace."""
        self.known |= {id(W), id(b)}
        bias = None if b is None else np.ravel(np.asarray(b[...], float))
        return self.part([ReadDense(np.asarray(rows(W), float), bias, where, (W, b), conv=conv)])

    def norm(self, kind: str, width: int, epsilon: float, where: str, tensors: tuple[Any, Any]) -> str:
        """A normalisation; its name in the trace."""
        self.known |= {id(tensor) for tensor in tensors}
        values = [None if tensor is None else np.asarray(tensor[...], float) for tensor in tensors]
        return self.part(read_norm(kind, width, epsilon, where, tensors, values))

    def check_all_known(self, learned: Sequence[tuple[str, Any]]) -> None:
        """Refuse a model with parameters that no layer has: the trace would take them for constants."""
        for where, tensor in learned:
            if id(tensor) not in self.known:
                raise unsupported(f"{where}, a learned array of no Linear layer or normalisation")

    def chain(
        self, call: Callable, functions: list[Any], activation: Any, positions: Any, channels_first: bool
    ) -> LayerChain:
        """The chain of a model, from the call of its copy.

        Its activations may be any of the `functions`; those that the caller names are tried first.
        """
        named = activation if isinstance(activation, list | tuple) else [activation]
        candidates = [*(resolve(sigma) for sigma in named if sigma is not None), *functions]

        def activation_of(function: Callable) -> Activation | None:
            return identify(function, candidates)

        problem: Exception | None = None
        for shape in self._input_shapes(positions):
            axis = None if len(shape) == 1 else 0 if channels_first else len(shape) - 1
            own = (shape[-1], *shape[:-1]) if channels_first else shape
            try:
                steps = trace(call, jnp.ones(own), self.marked, self.parts, activation_of, axis)
            except InvalidInput:
                raise
            except Exception as error:  # shapes that do not fit, or whatever a model of the user may raise
                problem = problem or error
                continue
            return chain_of(steps, channels_first and len(shape) > 1)
        reason = str(problem).splitlines()[0] if problem else ""
        remedy = "Give the positions of its inputs, such as positions=(28, 28)." if self._convolutions else ""
        got = f"a model that cannot be called on one input ({type(problem).__name__}: {reason})"
        raise unsupported(got, remedy) from problem

    @property
    def _convolutions(self) -> list[Conv]:
        steps = (step for part in self.parts.values() for step in part)
        return [step.conv for step in steps if isinstance(step, ReadDense) and step.conv is not None]

    def _input_shapes(self, positions: Any) -> Iterator[tuple[int, ...]]:
        """Shapes (positions…, channels) that the inputs may have: of whichever layer comes first."""
        features = dict.fromkeys(one.W.shape[1] for one in self.marked)
        channels = dict.fromkeys(conv.inputs for conv in self._convolutions)
        if not features and not channels:
            raise unsupported("a model without a Linear or Conv layer")
        if positions is not None:
            if not isinstance(positions, list | tuple):
                raise InvalidInput("positions", repr(positions), "the shape of an image, such as (28, 28), or None")
            given = tuple(check_integer("positions", length, 1) for length in positions)
            yield from ((*given, count) for count in channels | features)
        elif channels:
            dimensions = len(self._convolutions[0].window)
            yield from ((*(side,) * dimensions, count) for side in _SIDES_OF_IMAGES for count in channels)
        else:
            yield from ((count,) for count in features)
