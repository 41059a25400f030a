"""Every Python block and every command of README and the documentation runs, page by page; the site builds."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from widthwise.cli.examples import EXAMPLES
from widthwise.cli.main import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def commands(page: Path) -> list[str]:
    """Lines of console blocks that begin with a dollar sign."""
    return [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks(page):
        exec(compile(code, str(page), "exec"), names)
    assert "nan" not in capsys.readouterr().out


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_commands_of_a_page_run(page, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, language in (("study.toml", "toml"), ("points.csv", "csv")):
        for text in blocks(page, language):
            Path(name).write_text(text)
    for command in commands(page):
        assert execute(command) == 0, command + "\n" + capsys.readouterr().err
        out, err = capsys.readouterr()
        assert out.strip() or "written: " in err or "--quiet" in command, command


def execute(command: str) -> int:
    """A command in this process; one with a pipe in a shell."""
    words = shlex.split(command)
    if "|" not in words:
        assert words[0] == "widthwise"
        return main(words[1:])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env={**os.environ, "PATH": path})
    print(done.stdout)
    return done.returncode if not done.stderr else 1


def test_the_examples_of_every_help_text_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    elsewhere = {command for page in PAGES for command in commands(page)}
    for command, lines in EXAMPLES.items():
        assert main([command, "--help"]) == 0
        shown = "".join(capsys.readouterr().out.split())
        for line in lines:
            assert "".join(line.split()) in shown
            if line in elsewhere:
                continue  # runs with its page
            assert execute(line) == 0, line + "\n" + capsys.readouterr().err


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


@pytest.mark.full
def test_the_demo_runs_and_writes_what_it_says(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )
    assert done.returncode == 0, done.stderr
    assert "worst pull" in done.stdout
    assert re.search(r"^ +V +4 ", done.stdout, flags=re.M)
    written = {p.name for p in (tmp_path / "out" / "demo").iterdir()}
    assert written == {f"{name}.nc" for name in ("theory", "measured", "predicted", "trained")} | {
        "comparison.csv",
        "report.html",
    }
