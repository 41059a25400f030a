"""Names of a package that are imported when first used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def attribute(package: str, homes: Mapping[str, str], name: str) -> Any:
    """The value of `name`, from the module of the package that `homes` says it lives in.

    >>> attribute("widthwise", {"MLP": "network"}, "MLP").__name__
    'MLP'
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(f"{package}.{homes[name]}"), name)
