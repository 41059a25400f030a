"""A network made of layers: an immutable, validated structure with numbers that jax may trace (theory §1)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from widthwise.activations import Activation
from widthwise.errors import InvalidInput
from widthwise.network.layers.affine import Affine
from widthwise.network.layers.base import (
    Layer,
    Misfit,
    Signal,
    layer_from,
    own_activations,
    register_pytree,
    resized,
    role_fields,
)
from widthwise.network.layers.dense import WeightLayer
from widthwise.network.layers.elementwise import Elementwise, as_layer, short_repr
from widthwise.network.layers.normalisation import Normalisation
from widthwise.network.layers.parallel import Merge, Switch
from widthwise.network.layers.pooling import PositionReduction
from widthwise.network.layers.residual import Fork, Join, Residual
from widthwise.network.layers.windows import Windowed
from widthwise.network.positions import check_images, fitted, shapes_of
from widthwise.network.validation import check_inputs, check_integer, real_array

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Network:
    """Layers one after the other: `Dense`, activations by name or function, and kinds of your own.

    Its structure (kinds, widths, activations) is static and hashable; its numbers (C's, λ's, scales) are leaves of a
    pytree, so that functions compiled for one network serve all of the same structure.

    >>> from widthwise.network import Dense
    >>> net = Network([Dense(3, 64, C_W=1.5), "tanh", Dense(64, 64), "gelu", Dense(64, 1)])
    >>> net.depth, net.widths
    (3, (3, 64, 64, 1))
    >>> net == eval(repr(net))
    True
    """

    layers: tuple[Layer, ...]

    #: Of a plain network without hidden layers: the activation that nothing uses.
    unread: ClassVar[Activation | None] = None
    #: Whether the last layer may be one behind which kernels are not reported otherwise.
    ends_anywhere: ClassVar[bool] = False
    #: Whether covariances between different positions are wanted behind the last layer.
    crossed_at_the_end: ClassVar[bool] = False

    def __init__(self, layers: Sequence[Layer | str | Callable | Activation]):
        if isinstance(layers, str) or not isinstance(layers, Sequence) or not layers:
            raise InvalidInput(
                "layers", repr(layers), "a list of layers", 'For example [Dense(3, 64), "tanh", Dense(64, 1)].'
            )
        items: Sequence[Any] = layers
        given = tuple(map(as_layer, items))
        object.__setattr__(self, "layers", given)
        *_, last = self.signals
        _ = self.blocks
        if not given[-1].numbered and not self.ends_anywhere:
            raise InvalidInput(
                f"layers[{len(given) - 1}]",
                f"{given[-1]!r} at the end, with {last.width} features that nothing reads",
                "a Dense layer at the end",
            )

    @cached_property
    def signals(self) -> tuple[Signal, ...]:
        """What comes into each layer, and what leaves the last one; a layer that cannot follow is refused."""
        signals = [Signal(None, gaussian=False)]
        for position, layer in enumerate(self.layers):
            try:
                signals.append(layer.outgoing(signals[-1]))
            except Misfit as misfit:
                raise InvalidInput(f"layers[{position}]", *misfit.args) from None
            if signals[-1].width is None and not layer.on_raw_inputs:
                raise InvalidInput(f"layers[{position}]", f"{layer!r} on the raw inputs", "a Dense layer first")
        return tuple(signals)

    @cached_property
    def numbered(self) -> tuple[int, ...]:
        """Positions in `layers` behind which K and Θ are reported: layers 1, …, L of theory §1."""
        last = len(self.layers) - 1
        return tuple(
            position for position, layer in enumerate(self.layers)
            if layer.numbered or (self.ends_anywhere and position == last)
        )  # fmt: skip

    @cached_property
    def blocks(self) -> tuple[tuple[Layer, ...], ...]:
        """All steps in a row, cut behind each layer that is reported."""
        ends = [0, *(position + 1 for position in self.numbered)]
        steps = [layer.steps_on(signal) for layer, signal in zip(self.layers, self.signals, strict=False)]
        return tuple(
            _with_means_off([step for some in steps[start:stop] for step in some]) for start, stop in pairwise(ends)
        )

    @cached_property
    def steps(self) -> tuple[Layer, ...]:
        """What is done to a signal, one after the other; layers within layers stand in the same row."""
        return tuple(step for block in self.blocks for step in block)

    @cached_property
    def step_signals(self) -> tuple[Signal, ...]:
        """What comes into each step."""
        found: list[Signal] = []
        signal, forks = Signal(None, gaussian=False), []
        for step in self.steps:
            found.append(signal)
            if isinstance(step, Fork):
                forks.append(signal)
            elif isinstance(step, Switch):
                signal = signal if step.last else forks[-1]
            elif isinstance(step, Merge):
                forks.pop()
                signal = step.behind or signal
            elif isinstance(step, Join):
                forks.pop()
            else:
                signal = step.outgoing(signal)
        return tuple(found)

    @property
    def depth(self) -> int:
        """L, the number of such layers; of a plain network, of its weight matrices."""
        return len(self.numbered)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """n_0, …, n_L: features of the inputs, then neurons of layers 1, …, L."""
        behind = (self.signals[position + 1].width for position in self.numbered)
        first = next((step.inputs for step in self.steps if isinstance(step, WeightLayer)), 0)
        return (getattr(self.layers[0], "inputs", first), *behind)  # pyright: ignore[reportReturnType]

    @cached_property
    def positions(self) -> int | None:
        """Dimensions of positions that inputs have: 0 for plain features, None for any number from one on."""
        for step in self.steps:
            if isinstance(step, Windowed):
                return len(step.window)
            if isinstance(step, PositionReduction) or step.reads_all_positions:
                return None
        return 0

    def shapes(self, shape: tuple[int, ...], argument: str = "X") -> tuple[tuple[int, ...], ...]:
        """Positions at the entrance of each step and behind the last, for inputs with these; a refusal by layer.

        >>> from widthwise.network import Conv, Dense, Flatten
        >>> net = Network([Conv(3, 8, (3, 3), padding="VALID"), "relu", Flatten(), Dense(288, 1)])
        >>> net.shapes((8, 8))
        ((8, 8), (6, 6), (6, 6), (), ())
        """
        if not isinstance(shape, list | tuple):
            raise InvalidInput("shape", repr(shape), "the positions of an input, such as (8, 8)")
        return shapes_of(self, tuple(check_integer("shape", length, 1) for length in shape), argument)

    def check_inputs(self, X: object, name: str = "X") -> Any:
        """X as a float64 array (inputs, features), or (inputs, positions…, channels) where the network has positions.

        >>> from widthwise.network import Conv, Dense, GlobalAvgPool
        >>> net = Network([Conv(1, 8, (3, 3)), "relu", GlobalAvgPool(), Dense(8, 1)])
        >>> net.check_inputs([[[[1], [2]], [[3], [4]]]]).shape
        (1, 2, 2, 1)
        """
        if self.positions == 0:
            return check_inputs(X, self.widths[0], name)
        return check_images(self, real_array(X, name), name)

    @property
    def n(self) -> int:
        """The width that 1/n refers to at the output: n_{L−1}, the last hidden width (n_0 without hidden layers)."""
        return self.widths[-2]

    @cached_property
    def activations(self) -> tuple[Activation, ...]:
        """Those of all activation layers, in order."""
        return tuple(step.activation for step in self.steps if isinstance(step, Elementwise))

    def up_to(self, layer: int, outputs: int | None = None) -> Network:
        """The network that ends at layer 1, …, L, with its own number of neurons there or another.

        >>> from widthwise.network import Dense
        >>> Network([Dense(2, 8), "relu", Dense(8, 4), "tanh", Dense(4, 1)]).up_to(2).widths
        (2, 8, 4)
        """
        expected = f"a layer from 1 to {len(self.numbered)}"
        number = check_integer("layer", layer, 1, len(self.numbered), expected)
        *below, last = self.layers[: self.numbered[number - 1] + 1]
        if outputs is not None and isinstance(last, WeightLayer):  # a stream keeps its width
            last = replace(last, outputs=outputs)
        return Network([*below, last])

    def with_width(self, width: int) -> Network:
        """All hidden widths in proportion, the last of them `width`; inputs and outputs stay.

        >>> from widthwise.network import Dense
        >>> Network([Dense(2, 8), "relu", Dense(8, 4), "tanh", Dense(4, 1)]).with_width(16).widths
        (2, 32, 16, 1)
        """
        width = check_integer("width", width, 1, expected="a positive integer")
        first, *middle, last = self._refitted([resized(layer, width / self.n) for layer in self.layers])
        if not middle and not isinstance(last, Residual):
            return self
        if self.positions == 0:
            first = replace(first, inputs=self.widths[0])  # pyright: ignore[reportCallIssue]
        if not isinstance(last, Residual):  # a stream keeps the width of what comes into it
            last = replace(last, outputs=self.widths[-1])  # pyright: ignore[reportCallIssue]
        return Network([first, *middle, last])

    def _refitted(self, layers: list[Layer]) -> list[Layer]:
        """Layers with other widths, in which those on the inputs and behind Flatten read as many as there are."""
        if self.positions == 0:
            return layers
        fresh, signal = [], self.signals[0]
        for layer, own, before in zip(layers, self.layers, self.signals, strict=False):
            layer = fitted(layer, own, signal.width, before)
            fresh.append(layer)
            signal = layer.outgoing(signal)
        return fresh

    @property
    def learned(self) -> tuple[Layer, ...]:
        """Layers with parameters, in order, those within layers too: weights and biases, gains and shifts."""
        return tuple(step for step in self.steps if isinstance(step, WeightLayer | Affine))

    def with_learned(self, layers: Iterable[Layer]) -> Network:
        """The network with other layers in place of `learned`, of the same kinds.

        >>> from widthwise.network import Dense
        >>> net = Network([Dense(2, 8), "relu", Dense(8, 1)])
        >>> net.with_learned(replace(layer, C_W=2.0) for layer in net.learned).layers[0].C_W
        2.0
        """
        try:
            given: list[Any] = list(layers)
        except Exception:  # one layer, None, an array without axes, or what the caller's object raises
            given = [layers]
        if list(map(type, given)) != list(map(type, self.learned)):
            kinds = [", ".join(type(layer).__name__ for layer in each) for each in (given, self.learned)]
            raise InvalidInput("layers", kinds[0] or "none", f"layers of the kinds {kinds[1]}, in this order")
        fresh = iter(given)

        def renewed(layer: Layer) -> Layer:
            names = role_fields(type(layer), "layers")
            within = {name: [renewed(one) for one in getattr(layer, name)] for name in names}
            return (
                next(fresh)
                if isinstance(layer, WeightLayer | Affine)
                else replace(layer, **within)
                if within
                else layer
            )

        return Network([renewed(layer) for layer in self.layers])

    def to_dict(self) -> dict[str, Any]:
        """{"layers": […]}, each layer a table, or the name of an activation."""
        return {"layers": [layer.to_dict() for layer in self.layers]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], activations: Mapping[str, Any] | None = None) -> Self:
        """The inverse of `to_dict`. An activation of the user's own is stored by name: `activations` gives it back."""
        if not isinstance(data, Mapping) or set(data) != {"layers"} or not isinstance(data["layers"], list):
            got = f"the keys {', '.join(map(str, data))}" if isinstance(data, Mapping) else type(data).__name__
            raise InvalidInput("network", got, "a table with the key layers, a list")
        own = own_activations(activations)
        return cls([layer_from(layer, own) for layer in data["layers"]])

    def to_json(self) -> str:
        """>>> from widthwise.network import MLP
        >>> net = MLP([2, 16, 1], "leaky_relu(0.1)", C_W=[1.0, 2.0])
        >>> MLP.from_json(net.to_json()) == net
        True
        """
        return self._json

    @cached_property
    def _json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str, activations: Mapping[str, Any] | None = None) -> Self:
        return cls.from_dict(parsed_json(text), activations)

    def to_toml(self) -> str:
        """>>> from widthwise.network import MLP
        >>> print(MLP([2, 16, 1], "gelu", C_b=0.1).to_toml())
        widths = [2, 16, 1]
        activation = "gelu"
        C_b = 0.1
        C_W = 1.0
        lambda_b = 1.0
        lambda_W = 1.0
        """
        return "\n".join(f"{name} = {_toml(value)}" for name, value in self.to_dict().items())

    @classmethod
    def from_toml(cls, text: str, activations: Mapping[str, Any] | None = None) -> Self:
        if not isinstance(text, str):
            raise InvalidInput("network", type(text).__name__, "a text written by to_toml")
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits and depths, too
            raise InvalidInput("network", f"malformed TOML ({error})", "a table written by to_toml") from error
        return cls.from_dict(data, activations)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Network):
            return NotImplemented
        return self.layers == other.layers and self.unread == other.unread

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.layers)

    def __repr__(self) -> str:
        return f"Network([{', '.join(map(short_repr, self.layers))}])"


