"""Optional packages: imported when they are needed, with a word on what to install."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from widthwise.errors import MissingPackage


def need(module: str, extra: str, purpose: str) -> ModuleType:
    """The module, or an error that names the extra of widthwise that brings it.

    >>> need("math", "interop", "nothing").pi > 3
    True
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = {"sklearn": "scikit-learn"}.get(module.partition(".")[0], module.partition(".")[0])
        raise MissingPackage(
            f"{purpose} needs the package {package}, which is not installed; install it with "
            f"pip install 'widthwise[{extra}]'"
        ) from error
