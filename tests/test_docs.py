"""Every Python block and every command of README and the documentation runs, page by page; the site builds."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from doctests import fenced
from markdown.extensions.toc import slugify
from mathematics import typeset
from notebooks import page_of
from page_runner import blocks_of, run_command, run_page

from widthwise.cli.examples import EXAMPLES
from widthwise.cli.main import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
#: Pages that must show something: everything a newcomer follows.
TUTORIALS = [ROOT / "docs" / f"{name}.md" for name in ("start", "principles", "gallery")]
TUTORIALS += sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def blocks(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def commands(page: Path) -> list[str]:
    """Lines of console blocks that begin with a dollar sign."""
    return [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]


def slow(page):
    """The command of the page of the report runs as a function too, and by `make demo`."""
    return pytest.param(page, marks=pytest.mark.full) if page.stem == "report" else page


@pytest.mark.parametrize(
    "page", [slow(p) for p in PAGES if blocks_of(p.read_text())], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_code_of_a_page_runs_and_a_tutorial_prints_and_draws(page):
    done = run_page(page.read_text(), page.name)
    printed = "".join(block.printed for block in done)
    assert not re.search(r"\bnan\b", printed)
    # a command that writes a file says so elsewhere
    assert all(b.printed.strip() or "--out" in b.code or "--quiet" in b.code for b in done if b.language == "console")
    if page in TUTORIALS:
        assert printed.strip() or page.stem in ("principles", "gallery")
        assert any(block.figures for block in done) or "](../figures/" in page.read_text()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_prints_and_draws_within_ten_seconds(notebook):
    content = json.loads(notebook.read_text())
    start = time.process_time()
    done = run_page(page_of(content, notebook.name), notebook.name)
    assert time.process_time() - start < 10.0
    assert any(block.printed for block in done)
    assert any(block.figures for block in done)
    assert all(not cell.get("outputs") for cell in content["cells"])  # what it prints is made when the site is built


def test_what_code_prints_and_draws_stands_below_it():
    text = "Words\n\n```python\nprint(6 * 7)\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.ylabel('height')\n```\n"
    (block,) = run_page(text, "page")
    assert block.printed == "42\n"
    ((words, svg),) = block.figures
    assert words == "Figure. height"
    assert svg.startswith("<?xml")
    assert text[: block.end].endswith("```")
    assert run_page(text.replace("42", "1/0").replace("6 * 7", "1"), "page")[0].printed == "1\n"
    with pytest.raises(ZeroDivisionError):
        run_page("```python\n1 / 0\n```\n", "page")


def test_formulas_are_numbered_by_section_and_unknown_ones_stop_the_build():
    page = '<h2 id="x">§4 Flow</h2><div class="arithmatex">\\[K_{ab}\\]</div><p><span class="arithmatex">\\(V\\)</span></p>'
    made = typeset(page + page.replace("§4", "§5"))
    assert re.findall(r'id="(eq-[\d-]+)"', made) == ["eq-4-1", "eq-5-1"]
    assert made.count("<math") == 4
    with pytest.raises(ValueError, match="nosuchcommand"):
        typeset(r'<span class="arithmatex">\(\nosuchcommand x\)</span>')


def test_no_formula_of_the_theory_page_is_left_untypeset():
    text = re.sub(
        r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|\$\$.*?\$\$|\$[^$]+\$",
        "",
        (ROOT / "docs" / "theory.md").read_text(),
        flags=re.M | re.S,
    )
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert not re.findall(r".*[α-ωΘΣΔΩΠ⟨⟩√²³½¼∂≈≤≥=∝_^⊥∥ĤĜ].*|^    \S.*", prose, flags=re.M)


def test_examples_in_docstrings_become_code_and_not_quotations():
    assert fenced("Words.\n\n>>> 1 + 1\n2\n\nMore of K*.") == "Words.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore of K\\*."


def test_the_examples_of_every_help_text_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    made = "def {}(): return nn.Sequential(nn.Linear(4, {n}), nn.Tanh(), nn.Linear({n}, 1))\n"
    own = "from torch import nn\n" + made.format("small", n=32) + made.format("large", n=128)
    (tmp_path / "my_models.py").write_text(own)
    elsewhere = {command for page in PAGES for command in commands(page)}
    for command, lines in EXAMPLES.items():
        assert main([command, "--help"]) == 0
        shown = "".join(capsys.readouterr().out.split())
        for line in lines:
            assert "".join(line.split()) in shown
            if line in elsewhere:
                continue  # runs with its page
            assert run_command(line) == 0, line + "\n" + capsys.readouterr().err


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
    notebooks = {f"notebooks/{notebook.stem}.md" for notebook in NOTEBOOKS}
    assert named == {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]} | notebooks


def test_files_that_pages_name_exist():
    for page in PAGES:
        for name in re.findall(r"`((?:docs|benchmarks|examples|src|tests)/[\w./-]+)`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def missing_sections(text: str, known: set[str]) -> set[str]:
    """Sections of the theory page that a text names and that are not there."""
    return set(re.findall(r"§(\d+)", text)) - known


def test_sections_that_anything_names_exist():
    theory = (ROOT / "docs" / "theory.md").read_text()
    known = set(re.findall(r"^## §(\d+)", theory, flags=re.M))
    sources = [
        path for folder in ("src", "examples", "benchmarks", "docs_tools") for path in (ROOT / folder).rglob("*.py")
    ]
    for path in [*PAGES, *sources, *NOTEBOOKS]:
        assert missing_sections(path.read_text(), known) == set(), path
    assert missing_sections("theory §4 and §99", known) == {"99"}


def test_commands_stand_in_blocks_that_are_run():
    """In a block of another kind a command would not be; only what needs other machines may stand in a text block."""
    for page in PAGES:
        for language in ("", "bash", "sh", "shell", "text"):
            for line in "".join(blocks(page, language)).splitlines():
                words = line.removeprefix("$ ").split()
                assert words[:1] != ["widthwise"] or "tcp://" in line, f"{page.name}: {line}"


def test_the_site_builds_without_warnings(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    # the code of its pages is run above
    environment = {**os.environ, "WIDTHWISE_DOCS": "text"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    api = (site / "api" / "index.html").read_text()
    assert '<span class="gp">&gt;&gt;&gt; </span>' in api  # examples are code
    assert not re.search(r"<blockquote>\s*<blockquote>", api)  # and not quotations
    assert "{ .md-button }" not in (site / "index.html").read_text()
    assert 'id="eq-4-3"' in (site / "theory" / "index.html").read_text()
    assert "<code>docs/notebooks/start.ipynb</code>" in (site / "notebooks" / "start" / "index.html").read_text()
    assert (
        "Edit this page: <code>docs/tutorials/dask.md</code>"
        in (site / "tutorials" / "dask" / "index.html").read_text()
    )
    assert (site / "search" / "search_index.json").exists()


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
