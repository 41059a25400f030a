"""Figures beside the numbers of a command."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from widthwise.cli.options import FigureOptions, OutputOptions
from widthwise.cli.output import remark, require_folder
from widthwise.errors import InvalidInput, MissingPackage

SUFFIXES = (".svg", ".pdf", ".png")


def check_figure(figures: FigureOptions) -> None:
    """Refuse before anything is computed."""
    if figures.figure is None:
        return
    if figures.figure.suffix not in SUFFIXES:
        raise InvalidInput("--figure", f"'{figures.figure}'", "a name ending in " + ", ".join(SUFFIXES))
    require_folder("--figure", figures.figure)
    require_extra("--figure", "matplotlib", "plots")


def require_extra(argument: str, module: str, extra: str) -> None:
    """Say which extra to install where a module is missing."""
    if find_spec(module) is None:
        raise MissingPackage(f"{argument}: needs {module}, which is not installed: pip install 'widthwise[{extra}]'")


def draw(figures: FigureOptions, output: OutputOptions, name: str, *arguments: Any) -> None:
    """Draw the figure `plot_NAME` into the file, if one is named."""
    if figures.figure is None:
        return
    import_module("matplotlib").use("Agg")
    plots = import_module("widthwise.plots")
    plots.save_figure(getattr(plots, f"plot_{name}")(*arguments), figures.figure)
    remark(output, f"written: {figures.figure}")
