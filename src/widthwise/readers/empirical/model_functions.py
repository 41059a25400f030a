"""Any model as a pure function of its parameters, in torch or in jax, whose transforms have the same names.

`torch.func` and jax share `jvp`, `vjp`, `vmap` and `jacrev`: what is built on a `ModelFunction` is written once.
The model is copied, in double precision unless its own is asked for, and switched to evaluation: dropout is off and
batch normalisation uses its running statistics. The caller's model is not touched.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.errors import InvalidInput, one_line
from widthwise.extras import need
from widthwise.network.validation import refuse_mask
from widthwise.readers.empirical.plain_norms import plain_norms

#: Named tensors of a model: of torch or of jax.
NamedTensors = dict[str, Any]
#: Positional and named arguments of a model's call, each with one row per input.
CallArguments = tuple[tuple[Any, ...], dict[str, Any]]
#: Where models come from.
PACKAGES = {"torch", "flax", "equinox"}
_WRAP = "What is no array belongs into a module that wraps the model."
_DTYPES = ("float64", "model")


@dataclass(frozen=True)
class ModelFunction:
    """z = call(parameters, arguments), (inputs, outputs), with the parameters that are trained.

    `transforms` has jvp, vjp, vmap and jacrev; `library` is torch or jax.numpy; `module` the copy behind the call. Of
    jax models `whole` makes the module with given parameters, which takes one input at a time if `by_input`.
    """

    library: Any
    transforms: Any
    parameters: NamedTensors
    call: Callable[[NamedTensors, CallArguments], Any]
    read: Callable[[Any, str], CallArguments]
    module: Any
    frozen: tuple[str, ...] = ()
    tree_map: Callable[..., Any] = field(default=jax.tree.map, repr=False)
    whole: Callable[[NamedTensors], Any] | None = field(default=None, repr=False)
    by_input: bool = False

    @property
    def is_torch(self) -> bool:
        return self.library is not jnp

    @cached_property
    def size(self) -> int:
        """Numbers that are trained."""
        return sum(_entries(value) for value in self.parameters.values())

    def numpy(self, value: Any) -> np.ndarray:
        return value.detach().cpu().numpy() if self.is_torch else np.asarray(value)

    def array(self, value: np.ndarray) -> Any:
        """In the library, dtype and place of the parameters."""
        like = next(iter(self.parameters.values()))
        if self.is_torch:
            return self.library.as_tensor(np.array(value), dtype=like.dtype, device=like.device)
        return jnp.asarray(value, like.dtype)

    def outputs(self, arguments: CallArguments) -> np.ndarray:
        """z (inputs, outputs)."""
        return self.numpy(self.call(self.parameters, arguments))

    def at(self, parameters: NamedTensors) -> ModelFunction:
        """The same function at other parameters."""
        return replace(self, parameters=parameters)

    def part(self, arguments: CallArguments, rows: slice) -> CallArguments:
        """Some of the inputs."""
        positional, named = arguments
        return tuple(value[rows] for value in positional), {name: value[rows] for name, value in named.items()}


def count_inputs(arguments: CallArguments) -> int:
    positional, named = arguments
    return len([*positional, *named.values()][0])


def function_of(model: Any, dtype: str = "float64") -> ModelFunction:
    """A torch, Flax (nnx) or Equinox model as a function of its parameters.

    >>> from torch import nn
    >>> f = function_of(nn.Linear(2, 1))
    >>> sorted(f.parameters), f.size, f.outputs(f.read([[1.0, 2.0]], "X")).shape
    (['bias', 'weight'], 3, (1, 1))
    """
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InvalidInput("dtype", repr(dtype), "'float64' or 'model'")
    kinds = package_names(model)
    if "torch" in kinds:
        return _torch_function(unwrapped(model), dtype)
    if "flax" in kinds:
        return _flax_function(model, dtype)
    if "equinox" in kinds:
        return _equinox_function(model, dtype)
    raise InvalidInput("model", type(model).__name__, "a torch.nn.Module, flax.nnx.Module or equinox.Module")


def package_names(model: Any) -> set[str]:
    """The packages that the classes of an object come from; a class itself belongs to none."""
    return set() if isinstance(model, type) else {base.__module__.partition(".")[0] for base in type(model).__mro__}


def unwrapped(model: Any) -> Any:
    """The module inside torch.compile, DataParallel and DistributedDataParallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if inner is None:
            return model
        model = inner


