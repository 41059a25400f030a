"""Every Python block of README and the documentation runs, in order, page by page; the site builds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks(page):
        exec(compile(code, str(page), "exec"), names)
    assert "nan" not in capsys.readouterr().out


def test_the_errata_print_equal_numbers(capsys):
    names: dict = {}
    for code in blocks(ROOT / "docs" / "errata.md"):
        exec(code, names)
        left, right = capsys.readouterr().out.split("=")
        assert float(left) == pytest.approx(float(right))


def test_commands_in_the_readme_are_targets_of_the_makefile():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^make (\S+)", readme, flags=re.M))
    assert {"demo", "test"} <= named
    assert all(re.search(rf"^{target}:", makefile, flags=re.M) for target in named)


def test_the_site_builds_without_warnings(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "api" / "index.html").exists()


def test_the_demo_runs_and_writes_what_it_says(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**__import__("os").environ, "MPLBACKEND": "Agg"},
    )
    assert done.returncode == 0, done.stderr
    assert "worst pull" in done.stdout
    written = {p.name for p in (tmp_path / "out" / "demo").iterdir()}
    assert written == {"theory.nc", "measured.nc", "comparison.csv", "flow.png", "agreement.png"}
