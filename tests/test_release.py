"""What a release needs: one version everywhere, a recipe that asks for the same packages, a wheel that installs."""

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import widthwise as ww
from widthwise.cli import doctor
from widthwise.cli.doctor import CheckResult
from widthwise.cli.main import main

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def citation():
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())


def recipe():
    text = (ROOT / "recipe" / "meta.yaml").read_text()
    version = re.search(r'set version = "(.+)"', text).group(1)
    plain = re.sub(r"{%.*%}", "", text).replace("{{ version }}", version).replace("{{ PYTHON }}", "python")
    return yaml.safe_load(plain)


def test_the_version_is_the_same_everywhere():
    latest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M).group(1)
    assert {ww.__version__, str(citation()["version"]), str(recipe()["package"]["version"]), latest} == {ww.__version__}


def test_the_recipe_asks_for_what_the_package_asks_for():
    run = {line.replace(" ", "") for line in recipe()["requirements"]["run"]}
    assert run == {*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"}
    assert recipe()["build"]["entry_points"] == [f"{name} = {run}" for name, run in PROJECT["scripts"].items()]


def test_what_is_cited_has_title_authors_and_year():
    references = citation()["references"]
    assert len(references) >= 5
    assert all(
        one["title"] and one["authors"] and one["year"] and (one.get("doi") or one.get("url")) for one in references
    )


def test_the_paper_has_its_sections_and_every_citation_an_entry():
    text, entries = (ROOT / "paper.md").read_text(), (ROOT / "paper.bib").read_text()
    assert re.findall(r"^# (.+)", text, flags=re.M)[:2] == ["Summary", "Statement of need"]
    assert set(re.findall(r"@(\w+)", text)) == set(re.findall(r"^@\w+{(\w+),", entries, flags=re.M))


def test_paper_and_citation_name_the_same_works_alike():
    entries = (ROOT / "paper.bib").read_text()
    papers = {}
    for entry in re.findall(r"^@\w+{.*$", entries, flags=re.M):
        title = re.search(r" title={(.*?)}, author", entry)[1].replace("{", "").replace("}", "")
        papers[re.search(r"(?:url|doi)={(.*?)}", entry)[1]] = title.casefold(), re.search(r"year={(\d+)}", entry)[1]
    cited = {
        one.get("url") or one["doi"]: (one["title"].casefold(), str(one["year"])) for one in citation()["references"]
    }
    both = papers.keys() & cited.keys()
    assert len(both) >= 9
    assert {where: papers[where] for where in both} == {where: cited[where] for where in both}


def test_the_namespaces_of_the_stability_page_are_those_of_the_package():
    page = (ROOT / "docs" / "stability.md").read_text()
    named = set(re.findall(r"`(\w+)`", re.search(r"in its namespaces (.*?);", page, flags=re.S)[1]))
    stub = (ROOT / "src" / "widthwise" / "__init__.pyi").read_text()
    assert named == {*re.findall(r"^from widthwise import (\w+)", stub, flags=re.M), "labs"}  # which extras bring


def test_the_sections_of_the_change_log_are_in_order():
    known = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for release in re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1:]:
        found = re.findall(r"^### (.+)", release, flags=re.M)
        assert found == [name for name in known if name in found]


def test_bug_reports_have_the_versions_that_matter():
    done = subprocess.run([sys.executable, "-m", "widthwise", "--version"], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[0] == f"widthwise {ww.__version__}"
    assert lines[1].startswith("Python 3.")
    assert {"jax", "jaxlib", "numpy", "xarray", "torch"} <= {line.split()[0] for line in lines[2:]}


def test_the_doctor_finds_nothing_wrong_here(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for check in ("python", "jaxlib", "devices", "x64", "extra labs", "memory", "threads", "files"):
        assert re.search(rf"^ *{check} +(ok|note)\b", out, flags=re.M), check
    assert ("what to do" in out) == bool(re.search(r"^ *\w.* note\b", out, flags=re.M))  # else there is nothing to do
    assert out.endswith("Nothing is wrong.\n")


def test_the_doctor_says_what_is_wrong_and_what_to_do(monkeypatch, capsys):
    version_of = doctor._version_of
    monkeypatch.setattr(doctor, "_version_of", lambda name: {"jaxlib": "0.1", "rich": None}.get(name, version_of(name)))
    monkeypatch.setitem(doctor.EXTRAS, "torch", ("no_such_torch",))
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    monkeypatch.setattr("widthwise.results.store.load", lambda path: 1 / 0)
    assert main(["doctor", "--format", "csv"]) == 1
    rows = {row.split(",")[0]: row for row in capsys.readouterr().out.splitlines()}
    assert rows["rich"] == "rich,wrong,not installed,pip install rich"
    assert rows["jax and jaxlib"].endswith("wrong,of different versions,pip install --upgrade jax jaxlib")
    assert rows["extra torch"] == "extra torch,note,without no_such_torch,pip install 'widthwise[torch]' if wanted"
    assert rows["threads"].startswith("threads,wrong,OMP_NUM_THREADS='many'")
    assert rows["files"].startswith("files,wrong,ZeroDivisionError: division by zero,Report this")


def test_the_doctor_says_in_80_columns_what_to_do_and_only_where_something_is(monkeypatch, capsys):
    def programs():
        yield CheckResult("compiled programs", "kept in /" + 20 * "folder/", "")

    def threads():
        yield CheckResult("threads", "1 of 2 processors", "words " * 12)

    monkeypatch.setattr(doctor, "CHECKS", (doctor.python, programs))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "what to do" not in out
    assert out.count("compiled programs") == 1
    monkeypatch.setattr(doctor, "CHECKS", (doctor.python, programs, threads))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    found, to_do = out.split("what to do")
    assert found.count("python") == out.count("python") == 1  # nothing is to be done about it
    assert re.search(r"^ *threads +note   words", to_do, flags=re.M)
    assert "folder/folder" in found.replace(" ", "").replace("\n", "")
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.full
def test_the_wheel_installs_into_a_new_environment_with_the_core_alone(tmp_path):
    def run(*words):
        return subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=tmp_path)

    venv.create(tmp_path / "new", with_pip=True)
    python = tmp_path / "new" / "bin" / "python"
    built = run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert {"widthwise/py.typed", "widthwise/__init__.pyi"} <= set(zipfile.ZipFile(wheel).namelist())
    installed = run(python, "-m", "pip", "install", "--constraint", ROOT / "constraints.txt", wheel)
    assert installed.returncode == 0, installed.stderr
    program = python.with_name("widthwise")
    done = run(program, "doctor", "--format", "csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install 'widthwise[labs]' if wanted" in done.stdout
    assert run(program, "theory", "--widths", "2,8,1", "--order", "1", "--out", "x.nc").returncode == 0
    for words, extra in (("lab max-margin", "labs"), ("report", "plots"), ("explore", "explorer")):
        done = run(program, *words.split())
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.endswith(f"pip install 'widthwise[{extra}]'\n")
    assert run(program, "lab", "--list").returncode == 0