def has_values(parameter: Any) -> bool:
    """Whether a torch parameter has entries: those of lazy layers before a call, and on the meta device, have none."""
    parameters = need("torch.nn.parameter", "torch", "reading a PyTorch model")
    return not isinstance(parameter, parameters.UninitializedParameter) and parameter.device.type != "meta"


def check_has_values(named: Mapping[str, Any]) -> None:
    empty = [name for name, value in named.items() if not has_values(value)]
    if empty:
        got = f"tensors without values ({', '.join(empty[:5])})"
        remedy = "Call lazy layers once on a batch; model.to_empty(device='cpu') leaves the meta device."
        raise InvalidInput("model", got, "a model with weights", remedy)


def _entries(value: Any) -> int:
    return int(np.prod(value.shape)) if len(value.shape) else 1


def _torch_function(model: Any, dtype: str) -> ModelFunction:
    torch = need("torch", "torch", "differentiating a PyTorch model")
    try:
        module = copy.deepcopy(model).eval()
    except Exception as error:
        raise InvalidInput(
            "model", f"{type(model).__name__}, which cannot be copied ({error})", "a module that can be copied"
        ) from None
    check_real_entries(dict(module.named_parameters()))
    module = module.to(torch.float64) if dtype == "float64" else _at_least_single(torch, module)
    for part in module.modules():
        if getattr(part, "inplace", False):
            part.inplace = False  # the value before an activation is read again
    named = dict(module.named_parameters())
    check_has_values(named)
    trained = {name: value.detach() for name, value in named.items() if value.requires_grad and value.numel()}
    rest = {name: value.detach() for name, value in named.items() if name not in trained}
    check_parameters(trained, lambda value: bool(torch.isfinite(value).all()))
    like = next(iter(trained.values()))
    recurrent = any(isinstance(part, torch.nn.RNNBase) for part in module.modules())

    def call(parameters: NamedTensors, arguments: CallArguments) -> Any:
        # of copies, which a model may change in place
        positional = tuple(value.clone() for value in arguments[0])
        by_name = {name: value.clone() for name, value in arguments[1].items()}
        with _differentiable(torch, recurrent):
            found = torch.func.functional_call(module, {**rest, **parameters}, positional, by_name)
        return _as_rows(first_output(found), count_inputs(arguments), type(model).__name__)

    def read(X: Any, name: str) -> CallArguments:
        return read_arguments(X, name, lambda value: _torch_tensor(torch, value, like))

    guarded = _guarded(call, type(model).__name__)
    return ModelFunction(torch, _torch_transforms(), trained, guarded, read, module, tuple(rest), _torch_map)


@lru_cache
def _torch_transforms() -> Any:
    """`torch.func`, whose first forward derivative imports parts of torch that warn of their own old age."""
    torch = need("torch", "torch", "differentiating a PyTorch model")
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):  # which of them depends on the version
            warnings.simplefilter("ignore", category)
        torch.func.jvp(lambda x: x, (torch.zeros(1),), (torch.zeros(1),))
    return torch.func


