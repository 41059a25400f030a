"""`import widthwise` is cheap and pulls in nothing heavy; the core runs without the edge's packages."""

import subprocess
import sys

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


def test_the_core_runs_where_only_jax_numpy_and_scipy_are_installed():
    code = """
import sys
for name in ("xarray", "rich", "pandas", "matplotlib", "h5netcdf"):
    sys.modules[name] = None
import numpy as np
from widthwise.network import MLP
from widthwise.flow.kernels.kernel_flow import kernel_flow
from widthwise.inference import gaussian_process, linear_training, training_kernel
from widthwise.experiments import sampler
print(kernel_flow(MLP([2, 8, 1], "tanh"), np.ones((1, 2))).K.shape)
"""
    assert run(code).strip() == "(2, 1, 1)"


def test_every_public_name_resolves_and_unknown_ones_do_not():
    import pytest

    import widthwise as ww

    for name in ww.__all__:
        assert getattr(ww, name) is not None
    assert dir(ww) == sorted(ww.__all__)
    with pytest.raises(AttributeError, match="no attribute 'thoery'"):
        ww.thoery  # noqa: B018
