"""Datasets: labels, files, sizes, progress."""

import io
import logging
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import rich.console
import xarray as xr

import widthwise as ww
from widthwise import memory, progress
from widthwise.results import theory as theory_module

NET = ww.MLP([2, 8, 1], "gelu", C_W=[1.0, 1.9])
X = [[0.5, 1.0], [1.0, -1.0]]


def test_the_dataset_is_labelled_as_documented():
    ds = ww.theory(NET, X)
    assert ds["K"].dims == ds["Theta"].dims == ("layer", "a", "b")
    assert ds["layer"].values.tolist() == [1, 2]
    assert ww.network_of(ds) == NET
    assert ds.attrs["widthwise_version"] == ww.__version__
    assert ds.attrs["n"] == 8
    assert "kernel" in ds["K"].attrs["long_name"]
    assert set(ww.theory(NET, X, tensors=["K"]).data_vars) == {"K"}
    assert set(ww.theory(NET, X, tensors="Theta").data_vars) == {"Theta"}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ww.critical("gelu"), "C_W"), (lambda: ww.depth_width(NET), "aspect_ratio"),
        (lambda: ww.criticality.fixed_points("tanh", C_b=0.1, C_W=1.5)[0], "chi_perp"),
        (lambda: ww.criticality.pair_fixed_point("tanh", 0.05, 1.5), "correlation"),
        (lambda: ww.proxy_width(NET.replace(activation="tanh"), X), "step_drift"),
    ],
)  # fmt: skip
def test_results_of_single_numbers_are_tables(make, name):
    found = make()
    assert found.to_dataframe()[name].item() == getattr(found, name)
    assert f"<th scope='row'>{name}</th><td>{getattr(found, name):.6g}</td>" in found._repr_html_()
    assert "object at" not in found._repr_html_()


def test_a_saved_result_comes_back_identical_and_opens_with_plain_xarray(tmp_path):
    for ds in (ww.theory(NET, X), ww.predict(NET, X, [1.0, 2.0], X), ww.posterior(NET, X, [1.0, 2.0], X, noise=0.1)):
        path = ww.save(ds, tmp_path / "result.nc")
        assert ww.load(path).identical(ds)
        with xr.open_dataset(path) as plain:
            assert ww.network_of(plain) == NET
    assert [p.name for p in tmp_path.iterdir()] == ["result.nc"]


def test_a_failed_save_leaves_the_old_file_alone(tmp_path):
    path = ww.save(ww.theory(NET, X), tmp_path / "result.nc")
    before = path.read_bytes()
    bad = ww.theory(NET, X).assign(oops=("a", np.array([object(), object()])))
    with pytest.raises(Exception):  # noqa: B017  (whatever the NetCDF library objects with)
        ww.save(bad, path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_files_that_are_not_there_or_not_ours_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected an existing NetCDF file"):
        ww.load(tmp_path / "nothing.nc")
    with pytest.raises(ValueError, match="expected an existing folder"):
        ww.save(ww.theory(NET, X), tmp_path / "no" / "folder.nc")
    (tmp_path / "text.nc").write_text("not a NetCDF file")
    with pytest.raises(ValueError, match="which cannot be read"):
        ww.load(tmp_path / "text.nc")
    with pytest.raises(ValueError, match="without the attribute 'network'"):
        ww.network_of(xr.Dataset())


# h5netcdf's finalizer of a file that it has opened half
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_files_with_a_damaged_byte_are_read_or_refused_in_one_line(tmp_path, monkeypatch):
    path, said, rng = tmp_path / "x.nc", [], np.random.default_rng(49)
    good = ww.save(ww.theory(NET, X), path).read_bytes()

    def load():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of decoding
                ww.load(path)
        except ww.WidthwiseError as error:
            said.append(str(error))

    for _ in range(40):
        damaged = bytearray(good)
        damaged[rng.integers(len(good))] = rng.integers(256)
        path.write_bytes(damaged)
        load()
    # two in sixty of other files, which came out as it was
    broken = RuntimeError("Unspecified error in H5DSget_num_scales (return value <0)")
    monkeypatch.setattr(xr, "open_dataset", lambda *_, **__: (_ for _ in ()).throw(broken))
    load()
    assert "(RuntimeError: Unspecified error in H5DSget_num_scales" in said[-1]
    assert len(said) > 2
    assert all("which cannot be read" in line and "\n" not in line for line in said)


@pytest.mark.parametrize(("name", "added"), [("x.nc", object()), ("x.nc", None), ("x.zarr", object())])
def test_what_no_file_can_hold_is_refused_and_nothing_is_written(name, added, tmp_path):
    """An attribute of the user's own ended in a TypeError of xarray's."""
    with pytest.raises(ww.WidthwiseError, match="dataset: got a Dataset that no file can hold .*mine|attribute"):
        ww.save(ww.theory(NET, X).assign_attrs(mine=added), tmp_path / name)
    if name == "x.nc":
        assert not list(tmp_path.iterdir())


def test_what_does_not_fit_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**20)
    big = np.ones((400, 2))
    with pytest.raises(
        ww.WidthwiseError, match=r"needs 4.9 MiB; expected at most 1.0 MiB.*layers='last'.*float32"
    ) as info:
        ww.theory(NET, big)
    assert isinstance(info.value, MemoryError)
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**21)
    ww.theory(NET, big, layers="last", tensors=["K"])  # what the message proposes fits


