"""A top-level name means one thing in the package."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "widthwise"
#: Commands are called like the functions they are doors to.
COMMANDS = {
    "advise",
    "audit",
    "compare",
    "couplings",
    "critical",
    "equalise",
    "measure",
    "posterior",
    "predict",
    "theory",
}
COMMANDS |= {"train", "trained_kernel"}
#: What every lab has: a lab's own settings and parts play the same role in each file.
LAB_PARTS = {"LAB", "draw", "experiment", "network"}


def top_level_names(path: Path) -> set[str]:
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in found if name != "_" and not name.startswith("__")}


def defined_twice(homes: dict[str, set[str]]) -> dict[str, set[str]]:
    """Names with several homes, but for commands, the parts of labs, and constants that labs alone have."""

    def is_shared(name: str, places: set[str]) -> bool:
        labs = {place for place in places if place.startswith("labs/")}
        commands = {place for place in places if place.startswith("cli/")}
        # names of neural-tangents are those of the package too, or of activations
        alone = len({place for place in places if not place.startswith("stax/")}) <= 1
        return not (
            alone
            or (name in COMMANDS and len(places - commands) <= 1)
            or ((name in LAB_PARTS or name.isupper()) and len(places - labs) <= (name in LAB_PARTS))
        )

    return {name: places for name, places in homes.items() if is_shared(name, places)}


def test_no_name_is_defined_in_two_modules():
    homes = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for name in top_level_names(path):
            homes[name].add(str(path.relative_to(SOURCE)))
    assert defined_twice(homes) == {}


def test_a_second_home_is_found():
    assert set(defined_twice({"Moments": {"a.py", "b.py"}, "train": {"cli/x.py", "a.py", "b.py"}})) == {
        "Moments",
        "train",
    }
    assert set(defined_twice({"NETWORKS": {"labs/a.py", "experiments/b.py"}, "_run": {"labs/a.py", "labs/b.py"}})) == {
        "NETWORKS",
        "_run",
    }
    assert not defined_twice({"train": {"cli/x.py", "a.py"}, "LAB": {"labs/a.py", "labs/b.py"}, "X": {"a.py"}})
