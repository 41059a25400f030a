"""Without an optional package: one line that names it and the extra that brings it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from widthwise import extras

ROOT = Path(__file__).parent.parent
#: A program in which no optional package can be imported.
BARE = f"""
import sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *where):
        hidden = {sorted({m for some in extras.EXTRAS.values() for m in some})!r}
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, *where)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""


def declared() -> dict[str, set[str]]:
    """The packages of every extra in pyproject.toml, those of other extras that it names with it."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def packages(extra: str) -> set[str]:
        found = set()
        for line in listed[extra]:
            others = re.fullmatch(r"widthwise\[(.+)\]", line)
            names = (
                [packages(one) for one in others.group(1).split(",")] if others else [{re.split(r"[\[><=]", line)[0]}]
            )
            found = found.union(*names)
        return found

    return {extra: packages(extra) for extra in listed}


def test_the_extras_are_those_of_the_installation_and_all_is_all_of_them():
    listed = declared()
    for extra, modules in extras.EXTRAS.items():
        assert {extras.package_of(module) for module in modules} == listed[extra]
    assert listed["all"] == set().union(*(listed[extra] for extra in extras.EXTRAS))
    assert not any("==" in line for line in (ROOT / "pyproject.toml").read_text().splitlines() if "torch" in line)


def test_a_program_without_any_extra_names_the_right_one_in_one_line():
    code = (
        BARE
        + """
from widthwise.cli.main import main
import widthwise as ww
assert main(["lab", "--list", "--quiet"]) == 0
for words in ("lab max-margin", "lab all", "report", "explore", "theory --figure x.svg", "theory --data digits",
              "measure --engine tcp://127.0.0.1:1"):
    print(words, file=sys.stderr)
    assert main(words.split()) == 2
for name in ("plots.plot_flow", "NTKRegressor", "explorer.serve"):
    print(name, file=sys.stderr)
    try:
        home, _, last = name.rpartition(".")
        getattr(__import__("importlib").import_module(f"widthwise.{home}") if home else ww, last)
    except ww.errors.MissingPackage as error:
        print(error, file=sys.stderr)
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    said = {lines[i]: lines[i + 1] for i in range(0, len(lines), 2)}
    assert "max-margin" in done.stdout
    for asked, extra in {
        "lab max-margin": "labs", "lab all": "labs", "report": "plots", "explore": "explorer",
        "theory --figure x.svg": "plots", "theory --data digits": "readers",
        "measure --engine tcp://127.0.0.1:1": "distributed", "plots.plot_flow": "plots", "NTKRegressor": "readers",
        "explorer.serve": "explorer",
    }.items():  # fmt: skip
        assert re.search(
            rf"needs the package \S+, which is not installed: pip install 'widthwise\[{extra}\]'$", said[asked]
        )


def test_a_package_that_is_there_and_broken_is_not_called_missing():
    with pytest.raises(ModuleNotFoundError, match="own trouble"), extras.needing("labs", "a lab"):
        raise ModuleNotFoundError("own trouble", name="another_module")
