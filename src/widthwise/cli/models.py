"""`widthwise audit` and `advise` on a model of your own, named as module:function."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from widthwise.cli.options import OutputOptions
from widthwise.cli.output import Records, check_output, emit, require_folder, write_result
from widthwise.errors import InvalidInput, WidthwiseError, one_line

WeightFile = Annotated[Path | None, typer.Option("--weights", help="Weights for the model: a .pt, .pth or .npz file.")]


def audit(
    model: Annotated[
        str,
        typer.Argument(help="MODULE:FUNCTION, which returns a model, or a model and a batch; or MODULE:MODEL."),
    ],
    output: OutputOptions,
    weights: WeightFile = None,
    draws: Annotated[
        int, typer.Option("--draws", help="Number of fresh draws of the weights, for the spread of signals.")
    ] = 2,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if an error or warning is found.")] = False,
) -> int:
    """Find what is wrong with the initialisation of a model: fans, variances, copies, units, signals, gradients."""
    from widthwise.readers.audit.audit import audit as compute

    kind = page_or_format(output)
    found = compute(*model_and_batch_of(model, weights), draws=draws)
    if kind in ("json", "html", "table"):
        write_result({"json": found.json, "html": found.html, "table": found.text}[kind] + "\n", output)
    else:
        columns = ("tensor", "kind", "severity", "message", "remedy")
        emit(Records(columns, [tuple(getattr(one, name) for name in columns) for one in found.findings]), output)
    return int(strict and any(one.severity != "note" for one in found.findings))


def page_or_format(output: OutputOptions) -> str:
    """The form of a report: "html" for a file of that name, else as asked."""
    if output.out is not None and output.out.suffix == ".html":
        require_folder("--out", output.out)
        return "html"
    return check_output(replace(output, format="csv") if output.format == "netcdf" else output)


def write_model_advice(model_and_batch: tuple[Any, Any], options: dict[str, Any], kind: str, output: OutputOptions):
    """`widthwise advise MODULE:FUNCTION`, or of a file of weights."""
    from widthwise.readers.model_advice import advise

    made = {name: value for name, value in options.items() if value is not None}
    if "base" in made:
        made["base"] = model_and_batch_of(made["base"])[0]
    found = advise(*model_and_batch, **made)
    if kind in ("json", "html", "table"):
        write_result({"json": found.json, "html": found.html, "table": found.text}[kind] + "\n", output)
        return
    columns = ("tensor", "role", "by", "variance", "learning_rate", "epsilon", "weight_decay")
    rows = [(one.name, *(getattr(one, name) for name in columns[1:])) for one in found.parametrisation.tensors]
    emit(Records(columns, rows, (f"verdict: {found.verdict}",)), output)


def model_and_batch_of(name: str, weights: Path | None = None) -> tuple[Any, Any]:
    """The model, and the batch or None, that MODULE:NAME is or, as a function or class of a model, makes."""
    from widthwise.readers.empirical.model_functions import PACKAGES, package_names
    from widthwise.readers.weights import load_into

    module, _, function = name.partition(":")
    if not module or not function:
        raise InvalidInput("model", repr(name), "MODULE:FUNCTION, such as my_models:resnet")
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(import_module(module), function)
        if isinstance(made, type) or not package_names(made) & PACKAGES:  # else the model itself
            made = made()
    except WidthwiseError:
        raise
    except (Exception, SystemExit) as error:  # whatever a module of the user may raise
        got = f"{name!r}, which raises {one_line(error)}"
        raise InvalidInput("model", got, "a model, or a function of no arguments that makes one") from error
    finally:
        sys.path.pop(0)
    made, batch = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    return (made if weights is None else load_into(made, weights)), batch
