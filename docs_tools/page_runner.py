"""Runs the code of a documentation page and keeps what it printed and drew, block by block.

The site shows it below each block, and the tests ask it whether the page says what it should.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from widthwise.cli.main import main
from widthwise.plots.style import web_svg

#: Blocks that are run, by their language.
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", flags=re.M | re.S)
#: Files that commands of a page read, by the language of the block that holds them.
_FILES = {"toml": "study.toml", "csv": "points.csv"}
#: Commands write for a terminal of so many columns.
_COLUMNS = "80"


@dataclass(frozen=True)
class Block:
    """A block of code and where it ends in the page, what it printed, and its figures: SVG and words for each."""

    language: str
    code: str
    end: int
    printed: str = ""
    figures: tuple[tuple[str, str], ...] = ()


def blocks_of(text: str) -> list[Block]:
    return [Block(found[1], found[2], found.end()) for found in _BLOCK.finditer(text)]


def run_page(text: str, name: str) -> list[Block]:
    """Every block of a page, run one after the other in a folder of its own; Python blocks share their names."""
    before, names = Path.cwd(), {"__name__": "__main__"}
    plt.close("all")
    with tempfile.TemporaryDirectory() as folder, _environment(COLUMNS=_COLUMNS):
        for language, file in _FILES.items():
            for content in re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S):
                (Path(folder) / file).write_text(content)
        os.chdir(folder)
        try:
            return [_run(block, names, name) for block in blocks_of(text)]
        finally:
            os.chdir(before)


def _run(block: Block, names: dict[str, Any], page: str) -> Block:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if block.language == "python":
            exec(compile(block.code, page, "exec"), names)
        else:
            _run_commands(block.code)
    figures = tuple((alternative(figure), web_svg(figure)) for figure in map(plt.figure, plt.get_fignums()))
    return Block(block.language, block.code, block.end, printed.getvalue(), figures)


def _run_commands(code: str) -> None:
    """Commands of a console block, each shown with what it prints."""
    for line in code.splitlines():
        if line.startswith("$ "):
            status = run_command(line[2:])
            if status:
                raise RuntimeError(f"{line}: status {status}")


def run_command(command: str) -> int:
    """A command in this process; one with a pipe in a shell."""
    words = shlex.split(command)
    if "|" not in words:
        return main(words[1:])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env={**os.environ, "PATH": path})
    print(done.stdout, end="")
    return done.returncode


def alternative(figure: Figure) -> str:
    """What a figure shows, for those who do not see it: titles and axes of its panels."""
    panels = []
    for axis in figure.axes:
        axes = " against ".join(filter(None, (axis.get_ylabel(), axis.get_xlabel())))
        panels.append(": ".join(filter(None, (axis.get_title(loc="left"), axes))))
    return "Figure. " + "; ".join(filter(None, panels)).replace("$", "").replace("\\", "")


@contextlib.contextmanager
def _environment(**values: str):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