@contextmanager
def _differentiable(torch: ModuleType, recurrent: bool) -> Iterator[None]:
    """Attention, recurrent layers and norms by plain operations, whose forward derivatives are right."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
            stack.enter_context(plain_norms())
            if recurrent:  # convolutions are much quicker with them
                stack.enter_context(torch.backends.mkldnn.flags(enabled=False, allow_tf32=None))
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _torch_map(function: Callable[..., Any], *trees: NamedTensors) -> NamedTensors:
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def _at_least_single(torch: ModuleType, module: Any) -> Any:
    """Half precision has three digits: such a model is looked at in single precision."""
    halves = (torch.float16, torch.bfloat16)
    return module.float() if any(value.dtype in halves for value in module.parameters()) else module


def _torch_tensor(torch: ModuleType, value: Any, like: Any) -> Any:
    tensor = value.detach() if isinstance(value, torch.Tensor) else torch.as_tensor(np.array(value))
    tensor = tensor.to(like.device)
    return tensor.to(like.dtype) if tensor.is_floating_point() else tensor


def _flax_function(model: Any, dtype: str) -> ModelFunction:
    nnx = need("flax.nnx", "readers", "differentiating a Flax model")
    twin = nnx.clone(model)
    twin.eval()
    graph, state, rest = nnx.split(twin, nnx.Param, ...)
    flat, form = jax.tree_util.tree_flatten_with_path(state)
    names = [path_name(path) for path, _ in flat]
    parameters = {name: _cast_leaf(leaf, dtype) for name, (_, leaf) in zip(names, flat, strict=True)}
    rest = jax.tree.map(lambda leaf: _cast_leaf(leaf, dtype), rest)

    def whole(parameters: NamedTensors) -> Any:
        return nnx.merge(graph, jax.tree_util.tree_unflatten(form, [parameters[name] for name in names]), rest)

    return _jax_function(parameters, whole, False, model, twin)


def _equinox_function(model: Any, dtype: str) -> ModelFunction:
    eqx = need("equinox", "readers", "differentiating an Equinox model")
    model_in_use = eqx.nn.inference_mode(model)
    trained, rest = eqx.partition(model_in_use, eqx.is_inexact_array)
    flat, form = jax.tree_util.tree_flatten_with_path(trained)
    names = [path_name(path) for path, _ in flat]
    parameters = {name: _cast_leaf(leaf, dtype) for name, (_, leaf) in zip(names, flat, strict=True)}

    def whole(parameters: NamedTensors) -> Any:
        return eqx.combine(jax.tree_util.tree_unflatten(form, [parameters[name] for name in names]), rest)

    return _jax_function(parameters, whole, True, model, model_in_use)


def _jax_function(
    parameters: NamedTensors, whole: Callable[[NamedTensors], Any], by_input: bool, model: Any, twin: Any
) -> ModelFunction:
    check_parameters(parameters, lambda value: bool(jnp.isfinite(value).all()))
    name = type(model).__name__

    def call(parameters: NamedTensors, arguments: CallArguments) -> Any:
        module = whole(parameters)

        def apply(positional: Any, named: Any) -> Any:
            return first_output(module(*positional, **named))

        found = (jax.vmap(apply) if by_input else apply)(*arguments)
        return _as_rows(found, count_inputs(arguments), name)

    def read(X: Any, argument: str) -> CallArguments:
        like = next(iter(parameters.values()))
        return read_arguments(X, argument, lambda value: _jax_array(value, like))

    guarded = _guarded(call, name)
    return ModelFunction(jnp, jax, parameters, guarded, read, twin, whole=whole, by_input=by_input)


def _jax_array(value: Any, like: Any) -> Any:
    array = np.asarray(value.detach().cpu()) if hasattr(value, "detach") else np.asarray(value)
    return jnp.asarray(array, like.dtype if np.issubdtype(array.dtype, np.floating) else None)


def _cast_leaf(leaf: Any, dtype: str) -> Any:
    if not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
        return leaf
    half = leaf.dtype in (jnp.float16, jnp.bfloat16)
    return jnp.asarray(leaf, jnp.float64 if dtype == "float64" else jnp.float32 if half else leaf.dtype)


def path_name(path: Sequence[Any]) -> str:
    names = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return ".".join(names[:-1] if names[-1] == "value" else names)


def check_parameters(parameters: Mapping[str, Any], finite: Callable[[Any], bool]) -> None:
    """Refuse a model with nothing to train, or with numbers that are none."""
    if not parameters:
        remedy = "Set requires_grad_(True) on what is to be trained."
        raise InvalidInput("model", "no trainable parameter", "at least one parameter that is trained", remedy)
    check_real_entries(parameters)
    bad = [name for name, value in parameters.items() if not finite(value)]
    if bad:
        raise InvalidInput("model", f"NaN or infinite entries in {', '.join(bad[:5])}", "finite parameters")


def check_real_entries(parameters: Mapping[str, Any]) -> None:
    found = [name for name, value in parameters.items() if "complex" in str(value.dtype)]
    if found:
        got = f"complex entries in {', '.join(found[:5])}"
        raise InvalidInput("model", got, "real parameters", "Hold the two parts as two tensors.")


def read_arguments(X: Any, name: str, convert: Callable[[Any], Any]) -> CallArguments:
    """What a model is called with: one array, a tuple of positional ones or a dict of named ones, one row an input."""
    refuse_mask(X, name)
    try:
        positional = tuple(map(convert, X)) if isinstance(X, tuple) else () if isinstance(X, Mapping) else (convert(X),)
        named = {key: convert(value) for key, value in X.items()} if isinstance(X, Mapping) else {}
    except Exception as error:
        got = f"{_described(X)} ({one_line(error)})"
        expected = "an array (inputs, …), or a tuple or dict of such arrays"
        raise InvalidInput(name, got, expected, _WRAP) from None
    each = [*positional, *named.values()]
    if not each or any(len(value.shape) == 0 for value in each):
        got = _described(X)
        expected = "an array (inputs, …) with one row an input"
        raise InvalidInput(name, got, expected, _WRAP)
    counts = {int(value.shape[0]) for value in each}
    if len(counts) != 1 or 0 in counts:
        raise InvalidInput(name, f"arrays of {sorted(counts)} rows", "the same number of inputs, at least one, in each")
    for value in each:
        values = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
            raise InvalidInput(name, "NaN or infinite entries", "finite numbers")
    return positional, named


def _described(X: Any) -> str:
    """What a batch is, without its numbers."""
    if isinstance(X, Mapping):
        return "{" + ", ".join(f"{key}: {_described(value)}" for key, value in X.items()) + "}"
    if isinstance(X, list | tuple) and len(X) <= 8 and any(hasattr(value, "shape") for value in X):
        return f"a {type(X).__name__} of " + ", ".join(map(_described, X))
    shape = getattr(X, "shape", None)
    return repr(X) if shape is None else f"{type(X).__name__} of shape {tuple(shape)}"


def first_output(found: Any) -> Any:
    """The tensor that counts as the result of a call: itself, `logits`, or the first of several."""
    if hasattr(found, "logits"):
        return found.logits
    if isinstance(found, Mapping):
        return first_output(found.get("logits", next(iter(found.values()), None)))
    if isinstance(found, tuple | list) and found:
        return first_output(found[0])
    return found


def _as_rows(found: Any, inputs: int, name: str) -> Any:
    """(inputs, outputs)."""
    shape = getattr(found, "shape", None)
    if shape is None or len(shape) == 0 or int(shape[0]) != inputs:
        got = f"{name}, whose result is {'no array' if shape is None else f'of shape {tuple(shape)}'}"
        raise InvalidInput("model", got, f"one row for each of the {inputs} inputs")
    if "float" not in str(found.dtype):
        raise InvalidInput("model", f"{name}, whose result is of type {found.dtype}", "real numbers")
    return found.reshape(inputs, -1)


def _guarded(
    call: Callable[[NamedTensors, CallArguments], Any], name: str
) -> Callable[[NamedTensors, CallArguments], Any]:
    """What a model's own code raises, in one line that says how it was called."""

    def guarded(parameters: NamedTensors, arguments: CallArguments) -> Any:
        try:
            return call(parameters, arguments)
        except InvalidInput:
            raise
        except Exception as error:
            positional, named = arguments
            shapes = [str(tuple(v.shape)) for v in positional] + [f"{k}={tuple(v.shape)}" for k, v in named.items()]
            raise InvalidInput(
                "model",
                f"{name}, whose call on {', '.join(shapes)} raises {one_line(error)}",
                "a model that can be called on the inputs",
                "A tuple gives several arguments, a dict named ones; dtype='model' keeps the model's own precision.",
            ) from error

    return guarded
