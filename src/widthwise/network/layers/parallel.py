"""Branches that start at one signal and are joined: a sum, a product, or one beside the other (theory §13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from widthwise.activations import Activation
from widthwise.errors import InvalidInput, UnknownName
from widthwise.network.layers.base import Layer, Misfit, Signal, layer_from, layer_kind, layers, register_pytree
from widthwise.network.layers.dense import WeightLayer
from widthwise.network.layers.elementwise import as_layer, short_repr
from widthwise.network.layers.residual import Fork, Residual
from widthwise.network.validation import is_one_of

JOINS = ("sum", "concatenate", "product")


@layer_kind("branch")
class Branch(Layer):
    """Layers one after the other, in a `Parallel`; a list means the same. An empty one is the identity."""

    body: Sequence[Layer | str | Callable | Activation] = layers()

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "body", tuple(map(as_layer, self.body)))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], activations: Mapping[str, Any]) -> Layer:
        made = {"body": [layer_from(layer, activations) for layer in data.get("body", ())]}
        return super().from_dict({**data, **made}, activations)

    @property
    def inner(self) -> tuple[Layer, ...]:
        return self.body  # pyright: ignore[reportReturnType]

    def outgoing(self, signal: Signal) -> Signal:
        for position, layer in enumerate(self.inner):
            try:
                signal = layer.outgoing(signal)
            except Misfit as misfit:
                raise Misfit(f"[{position}]: {misfit.args[0]}", misfit.args[1]) from None
        return signal

    def steps_on(self, signal: Signal) -> tuple[Layer, ...]:
        found = []
        for layer in self.inner:
            found += layer.steps_on(signal)
            signal = layer.outgoing(signal)
        return tuple(found)

    def __repr__(self) -> str:
        return f"[{', '.join(map(short_repr, self.inner))}]"


@layer_kind("parallel")
class Parallel(Layer):
    """Branches, each a list of layers, on the same signal; an empty list passes it on.

    join="sum" adds them (at most one branch may lack weights of its own: the others are independent of it, so that no
    cross term is left at infinite width), "concatenate" puts their channels beside each other, "product" multiplies.

    >>> from widthwise.network.layers.dense import Dense
    >>> Parallel([["tanh", Dense(64, 64)], []]).join
    'sum'
    """

    branches: Sequence[Any] = layers()
    join: str = "sum"

    numbered: ClassVar[bool] = True
    no_order_one: ClassVar[str] = "branches have no rule at order 1/n"

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.branches, str) or not isinstance(self.branches, Sequence) or len(self.branches) < 2:
            raise InvalidInput("branches", repr(self.branches), "at least two lists of layers")
        if not is_one_of(self.join, JOINS):
            raise UnknownName.of("join", self.join, JOINS)
        made = (one if isinstance(one, Branch) else Branch(_listed(one)) for one in self.branches)
        object.__setattr__(self, "branches", tuple(made))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], activations: Mapping[str, Any]) -> Layer:
        made = {"branches": [layer_from(layer, activations) for layer in data.get("branches", ())]}
        return super().from_dict({**data, **made}, activations)

    def outgoing(self, signal: Signal) -> Signal:
        behind = []
        for number_, branch in enumerate(self.branches):
            try:
                behind.append(branch.outgoing(signal))
            except Misfit as misfit:
                raise Misfit(f"branches[{number_}]{misfit.args[0]}", misfit.args[1]) from None
        without = [number_ for number_, branch in enumerate(self.branches) if not has_fresh_weights(branch)]
        if self.join != "concatenate" and len(without) > 1:
            raise Misfit(
                f"a {self.join} of branches {without} without weights of their own, which depend on each other",
                "at most one such branch: put a Dense or Conv layer into the others",
            )
        return self._joined(behind)

    def _joined(self, behind: list[Signal]) -> Signal:
        first, widths = behind[0], [one.width for one in behind]
        if len({one.positions for one in behind} - {None}) > 1 or len({one.flat for one in behind}) > 1:
            raise Misfit("branches that end with different positions", "the same positions in all of them")
        positions = next((one.positions for one in behind if one.positions is not None), None)
        if None in widths:
            raise Misfit("a branch that passes raw inputs on", "a Dense or Conv layer in every branch, or before them")
        if any(one.gained for one in behind):
            raise Misfit("a branch that ends with a learned gain", "a Dense or Conv layer behind the gain")
        if self.join == "concatenate":
            total = sum(width for width in widths if width is not None)
            return first._replace(width=total, gaussian=False, positions=positions)
        if len(set(widths)) > 1:
            raise Misfit(f"a {self.join} of {', '.join(map(str, widths))} features", "branches of one width")
        if self.join == "product":
            return first._replace(gaussian=False, positions=positions)
        if not all(one.gaussian for one in behind):
            raise Misfit("a sum with a branch that does not end in preactivations", "a Dense or Conv layer at its end")
        return first._replace(gaussian=True, positions=positions)

    def steps_on(self, signal: Signal) -> tuple[Layer, ...]:
        widths = [branch.outgoing(signal).width for branch in self.branches]
        shares = tuple(width / sum(widths) if self.join == "concatenate" else 1.0 for width in widths)
        found: list[Layer] = [Fork()]
        for number_, branch in enumerate(self.branches):
            found += [*branch.steps_on(signal), Switch(number_ + 1 == len(self.branches))]
        return (*found, Merge(self.join, shares, self.outgoing(signal)))

    def __repr__(self) -> str:
        return f"Parallel([{', '.join(map(repr, self.branches))}], join={self.join!r})"


def has_fresh_weights(layer: Layer) -> bool:
    """Whether all that leaves a layer has passed weights that it holds, so that it is independent of what came in."""
    if isinstance(layer, Branch):
        return any(map(has_fresh_weights, layer.inner))
    if isinstance(layer, Parallel):
        return all(map(has_fresh_weights, layer.branches))
    return isinstance(layer, WeightLayer) and not isinstance(layer, Residual)


def _listed(branch: Any) -> Sequence[Any]:
    if isinstance(branch, Sequence) and not isinstance(branch, str):
        return branch
    return [branch]


@dataclass(frozen=True)
class Switch(Layer):
    """Where a branch ends: what it gives is kept, and the next one starts where the first did, unless it was last."""

    last: bool = False


@dataclass(frozen=True)
class Merge(Layer):
    """Where all branches are joined; `shares` of the channels that each has."""

    join: str = "sum"
    shares: tuple[float, ...] = ()
    behind: Signal | None = None


register_pytree(Switch, [])
register_pytree(Merge, [])
