"""Imports go one way, and the numerical core needs nothing but jax, numpy and scipy: the table in CONTRIBUTING.md."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "widthwise"


class Layer(NamedTuple):
    rank: int
    parts: set[str]
    edge_files: set[str]


def read_table(text: str) -> dict[str, Layer]:
    """Folders in the order of the table's rows, with the parts they belong to and the files at the core's edge."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    return {
        name: Layer(rank, set(parts.split(", ")) - {""}, set(re.findall(r"`(.+?)`", edge)))
        for rank, (names, _, parts, edge) in enumerate(rows)
        for name in re.findall(r"`(.+?)`", names)
    }


LAYERS = read_table((ROOT / "CONTRIBUTING.md").read_text())
CORE_MAY_USE = {"jax", "numpy", "scipy"}
#: What files at the edge of the core may use of the package, to turn arrays into Datasets.
EDGE_MODULES = {"results", "progress"}
#: The one file that talks to a cluster.
CLUSTER_FILE, CLUSTER_MODULES = "engines.py", {"dask", "distributed", "cloudpickle"}


def part(name: str) -> set[str]:
    return {folder for folder, layer in LAYERS.items() if name in layer.parts}


def imported_modules(source: str) -> list[str]:
    """Every module that a file imports, wherever the statement stands: in functions and under TYPE_CHECKING too."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found += [base] if node.module not in (None, "widthwise") else [f"widthwise.{a.name}" for a in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in (
            "import_module",
            "__import__",
        ):
            found += [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return found


def violations(package: str, file: str, source: str) -> list[str]:
    problems = []
    rank, parts, edge_files = LAYERS[package]
    inner = "core" in parts and file not in edge_files
    for module in imported_modules(source):
        top, _, rest = module.partition(".")
        other = rest.partition(".")[0]
        if module.startswith("."):
            problems.append(f"{package}/{file}: relative import {module}")
        elif top == "widthwise":
            if LAYERS[other].rank > rank:
                problems.append(f"{package}/{file} imports {other}, which comes later")
            if {"theory", "experiments"} <= parts | LAYERS[other].parts:
                problems.append(f"{package}/{file} imports {other}: theory and experiments meet in comparison only")
            if inner and other in EDGE_MODULES:
                problems.append(f"{package}/{file} imports {other}; in the core only an edge file may")
        elif file == CLUSTER_FILE and top in CLUSTER_MODULES:
            continue
        elif inner and top not in CORE_MAY_USE | sys.stdlib_module_names:
            problems.append(f"{package}/{file} imports {top}, which a bare accelerator machine does not have")
    return problems


def source_files() -> list[Path]:
    """Modules and stubs; those of the package itself name modules of every layer."""
    found = sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.pyi")])
    return [path for path in found if path.parent != SOURCE or path.stem != "__init__"]


def folder(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].partition(".")[0]


def test_imports_go_down_the_list_only():
    assert [v for path in source_files() for v in violations(folder(path), path.name, path.read_text())] == []


def test_every_package_has_its_place():
    assert {folder(path) for path in source_files()} == set(LAYERS)


def test_the_table_names_files_that_exist_and_its_core_is_not_empty():
    for name, layer in LAYERS.items():
        assert layer.edge_files <= {path.name for path in (SOURCE / name).rglob("*.py")}
    assert part("core") > part("theory") == {"flow", "criticality", "inference"}
    assert part("experiments") == {"experiments"}


@pytest.mark.parametrize(("loaded", "kept_out"), [("theory", "experiments"), ("experiments", "theory")])
def test_theory_and_experiments_do_not_load_each_other(loaded, kept_out):
    """At run time too, by whatever way: importing every module of one loads no module of the other."""
    files = [path for path in source_files() if folder(path) in part(loaded) and path.suffix == ".py"]
    names = [".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in files]
    code = f"""
import importlib, sys
for name in {names}:
    importlib.import_module(name.removesuffix(".__init__"))
print([name for name in sys.modules if name.startswith({tuple(f"widthwise.{p}" for p in part(kept_out))})])
"""
    assert len(names) > 20
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("gaussian", "from widthwise.flow import kernel_flow"),
        ("network", "def late():\n    from widthwise import results\n"),
        ("flow", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import widthwise.inference"),
        ("activations", "def late():\n    return __import__('widthwise.network')"),
        ("flow", "import importlib\nimportlib.import_module('widthwise.plots')"),
        ("inference", "from widthwise.experiments.sampler import observe"),
        ("experiments", "from widthwise.flow import kernel_flow"),
        ("gaussian", "import xarray"),
        ("flow", "from widthwise.progress import DelayedProgress"),
        ("flow", "from ..inference import predict"),
    ],
)
def test_a_back_edge_is_found_wherever_it_hides(package, source):
    assert violations(package, "somewhere.py", source)
