"""Full disks, closed streams, small alphabets, homes that cannot be written: one line, and nothing half written."""

import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import xarray as xr

import widthwise as ww
from widthwise.cli.main import main
from widthwise.errors import NotWritten
from widthwise.files import replacing, write_text

PROGRAM = [sys.executable, "-m", "widthwise"]
CRITICAL = [*PROGRAM, "critical", "tanh", "--format", "csv"]


@contextmanager
def full_disk(room):
    """No file may grow beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("room", [0, 10, 3000, 6000])
def test_a_full_disk_leaves_the_old_netcdf_file_and_nothing_else(room, tmp_path):
    """HDF5 itself would end the process with a segmentation fault."""
    path, dataset = tmp_path / "x.nc", xr.Dataset({"a": ("x", np.arange(900.0))})
    path.write_text("old")
    with full_disk(room), pytest.raises(NotWritten, match=r"x.nc' could not be written \(File too large\); what was"):
        ww.save(dataset, path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.nc"]


REPORT = ["report", "--widths", "2,4,1", "--activation", "step", "--networks", "0", "--trained", "0", "--quiet"]


@pytest.mark.parametrize(
    ("command", "name", "start"),
    [
        (["critical", "tanh"], "x.csv", "activation,C_b"),
        pytest.param(REPORT, "x.html", "<!doctype html>", marks=pytest.mark.full),
    ],
)
def test_a_result_that_finds_no_room_takes_one_line_and_is_kept_elsewhere(
    command, name, start, tmp_path, monkeypatch, capsys
):
    room, full = tmp_path / "room", tmp_path / "full"
    room.mkdir(), full.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(room))
    (full / name).write_text("old")
    if os.getuid():
        full.chmod(0o500)
    # the folder is there when the command begins and cannot be written to when it ends
    monkeypatch.setattr("widthwise.files.os.replace", lambda part, to: _replace_but_in(full, part, to))
    monkeypatch.setattr("widthwise.cli.output.os.access", lambda *asked: True)
    assert main([*command, "--out", str(full / name)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"{name}' could not be written (No space left on device; the result is in '" in err
    (kept,) = room.rglob(name)
    assert kept.read_text().startswith(start)
    assert (full / name).read_text() == "old"
    assert os.listdir(full) == [name]


def _replace_but_in(full, part, to, replace=os.replace):
    if part.parent == full:
        raise OSError(28, os.strerror(28))
    replace(part, to)


def test_left_overs_of_killed_processes_are_removed_and_those_of_living_ones_are_not(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    others = f".x.csv.{os.getppid()}.part", f".y.csv.{ended.pid}.part"
    for name in (f".x.csv.{ended.pid}.part", *others):
        (tmp_path / name).touch()
    write_text(tmp_path / "x.csv", "1")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "x.csv"])


def test_links_stay_links_and_devices_stay_devices(tmp_path):
    (tmp_path / "link.csv").symlink_to(tmp_path / "file.csv")
    write_text(tmp_path / "link.csv", "1")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "file.csv").read_text() == "1"
    write_text(os.devnull, "1")
    assert not os.path.isfile(os.devnull)


def test_a_process_killed_while_it_writes_leaves_the_old_file(tmp_path):
    code = f"""
import os, signal
from widthwise.files import replacing
with replacing({str(tmp_path / "x.csv")!r}) as part:
    part.write_text("new")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "x.csv").write_text("old")
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert (tmp_path / "x.csv").read_text() == "old"
    with replacing(tmp_path / "x.csv") as part:
        part.write_text("newer")
    assert os.listdir(tmp_path) == ["x.csv"]


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        (
            ">&-",
            "got 'Bad file descriptor' from the system; expected a stream that takes the result. Add --out FILE.\n",
        ),
        (">/dev/full", "got 'No space left on device' from the system"),
        (">&- --out x.csv", "written: x.csv\n"),
        ("--bad 2>&-", ""),
        ("--bad 2>/dev/full", ""),
        ("--format table 2>/dev/full >x.txt", ""),
        ("2>&- <&- >x.csv", ""),
        ("| head -n 1 >x.csv", ""),
    ],
)
def test_streams_that_are_closed_or_full(shell, said, tmp_path):
    done = subprocess.run(" ".join([*CRITICAL, shell]), shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert said in done.stderr
    assert done.stderr.count("\n") == bool(said)
    assert done.returncode == (2 if "standard output" in done.stderr or "--bad" in shell else 0)
    if "x.csv" in shell:
        assert (tmp_path / "x.csv").read_text().startswith("activation,C_b")


@pytest.mark.parametrize("platform", ["bogus", "cuda"])
def test_a_platform_that_jax_does_not_have_takes_one_line(platform, tmp_path):
    """A traceback of RuntimeError or, for cuda, of an AssertionError without a word."""
    asked = os.environ | {"JAX_PLATFORMS": platform}
    words = [*PROGRAM, "theory", "--widths", "2,8,1"]
    done = subprocess.run(words, env=asked, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"jax has no device to compute on: JAX_PLATFORMS={platform} (" in done.stderr
    done = subprocess.run([*PROGRAM, "doctor", "--format", "csv"], env=asked, capture_output=True, text=True)
    assert f"devices,wrong,none: JAX_PLATFORMS={platform} (" in done.stdout.replace('"', "")
    assert "unset JAX_PLATFORMS" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_every_letter_can_be_printed_in_small_alphabets(encoding):
    done = subprocess.run(
        [*PROGRAM, "lab", "--list"], env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "beyond 2/lambda_0" in done.stdout.decode(encoding)


def test_files_are_written_in_utf_8_in_the_c_locale(tmp_path):
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = f"from widthwise.files import write_text; write_text({str(tmp_path / 'x')!r}, chr(955))"
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert (tmp_path / "x").read_text(encoding="utf-8") == "λ"


def test_a_home_that_cannot_be_written_is_not_needed(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MPL", "XDG"))}
    words = ["phase", "relu", "--C_W", "1:3:3", "--C_b", "0:1:2", "--format", "csv", "--quiet", "--figure"]
    done = subprocess.run(
        [*PROGRAM, *words, tmp_path / "x.svg"], env=env | {"HOME": "/proc/nobody"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "x.svg").stat().st_size > 1000
