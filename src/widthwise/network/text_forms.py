"""A network as JSON or TOML, and back."""

from __future__ import annotations

import json
import tomllib
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from widthwise.errors import InvalidInput

if TYPE_CHECKING:
    from typing import Self


class TextForms:
    """Round trips of a specification. An activation of the user's own is stored by name and must be given back."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings."""

    @classmethod
    @abstractmethod
    def from_dict(cls, data: Mapping[str, Any], activations: Mapping[str, Any] | None = None) -> Self:
        """The inverse of `to_dict`."""

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
