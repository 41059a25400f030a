"""Optional packages: which extra of widthwise brings them, and one line where they are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from widthwise.errors import MissingPackage

#: The modules that each extra brings; a test compares them with what is declared for the installation.
EXTRAS = {
    "plots": ("matplotlib",),
    "explorer": ("matplotlib", "panel", "bokeh"),
    "distributed": ("dask", "distributed", "zarr"),
    "readers": ("sklearn", "optax", "equinox", "flax", "matfree"),
    "torch": ("torch",),
    "labs": ("matplotlib", "sklearn", "optax", "diffrax", "matfree", "mpmath"),
}


def need(module: str, extra: str, purpose: str) -> ModuleType:
    """The module, or an error that names the extra of widthwise that brings it.

    >>> need("math", "readers", "nothing").pi > 3
    True
    """
    with needing(extra, purpose):
        return import_module(module)


def missing_modules(extra: str) -> list[str]:
    """Modules of an extra that are not installed; nothing is imported."""
    return [module for module in EXTRAS[extra] if find_spec(module) is None]


def package_of(module: str) -> str:
    """The name under which a module is installed."""
    return "scikit-learn" if module == "sklearn" else module


def require_extra(extra: str, purpose: str) -> None:
    """Refuse where a package of an extra is not installed."""
    for module in missing_modules(extra):
        raise _missing(module, extra, purpose)


@contextmanager
def needing(extra: str | None, purpose: str) -> Iterator[None]:
    """A block whose imports need an extra, or some extra; a package that is missing is named together with it."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        bringing = [known for known, modules in EXTRAS.items() if module in modules and extra in (known, None)]
        if not bringing:
            raise
        raise _missing(module, bringing[0], purpose) from error


def _missing(module: str, extra: str, purpose: str) -> MissingPackage:
    return MissingPackage(
        f"{purpose} needs the package {package_of(module)}, which is not installed: pip install 'widthwise[{extra}]'"
    )
