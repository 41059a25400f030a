"""Checkpoints that are damaged, of another run, in use, or killed at any moment."""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from engine_jobs import JOBS, NET, X, chunks_in, start, sums_of

import widthwise as ww
from widthwise.errors import InvalidInput
from widthwise.experiments import checkpoints, programme
from widthwise.experiments.checkpoints import SavedRun


def short(path, networks=128):
    return ww.measure(NET, X, networks, checkpoint=path)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What is in a good checkpoint of 64 networks."""
    path = tmp_path_factory.mktemp("good") / "sums.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programme, "CHUNK_OPERATIONS", 1)
        short(path, 64)
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def changed_about(arrays, **changes):
    return arrays | {"about": np.asarray(json.dumps(json.loads(str(arrays["about"])) | changes))}


DAMAGES = {
    "another format": (lambda a: changed_about(a, format=2), r"a run with other format \(2 there, 4 here\)"),
    "another seed": (lambda a: changed_about(a, seed=[7]), r"a run with other seed \(\[7\] there, \[0\] here\)"),
    "no description": (lambda a: {k: v for k, v in a.items() if k != "about"}, "cannot be read as one"),
    "a list for a description": (lambda a: a | {"about": np.asarray("[1, 2]")}, "cannot be read as one"),
    "no position": (
        lambda a: {k: v for k, v in a.items() if k != "position"},
        "numbers are not those that were written",
    ),
    "a sum missing": (lambda a: {k: v for k, v in a.items() if k != "0/counts"}, "numbers are not those that were"),
    "a negative position": (lambda a: a | {"position": np.asarray(-1)}, "numbers are not those that were written"),
    "another number": (lambda a: a | {"0/counts": a["0/counts"] + 1.0}, "numbers are not those that were written"),
    "another shape": (
        lambda a: a | {"0/counts": a["0/counts"].reshape(8, 8)},
        "numbers are not those that were written",
    ),
    "a part too many": (lambda a: a | {"7/counts": a["0/counts"]}, "numbers are not those that were written"),
    "pickled objects": (lambda a: a | {"0/counts": np.array([{}], object)}, "cannot be read as one"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_in_one_line_and_left_alone(damage, written, monkeypatch, tmp_path):
    monkeypatch.setattr(programme, "CHUNK_OPERATIONS", 1)
    change, said = DAMAGES[damage]
    path = tmp_path / "sums.npz"
    np.savez(path, **change(written))
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match=rf"checkpoint: got '.*sums.npz', .*{said}.*(Delete|delete) the file"):
        short(path)
    assert path.read_bytes() == before
    # negative control: undamaged it is taken
    np.savez(path, **written)
    assert short(path).attrs["networks"] == 128


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04 cut short", b"text", b"\x93NUMPY"])
def test_a_file_that_is_no_checkpoint_is_refused(contents, tmp_path):
    path = tmp_path / "sums.npz"
    path.write_bytes(contents)
    with pytest.raises(InvalidInput, match=r"checkpoint: got .*sums.npz', which cannot be read as one"):
        short(path)
    assert path.read_bytes() == contents


def test_a_second_process_on_the_same_checkpoint_is_refused(tmp_path):
    path = tmp_path / "sums.npz"
    code = (
        f"from widthwise.files import claimed\nwith claimed('x', {str(path)!r}): print('claimed', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout.readline() == "claimed\n"
        with pytest.raises(
            InvalidInput, match=r"sums.npz', at which another process is at work; .* Wait until that run"
        ):
            short(path)
        first.kill()
    # one that was killed holds nothing, and what it left is removed
    assert short(path).attrs["networks"] == 128
    assert [found.name for found in tmp_path.iterdir()] in ([], ["sums.npz"])


def test_a_run_holds_its_checkpoint_while_it_works(tmp_path):
    run = SavedRun(tmp_path / "sums.npz", {})
    with run.alone(), pytest.raises(InvalidInput, match="another process"), run.alone():
        pass
    with run.alone():
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_parts_that_a_killed_run_left_are_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f".sums.npz.{ended.pid}.part").touch()
    SavedRun(tmp_path / "sums.npz", {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize("name", JOBS)
def test_runs_killed_at_random_moments_go_on_to_identical_sums(name, monkeypatch, tmp_path):
    """50 kills each: a run is killed again and again, each time going on from what the last one left."""
    monkeypatch.setattr(programme, "CHUNK_OPERATIONS", 1)
    expected = JOBS[name](checkpoint=tmp_path / "whole.npz")
    sums, draw, kills, run = sums_of(tmp_path / "whole.npz"), random.Random(name), 0, 0
    monkeypatch.setattr(checkpoints, "INTERVAL", 0.0)
    while kills < 50:
        path, run = tmp_path / f"{run}.npz", run + 1
        for _ in range(5):
            process = start(tmp_path, name, "None", path)
            time.sleep(draw.uniform(0.5, 8.0))
            process.kill()
            process.communicate(timeout=30)
            kills += process.returncode == -signal.SIGKILL
            assert not path.exists() or 0 < chunks_in(path) <= 60
        assert JOBS[name](checkpoint=path).identical(expected)
        assert sums_of(path) == sums
        assert sorted(found.name for found in tmp_path.glob(f".{path.name}*")) == []
