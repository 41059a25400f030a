"""Compiled programs are kept between processes, and no left-over of a killed one is trusted."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

CODE = """
import warnings
warnings.simplefilter("error")
import jax
import widthwise as ww
ms = ww.measure(ww.MLP([2, 8, 1], "tanh"), [[1.0, 0.5]], networks=16)
print(float(ms["K"].item()), jax.config.jax_compilation_cache_dir)
"""


def run(code: str = CODE, **settings: str) -> tuple[float, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | settings, check=True, capture_output=True, text=True
    )
    assert "Error" not in done.stderr
    number, place = done.stdout.split()
    return float(number), place


def entries(place: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in place.glob("*/*-cache")}


def test_a_second_process_compiles_nothing_again_and_a_killed_one_leaves_nothing_behind(tmp_path):
    number, place = run(WIDTHWISE_PROGRAMS=str(tmp_path))
    first = entries(tmp_path)
    assert Path(place).parent == tmp_path
    assert any("observe_kernels" in name for name in first)
    assert list(tmp_path.glob("*/running-*")) == []
    assert run(WIDTHWISE_PROGRAMS=str(tmp_path)) == (number, place)
    assert entries(tmp_path) == first
    # as a process leaves it that is killed while it writes: a mark, and half an entry
    victim = next(path for path in Path(place).glob("*-cache") if "observe_kernels" in path.name)
    whole = victim.read_bytes()
    mark = Path(place) / "running-999999999"
    mark.touch()
    os.utime(mark, (time.time() - 5.0,) * 2)
    victim.write_bytes(whole[: len(whole) // 2])
    assert run(WIDTHWISE_PROGRAMS=str(tmp_path)) == (number, place)
    assert not mark.exists()
    assert len(victim.read_bytes()) > 0.9 * len(whole)  # it is compiled anew, with the time that took in it


def test_half_an_entry_without_a_mark_is_compiled_around_without_a_word(tmp_path):
    number, place = run(WIDTHWISE_PROGRAMS=str(tmp_path))
    for path in Path(place).glob("*-cache"):
        path.write_bytes(path.read_bytes()[:100])
    assert run(WIDTHWISE_PROGRAMS=str(tmp_path)) == (number, place)


@pytest.mark.parametrize("settings", [{"WIDTHWISE_PROGRAMS": "off"}, {"WIDTHWISE_PROGRAMS": "/dev/null/nowhere"}])
def test_no_folder_is_no_trouble(settings):
    assert run(**settings)[1] == "None"


def test_a_folder_that_jax_was_given_stays(tmp_path):
    assert run(JAX_COMPILATION_CACHE_DIR=str(tmp_path), WIDTHWISE_PROGRAMS=str(tmp_path / "own"))[1] == str(tmp_path)
    assert not (tmp_path / "own").exists()
    own = CODE.replace(
        "import widthwise", f"jax.config.update('jax_compilation_cache_dir', {str(tmp_path)!r})\nimport widthwise"
    )
    assert run(own, WIDTHWISE_PROGRAMS=str(tmp_path / "own"))[1] == str(tmp_path)


def test_the_oldest_entries_go_first(tmp_path, monkeypatch):
    from widthwise import program_cache

    monkeypatch.setattr(program_cache, "MOST_BYTES", 250)
    for number in range(4):
        path = tmp_path / f"program{number}-cache"
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
    program_cache._remove_oldest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program2-cache", "program3-cache"]
