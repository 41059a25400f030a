"""The example on real data runs and writes what it says."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.full
def test_the_quick_study_agrees_and_draws(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "diabetes.py"), "--quick"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )
    assert done.returncode == 0, done.stderr
    written = tmp_path / "out" / "diabetes"
    assert {path.name for path in written.iterdir()} == {"diabetes.png", "pulls.csv"}
    with open(written / "pulls.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["theory"] == "to order 1/n"]
    assert len(rows) == 2
    assert all(float(row["worst pull"]) < 4 for row in rows)


def test_the_figure_of_the_page_is_there_and_small():
    figure = ROOT / "docs" / "figures" / "diabetes.png"
    assert 10_000 < figure.stat().st_size < 200_000
    assert "../figures/diabetes.png" in (ROOT / "docs" / "tutorials" / "diabetes.md").read_text()
