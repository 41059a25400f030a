"""Layers as `(init_fn, apply_fn, kernel_fn)` that learn the sizes of their inputs from the data.

A recipe turns the sizes that come in into layers of a `widthwise.Network`, whose kernels and passes are then those of
the rest of the library.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widthwise.errors import InvalidInput
from widthwise.experiments.layer_passes import has_parameters, learning_rates
from widthwise.experiments.sampler import output_rows, sample_parameters
from widthwise.flow.kernels.kernel_flow import check_differentiable, kernel_flow, kernels_at_positions
from widthwise.flow.kernels.variances import diagonal_flow
from widthwise.network import Dropout, Flatten, Layer, Stack, WeightLayer
from widthwise.network.layers.base import Misfit
from widthwise.network.layers.parallel import Parallel
from widthwise.network.validation import check_integer, check_names, is_one_of, real_array

KERNELS = ("nngp", "ntk", "cov1", "cov2")


@dataclass(frozen=True)
class Sizes:
    """What comes into a layer: positions, channels, and whether all positions stand in a row."""

    positions: tuple[int, ...]
    channels: int
    flat: int = 1

    @property
    def features(self) -> int:
        return self.channels * self.flat


#: Sizes that come in → layers, channels behind them.
Recipe = Callable[[Sizes], tuple[list[Layer], int]]


@dataclass(frozen=True)
class Item:
    """A recipe, or a step of branching: `fan_out` copies, recipes side by side, or what joins them."""

    recipe: Recipe | None = None
    fan_out: int = 0
    parallel: tuple[tuple[Item, ...], ...] = ()
    join: str = ""


class StaxLayer(NamedTuple):
    """What every function here returns; it unpacks into init_fn, apply_fn, kernel_fn."""

    init_fn: Callable[..., Any]
    apply_fn: Callable[..., Any]
    kernel_fn: Callable[..., Any]


class KernelResult(NamedTuple):
    """`kernel_fn(x1, x2)` without `get`: kernels, and variances of both sides (those of x1 where x2 is None)."""

    nngp: np.ndarray
    ntk: np.ndarray
    cov1: np.ndarray
    cov2: np.ndarray | None


def made_of(*items: Item) -> StaxLayer:
    """The three functions of a list of items."""
    kernel_fn = _KernelFunction(items)
    return StaxLayer(_Init(items), _Apply(items), kernel_fn)


def items_of(layer: Any) -> tuple[Item, ...]:
    """The items of a layer made here."""
    kernel_fn = layer[2] if isinstance(layer, tuple) and len(layer) == 3 else None
    if not isinstance(kernel_fn, _KernelFunction):
        raise InvalidInput("layers", repr(layer), "layers made by widthwise.stax", "For example stax.Dense(512).")
    return kernel_fn.items


def built(items: Sequence[Item], sizes: Sizes) -> tuple[list[Layer], Sizes]:
    """Layers for inputs of these sizes, and the sizes behind them."""
    layers: list[Layer] = []
    branches: list[tuple[list[Layer], Sizes]] | None = None
    for item in items:
        if item.fan_out:
            branches = [([], sizes) for _ in range(item.fan_out)]
        elif item.parallel:
            if branches is None or len(branches) != len(item.parallel):
                came = "one signal" if branches is None else f"{len(branches)} signals"
                raise InvalidInput(
                    "layers", f"parallel of {len(item.parallel)} branches on {came}", "FanOut of as many before it"
                )
            branches = [_extended(one, own) for one, own in zip(branches, item.parallel, strict=True)]
        elif item.join:
            if branches is None:
                raise InvalidInput("layers", f"FanIn ({item.join}) of one signal", "FanOut and parallel before it")
            behind = [own for _, own in branches]
            layers.append(Parallel([own for own, _ in branches], join=item.join))
            channels = [one.channels for one in behind]
            sizes = replace(behind[0], channels=sum(channels) if item.join == "concatenate" else channels[0])
            branches = None
        else:
            assert item.recipe is not None
            if branches is not None:
                raise InvalidInput("layers", "a layer on several signals", "parallel, or FanIn before it")
            layers, sizes = _extended((layers, sizes), (item,))
    if branches is not None:
        raise InvalidInput("layers", f"{len(branches)} signals at the end", "FanInSum, FanInProd or FanInConcat")
    return layers, sizes


def _extended(branch: tuple[list[Layer], Sizes], items: Sequence[Item]) -> tuple[list[Layer], Sizes]:
    layers, sizes = branch
    if len(items) == 1 and items[0].recipe is not None:
        more, channels = items[0].recipe(sizes)
        for layer in more:
            before, flat = sizes.positions, sizes.flat
            if isinstance(layer, Flatten):
                flat = prod(before)
            elif isinstance(layer, WeightLayer):
                flat = 1
            try:
                sizes = Sizes(layer.positions_behind(before), channels, flat)
            except Misfit as misfit:
                raise InvalidInput(f"layers[{len(layers)}]", *misfit.args) from None
        return [*layers, *more], sizes
    more, sizes = built(items, sizes)
    return [*layers, *more], sizes


def stack_of(items: Sequence[Item], shape: Sequence[int]) -> tuple[Stack, Sizes]:
    """The network of a list of items on inputs of a shape (inputs, positions…, channels)."""
    layers, sizes = built(items, Sizes(tuple(shape[1:-1]), int(shape[-1])))
    if not layers:
        raise InvalidInput("layers", "no layer but the identity", "at least one layer")
    return Stack(layers), sizes


@dataclass(frozen=True)
class _Init:
    items: tuple[Item, ...]

    def __call__(self, rng: Any, input_shape: Sequence[int]) -> tuple[tuple[int, ...], Any]:
        """Shapes behind the layers, and parameters drawn from a key of jax, in units of √λ (see `docs`)."""
        shape = _checked_shape(input_shape)
        net, sizes = stack_of(self.items, shape)
        drawn = sample_parameters(net, _checked_key(rng))
        outside = [jax.tree.map(_in_units, rates, own) for rates, own in zip(_rates(net), drawn, strict=True)]
        return (input_shape[0], *sizes.positions, sizes.features), outside


def _rates(net: Stack) -> list[Any]:
    return [learning_rates(step) for step in net.steps if has_parameters(step)]


def _in_units(rate: Any, value: Any) -> Any:
    return value / jnp.sqrt(rate) if rate > 0.0 else value


def _from_units(rate: Any, value: Any) -> Any:
    return value * jnp.sqrt(rate) if rate > 0.0 else jax.lax.stop_gradient(value)


@dataclass(frozen=True)
class _Apply:
    items: tuple[Item, ...]

    def __call__(self, params: Any, inputs: Any, *, rng: Any = None, **_: Any) -> jax.Array:
        """Outputs of the network with these parameters; `rng` draws the masks of dropout anew."""
        X = inputs if isinstance(inputs, jax.Array) else _inputs(inputs, "inputs")
        net, sizes = stack_of(self.items, X.shape)
        try:
            own = [jax.tree.map(_from_units, rates, p) for rates, p in zip(_rates(net), params, strict=True)]
        except Exception:  # of the caller's object, too
            raise InvalidInput("params", type(params).__name__, "what init_fn gave for inputs of this shape") from None
        drawn = jax.eval_shape(partial(sample_parameters, net), jax.random.key(0))
        if [jnp.shape(one) for one in jax.tree.leaves(own)] != [one.shape for one in jax.tree.leaves(drawn)]:
            raise InvalidInput("params", f"weights for other inputs than {X.shape}", "what init_fn gave for this shape")
        if rng is not None:
            rng = _checked_key(rng)
            drawing = [step for step in net.steps if has_parameters(step)]
            keys = jax.random.split(rng, len(drawing)) if drawing else []
            own = [
                jax.random.key_data(key).astype(float) if isinstance(step, Dropout) else p
                for step, p, key in zip(drawing, own, keys, strict=True)
            ]
        rows = output_rows(net, own, X)
        return rows.reshape(len(X), *sizes.positions, sizes.features)


@dataclass(frozen=True)
class _KernelFunction:
    items: tuple[Item, ...]

    def __call__(self, x1: Any, x2: Any = None, get: Any = None, **options: Any) -> Any:
        """Kernels of infinite width between rows of x1, or those of x1 and x2.

        get : "nngp", "ntk", "cov1" or "cov2" for an array, several for a named tuple, None for all.
        """
        for name, value in options.items():
            if value is not None and value is not False:
                raise InvalidInput(name, repr(value), "None", "This option of neural-tangents has no counterpart here.")
        names = KERNELS if get is None else tuple(check_names("get", get, KERNELS))
        X = _inputs(x1, "x1")
        net, _ = stack_of(self.items, X.shape)
        X2 = None if x2 is None else _inputs(x2, "x2")
        if X2 is not None and X2.shape[1:] != X.shape[1:]:
            raise InvalidInput("x2", f"shape {X2.shape}", f"inputs of shape {X.shape[1:]}, as those of x1")
        found = kernels_of(net, X, X2, names)
        if isinstance(get, str):
            return found[get]
        if get is None:
            return KernelResult(*(found[name] for name in KERNELS))
        return namedtuple("AnalyticKernel", names)(*(found[name] for name in names))  # pyright: ignore[reportUntypedNamedTuple]


def _checked_shape(shape: Any) -> tuple[int, ...]:
    """Of inputs, whose number may be left open as −1."""
    expected = "a shape (inputs or -1, positions…, channels)"
    if not isinstance(shape, list | tuple) or len(shape) < 2:
        raise InvalidInput("input_shape", repr(shape), expected)
    inputs, *rest = shape
    rest = [check_integer("input_shape", entry, 1, expected=expected) for entry in rest]
    return (1 if is_one_of(inputs, (-1,)) else check_integer("input_shape", inputs, 1, expected=expected), *rest)


def _checked_key(rng: Any) -> Any:
    """A key of jax, of the new kind or the old."""
    old = getattr(rng, "shape", None) == (2,) and getattr(rng, "dtype", None) == np.uint32
    new = isinstance(rng, jax.Array) and jnp.issubdtype(rng.dtype, jax.dtypes.prng_key) and rng.ndim == 0
    if not old and not new:
        raise InvalidInput("rng", repr(rng), "a key of jax", "For example jax.random.key(0).")
    return rng


def _inputs(values: Any, name: str) -> np.ndarray:
    array = real_array(values, name)
    if array.ndim < 2 or not array.size:
        raise InvalidInput(name, f"an array of shape {array.shape}", "shape (inputs, positions…, channels), not empty")
    return array


def kernels_of(net: Stack, X: np.ndarray, X2: np.ndarray | None, names: Sequence[str]) -> dict[str, Any]:
    """nngp, ntk, variances; kernels between positions, where there are any, on (inputs, inputs', h, h', w, w', …)."""
    with_theta = "ntk" in names
    if with_theta:
        check_differentiable(net)
    found: dict[str, Any] = {}
    if (net.positions != 0 and net.shapes(X.shape[1:-1])[-1]) or (net.positions == 0 and X.ndim > 2):
        K, Theta, sites = kernels_at_positions(net, X, X2, with_theta=with_theta)
        size = sites.dimensions
        order = [2 * size, 2 * size + 1, *(axis for place in range(size) for axis in (place, place + size))]
        found = {"nngp": K.transpose(order), "ntk": Theta.transpose(order)}
        if X2 is None:
            _write_diagonal(net, X, found, with_theta)
    else:
        flow = kernel_flow(net, X, X2, with_theta=with_theta, last_only=True)
        found = {"nngp": flow.K[0], "ntk": None if flow.Theta is None else flow.Theta[0]}
    for name, inputs in (("cov1", X), ("cov2", X2)):
        if name in names:
            found[name] = None if inputs is None else diagonal_flow(net, inputs, with_theta=False).K[-1]
    return found


def _write_diagonal(net: Stack, X: np.ndarray, found: dict[str, Any], with_theta: bool) -> None:
    """Inputs with themselves from the flow that is made for them: no series there, and masks of dropout."""
    own = diagonal_flow(net, X, with_theta).last
    size = len(own[0].shape) // 2
    order = [2 * size, *(axis for place in range(size) for axis in (place, place + size))]
    for name, kernel in zip(("nngp", "ntk"), own, strict=True):
        every = np.arange(len(X))
        found[name][every, every] = kernel.transpose(order)


def check_width(value: Any, name: str) -> int:
    return check_integer(name, value, 1)
