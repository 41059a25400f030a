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
from widthwise.network.layers.base import Layer, Misfit, Signal, layer_from, register_pytree, resized, role_fields
from widthwise.network.layers.dense import Dense
from widthwise.network.layers.elementwise import Elementwise, as_layer, short_repr
from widthwise.network.layers.normalisation import Normalisation
from widthwise.network.layers.residual import Residual

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
        if not given[-1].numbered:
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
            if signals[-1].width is None:
                raise InvalidInput(f"layers[{position}]", f"{layer!r} on the raw inputs", "a Dense layer first")
        return tuple(signals)

    @cached_property
    def numbered(self) -> tuple[int, ...]:
        """Positions in `layers` behind which K and Θ are reported: layers 1, …, L of theory §1."""
        return tuple(position for position, layer in enumerate(self.layers) if layer.numbered)

    @cached_property
    def blocks(self) -> tuple[tuple[Layer, ...], ...]:
        """All steps in a row, cut behind each layer that is reported."""
        ends = [0, *(position + 1 for position in self.numbered)]
        layers = (self.layers[start:stop] for start, stop in pairwise(ends))
        return tuple(_with_means_off([step for layer in some for step in layer.steps]) for some in layers)

    @cached_property
    def steps(self) -> tuple[Layer, ...]:
        """What is done to a signal, one after the other; layers within layers stand in the same row."""
        return tuple(step for block in self.blocks for step in block)

    @property
    def depth(self) -> int:
        """L, the number of such layers; of a plain network, of its weight matrices."""
        return len(self.numbered)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """n_0, …, n_L: features of the inputs, then neurons of layers 1, …, L."""
        behind = (self.signals[position + 1].width for position in self.numbered)
        return (self.layers[0].inputs, *behind)  # pyright: ignore[reportReturnType, reportAttributeAccessIssue]

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
        *below, last = self.layers[: self.numbered[layer - 1] + 1]
        if outputs is not None and isinstance(last, Dense):  # a stream keeps its width
            last = replace(last, outputs=outputs)
        return Network([*below, last])

    def with_width(self, width: int) -> Network:
        """All hidden widths in proportion, the last of them `width`; inputs and outputs stay.

        >>> from widthwise.network import Dense
        >>> Network([Dense(2, 8), "relu", Dense(8, 4), "tanh", Dense(4, 1)]).with_width(16).widths
        (2, 32, 16, 1)
        """
        first, *middle, last = (resized(layer, width / self.n) for layer in self.layers)
        if not middle and not isinstance(last, Residual):
            return self
        first = replace(first, inputs=self.widths[0])  # pyright: ignore[reportCallIssue]
        if not isinstance(last, Residual):  # a stream keeps the width of what comes into it
            last = replace(last, outputs=self.widths[-1])  # pyright: ignore[reportCallIssue]
        return Network([first, *middle, last])

    @property
    def learned(self) -> tuple[Layer, ...]:
        """Layers with parameters, in order, those within layers too: weights and biases, gains and shifts."""
        return tuple(step for step in self.steps if isinstance(step, Dense | Affine))

    def with_learned(self, layers: Iterable[Layer]) -> Network:
        """The network with other layers in place of `learned`, of the same kinds.

        >>> from widthwise.network import Dense
        >>> net = Network([Dense(2, 8), "relu", Dense(8, 1)])
        >>> net.with_learned(replace(layer, C_W=2.0) for layer in net.learned).layers[0].C_W
        2.0
        """
        fresh = iter(layers)

        def renewed(layer: Layer) -> Layer:
            names = role_fields(type(layer), "layers")
            within = {name: [renewed(one) for one in getattr(layer, name)] for name in names}
            return next(fresh) if isinstance(layer, Dense | Affine) else replace(layer, **within) if within else layer

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
        return cls([layer_from(layer, {} if activations is None else activations) for layer in data["layers"]])

    def to_json(self) -> str:
        """>>> from widthwise.network import MLP
        >>> net = MLP([2, 16, 1], "leaky_relu(0.1)", C_W=[1.0, 2.0])
        >>> MLP.from_json(net.to_json()) == net
        True
        """
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
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidInput("network", f"malformed TOML ({error})", "a table written by to_toml") from error
        return cls.from_dict(data, activations)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Network):
            return NotImplemented
        return self.layers == other.layers and self.unread == other.unread

    def __hash__(self) -> int:
        return hash(self.layers)

    def __repr__(self) -> str:
        return f"Network([{', '.join(map(short_repr, self.layers))}])"


def parsed_json(text: str) -> Any:
    """What a JSON text of a network holds."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
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
        features = isinstance(step, Elementwise) or (features and not isinstance(step, Dense))
        if features and isinstance(above, Normalisation) and above.centred:
            if not isinstance(step, Elementwise):
                raise InvalidInput(
                    "layers", f"{above!r} behind {short_repr(step)}", "an activation right before it, or preactivations"
                )
            marked[place] = replace(step, centred=True)
    return tuple(marked)


def parameter_count(net: Network) -> int:
    """How many weights and biases a network has; gains and shifts are few beside them."""
    return sum(step.inputs * step.outputs + step.outputs for step in net.steps if isinstance(step, Dense))
