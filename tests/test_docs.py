"""Every Python block and every command of README and the documentation runs, page by page; the site builds."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

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


def slow(page):
    """The page of the report runs it as a function too, and `make demo` as a command."""
    return pytest.param(page, marks=pytest.mark.full) if page.stem == "report" else page


@pytest.mark.parametrize("page", [slow(p) for p in PAGES if commands(p)], ids=lambda p: str(p.relative_to(ROOT)))
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


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    outside_code = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ +(.*)$", outside_code, flags=re.M)
    return {slugify(re.sub(r"[`*]|\[|\]\(.*?\)", "", title), "-") for title in titles}


def links(text: str) -> list[str]:
    """Targets of links and images, other than web addresses, outside of code."""
    prose = re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    found = re.findall(r"\]\(([^)\s]+)[^)]*\)", prose)
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def broken_links(page: Path, text: str) -> list[str]:
    wrong = []
    for target in links(text):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_their_anchors_lead_somewhere(page):
    assert broken_links(page, page.read_text()) == []


def test_a_wrong_link_and_a_wrong_anchor_are_found():
    text = "[a](start.md) [b](nothere.md) [c](theory.md#nothere) [d](theory.md#2-infinite-width) `[e](code.md)`"
    assert broken_links(ROOT / "docs" / "index.md", text) == ["nothere.md", "theory.md#nothere"]


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    named = set(re.findall(r"([\w/-]+\.md)", navigation))
    assert named == {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]}


def test_files_that_pages_name_exist():
    for page in PAGES:
        for name in re.findall(r"`((?:docs|benchmarks|examples|src|tests)/[\w./-]+)`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_commands_stand_in_blocks_that_are_run():
    """In a block of another kind a command would not be; only what needs other machines may stand in a text block."""
    for page in PAGES:
        for language in ("", "bash", "sh", "shell", "text"):
            for line in "".join(blocks(page, language)).splitlines():
                words = line.removeprefix("$ ").split()
                assert words[:1] != ["widthwise"] or "tcp://" in line, f"{page.name}: {line}"


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