def parsed_json(text: str) -> Any:
    """What a JSON text of a network holds."""
    if not isinstance(text, str):
        raise InvalidInput("network", type(text).__name__, "a text written by to_json")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("network", f"malformed JSON ({error})", "an object written by to_json") from error


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(entry)}" for name, entry in value.items()) + " }"
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        return "[\n" + "".join(f"    {_toml(entry)},\n" for entry in value) + "]"
    return json.dumps(value)


register_pytree(Network, ["layers"])


def check_network(net: Any) -> Network:
    """A network, or an error that says what came instead."""
    if not isinstance(net, Network):
        raise InvalidInput("net", type(net).__name__, "a widthwise.MLP or another widthwise.Network")
    return net


def _with_means_off(steps: list[Layer]) -> tuple[Layer, ...]:
    """Activations before a normalisation that takes off the mean are marked: theory takes it off ⟨σσ⟩."""
    marked, features = list(steps), False
    for place, (step, above) in enumerate(pairwise(steps)):
        features = isinstance(step, Elementwise) or (features and not isinstance(step, WeightLayer))
        if features and isinstance(above, Normalisation) and above.centred:
            if not isinstance(step, Elementwise):
                raise InvalidInput(
                    "layers", f"{above!r} behind {short_repr(step)}", "an activation right before it, or preactivations"
                )
            marked[place] = replace(step, centred=True)
    return tuple(marked)


def parameter_count(net: Network) -> int:
    """How many weights and biases a network has; gains and shifts are few beside them."""
    return sum(step.fan_in * step.outputs + step.outputs for step in net.steps if isinstance(step, WeightLayer))


class Stack(Network):
    """Layers that may end anywhere: kernels are reported behind the last of them, whatever it is."""

    ends_anywhere: ClassVar[bool] = True
    crossed_at_the_end: ClassVar[bool] = True


register_pytree(Stack, ["layers"])
