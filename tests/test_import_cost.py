"""`import widthwise` is cheap and pulls in nothing heavy; the core runs without the edge's packages."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

HEAVY = ("matplotlib", "dask", "distributed", "panel", "bokeh", "torch")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_costs_less_than_a_second_and_a_half_and_nothing_heavy_comes_along():
    code = f"""
import sys, time
start = time.perf_counter()
import widthwise as ww
[getattr(ww, name) for name in ww.__all__]
print(time.perf_counter() - start)
print([m for m in {HEAVY!r} if m in sys.modules])
"""
    import_alone = float(run("import time; s = time.perf_counter(); import widthwise; print(time.perf_counter() - s)"))
    everything, heavy = run(code).splitlines()
    assert import_alone < 1.5
    assert float(everything) < 12.0  # every public name resolved, on a machine that may be busy
    assert heavy == "[]"
    assert run(f"import sys, widthwise; print([m for m in {('xarray', *HEAVY)!r} if m in sys.modules])").strip() == "[]"


def test_a_labelled_result_is_made_without_importing_dask():
    code = """
import sys
from widthwise.results.labels import label, layer_coordinate
made = label({"K": (("layer", "a"), [[1.0, 2.0]])}, None, layer_coordinate((3,)), kind="measure")
print("dask" in sys.modules, made["K"].dims, made["layer"].values.tolist(), made["K"].long_name)
"""
    assert run(code).startswith("False ('layer', 'a') [3] kernel of the preactivations")


def test_the_core_runs_where_only_jax_numpy_and_scipy_are_installed():
    code = """
import sys
for name in ("xarray", "rich", "pandas", "matplotlib", "h5netcdf"):
    sys.modules[name] = None
import numpy as np
from widthwise.network import MLP
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.inference import infinite_width
from widthwise.experiments import sampler
print(kernel_flow(MLP([2, 8, 1], "tanh"), np.ones((1, 2))).K.shape)
"""
    assert run(code).strip() == "(2, 1, 1)"


def namespaces():
    """The package itself and those of its modules that have a stub."""
    import widthwise as ww

    return [ww, ww.criticality, ww.exact, ww.plots, ww.readers, ww.special]


def test_every_public_name_resolves_and_unknown_ones_do_not():
    import pytest

    for space in namespaces():
        for name in space.__all__:
            assert getattr(space, name) is not None
        assert dir(space) == sorted(space.__all__)
        with pytest.raises(AttributeError, match="no attribute 'thoery'"):
            space.thoery  # noqa: B018


def test_every_stub_is_read_and_no_function_shares_its_name_with_a_file():
    """The import system would put the module in the function's place."""
    stubs = {Path(space.__file__).with_suffix(".pyi"): space for space in namespaces()}
    assert set(stubs) == set(Path(__import__("widthwise").__file__).parent.rglob("*.pyi"))
    for stub, space in stubs.items():
        if stub.stem == "__init__":
            modules = {path.stem for path in stub.parent.iterdir()}
            assert {n for n in modules & set(space.__all__) if not isinstance(getattr(space, n), ModuleType)} == set()


def test_figures_of_a_dataset_come_with_any_public_name():
    code = "import widthwise as ww; import xarray; ww.special.sawtooth_network; print(hasattr(xarray.Dataset, 'ww'))"
    assert run(code).strip() == "True"
