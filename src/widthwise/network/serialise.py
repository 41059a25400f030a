"""A network as a dictionary, JSON or TOML, and back."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from widthwise.activations import Activation
from widthwise.errors import InvalidInput

if TYPE_CHECKING:
    from typing import Self

FIELDS = ("widths", "activation", "C_b", "C_W", "lambda_b", "lambda_W")


class Serialised:
    """Round trips of a specification. An activation of the user's own is stored by name and must be given back."""

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; a value common to all layers is written once."""
        result: dict[str, Any] = {}
        for name in FIELDS:
            value = getattr(self, name)
            if isinstance(value, Activation):
                result[name] = value.spec
            elif name == "widths":
                result[name] = list(value)
            else:
                result[name] = value[0] if len(set(value)) == 1 else list(value)
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], activations: Mapping[str, Any] | None = None) -> Self:
        """The inverse of `to_dict`. `activations` maps names of the user's own activations to the functions."""
        if not isinstance(data, Mapping):
            raise InvalidInput("network", type(data).__name__, f"a table with the keys {', '.join(FIELDS)}")
        unknown = sorted(set(data) - set(FIELDS))
        missing = [name for name in ("widths", "activation") if name not in data]
        if unknown or missing:
            problem = f"unknown key {unknown[0]!r}" if unknown else f"no key {missing[0]!r}"
            raise InvalidInput("network", problem, f"the keys {', '.join(FIELDS)} (the first two required)")
        values = dict(data)
        own = (activations or {}).get(values["activation"])
        if own is not None:
            values["activation"] = own
        return cls(**values)

    def to_json(self) -> str:
        """>>> from widthwise.network import MLP
        >>> net = MLP([2, 16, 1], "leaky_relu(0.1)", C_W=[1.0, 2.0])
        >>> MLP.from_json(net.to_json()) == net
        True
        """
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str, activations: Mapping[str, Any] | None = None) -> Self:
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidInput("network", f"malformed JSON ({error})", "an object written by to_json") from error
        return cls.from_dict(data, activations)

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
        return "\n".join(f"{name} = {json.dumps(value)}" for name, value in self.to_dict().items())

    @classmethod
    def from_toml(cls, text: str, activations: Mapping[str, Any] | None = None) -> Self:
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidInput("network", f"malformed TOML ({error})", "a table written by to_toml") from error
        return cls.from_dict(data, activations)
