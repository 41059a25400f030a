"""Labs by name or by the path of a file, and their knobs.

A lab is a file with a docstring (title, an empty line, statement), `SIZES`, `experiment`, and if it likes
`QUICK_SIZES`, `SIZE` (what the size is called) and `draw`. Its knobs are the numbers, and rows of numbers, that it
assigns to names in capitals: a lab with other settings is the same source with other numbers in these places, so that
everything that the file derives from them follows.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from widthwise.errors import InvalidInput, UnknownName, WidthwiseError, one_line
from widthwise.extras import needing
from widthwise.labs.base import Lab

#: Files beside the labs that are none.
SHARED = ("__init__", "base", "catalogue", "claims", "estimates", "runner", "verdict")
LABS = {
    path.stem.replace("_", "-"): path for path in sorted(Path(__file__).parent.glob("*.py")) if path.stem not in SHARED
}
_copies = itertools.count()


def names() -> list[str]:
    """Names of the labs.

    >>> "nngp-limit" in names()
    True
    """
    return list(LABS)


def get_lab(name: str | Path | Lab, settings: Mapping[str, Any] | None = None) -> Lab:
    """A lab by its name, written with - or _, or by the path of its file; other settings than its own if given.

    Parameters
    ----------
    name : one of `names()`, a path that ends in .py, or a Lab, of which only sizes can be set.
    settings : values of knobs by name, in any case and with - or _: numbers, or rows of as many numbers as one likes.
        "sizes", or the name of the lab's size, sets the sizes of full and quick runs.

    Examples
    --------
    >>> get_lab("marchenko_pastur").title
    'spectra of sample covariances and their finite-size corrections'
    >>> get_lab("marchenko-pastur", {"points": 30}).sizes
    (30,)
    """
    settings = {_knob(key): value for key, value in (settings or {}).items()}
    if isinstance(name, Lab):
        return _resized(name, settings)
    source = _source_of(name)
    own = LABS.get(source.stem.replace("_", "-")) == source
    lab_name = source.stem.replace("_", "-")
    sizes = {"SIZES", *([_knob(declared)] if (declared := _declared_size(source)) else ())}
    knobs = {key: value for key, value in settings.items() if key not in sizes}
    with needing("labs", f"the lab {lab_name}"):
        file = import_module(f"widthwise.labs.{source.stem}") if own and not knobs else _lab_module(source, knobs)
    title, _, statement = (file.__doc__ or lab_name).partition("\n\n")
    optional = {"quick_sizes": "QUICK_SIZES", "draw": "draw", "size_name": "SIZE"}
    given = {key: getattr(file, value) for key, value in optional.items() if hasattr(file, value)}
    lab = Lab(lab_name, title.strip(), " ".join(statement.split()), file.experiment, file.SIZES, **given)
    return _resized(lab, {key: value for key, value in settings.items() if key in sizes})


def title_of(name: str) -> str:
    """The title of a lab, read from its file: what the lab needs is not imported.

    >>> title_of("marchenko-pastur") == get_lab("marchenko-pastur").title
    True
    """
    return _words_of(name)[0]


def statement_of(name: str) -> str:
    """What a lab claims, read from its file.

    >>> statement_of("marchenko-pastur") == get_lab("marchenko-pastur").statement
    True
    """
    return _words_of(name)[1]


def _words_of(name: str) -> tuple[str, str]:
    title, _, statement = (ast.get_docstring(_parsed(_source_of(name))) or "").partition("\n\n")
    return title.strip(), " ".join(statement.split())


def knobs(name: str | Path) -> dict[str, Any]:
    """The knobs of a lab in lower case, and what they are set to.

    >>> knobs("marchenko-pastur")["matrices"]
    600
    """
    return {knob.lower(): slot.value for knob, slot in _slots(_parsed(_source_of(name))).items()}


def _knob(name: str) -> str:
    return name.strip().replace("-", "_").upper()


def _source_of(name: str | Path) -> Path:
    """The file of a lab."""
    if str(name).endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise InvalidInput("lab", f"'{name}'", "the path of a Python file", "Check the path.")
        return path.resolve()
    known = LABS.get(str(name).replace("_", "-"))
    if known is None:
        raise UnknownName.of("lab", str(name), names())
    return known


def _resized(lab: Lab, settings: Mapping[str, Any]) -> Lab:
    for key, value in settings.items():
        if key not in ("SIZES", _knob(lab.size_name)):
            raise InvalidInput("settings", key.lower(), f"sizes or {lab.size_name}: the only knob of this lab")
        sizes = tuple(value) if isinstance(value, tuple | list) else (value,)
        lab = replace(lab, sizes=sizes, quick_sizes=sizes)
    return lab


@dataclass(frozen=True)
class _Slot:
    """Where a literal stands in the syntax tree: a field of a node, or an entry of a list; and its value."""

    holder: Any
    place: Any
    value: Any

    def fill(self, value: Any) -> None:
        new = ast.parse(repr(value), mode="eval").body
        if isinstance(self.holder, list):
            self.holder[self.place] = new
        else:
            setattr(self.holder, self.place, new)


def _parsed(source: Path) -> ast.Module:
    try:
        return ast.parse(source.read_text(encoding="utf-8"), filename=str(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two of many brackets
        raise InvalidInput("lab", f"'{source.name}' ({error})", "a file of valid Python") from None


def _assigned(tree: ast.Module) -> Iterator[tuple[str, _Slot]]:
    """Literals that are assigned to names in capitals, `A = 1` and `A, B = 1, (2, 3)`."""
    for node in tree.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        slots: list[tuple[ast.expr, Any, Any, ast.expr]] = [(target, node, "value", value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = enumerate(zip(target.elts, value.elts, strict=True))
            slots = [(name, value.elts, place, part) for place, (name, part) in pairs]
        for name, holder, place, part in slots:
            if isinstance(name, ast.Name) and name.id.isupper():
                with suppress(ValueError):
                    yield name.id, _Slot(holder, place, ast.literal_eval(part))


def _slots(tree: ast.Module) -> dict[str, _Slot]:
    """The knobs: numbers and rows of numbers, but for the sizes."""
    slots = {name: slot for name, slot in _assigned(tree) if name not in ("SIZES", "QUICK_SIZES")}
    return {name: slot for name, slot in slots.items() if _numbers(slot.value)}


def _numbers(value: Any) -> bool:
    row = value if isinstance(value, tuple) else (value,)
    return bool(row) and all(type(number) in (int, float) for number in row)


def _declared_size(source: Path) -> str | None:
    """The string that a file assigns to SIZE."""
    return next((slot.value for name, slot in _assigned(_parsed(source)) if name == "SIZE"), None)


def _lab_module(source: Path, settings: Mapping[str, Any]) -> ModuleType:
    """A module of its own from a lab's file, with other numbers in the places of its knobs."""
    tree = _parsed(source)
    slots = _slots(tree)
    for key, value in settings.items():
        if key not in slots:
            raise UnknownName.of("knob", key.lower(), sorted(slot.lower() for slot in slots))
        _check_knob(key, value, slots[key].value)
        slots[key].fill(tuple(value) if isinstance(value, list) else value)
    module = ModuleType(f"widthwise_lab_{source.stem}_{next(_copies)}", ast.get_docstring(tree))
    module.__file__ = str(source)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(ast.fix_missing_locations(tree), str(source), "exec"), module.__dict__)
    except WidthwiseError:
        raise
    except (Exception, SystemExit) as error:  # whatever a file of the user may raise
        got = f"'{source.name}', which raises {one_line(error)}"
        raise InvalidInput("lab", got, "a file that can be imported") from error
    missing = [name for name in ("SIZES", "experiment") if not hasattr(module, name)]
    if missing:
        raise InvalidInput("lab", f"'{source.name}' without {' and '.join(missing)}", "a file that defines them")
    return module


def _check_knob(key: str, value: Any, usual: Any) -> None:
    """A number for a number, whole for whole; a row for a row."""
    row = isinstance(usual, tuple)
    given = value if isinstance(value, tuple | list) else (value,)
    kinds = (int,) if all(type(number) is int for number in (usual if row else (usual,))) else (int, float)
    if isinstance(value, tuple | list) != row or not given or not all(type(number) in kinds for number in given):
        what = "whole number" if kinds == (int,) else "number"
        raise InvalidInput(
            key.lower(), repr(value), f"{'a row of ' + what + 's' if row else 'a ' + what}, as {usual!r}"
        )
