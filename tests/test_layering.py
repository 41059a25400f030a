"""Imports go one way, and the numerical core needs nothing but jax, numpy and scipy."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "widthwise"

#: Later packages may import earlier ones, never the other way round.
LAYERS = (
    "version errors lazy precision devices memory progress text decompositions",
    "activations",
    "network",
    "gaussian",
    "flow",
    "results",
    "criticality",
    "inference",
    "experiments",
    "comparison",
    "study",
    "special",
    "exact",
    "plots",
    "labs",
    "readers",
    "report",
    "explorer",
    "cli",
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names.split()}
THEORY = {"flow", "criticality", "inference"}
CORE = {"activations", "network", "gaussian", "flow", "criticality", "inference", "experiments"}
CORE_MAY_USE = {"jax", "numpy", "scipy"}
#: The files of the core that turn arrays into Datasets.
EDGE_FILES = {"evidence_grid.py", "measure.py", "observables.py", "phase_diagram.py", "predict.py", "train.py"}
EDGE_MODULES = {"results", "progress"}
#: The one file that talks to a cluster.
CLUSTER_FILE, CLUSTER_MODULES = "engine_dask.py", {"dask", "distributed", "cloudpickle"}


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
    for module in imported_modules(source):
        if module.startswith("."):
            problems.append(f"{package}/{file}: relative import {module}")
            continue
        top, _, rest = module.partition(".")
        if top == "widthwise":
            other = rest.partition(".")[0]
            if RANK[other] > RANK[package]:
                problems.append(f"{package}/{file} imports {other}, which comes later")
            if (package in THEORY and other == "experiments") or (package == "experiments" and other in THEORY):
                problems.append(f"{package}/{file} imports {other}: theory and experiments meet in comparison only")
            if package in CORE and other in EDGE_MODULES and file not in EDGE_FILES:
                problems.append(f"{package}/{file} imports {other}; in the core only an edge file may")
        elif file == CLUSTER_FILE and top in CLUSTER_MODULES:
            continue
        elif package in CORE and file not in EDGE_FILES and top not in CORE_MAY_USE | sys.stdlib_module_names:
            problems.append(f"{package}/{file} imports {top}, which a bare accelerator machine does not have")
    return problems


def source_files() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down_the_list_only(path):
    package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert violations(package, path.name, path.read_text()) == []


def test_every_package_has_its_place():
    assert {p.relative_to(SOURCE).parts[0].removesuffix(".py") for p in source_files()} <= set(RANK)


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
