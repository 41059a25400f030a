"""Checkpoints that are damaged, of another run, in use, or killed at any moment."""

import io
import json
import random
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
from engine_jobs import JOBS, NET, X, chunks_in, start, sums_of

import widthwise as ww
from widthwise.errors import InvalidInput
from widthwise.experiments import checkpoints, programme
from widthwise.experiments.checkpoints import SavedRun
from widthwise.study import load_data


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


def archive(method=0, flags=0, compression=None, about=b"", header="(2,)") -> bytes:
    """A zip file of numpy's with an array `about`, and marks in its header that do not hold."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as made:
        entry = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {header}, }}\n".encode()
        start = b"\x93NUMPY\x01\x00" + len(entry).to_bytes(2, "little")
        made.writestr("about.npy", about or start + entry + bytes(16))
    found = bytearray(raw.getvalue())
    for at, flag, kind in ((found.find(b"PK\x03\x04"), 6, 8), (found.find(b"PK\x01\x02"), 8, 10)):
        found[at + flag] |= flags
        found[at + kind] = found[at + kind] if compression is None else compression
    return bytes(found)


def of_text(text: str) -> bytes:
    raw = io.BytesIO()
    np.save(raw, np.asarray(text))
    return archive(about=raw.getvalue())


@pytest.mark.parametrize(
    "contents",
    {
        "encrypted": archive(flags=1),
        "another compression": archive(compression=99),
        "no such compression": archive(compression=8),
        "petabytes": archive(header="(1000000000000000,)"),
        "a negative length": archive(header="(-1,)"),
        "brackets in a header": archive(header=400 * "(" + 400 * ")"),
        "brackets in the description": of_text(100_000 * "["),
        "a number of 5,000 digits": of_text(5000 * "1"),
        "bytes": archive(about=b"hello"),
        "objects": archive(header="(2,)").replace(b"<f8", b"|O8"),
    }.items(),
    ids=lambda named: named[0],
)
def test_archives_that_end_in_errors_of_zip_zlib_numpy_or_json_are_refused(contents, tmp_path):
    """Six of them came out as they were: zlib.error, RuntimeError, NotImplementedError, MemoryError, RecursionError."""
    path = tmp_path / "sums.npz"
    path.write_bytes(contents[1])
    with pytest.raises(
        InvalidInput, match=r"^checkpoint: got .*sums.npz', which cannot be read as one \([^\n]*\); expect"
    ):
        short(path)
    assert path.read_bytes() == contents[1]
    with pytest.raises(InvalidInput, match=r"^data: got .*sums.npz'"):
        load_data(path)


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
