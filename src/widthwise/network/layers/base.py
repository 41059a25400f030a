"""What every kind of layer has: fields with a role, checks, a text form, and numbers that jax may trace.

A kind is a class below `Layer` under the decorator `layer_kind("name")`. Its fields are
    numbers   C's, λ's, scales: leaves of a pytree, so that no value is ever compiled in
    widths    counts of neurons, in proportion to which networks grow
    others    static: names, activations
and its meaning stands in three places: here, its specification; `gaussian.kernel_rules`, its rule in theory;
`experiments.layer_passes`, how it is drawn and what it does to the activations of a real network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import jax

from widthwise import precision as _precision  # noqa: F401  (float64 before any array is made)
from widthwise.errors import InvalidInput, UnknownName
from widthwise.network.validation import check_integer, check_real

#: Kinds by the name that stands in text forms.
KINDS: dict[str, type[Layer]] = {}

KindOfLayer = TypeVar("KindOfLayer", bound="type[Layer]")


class Signal(NamedTuple):
    """What runs between layers: so many features, Gaussian at infinite width or not; None before the first layer.

    `gained`: a learned gain has multiplied it, whose part of Θ differs from neuron to neuron. `positions`: dimensions
    of positions at which the features stand, as many as the data have where that is None. `flat`: the features of all
    positions stand in a row, so that there are `width` of them for every position there was.
    """

    width: int | None
    gaussian: bool
    gained: bool = False
    positions: int | None = None
    flat: bool = False


def number(default: float | None = None) -> Any:
    """A field for a finite non-negative number that is never compiled in."""
    return field(default=MISSING if default is None else default, metadata={"role": "number"})


def width() -> Any:
    """A field for a number of neurons."""
    return field(metadata={"role": "width"})


def layers() -> Any:
    """A field for layers within a layer."""
    return field(metadata={"role": "layers"})


@dataclass(frozen=True)
class Layer:
    """A layer of a network; see `layer_kind`."""

    kind: ClassVar[str] = ""
    #: Whether K and Θ behind this layer are reported, and a network may end with it.
    numbered: ClassVar[bool] = False
    #: Whether it may stand before the first weights.
    on_raw_inputs: ClassVar[bool] = False
    #: Whether it reads covariances between different positions, and not between equal ones alone.
    reads_all_positions: ClassVar[bool] = False
    #: Whether it reads covariances between the positions of one input beside those of a pair.
    reads_own_positions: ClassVar[bool] = False
    #: Why tensors of order 1/n have no rule for this kind; empty where they have one.
    no_order_one: ClassVar[str] = "no rule at order 1/n has been derived for this kind of layer"

    def __post_init__(self):
        for name in role_fields(type(self), "number"):
            object.__setattr__(self, name, check_number(name, getattr(self, name)))
        for name in role_fields(type(self), "width"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), 1, expected="a positive integer"))

    def outgoing(self, signal: Signal) -> Signal:
        """The signal behind this layer; a `Misfit` where it cannot follow what comes."""
        return signal

    def positions_behind(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Positions behind this layer; a `Misfit` where it cannot stand on those that come."""
        return shape

    def steps_on(self, signal: Signal) -> tuple[Layer, ...]:
        """What is done to a signal: the layer itself, or for layers within layers all of them in a row."""
        return (self,)

    def to_dict(self) -> dict[str, Any] | str:
        """The kind and its fields, as plain numbers and strings."""
        written = {f.name: getattr(self, f.name) for f in fields(self)}  # pyright: ignore[reportArgumentType]
        for name in role_fields(type(self), "layers"):
            written[name] = [layer.to_dict() for layer in written[name]]
        return {"kind": self.kind} | written

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], activations: Mapping[str, Any]) -> Layer:
        """The inverse of `to_dict`, without the kind."""
        known = [f.name for f in fields(cls)]  # pyright: ignore[reportArgumentType]
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise InvalidInput("network", f"unknown key {unknown[0]!r} of a layer {cls.kind!r}", ", ".join(known))
        return cls(**data)


class Misfit(Exception):
    """A layer that cannot stand where it stands: what came, and what was expected."""


@cache
def role_fields(cls: type, role: str) -> list[str]:
    """Names of the fields with a role."""
    return [f.name for f in fields(cls) if f.metadata.get("role") == role]


@dataclass_transform(frozen_default=True, field_specifiers=(number, width, layers))
def layer_kind(name: str) -> Callable[[KindOfLayer], KindOfLayer]:
    """Make a class a kind of layer: a frozen dataclass, a pytree whose leaves are its numbers, a name in text forms.

    >>> @layer_kind("gain of an example")
    ... class Gain(Layer):
    ...     factor: float = number(1.0)
    >>> Gain(2.0), jax.tree.leaves(Gain(2.0))
    (Gain(factor=2.0), [2.0])
    """

    def register(cls: KindOfLayer) -> KindOfLayer:
        made = dataclass(frozen=True)(cls)
        made.kind = name
        register_pytree(made, [*role_fields(made, "layers"), *role_fields(made, "number")])
        KINDS[name] = made
        return made

    return register


def register_pytree(cls: type, leaves: list[str]) -> None:
    """A frozen dataclass as a pytree; what is put together again from traced leaves is not checked again."""
    static = [f.name for f in fields(cls) if f.name not in leaves]

    def flatten(value):
        return [(jax.tree_util.GetAttrKey(name), getattr(value, name)) for name in leaves], tuple(
            getattr(value, name) for name in static
        )

    def unflatten(aux, children):
        value = object.__new__(cls)
        for name, content in (*zip(static, aux, strict=True), *zip(leaves, children, strict=True)):
            object.__setattr__(value, name, content)
        return value

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)


def check_number(name: str, value: Any) -> float:
    """A finite non-negative number, or one that jax traces."""
    if isinstance(value, jax.core.Tracer):  # pyright: ignore[reportAttributeAccessIssue]
        return value  # pyright: ignore[reportReturnType]
    expected = "a finite non-negative number"
    if isinstance(value, bool | str):
        raise InvalidInput(name, repr(value), expected)
    return check_real(name, value, expected)


def own_activations(activations: Any) -> Mapping[str, Any]:
    """The user's own activations by name, none where None is given."""
    if activations is not None and not isinstance(activations, Mapping):
        raise InvalidInput("activations", repr(activations), "a dict from names to functions")
    return {} if activations is None else activations


def layer_from(data: Any, activations: Mapping[str, Any]) -> Any:
    """A layer from its text form: a table with its kind, or the name of an activation."""
    if isinstance(data, str):
        return activations.get(data, data)
    if not isinstance(data, Mapping) or "kind" not in data:
        raise InvalidInput("network", f"a layer {data!r}", "a table with the key 'kind', or the name of an activation")
    if data["kind"] not in KINDS:
        raise UnknownName.of("network", data["kind"], KINDS, " (a kind of your own must be imported before it is read)")
    return KINDS[data["kind"]].from_dict({key: value for key, value in data.items() if key != "kind"}, activations)


def resized(layer: Layer, factor: float) -> Layer:
    """The layer with all its widths multiplied by a factor, at least one neuron each."""
    kind = type(layer)
    sizes = {name: max(1, round(getattr(layer, name) * factor)) for name in role_fields(kind, "width")}
    within = {name: [resized(one, factor) for one in getattr(layer, name)] for name in role_fields(kind, "layers")}
    return replace(layer, **sizes, **within)
