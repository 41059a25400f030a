"""`widthwise audit`: a model of your own, named as module:function."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from widthwise.cli.options import OutputOptions
from widthwise.cli.output import Records, check_output, emit, require_folder, write_result
from widthwise.errors import InvalidInput, WidthwiseError


def audit(
    model: Annotated[
        str, typer.Argument(help="MODULE:FUNCTION; the function returns the model, or the model and a batch.")
    ],
    output: OutputOptions,
    draws: Annotated[int, typer.Option("--draws", help="Fresh draws of the weights, for the spread of sizes.")] = 2,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if an error or warning is found.")] = False,
) -> int:
    """What is wrong with the initialisation of a model: fans, variances, copies, units, signals and gradients."""
    from widthwise.readers.audit.audit import audit as compute

    page = output.out is not None and output.out.suffix == ".html"
    if output.out is not None and page:
        require_folder("--out", output.out)
    kind = "html" if page else check_output(replace(output, format="csv") if output.format == "netcdf" else output)
    found = compute(*_model_and_batch(model), draws=draws)
    if kind in ("json", "html", "table"):
        write_result({"json": found.json, "html": found.html, "table": found.text}[kind] + "\n", output)
    else:
        columns = ("tensor", "kind", "severity", "message", "remedy")
        emit(Records(columns, [tuple(getattr(one, name) for name in columns) for one in found.findings]), output)
    return int(strict and any(one.severity != "note" for one in found.findings))


def _model_and_batch(name: str) -> tuple[Any, Any]:
    """The model, and the batch or None, that the function MODULE:FUNCTION makes."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise InvalidInput("model", repr(name), "MODULE:FUNCTION, such as my_models:resnet")
    sys.path.insert(0, str(Path.cwd()))
    try:
        make = getattr(import_module(module), function)
        made = make()
    except WidthwiseError:
        raise
    except Exception as error:  # whatever a module of the user may raise
        reason = (str(error).splitlines() or [""])[0]
        got = f"{name!r}, which raises {type(error).__name__}: {reason}"
        raise InvalidInput(
            "model", got, "a function of no arguments in a module that can be imported from here"
        ) from error
    finally:
        sys.path.pop(0)
    return made if isinstance(made, tuple) and len(made) == 2 else (made, None)
