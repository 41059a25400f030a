"""Public names of a package, written once in its stub (`__init__.pyi`) and imported when first used.

Type checkers read the stub; so does the interpreter, here. A line of it is `from widthwise.network import MLP as MLP`,
or `from widthwise import errors as errors` for a module of the package itself.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from widthwise.extras import needing

#: Modules to import with the first public name that is used once a package of another name is loaded.
companions: dict[str, str] = {}


def homes(stub: str) -> dict[str, str]:
    """The module that each name of a stub comes from.

    >>> homes("from widthwise.network import MLP as MLP, SGD as SGD")
    {'MLP': 'widthwise.network', 'SGD': 'widthwise.network'}
    """
    lines = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the stub beside its file.

    >>> import widthwise
    >>> get, names, _ = attach("widthwise", widthwise.__file__)
    >>> get("MLP").__name__, "MLP" in names()
    ('MLP', True)
    """
    home = homes(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    names = sorted(home)

    def attribute(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        own = home[name] == package
        with needing(None, name):
            value = import_module(f"{package}.{name}") if own else getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        for other, companion in companions.items():
            if other in sys.modules:
                import_module(companion)
        return value

    return attribute, lambda: names, names