def test_available_memory_is_known():
    assert 2**20 < memory.available_bytes() < 2**50
    assert [memory.readable(x) for x in (12, 2048, 5 * 2**40)] == ["12 bytes", "2.0 KiB", "5.0 TiB"]


FORGETTING = """
import jax, jax.numpy as jnp
from widthwise import memory
maps = lambda: memory._MAPS.read_bytes().count(b"\\n")
jax.jit(jnp.sin)(jnp.ones(3))
before = maps()
memory.MOST_MAPS = before + 100
print(memory.forget_programs())
for size in range(1, 120):
    jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.ones((size, 3)))
print(maps() - before > 200, memory.forget_programs(), maps() - before < 100)
"""


@pytest.mark.skipif(not memory._MAPS.exists(), reason="needs Linux's list of the maps of a process")
def test_programs_are_forgotten_before_maps_of_memory_run_out():
    """In a process of its own: others would have to compile again."""
    told = subprocess.run([sys.executable, "-c", FORGETTING], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "True", "True", "True"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 2}, "order: got 2"),
        ({"layers": "lst"}, "Did you mean 'last'?"),
        ({"tensors": ["Tehta"]}, "expected one of K, Theta"),
        ({"tensors": []}, "tensors: got an empty list"),
        ({"dtype": "float16"}, "dtype: got 'float16'; expected 'float64' or 'float32'"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        ww.theory(NET, X, **options)
    with pytest.raises(ValueError, match="net: got str"):
        ww.theory("tanh", X)


def test_progress_appears_only_past_its_delay_and_only_when_wanted(monkeypatch):
    drawn = io.StringIO()
    clock = iter([0.0, 1.0, 3.0, 4.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    console = rich.console.Console(file=drawn, force_terminal=True)
    monkeypatch.setattr(rich.console, "Console", lambda stderr: console)
    with progress.DelayedProgress("kernels", show=True) as bar:
        bar(1, 10)
        assert bar.bar is None
        bar(2, 10)
        assert bar.bar is not None
    assert "kernels" in drawn.getvalue()
    monkeypatch.undo()
    with progress.DelayedProgress("kernels", show=False, delay=0.0) as bar:
        bar(1, 10)
        assert bar.bar is None


def test_theory_reports_every_tile(monkeypatch):
    seen = []
    monkeypatch.setattr(theory_module, "DelayedProgress", lambda *a: progress.DelayedProgress("x", False))
    monkeypatch.setattr(progress.DelayedProgress, "__call__", lambda self, done, total: seen.append((done, total)))
    ww.theory(NET, np.ones((500, 2)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_switch_to_64_bits_is_announced_once():
    code = "import widthwise as ww; ww.theory(ww.MLP([1, 2, 1], 'tanh'), [[1.0]]); ww.theory(ww.MLP([1, 2, 1], 'relu'), [[1.0]])"
    env = {name: value for name, value in os.environ.items() if name != "JAX_ENABLE_X64"}
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert shown.stderr.count("64-bit precision") == 1
    quiet = f"import jax; jax.config.update('jax_enable_x64', True); {code}"
    assert subprocess.run([sys.executable, "-c", quiet], check=True, capture_output=True, text=True).stderr == ""
    assert logging.getLogger("widthwise").name == "widthwise"
