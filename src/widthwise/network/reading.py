"""Networks as they come in: objects, tables, JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from widthwise.network.layered import Network
from widthwise.network.mlp import MLP
from widthwise.network.text_forms import parsed_json


def network_from_dict(data: Mapping[str, Any], activations: Mapping[str, Any] | None = None) -> Network:
    """The inverse of `to_dict` for networks of any kind.

    >>> network_from_dict({"widths": [2, 8, 1], "activation": "tanh"}).depth
    2
    """
    kind = Network if isinstance(data, Mapping) and "layers" in data else MLP
    return kind.from_dict(data, activations)


class _AllLinear(dict):
    """Activations of any name, for those who ask about widths alone and have no functions at hand."""

    def get(self, key: Any, default: Any = None) -> str:
        return "linear"


def widths_from_json(text: str) -> tuple[int, ...]:
    """n_0, …, n_L of a network, whatever its activations are.

    >>> widths_from_json('{"widths": [2, 8, 1], "activation": "my own"}')
    (2, 8, 1)
    """
    return network_from_json(text, _AllLinear()).widths


def network_from_json(text: str, activations: Mapping[str, Any] | None = None) -> Network:
    """The inverse of `to_json` for networks of any kind."""
    return network_from_dict(parsed_json(text), activations)
